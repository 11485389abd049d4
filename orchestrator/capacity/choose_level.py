"""Which load level a capacity search probes next, and when more probes would tell nothing.

A function of what all probes of a tier have shown (``capacity/levels.py``), in whatever order they
came, so that a search that was interrupted goes on by it, and a claim says by it whether its search
had ended (docs/search.md).

1. Screening: double or halve the load from the first guess until one level passes and a higher one
   fails.
2. Attainment is fitted over the levels (``capacity/attainment_fit.py``). Of all levels in between,
   the one is probed whose verdict is expected to narrow the bracket most for the load that it
   takes: first levels well below the expected capacity, which are proved quickly, then levels
   nearer to it.
3. A level that was shown to hold is probed again, with fresh seeds, until it is confirmed.
"""

import math
from dataclasses import dataclass

from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.levels import HIGHEST, LOWEST, SAME, STEPS, LevelEvidence, SearchState
from orchestrator.capacity.sequential_test import FEWEST, PATIENT

# Where nothing is predicted. Rather too high than too low: a level that is too high shows it in
# seconds, one that is too low takes as long as a hundred requests.
FIRST_RATE, FIRST_IN_FLIGHT = 16.0, 8.0
# a claim below the expected capacity divided by this is of no use: with 4 instead, searches at a
# cliff took 67 % more load
WORTHLESS = 1.5
SCREENING = 1000.0  # requests that should be enough to say whether to go up or down
# Raising the claim, which is what was asked for, counts this many times as much as lowering ``high``.
# With 1, median claims were 0.7 % of the capacity lower. This figure and all below:
# benchmarks/search/RESULTS.md.
RAISE = 3.0


# probes of full length that decide one level at most, and as many again that confirm it
MOST_REPEATS = 8
MOST_REQUESTS = 130_000.0  # that a verdict on a level may be expected to take
MOST_SCREENING = 3  # probes of a level that only say whether to go up or down


def next_level(state: SearchState, guess: float | None = None) -> float | None:
    """The level to be probed next; None: no probe would tell more. ``guess``: as in
    ``level_to_explore``.
    """
    confirms_last = any(evidence.start > 0 for evidence in state.levels)
    starts = 2 if confirms_last else 1
    return level_to_explore(state, guess, confirms_last) or level_to_confirm(state, starts)


def level_to_explore(
    state: SearchState,
    guess: float | None,
    confirms_last: bool = False,
    left_s: float = math.inf,
) -> float | None:
    """A level whose verdict is still open; None: there is none worth its load, or it is time to
    confirm one.

    ``guess``: the highest level that the tier is expected to hold. ``confirms_last``: levels are
    confirmed on another start of the engine, when nothing is left to explore on this one.
    ``left_s``: seconds of load that are left; ignored for levels in requests in flight, because it
    is not known how many requests those make in a second.
    """
    if not state.levels:
        first = FIRST_IN_FLIGHT if state.whole_numbers else FIRST_RATE
        return state.on_grid(guess or first)
    for evidence in state.levels:
        if not (evidence.requests or evidence.verdict or evidence.blocked):
            return evidence.level  # none of its probes was valid
    if state.is_screening:
        return _further_out(state)
    if state.is_precise(state.low if confirms_last else state.confirmed_level):
        return None
    if state.whole_numbers:
        left_s = math.inf
    best = _inside(state, confirms_last, left_s)
    if best is not None:
        return None if state.is_shown_to_hold(best) else best
    if state.low or (not confirms_last and _unconfirmed(state, 1) is not None):
        return None
    return _further_out(state)


def level_to_confirm(state: SearchState, starts: int = 1) -> float | None:
    """The highest level that was shown to hold and is not confirmed yet, but may still be; None: it
    is confirmed, or there is none. ``starts``: 2 where a claim is confirmed on a second start of the
    engine.
    """
    if starts == 1 and state.is_precise(state.confirmed_level):
        return None
    return _unconfirmed(state, starts)


def level_among_rivals(
    state: SearchState, leader_estimate: float, level: float | None
) -> float | None:
    """The level that a search in a race probes next; None: nothing is left to probe.

    ``level``: what the search would probe by itself. A level below ``leader_estimate``, which the
    leader of the race is expected to hold, is not worth a probe: a deployment that holds less does
    not win, however exactly its capacity is known. Then the level of the leader is probed instead,
    until it is confirmed, is shown to fail, or has had all its probes.
    """
    at_leader = state.on_grid(leader_estimate)
    if at_leader > leader_estimate * SAME:
        at_leader = state.on_grid(leader_estimate * 2.0 ** (-1 / STEPS))
    if not state.levels:
        return at_leader
    if level is None or level >= at_leader:
        return level
    evidence = state.at(at_leader)
    if evidence is not None and _is_done(evidence):
        return None
    return None if at_leader >= state.ceiling else at_leader


def expected_requests(state: SearchState, level: float) -> float:
    """Requests that a probe of the level should take: enough for a verdict or, where that is out of
    reach, enough to know the share of requests that meet the limits.
    """
    if state.is_screening:
        return SCREENING
    fit = AttainmentFit(state.levels, state.target)
    requests = affordable_requests(fit, level)
    return PATIENT * FEWEST * fit.effect if requests is None else requests


def affordable_requests(fit: AttainmentFit, level: float) -> float | None:
    """Requests that a verdict on the level is expected to take; None: more than any level gets."""
    requests = fit.requests(level)
    most = min(MOST_REQUESTS, MOST_REPEATS * fit.longest_probe)
    return requests if requests <= most else None


def is_spent(evidence: LevelEvidence) -> bool:
    """Whether the level had all the probes that it gets: MOST_REPEATS to be decided, and as many
    again to be confirmed once it was shown to hold. Probes that ended early count half.
    """
    most = 2 * MOST_REPEATS if evidence.verdict == "holds" else MOST_REPEATS
    return evidence.whole >= most or evidence.probes >= 2 * most


def _is_done(evidence: LevelEvidence) -> bool:
    return evidence.confirmed or evidence.verdict == "fails" or is_spent(evidence)


def _unconfirmed(state: SearchState, starts: int) -> float | None:
    """The highest level that was shown to hold and may still be confirmed; None: it is confirmed,
    or there is none.
    """
    for evidence in reversed(state.levels):
        if evidence.verdict != "holds" or evidence.level >= state.high:
            continue
        if evidence.confirmed and (starts == 1 or evidence.start):
            return None
        if not is_spent(evidence):
            return evidence.level
    return None


def _further_out(state: SearchState) -> float | None:
    """A level beyond the end at which the bracket is open: twice the highest or half the lowest, or
    the outermost one again. None: nothing can be shown there.
    """
    upward = math.isinf(state.ceiling)
    top = state.levels[-1]
    misses_unclearly = bool(top.requests) and (top.share or 0.0) < state.target
    if upward and misses_unclearly and top.probes < MOST_SCREENING:
        return top.level
    further = _step_out(state, upward)
    is_new = state.at(further) is None and LOWEST < further < HIGHEST
    if is_new and (upward or not _ends_downward(state.levels[0])):
        return further
    return None if upward else _undecided(state)


def _step_out(state: SearchState, upward: bool) -> float:
    """Twice the highest level that was probed, or half the lowest."""
    if upward:
        return state.on_grid(2 * state.levels[-1].level)
    return state.on_grid(state.levels[0].level / 2)


def _ends_downward(lowest: LevelEvidence) -> bool:
    """Whether lower levels tell nothing: their probes would be invalid as well, or get too few
    requests.
    """
    is_invalid = lowest.blocked and not lowest.client_bound
    has_too_few_requests = 0 < lowest.requests < FEWEST
    return lowest.verdict is None and (is_invalid or has_too_few_requests)


def _undecided(state: SearchState) -> float | None:
    """The lowest undecided level that another probe could still decide."""
    ceiling = state.ceiling
    for evidence in state.levels:
        if evidence.verdict is not None or evidence.level >= ceiling:
            continue
        more_would_tell = not evidence.whole or evidence.requests >= FEWEST
        if more_would_tell and evidence.probes < MOST_SCREENING:
            return evidence.level
    return None


@dataclass(frozen=True, slots=True, order=True)
class _Worth:
    """What a verdict on a level is worth, to be compared. ``in_time``: it is expected within the
    seconds that are left; without this rule 15 of 48 searches of 20 minutes had no claim, with it 6.
    ``narrowing``: how much it narrows the bracket, in logarithms of load, over the square root of
    the requests that it takes.
    """

    in_time: bool
    narrowing: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A level whose verdict is affordable."""

    level: float
    worth: _Worth


def _inside(state: SearchState, confirms_last: bool, left_s: float) -> float | None:
    """The level, between what is held and what fails, whose verdict is worth most; None: no verdict
    is affordable.

    Until there is a claim, one far below the expected capacity counts for nothing.
    """
    fit = AttainmentFit(state.levels, state.target)
    held = state.low if confirms_last else state.confirmed_level
    if not held:
        held = fit.level_of(state.target) / WORTHLESS
    candidates: list[_Candidate] = []
    for level in _levels_between(state, held, state.ceiling):
        evidence = state.at(level)
        is_shown = state.is_shown_to_hold(level)
        if level < state.low or (is_shown and confirms_last):
            continue
        if evidence is not None and is_spent(evidence):
            continue
        requests = affordable_requests(fit, level)
        if requests is None:
            continue
        if is_shown or fit.share(level) > state.target:
            gain = RAISE * math.log(level / held)
            proofs = 1 if is_shown or confirms_last else 2  # it is shown, then confirmed
        else:
            gain = math.log(state.ceiling / level)
            proofs = 1
        candidates.append(_Candidate(level, _worth(gain, proofs * requests, left_s * level)))
    if not candidates:
        return None
    return max(candidates, key=lambda candidate: candidate.worth).level


def _worth(gain: float, requests: float, requests_left: float) -> _Worth:
    """The gain is divided by the square root of the load: to decide a level at half the distance
    from the capacity takes four times the load.
    """
    return _Worth(requests <= requests_left, gain / math.sqrt(requests))


def _levels_between(state: SearchState, low: float, high: float) -> list[float]:
    """Levels of the grid in between, and those that were probed."""
    first = math.ceil(math.log2(low) * STEPS)
    last = math.floor(math.log2(high) * STEPS)
    on_grid = {state.on_grid(2.0 ** (step / STEPS)) for step in range(first, last + 1)}
    probed = {evidence.level for evidence in state.levels}
    return sorted(level for level in on_grid | probed if low < level < high)

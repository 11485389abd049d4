"""Which load level a capacity search probes next, and when more probes would tell nothing.

The choice depends only on what all probes of a tier have shown (``capacity/levels.py``), and not on
their order. So a search that was interrupted can go on, and a claim can say whether its search had
ended (docs/explained/capacity-search.md).

1. Screening: the load is doubled or halved from the first guess until one level passes and a higher
   one fails.
2. Attainment is fitted over the levels (``capacity/attainment_fit.py``). Of all levels in between,
   the one is probed whose verdict is expected to narrow the bracket most for the load that it
   takes: first levels well below the expected capacity, which are proved quickly, then levels
   nearer to it.
3. A level that was shown to hold is probed again, with fresh seeds, until it is confirmed.

Where time is limited, an estimate comes first (``capacity/estimate.py``): a level a little below it
is probed, which should be safe, then the levels that tell most about it. While the estimate is not
precise, a level is proved only if that takes a small part of the time left; after that, any level
is proved that can be proved in time.
"""

import math
from dataclasses import dataclass

from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.belief import belief_of
from orchestrator.capacity.design_effect import PRIOR_EFFECT
from orchestrator.capacity.estimate import Estimate, estimate_of
from orchestrator.capacity.levels import (
    HIGHEST,
    MOST_SCREENING,
    SAME,
    STEPS,
    LevelEvidence,
    SearchState,
)
from orchestrator.capacity.sequential_test import FAR_BELOW, FEWEST_REQUESTS, PATIENT, ProbeSize

# First levels (requests/s, requests in flight) where nothing is predicted. They are rather too high
# than too low: a level that is too high shows it in seconds, one that is too low takes as long as a
# hundred requests.
FIRST_RATE, FIRST_IN_FLIGHT = 16.0, 8.0
# A claim is of no use if it is below the expected capacity divided by this. With 4 instead,
# searches at a cliff took 67 % more load.
WORTHLESS = 1.5
SCREENING = 1000.0  # requests that should be enough to say whether to go up or down
# Raising the claim, which is what was asked for, counts for this many times as much as lowering
# ``high``. With 1, median claims were lower by 0.7 % of the capacity. This figure and all below are
# from benchmarks/search/RESULTS.md.
RAISE = 3.0
# The same where time is limited: fewer levels are then shown to fail. With 3, median claims after
# an hour (of four servers, 8 searches each) were lower by up to 2 % of the capacity.
RAISE_IN_TIME = 6.0
# the most probes of full length that a level gets to be decided, and again to be confirmed
MOST_REPEATS = 8
MOST_REQUESTS = 130_000.0  # the most that a verdict on a level may be expected to take
# where time is limited: the share of the requests left that a proof and its confirmation may take
# while the estimate is not precise
PROOF_SHARE = 0.35
PRECISE = 0.08  # an estimate is precise if half its interval is at most this share of it
# Shares of the estimate: the level that should be safe, and the range in which any level that met
# the target will do for it.
SAFE_AT, SAFE_FROM, SAFE_TO = 0.9, 0.86, 0.94
# where time is limited, a probe takes the requests that are left divided by this
PROBES_LEFT = 5
MOST_INDEPENDENT = 100.0  # the most independent requests that such a probe takes
# independent requests for which levels are compared, before it is known how many such a probe gets
INDEPENDENT = 60.0


def next_level(state: SearchState, guess: float | None = None) -> float | None:
    """The level to be probed next; None: no probe would tell more.

    Once a probe ran on a second start of the engine, levels are confirmed there. ``guess``: see
    ``level_to_explore``.
    """
    has_second_start = any(evidence.start > 0 for evidence in state.levels)
    level = level_to_explore(state, guess, confirms_last=has_second_start)
    if level is not None:
        return level
    return level_to_confirm(state, starts=2 if has_second_start else 1)


def level_to_explore(
    state: SearchState,
    guess: float | None,
    confirms_last: bool = False,
    left_s: float = math.inf,
) -> float | None:
    """A level to probe whose verdict is still open.

    None: no such level is worth its load, or it is time to confirm one. ``guess``: the highest
    level at which the tier is expected to hold. ``confirms_last``: levels are confirmed on another
    start of the engine, once nothing is left to explore on this one. ``left_s``: seconds of load
    that are left; ignored while it is not known how many requests those are.
    """
    if not state.levels:
        first = FIRST_IN_FLIGHT if state.whole_numbers else FIRST_RATE
        return state.on_grid(guess or first)
    for evidence in state.levels:
        has_no_valid_probe = not (evidence.requests or evidence.verdict or evidence.blocked)
        if has_no_valid_probe:
            return evidence.level
    budget = _budget(state, left_s)
    if state.is_screening and budget is None:
        return _level_to_screen(state, is_limited=math.isfinite(left_s))
    if state.is_precise(state.low if confirms_last else state.confirmed_level):
        return None
    level = _level_in_bracket(state, confirms_last, budget)
    if budget is not None:
        level_to_estimate = _level_to_estimate(
            state, budget.estimate, is_provable_level_left=level is not None
        )
        if level_to_estimate is not None:
            return level_to_estimate
    if level is None:
        # a level that holds can be claimed, if not precisely; without one, others are tried
        some_level_holds = state.low > 0
        return None if some_level_holds else _further_out(state)
    # a level that was shown to hold is left to ``level_to_confirm``
    return None if state.is_shown_to_hold(level) else level


def _level_to_screen(state: SearchState, is_limited: bool) -> float | None:
    """The next level while no level fails, or none could hold. ``is_limited``: time is limited.

    None: nothing can be shown.
    """
    if is_limited and _misses_by_far(state.levels[0], state.target):
        return _half_the_lowest(state)
    return _further_out(state)


def _level_to_estimate(
    state: SearchState, estimate: Estimate, is_provable_level_left: bool
) -> float | None:
    """A level to probe for the sake of the estimate, where time is limited; None: there is none.

    First comes a level that should be safe. Once no level is left that can be proved in time, it is
    the level that tells most about the capacity.
    """
    level = _safe_level(state, estimate)
    if level is None and not is_provable_level_left:
        level = _most_telling_level(state, estimate)
    return level


@dataclass(frozen=True, slots=True)
class _Budget:
    """What is left of a search whose time is limited.

    ``requests``: how many can still be sent, at the load of the estimate.
    """

    estimate: Estimate
    requests: float

    @property
    def for_a_proof(self) -> float:
        """Requests that a proof and its confirmation may take."""
        is_precise = self.estimate.half_width <= PRECISE
        return self.requests if is_precise else PROOF_SHARE * self.requests


def _budget(state: SearchState, left_s: float) -> _Budget | None:
    """What is left of a search.

    None: time is not limited, nothing can be estimated yet, or it is not known how many requests
    can be sent in the time left.
    """
    if math.isinf(left_s):
        return None
    estimate = estimate_of(state.levels, state.target)
    if estimate is None:
        return None
    rate = state.requests_per_s(estimate.level)
    return None if rate is None else _Budget(estimate, rate * left_s)


def probe_only_screens(state: SearchState, left_s: float) -> bool:
    """Whether a probe only has to tell whether to go up or down.

    In limited time it has more to tell as soon as there is an estimate.
    """
    return state.is_screening and _budget(state, left_s) is None


def level_to_confirm(state: SearchState, starts: int = 1) -> float | None:
    """The highest level that was shown to hold and that more probes may confirm.

    None: there is none, or a level as high is confirmed. ``starts``: 2 where a claim is confirmed
    on a second start of the engine.
    """
    if starts == 1 and state.is_precise(state.confirmed_level):
        return None
    for evidence in reversed(state.levels):
        if evidence.verdict != "holds" or evidence.level >= state.high:
            continue
        if evidence.confirmed and (starts == 1 or evidence.start):
            return None
        if not is_spent(evidence):
            return evidence.level
    return None


def level_among_rivals(
    state: SearchState, leader_estimate: float, level: float | None
) -> float | None:
    """The level that a search in a race probes next; None: nothing is left to probe.

    ``level``: what the search would probe by itself. ``leader_estimate``: what the leader of the
    race is expected to hold. A lower level is not worth a probe: a deployment that holds less does
    not win, however exactly its capacity is known. The level of the leader is probed instead, until
    it is confirmed, is shown to fail, or has had all its probes.
    """
    at_leader = state.on_grid(leader_estimate)
    if at_leader > leader_estimate * SAME:  # then the next lower level of the grid
        one_step_lower = leader_estimate * 2.0 ** (-1 / STEPS)
        at_leader = state.on_grid(one_step_lower)
    if not state.levels:
        return at_leader
    if level is None or level >= at_leader:
        return level
    evidence = state.at(at_leader)
    if evidence is not None and _is_done(evidence):
        return None
    return None if at_leader >= state.ceiling else at_leader


def probe_size(state: SearchState, level: float, left_s: float = math.inf) -> ProbeSize:
    """How many requests a probe of the level should take.

    They should be enough for a verdict. Where that is out of reach, or would not come in time, they
    should be enough to know the share of requests that meet the limits.
    """
    if probe_only_screens(state, left_s):
        return ProbeSize(SCREENING)
    fit = AttainmentFit(state.levels, state.target)
    requests = affordable_requests(fit, level)
    budget = _budget(state, left_s)
    if budget is None:
        if requests is None:
            # A verdict is out of reach. A running probe is not ended for taking too many requests
            # before it sent 1 / PATIENT of those expected. With this number these are as good as
            # FEWEST_REQUESTS independent ones, which are enough to know the share.
            requests = PATIENT * FEWEST_REQUESTS * fit.effect
        return ProbeSize(requests)
    if requests is not None and requests <= budget.for_a_proof:
        return ProbeSize(requests)
    effect = max(fit.effect, PRIOR_EFFECT)
    planned = max(budget.requests / PROBES_LEFT, FEWEST_REQUESTS * effect)
    planned = min(planned, MOST_INDEPENDENT * effect)
    if budget.requests < 2 * planned:
        return ProbeSize()  # no limit: what is left is too little for another probe
    return ProbeSize(most=planned)


def affordable_requests(fit: AttainmentFit, level: float) -> float | None:
    """How many requests a verdict on the level should take; None: more than any level gets."""
    requests = fit.requests(level)
    most = min(MOST_REQUESTS, MOST_REPEATS * fit.requests_of_whole_probe)
    return requests if requests <= most else None


def is_spent(evidence: LevelEvidence) -> bool:
    """Whether the level had all the probes that it gets.

    To be decided, it gets MOST_REPEATS probes that run their time (``LevelEvidence.whole``), or
    twice as many in all. Once it was shown to hold, it gets as many again to be confirmed.
    """
    most = 2 * MOST_REPEATS if evidence.verdict == "holds" else MOST_REPEATS
    return evidence.whole >= most or evidence.probes >= 2 * most


def _is_done(evidence: LevelEvidence) -> bool:
    return evidence.confirmed or evidence.verdict == "fails" or is_spent(evidence)


def _further_out(state: SearchState) -> float | None:
    """A level to probe beyond the end at which the bracket is open; None: none would tell more."""
    is_open_upward = math.isinf(state.ceiling)
    return _further_up(state) if is_open_upward else _further_down(state)


def _further_up(state: SearchState) -> float | None:
    """Twice the highest level, or the highest itself while it misses and is not shown to fail.

    None: higher levels are not probed.
    """
    top = state.levels[-1]
    misses = bool(top.requests) and (top.share or 0.0) < state.target
    if misses and top.probes < MOST_SCREENING:
        return top.level
    twice = state.on_grid(2 * top.level)
    return twice if top.level < twice < HIGHEST else None


def _further_down(state: SearchState) -> float | None:
    """Half the lowest level; where lower levels would tell nothing, one that is undecided.

    None: that cannot be decided either.
    """
    lowest = state.levels[0]
    half = _half_the_lowest(state)
    is_new = half < lowest.level
    if is_new and not _ends_downward(lowest):
        return half
    return _undecided(state)


def _misses_by_far(evidence: LevelEvidence, target: float) -> bool:
    """Whether requests of an undecided level miss so often that a much lower level comes next."""
    has_enough = evidence.requests >= FEWEST_REQUESTS
    return has_enough and (evidence.share or 0.0) < FAR_BELOW * target and not evidence.verdict


def _half_the_lowest(state: SearchState) -> float:
    """The level of the grid at half the lowest one that was probed."""
    return state.on_grid(state.levels[0].level / 2)


def _ends_downward(lowest: LevelEvidence) -> bool:
    """Whether levels below the lowest would tell nothing.

    Their probes would be invalid as well, or get too few requests.
    """
    is_invalid = lowest.blocked and not lowest.client_bound
    has_too_few_requests = 0 < lowest.requests < FEWEST_REQUESTS
    return lowest.verdict is None and (is_invalid or has_too_few_requests)


def _undecided(state: SearchState) -> float | None:
    """The lowest undecided level that another probe could still decide."""
    ceiling = state.ceiling
    for evidence in state.levels:
        if evidence.verdict is not None or evidence.level >= ceiling:
            continue
        # a probe that ran its time and got too few requests would get too few again
        gets_too_few = evidence.whole > 0 and evidence.requests < FEWEST_REQUESTS
        if not gets_too_few and evidence.probes < MOST_SCREENING:
            return evidence.level
    return None


def _safe_level(state: SearchState, estimate: Estimate) -> float | None:
    """A level a little below the estimate; None: it is decided or cannot be measured, or one near
    it met the target.
    """
    for evidence in state.levels:
        part = evidence.level / estimate.level
        if SAFE_FROM <= part <= SAFE_TO and (evidence.share or 0.0) >= state.target:
            return None
    level = state.on_grid(SAFE_AT * estimate.level)
    probed = state.at(level)
    is_done = probed is not None and (probed.verdict is not None or probed.blocked)
    return None if is_done else level


def _most_telling_level(state: SearchState, estimate: Estimate) -> float | None:
    """The undecided level in the interval of the estimate that should tell most of the capacity.

    None: no level in the interval is undecided.
    """
    belief = belief_of(state.levels, state.target)
    assert belief is not None
    levels: list[float] = []
    for level in _levels_between(state, estimate.lower / SAME, estimate.upper * SAME):
        evidence = state.at(level)
        is_open = evidence is None or (evidence.verdict is None and not evidence.blocked)
        if is_open and level < state.ceiling:
            levels.append(level)
    return max(levels, key=lambda level: belief.information(level, INDEPENDENT), default=None)


@dataclass(frozen=True, slots=True)
class _Bracket:
    """The loads between which the capacity is sought.

    ``low``: the claim or, until there is one, a load below which a claim would be of no use.
    ``high``: from here on nothing is probed.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _ExpectedVerdict:
    """The verdict that probes of a level should come to.

    ``gain``: how much it narrows the bracket, in logarithms of load. ``proofs``: 2 where the level
    must be shown to hold, and then be confirmed.
    """

    gain: float
    proofs: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A level whose verdict is affordable.

    ``worth``: the gain of its verdict over the square root of the requests that it takes, because a
    level at half the distance from the capacity takes four times the load to decide.
    """

    level: float
    worth: float


def _level_in_bracket(
    state: SearchState, confirms_last: bool, budget: _Budget | None
) -> float | None:
    """The level, between what holds and what fails, whose verdict is worth most.

    None: no verdict is affordable. Where time is limited, a verdict counts only if it is expected
    in time.
    """
    fit = AttainmentFit(state.levels, state.target)
    bracket = _bracket(state, fit, confirms_last, budget)
    candidates: list[_Candidate] = []
    for level in _levels_between(state, bracket.low, bracket.high):
        evidence = state.at(level)
        is_confirmed_later = confirms_last and state.is_shown_to_hold(level)
        if level < state.low or is_confirmed_later:
            continue
        if evidence is not None and is_spent(evidence):
            continue
        requests = affordable_requests(fit, level)
        if requests is None:
            continue
        may_hold = state.is_shown_to_hold(level) or fit.share(level) > state.target
        if may_hold:
            verdict = _verdict_to_hold(state, level, bracket, confirms_last, budget)
        elif _is_worth_failing(state, level, budget):
            verdict = _ExpectedVerdict(math.log(bracket.high / level), proofs=1)
        else:
            continue
        requests_in_all = verdict.proofs * requests
        if budget is not None and requests_in_all > budget.for_a_proof:
            continue
        candidates.append(_Candidate(level, verdict.gain / math.sqrt(requests_in_all)))
    best = max(candidates, key=lambda candidate: candidate.worth, default=None)
    return None if best is None else best.level


def _bracket(
    state: SearchState, fit: AttainmentFit, confirms_last: bool, budget: _Budget | None
) -> _Bracket:
    """Between which loads the capacity is sought now.

    Where time is limited, no level above the estimate's interval is probed. But a level that would
    end the search if it failed (``_is_worth_failing``) always stays within the bracket.
    """
    low = state.low if confirms_last else state.confirmed_level
    if not low:
        low = fit.level_of(state.target) / WORTHLESS
    high = state.ceiling
    if budget is not None:
        # A failing level ends the search if it is at most the precision above the claim. Twice that
        # leaves room for such levels, because ``high`` itself is not probed.
        high_to_end_search = low * (1 + 2 * state.precision)
        high = min(high, max(budget.estimate.upper, high_to_end_search))
    return _Bracket(low, high)


def _verdict_to_hold(
    state: SearchState,
    level: float,
    bracket: _Bracket,
    confirms_last: bool,
    budget: _Budget | None,
) -> _ExpectedVerdict:
    """What it is worth to show that a level holds, or to confirm it."""
    weight = RAISE if budget is None else RAISE_IN_TIME
    is_one_proof_enough = confirms_last or state.is_shown_to_hold(level)
    return _ExpectedVerdict(
        gain=weight * math.log(level / bracket.low), proofs=1 if is_one_proof_enough else 2
    )


def _is_worth_failing(state: SearchState, level: float, budget: _Budget | None) -> bool:
    """Whether it is of use to show that a level fails.

    In limited time it is only if that ends the search, because the claim is then precise.
    """
    return budget is None or level <= (1 + state.precision) * state.confirmed_level


def _levels_between(state: SearchState, low: float, high: float) -> list[float]:
    """The levels between two loads that lie on the grid or were probed, the lowest first."""
    first = math.ceil(math.log2(low) * STEPS)
    last = math.floor(math.log2(high) * STEPS)
    on_grid = {state.on_grid(2.0 ** (step / STEPS)) for step in range(first, last + 1)}
    probed = {evidence.level for evidence in state.levels}
    return sorted(level for level in on_grid | probed if low < level < high)

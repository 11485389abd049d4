"""Puts into sentences what ``analysis`` and ``capacity`` found: doubts, verdicts and the like.

Each sentence is written here once.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence

from orchestrator import __version__
from orchestrator.analysis.deployments import ComparedModel
from orchestrator.analysis.metrics import BACKLOG, FAILING
from orchestrator.analysis.output_agreement import AgreementNote, Disagreement
from orchestrator.analysis.points import Attained, StoredPoint
from orchestrator.analysis.slo import ANSWERED, JOINT, format_slo, is_joint_test
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.base.text import counted, listed
from orchestrator.capacity.answers import (
    Excluded,
    Exclusion,
    Note,
    NoteKind,
    RankedDeployment,
    SearchedClaim,
    Shortfall,
)
from orchestrator.capacity.best import Certainty, Comparison
from orchestrator.capacity.claim import POINTLESS, Claim, ClaimStatus
from orchestrator.capacity.doubts import (
    GRID_STEP,
    DeploymentLevels,
    Doubt,
    DoubtKind,
    Remedy,
    longest_probes,
    nearest_miss,
    widest_precision,
)
from orchestrator.capacity.estimate_words import rounded_text
from orchestrator.capacity.first_change import FirstChange, LongerProbes, WiderPrecision
from orchestrator.plan.current import Points, StoredExperiment
from orchestrator.report.selection import RankedApart, UnansweredSlo
from orchestrator.results.records import LaunchRow, PointHead
from orchestrator.results.runs import Runs
from orchestrator.results.validity_words import remedy_text
from orchestrator.spec.load import UNITS, Level, Slo, format_duration, load_text
from orchestrator.spec.settings import NO_HARDWARE

NOT_THE_LIMIT = "not the limit"  # beside a load above which nothing was shown to fail
ESTIMATE = "estimate"  # beside a load that is expected to hold, and not claimed


def level_text(level: Level) -> str:
    """``8 req/s``."""
    return load_text(level.control, level.value)


def ranked_load_text(deployment: RankedDeployment) -> str:
    """The load at which a deployment is ranked: ``8 req/s``; the estimated one without a claim.
    ``8 req/s (5.1 offered)`` where its point was sent less, or more.
    """
    point = deployment.point
    control = point.head.control
    estimate = deployment.estimate
    if estimate is None:
        ranked_level = point.head.level
        text = level_text(deployment.level)
    else:
        ranked_level = estimate.level
        text = f"{rounded_text(estimate.level, control, estimate)} {UNITS[control]}"
    if point.was_sent_as_asked or point.offered_rate is None:
        return text
    # of an estimated load, the same share is taken to be offered as of the point's
    offered = point.offered_rate * ranked_level / point.head.level
    return f"{text} ({offered:.3g} offered)"


def ranked_mark(deployment: RankedDeployment) -> str:
    """What stands beside that load: ``not the limit`` where no higher load was seen to fail."""
    if deployment.is_estimate:
        return ESTIMATE
    return NOT_THE_LIMIT if deployment.lower_bound_only else ""


def name_at_level(deployment: RankedDeployment) -> str:
    """``tp=2 at 8 req/s``."""
    return f"{deployment.label} at {ranked_load_text(deployment)}"


def model_text(model: ComparedModel) -> str:
    """``org/m and 2 more checkpoints of it``."""
    return _with_others(model.checkpoint, model)


def short_model_text(model: ComparedModel) -> str:
    """``model_text`` for a heading: see ``short_model``."""
    return _with_others(short_model(model.checkpoint), model)


def short_model(checkpoint: str) -> str:
    """A model of the hub by its name there, a model in a folder by the last two names of its path.

    Names on the hub have two parts too.
    """
    if not os.path.isabs(checkpoint):
        return checkpoint
    return "/".join(checkpoint.rstrip("/").split("/")[-2:])


def _with_others(name: str, model: ComparedModel) -> str:
    if not model.other_checkpoints:
        return name
    return f"{name} and {counted(model.other_checkpoints, 'more checkpoint')} of it"


def unit_text(comparison: Comparison) -> str:
    """The unit of the throughputs that are compared."""
    if comparison.per == "usd":
        return "output tokens/USD"
    if comparison.per == "joule":
        return "output tokens/J"
    if comparison.per == "deployment":
        return "output tokens/s"
    return f"output tokens/s per {'core' if comparison.devices_are_cores else 'GPU'}"


def test_text(test: Attained) -> str:
    """``attainment``, ``attainment of chat``, or ``the share within ttft_p95``."""
    if not is_joint_test(test.name):
        return f"the share within {test.name}"
    return JOINT if test.part is None else f"{JOINT} of {test.part}"


def claim_text(control: str, claim: Claim) -> str:
    """``between 6.9 and 7.9 req/s``."""
    if math.isinf(claim.high):
        return f"at least {load_text(control, claim.low)}" if claim.low else "unknown"
    return f"between {claim.low:g} and {load_text(control, claim.high)}"


def failure_text(row: PointHead | LaunchRow) -> str:
    """Why something failed, with the class and kind of the failure."""
    # a kind may be named like its class
    named = dict.fromkeys([row.failure_class, row.failure_kind])
    kinds = [name for name in named if name]
    return f"{row.reason} ({': '.join(kinds)})" if kinds else str(row.reason)


def slo_text(slo: Slo) -> str:
    """The limits, with the name that the file gives them."""
    if slo == ANSWERED:
        return f"no latency limits ({format_slo(slo)})"
    return format_slo(slo) if slo.name == "slo" else f"{slo.name} ({format_slo(slo)})"


def on_hardware(name: str | None) -> str:
    """`` on h100``; empty for an endpoint, whose hardware is not known."""
    return f" on {name}" if name not in (None, NO_HARDWARE) else ""


_SEARCH_STATUSES: Mapping[ClaimStatus, str] = {
    "converged": (
        "the claim is as near to the lowest level that fails as was asked for (--precision)"
    ),
    "cliff": "just above the claim hardly any request meets the limits",
    "not_the_limit": (
        "it holds at the recorded rate, and thinning sends no more: scale: stretch or a busier trace "
        "can"
    ),
    "unresolved": "the levels in between are too near to the target to decide them",
    "nothing_holds": "the lowest level that gives a probe enough requests does not hold either",
    "budget": "the search ended before it knew all it could",
    "non_monotonic": (
        "a level holds above one that fails: the engine does not behave the same all the time"
    ),
    "client_bound": "the client was too slow to tell: try more --clients",
}


def search_status_text(status: ClaimStatus) -> str:
    """The status of the search of one endpoint, and why it ended: ``cliff: just above ...``."""
    if status in POINTLESS:
        return f"{status}: {remedy_text(status, 'the server')}"
    return f"{status}: {_SEARCH_STATUSES[status]}"


def option_text(name: str, value: str) -> str:
    """A setting as ``load`` takes it: ``--duration 25m``."""
    return f"--{name} {value}"


def key_text(name: str, value: str) -> str:
    """A setting as an experiment file has it: ``duration: 25m``."""
    return f"{name}: {value}"


def first_change_text(
    control: str, change: FirstChange, setting_text: Callable[[str, str], str]
) -> str:
    """What to change first: ``--duration 25m: ...``; the caller begins the sentence.

    ``setting_text``: writes a setting with its value.
    """
    if isinstance(change, WiderPrecision):
        setting = setting_text("precision", precision_text(change))
        return f"{setting}: then the claim is the answer, what fails lies no farther above"
    at = load_text(control, change.level)
    if isinstance(change, LongerProbes):
        setting = setting_text("duration", probe_length(change.seconds))
        return f"{setting}: probes that long would decide {at}"
    limit = f"{change.limit.name}<={format_duration(change.limit.seconds)}"
    part = change.limit.part
    requests = "requests" if part is None else f"requests of {part}"
    if math.isinf(change.value_s):
        shares = f"{change.met:.0%} of {requests} met it at {at}, not {change.needed:.0%}"
        return f"the limit {limit}: {shares}"
    value = format_duration(float(f"{change.value_s:.3g}"))
    return f"the limit {limit}: {change.needed:.0%} of {requests} took up to {value} at {at}"


def precision_text(change: WiderPrecision) -> str:
    return f"{change.precision:.2g}"


def probe_length(seconds: float) -> str:
    """A length as ``--duration`` takes it, rounded up: ``90s``, ``25m``."""
    return f"{math.ceil(seconds)}s" if seconds < 120 else f"{math.ceil(seconds / 60)}m"


# How certain the answer is


def among_text(comparison: Comparison) -> str:
    """`` among 8 of 96`` where a shortlist left deployments out; else empty."""
    shortlisted = comparison.shortlisted
    return f" among {shortlisted.listed:,} of {shortlisted.of:,}" if shortlisted else ""


def verdict_text(comparison: Comparison) -> str:
    """Whether the first of the ranking is certain to be the best and why, or why there is none."""
    limits = format_slo(comparison.slo)
    among = among_text(comparison)
    match comparison.certainty:
        case Certainty.ONLY_ONE_HOLDS:
            return f"certain{among}: the only deployment that holds the limits"
        case Certainty.OTHERS_FAIL:
            return (
                f"certain{among}: every other was shown to fail at what is claimed of the first, "
                "or below"
            )
        case Certainty.AHEAD:
            pooled = _pooled_text(comparison.spread)
            return f"certain{among}: it is ahead of every other by more than starts differ{pooled}"
        case Certainty.DOUBTED:
            doubts = "; ".join(doubt_text(doubt) for doubt in comparison.doubts)
            return f"not certain{among}: {doubts}"
        case Certainty.NOT_MEASURED:
            return "nothing that the plan asks for here is measured yet"
        case Certainty.INCOMPARABLE:
            assert comparison.incomparable is not None
            reason = _WITHOUT_DIVISOR[comparison.incomparable]
            return f"what holds {limits} cannot be ranked: {reason}"
        case Certainty.NOTHING_VALID:
            counts = [f"{count} {name}" for name, count in comparison.verdict_counts.items()]
            return f"no point has a valid measurement{among}: {', '.join(counts)}"
        case Certainty.NOTHING_HOLDS:
            passed = _passed_texts(comparison)
            if passed:
                return f"no deployment{among} is confirmed to hold {limits}: {listed(passed)}"
            return f"no deployment{among} holds {limits} at any level with a valid measurement"


def _passed_texts(comparison: Comparison) -> list[str]:
    """By deployment of which nothing is claimed, the highest level that passed in its search."""
    texts: list[str] = []
    for excluded in comparison.excluded:
        for searched in excluded.claims:
            passed = searched.claim.passed
            if passed is not None:
                level = load_text(searched.control, passed)
                texts.append(f"{excluded.deployment.label} passed {level}")
    return texts


def remedy_texts(comparison: Comparison) -> list[str]:
    """The measurements that would make the answer certain, a sentence each."""
    texts = []
    for doubt in comparison.doubts:
        if doubt.remedy is None:
            continue
        text = _remedy_text(doubt.remedy, doubt)
        if doubt.remedy is Remedy.RUN_AGAIN and comparison.run_command is not None:
            text = f"{text}: {comparison.run_command}"
        texts.append(text)
    return texts


def doubt_text(doubt: Doubt) -> str:
    """What is in doubt, as a clause."""
    text_of = _TEXTS_BY_DOUBT.get(doubt.kind)
    if text_of is not None:
        return text_of(doubt)
    return _filled(_DOUBTS[doubt.kind], doubt)


def _remedy_text(remedy: Remedy, doubt: Doubt) -> str:
    text_of = _REMEDIES_BY_DOUBT.get(remedy)
    if text_of is not None:
        return text_of(doubt)
    return _filled(_REMEDIES[remedy], doubt)


def _filled(sentence: str, doubt: Doubt) -> str:
    """The sentence with the names of deployments and levels."""
    return sentence.format(
        deployments=listed(doubt.deployments),
        are=_are(doubt.deployments),
        levels=listed(_all_at_levels(doubt)),
        to_remedy=listed(doubt.to_remedy),
    )


def _starts_differ(doubt: Doubt) -> str:
    behind = f"{listed(doubt.deployments)} {_are(doubt.deployments)}"
    return f"{behind} behind by less than starts differ{_pooled_text(doubt.spread)}"


def _pooled_text(spread: CommonSpread | None) -> str:
    """`` (1.2%, over 8 deployments)``: how much starts differ, if deployments have it in common."""
    if spread is None:
        return ""
    return f" ({math.sqrt(spread.variance):.1%}, over {counted(spread.deployments, 'deployment')})"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def at_levels_text(deployment: DeploymentLevels) -> str:
    """``tp=2 at 4 req/s, 8 req/s``."""
    levels = ", ".join(level_text(level) for level in deployment.levels)
    return f"{deployment.label} at {levels}"


def _all_at_levels(doubt: Doubt) -> list[str]:
    return [at_levels_text(deployment) for deployment in doubt.levels]


def _searched_text(searched: SearchedClaim) -> str:
    return f"{claim_text(searched.control, searched.claim)} ({searched.claim.status})"


def _not_settled(doubt: Doubt) -> str:
    texts = []
    for deployment in doubt.claims:
        claims = ", ".join(_searched_text(searched) for searched in deployment.claims)
        texts.append(f"{deployment.label} {claims}")
    if doubt.remedy is Remedy.OTHER_LIMITS:
        return f"no load was shown to hold: {listed(texts)}"
    return f"capacities are not settled: {listed(texts)}"


def _may_miss_target(doubt: Doubt) -> str:
    assert doubt.test is not None
    test = test_text(doubt.test).removeprefix("the ")
    return f"the winner's {test} could be below the target"


def _more_is_claimed(doubt: Doubt) -> str:
    return (
        f"more is claimed of {listed(doubt.deployments)}, but the probes of {doubt.leader} expect"
        " it to hold more"
    )


def _bounds_overlap(doubt: Doubt) -> str:
    text = (
        f"bounds overlap: {listed(doubt.deployments)} could hold up to {doubt.excess:.1%} more than"
        f" is claimed of {doubt.leader}"
    )
    if doubt.remedy is not None:
        return text
    return f"{text}, and no search tells more: levels are {GRID_STEP - 1:.1%} apart"


def _simulated(doubt: Doubt) -> str:
    if not doubt.deployments:
        return "simulated by a model; nothing was measured"
    return (
        f"simulated: {listed(doubt.deployments)} may hold as much as {doubt.leader}, within the"
        " model's error"
    )


# Sentences that need nothing but the names of deployments and levels.
_DOUBTS: Mapping[DoubtKind, str] = {
    DoubtKind.NOT_MEASURED: "{deployments} {are} not measured yet",
    DoubtKind.OPEN_LEVELS: "levels of {deployments} that could hold have no valid measurement",
    DoubtKind.NEAR_THE_LIMIT: "{deployments} could hold more",
    DoubtKind.CAPACITY_NOT_REACHED: "the capacity of {deployments} was not reached",
    DoubtKind.INCOMPARABLE: "{deployments} cannot be compared with the others",
    DoubtKind.NOT_STEADY: "no part of {levels} was steady",
    DoubtKind.REPEATS_NOT_VALID: "repeats of {deployments} failed or are not valid",
    DoubtKind.ONE_START: "one start: spread unknown",
    DoubtKind.ONE_VALID_START: "one start alone of {deployments} is valid",
}
_TEXTS_BY_DOUBT: Mapping[DoubtKind, Callable[[Doubt], str]] = {
    DoubtKind.NOT_SETTLED: _not_settled,
    DoubtKind.MAY_MISS_TARGET: _may_miss_target,
    DoubtKind.MORE_IS_CLAIMED: _more_is_claimed,
    DoubtKind.BOUNDS_OVERLAP: _bounds_overlap,
    DoubtKind.SIMULATED: _simulated,
    DoubtKind.STARTS_DIFFER: _starts_differ,
}


def _run_again(doubt: Doubt) -> str:
    if doubt.kind is DoubtKind.OPEN_LEVELS:
        levels = listed(_all_at_levels(doubt))
        plan = f"it measures {levels} as far as that was spoilt, failed or is missing"
    elif doubt.startable_deployments is None:
        plan = f"it goes on with {listed(doubt.deployments)}"
    else:
        plan = f"max_deployments allows {doubt.startable_deployments} more"
    return f"run the experiment again: {plan}"


def _higher_levels(doubt: Doubt) -> str:
    levels: dict[str, None] = {}
    for deployment in doubt.levels:
        levels.update(dict.fromkeys(level_text(level) for level in deployment.levels))
    return f"measure {listed(doubt.deployments)} at higher levels than {', '.join(levels)}"


def _more_starts(doubt: Doubt) -> str:
    if doubt.kind is DoubtKind.ONE_START:
        return f"start {listed(doubt.to_remedy)} at least twice (starts: 2)"
    first, second = _all_at_levels(doubt)
    if doubt.starts_needed is None:
        return f"many more starts of {first} and {second}"
    return f"about {doubt.starts_needed} starts each of {first} and {second}"


def _measure(doubt: Doubt) -> str:
    count = 1 + len(doubt.deployments)
    what = f"measure {doubt.leader}" if count == 1 else f"measure these {count}"
    if doubt.deployments_of_run is not None:
        others = (
            "" if doubt.deployments_of_run == count else f" measures all {doubt.deployments_of_run}"
        )
        return f"{what} (orchestrator run{others})"
    if doubt.shortlist_size is None:
        return what
    command = f"orchestrator run --shortlist {doubt.shortlist_size} --simulated RESULTS"
    if doubt.shortlist_size > count:
        command += ", with room for what the file's other questions need"
    return f"{what} ({command})"


def longer_probes_text(doubt: Doubt) -> str | None:
    """``duration: 25m``; None: how long probes must be is not known of all searches in doubt."""
    longest = longest_probes(doubt)
    return None if longest is None else key_text("duration", probe_length(longest.seconds))


def wider_precision_text(doubt: Doubt) -> str:
    """``precision: 0.2``."""
    return key_text("precision", precision_text(widest_precision(doubt)))


def limit_to_change_text(doubt: Doubt) -> str | None:
    """The limit to change first where nothing holds: ``the limit ttft<=500ms: ... (tp=1)``."""
    nearest = nearest_miss(doubt)
    if nearest is None:
        return None
    return f"{first_change_text(nearest.control, nearest.miss, key_text)} ({nearest.label})"


def _longer_probes(doubt: Doubt) -> str:
    length = longer_probes_text(doubt) or "duration"
    return f"search {listed(doubt.deployments)} on, with longer probes ({length})"


def _wider_precision(doubt: Doubt) -> str:
    precision = wider_precision_text(doubt)
    return f"take what is claimed of {listed(doubt.deployments)} as it is ({precision})"


def _other_limits(doubt: Doubt) -> str:
    hold = "holds" if len(doubt.deployments) == 1 else "hold"
    text = f"other limits: {listed(doubt.deployments)} {hold} these at no load"
    limit = limit_to_change_text(doubt)
    return text if limit is None else f"{text}; change first {limit}"


def lower_levels_text(doubt: Doubt) -> str:
    (deployment,) = doubt.levels
    (level,) = deployment.levels
    return f"measure below {level_text(level)}"


def repair_text(doubt: Doubt) -> str:
    return remedy_text(doubt.validity, listed(doubt.deployments))


_REMEDIES: Mapping[Remedy, str] = {
    Remedy.MORE_DEPLOYMENTS: "give a larger max_deployments: no more are started",
    Remedy.MORE_ROOM: (
        "add nodes with room for {deployments} (orchestrator doctor --experiment FILE says what is "
        "missing), then run the experiment again"
    ),
    Remedy.MORE_REPEATS_OR_LONGER: "measure {levels} again: more repeats, or longer",
    Remedy.MORE_REPEATS: "measure {deployments} with more repeats",
    Remedy.LONGER: "measure {levels} longer",
    Remedy.SEARCH_LONGER: "search {deployments} on, with more budget",
    Remedy.VALID_PROBES: (
        "run the experiment again with --again, without what spoilt the probes of {deployments}"
    ),
    Remedy.MORE_CLIENTS: "search {deployments} on, with more clients",
    Remedy.STRETCH: (
        "send {deployments} more than was recorded: scale: stretch, or a busier trace"
    ),
    Remedy.LONGER_CONTEXT: (
        "raise max_model_len of {deployments} if the requests that are refused (http_4xx) are too "
        "long: they are refused at any load"
    ),
    Remedy.SMALLER_PRECISION: "search {to_remedy} on, with a smaller precision",
}
_REMEDIES_BY_DOUBT: Mapping[Remedy, Callable[[Doubt], str]] = {
    Remedy.RUN_AGAIN: _run_again,
    Remedy.MORE_STARTS: _more_starts,
    Remedy.HIGHER_LEVELS: _higher_levels,
    Remedy.LOWER_LEVELS: lower_levels_text,
    Remedy.REPAIR: repair_text,
    Remedy.MEASURE: _measure,
    Remedy.LONGER_PROBES: _longer_probes,
    Remedy.WIDER_PRECISION: _wider_precision,
    Remedy.OTHER_LIMITS: _other_limits,
}


# What is in doubt about a point

NO_REASON = "no reason was stored"


def point_doubt_texts(point: StoredPoint) -> list[str]:
    """The doubts about a point.

    These are its verdict with the reasons, unless it is valid, and how many of its repeats failed
    or have another verdict.
    """
    texts = []
    if point.validity == FAILING:
        texts.append(f"{FAILING}: {failed_requests_text(point)}")
    elif point.validity != "valid":
        texts.append(f"{point.validity}: {'; '.join(point.reasons) or NO_REASON}")
    else:
        verdicts = [
            repeat.head.validity for repeat in point.repeats if repeat.ok and not repeat.valid
        ]
        if verdicts:
            names = ", ".join(dict.fromkeys(verdicts))
            texts.append(f"{len(verdicts)} of {len(point.repeats)} repeats are {names}")
    return [*texts, *failed_repeats_texts(point)]


def failed_repeats_texts(point: StoredPoint) -> list[str]:
    """How many repeats of a point failed, and why the first of them did; empty: none failed."""
    failed = [repeat for repeat in point.repeats if not repeat.ok]
    if not failed:
        return []
    return [_failed_repeats_text(len(failed), len(point.repeats), failed[0].head.reason)]


def failed_requests_text(point: StoredPoint) -> str:
    """``30 of 200 requests failed (http_5xx 28, timeout 2)``."""
    kinds = ", ".join(f"{name} {count}" for name, count in point.figures.errors.items())
    return f"{_failed_requests_text(point)} ({kinds})"


def _failed_requests_text(point: StoredPoint) -> str:
    requests = point.requests
    return f"{requests.failed} of {requests.scheduled} requests failed"


def _failed_repeats_text(failed: int, repeats: int, reason: str | None) -> str:
    return f"{failed} of {repeats} repeats failed: {reason}"


# Why something is not in the ranking

_WITHOUT_DIVISOR = {
    Exclusion.GPUS_UNKNOWN: (
        "it is not known how many GPUs the endpoint has (`endpoint_gpus`);"
        " compare with --per deployment"
    ),
    Exclusion.PRICE_UNKNOWN: (
        "its price is not known, or 0: give --price HARDWARE=USD, or usd_per_gpu_hour of its"
        " hardware"
    ),
    Exclusion.ENERGY_UNKNOWN: (
        "the energy of its tokens is not known: `results --columns deployment,level,energy_note`"
        " says why"
    ),
}


def exclusion_text(excluded: Excluded) -> str:
    """Why a level or a deployment is not in the ranking."""
    point = excluded.evidence
    match excluded.reason:
        case Exclusion.GPUS_UNKNOWN | Exclusion.PRICE_UNKNOWN | Exclusion.ENERGY_UNKNOWN:
            return _WITHOUT_DIVISOR[excluded.reason]
        case Exclusion.DISAGREES:
            assert excluded.disagreement is not None
            return disagreement_text(excluded.disagreement)
        case Exclusion.SEARCH_FOUND_NO_LEVEL:
            return _search_found_no_level(excluded)
        case Exclusion.ENDED_EARLY:
            return "a probe that was ended early, since it did not hold its limits"
        case Exclusion.NO_REQUESTS:
            return "no request was due in its steady window"
        case Exclusion.ONLY_FIGURES:
            return "the imported file has its figures and no requests, so no limit can be judged"
    assert point is not None
    if excluded.reason is Exclusion.FAILED:
        return _failed_text(point)
    if excluded.reason is Exclusion.NOT_VALID:
        reasons = "; ".join(point.reasons)
        return f"not a valid measurement: {point.validity}{f' ({reasons})' if reasons else ''}"
    assert excluded.shortfall is not None
    return _no_level_holds(point, excluded.shortfall)


def _failed_text(point: StoredPoint) -> str:
    failed = point.engine_failures or point.repeats
    first = failed[0].head
    reason = first.reason or first.failure_class or NO_REASON
    if len(failed) == len(point.repeats):
        return f"failed: {reason}"
    return _failed_repeats_text(len(failed), len(point.repeats), reason)


def _no_level_holds(point: StoredPoint, shortfall: Shortfall) -> str:
    return f"no level holds the limits: {_shortfall_at_level(point, shortfall, 'at most')}"


def _search_found_no_level(excluded: Excluded) -> str:
    claims = "; ".join(_searched_text(searched) for searched in excluded.claims)
    text = f"no load was shown to hold the limits: {claims}"
    point = excluded.evidence
    shortfall = excluded.shortfall
    if point is None or shortfall is None:
        return text
    return f"{text}; {_shortfall_at_level(point, shortfall)}"


def _shortfall_at_level(point: StoredPoint, shortfall: Shortfall, most: str = "only") -> str:
    test = shortfall.test
    level = load_text(point.head.control, point.head.level)
    share = (
        f"{test_text(test)} is {most} {test.share.estimate:.3f} (at {level}), not {test.target:g}"
    )
    return f"{share}; {shortfall_text(point, shortfall)}"


def shortfall_text(point: StoredPoint, shortfall: Shortfall) -> str:
    """What keeps a point from holding the limits.

    Where the percentile of one limit says it all: ``ttft p90 there: 640 ms, limit 500ms``. Else the
    share of requests within each limit that some answered requests missed, and how many failed.
    """
    exceeded = shortfall.percentile
    if exceeded is not None:
        limit = format_duration(exceeded.limit.seconds)
        of_part = f"{exceeded.limit.part}: " if exceeded.limit.part is not None else ""
        latency = f"{of_part}{exceeded.limit.of} {exceeded.name} there: {exceeded.value_ms:.4g} ms"
        return f"{latency}, limit {limit}"
    texts = [
        f"{missed.limit.name}<={format_duration(missed.limit.seconds)} was met by {missed.met:.3f}"
        " there"
        for missed in shortfall.missed
    ]
    if point.requests.failed:
        texts.append(f"{_failed_requests_text(point)} there")
    return "; ".join(texts)


def disagreement_text(disagreement: Disagreement) -> str:
    """How far a deployment's outputs agree with the reference's, and what is asked for."""
    agreement = disagreement.agreement
    limit = disagreement.limit
    if agreement.share is None:
        reason = agreement_note_text(agreement.note)
        return f"its agreement is not known, and at least {limit:g} is asked for: {reason}"
    return (
        f"its agreement with {agreement.reference} is {agreement.share:.3f}"
        f" (n={agreement.n} {agreement.unit}), not {limit:g}"
    )


_AGREEMENT_NOTES = {
    AgreementNote.IS_REFERENCE: "it is the reference",
    AgreementNote.ALONE: "nothing else of its model was asked the same",
    AgreementNote.NOT_STORED: "no answers of it are stored",
    AgreementNote.MADE_UP: "an emulator's answers are made up",
    AgreementNote.NO_REFERENCE: "no deployment of this model gave output to compare with",
    AgreementNote.OTHER_PROMPTS: "the reference was asked other prompts",
    AgreementNote.EMPTY: "its answers and the reference's are empty",
    AgreementNote.SUPERSEDED: "the reference is superseded",
    AgreementNote.REFERENCE_AGAIN: "another start of the reference itself",
}


def agreement_note_text(note: AgreementNote | None) -> str | None:
    """Why there is no agreement, or a remark on it."""
    return None if note is None else _AGREEMENT_NOTES[note]


# Notes on the ranking


def note_texts(ranked: RankedDeployment) -> list[str]:
    """What a reader must know of a deployment in the ranking."""
    return [_note_text(note, ranked.point) for note in ranked.notes]


def _note_text(note: Note, point: StoredPoint) -> str:
    repeats = len(point.repeats)
    match note.kind:
        case NoteKind.NO_LEVEL_FAILED:
            return "no higher level was seen to fail: its capacity may be higher"
        case NoteKind.NOT_MONOTONIC:
            return "not monotonic: a lower level does not hold the limits"
        case NoteKind.MAY_MISS_TARGET:
            assert note.test is not None
            share = note.test.share.estimate
            target = note.test.target
            return f"{test_text(note.test)} {share:.3f} is not certain to be at least {target:g}"
        case NoteKind.FAILING:
            return f"{FAILING}: {_failed_requests_text(point)}"
        case NoteKind.REPEATS_LEFT_OUT:
            unused = repeats - len(point.used_repeats)
            return f"{unused} of {repeats} repeats are left out: failed or not valid"
        case NoteKind.FELL_BEHIND:
            behind = sum(not repeat.valid for repeat in point.used_repeats)
            return f"in {behind} of {repeats} repeats the engine fell behind ({BACKLOG})"
        case NoteKind.ANSWERS_DIFFER:
            agreement = point.agreement
            return (
                f"agreement {agreement.share:.3f}: hardly any of its answers equals those of"
                f" {agreement.reference}, as those of {listed(note.agreeing)} do: does it compute"
                " the same model? (a limit: agreement>=0.9)"
            )


# Notes on an experiment


def decided_notes(experiment: StoredExperiment) -> list[str]:
    """A note if an experiment's last run ended because the ranking was decided."""
    records = Runs(experiment.store.uri, experiment.name).records()
    if not records or not records[-1].decided:
        return []
    return [f"{experiment.name}: {records[-1].decided}; run it without --until to measure all"]


def experiment_notes(
    experiment: StoredExperiment,
    points: Points | None = None,
    unanswered: Sequence[UnansweredSlo] = (),
    ranked_apart: Sequence[RankedApart] = (),
) -> list[str]:
    """What a reader should know of an experiment. ``points``: all its points; None: not read."""
    name = experiment.name
    plan = experiment.plan
    store = experiment.store
    notes = [f"{name}: no answer under {unanswered_text(slo)}" for slo in unanswered]
    notes += [_ranked_apart_text(apart) for apart in ranked_apart]
    is_imported = points is not None and any(point.source for point in points.current)
    if plan is None and not is_imported:
        reason = "it has no plan.json"
        if experiment.has_plan_file:
            reason = "this version cannot read its plan.json"
        notes.append(
            f"{name}: {reason}, so what is superseded is not known: run it again to have one "
            "written"
        )
    elif plan is not None and plan.program_version != __version__:
        notes.append(
            f"{name}: version {plan.program_version} wrote its plan.json, this is {__version__}"
        )
    if points is not None and points.superseded:
        number = counted(len(points.superseded), "point")
        notes.append(
            f"{name}: superseded: {number} of earlier versions of its file or of the program"
            " (results --all shows them)"
        )
    lost = sorted(store.lost.values())
    if lost:
        more = f" and {len(lost) - 1} more (verify names all)" if len(lost) > 1 else ""
        notes.append(f"{name}: shown as computed earlier, for its file is {lost[0]}{more}")
    if points is not None and plan is not None and not points.current:
        notes.append(f"{name}: nothing that its plan asks for is measured yet")
    return notes


def without_limits_text(experiment: StoredExperiment, asked: str | None) -> str:
    """Why an experiment is in no ranking. ``asked``: the name of the limits that were asked for."""
    source = "it was measured with" if experiment.is_load_run else "its file names"
    limits = "no limits: give --slo" if asked is None else f"no {asked}"
    return f"{experiment.name} is left out: {source} {limits}"


def unanswered_text(slo: UnansweredSlo) -> str:
    """``interactive: a limit on itl_p99 needs the table token_events, ...``."""
    return f"{slo.name}: {slo.reason}"


def load_run_difference_text(run: str, first: str, options: Sequence[str]) -> str:
    """How a run of ``load`` differs from the first run that is shown with it."""
    return f"{run} was asked otherwise than {first}: {', '.join(options)}"


def _ranked_apart_text(apart: RankedApart) -> str:
    return (
        f"{listed(apart.runs)}: not ranked with {listed(apart.others)}, which asked otherwise"
        f" ({', '.join(apart.differences)})"
    )

"""Sentences that only the page has: short verdicts, counted reasons and definitions."""

from dataclasses import dataclass

from orchestrator.base.text import counted
from orchestrator.capacity.answers import Exclusion
from orchestrator.report.columns import PointColumn, point_columns
from orchestrator.report.page.experiment_tables import FAILED, LeftOutCount

# docs/explained/validity.md in short
VERDICTS = {
    "valid": "nothing was found that distorted it",
    "failing": "measured well, but more than 5 % of the requests failed",
    "engine_bound_backlog": "more was sent than the engine answers: it fell behind",
    "broken_output": "the engine's answers are not output",
    "invalid": "what was measured is not what was asked",
    "network_bound": "the network between client and engine was the limit",
    "disturbed": "something beside the engine held back its host or its GPUs",
    "client_bound": "the client was late: the figures are its own",
    "stream_buffered": "events came in bursts: times between tokens are not the engine's",
    "interrupted": "it was ended before its time",
    "unmeasured": "nothing was measured",
    "unchecked": "another tool measured it: nothing is known of its client",
    FAILED: "no repeat came to its end",
}

_LEVELS_LEFT_OUT = {
    Exclusion.FAILED: "failed",
    Exclusion.ENDED_EARLY: "a probe that was ended early, since it did not hold its limits",
    Exclusion.NO_REQUESTS: "no request was due in the steady window",
    Exclusion.ONLY_FIGURES: "imported from a file that has no requests",
}
_DEPLOYMENTS_LEFT_OUT = {
    Exclusion.NO_LEVEL_HOLDS: "no level holds the limits",
    Exclusion.SEARCH_FOUND_NO_LEVEL: "its search showed no load to hold the limits",
    Exclusion.GPUS_UNKNOWN: "it is not known how many GPUs it has",
    Exclusion.PRICE_UNKNOWN: "its price is not known",
    Exclusion.ENERGY_UNKNOWN: "the energy of its tokens is not known",
    Exclusion.DISAGREES: "its answers differ from the reference's",
}


def left_out_text(count: LeftOutCount) -> str:
    """``5 levels: not valid (disturbed)``."""
    if count.reason in _DEPLOYMENTS_LEFT_OUT:
        reason = _DEPLOYMENTS_LEFT_OUT[count.reason]
        return f"{counted(count.number, 'deployment')}: {reason}"
    levels = counted(count.number, "level")
    if count.reason is Exclusion.NOT_VALID:
        return f"{levels}: not valid ({count.verdict})"
    return f"{levels}: {_LEVELS_LEFT_OUT[count.reason]}"


@dataclass(frozen=True, slots=True)
class Definition:
    """A word of the page that is no column of a point."""

    word: str
    meaning: str


DEFINITIONS = (
    Definition(
        "TTFT; E2E",
        "from when a request was due to its first token; to its last. p99: 99 of 100 requests were at"
        " least as fast",
    ),
    Definition(
        "TPOT; ITL",
        "the mean time between the tokens of one answer, after the first; each gap between two of them",
    ),
    Definition(
        "attainment; SLO",
        "the share of all requests, errors included, that met the latency limits; the limits, and the"
        " attainment that is asked for. At 0.95, one request in 20 may be slower than a limit",
    ),
    Definition("holds", "a level whose attainment is at least the one that is asked for"),
    Definition(
        "tp; pp; replicas",
        "GPUs that share each layer (tensor parallelism); stages of layers on different GPUs (pipeline"
        " parallelism); copies of the engine behind one address",
    ),
    Definition(
        "seqs; batched",
        "max_num_seqs, the most requests in a batch; max_num_batched_tokens, the most tokens in a step",
    ),
    Definition(
        "runner-up; a tie",
        "the second of a ranking; deployments that are ranked by the same value",
    ),
    Definition(
        "95 % interval",
        "from the spread between tenths of the window, repeats and starts, whichever is the widest;"
        " of one start it does not say how much another start could differ",
    ),
    Definition(
        "9 in 10 interval",
        "of what was simulated: what nine in ten measurements lie between, by the simulator's known"
        " error. Its low end is what a lower load gives, if only that holds on slower engines",
    ),
    Definition(
        "claim",
        "the highest load that a capacity search showed to hold, by a test planned before it was"
        " measured; its bounds hold with 95 %",
    ),
    Definition(
        "estimate; safe so far",
        "the load that all probes of a search together expect to hold, with an interval of 95 %; the"
        " highest load probed that was shown to hold, or does with a probability of 95 %",
    ),
    Definition(
        "USD per million tokens",
        "price of the deployment's hour over the tokens of an hour at this load. An output token is"
        " priced as so many times an input token; both prices together pay for the hour",
    ),
    Definition(
        "decode MBU; MFU",
        "the share of a device's peak bandwidth, and of its peak arithmetic, that the tokens needed:"
        " useful work, not what the kernels moved. In brackets: as few and as many experts as a step"
        " can read",
    ),
    Definition(
        "predicted",
        "what the plan computed before anything ran; ratios are measured over predicted, and marked"
        " where they are worse than the prediction's known error explains",
    ),
    Definition(
        "in flight; running, waiting",
        "requests sent and not yet done, as the client sees it; requests in the engine's batch and"
        " in its queue, as the engine says",
    ),
    Definition(
        "not the limit",
        "no higher load of the deployment was shown to fail the limits: it may hold more",
    ),
    Definition(
        "bars of the frontier",
        "95 % intervals of the tokens/s; of more than 100 points that hold the limits, those of the"
        " frontier alone have bars",
    ),
    Definition("hollow marks", "points that cannot hold limits: spoilt, failed, or not valid"),
)

# by name of a column: what the page calls it; it shows other columns by their names, or not at all
_TITLES = {
    "output_token_throughput": "output tokens/s",
    "per_device": "tokens/s per GPU or core",
    "per_user": "tokens/s a user sees",
    "ttft_ms.p50": "TTFT p50",
    "ttft_ms.p99": "TTFT p99",
    "tpot_ms.p50": "TPOT p50",
    "tpot_ms.p99": "TPOT p99",
    "itl_ms.p50": "ITL p50",
    "itl_ms.p99": "ITL p99",
    "e2e_ms.p50": "E2E p50",
    "e2e_ms.p99": "E2E p99",
}
# columns whose names need no explanation
_PLAIN = frozenset(
    {"experiment", "workload", "deployment", "engine", "model", "hardware", "point_id"}
)
_ENDS = (".lower", ".upper")  # ends of intervals, which one sentence explains


@dataclass(frozen=True, slots=True)
class ExplainedColumn:
    """A column of a point. ``title``: what the page calls it."""

    title: str
    column: PointColumn


def explained_columns() -> list[ExplainedColumn]:
    """The usual columns that need an explanation, in their order."""
    explained = []
    for name, column in point_columns().items():
        if column.is_usual and name not in _PLAIN and not name.endswith(_ENDS):
            title = _TITLES.get(name, name.replace("_", " ").replace(".", " "))
            explained.append(ExplainedColumn(title, column))
    return explained

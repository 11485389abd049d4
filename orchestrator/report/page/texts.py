"""Sentences that the page alone says: verdicts in short, reasons that are counted, definitions."""

from dataclasses import dataclass

from orchestrator.capacity.capacities import Exclusion
from orchestrator.report.page.sections import FAILED, LeftOutCount
from orchestrator.spec.load import counted

# docs/metrics.md#validity in short
VERDICTS = {
    "valid": "nothing was found that distorted it",
    "failing": "measured well, but more than 5 % of the requests failed",
    "engine_bound_backlog": "more was sent than the engine answers: it fell behind",
    "broken_output": "the engine's answers are not output",
    "invalid": "what was measured is not what was asked",
    "network_bound": "the network between client and engine was the limit",
    "disturbed": "other processes took more than half of an engine's host",
    "client_bound": "the client was late: the figures are its own",
    "stream_buffered": "events came in bursts: times between tokens are not the engine's",
    "interrupted": "it was ended before its time",
    "unmeasured": "nothing was measured",
    FAILED: "no repeat came to its end",
}

_LEVELS_LEFT_OUT = {
    Exclusion.FAILED: "failed",
    Exclusion.ENDED_EARLY: "a probe that was ended early, since it did not hold its limits",
    Exclusion.NO_REQUESTS: "no request was due in the steady window",
}
_DEPLOYMENTS_LEFT_OUT = {
    Exclusion.NO_LEVEL_HOLDS: "no level holds the limits",
    Exclusion.SEARCH_FOUND_NO_LEVEL: "its search showed no load to hold the limits",
    Exclusion.GPUS_UNKNOWN: "it is not known how many GPUs it has",
    Exclusion.PRICE_UNKNOWN: "its price is not known",
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
    """A figure of the page. ``unit``: empty for a share or a word."""

    name: str
    unit: str
    meaning: str


DEFINITIONS = (
    Definition(
        "TTFT", "ms", "time to the first token, from when the request was due, not when it was sent"
    ),
    Definition(
        "TPOT", "ms", "of one request: time from the first token to the last, per token after it"
    ),
    Definition("E2E", "ms", "time to the last token, from when the request was due"),
    Definition("p50, p99", "", "the latency that half, or 99 %, of the answered requests kept"),
    Definition(
        "output tokens/s",
        "1/s",
        "output tokens of answered requests that came in the steady window, over its length",
    ),
    Definition(
        "per GPU, per core", "1/s", "the same over all devices of the deployment, all replicas"
    ),
    Definition("tokens/s a user sees", "1/s", "1 / median TPOT"),
    Definition(
        "attainment",
        "",
        "share of all requests that were due in the steady window, errors included, that met every"
        " limit; its interval is Wilson's, widened by how much parts of the window differ",
    ),
    Definition(
        "95 % interval",
        "",
        "from the spread between tenths of the window, repeats and starts, whichever is the widest;"
        " of one start it does not say how much another start could differ",
    ),
    Definition("holds", "", "a level whose attainment is at least the one that is asked for"),
    Definition(
        "claim",
        "",
        "the highest load that a capacity search showed to hold, by a test planned before it was"
        " measured; its bounds hold with 95 %",
    ),
    Definition(
        "USD per million tokens",
        "USD",
        "price of the deployment's hour over the tokens of an hour at this load. An output token is"
        " priced as so many times an input token; both prices together pay for the hour",
    ),
    Definition(
        "predicted",
        "",
        "what the plan computed before anything ran; ratios are measured over predicted",
    ),
    Definition(
        "agreement",
        "",
        "share of tokens equal to the reference's, answers to fixed prompts, up to the first"
        " difference: no measure of quality",
    ),
    Definition(
        "in flight; running, waiting",
        "requests",
        "sent and not yet done, as the client sees it; in the engine's batch and in its queue, as"
        " the engine says",
    ),
    Definition("hollow marks", "", "points that cannot hold limits: spoilt, failed, or not valid"),
)

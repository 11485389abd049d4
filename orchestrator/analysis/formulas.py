"""What each figure is: its formula and what to know of it. docs/reference/metrics.md is made of these
records (``python -m scripts.documented_tables``); ``metrics.py`` computes them.

In formulas, ``scheduled``, ``sent``, ``first`` and ``last`` are the instants at which a request was
due, was sent, and got its first and its last content token. ``N`` is how many tokens were streamed,
and ``k`` how many of them came with the first chunk. ``prompt`` is how many tokens the prompt has.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestFormula:
    """A figure that has one value per request. ``name``: a field of ``Figures``. ``note``: Markdown."""

    name: str
    formula: str
    note: str


@dataclass(frozen=True, slots=True)
class RateFormula:
    """A figure per second of the window. ``counts``: what is counted; ``when``: at which instant."""

    name: str
    counts: str
    when: str


LATENCIES = (
    RequestFormula("ttft_ms", "first - scheduled", "the headline: how long a user waited"),
    RequestFormula(
        "ttfo_ms",
        "first answer - scheduled",
        "for requests whose stream began with reasoning: the first token after it (AIPerf's TTFO); "
        "null if none did",
    ),
    RequestFormula(
        "ttft_from_sent_ms",
        "first - sent",
        "what `vllm bench serve`, GenAI-Perf and others call TTFT",
    ),
    RequestFormula(
        "e2e_ms", "last - scheduled", "ends with the last content token, not with `[DONE]`"
    ),
    RequestFormula("e2e_from_sent_ms", "last - sent", "the same for those who count from sending"),
    RequestFormula(
        "tpot_ms",
        "(last - first) / (N - k)",
        "for N > k; k tokens came with the first chunk (1 if the stream does not say)",
    ),
    RequestFormula("itl_ms", "gap before each token", "pooled over all tokens of all requests"),
)

OF_ONE_REQUEST = (
    RequestFormula(
        "prefill_throughput",
        "prompt / (first - sent)",
        "prompt tokens per second (genai-bench's `input_throughput`)",
    ),
    RequestFormula(
        "decode_throughput", "(N - k) / (last - first)", "output tokens per second: 1 / TPOT"
    ),
    RequestFormula(
        "normalized_ttft_ms",
        "(first - scheduled) / prompt",
        "compares prompts of different lengths",
    ),
)

THROUGHPUTS = (
    RateFormula("request_throughput", "ok requests", "at their last content token"),
    RateFormula("requests_per_minute", "60 times `request_throughput`", ""),
    RateFormula("output_token_throughput", "output tokens", "each with its chunk"),
    RateFormula(
        "input_token_throughput",
        "prompt tokens",
        "at the first token, when the prompt has been processed; null if neither we nor the engine "
        "counted the prompts",
    ),
    RateFormula("total_token_throughput", "input and output tokens", "as above, or null"),
)

"""The load half of an experiment: workloads, arrivals, levels, SLOs. Durations are seconds once parsed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.spec.settings import Strict
from orchestrator.spec.units import MOST_TOKENS, Duration

Control = Literal["request_rate", "concurrency"]


class LogNormal(Strict):
    """Log-normal token counts by their mean (tokens, of the distribution itself, not of its logarithm)."""

    mean: float = Field(gt=0, le=MOST_TOKENS)
    sigma: float = Field(ge=0)
    min: int = Field(default=1, ge=1, le=MOST_TOKENS)
    max: int | None = Field(default=None, ge=1, le=MOST_TOKENS)


class Uniform(Strict):
    """Uniform integers, both ends included."""

    min: int = Field(ge=1, le=MOST_TOKENS)
    max: int = Field(ge=1, le=MOST_TOKENS)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class Lengths(Strict):
    """``200`` | ``{lognormal: {mean: 150, sigma: 0.6}}`` | ``{uniform: {min: 10, max: 20}}``."""

    fixed: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    lognormal: LogNormal | None = None
    uniform: Uniform | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one(self) -> Lengths:
        if sum(part is not None for part in (self.fixed, self.lognormal, self.uniform)) != 1:
            raise ValueError("give one of: a whole number, lognormal, uniform")
        return self


class Workload(Strict):
    """What requests contain. ``kind`` is a name of the workload registry."""

    name: str = Field(min_length=1)
    kind: str = "random"
    input_tokens: Lengths | None = None  # None where prompts come from a file
    output_tokens: Lengths
    turns: int = Field(default=1, ge=1)  # conversations: requests of one session, each with the history before it
    think_time: Duration = 0.0  # between a turn's end and the next turn
    shared_prefix_tokens: int = Field(default=0, ge=0)  # the same first tokens in every prompt
    api: Literal["completions", "chat", "tgi", "native"] = "completions"
    prompts: str | None = None  # file: text, a prompt per line, or JSONL with "prompt" and perhaps "output_tokens"
    prompts_digest: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")  # of the file's bytes; the plan sets it

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if (self.input_tokens is None) == (self.prompts is None):
            raise ValueError("give one of: input_tokens, prompts (a file)")
        if self.prompts is not None and (self.turns > 1 or self.shared_prefix_tokens):
            raise ValueError("prompts are sent as they are: turns and shared_prefix_tokens do not go with them")
        if self.prompts_digest is not None and self.prompts is None:
            raise ValueError("prompts_digest is of a file: give it with prompts")
        return self


def _pair(value: Any) -> Any:
    """Files have lists only; strict validation asks for a tuple."""
    return tuple(value) if isinstance(value, list) else value


class Arrivals(Strict):
    """When requests are due. ``process`` is a name of the arrivals registry (open loop only)."""

    process: str = "poisson"
    burstiness: float = Field(default=1.0, gt=0)  # gamma: shape; 1 = Poisson, smaller = burstier
    to: float | None = Field(default=None, gt=0)  # ramp: the rate at the end, from the level's rate
    steps: list[Annotated[tuple[float, Duration], BeforeValidator(_pair)]] | None = (
        None  # (factor of the rate, how long)
    )
    trace: str | None = None  # trace: file with one timestamp in seconds per line, or JSONL with "timestamp"
    speed_up: float = Field(default=1.0, gt=0)  # trace

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"process": value} if isinstance(value, str) else value


class Level(Strict):
    """One load level: a rate in requests/s or a number of requests kept in flight."""

    control: Control
    value: Annotated[float, Field(gt=0)]


class Slo(Strict):
    """Latency limits in seconds that one request must meet, all of them, and the share of requests that must."""

    name: str = "slo"
    ttft: Duration | None = None
    tpot: Duration | None = None
    e2e: Duration | None = None
    itl_p99: Duration | None = None
    attainment: float = Field(default=0.95, gt=0, le=1)

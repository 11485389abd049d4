"""What a plan predicts of a deployment: the records, and their JSON in plan.json and in
``predicted_json``. No other file knows the keys of that JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from orchestrator.spec.assumptions import NOTHING_ASSUMED, Assumptions

# figures of a start that are left out of the JSON if they are not known; the others are null
_LEFT_OUT_IF_UNKNOWN = ("max_concurrency", "parameters", "checkpoint_quantization")


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """What an engine is predicted to report at its start, per data-parallel rank, and the facts of
    its checkpoint. None: not known.

    ``parameters``: of the model. ``max_concurrency``: sequences of ``max_model_len`` at once.
    """

    weight_bytes: float | None = None  # on the fullest rank
    kv_bytes_per_token: float | None = None  # on the fullest rank
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_memory_bytes: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    parameters: int | None = None
    checkpoint_quantization: str | None = None

    def document(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in _START_FIGURES}
        for name in _LEFT_OUT_IF_UNKNOWN:
            if document[name] is None:
                del document[name]
        return document


_START_FIGURES = tuple(figure.name for figure in fields(PredictedStart))
UNKNOWN_START = PredictedStart()


@dataclass(frozen=True, slots=True)
class PredictedLevel:
    """What is predicted at a load level: median latencies in ms, output tokens/s. None: unknown."""

    workload: str
    control: str
    level: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float | None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            workload=document["workload"],
            control=document["control"],
            level=document["level"],
            ttft_ms=document["ttft_ms"],
            tpot_ms=document["tpot_ms"],
            output_throughput=document["output_throughput"],
        )

    def document(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "control": self.control,
            "level": self.level,
            "ttft_ms": self.ttft_ms,
            "tpot_ms": self.tpot_ms,
            "output_throughput": self.output_throughput,
        }


@dataclass(frozen=True, slots=True)
class ErrorFactors:
    """The factors within which nine in ten predictions are right.

    ``ttft``: of TTFT. ``tpot``: of TPOT, and taken for every other figure, too, throughput among
    them. ``source``: what was measured to find them.
    """

    ttft: float
    tpot: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far off such predictions were: the median errors of TTFT and TPOT, as shares.

    ``source``: with what they were compared. ``is_counted``: how ``within`` was found. True:
    counted; False: derived as if the logarithms of errors were normal.
    """

    ttft: float
    tpot: float
    source: str
    within: ErrorFactors
    is_counted: bool

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self | None:
        """None for results of early versions, whose errors have no factors."""
        source = document["source"]
        within = document.get("within")
        if within is None:
            return None
        return cls(
            ttft=document["ttft"],
            tpot=document["tpot"],
            source=source,
            within=ErrorFactors(within["ttft"], within["tpot"], source),
            is_counted=bool(document.get("counted")),
        )

    def document(self) -> dict[str, Any]:
        return {
            "ttft": self.ttft,
            "tpot": self.tpot,
            "source": self.source,
            "within": {"ttft": self.within.ttft, "tpot": self.within.tpot},
            "counted": self.is_counted,
        }


@dataclass(frozen=True, slots=True)
class PredictedCapacity:
    """The highest load that is predicted to hold, and the output tokens/s there; 0: none holds.

    ``interval_per_gpu``: the output tokens/s per GPU between which nine in ten capacities lie.
    ``usd_per_million_tokens``: of output; None without a price.
    """

    control: str
    level: float
    output_throughput: float
    output_throughput_per_gpu: float
    interval_per_gpu: tuple[float, float]
    usd_per_million_tokens: float | None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        lowest, highest = document["interval_per_gpu"]
        return cls(
            control=document["control"],
            level=document["level"],
            output_throughput=document["output_throughput"],
            output_throughput_per_gpu=document["output_throughput_per_gpu"],
            interval_per_gpu=(lowest, highest),
            usd_per_million_tokens=document["usd_per_million_tokens"],
        )

    def document(self) -> dict[str, Any]:
        return {
            "control": self.control,
            "level": self.level,
            "output_throughput": self.output_throughput,
            "output_throughput_per_gpu": self.output_throughput_per_gpu,
            "interval_per_gpu": list(self.interval_per_gpu),
            "usd_per_million_tokens": self.usd_per_million_tokens,
        }


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """What a million tokens cost; None without a price or without tokens."""
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_hour / tokens_per_s / 3600 * 1e6


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan predicts of a deployment.

    ``starts``: by role; by "" where replicas have no roles. ``simulated_at``: URI of the simulation
    that all but ``starts`` comes from; None: it comes from the closed form. ``capacities``: by SLO,
    then by workload. ``not_predicted``: why no load is predicted. ``error``: may be set although
    no load is predicted; such a deployment can be simulated. ``missing_row``: why the formula
    answered although tables were asked for. ``assumed``: what a simulation assumed of the
    deployment and of its loads.
    """

    starts: Mapping[str, PredictedStart] = field(default_factory=dict)
    simulated_at: str | None = None
    levels: tuple[PredictedLevel, ...] = ()
    capacities: Mapping[str, Mapping[str, PredictedCapacity]] = field(default_factory=dict)
    not_predicted: str | None = None
    error: PredictionError | None = None
    missing_row: str | None = None
    assumed: Assumptions = NOTHING_ASSUMED

    @property
    def start(self) -> PredictedStart:
        """What is predicted of the start of replicas without roles."""
        return self.starts.get("", UNKNOWN_START)

    @property
    def simulated(self) -> bool:
        """Whether all but ``starts`` comes from a simulation."""
        return self.simulated_at is not None

    @property
    def in_closed_form(self) -> bool:
        """Whether the closed form gave an answer: a load, or a reason for none."""
        has_answer = bool(self.levels) or self.not_predicted is not None
        return has_answer and not self.simulated

    @property
    def error_factors(self) -> ErrorFactors | None:
        return None if self.error is None else self.error.within

    def capacity(self, slo: str, workload: str) -> PredictedCapacity | None:
        """The capacity for a workload under an SLO; None: not predicted."""
        return self.capacities.get(slo, {}).get(workload)

    def highest_capacity(self, workload: str) -> float:
        """The most output tokens/s at which limits are predicted to hold; 0: not predicted."""
        throughputs = [
            by_workload[workload].output_throughput
            for by_workload in self.capacities.values()
            if workload in by_workload
        ]
        return max(throughputs, default=0.0)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Parses a prediction. ``document``: as plan.json and ``predicted_json`` hold it. Raises
        KeyError, TypeError or ValueError if it is none.
        """
        error = document.get("error")
        assumed = document.get("assumed")
        return cls(
            starts=_starts(document),
            simulated_at=document.get("simulated"),
            levels=tuple(map(PredictedLevel.from_document, document.get("levels", ()))),
            capacities={
                slo: {
                    workload: PredictedCapacity.from_document(capacity)
                    for workload, capacity in by_workload.items()
                }
                for slo, by_workload in document.get("capacity", {}).items()
            },
            not_predicted=document.get("not_predicted"),
            error=None if error is None else PredictionError.from_document(error),
            missing_row=document.get("no_row"),
            assumed=NOTHING_ASSUMED if assumed is None else Assumptions.model_validate(assumed),
        )

    def document(self) -> dict[str, Any]:
        """The prediction as plan.json and ``predicted_json`` hold it; empty if nothing is known."""
        document: dict[str, Any] = {}
        for role, start in self.starts.items():
            prefix = f"{role}." if role else ""
            document |= {prefix + name: value for name, value in start.document().items()}
        if self.simulated_at is not None:
            document["simulated"] = self.simulated_at
        if self.levels or self.capacities:
            document["levels"] = [level.document() for level in self.levels]
            document["capacity"] = {
                slo: {workload: capacity.document() for workload, capacity in by_workload.items()}
                for slo, by_workload in self.capacities.items()
            }
        if self.not_predicted is not None:
            document["not_predicted"] = self.not_predicted
        if self.error is not None:
            document["error"] = self.error.document()
        if self.missing_row is not None:
            document["no_row"] = self.missing_row
        if self.assumed != NOTHING_ASSUMED:
            document["assumed"] = self.assumed.stated()
        return document


NOTHING_PREDICTED = Prediction()


def _starts(document: Mapping[str, Any]) -> dict[str, PredictedStart]:
    """The starts by role. Keys of a role begin with its name: ``decode.weight_bytes``."""
    figures: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        role, _, name = key.rpartition(".")
        if name in _START_FIGURES:
            figures.setdefault(role, {})[name] = value
    return {role: PredictedStart(**of_role) for role, of_role in figures.items()}

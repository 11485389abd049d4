"""Compares what the plan predicts for a point with what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.metrics import BACKLOG
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.prediction import PredictedLevel

FIGURES = ("ttft_ms", "tpot_ms", "output_throughput")  # predicted for each level
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PredictionComparison:
    """Figures by the names of FIGURES: median latencies in ms, and output tokens/s.

    ``ratio``: measured over predicted. ``worse``: how many times worse than predicted a figure is;
    only figures that are worse by more than the prediction's known error. ``error_factors``: the
    factors within which nine in ten predictions are right.
    """

    predicted: Values
    ratio: Values
    worse: Mapping[str, float]
    error_factors: Mapping[str, float]


def compare_with_prediction(point: StoredPoint) -> PredictionComparison | None:
    """Compares a point with its prediction.

    None: the plan predicted nothing for this level, or nothing was measured. A simulated point is a
    prediction itself.
    """
    factors = point.deployment.prediction.error_factors
    if not point.used_repeats or factors is None or point.simulated:
        return None
    predicted = _predicted_at(point, point.deployment.prediction.levels)
    if predicted is None:
        return None
    figures = point.figures
    measured = {
        "ttft_ms": figures.ttft_ms.p50 if figures.ttft_ms else None,
        "tpot_ms": figures.tpot_ms.p50 if figures.tpot_ms else None,
        "output_throughput": figures.output_token_throughput,
    }
    ratio = {name: _ratio(measured[name], predicted[name]) for name in FIGURES}
    error_factors = {
        "ttft_ms": factors.ttft,
        "tpot_ms": factors.tpot,
        "output_throughput": factors.tpot,
    }
    worse: dict[str, float] = {}
    for name in _telling_figures(point, predicted):
        times = _times_worse(name, ratio[name])
        if times is not None and times > error_factors[name]:
            worse[name] = times
    return PredictionComparison(predicted, ratio, worse, error_factors)


def _ratio(measured: float | None, predicted: float | None) -> float | None:
    return measured / predicted if measured and predicted else None


def _times_worse(name: str, ratio: float | None) -> float | None:
    """How many times worse than predicted a figure is: for a throughput, less is worse."""
    if not ratio:
        return None
    return 1 / ratio if name == "output_throughput" else ratio


def _telling_figures(point: StoredPoint, predicted: Values) -> tuple[str, ...]:
    """The names of the figures that tell something about the engine at this point."""
    if point.validity == BACKLOG:
        # latencies grow as the run goes on, and a run that ended early left out its open answers
        ended_early = any(repeat.head.ended_early for repeat in point.used_repeats)
        return () if ended_early else ("output_throughput",)
    if point.head.control == "request_rate" and predicted["tpot_ms"] is not None:
        # the engine keeps up, as predicted, so the throughput only shows what was sent
        return ("ttft_ms", "tpot_ms")
    return FIGURES


@dataclass(frozen=True, slots=True)
class _PredictedPoint:
    """The figures that are predicted at one level."""

    level: float
    values: Values


def _predicted_at(point: StoredPoint, levels: Sequence[PredictedLevel]) -> Values | None:
    """What was predicted at the point's level; None: the level is outside the predicted range.

    Between two levels it is interpolated over the logarithm of the level.
    """
    head = point.head
    below: _PredictedPoint | None = None
    above: _PredictedPoint | None = None
    for prediction in levels:
        if prediction.workload != head.workload or prediction.control != head.control:
            continue
        predicted = _PredictedPoint(prediction.level, _values(prediction))
        if predicted.level == head.level:
            return predicted.values
        if predicted.level < head.level:
            if below is None or predicted.level > below.level:
                below = predicted
        elif above is None or predicted.level < above.level:
            above = predicted
    if below is None or above is None:
        return None
    return _interpolated(head.level, below, above)


def _values(prediction: PredictedLevel) -> Values:
    return {
        "ttft_ms": prediction.ttft_ms,
        "tpot_ms": prediction.tpot_ms,
        "output_throughput": prediction.output_throughput,
    }


def _interpolated(level: float, below: _PredictedPoint, above: _PredictedPoint) -> Values:
    if (below.values["tpot_ms"] is None) != (above.values["tpot_ms"] is None):
        # the engine keeps up at only one of the two rates; whether it does in between is unknown
        return dict.fromkeys(FIGURES)
    log_levels = np.log([below.level, above.level])
    interpolated: dict[str, float | None] = {}
    for name in FIGURES:
        low = below.values[name]
        high = above.values[name]
        interpolated[name] = None
        if low is not None and high is not None:
            interpolated[name] = float(np.interp(np.log(level), log_levels, [low, high]))
    return interpolated

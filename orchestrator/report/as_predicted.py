"""Measured beside predicted: a column for every point, and which deployments deserve a look."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.analysis.measured import Point
from orchestrator.analysis.metrics import BACKLOG
from orchestrator.report.documents import Document
from orchestrator.report.text import Cell, Column, figure, say
from orchestrator.spec.load import load_text

# predicted for each level
FIGURES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_throughput": "output tokens/s"}
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Beside:
    """``predicted``: median latencies in ms, and output tokens/s. ``ratio``: measured over
    predicted.

    ``within``: the factors that nine in ten predictions are right to. ``worse``: figures that are
    worse than predicted by more than their factor, and how many times worse.
    """

    predicted: Values
    ratio: Values
    worse: Mapping[str, float]
    within: Mapping[str, float]


def beside(point: Point) -> Beside | None:
    """None where the plan predicted nothing for this level, or nothing was measured."""
    found = json.loads(point.deployment.predicted_json or "{}")
    predicted = _at(point, found.get("levels", ()))
    if predicted is None or not point.used:
        return None
    figures = point.figures
    measured = {
        "ttft_ms": figures.ttft_ms and figures.ttft_ms.p50,
        "tpot_ms": figures.tpot_ms and figures.tpot_ms.p50,
        "output_throughput": figures.output_token_throughput,
    }
    ratio = {
        name: got / said if got and (said := predicted[name]) else None
        for name, got in measured.items()
    }
    within = found["error"]["within"]
    share = ratio["output_throughput"]
    times = ratio | {"output_throughput": 1 / share if share else None}
    limits = {
        name: within["ttft" if name == "ttft_ms" else "tpot"] for name in _telling(point, predicted)
    }
    worse = {name: one for name, limit in limits.items() if (one := times[name]) and one > limit}
    return Beside(predicted, ratio, worse, within)


def _telling(point: Point, predicted: Values) -> tuple[str, ...]:
    """The figures that tell something of the engine."""
    # latencies grow with the run; what ended early left its open answers out
    if point.validity == BACKLOG:
        early = any(one.point.ended_early for one in point.used)
        return () if early else ("output_throughput",)
    if point.head.control == "request_rate" and predicted["tpot_ms"] is not None:
        # it keeps up, as predicted, and the throughput follows from what is sent
        return ("ttft_ms", "tpot_ms")
    return tuple(FIGURES)


def _at(point: Point, levels: Iterable[Mapping[str, Any]]) -> Values | None:
    """What was predicted at the point's level, interpolated over the logarithm of the level; None
    outside the range.
    """
    head = point.head
    mine = sorted(
        (
            one
            for one in levels
            if (one["workload"], one["control"]) == (head.workload, head.control)
        ),
        key=lambda one: float(one["level"]),
    )
    known = [float(one["level"]) for one in mine]
    if not known or not known[0] <= head.level <= known[-1]:
        return None
    if head.level in known:
        return mine[known.index(head.level)]
    above = next(at for at, level in enumerate(known) if level > head.level)
    pair, ends = mine[above - 1 : above + 1], np.log(known[above - 1 : above + 1])
    if len({one["tpot_ms"] is None for one in pair}) > 1:
        # it keeps up with the lower of two rates alone: nobody knows with this one
        return dict.fromkeys(FIGURES)
    return {
        name: None
        if None in (two := [one[name] for one in pair])
        else float(np.interp(np.log(head.level), ends, two))
        for name in FIGURES
    }


def beside_fields(point: Point) -> Document:
    """The columns of one point: the prediction, measured over predicted, whether the known error
    explains the gap.
    """
    one = beside(point)
    return {
        "predicted": one and {name: one.predicted[name] for name in FIGURES},
        "measured_over_predicted": one and one.ratio,
        "worse_than_predicted": one and bool(one.worse),
    }


def beside_column(points: Sequence[Point]) -> tuple[list[Column], list[list[str | Cell]]]:
    """A table column and its cell for every point; empty where nothing was predicted."""
    found = [beside(point) for point in points]
    if not any(found):
        return [], [[] for _ in points]
    return [Column("measured/\npredicted\ntokens/s, TPOT")], [[_cell(one)] for one in found]


def _cell(one: Beside | None) -> Cell:
    if one is None:
        return Cell("-")
    shares = (one.ratio["output_throughput"], one.ratio["tpot_ms"])
    lines = ["-" if share is None else f"{share:.2f}" for share in shares]
    return Cell("\n".join(lines), "yellow" if one.worse else None)


def beside_text(points: Iterable[Point]) -> Iterator[str]:
    """A line for each deployment that is worse than its prediction's known error explains: its
    worst point of those that are valid, or at which the engine fell behind.
    """
    worst: dict[str, tuple[float, str]] = {}
    for point in points:
        # of the others it is known what is wrong
        one = beside(point) if point.validity in ("valid", BACKLOG) else None
        if one is None:
            continue
        for name, times in one.worse.items():
            limit = one.within["ttft" if name == "ttft_ms" else "tpot"]
            at, said = load_text(point.head.control, point.head.level), figure(one.predicted[name])
            amount = f"{1 / times:.2f} of" if name == "output_throughput" else f"{times:.2f} times"
            behind = " and it fell behind" if point.validity == BACKLOG else ""
            text = f"{FIGURES[name]} is {amount} the predicted {said} at {at}{behind}, where 9 in 10 are within"
            text = f"{text} {limit:.2f} times"
            label = point.deployment.label + (" (emulated)" if point.emulated else "")
            worst[label] = max(worst.get(label, (0.0, "")), (times / limit, text))
    for label, (_, text) in worst.items():
        yield say(f"look at {label}: {text}", "yellow")

"""Facts beside speed of each part of a mix in one attempt: how much of its prompts the prefix cache
held, and how many of its answers violate their constraints.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from orchestrator.analysis.requests import RequestArrays
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.columns import or_zero
from orchestrator.results.records import PartFacts
from orchestrator.results.window import MeasuredWindow


class PartFactCounts:
    """Counts what the facts are computed from, some requests at a time: of the answered requests
    that were due in the window.
    """

    def __init__(self, window: MeasuredWindow) -> None:
        self._window = window
        self._counts_by_part: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, columns: RequestArrays) -> None:
        """Adds further requests of the same attempt; those of no part are left out."""
        if not columns.part.names:
            return
        answered = columns.scheduled_in(self._window) & columns.ok
        prompt = _numbers(columns, "input_tokens")
        cached = _numbers(columns, "cached_tokens")
        expected = _numbers(columns, "expected_cached_tokens")
        is_constrained = columns.rows["constraint"].is_valid().to_numpy()
        met = columns.rows["constraint_met"].cast("int8").to_numpy().astype(np.float64)
        for name in columns.part.names:
            is_of_part = answered & columns.part.of(name)
            is_counted = is_of_part & ~np.isnan(prompt)
            is_expected = is_counted & ~np.isnan(expected)
            self._counts_by_part[name].update(
                reports_of_hits=_rows(is_of_part & ~np.isnan(cached)),
                counted=_rows(is_counted),
                cached_tokens=_sum(or_zero(cached), is_counted),
                prompt_tokens=_sum(prompt, is_counted),
                expected=_rows(is_expected),
                expected_tokens=_sum(expected, is_expected),
                constrained=_rows(is_of_part & is_constrained),
                violations=_rows(is_of_part & is_constrained & (met == 0)),
            )

    def facts(self) -> dict[str, PartFacts]:
        """The facts of each part that requests are of."""
        # an engine may leave hits out where there are none: then a part of none has no report
        has_reports = any(counts["reports_of_hits"] for counts in self._counts_by_part.values())
        return {name: _facts(counts, has_reports) for name, counts in self._counts_by_part.items()}


def _facts(counts: Counter[str], has_reports: bool) -> PartFacts:
    """``has_reports``: whether the engine reported hits of any request of the attempt."""
    prompt_tokens = counts["prompt_tokens"]
    cached_share = None
    if has_reports and prompt_tokens:
        cached_share = counts["cached_tokens"] / prompt_tokens
    expected_cached_share = None
    if prompt_tokens and counts["expected"] == counts["counted"]:
        expected_cached_share = counts["expected_tokens"] / prompt_tokens
    return PartFacts(
        cached_share=cached_share,
        expected_cached_share=expected_cached_share,
        constraint_violations=float(counts["violations"]) if counts["constrained"] else None,
    )


def _numbers(columns: RequestArrays, name: str) -> Floats:
    """A column of the rows, with NaN for null."""
    return np.asarray(columns.rows[name].to_numpy(), dtype=np.float64)


def _rows(chosen: Bools) -> int:
    return int(np.count_nonzero(chosen))


def _sum(tokens: Floats, chosen: Bools) -> int:
    return int(tokens[chosen].sum())

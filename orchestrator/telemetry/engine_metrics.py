"""Reads an engine's own /metrics while load is sent: one normalized sample every few seconds.

``Engine.metrics`` maps each engine's names to one set of columns. What an engine does not report is
null, never zero.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Series

from orchestrator.base.grouping import values_by_key
from orchestrator.base.http import ask
from orchestrator.telemetry.clock_offset import ClockOffset

INTERVAL_S = 5.0  # rendering /metrics costs the measured API server time
READ_LIMIT_S = 5.0
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Engines have these at 0 unless they are started to estimate their work.
_ESTIMATES = frozenset(
    {
        "estimated_flops_per_gpu_total",
        "estimated_read_bytes_per_gpu_total",
        "estimated_write_bytes_per_gpu_total",
    }
)
# Averages over drafts; they are 0 where nothing was drafted.
_DRAFTS = frozenset({"spec_accept_length", "spec_accept_share"})
# columns whose series (one per rank) are averaged; those of other columns are added
AVERAGED = frozenset({"kv_usage", *_ESTIMATES, *_DRAFTS})


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. ``values``: column -> value, without columns that the engine does not report.
    ``role``: that of the replica, if it has one. ``host``: where the replica runs.
    """

    unix_ns: int
    values: Mapping[str, float]
    role: str | None = None
    host: str | None = None
    clock: ClockOffset | None = None


@dataclass(frozen=True, slots=True)
class _Term:
    """A metric that a column needs: its name, and the labels that its series must have. A series
    that lacks a label counts as if the label were empty.
    """

    metric: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> "_Term":
        """Parses ``name{label="value"}``."""
        metric, _, labels = text.partition("{")
        return cls(metric, dict(_LABEL.findall(labels)))

    def matches(self, series_labels: Mapping[str, str]) -> bool:
        return all(series_labels.get(label, "") == value for label, value in self.labels.items())

    def values(self, all_series: Iterable[Series]) -> list[float]:
        """The values of those series of the metric that have the labels."""
        return [series.value for series in all_series if self.matches(series.labels)]


def normalize(text: str, metrics: Mapping[str, str]) -> dict[str, float]:
    """The columns that a page of /metrics has. ``metrics``: column -> the engine's metrics of which
    it is the sum, as ``Engine.metrics`` has them: ``name{label="value"} + other_name``.

    A column is left out when one of its metrics is missing, and an estimate of work or an average
    over drafts when it is 0. Raises ValueError for text that is not Prometheus's.
    """
    terms_by_column: dict[str, list[_Term]] = {}
    for column, expression in metrics.items():
        terms_by_column[column] = [_Term.parse(term) for term in expression.split(" + ")]
    series_by_metric = values_by_key((series.name, series) for series in _all_series(text))
    columns: dict[str, float] = {}
    for column, terms in terms_by_column.items():
        values_of_terms = [term.values(series_by_metric.get(term.metric, ())) for term in terms]
        if not all(values_of_terms):
            continue  # one of its metrics is missing
        value = _combined(column, list(chain.from_iterable(values_of_terms)))
        if value or column not in _ESTIMATES | _DRAFTS:
            columns[column] = value
    return columns


def _all_series(text: str) -> Iterator[Series]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _combined(column: str, values: Sequence[float]) -> float:
    """The value of a column, from all series of all its metrics."""
    return sum(values) / len(values) if column in AVERAGED else sum(values)


def read(
    urls: Sequence[str],
    metrics: Mapping[str, str],
    api_key: str = "",
    more_headers: Sequence[tuple[str, str]] = (),
    verify_tls: bool = True,
) -> Sample | None:
    """One reading of an engine's pages of /metrics, together; None when one of them did not answer
    with metrics. ``metrics``: as in ``normalize``.

    A part of the pages is never read alone: its sums would be taken for those of the whole engine.
    """
    pages: list[bytes] = []
    for url in urls:
        response = ask(
            url,
            api_key=api_key,
            limit_s=READ_LIMIT_S,
            more_headers=more_headers,
            verify_tls=verify_tls,
        )
        if response.status != 200:
            return None
        pages.append(response.body)
    try:
        values = normalize(b"\n".join(pages).decode(), metrics)
    except ValueError:
        return None
    return Sample(time.time_ns(), values) if values else None

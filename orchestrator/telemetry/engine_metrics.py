"""Reads an engine's own /metrics while load is sent: one normalized sample every few seconds.

``Engine.metrics`` maps each engine's names to one set of columns. What an engine does not report is
null, never zero.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

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


def normalize(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """The columns that a page of /metrics has. ``names``: column -> the engine's metrics that add
    up to it (``Engine.metrics``).

    A column is left out when one of its metrics is missing, and an estimate of work or an average
    over drafts when it is 0. Raises ValueError for text that is not Prometheus's.
    """
    terms_by_column: dict[str, list[_Term]] = {}
    for column, expression in names.items():
        terms_by_column[column] = [_Term.parse(term) for term in expression.split(" + ")]
    wanted = values_by_key(
        (term.metric, (column, term)) for column, terms in terms_by_column.items() for term in terms
    )
    # column -> metric -> values of its series
    values: dict[str, dict[str, list[float]]] = {}
    for family in text_string_to_metric_families(text):
        for series in family.samples:
            for column, term in wanted.get(series.name, ()):
                if term.matches(series.labels):
                    by_metric = values.setdefault(column, {})
                    by_metric.setdefault(series.name, []).append(series.value)
    columns: dict[str, float] = {}
    for column, by_metric in values.items():
        if len(by_metric) < len(terms_by_column[column]):
            continue
        value = _combined(column, by_metric)
        if value or column not in _ESTIMATES | _DRAFTS:
            columns[column] = value
    return columns


def _combined(column: str, by_metric: Mapping[str, list[float]]) -> float:
    """The value of a column, from all series of all its metrics."""
    values = list(chain.from_iterable(by_metric.values()))
    return sum(values) / len(values) if column in AVERAGED else sum(values)


def read(
    url: str,
    names: Mapping[str, str],
    api_key: str = "",
    more_headers: Sequence[tuple[str, str]] = (),
    verify_tls: bool = True,
) -> Sample | None:
    """One reading of ``url``; None when the engine did not answer with metrics."""
    response = ask(
        url, api_key=api_key, limit_s=READ_LIMIT_S, more_headers=more_headers, verify_tls=verify_tls
    )
    try:
        values = normalize(response.body.decode(), names) if response.status == 200 else {}
    except ValueError:
        return None
    return Sample(time.time_ns(), values) if values else None

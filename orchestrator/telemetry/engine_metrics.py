"""An engine's own /metrics while it is loaded: one normalized sample every few seconds.

``Engine.metrics`` maps each engine's names to one set of columns. What an engine does not report is
null, never zero.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.base.http import ask
from orchestrator.base.text import grouped

INTERVAL_S = 5.0  # rendering /metrics costs the measured API server time
READ_LIMIT_S = 5.0
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# several series (one per data-parallel rank) are averaged; all others are summed
RATIOS = frozenset({"kv_usage"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. ``values``: column -> value, only those the engine reported. ``role``: of its
    replica, if any.
    """

    unix_ns: int
    values: Mapping[str, float]
    role: str | None = None


def normalize(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Prometheus text -> columns. ``names``: column -> the engine's metrics that add up to it
    (``Metric.name``).

    A column is left out when one of its metrics is missing. Raises ValueError for other text.
    """
    terms = {
        column: [_term(term) for term in expression.split(" + ")]
        for column, expression in names.items()
    }
    wanted = grouped(
        (name, (column, labels)) for column, some in terms.items() for name, labels in some
    )
    found: dict[str, dict[str, list[float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for column, labels in wanted.get(sample.name, ()):
                if all(sample.labels.get(label, "") == value for label, value in labels.items()):
                    found.setdefault(column, {}).setdefault(sample.name, []).append(sample.value)
    return {
        column: _one(column, by_name)
        for column, by_name in found.items()
        if len(by_name) == len(terms[column])
    }


def _term(text: str) -> tuple[str, dict[str, str]]:
    """``name{label="value"}`` -> the name, and the labels it must have; an absent label counts as
    empty.
    """
    name, _, labels = text.partition("{")
    return name, dict(_LABEL.findall(labels))


def _one(column: str, by_name: Mapping[str, list[float]]) -> float:
    values = [value for many in by_name.values() for value in many]
    return sum(values) / (len(values) if column in RATIOS else 1)


def read(
    url: str,
    names: Mapping[str, str],
    api_key: str = "",
    more_headers: Sequence[tuple[str, str]] = (),
    verify_tls: bool = True,
) -> Sample | None:
    """One reading of ``url``; None when the engine did not answer with metrics."""
    answer = ask(
        url, api_key=api_key, limit_s=READ_LIMIT_S, more_headers=more_headers, verify_tls=verify_tls
    )
    try:
        values = normalize(answer.body.decode(), names) if answer.status == 200 else {}
    except ValueError:
        return None
    return Sample(time.time_ns(), values) if values else None


class Sampler:
    """Takes samples at ``start``, at ``stop``, and every ``interval_s`` between them, in a thread
    of its own.
    """

    def __init__(self, take: Callable[[], Sample | None], interval_s: float = INTERVAL_S) -> None:
        self._take, self._interval_s = take, interval_s
        self._samples: list[Sample] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-metrics", daemon=True)

    def start(self) -> None:
        """Begin. The first sample is taken before this returns, so that it lies before the load."""
        self._keep()
        self._thread.start()

    def stop(self) -> list[Sample]:
        """Take the last sample; all samples in order of time."""
        self._done.set()
        self._thread.join()
        self._keep()
        return self._samples

    def _run(self) -> None:
        while not self._done.wait(self._interval_s):
            self._keep()

    def _keep(self) -> None:
        if (sample := self._take()) is not None:
            self._samples.append(sample)

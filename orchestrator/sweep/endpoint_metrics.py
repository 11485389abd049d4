"""Reads the /metrics of a server that this program did not start, where it has them.

Nobody knows beforehand which engine such a server is: each path at which one has its metrics is
tried, and the names of the metrics tell which it is. Its clients
may share a process with this thread, so pages are parsed only when the load is over.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.base.http import HttpResponse, ask
from orchestrator.load.point import Target
from orchestrator.telemetry.clock_offset import SAME_CLOCK

if TYPE_CHECKING:
    from orchestrator.telemetry.engine_metrics import Sample
    from orchestrator.telemetry.sampler import Sampler

_NAME = re.compile(rb"^[A-Za-z_:][\w:]*", re.MULTILINE)
_LABELS = re.compile(r"\{.*\}")
# Averages of what was drafted last. Before the load that was for other requests.
_AVERAGES = ("spec_accept_length", "spec_accept_share")


@dataclass(frozen=True, slots=True)
class Page:
    """The lines of a page of /metrics that matter, and when it was read, by this host's clock."""

    unix_ns: int
    lines: bytes


class EndpointMetrics:
    """The /metrics of one endpoint, sampled while it is loaded."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._metrics: Mapping[str, str] = {}  # of the engine, since ``begin``
        self._path: str | None = None  # at which metrics of an engine were found
        self._sampler: Sampler[Page] | None = None
        self._has_answered = False  # with whatever status
        self._is_silent = False  # it did not answer when it was first asked: it is left alone

    def begin(self) -> None:
        """Reads the page at once, and samples it from now on if it is that of an engine. A server
        that lets the first reading wait in vain delays only one load by READ_LIMIT_S.
        """
        from orchestrator.telemetry.engine_metrics import INTERVAL_S
        from orchestrator.telemetry.sampler import Sampler

        self.end()  # of a point that was cut short
        if self._is_silent:
            return
        path = self._find_metrics()
        if path is not None:
            self._path = path
            take = partial(_page, self._target, path, lines_of(self._metrics))
            self._sampler = Sampler(take, INTERVAL_S, "endpoint-metrics")
            self._sampler.start_with_sample()

    def _find_metrics(self) -> str | None:
        """The path of a page with metrics of an engine, which are ``_metrics`` from now on."""
        for path in [self._path] if self._path else _paths():
            answer = _read(self._target, path)
            self._has_answered = self._has_answered or bool(answer.status)
            self._is_silent = not self._has_answered
            if not answer.status:  # the next path would let the load wait again
                return None
            self._metrics = metrics_of(answer.body) if answer.status == 200 else {}
            if self._metrics:
                return path
        return None

    def end(self) -> list[Sample]:
        """Ends ``begin`` and returns what was sampled since, in order of time; nothing where the
        endpoint has no metrics that are known.
        """
        from orchestrator.telemetry.engine_metrics import READ_LIMIT_S, Sample, normalize

        sampler = self._sampler
        self._sampler = None
        if sampler is None:
            return []
        samples: list[Sample] = []
        for page in sampler.stop(limit_s=3 * READ_LIMIT_S):
            try:
                values = normalize(page.lines.decode(), self._metrics)
            except ValueError:
                continue
            samples.append(Sample(page.unix_ns, values, clock=SAME_CLOCK))
        if samples:
            samples[0] = _without_averages(samples[0])
        return samples


def _paths() -> list[str]:
    """Where engines have their metrics; TensorRT-LLM keeps those of its own elsewhere."""
    from orchestrator.engines.registry import ENGINES

    paths: dict[str, None] = {}
    for engine in ENGINES:
        path = ENGINES[engine].metrics_path
        if path is not None:
            paths[path] = None
    return sorted(paths, key=len)


def metrics_of(page: bytes) -> Mapping[str, str]:
    """``Engine.metrics`` of the engine whose names a page of /metrics has; empty where it has those
    of none.
    """
    from orchestrator.engines.registry import ENGINES  # loading needs engines for little else

    names = {name.decode() for name in _NAME.findall(page)}
    most: Mapping[str, str] = {}
    most_found = 0
    for engine in ENGINES:
        metrics = ENGINES[engine].metrics
        found = len(_names_in(metrics) & names)
        if found > most_found:
            most, most_found = metrics, found
    return most


def _names_in(metrics: Mapping[str, str]) -> set[str]:
    """The names of all metrics that columns are made of."""
    names: set[str] = set()
    for expression in metrics.values():
        for term in expression.split(" + "):
            names.add(_LABELS.sub("", term))
    return names


def lines_of(metrics: Mapping[str, str]) -> re.Pattern[bytes]:
    """Finds the lines of a page that have a value of one of these metrics."""
    names = "|".join(re.escape(name) for name in sorted(_names_in(metrics)))
    return re.compile(rf"^(?:{names})[ {{].*$".encode(), re.MULTILINE)


def _page(target: Target, path: str, lines: re.Pattern[bytes]) -> Page | None:
    answer = _read(target, path)
    if answer.status != 200:
        return None
    return Page(time.time_ns(), b"\n".join(lines.findall(answer.body)) + b"\n")


def _read(target: Target, path: str) -> HttpResponse:
    from orchestrator.telemetry.engine_metrics import READ_LIMIT_S

    return ask(
        target.url.rstrip("/") + path,
        api_key=target.api_key or "",
        limit_s=READ_LIMIT_S,
        more_headers=target.headers,
        verify_tls=target.verify_tls,
    )


def _without_averages(sample: Sample) -> Sample:
    values = {name: value for name, value in sample.values.items() if name not in _AVERAGES}
    return replace(sample, values=values)

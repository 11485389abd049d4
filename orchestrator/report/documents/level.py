"""One load level that ``orchestrator load`` measured: the record for its text and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.adapter_cost import AdapterCost, adapter_cost_of
from orchestrator.analysis.guidance import Guidance, guidance_of
from orchestrator.analysis.intervals import Interval, rate_interval
from orchestrator.analysis.metrics import (
    ObservedParts,
    ended_requests,
    figures,
    observe_arrays,
    part_figures,
    steady_window,
    validity_of,
)
from orchestrator.analysis.part_facts import PartFactCounts
from orchestrator.analysis.points import attained
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.slo import judge, limit_values
from orchestrator.report.documents.point import SloResult
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import CacheState
from orchestrator.results.records import Figures, PartFigures, RequestTotals
from orchestrator.results.window import MeasuredWindow
from orchestrator.spec.load import Level, Slo

if TYPE_CHECKING:
    from orchestrator.load.point import ClientStats, LoadPoint
    from orchestrator.load.validity import PointVerdict


@dataclass(frozen=True, slots=True)
class AllRequests:
    """What is known of all requests of a level, those of its warm-up included.

    ``in_flight_mean``: how many requests were in flight in the window, on average; None: the window
    is empty. ``cached_tokens``: prompt tokens that the engine found in its prefix cache; None: the
    engine does not report them. ``error_texts``: by class of error, its commonest message.
    """

    totals: RequestTotals
    in_flight_mean: float | None
    token_count_sources: tuple[str, ...]
    cached_tokens: int | None
    error_texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LevelSource:
    """Where a level comes from: the run to which it belongs, and what the command says of it.

    ``seed``: that of the run; ``--seed`` with it sends the same requests again. ``repeat``: from 0.
    ``results`` and ``name``: where the run is stored, and as what; None: it is not stored.
    """

    seed: int
    repeat: int
    emulated: bool
    cache_state: CacheState
    notes: tuple[str, ...] = ()
    results: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LevelDocument:
    """How a level was measured, its metrics (docs/reference/metrics.md) and its verdict. It has no
    secrets.

    ``warmup_s``: None: the window begins where the run became steady. ``slo_result``: None: no
    limits were given. ``adapter_cost``: None: no request asked for a LoRA adapter.
    ``guidance``: None: no answer was constrained.
    """

    url: str
    model: str
    api: str
    path: str
    level: Level
    arrivals: str
    prompt_file: str | None
    warmup_s: float | None
    window_start_s: float
    duration_s: float | None
    max_in_flight: int | None
    clients: int
    figures: Figures
    output_token_throughput: Interval | None
    all_requests: AllRequests
    adapter_cost: AdapterCost | None
    validity: str
    validity_reasons: tuple[str, ...]
    evidence: Mapping[str, float]
    clients_stats: tuple[ClientStats, ...]
    slo_result: SloResult | None
    source: LevelSource
    guidance: Guidance | None = None
    parts: tuple[PartFigures, ...] = ()  # of a mix

    @property
    def window_was_found(self) -> bool:
        """Whether the window begins later than the run, where requests in flight became steady."""
        return self.warmup_s is None and self.window_start_s > 0


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """What the clients brought back. ``point``: with the duration that the level really took."""

    point: LoadPoint
    clients: int
    requests: Rows
    token_events: Rows | None
    stats: Sequence[ClientStats]
    verdict: PointVerdict


def level_document(
    measured: MeasuredLevel, source: LevelSource, slos: Sequence[Slo] = ()
) -> LevelDocument:
    """Makes the document of a level. ``slos``: the limits of ``--slo``: one SLO at most."""
    point = measured.point
    verdict = measured.verdict
    requests = measured.requests
    window = steady_window(point.warmup_s, point.duration_s, requests)
    parts = ObservedParts(window)
    part_facts = PartFactCounts(window)

    def blocks() -> Iterator[RequestArrays]:
        for columns in request_arrays(requests, measured.token_events):
            parts.add(columns)
            part_facts.add(columns)
            yield columns

    observed = observe_arrays(blocks(), window)
    of_window = figures(observed)
    batches = observed.token_batches
    if math.isinf(point.level.value):
        batches = tuple(of_attempt.as_one() for of_attempt in batches)
    target = point.targets[0]
    return LevelDocument(
        url=target.url,
        model=target.model,
        api=point.workload.api,
        path=point.dialect.path,
        level=point.level,
        arrivals=point.arrivals.at(point.level),
        prompt_file=getattr(point.workload, "prompts", None),
        warmup_s=point.warmup_s,
        window_start_s=window.start_ns / 1e9,
        duration_s=point.duration_s,
        max_in_flight=point.max_in_flight,
        clients=measured.clients,
        figures=of_window,
        output_token_throughput=rate_interval(batches),
        all_requests=_all_requests(requests, window),
        adapter_cost=adapter_cost_of(requests, window),
        validity=validity_of(
            verdict.validity, [ended_requests(of_window.requests, of_window.errors)]
        ),
        validity_reasons=tuple(verdict.reasons),
        evidence=verdict.evidence,
        clients_stats=tuple(measured.stats),
        slo_result=_slo_result(requests, measured.token_events, window, slos),
        source=source,
        guidance=guidance_of(requests, window),
        parts=part_figures(parts.by_part, part_facts.facts()),
    )


def _slo_result(
    requests: Rows, token_events: Rows | None, window: MeasuredWindow, slos: Sequence[Slo]
) -> SloResult | None:
    """How many requests met the limits; None without limits."""
    if not slos:
        return None
    (slo,) = slos
    verdicts = judge(limit_values(requests, token_events, window), slo)
    return SloResult(slo, attained([verdicts]), (verdicts,), window.length_s)


def _all_requests(requests: Rows, window: MeasuredWindow) -> AllRequests:
    ok = 0
    in_flight_ns = 0.0
    sources: set[str] = set()
    cached_tokens: int | None = None
    errors: Counter[_Error] = Counter()
    for part in slices(requests):
        ok += pc.sum(pc.equal(part["status"], "ok"), min_count=0).as_py()
        in_flight_ns += _in_flight_ns(part, window)
        sources.update(part["token_count_source"].drop_null().unique().to_pylist())
        cached_in_part: int | None = pc.sum(part["cached_tokens"]).as_py()
        if cached_in_part is not None:
            cached_tokens = (cached_tokens or 0) + cached_in_part
        errors.update(_errors(part))
    scheduled = len(requests)
    window_length_ns = window.end_ns - window.start_ns
    return AllRequests(
        totals=RequestTotals(scheduled=scheduled, ok=ok, failed=scheduled - ok),
        in_flight_mean=in_flight_ns / window_length_ns if window_length_ns > 0 else None,
        token_count_sources=tuple(sorted(sources)),
        cached_tokens=cached_tokens,
        error_texts=_commonest_texts(errors),
    )


def _in_flight_ns(requests: Rows, window: MeasuredWindow) -> float:
    """The time in ns that requests were under way within the window, summed over all of them."""
    sent_ns = requests["sent_ns"].to_numpy().astype(np.float64)  # NaN: never sent
    done_ns = requests["done_ns"].to_numpy().astype(np.float64)
    overlap_ns = np.minimum(done_ns, window.end_ns) - np.maximum(sent_ns, window.start_ns)
    return float(np.nansum(np.clip(overlap_ns, 0, None)))


class _Error(NamedTuple):
    """A class of error and one of its messages."""

    error_class: str
    text: str


def _errors(requests: Rows) -> Iterator[_Error]:
    columns = {name: requests[name] for name in ("error_class", "error")}
    failed = pa.table(columns).drop_null()
    return map(_Error, failed["error_class"].to_pylist(), failed["error"].to_pylist())


def _commonest_texts(errors: Counter[_Error]) -> dict[str, str]:
    """The commonest message of each class of error that has one."""
    texts: dict[str, str] = {}
    for error, _ in errors.most_common():
        if error.text:
            texts.setdefault(error.error_class, error.text)
    return texts

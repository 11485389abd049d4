"""Results for notebooks: ``import orchestrator``, then ``orchestrator.metrics("results/")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from orchestrator.analysis.capacity import Per
from orchestrator.errors import InputError
from orchestrator.report.best import best_document
from orchestrator.report.documents import Document, flat
from orchestrator.report.points import point_document
from orchestrator.report.stored import answers, experiments, limits, with_limits
from orchestrator.results.root import open_results, read

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["best", "metrics", "read", "requests"]


def metrics(uri: str, *, slo: str | None = None, experiment: str | None = None) -> pd.DataFrame:
    """One row per current point, with the figures of ``orchestrator results`` (docs/metrics.md has their units).

    Nested values are dotted columns: ``ttft_ms.p99``, ``settings.max_num_seqs``, ``slo.goodput``. ``slo``: limits or
    the name of some that the file names; else all that it names (``slos.interactive.goodput``; ``slo``: the first).
    Raises InputError.
    """
    shown = with_limits(slo, experiments(open_results(uri), experiment))
    return _frame(
        {name: value for name, value in point_document(point, slos).items() if name != "repeats"}
        for _, slos, points in shown
        for point in points.current
    )


def best(
    uri: str,
    slo: str | None = None,
    *,
    per: Per | None = None,
    prices: Mapping[str, float] | None = None,
    experiment: str | None = None,
) -> pd.DataFrame:
    """One row per deployment that holds the limits, the best of each comparison first, as ``orchestrator best`` ranks.

    ``per`` None: per GPU, or per deployment where one has no GPUs of ours. ``prices``: USD per GPU hour by hardware, in
    place of the file's. Raises InputError.
    """
    found = answers(limits(slo, experiments(open_results(uri), experiment, prices)), per)
    rows = []
    for one in best_document(found)["comparisons"]:  # type: ignore[attr-defined]
        about = {name: value for name, value in one.items() if name not in ("ranking", "left_out")}
        rows += [about | candidate for candidate in one["ranking"]]
    return _frame(rows)


def requests(uri: str, *, experiment: str | None = None) -> Iterator[pa.Table]:
    """The requests of every measurement that counts, one Arrow table at a time (columns: docs/data-format.md)."""
    for one in experiments(open_results(uri), experiment):
        for attempt in one.store.winners().values():
            if manifest := one.store.manifest(*attempt.ids):
                yield one.store.read_manifests("requests", [manifest], leave_out=True)


def _frame(rows: Iterator[Document] | list[Document]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError("frames need pandas: pip install 'llm-serving-orchestrator[frames]'") from error
    return pd.DataFrame([flat(one) for one in rows])

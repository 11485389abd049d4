"""Files that the real tools wrote against the emulator (tests/contract/exchange/README.md), and what
an import makes of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from orchestrator.analysis.points import StoredPoint
from orchestrator.exchange.importing import ImportNames, read_files, store_points
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import Distribution
from orchestrator.results.store import Store

FOLDER = Path(__file__).parents[2] / "contract/exchange"
VLLM = FOLDER / "vllm/concurrency.json"
VLLM_DETAILED = FOLDER / "vllm/rate-detailed.json"
VLLM_FAILED = FOLDER / "vllm/failures-detailed.json"
GUIDELLM = FOLDER / "guidellm/benchmarks.json"
AIPERF = FOLDER / "aiperf/profile_export_aiperf.json"
AIPERF_RECORDS = FOLDER / "aiperf/profile_export.jsonl"
NAMES = ImportNames(None, "prompts")


def document(path: Path) -> Any:
    """The content of a file with one JSON value."""
    return json.loads(path.read_text())


def changed(path: Path, into: Path, **fields: Any) -> Path:
    """A copy of a JSON file with other top-level fields; a field that is None is left out."""
    content = document(path)
    for name, value in fields.items():
        if value is None:
            content.pop(name)
        else:
            content[name] = value
    copy = into / path.name
    copy.write_text(json.dumps(content))
    return copy


def imported(folder: Path, *paths: Path) -> Store:
    """A store with the points of these files."""
    store = Store.open(str(folder), "imported")
    store_points(store, read_files(paths), NAMES)
    return store


def points_of(store: Store, *slos: Any) -> Sequence[StoredPoint]:
    return StoredExperiment(store).points(*slos).current


def queried(store: Store, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query over the Parquet files; ``{table}`` stands for those of a table."""
    root = Path(store.uri) / store.experiment / "data"
    tables = {folder.name: f"read_parquet('{folder}/v=1/*.parquet')" for folder in root.iterdir()}
    return duckdb.sql(query.format(**tables)).fetchall()


def queried_distribution(store: Store, value: str, where: str = "true") -> dict[str, float]:
    """Mean and percentiles of an expression over answered requests, computed by DuckDB."""
    (row,) = queried(
        store,
        f"SELECT avg({value}), stddev_pop({value}), quantile_cont({value}, 0.5), "
        f"quantile_cont({value}, 0.9), quantile_cont({value}, 0.99) "
        f"FROM {{requests}} WHERE status = 'ok' AND {where}",
    )
    return dict(zip(("mean", "std", "p50", "p90", "p99"), row, strict=True))


def queried_gaps(store: Store) -> dict[str, float]:
    """Mean, deviation and percentiles of all times between tokens, in ms, computed by DuckDB."""
    (row,) = queried(
        store,
        "SELECT avg(gap), stddev_pop(gap), quantile_cont(gap, 0.5), quantile_cont(gap, 0.9), "
        "quantile_cont(gap, 0.99) FROM (SELECT unnest(gaps_us) / 1e3 AS gap FROM {token_events})",
    )
    return dict(zip(("mean", "std", "p50", "p90", "p99"), row, strict=True))


def stated(values: Distribution | None) -> dict[str, float]:
    """The same statistics as a point has them."""
    assert values is not None
    return {name: getattr(values, name) for name in ("mean", "std", "p50", "p90", "p99")}


def copied(folder: Path, *paths: Path) -> list[Path]:
    """The same files under names that say nothing."""
    copies = []
    for number, path in enumerate(paths):
        copy = folder / f"file{number}"
        shutil.copy(path, copy)
        copies.append(copy)
    return copies

"""A results folder like that of a large finished sweep, made in a few minutes instead of weeks.

    python benchmarks/results/make_store.py FOLDER [--points 10000] [--requests 200] [--repeats 3]
    [--tokens 64] [--experiment FILE] [--spread 0] [--no-computed]

Everything goes through the code that a sweep uses, with two shortcuts: attempts share a few dozen
files of requests and token events (hard links; their key columns are those of one attempt), and
nothing is synced to the disk. ``--experiment`` names a file to plan in place of the one here, with
loads of 60 s after 5 s. ``--spread`` makes points differ in their latencies: the standard deviation
of the logarithm. ``--no-computed`` leaves out what is computed from the requests, as versions did
that did not compute it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from orchestrator.analysis.attempt_summary import CommittedAttempt, pool_key
from orchestrator.analysis.metrics import figures, merge, observe
from orchestrator.base.clock import UnixSpan
from orchestrator.load.validity import PointVerdict
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Measurement, Plan, Point
from orchestrator.results.ids import new_ulid
from orchestrator.results.records import METRICS_VERSION, AttemptData, PointRow, PooledFigures
from orchestrator.results.schemas import (
    ENGINE_METRICS,
    RECORDS,
    REQUESTS,
    TABLES,
    TOKEN_EVENTS,
    conform,
    table_of,
    to_parquet,
)
from orchestrator.results.store import FilePart, Manifest, Store
from orchestrator.results.window import MeasuredWindow
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.attempt import Attempt as Tried
from orchestrator.sweep.attempt import Loaded
from orchestrator.sweep.commit import AttemptRecord, deployment_row

EXPERIMENT = """
version: 1
name: large
model: some-org/some-model
deployments:
  engine: emulator
  hardware: cpu
  vary: [{{grid: {{max_num_seqs: {sequences}}}}}]
workloads: [{{name: chat, input_tokens: 100, output_tokens: {tokens}}}]
load: {{levels: {{concurrency: {levels}}}, duration: 60s, warmup: 5s}}
repeats: {repeats}
"""
LEVELS = 20  # of each deployment
TOKENS = 64
TEMPLATES = 600  # as different as real ones: equal ones would be packed away
AT_ONCE = 512  # rows of a file of what is computed


@dataclass(frozen=True)
class Template:
    """Requests and token events that many attempts share, and what is computed of them."""

    requests: pa.Table
    token_events: pa.Table
    parts: tuple[tuple[str, bytes, int], ...]  # table, file, rows


def plan_of(points: int, repeats: int, tokens: int = TOKENS) -> Plan:
    deployments = -(-points // LEVELS)
    sequences, levels = list(range(1, deployments + 1)), list(range(1, LEVELS + 1))
    experiment = EXPERIMENT.format(
        sequences=sequences, levels=levels, repeats=repeats, tokens=tokens
    )
    return make_plan(parse_experiment(experiment))


def template(
    count: int, rng: np.random.Generator, spread: float = 0.0, tokens: int = TOKENS
) -> Template:
    """``count`` requests over 65 s, one in a hundred failed, with gaps of about 20 ms.

    ``spread``: how much templates differ in their latencies. ``tokens``: of each answer.
    """
    scheduled = np.sort(rng.integers(0, 65 * 10**9, count))
    slowness = float(np.exp(spread * rng.standard_normal())) if spread else 1.0
    first = scheduled + (slowness * rng.lognormal(18.5, 0.5, count)).astype(np.int64)
    gaps_us = (slowness * rng.gamma(4, 5_000, (count, tokens - 1))).astype(np.int32)
    ok = rng.random(count) > 0.01
    last = first + gaps_us.sum(1, dtype=np.int64) * 1000
    columns = {
        "measurement_id": ["m" * 16] * count,
        "attempt_id": ["a" * 26] * count,
        "request_index": np.arange(count),
        "client": np.zeros(count, np.int64),
        "replica": np.zeros(count, np.int64),
        "phase": np.where(scheduled < 5 * 10**9, "warmup", "measure"),
        "scheduled_ns": scheduled,
        "sent_ns": scheduled + 50_000,
        "first_byte_ns": pa.array(first, mask=~ok),
        "first_token_ns": pa.array(first, mask=~ok),
        "last_token_ns": pa.array(last, mask=~ok),
        "done_ns": last + 100_000,
        "input_tokens_asked": np.full(count, 100),
        "input_tokens": pa.array(np.full(count, 100), mask=~ok),
        "output_tokens_asked": np.full(count, tokens),
        "output_tokens": pa.array(np.full(count, tokens), mask=~ok),
        "token_count_source": ["usage"] * count,
        "chunks": np.full(count, tokens),
        "coalesced_chunks": np.zeros(count, np.int64),
        "itl_kind": ["token"] * count,
        "status": np.where(ok, "ok", "error"),
        "error_class": pa.array(["http_5xx"] * count, mask=ok),
    }
    requests = conform("requests", pa.table(columns))
    offsets = pa.array(np.arange(count + 1) * (tokens - 1), pa.int32())
    gaps = pa.ListArray.from_arrays(offsets, pa.array(gaps_us.ravel())).filter(pa.array(ok))
    keys = requests.filter(pa.array(ok)).select(["measurement_id", "attempt_id", "request_index"])
    events = conform("token_events", keys.append_column("gaps_us", gaps))
    files = tuple(
        (table, bytes(to_parquet(table, rows)), rows.num_rows)
        for table, rows in (("requests", requests), ("token_events", events))
    )
    assert (requests.schema.names, events.schema.names) == (REQUESTS.names, TOKEN_EVENTS.names)
    return Template(requests, events, files)


class Writer:
    """Writes attempts of one plan."""

    def __init__(
        self, store: Store, folder: Path, templates: Sequence[Template], computed: bool
    ) -> None:
        self._store, self._folder, self._templates, self._computed = (
            store,
            folder,
            templates,
            computed,
        )
        self._data: list[AttemptData] = []
        self._pooled: list[PooledFigures] = []
        self._known: dict[tuple[int, ...], PooledFigures] = {}
        self._data_of: dict[int, AttemptData] = {}  # by template: worked out once
        self._deployments: dict[str, bytes] = {}
        for number, one in enumerate(templates):
            for table, content, _ in one.parts:
                self._write(f"templates/{table}-{number}", content)
        for table in ("requests", "token_events", "points", "deployments"):
            (folder / f"data/{table}/v=1").mkdir(parents=True)

    def add(
        self, plan: Plan, point: Point, measurement: Measurement, number: int, at_ns: int
    ) -> str:
        """An attempt with the rows of template ``number``. Returns its id."""
        attempt_id, used, deployment = (
            new_ulid(),
            self._templates[number],
            plan.deployment(point.deployment_id),
        )
        verdict = PointVerdict("valid", [], {"offered_rate": 3.0, "achieved_rate": 3.0})
        tried = Tried(
            verdict=verdict, loaded=Loaded(span=UnixSpan(at_ns, at_ns), requests=used.requests)
        )
        point = AttemptRecord(deployment, point, measurement, tried, attempt_id).row(plan.name)
        files = [
            self._link(table, point, number, content, rows) for table, content, rows in used.parts
        ]
        described = deployment_row(deployment, plan.name)
        if deployment.id not in self._deployments:
            self._deployments[deployment.id] = _content("deployments", described)
        for table, content in (
            ("points", _content("points", point)),
            ("deployments", self._deployments[deployment.id]),
        ):
            path = _part_path(table, point)
            self._write(path, content)
            files.append(
                FilePart(table, path, 1, len(content), hashlib.sha256(content).hexdigest())
            )
        manifest = Manifest(
            kind="point",
            measurement_id=point.measurement_id,
            attempt_id=attempt_id,
            status="ok",
            created_unix_ns=at_ns,
            files=tuple(files),
            deployment_id=deployment.id,
            point_id=point.point_id,
        )
        self._write(manifest.key, manifest.to_json().encode())
        if self._computed:
            if number not in self._data_of:
                attempt = CommittedAttempt(
                    manifest=manifest,
                    point=point,
                    deployment=described,
                    requests=used.requests,
                    token_events=used.token_events,
                    engine_metrics=ENGINE_METRICS.empty_table(),
                    telemetry=TABLES["telemetry"].empty_table(),
                )
                self._data_of[number] = attempt.data()
            ids = {
                "measurement_id": point.measurement_id,
                "attempt_id": attempt_id,
                "created_unix_ns": at_ns,
            }
            more = {"deployment_id": deployment.id, "point": point, "deployment": described}
            self._data.append(replace(self._data_of[number], **ids, **more))
        return attempt_id

    def pool(self, attempt_ids: Sequence[str], numbers: tuple[int, ...]) -> None:
        """What these attempts amount to together; the same templates were worked out before."""
        if not self._computed or len(attempt_ids) < 2:
            return
        if numbers not in self._known:
            window = MeasuredWindow(5 * 10**9, 65 * 10**9)
            rows = [self._templates[number] for number in numbers]
            pooled = merge(observe(one.requests, one.token_events, window) for one in rows)
            self._known[numbers] = PooledFigures(
                attempt_ids="", metrics_version=METRICS_VERSION, figures=figures(pooled)
            )
        self._pooled.append(replace(self._known[numbers], attempt_ids=pool_key(attempt_ids)))

    def flush(self, least: int = AT_ONCE) -> None:
        """Write what was computed, in the files that merging would have made."""
        if len(self._data) >= least:
            self._store.computed.add(self._data)
            self._data = []
        if len(self._pooled) >= least:
            self._store.pooled.add(self._pooled)
            self._pooled = []

    def _link(
        self, table: str, point: PointRow, number: int, content: bytes, rows: int
    ) -> FilePart:
        path = _part_path(table, point)
        os.link(self._folder / f"templates/{table}-{number}", self._folder / path)
        return FilePart(table, path, rows, len(content), hashlib.sha256(content).hexdigest())

    def _write(self, path: str, content: bytes) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _content(table: str, row: object) -> bytes:
    return bytes(to_parquet(table, table_of([row], RECORDS[table])))


def _part_path(table: str, point: PointRow) -> str:
    return f"data/{table}/v=1/{point.measurement_id}-{point.attempt_id}-driver.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--experiment", type=Path)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--no-computed", action="store_true")
    arguments = parser.parse_args()
    began, rng = time.monotonic(), np.random.default_rng(1)
    if arguments.experiment is None:
        plan = plan_of(arguments.points, arguments.repeats, arguments.tokens)
    else:
        plan = make_plan(parse_experiment(arguments.experiment.read_text()))
    store = Store.open(str(arguments.folder), plan.name)
    store.write_plan(plan.to_json())
    templates = [
        template(arguments.requests, rng, arguments.spread, arguments.tokens)
        for _ in range(min(TEMPLATES, arguments.points * arguments.repeats))
    ]
    writer = Writer(store, arguments.folder / plan.name, templates, not arguments.no_computed)
    for count, point in enumerate(plan.points[: arguments.points]):
        group = [plan.measurement(point, repeat) for repeat in range(plan.repeats)]
        numbers = tuple(
            sorted((count * 7 + 5 * repeat) % len(templates) for repeat in range(len(group)))
        )
        at_ns = 1_700_000_000_000_000_000 + count * 10**9
        ids = [
            writer.add(plan, point, one, number, at_ns)
            for one, number in zip(group, numbers, strict=True)
        ]
        writer.pool(ids, numbers)
        writer.flush()
    writer.flush(least=1)
    print(
        f"{count + 1} points, {(count + 1) * arguments.repeats} attempts in "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()

"""How much memory the figures of a long run need: in the process that gets its rows, judges, shows
and commits them.

    python benchmarks/results/memory.py [--requests 1000000 4000000]

Rows are those of make_store.py again and again, 64 tokens each, and lie on disk as a client's do;
all else is the code of ``orchestrator load --results``. Each run is a process of its own; peak RSS
as the kernel counts it, and without pages of files, which the kernel takes back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from make_store import TOKENS, template

from orchestrator.base.clock import UnixSpan
from orchestrator.cli.load import document_of_level
from orchestrator.cluster.base import ClientReport
from orchestrator.load.point import ClientStats, Target
from orchestrator.plan.make import make_plan
from orchestrator.results.lazy_rows import LazyRows
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.store import Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.attempt import Loaded, judged
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.endpoint import EndpointRun

AT_ONCE, SECONDS = 5_000, 65  # of a template
URL = "http://127.0.0.1:1"  # nobody asks it


def parts_of(requests: int) -> list[RowFile]:
    one = template(AT_ONCE, np.random.default_rng(1))
    with closing(RowWriter("requests", "token_events")) as writer:
        for start in range(0, requests, AT_ONCE):
            by = {"request_index": start} | dict.fromkeys(
                [name for name in one.requests.column_names if name.endswith("_ns")],
                start // AT_ONCE * SECONDS * 10**9,
            )
            for table, rows in (("requests", one.requests), ("token_events", one.token_events)):
                for at, field in enumerate(rows.schema):
                    if field.name in by:
                        rows = rows.set_column(
                            at, field, pc.add(rows[field.name], by[field.name]).cast(field.type)
                        )
                writer.write(table, rows)
            while writer._queue.qsize() > 2:  # what is written ahead would count
                time.sleep(0.01)
        return writer.finish()


def measure(requests: int) -> None:
    experiment = {
        "version": 1,
        "name": "memory",
        "model": {"id": "m"},
        "deployments": {"engine": "endpoint", "url": URL},
        "workloads": [{"name": "load", "input_tokens": 100, "output_tokens": TOKENS}],
        "load": {
            "levels": {"request_rate": [AT_ONCE / SECONDS]},
            "duration": f"{requests // AT_ONCE * SECONDS}s",
        },
        "slos": {"all": {"ttft": "500ms", "tpot": "50ms"}},
    }
    plan = make_plan(parse_experiment(json.dumps(experiment)))
    dialect = Dialect("openai_completions", "/v1/completions", prompt_token_ids=True)
    run = EndpointRun(plan, plan.points[0], Target(URL, "m"), EndpointDialect(dialect, None))
    stats = ClientStats(**{one.name: 0 for one in fields(ClientStats) if one.default is MISSING})
    rows, gaps = parts_of(requests)
    before, began = resident("VmRSS"), time.monotonic()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    own = [resident("RssAnon")]
    threading.Thread(target=watch, args=(own,), daemon=True).start()
    loaded = Loaded(
        span=UnixSpan(0, requests // AT_ONCE * SECONDS * 10**9),
        requests=LazyRows.of("requests", [rows]),
        reports={0: ClientReport(stats, (), rows, gaps)},
    )
    attempt = judged(run.load, loaded)
    peaks = [resident("VmHWM")]
    document_of_level(run, 1, attempt, [], None)
    peaks.append(resident("VmHWM"))
    with tempfile.TemporaryDirectory() as folder:
        run.commit(Store.open(folder, "memory"), attempt)
    peaks.append(resident("VmHWM"))
    said = ", ".join(
        f"{name} {peak:.0f}"
        for name, peak in zip(("judged", "shown", "stored"), peaks, strict=True)
    )
    took_s = time.monotonic() - began
    print(
        f"{requests:,} requests: {before:.0f} MiB before; peak {said} MiB, without files "
        f"{max(own):.0f}; {took_s:.0f} s"
    )


def watch(own: list[float]) -> None:
    """Note from time to time what memory is needed without pages of files."""
    while True:
        own.append(max(own.pop(), resident("RssAnon")))
        time.sleep(0.005)


def resident(which: str) -> float:
    """MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1_000_000, 4_000_000])
    requests = parser.parse_args().requests
    if len(requests) == 1:
        measure(requests[0])
        return
    for count in requests:
        subprocess.run([sys.executable, __file__, "--requests", str(count)], check=True)


if __name__ == "__main__":
    main()

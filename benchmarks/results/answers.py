"""How long answers from a large results folder take: cold processes, seconds and peak memory of
each.

    python benchmarks/results/make_store.py /tmp/large python benchmarks/results/answers.py
    /tmp/large [--sample 300] [--limit-s 10] [--limit-mb 400] [--resume-limit-s 3]

Prints one JSON document: ``results`` and ``best`` with limits that no file names, resume (the sweep
itself, which looks whether every part is there and finds nothing left to do), and how long reading
the requests would take instead, from a sample of attempts. Exit status 1 when a limit is not held.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from orchestrator.analysis.attempt_summary import read_attempt
from orchestrator.results.root import open_results

SLO = "ttft<=137ms,tpot<=21.3ms,itl_p99<=61ms,attainment>=0.9"
RESUME = """
import gc, sys
gc.set_threshold(100_000, 50, 100)  # as every command does
from orchestrator.results.pandas_hook import leave_pandas_out
leave_pandas_out()
from orchestrator.cluster.local import LocalCluster
from orchestrator.plan.model import Plan
from orchestrator.results.root import open_results
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.sweep import Sweep
results = open_results(sys.argv[1])
for name in results.experiments:
    store = results.store(name)
    counts = Sweep(SweepContext(Plan.from_json(store.plan()), LocalCluster(store), store)).run().counts
    assert counts.skipped and not counts.measured + counts.failed, counts
"""
COMMANDS = {
    "results": ["-m", "orchestrator", "results", "{}"],
    "results_json": ["-m", "orchestrator", "results", "{}", "--format", "json"],
    "best": ["-m", "orchestrator", "best", "{}", "--slo", SLO],
    "best_json": ["-m", "orchestrator", "best", "{}", "--slo", SLO, "--format", "json"],
    "resume": ["-c", RESUME, "{}"],
}


def timed(argv: list[str]) -> dict[str, float]:
    """Seconds, peak memory and bytes printed of a fresh process."""
    began = time.monotonic()
    read, write = os.pipe()
    to_pipe = [(os.POSIX_SPAWN_DUP2, write, 1)]
    pid = os.posix_spawn(sys.executable, [sys.executable, *argv], os.environ, file_actions=to_pipe)
    os.close(write)
    with open(read, "rb") as stream:
        printed = sum(len(block) for block in iter(lambda: stream.read(1 << 20), b""))
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{argv} ended with status {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "printed_bytes": printed,
    }


def from_requests_s(folder: str, sample: int) -> tuple[float, int]:
    """Seconds that a sample of attempts takes from its requests, scaled to all of them; and how
    many there are.
    """
    store = open_results(folder).store(open_results(folder).experiments[0])
    ids = sorted(store.attempts())
    began = time.monotonic()
    for one in ids[:: max(1, len(ids) // sample)][:sample]:
        manifest = store.manifest(*one)
        assert manifest is not None
        attempt = read_attempt(store, manifest)
        assert attempt is not None
        attempt.data()
    return (time.monotonic() - began) / min(sample, len(ids)) * len(ids), len(ids)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--limit-s", type=float, default=10.0)
    parser.add_argument("--limit-mb", type=float, default=400.0)
    parser.add_argument("--resume-limit-s", type=float, default=3.0)
    arguments = parser.parse_args()
    found = {
        name: timed([word if word == RESUME else word.format(arguments.folder) for word in argv])
        for name, argv in COMMANDS.items()
    }
    seconds, attempts = from_requests_s(arguments.folder, arguments.sample)
    ratio = {name: round(seconds / one["seconds"]) for name, one in found.items()}
    late = [
        name
        for name, one in found.items()
        if one["seconds"] > (arguments.resume_limit_s if name == "resume" else arguments.limit_s)
        or one["peak_mb"] > arguments.limit_mb
    ]
    document = {
        "attempts": attempts,
        "from_requests_s": round(seconds),
        "times_faster": ratio,
        "over_limit": late,
    }
    print(json.dumps({**found, **document}, indent=1))
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())

"""How long a window of a large trace takes to read, and how much memory.

    python benchmarks/workloads/trace_window.py --rows 16000000 --folder /var/tmp

A file in the columns of Azure's trace of 2024 is made in the folder (some rows without a fraction
of a second, as there) and removed at the end. The peak is that of a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS_AT_ONCE = 500_000
SECONDS = 7 * 86_400  # of the whole trace, as Azure's week


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--window", nargs=2, default=["48h", "49h"])
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read, options.window)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "azure.csv"
        make(path, options.rows)
        print(f"{options.rows:,} rows, {path.stat().st_size / 2**20:,.0f} MiB")
        command = [sys.executable, __file__, "--read", str(path), "--window", *options.window]
        subprocess.run(command, check=True)


def make(path: Path, rows: int) -> None:
    """Writes a trace of so many rows over SECONDS."""
    rng = np.random.default_rng(1)
    first = np.datetime64("2024-05-10T00:00:00", "us")
    with path.open("w", encoding="ascii") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for begin in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - begin)
            places = begin + np.sort(rng.uniform(0, count, count))
            microseconds = (places / rows * SECONDS * 1e6).astype(np.int64)
            microseconds[::1000] -= microseconds[::1000] % 1_000_000
            times = np.datetime_as_string(first + microseconds.astype("timedelta64[us]"))
            inputs = rng.integers(1, 8000, count)
            outputs = rng.integers(1, 800, count)
            for time_text, prompt, answer in zip(times, inputs, outputs, strict=True):
                text = str(time_text).replace("T", " ").removesuffix(".000000")
                file.write(f"{text}+00:00,{prompt},{answer}\n")


def read(path: str, window: list[str]) -> None:
    """Reads the window, and prints time and peak memory of this process."""
    from orchestrator.workloads.trace import TraceWorkload

    workload = TraceWorkload.model_validate(
        {"name": "w", "kind": "trace", "trace": path, "window": window}
    )
    started = time.perf_counter()
    rows = workload.rows()
    took_s = time.perf_counter() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"window {'-'.join(window)}: {rows.requests:,} of {rows.total:,} rows in {took_s:.1f} s, "
        f"peak {peak_mib:,.0f} MiB"
    )


if __name__ == "__main__":
    main()

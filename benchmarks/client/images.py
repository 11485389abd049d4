"""What pictures cost the client: requests of chats whose bodies are small, 0.1 MB and 1 MB.

    python benchmarks/client/images.py                    # 20 requests/s for 20 s each
    python benchmarks/client/images.py --rate 50

Against ``mock_server``, which reads each body whole and answers 16 tokens. A picture of 1280x720
coloured blocks has about 100 kB as a data URL.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import build, server

PICTURES = (0, 1, 10)
SIZE = "1280x720"
COLUMNS = (
    "pictures",
    "body",
    "requests/s",
    "CPU of the loop",
    "send lag p50",
    "p99",
    "loop lag p99",
)


def measured(pictures: int, rate: float, seconds: int, port: int) -> list[str]:
    """One run as a row of the table. Raises SystemExit when it failed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server(port, ["--ttft-ms", "20", "--itl-ms", "5"], Path(folder)),
    ):
        command = [
            *(sys.executable, "-m", "orchestrator", "load", f"http://127.0.0.1:{port}"),
            *("--model", "mock", "--api", "chat", "--rate", f"{rate:g}", "--arrivals", "constant"),
            *("--duration", f"{seconds}s", "--warmup", "2s", "--input-tokens", "50"),
            *("--output-tokens", "16", "--seed", "7", "--format", "json"),
            *("--results", f"{folder}/results"),
        ]
        if pictures:
            command += ["--images", f"{pictures}@{SIZE}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):
            raise SystemExit(f"{pictures} pictures: exit status {done.returncode}: {done.stderr}")
        level: dict[str, Any] = json.loads(done.stdout)
        (stats,) = level["clients_stats"]
        body_bytes = _mean_body(Path(folder) / "results")
    return [
        str(pictures),
        f"{body_bytes / 1e3:,.1f} kB",
        f"{level['request_throughput']:.1f}",
        f"{stats['cpu_share']:.1%}",
        f"{stats['send_lag_p50_ms']:.2f} ms",
        f"{stats['send_lag_p99_ms']:.2f} ms",
        f"{stats['loop_lag_p99_ms']:.2f} ms",
    ]


def _mean_body(results: Path) -> float:
    import pyarrow.dataset as ds

    files = [str(path) for path in results.glob("*/data/requests/**/*.parquet")]
    column = ds.dataset(files).to_table(["body_bytes"])["body_bytes"]
    return float(sum(column.to_pylist()) / len(column))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--port", type=int, default=8391)
    given = parser.parse_args()
    build()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for pictures in PICTURES:
        row = measured(pictures, given.rate, given.seconds, given.port)
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()

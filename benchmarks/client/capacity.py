"""How many events a second mock_server carries on schedule here, beside what a bare loop of send()
reaches.

    python benchmarks/client/capacity.py [--streams 16 64 2048] [--rate 200000]

Server on core 0, the C client on core 1, about 10 s a line. Each event is a write of its own, so
the kernel's loopback is the ceiling: it falls with the number of connections, whose kernel state no
cache holds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from measure import CLIENT_CORE, HERE, build, read_truth, server

SECONDS = 6.0
PORT = 18000


def ceiling(streams: int) -> float:
    """Writes per second of the bare loop, to as many connections."""
    done = subprocess.run(
        [str(HERE / "build/loopback_ceiling"), str(streams)], capture_output=True, check=True
    )
    return float(json.loads(done.stdout)["sends_per_s"])


def carried(streams: int, rate: float) -> tuple[float, dict, int]:
    """Events per second, the server's lateness (ms) and the client's failures when ``rate`` are due
    each second.

    First tokens are spread over a second: requests are not what this is about.
    """
    itl_ms, tokens = 1e3 * streams / rate, round(SECONDS * rate / streams)
    flags = ["--ttft-ms", "500", "--spread-ms", "1000", "--itl-ms", f"{itl_ms:.6f}"]
    client = [
        "taskset",
        "-c",
        str(CLIENT_CORE),
        str(HERE / "build/epoll_client"),
        "--port",
        str(PORT),
        "--awake",
        "1",
    ]
    client += ["--streams", str(streams), "--requests", str(streams), "--tokens", str(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        with server(PORT, flags, Path(folder)):
            done = subprocess.run(client, capture_output=True)
        truth = read_truth(Path(folder))
    span_s = float((truth.last - truth.first).mean()) / 1e9
    return streams * (tokens - 1) / span_s, truth.stats["lateness_ms"], done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", nargs="+", type=int, default=[16, 64, 512, 2048])
    parser.add_argument("--rate", type=float, default=205_000)
    args = parser.parse_args()
    build()
    print(
        "| streams | bare send loop, /s | events due, /s | carried, /s | lateness p50, ms | p99, "
        "ms |"
    )
    print("|---|---|---|---|---|---|")
    for streams in args.streams:
        bare = ceiling(streams)
        events, late, failed = carried(streams, args.rate)
        note = " (the client failed)" if failed else ""
        row = [f"{streams:,}", f"{bare:,.0f}", f"{args.rate:,.0f}", f"{events:,.0f}{note}"]
        print(
            "| " + " | ".join([*row, f"{late['p50']:.3f}", f"{late['p99']:.3f}"]) + " |", flush=True
        )


if __name__ == "__main__":
    main()

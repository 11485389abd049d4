"""How much memory ``load`` needs, client and figures in one process, for more and more one-token
requests.

    python benchmarks/client/memory.py                              # this checkout
    python benchmarks/client/memory.py --other ../at-another-commit # in turn with another one

Against ``mock_server``, 64 in flight, seed and prompts the same each time; peak RSS as the kernel
counted it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import HERE, build, server

SIZES = [
    "--input-tokens",
    "8",
    "--output-tokens",
    "1",
    "--concurrency",
    "64",
    "--seed",
    "7",
    "--model",
    "mock",
]


def peak_mib(checkout: Path, requests: int, port: int) -> float:
    """Of one run, MiB. Raises SystemExit when it failed."""
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "load",
        url,
        *SIZES,
        "--requests",
        str(requests),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        server(port, ["--ttft-ms", "5", "--itl-ms", "5"], Path(folder)),
    ):
        results = ["--results", f"{folder}/results"]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        process = subprocess.Popen(
            [*command, *results], env=environment, cwd=folder, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{checkout}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[20_000, 100_000, 200_000])
    parser.add_argument("--other", type=Path, help="another checkout, run in turn with this one")
    parser.add_argument("--port", type=int, default=18100)
    args = parser.parse_args()
    build()
    checkouts = [HERE.parents[1], *([args.other.resolve()] if args.other else [])]
    found: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    for requests in args.requests:
        for checkout, peaks in found.items():
            peaks.append(peak_mib(checkout, requests, args.port))
            print(f"{checkout}: {requests:,} requests, peak {peaks[-1]:.0f} MiB", flush=True)
    for checkout, peaks in found.items():
        more = (peaks[-1] - peaks[0]) * 2**20 / max(args.requests[-1] - args.requests[0], 1)
        print(f"{checkout}: {more:.0f} bytes for each request more")


if __name__ == "__main__":
    main()

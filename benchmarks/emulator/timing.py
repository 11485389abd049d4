"""The emulator's two promises, measured: requests simulated per second, and how well HTTP keeps the
stated timing.

    python benchmarks/emulator/timing.py                     # both, about 100 s; wants two cores that do nothing else
    python benchmarks/emulator/timing.py --format json

HTTP: the server on one core, a client that only takes timestamps on another, 20,000 tokens/s over
32 to 256 streams, every step of the same length. Two errors, of every token from the first request
on, restarts of all streams included:

server    from the instant the model states for the token until the kernel has its bytes (``Lag``)
client    of the gap between two tokens of a stream as a client sees it: both ends, and the client's own lateness

The model states for the i-th of n tokens of a step: the step's end + (i - (n - 1) / 2) *
``token_interval_s`` (15 µs). What no program can do better on this machine is measured beside it:
``machine``, the share of instants at which a process on the server's core that does nothing but
look at the clock is away for at least another millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from orchestrator.emulator.profile import load_profile
from orchestrator.predict.simulate import Trace, simulate
from orchestrator.spec.settings import EngineSettings

REQUESTS = 50_000
TOKENS_PER_S = 20_000
STREAMS = (32, 64, 128, 256)


def simulation(rate: float, input_tokens: int, output_tokens: int) -> dict[str, float]:
    """Requests simulated per second of CPU, on one H100 with Llama-3.1-8B; best of three."""
    rng = np.random.default_rng(0)
    load = Trace(
        np.cumsum(rng.exponential(1 / rate, REQUESTS)),
        rng.lognormal(np.log(input_tokens), 0.5, REQUESTS).astype(np.int64) + 1,
        rng.lognormal(np.log(output_tokens), 0.5, REQUESTS).astype(np.int64) + 1,
    )
    profile, settings = (
        load_profile("H100-80GB/Llama-3.1-8B"),
        EngineSettings(engine="emulator", model="any"),
    )
    times_s = []
    for _ in range(3):
        started_s = time.process_time()
        simulate(profile, settings, load)
        times_s.append(time.process_time() - started_s)
    per_s = REQUESTS / min(times_s)
    return {
        "rate": rate,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "requests_per_s": round(per_s),
    }


def machine(seconds: float) -> dict[str, float]:
    """Share of instants at which a busy loop on the server's core was away for another millisecond,
    and the longest.
    """
    pin(0)
    away_s, longest_s, last_s = 0.0, 0.0, time.monotonic()
    end_s = last_s + seconds
    while last_s < end_s:
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - last_s)
        away_s += max(0.0, now_s - last_s - 1e-3)
        last_s = now_s
    pin(1)
    return {
        "late_by_1ms_percent": round(100 * away_s / seconds, 3),
        "longest_ms": round(longest_s * 1e3, 3),
    }


class Client(asyncio.BufferedProtocol):
    """One stream after the other on one connection; keeps the time of every read that held a token."""

    def __init__(self, request: bytes, gaps_ns: list[int]) -> None:
        self._request, self._gaps_ns = request, gaps_ns
        self._buffer = bytearray(65536)
        self._last_ns = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now_ns, data = time.monotonic_ns(), self._buffer[:nbytes]
        if self._last_ns:
            self._gaps_ns.append(now_ns - self._last_ns)
        self._last_ns = now_ns
        if data.endswith(b"0\r\n\r\n"):
            self._last_ns = 0
            self._transport.write(self._request)


async def load(port: int, streams: int, seconds: float) -> list[int]:
    body = b'{"model":"m","prompt":[1,2,3,4],"max_tokens":400,"stream":true,"ignore_eos":true}'
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    gaps_ns: list[int] = []
    loop = asyncio.get_running_loop()
    clients = [
        await loop.create_connection(lambda: Client(request, gaps_ns), "127.0.0.1", port)
        for _ in range(streams)
    ]
    await asyncio.sleep(seconds)
    for transport, _ in clients:
        transport.abort()
    return gaps_ns


def http(streams: int, seconds: float) -> dict[str, float]:
    """Timing error with so many streams at TOKENS_PER_S together."""
    step_s = streams / TOKENS_PER_S
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), port, step_s)
        try:
            gaps_ns = uvloop.run(load(port, streams, seconds))
            sent = tokens(port)
        finally:
            server.terminate()
            output = server.communicate()[0]
    return report(streams, step_s, gaps_ns, output, sent / seconds)


def start(folder: Path, port: int, step_s: float) -> subprocess.Popen[str]:
    # all but the overhead takes no time
    ideal = {"memory_gb": 80, "bandwidth_gb_s": 1e9, "tflops": {"bfloat16": 1e9}}
    nothing = (
        "sequence_overhead_s",
        "layer_overhead_s",
        "prefill_layer_overhead_s",
        "request_overhead_s",
        "jitter",
    )
    constants = {"step_overhead_s": step_s, **dict.fromkeys(nothing, 0)}
    (folder / "profile.json").write_text(json.dumps({"accelerator": ideal, "constants": constants}))
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        "emulator",
        "--port",
        str(port),
        "--served-model-name",
        "m",
    ]
    argv += ["--profile", str(folder / "profile.json")]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(0))
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the emulator did not start")


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})


def tokens(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found = re.search(
            r"^vllm:generation_tokens_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE
        )
    assert found
    return float(found[1])


def report(
    streams: int, step_s: float, gaps_ns: list[int], output: str, rate: float
) -> dict[str, float]:
    error = re.search(r"tokens, mean (\S+) ms, median (\S+) ms, p99 (\S+) ms, max (\S+) ms", output)
    assert error, output[-500:]
    gaps_ms = np.abs(np.array(gaps_ns) / 1e6 - step_s * 1e3)
    return {
        "streams": streams,
        "tokens_per_s": round(rate),
        "server_mean_ms": float(error[1]),
        "server_p50_ms": float(error[2]),
        "server_p99_ms": float(error[3]),
        "server_max_ms": float(error[4]),
        "client_p50_ms": round(float(np.quantile(gaps_ms, 0.5)), 3),
        "client_p99_ms": round(float(np.quantile(gaps_ms, 0.99)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each HTTP measurement")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each HTTP measurement, all streams in turn"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    pin(1)
    shapes = ((8, 1500, 300), (20, 500, 200), (50, 500, 200))
    results: dict[str, list[dict[str, float]]] = {
        "simulation": [simulation(*shape) for shape in shapes], "machine": [], "http": [],
    }  # fmt: skip
    for _ in range(arguments.repeats):
        results["machine"].append(machine(2.0))
        results["http"] += [http(streams, arguments.seconds) for streams in STREAMS]
    results["http"].sort(key=lambda row: row["streams"])
    if arguments.format == "json":
        print(json.dumps(results, indent=1))
        return
    for name, rows in results.items():
        print(f"\n{name}\n" + "  ".join(rows[0]))
        for row in rows:
            print("  ".join(f"{value:>{len(key)}}" for key, value in row.items()))


if __name__ == "__main__":
    main()

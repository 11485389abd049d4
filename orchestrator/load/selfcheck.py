"""What this machine's client can do and how exact it is, measured against a local server of known timing.

The server runs in a process of its own, on a core of its own where there are two. Its own lateness is measured by
itself and taken out of the client's error.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator import __version__
from orchestrator.load.known_server import serve
from orchestrator.load.local import LocalResult, run_local
from orchestrator.load.point import ClientStats, LoadPoint, Progress, Target
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level, Workload

if TYPE_CHECKING:
    import pyarrow as pa

STREAMS = 256  # per client
EXACT_RATE = 5_000.0  # events/s at which exactness is measured: far from any limit
RATES = (12_500.0, 25_000.0, 50_000.0, 100_000.0, 200_000.0)  # events/s per client, tried one after another
QUICK_RATES = (50_000.0, 25_000.0, 12_500.0)  # the same where there is a limit of time: the first sustained is enough
PACE = 500.0  # requests/s per client of the open loop
TTFT_MS = 100.0
LEVEL_S = 2.0  # of streaming at each rate
QUICK_LEVEL_S = 0.2  # the same where there is a limit of time
MAX_TTFT_ERROR_MS = 2.0
MIN_ACHIEVED = 0.97
MAX_SERVER_LATE_MS = 2.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One load: what was asked, what the client saw, what the server did."""

    events_per_s: float
    achieved_per_s: float
    ttft_error_ms: float
    ttft_error_p99_ms: float
    itl_error_ms: float
    itl_error_p99_ms: float
    loop_lag_p99_ms: float
    send_lag_p99_ms: float
    cpu_us_per_event: float
    cpu_share: float  # of the busiest client's core
    coalesced_share: float
    server_late_p99_ms: float
    failed: int

    @property
    def sustained(self) -> bool:
        """The client kept up and stayed exact."""
        exact = abs(self.ttft_error_ms) <= MAX_TTFT_ERROR_MS and self.failed == 0
        return exact and self.achieved_per_s >= MIN_ACHIEVED * self.events_per_s

    @property
    def servers_fault(self) -> bool:
        """The server was late by itself: this says nothing about the client."""
        return self.server_late_p99_ms > MAX_SERVER_LATE_MS


def selfcheck(clients: int = 1, limit_s: float | None = None) -> dict[str, Any]:
    """Takes about 20 s. Rates are of all clients together; see docs/metrics.md for the definitions of the errors.

    ``limited_by``: what ended the search for the highest rate: client | server | nothing | time.
    ``limit_s``: streams are shorter, the rates are three, and none is begun after it.
    """
    began = time.monotonic()
    level_s = LEVEL_S if limit_s is None else QUICK_LEVEL_S
    with _server(clients) as (port, pipe):
        exact = _stream(port, pipe, clients, EXACT_RATE * clients, level_s)
        paced = _pace(port, pipe, clients, level_s)
        if limit_s is None:
            best, limited_by = _highest(port, pipe, clients)
        else:
            best, limited_by = _quick(port, pipe, clients, began + limit_s)
    found = best or exact
    return {
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "client_version": __version__,
        "clients": clients,
        "events_per_s": found.events_per_s if found.sustained else 0.0,
        "limited_by": limited_by,
        "cpu_us_per_event": found.cpu_us_per_event,
        "cpu_share": found.cpu_share,
        "loop_lag_p99_ms": found.loop_lag_p99_ms,
        "ttft_error_ms": {"mean": exact.ttft_error_ms, "p99": exact.ttft_error_p99_ms},
        "itl_error_ms": {"mean": exact.itl_error_ms, "p99": exact.itl_error_p99_ms},
        "ttft_error_ms_at_limit": {"mean": found.ttft_error_ms, "p99": found.ttft_error_p99_ms},
        "send_lag_p99_ms": paced.send_lag_p99_ms,
        "open_loop_requests_per_s": PACE * clients,
        "took_s": time.monotonic() - began,
    }


def _highest(port: int, pipe: Connection, clients: int) -> tuple[Trial | None, str]:
    """The highest rate that was sustained, and what ended the search."""
    best: Trial | None = None
    for rate in RATES:
        trial = _stream(port, pipe, clients, rate * clients, LEVEL_S)
        if not trial.sustained:
            return best, "server" if trial.servers_fault else "client"
        best = trial
    return best, "nothing"


def _quick(port: int, pipe: Connection, clients: int, end_s: float) -> tuple[Trial | None, str]:
    """The first rate from above that was sustained, and why no higher one was. ``end_s``: of ``time.monotonic``."""
    limited_by = "time"
    for rate in QUICK_RATES:
        if time.monotonic() > end_s:
            return None, limited_by
        trial = _stream(port, pipe, clients, rate * clients, QUICK_LEVEL_S)
        if trial.sustained:
            return trial, limited_by
        limited_by = "server" if trial.servers_fault else "client"
    return None, limited_by


def _stream(port: int, pipe: Connection, clients: int, rate: float, level_s: float) -> Trial:
    """``STREAMS`` answers per client at once, so many events per second in all."""
    streams = STREAMS * clients
    itl_ms = 1000.0 * streams / rate
    tokens = max(8, round(level_s * 1000.0 / itl_ms))
    level = Level(control="concurrency", value=streams)
    return _trial(port, pipe, clients, level, rate, tokens, itl_ms, requests=streams, duration_s=None)


def _pace(port: int, pipe: Connection, clients: int, level_s: float) -> Trial:
    """Many short requests at Poisson instants."""
    level = Level(control="request_rate", value=PACE * clients)
    return _trial(port, pipe, clients, level, PACE * clients, 1, 1.0, requests=None, duration_s=level_s)


def _trial(
    port: int, pipe: Connection, clients: int, level: Level, rate: float, tokens: int, itl_ms: float, **length: Any
) -> Trial:
    timing = {"ttft_ms": TTFT_MS, "itl_ms": itl_ms}
    point = LoadPoint(
        targets=(Target(f"http://127.0.0.1:{port}", "known"),),
        dialect=Dialect("openai_completions", "/v1/completions", True, return_token_ids=True, extra_body=timing),
        workload=Workload(name="known", input_tokens=Lengths(fixed=1), output_tokens=Lengths(fixed=tokens)),
        level=level,
        arrivals=Arrivals(),
        **length,
    )
    _ask(pipe)
    result = run_local(point, clients, None if clients == 1 else _ignore)
    return _compare(result, _ask(pipe), rate, itl_ms)


def _compare(result: LocalResult, server: dict[str, float], rate: float, itl_ms: float) -> Trial:
    requests, token_events, stats, _ = result
    ttft_ms = (_column(requests, "first_token_ns") - _column(requests, "sent_ns")) / 1e6
    first, last = _column(requests, "first_token_ns"), _column(requests, "last_token_ns")
    gaps_ms = token_events["gaps_us"].combine_chunks().flatten().to_numpy() / 1e3
    tokens = float(np.nansum(_column(requests, "output_tokens")))
    # streams start one after another: the rate is that of the middle, where all of them run
    spacing_ms = float(np.nanmean(last - first)) / 1e6 / max(tokens / len(requests) - 1, 1)
    failed = sum(status != "ok" for status in requests["status"].to_pylist())
    return Trial(
        events_per_s=rate,
        achieved_per_s=rate * min(1.0, itl_ms / spacing_ms) if spacing_ms else rate,
        ttft_error_ms=float(np.nanmean(ttft_ms)) - server["ttft_mean_ms"],
        ttft_error_p99_ms=float(np.nanquantile(ttft_ms, 0.99)) - server["ttft_p99_ms"],
        itl_error_ms=float(gaps_ms.mean()) - server["itl_mean_ms"] if len(gaps_ms) else 0.0,
        itl_error_p99_ms=float(np.quantile(gaps_ms, 0.99)) - server["itl_p99_ms"] if len(gaps_ms) else 0.0,
        loop_lag_p99_ms=max(one.loop_lag_p99_ms for one in stats),
        send_lag_p99_ms=max(one.send_lag_p99_ms for one in stats),
        cpu_us_per_event=1e6 * sum(one.cpu_s for one in stats) / max(tokens, 1.0),
        cpu_share=_busiest(stats),
        coalesced_share=sum(one.coalesced_reads for one in stats) / max(1, sum(one.reads for one in stats)),
        server_late_p99_ms=server["late_p99_ms"],
        failed=failed,
    )


def _busiest(stats: Sequence[ClientStats]) -> float:
    return max(one.cpu_s / max(one.wall_s, 1e-9) for one in stats)


def _column(requests: pa.Table, name: str) -> Any:
    return requests[name].to_numpy().astype(np.float64)


def _ignore(progress: Progress) -> None:
    return


def _ask(pipe: Connection) -> dict[str, float]:
    pipe.send("stats")
    found: dict[str, float] = pipe.recv()
    return found


@contextmanager
def _server(clients: int) -> Iterator[tuple[int, Connection]]:
    """The server's port and pipe; this process (and its clients) keep off its core, where there is another."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    core = max(before) if len(before) > 1 else None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, core), daemon=True)
    process.start()
    theirs.close()
    try:
        if core is not None:
            os.sched_setaffinity(0, before - {core})
        import pyarrow  # noqa: F401  while the server starts, and not in the first stream

        yield ours.recv(), ours
    finally:
        if core is not None:
            os.sched_setaffinity(0, before)
        ours.close()  # the server ends when its pipe does
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

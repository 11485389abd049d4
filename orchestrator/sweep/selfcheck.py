"""Measures how much load this machine's client can send, and how exact it is, against a local
server of known timing.

The server runs in a process of its own, on a core of its own if there are two. It measures its own
lateness, which is subtracted from the client's error.
"""

import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from orchestrator import __version__
from orchestrator.analysis.metrics import figures, observe, steady_window_ns
from orchestrator.load.known_server import serve
from orchestrator.load.point import LoadPoint, Target
from orchestrator.results.records import Distribution
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths, Level
from orchestrator.sweep.endpoint import measure_here
from orchestrator.sweep.measure import Attempt
from orchestrator.workloads.drawn import RandomWorkload

STREAMS = 256  # per client
EXACT_RATE = 5_000.0  # events/s per client at which exactness is measured, far below any limit
# events/s per client, tried one after another
RATES = (12_500.0, 25_000.0, 50_000.0, 100_000.0, 200_000.0)
PACE = 500.0  # requests/s per client in the open loop
TTFT_MS = 100.0
LEVEL_S = 2.0  # streaming time at each rate
MAX_TTFT_ERROR_MS = 2.0
MIN_ACHIEVED = 0.97
MAX_SERVER_LATE_MS = 2.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One load: what was asked for, what the client saw, and how late the server was. Errors:
    ``mean`` and ``p99``.
    """

    events_per_s: float
    achieved_per_s: float
    ttft_error_ms: dict[str, float]
    itl_error_ms: dict[str, float]
    cpu_us_per_event: float
    server_late_p99_ms: float
    evidence: dict[str, float]  # of its verdict (load/validity.py)

    @property
    def sustained(self) -> bool:
        """Whether the client kept up and stayed exact."""
        exact = (
            abs(self.ttft_error_ms["mean"]) <= MAX_TTFT_ERROR_MS
            and self.evidence["ok_share"] == 1.0
        )
        return exact and self.achieved_per_s >= MIN_ACHIEVED * self.events_per_s

    @property
    def servers_fault(self) -> bool:
        """Whether the server itself was late, so that this says nothing about the client."""
        return self.server_late_p99_ms > MAX_SERVER_LATE_MS


def selfcheck(clients: int = 1) -> dict[str, Any]:
    """Run all checks, in about 20 s. Rates are for all clients together; docs/metrics.md defines
    the errors.

    ``limited_by``: what ended the search for the highest rate: client | server | nothing.
    """
    began = time.monotonic()
    with _server() as (port, pipe):
        bench = Bench(port, pipe, clients)
        exact, paced = bench.stream(EXACT_RATE * clients), bench.pace()
        found, limited_by = bench.highest(exact)
    return {
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "client_version": __version__,
        "clients": clients,
        "events_per_s": found.events_per_s if found.sustained else 0.0,
        "limited_by": limited_by,
        "cpu_us_per_event": found.cpu_us_per_event,
        "cpu_share": found.evidence["client_cpu_share"],
        "loop_lag_p99_ms": found.evidence["loop_lag_p99_ms"],
        "ttft_error_ms": exact.ttft_error_ms,
        "itl_error_ms": exact.itl_error_ms,
        "ttft_error_ms_at_limit": found.ttft_error_ms,
        "send_lag_p99_ms": paced.evidence["send_lag_p99_ms"],
        "open_loop_requests_per_s": PACE * clients,
        "took_s": time.monotonic() - began,
    }


@dataclass(frozen=True, slots=True)
class Bench:
    """Some clients and a running server. ``pipe``: returns the server's statistics since the last
    request for them.
    """

    port: int
    pipe: Connection
    clients: int

    def highest(self, best: Trial) -> tuple[Trial, str]:
        """The trial at the highest sustained rate, ``best`` if none was sustained, and what ended
        the search.
        """
        for rate in RATES:
            trial = self.stream(rate * self.clients)
            if not trial.sustained:
                return best, "server" if trial.servers_fault else "client"
            best = trial
        return best, "nothing"

    def stream(self, rate: float) -> Trial:
        """STREAMS concurrent responses per client, with ``rate`` events per second in all."""
        streams = STREAMS * self.clients
        itl_ms = 1000.0 * streams / rate
        tokens = max(8, round(LEVEL_S * 1000.0 / itl_ms))
        level = Level(control="concurrency", value=streams)
        return self._measure(rate, tokens, itl_ms, level=level, requests=streams, duration_s=None)

    def pace(self) -> Trial:
        """Many short requests with Poisson arrivals."""
        rate = PACE * self.clients
        return self._measure(
            rate, 1, 1.0, level=Level(control="request_rate", value=rate), duration_s=LEVEL_S
        )

    def _measure(self, rate: float, tokens: int, itl_ms: float, **load: Any) -> Trial:
        timing = {"ttft_ms": TTFT_MS, "itl_ms": itl_ms}
        point = LoadPoint(
            targets=(Target(f"http://127.0.0.1:{self.port}", "known"),),
            dialect=Dialect(
                "openai_completions",
                "/v1/completions",
                True,
                return_token_ids=True,
                extra_body=timing,
            ),
            workload=RandomWorkload(
                name="known", input_tokens=Lengths(fixed=1), output_tokens=Lengths(fixed=tokens)
            ),
            **load,
        )
        self._did()
        return _compare(point, measure_here(point, self.clients), self._did(), rate)

    def _did(self) -> dict[str, float]:
        self.pipe.send("stats")
        found: dict[str, float] = self.pipe.recv()
        return found


def _compare(point: LoadPoint, attempt: Attempt, server: dict[str, float], rate: float) -> Trial:
    loaded = attempt.loaded
    assert loaded
    window_ns = steady_window_ns(point.warmup_s, point.duration_s, loaded.requests)
    seen = figures(observe(loaded.requests, loaded.token_events, window_ns))
    tokens = sum(filter(None, loaded.requests["output_tokens"].to_pylist()))
    # streams start one after another, so TPOT, not the total time, tells the rate while all of them
    # run
    slower = seen.tpot_ms.mean / point.dialect.extra_body["itl_ms"] if seen.tpot_ms else 1.0
    return Trial(
        events_per_s=rate,
        achieved_per_s=rate / max(1.0, slower),
        ttft_error_ms=_errors(seen.ttft_from_sent_ms, server, "ttft"),
        itl_error_ms=_errors(seen.itl_ms, server, "itl"),
        cpu_us_per_event=1e6 * sum(one.cpu_s for one in loaded.stats) / max(tokens, 1),
        server_late_p99_ms=server["late_p99_ms"],
        evidence=attempt.verdict.evidence,
    )


def _errors(seen: Distribution | None, server: dict[str, float], name: str) -> dict[str, float]:
    """What the client saw minus what the server did; 0 if the client saw nothing."""
    return {
        which: getattr(seen, which) - server[f"{name}_{which}_ms"] if seen else 0.0
        for which in ("mean", "p99")
    }


@contextmanager
def _server() -> Iterator[tuple[int, Connection]]:
    """The server's port and pipe; this process and its clients keep off its core, if there is
    another one.
    """
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
        import pyarrow  # noqa: F401  now, while the server starts, not during the first stream

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

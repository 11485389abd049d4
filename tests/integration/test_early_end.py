"""Probes against a server with a known capacity: 8 slots, each for one request at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.workloads.random import RandomWorkload
from orchestrator.runner.endpoint import measure_here
from orchestrator.runner.measure import Attempt
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Control, Lengths, Level, Slo
from tests.integration.load_server import END, HEAD, Behaviour, Request, chunk, serving, stream

SLOTS, LENGTH_S = 8, 30.0
SLO = Slo(name="fast", ttft=0.5, attainment=0.9)


def slots(service_s: float) -> Behaviour:
    free = asyncio.Semaphore(SLOTS)

    async def answer(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with free:
            await asyncio.sleep(service_s)
            writer.write(HEAD + b"".join(map(chunk, stream(request))) + END)
            await writer.drain()

    return answer


def probe(
    value: float, service_s: float, control: Control = "request_rate", slos: tuple[Slo, ...] = (SLO,), **given: Any
) -> Attempt:
    with serving(slots(service_s)) as server:
        point = LoadPoint(
            targets=(Target(f"http://127.0.0.1:{server.port}", "m1"),),
            dialect=Dialect("openai_completions", "/v1/completions", True),
            workload=RandomWorkload(name="w", input_tokens=Lengths(fixed=1), output_tokens=Lengths(fixed=2)),
            level=Level(control=control, value=value),
            warmup_s=None,
            **{"duration_s": LENGTH_S} | given,
        )
        return measure_here(point, probed=slos)


def test_a_hopeless_probe_ends_within_seconds_and_leaves_every_request_as_a_row() -> None:
    attempt = probe(60, 0.4)
    loaded = attempt.loaded
    assert loaded is not None and loaded.early is not None
    assert (attempt.failure, loaded.early.outcome) == (None, "fails")
    assert loaded.early.at_s < LENGTH_S / 3
    assert attempt.verdict.reasons[0] == loaded.early.says
    due_s = loaded.requests["scheduled_ns"].to_numpy() / 1e9
    assert due_s.max() < loaded.early.at_s + 0.5, "clients of a busy machine hear of it late"
    assert len(due_s) == pytest.approx(60 * loaded.early.at_s, rel=0.3), "all that were due, and none that were not"
    assert set(loaded.requests["status"].to_pylist()) <= {"ok", "aborted"}


def test_a_probe_that_holds_waits_for_what_is_open() -> None:
    attempt = probe(60, 0.04)
    loaded = attempt.loaded
    assert loaded is not None and loaded.early is not None
    assert loaded.early.outcome == "holds"
    assert set(loaded.requests["status"].to_pylist()) == {"ok"}
    assert loaded.lasted_s(None, LENGTH_S) == pytest.approx(loaded.early.at_s, abs=0.01)


def test_of_two_limits_of_which_one_holds_nothing_is_aborted() -> None:
    loaded = probe(4, 0.04, "concurrency", (SLO, Slo(name="never", ttft=0.01))).loaded
    assert loaded is not None and loaded.early is not None
    assert loaded.early.outcome == "mixed"
    assert "fast holds, never fails" in loaded.early.says
    assert set(loaded.requests["status"].to_pylist()) == {"ok"}


def test_what_holds_only_because_less_is_sent_than_is_due_never_holds() -> None:
    late = Slo(name="late", e2e=100.0)
    loaded = probe(200, 0.1, slos=(late,), max_in_flight=SLOTS, duration_s=4.0).loaded
    assert loaded is not None
    assert loaded.early is None or loaded.early.outcome == "fails"

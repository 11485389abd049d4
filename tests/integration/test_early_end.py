"""Probes against a server with a known capacity: 8 slots, each for one request at a time."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, Target
from orchestrator.plan.make import make_plan
from orchestrator.results.store import Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Control, Lengths, Level, Slo
from orchestrator.sweep import find_capacity
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.endpoint import measure_here
from orchestrator.workloads.drawn import RandomWorkload
from tests.harness import AGAINST_THE_CLOCK
from tests.integration.load_server import (
    END,
    EVENT_S,
    HEAD,
    Behaviour,
    Request,
    chunk,
    serving,
    stream,
    usage,
)

pytestmark = AGAINST_THE_CLOCK

SLOTS, LENGTH_S = 8, 30.0
SLO = Slo(name="fast", ttft=0.5, attainment=0.9)


def slots(service_s: float) -> Behaviour:
    free = asyncio.Semaphore(SLOTS)

    async def answer(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not request.body:  # what else the server can do: nothing
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        async with free:
            await asyncio.sleep(service_s)
            writer.write(HEAD + b"".join(map(chunk, stream(request))) + END)
            await writer.drain()

    return answer


def probe(
    value: float,
    service_s: float,
    control: Control = "request_rate",
    slos: tuple[Slo, ...] = (SLO,),
    over: Callable[[], bool] = lambda: False,
    **given: Any,
) -> Attempt:
    with serving(slots(service_s)) as server:
        point = LoadPoint(
            targets=(Target(f"http://127.0.0.1:{server.port}", "m1"),),
            dialect=Dialect("openai_completions", "/v1/completions", True),
            workload=RandomWorkload(
                name="w", input_tokens=Lengths(fixed=1), output_tokens=Lengths(fixed=2)
            ),
            level=Level(control=control, value=value),
            warmup_s=None,
            **{"duration_s": LENGTH_S} | given,
        )
        return measure_here(point, watch=ProbeWatch(slos, over=over))


def test_a_hopeless_probe_ends_within_seconds_and_leaves_every_request_as_a_row() -> None:
    attempt = probe(60, 0.4)
    loaded = attempt.loaded
    assert loaded is not None and loaded.early is not None
    assert attempt.failure is None
    assert loaded.early.outcome == "fails"
    assert loaded.early.at_s < LENGTH_S / 3
    assert attempt.verdict.reasons[0] == loaded.early.sentence
    due_s = loaded.requests["scheduled_ns"].to_numpy() / 1e9
    assert due_s.max() < loaded.early.at_s + 0.5, "clients of a busy machine hear of it late"
    assert len(due_s) == pytest.approx(60 * loaded.early.at_s, rel=0.3), (
        "all that were due, and none that were not"
    )
    assert set(loaded.requests["status"].to_pylist()) <= {"ok", "aborted"}


def test_a_probe_that_holds_waits_for_what_is_open() -> None:
    attempt = probe(60, 0.04)
    loaded = attempt.loaded
    assert loaded is not None and loaded.early is not None
    assert loaded.early.outcome == "holds"
    assert set(loaded.requests["status"].to_pylist()) == {"ok"}
    assert loaded.lasted_s(None, LENGTH_S) == pytest.approx(loaded.early.at_s, abs=0.01)


def test_a_probe_whose_search_is_over_counts_as_far_as_it_came() -> None:
    began_s = time.monotonic()
    attempt = probe(15, 0.4, over=lambda: time.monotonic() > began_s + 6.0)
    loaded = attempt.loaded
    assert loaded is not None and loaded.early is not None
    assert loaded.early.outcome == "undecided"
    assert not loaded.interrupted
    assert attempt.failure is None
    assert loaded.early.at_s < LENGTH_S / 2
    assert set(loaded.requests["status"].to_pylist()) == {"ok"}, "what was open is waited for"


def test_of_two_limits_of_which_one_holds_nothing_is_aborted() -> None:
    loaded = probe(4, 0.04, "concurrency", (SLO, Slo(name="never", ttft=0.01))).loaded
    assert loaded is not None and loaded.early is not None
    assert loaded.early.outcome == "mixed"
    assert "fast holds, never fails" in loaded.early.sentence
    assert set(loaded.requests["status"].to_pylist()) == {"ok"}


def test_what_holds_only_because_less_is_sent_than_is_due_never_holds() -> None:
    late = Slo(name="late", e2e=100.0)
    loaded = probe(200, 0.1, slos=(late,), max_in_flight=SLOTS, duration_s=4.0).loaded
    assert loaded is not None
    assert loaded.early is None or loaded.early.outcome == "fails"


def test_a_search_that_the_user_ends_keeps_a_probe_with_requests_that_never_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such requests are left out. The probe's rows are stored, and show neither that its level
    holds nor a share.
    """
    answer, sent = slots(0.04), itertools.count()

    async def answer_most(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.body and next(sent) % 12 == 5:
            await asyncio.sleep(3600)
        await answer(request, reader, writer)

    monkeypatch.setattr(find_capacity, "GRACE_S", 0.5)
    with serving(answer_most) as server:
        url = f"http://127.0.0.1:{server.port}"
        experiment = {
            "version": 1, "name": "x", "model": "m1", "deployments": {"engine": "endpoint", "url": url},
            "workloads": [{"name": "w", "input_tokens": 1, "output_tokens": 2}],
            "load": {"search": "capacity", "control": "request_rate", "duration": "30s"},
            "slos": {"fast": {"ttft": "500ms", "attainment": 0.9}},
        }  # fmt: skip
        plan = make_plan(parse_experiment(json.dumps(experiment)))
        ends_s = time.monotonic() + 4.0
        search = find_capacity.CapacitySearch(
            plan=plan,
            target=Target(url, "m1"),
            detected=EndpointDialect(Dialect("openai_completions", "/v1/completions", True), None),
            store=Store.open(str(tmp_path), "x"),
            stopped=lambda: time.monotonic() > ends_s,
        )
        found = search.run()
    (probe,) = found.probes
    (level,) = found.claim.levels
    assert (probe.status, probe.point.validity, probe.point.ended_early) == (
        "ok",
        "interrupted",
        "undecided",
    )
    assert len(probe.request_ok) > 20
    assert probe.request_ok.all(), "those that never end have no rows"
    assert found.failure is None
    assert found.interrupted
    assert level.verdict is None
    assert level.share is None


SEARCH = (
    "--find-capacity --budget 45s --concurrency 8 --slo ttft<=80ms,attainment>=0.9 --duration 20s "
    "--input-tokens 1"
)


def found(port: int, results: Path, dies_after: int | None = None) -> dict[str, Any]:
    """What a search says; of one that is killed after so many probes nothing."""
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "load",
        f"http://127.0.0.1:{port}",
        "--model",
        "m1",
        *SEARCH.split(),
    ]
    command += ["--output-tokens", "1", "--format", "json", "--results", str(results)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if dies_after is not None and said.count("; slo: ") == dies_after:
                process.kill()
                return {}
        text = process.stdout.read()
    document: dict[str, Any] = json.loads(text)
    is_known = document["claim"] is not None or document["estimate"] is not None
    assert process.returncode == (0 if is_known else 3), said
    return document


@pytest.mark.timeout(300)
def test_a_search_finds_the_slots_of_a_server_and_goes_on_where_it_was_killed(
    tmp_path: Path,
) -> None:
    with serving(slots(0.05)) as server:
        assert found(server.port, tmp_path, dies_after=2) == {}
        before = len(server.requests)
        document = found(server.port, tmp_path)
    assert before > 0
    probes = [(one["level"], one["repeat"]) for one in document["probes"]]
    assert len(set(probes)) == len(probes), "what is known is not measured again"
    assert document["low"] <= SLOTS + 1
    assert document["claim"] is None or document["claim"] <= SLOTS + 1
    assert document["high"] is not None and document["high"] > document["low"]
    assert [one["ended_early"] for one in document["probes"] if one["level"] >= 2 * SLOTS][:1] == [
        "fails"
    ]


async def counts_wrongly(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Says that it read other prompts than were sent: no load makes such figures right."""
    if request.head.startswith(b"GET "):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    *tokens, _, done = stream(request)
    writer.write(HEAD)
    for event in (*tokens, usage(len(request.json["prompt"]) + 5000, len(tokens)), done):
        writer.write(chunk(event))
        await writer.drain()
        await asyncio.sleep(EVENT_S)
    writer.write(END)


def test_a_search_against_broken_answers_ends_at_once_and_says_why() -> None:
    url_options = ["--model", "m1", *SEARCH.split(), "--output-tokens", "2"]
    with serving(counts_wrongly) as server:
        url = f"http://127.0.0.1:{server.port}"
        command = [sys.executable, "-m", "orchestrator", "load", url, *url_options]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"COLUMNS": "80"},
        )
    assert done.returncode == 3, done.stderr
    said = f"{done.stdout}{done.stderr}"
    assert done.stdout.count("in flight") <= 3, "one probe, and what is said of it"
    assert "no load can be judged (invalid)" in said
    assert "invalid at 8 in flight: " in said
    assert "mend what the server is asked or answers" in said

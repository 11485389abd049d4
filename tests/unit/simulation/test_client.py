"""The load client in virtual time: what it reports of a probe, and ends that follow one another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestrator.load.point import LoadPoint, Progress, SoFar, Target
from orchestrator.load.schedule import Schedule
from orchestrator.simulation.client import ClientLoad, VirtualClient
from orchestrator.simulation.fleet import Fleet, FleetNeeds
from orchestrator.simulation.requests import RequestEnd
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Level
from orchestrator.sweep.early_end import EarlyEnd, EarlyStop, WatchedRun
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import Message, Prompt, WorkloadKind
from orchestrator.workloads.segments import NameOfDraw
from tests.unit.emulator.builders import a_replica

WORKLOAD = RandomWorkload(name="w", input_tokens=8, output_tokens=5)


class Reports(EarlyEnd):
    """Looks at a probe, and never ends it."""

    def __init__(self) -> None:
        self.seen: list[SoFar] = []

    def look(self, run: WatchedRun, progress: Progress, elapsed_s: float) -> EarlyStop | None:
        self.seen += run.so_far()
        return None


class OneThatFits(WorkloadKind):
    """The first request is served; the others have more tokens than any engine takes."""

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        raise AssertionError("a simulation asks for lengths, never for prompts")

    def input_tokens(self, session: int, turn: int) -> int:
        return 8 if session == 0 else 90_000

    def output_tokens(self, session: int, turn: int) -> int:
        return 20


def client(
    level: float, kind: WorkloadKind, early_end: EarlyEnd | None = None, **rules: Any
) -> VirtualClient:
    point = LoadPoint(
        targets=(Target("", "m"),),
        dialect=openai()["completions"],
        workload=WORKLOAD,
        level=Level(control="request_rate", value=level),
        **rules,
    )
    fleet = Fleet(a_replica(max_num_seqs=1), 1, 1, 0, FleetNeeds())
    return VirtualClient(ClientLoad(point, kind, Schedule(point, kind)), fleet, None, early_end)


def test_open_requests_of_the_warm_up_are_no_evidence_of_a_probe() -> None:
    reports = Reports()
    kind: WorkloadKind = WORKLOAD.requests(NameOfDraw(), 0)
    client(50.0, kind, reports, warmup_s=2.0, duration_s=10.0).run()
    open_due_ns: list[int] = []
    for report in reports.seen:
        open_due_ns += [*report.silent.due_ns, *report.answering.due_ns]
    assert reports.seen[0].now_ns < 2e9
    assert min(open_due_ns) >= 2e9


def test_a_request_that_timed_out_has_no_token_from_after_its_end() -> None:
    kind: WorkloadKind = WORKLOAD.requests(NameOfDraw(), 0)
    rules: dict[str, Any] = {
        "warmup_s": None,
        "duration_s": None,
        "requests": 3,
        "drain_timeout_s": 9,
    }
    patient = client(1.0, kind, **rules)
    patient.run()
    first_tokens_s = [request.first_token_s - request.sent_s for request in patient.requests]
    # the clients give up in the middle of the step that makes the first token
    hasty = client(1.0, kind, request_timeout_s=min(first_tokens_s) / 2, **rules)
    hasty.run()
    assert {request.end for request in hasty.requests} == {RequestEnd.TIMEOUT}
    for request in hasty.requests:
        assert math.isnan(request.first_token_s)
        assert math.isnan(request.last_token_s)


def test_thousands_of_refusals_in_a_row_follow_the_request_that_they_waited_for() -> None:
    loading = client(
        math.inf, OneThatFits(), warmup_s=None, duration_s=None, requests=3000, max_in_flight=1
    )
    loading.run()
    ends = Counter(request.end for request in loading.requests)
    assert ends == {RequestEnd.OK: 1, RequestEnd.REFUSED: 2999}
    assert loading.in_flight_max == 1
    first, *others = loading.requests
    assert {request.sent_s for request in others} == {first.done_s}

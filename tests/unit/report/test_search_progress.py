"""What ``load --find-capacity`` prints in the end."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.capacity.claim import Claim, ClaimStatus
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.first_change import LongerProbes
from orchestrator.report.documents.search import (
    LimitShare,
    PlannedProbe,
    ProbeDocument,
    SearchDocument,
    SearchedEndpoint,
)
from orchestrator.report.search_progress import search_text
from tests.unit.capacity.builders import at

ENDPOINT = SearchedEndpoint("http://h:1", "m", 1, emulated=False, results=None, name=None)
CLAIM = Claim(claim=16.0, low=16.0, high=24.0, status="budget", levels=())
NO_CLAIM = Claim(claim=None, low=0.0, high=math.inf, status="budget", levels=())
ESTIMATE = Estimate(level=16.2, lower=15.1, upper=17.0, safe=13.07)


def probe(
    level: float,
    share: float | None = 1.0,
    repeat: int = 0,
    ok: int = 9,
    scheduled: int = 10,
    **head: Any,
) -> ProbeDocument:
    """A probe of so many ``scheduled`` requests. ``share``: of those that met the limits. ``ok``: how many were
    answered. ``head``: other fields of its point.
    """
    fields: dict[str, Any] = {
        "level": level,
        "repeat": repeat,
        "validity": "valid",
        "validity_reasons": (),
        "ended_early": None,
        "offered_rate": None,
        "window_s": 12.34,
    }
    requests = SimpleNamespace(ok=ok, scheduled=scheduled)
    data: Any = SimpleNamespace(
        point=SimpleNamespace(**fields | head),
        figures=SimpleNamespace(
            requests=requests, window_s=12.34, errors={} if ok == 10 else {"aborted": 10 - ok}
        ),
    )
    return ProbeDocument(data, (LimitShare("attainment", 0.95, share),))


SEARCH = SearchDocument(
    endpoint=ENDPOINT,
    control="request_rate",
    slo=parse_slo("ttft<=500ms,attainment>=0.95"),
    claim=CLAIM,
    change=None,
    seed=1,
    probes=(probe(16.0),),
    next=None,
    notes=(),
)


def shown(**changes: Any) -> list[str]:
    return [click.unstyle(line) for line in search_text(replace(SEARCH, **changes))]


def test_a_probe_is_a_row_with_its_share_and_how_it_ended() -> None:
    lines = shown(probes=(probe(16.0), probe(24.0, 0.5, repeat=1, ended_early="fails")))
    assert lines[0] == "m at http://h:1: capacity under ttft<=500ms,attainment>=0.95"
    first, second = (line.split() for line in lines if line.startswith((" 16 ", " 24 ")))
    assert first == ["16", "req/s", "9/10", "12.3", "1.000", "valid"]
    assert second == ["24", "req/s", "#2", "9/10", "12.3", "0.500", "missed", "valid"]


def test_a_probe_without_requests_has_no_share() -> None:
    (row,) = (line.split() for line in shown(probes=(probe(16.0, None),)) if line[:4] == " 16 ")
    assert row == ["16", "req/s", "9/10", "12.3", "-", "valid"]


@pytest.mark.parametrize(
    ("claim", "answer"),
    [
        (
            Claim(
                claim=13.0,
                low=13.0,
                high=19.3,
                status="converged",
                levels=(),
                passed=16.0,
                estimate=ESTIMATE,
            ),
            "holds 13 req/s; estimate 16.2 req/s (15.1 to 17.0), safe so far 13.1; fails 19.3 req/s"
            " (converged)",
        ),
        (
            replace(NO_CLAIM, passed=16.0, estimate=replace(ESTIMATE, safe=None)),
            "estimate 16.2 req/s (15.1 to 17.0) (budget)",
        ),
        (
            replace(NO_CLAIM, passed=24.0),
            "no load is confirmed yet; 24 req/s passed and is not confirmed (budget)",
        ),
        (
            replace(NO_CLAIM, high=16.0, missed=at(8.0)),
            "no load is confirmed yet; missed 8 req/s, not yet shown to fail (1,000 requests); "
            "fails 16 req/s (budget)",
        ),
        (replace(CLAIM, high=math.inf), "holds 16 req/s (budget)"),
        (replace(NO_CLAIM, status="broken_output"), "no load can be judged (broken_output)"),
    ],
)
def test_the_answer_is_one_line(claim: Claim, answer: str) -> None:
    assert answer in shown(claim=claim)


@pytest.mark.parametrize(
    ("confirmed", "passed", "safe", "is_explained"),
    [
        (None, 32.0, 16.0, True),
        (None, 32.0, None, True),
        (None, 32.0, 32.0, False),
        (32.0, 32.0, 16.0, False),
        (None, None, None, False),
    ],
)
def test_a_level_that_passed_above_the_safe_one_says_why_it_is_not_safe(
    confirmed: float | None, passed: float | None, safe: float | None, is_explained: bool
) -> None:
    estimate = replace(ESTIMATE, level=38.0, safe=safe)
    claim = replace(NO_CLAIM, claim=confirmed, high=64.0, passed=passed, estimate=estimate)
    lines = shown(claim=claim)
    reason = "32 req/s passed, with too few requests to be 95 % sure: it is not called safe yet"
    assert (reason in lines) is is_explained


@pytest.mark.parametrize(
    ("status", "results", "goes_on"),
    [("budget", "folder", True), ("budget", None, False), ("converged", "folder", False)],
)
def test_a_stored_search_that_ran_out_of_time_goes_on_with_the_same_command(
    status: ClaimStatus, results: str | None, goes_on: bool
) -> None:
    lines = shown(claim=replace(CLAIM, status=status), endpoint=replace(ENDPOINT, results=results))
    (reason,) = [line for line in lines if line.startswith(f"{status}: ")]
    assert reason.endswith(": the same command goes on") is goes_on


def test_what_to_change_first_follows_the_status() -> None:
    lines = shown(
        claim=replace(CLAIM, status="unresolved"), change=LongerProbes(level=18.0, seconds=1500.0)
    )
    at = lines.index("unresolved: the levels in between are too near to the target to decide them")
    assert lines[at + 1] == ("change first: --duration 25m: probes that long would decide 18 req/s")


def test_what_would_be_probed_next_is_said_with_its_length() -> None:
    next_line = (
        "With as much time again it would probe 20 req/s next, for about 5 min; what fails lies 50%"
        " above the claim."
    )
    assert next_line in shown(next=PlannedProbe(20.0, 300.0))


def test_a_converged_search_says_how_to_come_nearer() -> None:
    line = "What fails lies 50% above the claim: a smaller --precision brings them nearer."
    assert line in shown(claim=replace(CLAIM, status="converged"))
    assert line not in shown()


def test_the_same_reason_with_other_figures_is_said_once_with_all_levels() -> None:
    probes = [
        probe(8.0, validity="disturbed", validity_reasons=("others took 60 %",)),
        probe(16.0, validity="disturbed", validity_reasons=("others took 70 %",)),
        probe(24.0, validity="client_bound", validity_reasons=("it was late",)),
    ]
    lines = shown(probes=tuple(probes))
    assert "disturbed at 8 req/s, 16 req/s: others took 60 %" in lines
    assert "client_bound at 24 req/s: it was late" in lines


def test_a_probe_that_the_search_ended_far_above_the_capacity_is_no_dead_server() -> None:
    overloaded = probe(
        64.0,
        0.0,
        ok=0,
        ended_early="fails",
        validity="invalid",
        validity_reasons=("not one request succeeded",),
    )
    lines = shown(probes=(probe(16.0), overloaded))
    (row,) = (line for line in lines if line.startswith(" 64 "))
    assert row.split("missed")[-1].strip() == "overloaded, ended early"
    reasons = [line for line in lines if line.startswith("overloaded, ended early at 64 req/s: ")]
    assert len(reasons) == 1
    assert not any("not one request succeeded" in line for line in lines)


def test_notes_and_that_an_emulator_answered_stand_at_the_end() -> None:
    *_, note, emulated = shown(notes=("a note",), endpoint=replace(ENDPOINT, emulated=True))
    assert note == "note: a note"
    assert emulated.startswith("emulated: an emulator answered")


@pytest.mark.parametrize(
    ("results", "remedy"),
    [(None, "search again"), ("runs", "search again, under another --name")],
)
def test_probes_that_contradict_each_other_are_not_trusted(
    results: str | None, remedy: str
) -> None:
    probes = (probe(34.0, 0.672, scheduled=548), probe(37.0, 1.0, scheduled=719))
    lines = shown(probes=probes, endpoint=replace(ENDPOINT, results=results))
    assert (
        "not to be trusted: 37 req/s attained 1.000, the lower 34 req/s only 0.672: the server was"
        f" hardly the same throughout (other work on its machine?); {remedy}" in lines
    )
    assert not [line for line in lines if "the same command goes on" in line]


def test_a_probe_that_is_not_valid_contradicts_none() -> None:
    disturbed = probe(34.0, 0.672, scheduled=548, validity="client_bound")
    lines = shown(probes=(disturbed, probe(37.0, 1.0, scheduled=719)))
    assert not [line for line in lines if line.startswith("not to be trusted")]

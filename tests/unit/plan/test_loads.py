"""Workloads, arrivals and searches, as a plan has them; what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from tests.unit.plan.files import only_problem, planned
from tests.unit.workloads.traces import AZURE_2023

pytestmark = pytest.mark.usefixtures("judged")


def test_workloads_that_differ_in_name_alone_are_a_problem() -> None:
    workloads = [
        {"name": name, "input_tokens": 10, "output_tokens": 5} for name in ("short", "other")
    ]
    assert only_problem(workloads=workloads).message == "'other' asks for the same as 'short'"


def test_a_point_holds_all_that_the_load_says() -> None:
    load = {
        "levels": {"concurrency": [4]}, "requests": 50, "warmup": "2s", "max_in_flight": 3, "request_timeout": "9s",
        "drain_timeout": "8s",
    }  # fmt: skip
    (point,) = planned(load=load).points
    assert (point.load.requests, point.load.duration_s, point.load.warmup_s) == (50, None, 2.0)
    limits = point.load.max_in_flight, point.load.request_timeout_s, point.load.drain_timeout_s
    assert limits == (3, 9.0, 8.0)


def test_more_requests_than_the_file_has_prompts_are_told(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    workload = {"name": "few", "kind": "file", "prompts": "p.txt", "output_tokens": 3}
    for requests, notes in ((2, 0), (5, 1)):
        load = {"levels": {"concurrency": [1]}, "requests": requests}
        plan = planned(tmp_path / "x.yaml", load=load, workloads=[workload])
        text = f"'few': its 2 prompts come again until {requests} requests are sent"
        assert sum(note.startswith(text) for note in plan.notes) == notes


def test_an_unknown_search_is_a_problem_with_the_nearest_name() -> None:
    with pytest.raises(
        ProblemsError, match=r"x.yaml:\d+: unknown search 'level' \(did you mean 'levels'"
    ) as error:
        planned(load={"levels": {"concurrency": [4]}, "search": "level"})
    assert len(error.value.problems) == 1


def test_without_duration_or_requests_a_point_lasts_a_minute() -> None:
    assert {point.load.duration_s for point in planned().points} == {60.0}


def test_times_of_prompts_need_all_prompts(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("0.0\n0.5\n")
    (tmp_path / "p.jsonl").write_text(
        '{"input_length": 4, "output_tokens": 2}\n{"input_length": 9, "output_tokens": 2}\n'
    )
    workload = {"name": "w", "kind": "file", "prompts": str(tmp_path / "p.jsonl")}
    problem = only_problem(
        workloads=[workload | {"keep": {"input_tokens": [1, 5]}}],
        load={"arrivals": {"process": "trace", "trace": str(tmp_path / "times.txt")}},
    )
    assert "'w': 'keep' leaves out entries of its prompts" in problem.message
    assert "sent at the wrong times" in str(problem)


@pytest.mark.parametrize(
    ("load", "begin"),
    [
        ({"search": "capacity", "control": "request_rate"}, "anywhere"),
        ({"levels": {"request_rate": ["recorded"]}}, None),
    ],
)
def test_the_probes_of_a_search_over_a_trace_begin_anywhere_in_it(
    tmp_path: Path, load: dict[str, Any], begin: str | None
) -> None:
    (tmp_path / "t.csv").write_text(AZURE_2023)
    workload = {"name": "w", "kind": "trace", "trace": str(tmp_path / "t.csv")}
    limits = {"fast": {"ttft": "1s", "attainment": 0.9}}

    def planned_begin(**arrivals: str) -> str | None:
        given = load | {"arrivals": {"process": "trace", "scale": "stretch", **arrivals}}
        (planned_load,) = planned(workloads=[workload], load=given, slos=limits).loads
        return planned_load.arrivals.begin

    assert planned_begin() == begin
    assert planned_begin(begin="first") == "first"


def test_only_recorded_times_have_a_place_to_begin() -> None:
    load = {"levels": {"request_rate": [1]}, "arrivals": {"process": "poisson", "begin": "first"}}
    assert "'begin' is for the recorded times" in only_problem(load=load).message


def test_arrivals_that_lack_a_field_are_a_problem() -> None:
    load = {"levels": {"request_rate": [1]}, "arrivals": "ramp"}
    assert "arrivals 'ramp' need the field 'to'" in only_problem(load=load).message


def test_a_trace_is_found_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "arrivals.txt").write_text("0.0\n0.5\n1.25\n")
    load = {"arrivals": {"process": "trace", "trace": "arrivals.txt"}}
    (point,) = planned(tmp_path / "x.yaml", load=load).points
    assert point.load.arrivals.trace == str(tmp_path / "arrivals.txt")


@pytest.mark.parametrize(
    "load",
    [
        {"levels": {"concurrency": [1]}},
        {"levels": {"concurrency_per_gpu": [1]}},
        {"search": "capacity", "control": "concurrency"},
    ],
)
def test_arrivals_are_refused_where_no_level_has_a_rate(load: dict[str, Any]) -> None:
    slos = {"x": {"ttft": "1s", "attainment": 0.9}}  # only the search needs them
    problem = only_problem(load={**load, "arrivals": "constant"}, slos=slos)
    assert problem.message == "'arrivals' is for request_rate, and here all levels are concurrency"


def test_prompts_that_cannot_be_read_are_a_problem() -> None:
    workload = {"name": "a", "kind": "file", "prompts": "nowhere.txt", "output_tokens": 1}
    problem = only_problem(workloads=[workload])
    assert "nowhere.txt' cannot be read: No such file" in problem.message
    unset = workload | {"prompts": "${NO_SUCH_FOLDER_AT_ALL}/p"}
    assert "NO_SUCH_FOLDER_AT_ALL" in only_problem(workloads=[unset]).message


def test_the_drain_timeout_is_that_of_requests_unless_given() -> None:
    load = {"levels": {"concurrency": [4]}, "request_timeout": "9s"}
    assert planned(load=load).points[0].load.drain_timeout_s == 9.0
    assert planned(load=load | {"drain_timeout": "2s"}).points[0].load.drain_timeout_s == 2.0

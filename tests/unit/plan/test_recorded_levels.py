"""Levels of recorded arrivals: their own rate, and what cannot be true of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.capacity.levels import ANY_LEVEL, LevelRange
from tests.unit.plan.files import only_problem, planned

pytestmark = pytest.mark.usefixtures("judged")


@pytest.mark.parametrize(
    ("load", "turns", "rate"),
    [
        ({}, 1, 2 / 1.25),
        ({}, 3, 3 * 2 / 1.25),
        ({"levels": {"request_rate": [1.6]}}, 1, 1.6),
        ({"levels": {"request_rate": [1.59]}, "requests": 3}, 1, 1.59),
        ({"requests": 2}, 1, 2.0),
        ({"duration": "1s"}, 1, 2.0),
    ],
)
def test_the_level_of_a_trace_is_its_mean_rate(
    load: dict[str, Any], turns: int, rate: float, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("0.0\n0.5\n1.25\n")
    load = {**load, "arrivals": {"process": "trace", "trace": "t.txt"}}
    workload = {"name": "w", "input_tokens": 1, "output_tokens": 1}
    if turns > 1:
        workload |= {"kind": "conversations", "turns": turns}
    (point,) = planned(tmp_path / "x.yaml", load=load, workloads=[workload]).points
    assert point.level.control == "request_rate"
    assert point.level.value == pytest.approx(rate)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            {"levels": {"request_rate": [5]}},
            "recorded arrivals have one rate, their own: 'chat' gets 1.6 requests/s on average",
        ),
        ({"requests": 4}, "the trace has times for 3 requests of 'chat'"),
        ({"search": "curve"}, "search 'curve' cannot change the rate of recorded arrivals"),
        (
            {"levels": {"concurrency": [1, 2], "request_rate": [1.6]}},
            "recorded arrivals are not used where requests are kept in flight",
        ),
        (
            {"levels": {"concurrency": [1, 2]}},
            "'arrivals' is for request_rate, and here all levels are concurrency",
        ),
    ],
)
def test_levels_that_recorded_arrivals_cannot_have_are_a_problem(
    load: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("0.0\n0.5\n1.25\n")
    load |= {"arrivals": {"process": "trace", "trace": str(tmp_path / "t.txt")}}
    assert only_problem(load=load).message == message


MOONCAKE = "".join(
    f'{{"timestamp": {27 * at}, "input_length": 700, "output_length": 5, "hash_ids": [0, {at}]}}\n'
    for at in range(1, 5)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MOONCAKE, "looks like Mooncake's, whose times are milliseconds: give 'speed_up' 1000"),
        ("0\n90000\n180000\n", "would last 50.0 h for 3 requests; are its times milliseconds?"),
    ],
)
def test_milliseconds_are_not_taken_for_seconds(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    arrivals = {"process": "trace", "trace": str(tmp_path / "t.jsonl")}
    assert said in only_problem(load={"arrivals": arrivals}).message
    for speed_up in (1, 1000):
        planned(load={"arrivals": {**arrivals, "speed_up": speed_up}, "requests": 3})


# -- workloads with times of their own

TRACE = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,40,18,0,x\n6,ChatGPT,10,23,0,x\n9,GPT-4,41,27,0,x\n"
)


def of_trace(folder: Path, load: dict[str, Any], **keys: Any) -> dict[str, Any]:
    (folder / "t.csv").write_text(TRACE)
    workload = {"name": "w", "kind": "trace", "trace": str(folder / "t.csv"), **keys}
    return {"workloads": [workload], "load": load}


@pytest.mark.parametrize(
    ("load", "rates"),
    [
        ({"arrivals": "trace"}, [0.5]),
        ({"arrivals": "trace", "levels": {"request_rate": [0.5]}}, [0.5]),
        (
            {
                "arrivals": {"process": "trace", "scale": "stretch"},
                "levels": {"request_rate": ["recorded", "2 * recorded", 1]},
            },
            [0.5, 1.0],
        ),
        (
            {
                "arrivals": {"process": "trace", "scale": "thin"},
                "levels": {"request_rate": ["recorded / 2"]},
            },
            [0.25],
        ),
        ({"levels": {"request_rate": ["4 * recorded"]}}, [2.0]),
    ],
)
def test_levels_follow_from_the_recorded_rate(
    load: dict[str, Any], rates: list[float], tmp_path: Path
) -> None:
    plan = planned(tmp_path / "x.yaml", **of_trace(tmp_path, load))
    assert [point.level.value for point in plan.points] == pytest.approx(rates)


def test_each_workload_has_levels_of_its_own_rate(tmp_path: Path) -> None:
    load = {"levels": {"request_rate": ["recorded"]}}
    changes = of_trace(tmp_path, load)
    others = {**changes["workloads"][0], "name": "v", "where": {"Model": "ChatGPT"}}
    plan = planned(tmp_path / "x.yaml", workloads=[*changes["workloads"], others], load=load)
    assert [point.level.value for point in plan.points] == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            {"arrivals": "trace", "levels": {"request_rate": [3]}},
            "recorded arrivals have one rate, 0.5 requests/s for 'w'",
        ),
        ({"arrivals": "trace", "search": "curve"}, "search 'curve' cannot change the rate of"),
        (
            {
                "arrivals": {"process": "trace", "scale": "thin"},
                "levels": {"request_rate": ["3 * recorded"]},
            },
            "thinning leaves out sessions: 'w' has 0.5 requests/s, and 1.5 are more",
        ),
        (
            {
                "arrivals": {"process": "trace", "scale": "thin"},
                "levels": {"request_rate": ["recorded / 1000"]},
            },
            "whose rate is 0.5 requests/s, 0.0005 would leave none",
        ),
        (
            {
                "arrivals": {"process": "trace", "scale": "stretch"},
                "levels": {"request_rate": ["1e9 * recorded"]},
                "duration": "1h",
            },
            "a point may have 5,000,000",
        ),
        (
            {"levels": {"request_rate": ["recorded * max_num_seqs"]}},
            "unknown field 'max_num_seqs'",
        ),
        (
            {"arrivals": {"process": "poisson", "scale": "thin"}, "levels": {"request_rate": [3]}},
            "'scale' is for the recorded times of a workload",
        ),
    ],
)
def test_rates_that_recorded_times_cannot_have_are_a_problem(
    load: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in only_problem(**of_trace(tmp_path, load)).message


@pytest.mark.parametrize("search", ["capacity", "curve"])
def test_a_search_over_a_thinned_trace_asks_for_no_more_than_was_recorded(
    search: str, tmp_path: Path
) -> None:
    arrivals = {"process": "trace", "scale": "thin"}
    load = {"arrivals": arrivals, "search": search, "control": "request_rate"}
    slos = {"fast": {"ttft": "1s"}}
    plan = planned(tmp_path / "x.yaml", **of_trace(tmp_path, load), slos=slos)
    (of_thinned,) = plan.loads
    assert of_thinned.sendable == LevelRange(lowest=0.5 / 3, highest=0.5), "one session of three"
    first = plan.strategy(of_thinned, plan.deployments[0].id).ask()
    assert first is not None and first.value <= 0.5
    arrivals["scale"] = "stretch"
    stretched = planned(tmp_path / "x.yaml", **of_trace(tmp_path, load), slos=slos)
    assert stretched.loads[0].sendable == ANY_LEVEL


def test_a_search_cannot_change_the_rate_of_times_that_are_not_scaled(tmp_path: Path) -> None:
    load = {"arrivals": "trace", "search": "capacity", "control": "request_rate"}
    problem = only_problem(**of_trace(tmp_path, load), slos={"fast": {"ttft": "1s"}})
    assert problem.message == "search 'capacity' cannot change the rate of recorded arrivals"
    assert problem.hint == "give arrivals: {process: trace, scale: stretch}, or thin"


def test_drawn_workloads_have_no_recorded_rate(tmp_path: Path) -> None:
    levels = {"levels": {"request_rate": ["recorded"]}}
    assert "has no recorded rate" in only_problem(load=levels).message
    timed = {"arrivals": "trace"}
    assert only_problem(load=timed).message == (
        "arrivals 'trace' need the field 'trace': there are no different recorded times in chat"
    )


def test_a_mix_of_a_trace_has_no_recorded_times(tmp_path: Path) -> None:
    changes = of_trace(tmp_path, {"arrivals": "trace"})
    drawn = {"name": "v", "input_tokens": 1, "output_tokens": 1}
    parts = [{"workload": "w"}, {"workload": "v"}]
    office = {"name": "office", "kind": "mix", "parts": parts}
    changes["workloads"] += [drawn, office]
    problem = only_problem(**changes)
    assert "there are no different recorded times in office" in problem.message
    assert problem.hint is not None and "a mix draws when sessions begin" in problem.hint
    assert planned(
        tmp_path / "x.yaml", workloads=changes["workloads"], load={"levels": {"request_rate": [1]}}
    ).points


@pytest.mark.parametrize(
    ("scale", "levels", "note"),
    [
        ("stretch", ["recorded", 1], "'w' (stretch): 1 req/s is 2 times the recorded rate"),
        (
            "thin",
            [0.25],
            "'w' (thin): 0.25 req/s is 0.5 times the recorded rate, without 50.0% of the sessions",
        ),
        ("stretch", ["recorded"], None),
    ],
)
def test_a_plan_says_how_far_levels_are_from_the_recorded_rate(
    scale: str, levels: list[Any], note: str | None, tmp_path: Path
) -> None:
    load = {
        "arrivals": {"process": "trace", "scale": scale},
        "levels": {"request_rate": levels},
    }
    notes = planned(tmp_path / "x.yaml", **of_trace(tmp_path, load)).notes
    assert [found for found in notes if "times the recorded rate" in found] == (
        [] if note is None else [note]
    )
    assert any("recorded: 0.5 requests/s on average" in found for found in notes)

"""Recorded times of arrivals: read, cut, and asked for their unit. What all processes keep is in
tests/contract/test_arrivals.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.load.arrivals import ArrivalRequest, mean_rate, recorded, trace, unit_problem
from orchestrator.spec.load import Arrivals

TIMES = np.array([0.0, 1.0, 2.0, 6.0])
RNG = np.random.default_rng(0)


def arrivals_of(folder: Path, text: str, speed_up: float | None = None) -> Arrivals:
    file = folder / "trace"
    file.write_text(text)
    if speed_up is None:
        return Arrivals(process="trace", trace=str(file))
    return Arrivals(process="trace", trace=str(file), speed_up=speed_up)


def test_offsets_count_from_the_first_time(tmp_path: Path) -> None:
    assert recorded(arrivals_of(tmp_path, "10\n12\n15\n")).tolist() == [0.0, 2.0, 5.0]


def test_times_of_json_lines_are_their_timestamps(tmp_path: Path) -> None:
    text = '{"timestamp": 1}\n{"timestamp": 4}\n'
    assert recorded(arrivals_of(tmp_path, text)).tolist() == [0.0, 3.0]


def test_speed_up_divides_the_times(tmp_path: Path) -> None:
    assert recorded(arrivals_of(tmp_path, "0\n500\n", speed_up=1000)).tolist() == [0.0, 0.5]


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    assert len(recorded(arrivals_of(tmp_path, "0\n1\n"))) == 2
    assert len(recorded(arrivals_of(tmp_path, "0\n1\n22\n"))) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1\nsoon\n", "line 2: no finite time"), ("2\n1\n", "line 2: 1 is before the 2")],
)
def test_a_line_without_a_time_or_out_of_order_is_a_problem(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ProblemsError, match=problem):
        recorded(arrivals_of(tmp_path, text))


def test_a_trace_is_cut_at_the_horizon_and_the_count(tmp_path: Path) -> None:
    arrivals = arrivals_of(tmp_path, "0\n1\n2\n3\n")
    assert trace(ArrivalRequest(arrivals, 1.0, 3.0, None), RNG).tolist() == [0.0, 1.0, 2.0]
    assert trace(ArrivalRequest(arrivals, 1.0, 3.0, 2), RNG).tolist() == [0.0, 1.0]


def test_the_mean_rate_is_that_of_the_requests_that_are_sent() -> None:
    assert mean_rate(TIMES, None, None) == pytest.approx(3 / 6)
    assert mean_rate(TIMES, 3.0, None) == pytest.approx(2 / 2)
    assert mean_rate(TIMES, None, 2) == pytest.approx(1 / 1)


def test_requests_at_one_instant_have_an_infinite_rate_without_an_end() -> None:
    at_once = np.zeros(4)
    assert mean_rate(at_once, 2.0, None) == 2.0
    assert mean_rate(at_once, None, None) == math.inf


def test_expected_arrivals_are_limited_by_horizon_and_count() -> None:
    constant = Arrivals(process="constant")
    assert ArrivalRequest(constant, 5.0, 10.0, None).expected == 50.0
    assert ArrivalRequest(constant, 5.0, 10.0, 7).expected == 7


def test_a_ramp_is_expected_at_its_higher_rate() -> None:
    ramp = Arrivals(process="ramp", to=20.0)
    assert ArrivalRequest(ramp, 5.0, 10.0, None).expected == 200.0


def test_whole_times_far_apart_are_questioned(tmp_path: Path) -> None:
    problem = unit_problem(arrivals_of(tmp_path, "0\n60000\n120000\n"))
    assert problem is not None
    assert "are its times milliseconds?" in problem


@pytest.mark.parametrize("text", ["0\n1\n2\n", "0.5\n60000.5\n120000.25\n"])
def test_times_that_look_like_seconds_are_taken_as_such(tmp_path: Path, text: str) -> None:
    assert unit_problem(arrivals_of(tmp_path, text)) is None


def test_a_named_unit_is_not_questioned(tmp_path: Path) -> None:
    assert unit_problem(arrivals_of(tmp_path, "0\n60000\n120000\n", speed_up=1000)) is None

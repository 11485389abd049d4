"""Durations, lengths, arrivals and limits of an experiment, each by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.spec.load import (
    MOST_REQUESTS,
    MOST_STEPS,
    Arrivals,
    Lengths,
    Level,
    Limit,
    LoadRules,
    LogNormal,
    Slo,
    Uniform,
    format_duration,
    in_json,
    load_text,
    parse_duration,
    percentile_limit,
    swapped_percentile,
)
from orchestrator.spec.sessions import Pauses


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60), ("2 min", 120), ("1.5h", 5400), ("3µs", 3e-6), ("1d", 86400)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_only_zero_needs_no_unit() -> None:
    assert parse_duration(0) == 0.0
    for value in (60, "60", True, None, "s", "-1s"):
        with pytest.raises(ValueError, match="not a duration with its unit"):
            parse_duration(value)


@pytest.mark.parametrize(("text", "reason"), [("1e10s", "longer than"), ("1ns", "shorter than")])
def test_a_duration_that_no_clock_measures_has_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_duration(text)


@given(st.integers(1, 10**6))
def test_a_duration_reads_back_as_it_is_written(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


def test_a_level_has_its_unit() -> None:
    assert load_text("request_rate", 8.0) == "8 req/s"
    assert load_text("concurrency", 8.0) == "8 in flight"


@pytest.mark.parametrize(
    ("lengths", "bounds"),
    [
        (Lengths(fixed=5), (5, 5)),
        (Lengths(uniform=Uniform(min=2, max=9)), (2, 9)),
        (Lengths(lognormal=LogNormal(mean=50, sigma=1)), (1, None)),
        (Lengths(lognormal=LogNormal(mean=50, sigma=1, min=3, max=70)), (3, 70)),
    ],
)
def test_lengths_have_bounds(lengths: Lengths, bounds: tuple[int, int | None]) -> None:
    assert lengths.bounds == bounds


def test_lengths_are_given_in_one_way() -> None:
    for fields in ({}, {"fixed": 5, "uniform": Uniform(min=1, max=2)}):
        with pytest.raises(ValidationError, match="give one of"):
            Lengths.model_validate(fields)


def test_a_uniform_range_ascends() -> None:
    for shape in ("normal", "lognormal"):
        drawn = {shape: {"mean": 5.0, "sigma": 1.0, "min": 9, "max": 3}}
        with pytest.raises(ValidationError, match=r"max \(3\) is below min \(9\)"):
            Lengths.model_validate(drawn)
        pauses = {shape: {"mean": 5.0, "sigma": 1.0, "min": 9.0, "max": 3.0}}
        with pytest.raises(ValidationError, match=r"max \(3 s\) is below min \(9 s\)"):
            Pauses.model_validate(pauses)
    with pytest.raises(ValidationError, match=r"max \(1\) is below min \(2\)"):
        Uniform(min=2, max=1)


@pytest.mark.parametrize(
    ("arrivals", "problem"),
    [
        (Arrivals(), None),
        (Arrivals(process="ramp"), "arrivals 'ramp' need the field 'to'"),
        (Arrivals(process="trace"), "arrivals 'trace' need the field 'trace'"),
        (Arrivals(process="ramp", to=3.0), None),
    ],
)
def test_some_processes_need_a_field_of_their_own(arrivals: Arrivals, problem: str | None) -> None:
    assert arrivals.problem() == problem


def test_an_unknown_process_comes_with_the_nearest() -> None:
    problem = Arrivals(process="poison").problem()
    assert problem is not None
    assert "did you mean 'poisson'?" in problem


def test_a_point_may_have_so_many_requests() -> None:
    rate = MOST_REQUESTS / 60
    assert Arrivals().too_much(rate * 0.999, 60.0, None) is None
    problem = Arrivals().too_much(rate * 1.001, 60.0, None)
    assert problem is not None
    assert problem.endswith("a point may have 5,000,000")


def test_a_ramp_counts_by_its_mean_rate() -> None:
    rate = MOST_REQUESTS / 60
    assert Arrivals(process="ramp", to=rate / 2).too_much(rate, 60.0, None) is None
    assert Arrivals(process="ramp", to=rate * 2).too_much(rate, 60.0, None) is not None


def test_requests_that_take_decades_are_too_much() -> None:
    problem = Arrivals().too_much(1e-9, None, 50)
    assert problem is not None
    assert "take longer than 1e+09 s" in problem


def test_steps_are_bounded_in_number_and_must_have_requests() -> None:
    short = Arrivals(process="steps", steps=[(1.0, 0.001), (2.0, 0.001)])
    assert short.too_much(1.0, 0.001 * MOST_STEPS * 0.9, None) is None
    problem = short.too_much(1.0, 0.001 * MOST_STEPS * 1.1, None)
    assert problem is not None
    assert problem.endswith("a point may have 1,000,000 steps")
    idle = Arrivals(process="steps", steps=[(0.0, 5.0)])
    assert idle.too_much(1.0, 60.0, None) == "nothing is due in any of these steps"


def test_a_busy_last_step_counts() -> None:
    """All requests of a cycle of 100 s are due in its first second."""
    steps = Arrivals(process="steps", steps=[(100.0, 1.0), (0.0, 99.0)])
    rate = MOST_REQUESTS / 100
    assert steps.too_much(rate * 0.99, 100.0, None) is None
    assert steps.too_much(rate * 0.99, 101.0, None) is not None


@pytest.mark.parametrize(
    ("control", "value", "name"),
    [
        ("concurrency", 4, "closed"),
        ("request_rate", math.inf, "at_once"),
        ("request_rate", 4, "gamma"),
    ],
)
def test_rows_name_the_arrivals_that_took_place(control: str, value: float, name: str) -> None:
    level = Level.model_validate({"control": control, "value": value})
    assert Arrivals(process="gamma").at(level) == name


def test_an_infinite_rate_is_a_word_in_json() -> None:
    level = Level(control="request_rate", value=math.inf)
    assert level.model_dump(mode="json") == {"control": "request_rate", "value": "inf"}
    assert Level.model_validate(level.model_dump(mode="json")) == level
    assert in_json(3.0) == 3.0


def test_probes_of_a_capacity_search_are_longer_than_points() -> None:
    assert LoadRules(search="capacity").default_s == 10 * LoadRules().default_s


@pytest.mark.parametrize(
    ("name", "limit"),
    [("ttft_p95", ("ttft", 0.95)), ("itl_p99_p50", ("itl_p99", 0.5)), ("ttft", None)],
)
def test_a_percentile_names_its_latency_and_share(
    name: str, limit: tuple[str, float] | None
) -> None:
    assert percentile_limit(name) == limit


def test_no_percentile_is_zero_and_all_requests_have_no_percentile() -> None:
    assert percentile_limit("ttft_p0") is None
    assert percentile_limit("ttft_p100") is None


def test_a_percentile_before_its_latency_is_understood() -> None:
    assert swapped_percentile("p99_ttft") == "ttft_p99"
    assert swapped_percentile("p99_speed") is None


def test_limits_are_the_plain_ones_and_then_the_percentiles() -> None:
    slo = Slo.model_validate({"e2e_p90": 4.0, "tpot": 0.05, "ttft": 0.5})
    assert slo.limits == (
        Limit("ttft", "ttft", 0.5, None),
        Limit("tpot", "tpot", 0.05, None),
        Limit("e2e_p90", "e2e", 4.0, 0.9),
    )


def test_attainment_is_for_limits_on_single_requests() -> None:
    assert Slo.model_validate({"ttft": 0.5, "attainment": "90%"}).attainment == 0.9
    with pytest.raises(ValidationError, match="'attainment' belongs to limits that each request"):
        Slo.model_validate({"ttft_p95": 0.5, "attainment": 0.9})


def test_a_reader_becomes_a_limit_on_tpot() -> None:
    resolved = Slo(reader="silent").resolved(tokens_per_word=1.5)
    assert resolved.reader is None
    assert resolved.tpot == pytest.approx(60 / 238 / 1.5)
    plain = Slo(ttft=0.5)
    assert plain.resolved() is plain
    with pytest.raises(ValidationError, match="tpot is limited already"):
        Slo(reader="silent", tpot=0.1)

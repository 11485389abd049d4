"""Limits: how they are written, and which requests meet them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.slo import (
    ANSWERED,
    LimitValues,
    Verdicts,
    format_slo,
    limit_values,
    parse_slo,
    shares,
)
from orchestrator.analysis.slo import judge as judge_values
from orchestrator.analysis.slo import tests as of_slo
from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.spec.load import LIMITS, Slo
from tests.unit.results.builders import events, failed_request, request, requests

WINDOW = (0, 10**9)
FIVE = requests(  # TTFT 100, 300, 100, failed, 100 ms; TPOT 50, 50, 150 ms, failed, none
    request(0, 0, first_ms=100, last_ms=200, tokens=3),
    request(1, 0, first_ms=300, last_ms=400, tokens=3),
    request(2, 100, first_ms=200, last_ms=500, tokens=3),
    failed_request(3, 100),
    request(4, 200, first_ms=300, tokens=1),
)
GAPS = events({0: [40, 60], 1: [50, 50], 2: [290, 10], 3: [], 4: []})


def judge(
    rows: pa.Table, token_events: pa.Table | None, slo: Slo, window: tuple[int, int] = WINDOW
) -> Verdicts:
    return judge_values(limit_values(rows, token_events, window), slo)


def met(*args: Any) -> list[bool]:
    return judge(*args).met.tolist()


def test_limits_are_read_with_their_units() -> None:
    slo = parse_slo(" ttft<=500ms , TPOT <= 50ms,e2e<=10s,itl_p99<=0.1s,attainment>=99% ")
    assert (slo.ttft, slo.tpot, slo.e2e, slo.itl_p99, slo.attainment) == pytest.approx(
        (0.5, 0.05, 10, 0.1, 0.99)
    )
    assert parse_slo("ttft<=1s").attainment == 0.95


def test_every_problem_of_a_limit_is_said_at_once() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_slo(
            "ttfd<=500ms,tpot<=50,e2e>=1s,attainment>=1.5,ttft<=1s,ttft<=2s,what,attainment<=0.9,itl_p99<=x"
        )
    texts = [str(problem) for problem in caught.value.problems]
    assert len(texts) == 8
    for expected in (
        "did you mean 'ttft'?",
        "tpot: '50' is not a duration with its unit",
        "write e2e<=1s",
        "'1.5' is not above 0 and at most 1",
        "ttft is given twice",
        "'what' is not a limit",
        "write attainment>=0.9",
        "itl_p99: 'x'",
    ):
        assert sum(expected in text for text in texts) == 1, (expected, texts)


@pytest.mark.parametrize("text", ["attainment>=0.9", ""])
def test_without_a_latency_limit_there_is_nothing_to_hold(text: str) -> None:
    with pytest.raises(ProblemsError):
        parse_slo(text)


def test_a_reader_is_a_limit_on_tpot_by_tokens_per_word() -> None:
    slo = parse_slo("ttft_p95<=1s,reader=visual")
    assert (slo.tpot, slo.reader) == (pytest.approx(60 / 700 * 3 / 4), None)
    assert format_slo(slo) == "tpot<=64.2857ms,ttft_p95<=1s,attainment>=0.95"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("ttft_p95<=1s,attainment>=0.9", "all limits here are on percentiles"),
        ("reader=visual,tpot<=1s", "'reader: visual' is a limit on tpot"),
        ("reader=fast", "'fast' is none of silent, subvocal, visual"),
        ("itl_p95<=1s", "did you mean 'itl_p99'"),
        ("itl<=1s", "did you mean 'itl_p99'"),
        ("ttft_p100<=1s", "did you mean 'ttft_p95'"),
        ("ttft_p00<=1s", "unknown limit 'ttft_p00'"),
        ("ttft_p95>=1s", "write ttft_p95<=1s"),
    ],
)
def test_limits_that_mean_nothing_are_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_slo(text)
    (problem,) = caught.value.problems
    assert advice in str(problem)


PERCENTILES = st.dictionaries(
    st.tuples(st.sampled_from(LIMITS), st.integers(1, 999)).map(
        lambda limit: f"{limit[0]}_p{limit[1] / 10:g}"
    ),
    st.integers(1, 10**6).map(lambda us: us / 1e6),
    max_size=4,
)


@given(
    st.dictionaries(st.sampled_from(LIMITS), st.integers(1, 10**6).map(lambda us: us / 1e6)),
    PERCENTILES,
)
def test_any_limits_read_back_as_they_are_written_out_and_in_json(
    plain: dict[str, float], percentiles: dict[str, float]
) -> None:
    if plain or percentiles:
        slo = Slo.model_validate(plain | percentiles)
        assert Slo.model_validate_json(slo.model_dump_json(exclude_defaults=True)) == slo
        back = parse_slo(format_slo(slo)).limits
        assert [(limit.name, limit.of, limit.share) for limit in back] == [
            (limit.name, limit.of, limit.share) for limit in slo.limits
        ]
        assert [limit.seconds for limit in back] == pytest.approx(
            [limit.seconds for limit in slo.limits], rel=1e-5
        )


REQUEST = st.tuples(
    st.booleans(), *[st.sampled_from([0.1, 0.2, 0.3, float("nan"), -np.inf])] * len(LIMITS)
)


@given(
    st.lists(REQUEST, min_size=1),
    PERCENTILES,
    st.dictionaries(st.sampled_from(LIMITS), st.just(0.2)),
)
def test_tests_are_the_joint_one_first_then_each_percentile_over_all_requests(
    made: list[tuple[Any, ...]], percentiles: dict[str, float], plain: dict[str, float]
) -> None:
    if not plain and not percentiles:
        return
    all_ok, *columns = (np.array(column) for column in zip(*made, strict=True))
    tests = of_slo(
        LimitValues(all_ok, dict(zip(LIMITS, columns, strict=True))),
        Slo.model_validate(plain | percentiles),
    )
    expected = {"attainment": (plain, 0.95)} if plain else {}
    expected |= {
        name: ({name: limit}, float(name.rpartition("_p")[2]) / 100)
        for name, limit in percentiles.items()
    }
    assert [test.name for test in tests] == list(expected)
    for test, (limits, target) in zip(tests, expected.values(), strict=True):
        assert test.target == pytest.approx(target)
        met = []
        for ok, *latencies in made:
            met.append(ok and all(latencies[_column(name)] <= limits[name] for name in limits))
        assert test.met.tolist() == met


def _column(name: str) -> int:
    """The place in LIMITS of the latency that a limit bounds."""
    longest_first = sorted(LIMITS, key=len, reverse=True)
    return LIMITS.index(next(latency for latency in longest_first if name.startswith(latency)))


def test_normalized_ttft_is_unknown_where_nobody_counted_the_prompt() -> None:
    rows = requests(
        *(
            request(at, 0, first_ms=100, input_tokens=n, input_tokens_asked=0)
            for at, n in enumerate([1000, 50, None])
        )
    )
    assert met(rows, None, parse_slo("normalized_ttft<=1ms")) == [True, False, False]


LIMIT = st.none() | st.integers(1, 10**6).map(lambda ms: ms / 1e3)


@given(st.tuples(LIMIT, LIMIT, LIMIT, LIMIT).filter(any), st.integers(1, 100))
def test_a_limit_written_out_reads_back(limits: tuple[float | None, ...], percent: int) -> None:
    names = ("ttft", "tpot", "e2e", "itl_p99")
    slo = Slo(**dict(zip(names, limits, strict=True)), attainment=percent / 100)
    back = parse_slo(format_slo(slo))
    assert [getattr(back, name) or 0 for name in names] == pytest.approx(
        [limit or 0 for limit in limits], rel=1e-5
    )
    assert back.attainment == pytest.approx(slo.attainment)


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        ("ttft<=100ms", [True, False, True, False, True]),
        ("ttft<=99ms", [False] * 5),
        ("tpot<=50ms", [True, True, False, False, True]),
        ("e2e<=200ms", [True, False, False, False, True]),
        ("itl_p99<=100ms", [True, True, False, False, True]),
        ("itl_p99<=59ms", [False, True, False, False, True]),
        ("ttft<=100ms,tpot<=50ms", [True, False, False, False, True]),
    ],
)
def test_a_request_meets_the_limits_when_it_meets_every_one(slo: str, expected: list[bool]) -> None:
    assert met(FIVE, GAPS, parse_slo(slo)) == expected


def test_all_requests_due_in_the_window_are_judged_errors_included() -> None:
    slo = parse_slo("ttft<=1s")
    assert met(FIVE, GAPS, slo) == [True, True, True, False, True]
    assert met(FIVE, None, slo) == [True, True, True, False, True]
    assert met(FIVE, GAPS, slo, (100_000_000, 200_000_000)) == [True, False]
    assert met(FIVE, GAPS, slo, (5, 6)) == []
    assert met(requests(request(0, 0, phase="warmup"), failed_request(1, 0)), None, slo) == [False]


def test_each_limit_alone_is_told_too() -> None:
    verdicts = judge(FIVE, GAPS, parse_slo("ttft<=100ms,tpot<=50ms"))
    assert verdicts.by_limit == {"ttft": 3, "tpot": 3}
    none = judge(FIVE, GAPS, parse_slo("ttft<=1ms,tpot<=1ms"))
    assert shares([verdicts, none]) == {
        "ttft": 0.3,
        "tpot": 0.4,
    }  # one token has no TPOT to violate


def test_an_answer_whose_length_is_not_known_does_not_meet_tpot() -> None:
    rows = requests(request(0, 0, first_ms=1, last_ms=2, tokens=None))
    assert met(rows, None, parse_slo("tpot<=1s")) == [False]
    assert met(rows, None, parse_slo("ttft<=1s")) == [True]


def test_verdicts_come_in_order_of_schedule() -> None:
    rows = requests(request(0, 900, first_ms=5000), request(1, 100), request(2, 500))
    assert judge(rows, None, parse_slo("ttft<=1s"), WINDOW).met.tolist() == [True, True, False]


def test_itl_needs_the_gaps() -> None:
    with pytest.raises(InputError, match="needs the table token_events"):
        judge(FIVE, None, parse_slo("itl_p99<=1s"), WINDOW)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 3)), max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_itl_p99_is_numpys_of_each_requests_own_gaps(made: list[list[tuple[int, int]]]) -> None:
    rows, gaps, tokens, expected = [], {}, {}, []
    for index, chunks in enumerate(made):
        gaps[index] = [us / 1e3 for us, _ in chunks]
        tokens[index] = [1, *(count for _, count in chunks)]
        spread = [us // count + (nth < us % count) for us, count in chunks for nth in range(count)]
        total = sum(us for us, _ in chunks) / 1e3
        rows.append(request(index, 0, first_ms=0, last_ms=total, tokens=sum(tokens[index])))
        expected.append(float(np.quantile(spread, 0.99)) if spread else 0.0)
    limit_s = sorted(expected)[len(expected) // 2] / 1e6 + 1e-9
    table: pa.Table = requests(*rows)
    met = judge(table, events(gaps, tokens), Slo(itl_p99=limit_s), WINDOW).met
    assert met.tolist() == [value / 1e6 <= limit_s for value in expected]


def test_a_percentile_before_its_latency_is_told_in_the_right_order() -> None:
    with pytest.raises(ProblemsError, match="did you mean 'ttft_p99'?"):
        parse_slo("p99_ttft<=500ms")


def test_without_limits_a_request_has_only_to_be_answered() -> None:
    verdicts = judge(FIVE, None, ANSWERED, WINDOW)
    (only,) = verdicts.tests
    assert (only.name, only.target) == ("attainment", 0.95)
    assert only.met.tolist() == [True, True, True, False, True]
    assert verdicts.by_limit == {}
    assert format_slo(ANSWERED) == "attainment>=0.95"

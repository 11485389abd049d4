"""Limits: how they are written, and which requests meet them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import (
    ANSWERED,
    LimitCount,
    LimitValues,
    Verdicts,
    format_slo,
    have_same_limits,
    judge_each,
    limit_values,
    parse_slo,
    parts_of,
    shares,
    targets_of,
)
from orchestrator.analysis.slo import judge as judge_values
from orchestrator.analysis.slo import tests as of_slo
from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.results.window import MeasuredWindow
from orchestrator.spec.load import LIMITS, Slo
from tests.unit.results.builders import events, failed_request, request, requests

WINDOW = MeasuredWindow(0, 10**9)
FIVE = requests(  # TTFT 100, 300, 100, failed, 100 ms; TPOT 50, 50, 150 ms, failed, none
    request(0, 0, first_ms=100, last_ms=200, tokens=3),
    request(1, 0, first_ms=300, last_ms=400, tokens=3),
    request(2, 100, first_ms=200, last_ms=500, tokens=3),
    failed_request(3, 100),
    request(4, 200, first_ms=300, tokens=1),
)
GAPS = events({0: [40, 60], 1: [50, 50], 2: [290, 10], 3: [], 4: []})


def judge(
    rows: pa.Table, token_events: pa.Table | None, slo: Slo, window: MeasuredWindow = WINDOW
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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ttft<=500", "did you mean 500ms?"),
        ("ttft_p95<=0.5", "did you mean 0.5s?"),
        ("ttft<=1s,attainment>=95", "it is a share: 0.95 for 95 %"),
    ],
)
def test_a_value_without_its_unit_comes_with_the_likely_one(text: str, hint: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_slo(text)
    (problem,) = caught.value.problems
    assert str(problem).endswith(hint)


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
        ("ttft<500", "ttft<500: write ttft<=500ms"),
        ("tpot<0.05", "write tpot<=0.05s"),
        ("attainment<0.95", "write attainment>=0.95"),
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
    assert met(FIVE, GAPS, slo, MeasuredWindow(100_000_000, 200_000_000)) == [True, False]
    assert met(FIVE, GAPS, slo, MeasuredWindow(5, 6)) == []
    assert met(requests(request(0, 0, phase="warmup"), failed_request(1, 0)), None, slo) == [False]


def test_each_limit_alone_is_told_too() -> None:
    verdicts = judge(FIVE, GAPS, parse_slo("ttft<=100ms,tpot<=50ms"))
    assert {name: (count.met, count.requests) for name, count in verdicts.by_limit.items()} == {
        "ttft": (3, 5),
        "tpot": (3, 5),
    }
    none = judge(FIVE, GAPS, parse_slo("ttft<=1ms,tpot<=1ms"))
    assert shares([verdicts, none]) == {
        "ttft": 0.3,
        "tpot": 0.4,
    }  # one token has no TPOT to violate


def test_each_limit_tells_how_long_it_would_have_to_be() -> None:
    def needed_s(share: float) -> float:
        slo = parse_slo(f"ttft<=1ms,attainment>={share}")
        return judge(FIVE, GAPS, slo).by_limit["ttft"].needed_s

    assert [needed_s(0.6), needed_s(0.8)] == pytest.approx([0.1, 0.3])
    assert math.isinf(needed_s(0.95))  # one of the five has no answer


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


# -- limits on parts of a mix

PART_LIMITS = st.dictionaries(
    st.sampled_from(LIMITS), st.integers(1, 10**6).map(lambda us: us / 1e6), min_size=1
)
PART_PERCENTILES = st.dictionaries(
    st.tuples(st.sampled_from(LIMITS), st.integers(1, 999)).map(
        lambda limit: f"{limit[0]}_p{limit[1] / 10:g}"
    ),
    st.integers(1, 10**6).map(lambda us: us / 1e6),
    max_size=2,
)
SHARES = st.integers(1, 100).map(lambda percent: percent / 100)


@st.composite
def slos_on_parts(draw: st.DrawFn) -> Slo:
    """An SLO with limits on one to three parts, some with an attainment of their own."""
    parts: dict[str, dict[str, float]] = {}
    names = draw(st.lists(st.sampled_from(["chat", "rag", "x-1.b"]), min_size=1, unique=True))
    for name in names:
        parts[name] = draw(PART_LIMITS) | draw(PART_PERCENTILES)
        if draw(st.booleans()):
            parts[name]["attainment"] = draw(SHARES)
    return Slo.model_validate({"parts": parts, "attainment": draw(SHARES)})


@given(slos_on_parts())
def test_limits_on_parts_read_back_as_they_are_written_out_and_in_json(slo: Slo) -> None:
    assert Slo.model_validate_json(slo.model_dump_json(exclude_defaults=True)) == slo
    back = parse_slo(format_slo(slo))
    assert targets_of(back) == pytest.approx(targets_of(slo))
    assert parts_of(back) == parts_of(slo)
    assert [limit.name for limit in back.limits] == [limit.name for limit in slo.limits]
    assert [limit.seconds for limit in back.limits] == pytest.approx(
        [limit.seconds for limit in slo.limits], rel=1e-5
    )


@settings(max_examples=80, deadline=None)
@given(
    slos_on_parts(),
    st.lists(
        st.lists(
            st.tuples(REQUEST, st.sampled_from(["chat", "rag", "x-1.b", "other"])), max_size=9
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_an_slo_on_parts_is_one_slo_per_part_on_its_requests_alone(
    slo: Slo, attempts: list[list[tuple[tuple[Any, ...], str]]]
) -> None:
    flat = [row for attempt in attempts for row in attempt]
    ends = np.cumsum([len(attempt) for attempt in attempts]).tolist()
    values = values_of(flat)
    judged = list(judge_each(values, slo, ends))
    for verdicts, attempt in zip(judged, attempts, strict=True):
        expected: list[tuple[str, list[bool], float]] = []
        counts: dict[str, LimitCount] = {}
        for group in slo.groups:
            of_part = [row for row in attempt if row[1] == group.part]
            names = {limit.name.partition(":")[2]: limit.seconds for limit in group.limits}
            joint = {"attainment": group.attainment} if group.is_joint else {}
            alone = Slo.model_validate(names | joint)
            of_slo_alone = judge_values(values_of(of_part), alone)
            expected += [
                (f"{group.part}:{test.name}", test.met.tolist(), test.target)
                for test in of_slo_alone.tests
            ]
            counts |= {
                f"{group.part}:{name}": count for name, count in of_slo_alone.by_limit.items()
            }
        found = [(test.name, test.met.tolist(), test.target) for test in verdicts.tests]
        assert found == expected
        assert verdicts.by_limit == counts


def values_of(rows: list[tuple[tuple[Any, ...], str]]) -> LimitValues:
    """The values of requests, each with its part."""
    names = ("chat", "rag", "x-1.b", "other")
    columns = np.array([row[0][1:] for row in rows], np.float64).reshape(-1, len(LIMITS))
    return LimitValues(
        np.array([row[0][0] for row in rows], np.bool_),
        {name: columns[:, place] for place, name in enumerate(LIMITS)},
        RequestParts(names, np.array([names.index(row[1]) for row in rows], np.int64)),
    )


def test_the_parts_of_requests_are_those_of_their_rows() -> None:
    rows = requests(
        request(0, 0, part="rag", first_ms=100, last_ms=200, tokens=3),
        request(1, 10, part="chat", first_ms=900, last_ms=950, tokens=3),
        failed_request(2, 20, part="rag"),
        request(3, 30, part="rag", first_ms=90, last_ms=95, tokens=2, phase="warmup"),
        request(4, 40, part="chat", first_ms=90, last_ms=95, tokens=2),
    )
    slo = parse_slo("chat:ttft<=500ms,rag:ttft<=2s,rag:attainment>=0.5,attainment>=0.9")
    verdicts = judge(rows, None, slo)
    assert [(test.name, test.part, test.met.tolist(), test.target) for test in verdicts.tests] == [
        ("chat:attainment", "chat", [False, True], 0.9),
        ("rag:attainment", "rag", [True, False], 0.5),
    ]
    assert verdicts.requests_in_limits == 2
    assert verdicts.attainment == 0.5, "that of the part which is worst off"
    assert shares([verdicts]) == {"chat:ttft": 0.5, "rag:ttft": 0.5}


def test_limits_on_parts_say_nothing_of_a_workload_without_parts() -> None:
    verdicts = judge(FIVE, None, parse_slo("chat:ttft<=500ms"))
    assert [test.met.size for test in verdicts.tests] == [0]
    assert verdicts.attainment is None
    assert shares([verdicts]) == {}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("chat:ttft<=1s,tpot<=1s", "limits of parts and limits on all requests are two SLOs"),
        ("chat:attainment>=0.9", "part 'chat' has no limit"),
        ("chat:ttft_p95<=1s,attainment>=0.9", "all limits here are on percentiles"),
        ("chat:agreement>=0.9,chat:ttft<=1s", "a part has no agreement of its own"),
        ("chat:ttft<=1s,chat:ttft<=2s", "ttft is given twice"),
        ("chat:tttt<=1s", "did you mean 'ttft'"),
    ],
)
def test_limits_on_parts_that_mean_nothing_are_refused(text: str, advice: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_slo(text)
    assert advice in str(caught.value.problems[0])


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("ttft<=350ms,e2e_p99<=9s,tpot_p90<=50ms,attainment>=99.9%", True),
        ("tpot_p90<=0.05s,attainment>=0.999,e2e_p99<=9000ms,ttft<=0.35s", True),
        ("ttft<=350ms,e2e_p99<=9s,tpot_p90<=50ms", False),
        ("ttft<=351ms,e2e_p99<=9s,tpot_p90<=50ms,attainment>=99.9%", False),
        ("ttft<=350ms,e2e_p99<=9s,attainment>=99.9%", False),
        ("ttft<=350ms,e2e_p99<=9s,tpot_p90<=50ms,attainment>=99.9%,agreement>=0.9", False),
    ],
)
def test_limits_are_the_same_whatever_their_name_order_and_units(text: str, is_same: bool) -> None:
    of_file = Slo.model_validate(
        {
            "name": "interactive",
            "attainment": 0.999,
            "ttft": 0.35,
            "e2e_p99": 9.0,
            "tpot_p90": 0.05,
        }
    )
    assert have_same_limits(of_file, parse_slo(text)) is is_same
    assert have_same_limits(parse_slo(text), of_file) is is_same


def test_limits_of_parts_are_the_same_with_the_shares_of_the_parts() -> None:
    slo = parse_slo("chat:ttft<=1s,chat:attainment>=0.9,batch:e2e<=60s")
    assert have_same_limits(slo, parse_slo("batch:e2e<=60s,chat:attainment>=0.9,chat:ttft<=1s"))
    assert not have_same_limits(slo, parse_slo("chat:ttft<=1s,batch:e2e<=60s"))

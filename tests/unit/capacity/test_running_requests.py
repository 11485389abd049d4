"""Outcomes of a running probe are those that are found in its rows afterwards."""

from __future__ import annotations

import numpy as np

from orchestrator.analysis.slo import judge, limit_values, targets_of
from orchestrator.capacity.running_requests import WHOLE_POINT, outcomes
from orchestrator.load.point import OpenRequests, SoFar
from orchestrator.spec.load import Slo
from tests.unit.results.builders import events, failed_request, request, requests

FAST = Slo(name="fast", ttft=0.2, tpot=0.05)
WHOLE = Slo(name="whole", e2e=1.0, itl_p99=0.06)
P90 = Slo.model_validate({"name": "p90", "ttft": 0.2, "tpot_p90": 0.1})  # two tests
SECOND = 10**9
ROWS = requests(
    request(3, 300, first_ms=450, last_ms=650, tokens=5),
    request(1, 100, first_ms=400, last_ms=600, tokens=5),
    request(0, 0, phase="warmup"),
    failed_request(2, 200),
)
GAPS = events({3: [50] * 4, 1: [20, 20, 20, 140]})


def test_a_request_meets_while_the_probe_runs_what_its_row_meets_afterwards() -> None:
    found = outcomes([SoFar(SECOND, ())], ROWS, GAPS).met((FAST, WHOLE, P90))
    stored = [
        test
        for slo in (FAST, WHOLE, P90)
        for test in judge(limit_values(ROWS, GAPS, WHOLE_POINT), slo).tests
    ]
    assert found.tolist() == np.stack([test.met for test in stored], axis=-1).tolist()
    assert found.tolist() == [[False, False, False, True], [False] * 4, [True] * 4]
    targets = [targets_of(slo) for slo in (FAST, WHOLE, P90)]
    assert targets == [[0.95], [0.95], [0.95, 0.9]]


def test_requests_of_other_parts_count_in_no_test_of_a_part() -> None:
    rows = requests(
        request(0, 0, first_ms=100, last_ms=200, part="chat"),
        request(1, 10, first_ms=900, last_ms=950, part="rag"),
    )
    slo = Slo.model_validate({"parts": {"chat": {"ttft": 0.5}, "rag": {"ttft": 0.5}}})
    report = SoFar(
        2 * SECOND,
        (),
        silent=OpenRequests((0, 0), parts=("rag", "chat")),
        answering=OpenRequests((SECOND,), parts=("chat",)),
    )
    found = outcomes([report], rows, events({0: [10], 1: [10]}))
    assert found.tested((slo,)).tolist() == [[True, False], [False, True]]
    assert found.met((slo,)).tolist() == [[True, False], [False, False]]
    assert found.open_tested((slo,)).tolist() == [[False, True], [True, False], [True, False]]
    missed = found.open_missed((slo,)) & found.open_tested((slo,))
    assert missed.tolist() == [[False, True], [True, False], [False, False]]
    assert found.tested((FAST,)).all() and found.open_tested((FAST,)).all()


def test_instants_stand_beside_their_requests_and_warm_up_is_left_out() -> None:
    found = outcomes([SoFar(SECOND, ())], ROWS, GAPS)
    assert found.due_s.tolist() == [0.1, 0.2, 0.3]
    assert found.done_s.tolist() == [0.6, 0.2, 0.65]


def test_of_open_requests_only_what_is_already_too_late_is_missed() -> None:
    silent = OpenRequests((0, SECOND, 1_900_000_000))
    report = SoFar(2 * SECOND, (), silent=silent, answering=OpenRequests((0,)))
    found = outcomes([report], ROWS.slice(0, 0), GAPS.slice(0, 0))
    assert found.open_missed((FAST, WHOLE)).tolist() == [
        [True, True],
        [True, False],
        [False, False],
        [False, True],
    ]
    assert np.array_equal(found.open_due_s, [0.0, 1.0, 1.9, 0.0])
    assert found.met((FAST, WHOLE)).shape == (0, 2)


def test_open_requests_are_as_old_as_their_own_client_reported() -> None:
    """One client was heard of 0.15 s after its request was due, the other a second later: the limit
    is 0.2 s.
    """
    late = SoFar(SECOND, (), silent=OpenRequests((850_000_000,)))
    newest = SoFar(2 * SECOND, (), silent=OpenRequests((SECOND,)))
    found = outcomes([late, newest], ROWS.slice(0, 0), GAPS.slice(0, 0))
    assert found.open_missed((FAST,)).tolist() == [[False], [True]]
    assert found.now_s == 1.0  # of what was due later nobody knows what is still open

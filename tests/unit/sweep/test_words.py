"""What events and the live view say of a point, of a search and of broken output."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.analysis.broken_output import BrokenOutput, Sign
from orchestrator.analysis.slo import ANSWERED
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.estimate import Estimate
from orchestrator.results.records import AttemptData
from orchestrator.results.store import Store
from orchestrator.sweep.words import (
    broken_output_text,
    claim_words,
    level_words,
    measured_words,
)
from tests.unit.capacity.builders import at
from tests.unit.report.mixes import SLO, WINDOW, store_of_mix
from tests.unit.results.builders import commit_measurement, request
from tests.unit.sweep.simulation import plan_of

LEVELS = (cast("Any", object()),)  # some level was probed


def words_of(claim: Claim) -> str:
    return claim_words("request_rate", {"fast": claim})


def test_a_point_is_named_after_its_workload_and_its_level() -> None:
    (point,) = plan_of(levels="8").points
    assert level_words(point) == "w 8 in flight"


def test_nothing_is_known_of_an_slo_before_its_first_probe() -> None:
    assert words_of(Claim(None, 0.0, math.inf, "budget", ())) == "fast: nothing is known yet"


def test_a_confirmed_level_holds_and_the_next_one_fails() -> None:
    claim = Claim(16.0, 16.0, 20.0, "exact", LEVELS)
    assert words_of(claim) == "fast: holds 16 req/s, fails 20 req/s"


def test_a_level_that_passed_once_is_called_unconfirmed() -> None:
    claim = Claim(None, 0.0, 31.54, "budget", LEVELS, passed=16.0)
    assert words_of(claim) == "fast: passed 16 req/s, not confirmed, fails 31.54 req/s"


def test_without_a_failed_level_none_fails_yet() -> None:
    claim = Claim(None, 0.0, math.inf, "budget", LEVELS)
    assert words_of(claim) == "fast: no level passed yet, none fails yet"


@pytest.mark.parametrize(("high", "end"), [(16.0, ", fails 16 req/s"), (math.inf, "")])
def test_a_level_that_missed_is_not_said_to_fail_before_it_is_shown(high: float, end: str) -> None:
    claim = Claim(None, 0.0, high, "budget", LEVELS, missed=at(8.0))
    missed = "missed 8 req/s, not yet shown to fail (1,000 requests)"
    assert words_of(claim) == f"fast: no level passed yet, {missed}{end}"


def test_an_estimate_stands_for_the_levels_that_passed_and_failed() -> None:
    estimate = Estimate(16.2, 15.1, 17.04, 13.07)
    claim = Claim(None, 13.07, 19.3, "budget", LEVELS, passed=14.2, estimate=estimate)
    assert words_of(claim) == "fast: estimate 16.2 req/s (15.1 to 17.0), safe so far 13.1"


def test_a_claim_stands_before_the_estimate() -> None:
    claim = Claim(12.0, 12.0, 19.3, "outraced", LEVELS, estimate=Estimate(16.2, 15.1, 17.0, None))
    assert words_of(claim) == "fast: holds 12 req/s, estimate 16.2 req/s (15.1 to 17.0), outraced"


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            BrokenOutput(Sign.NAN, 8, answers_with_nan=5),
            "in 5 of 8 answers to fixed prompts a log-probability is NaN",
        ),
        (BrokenOutput(Sign.EMPTY, 8), "all 8 answers to fixed prompts are empty"),
        (
            BrokenOutput(Sign.SAME_TOKEN, 8, tokens=64, token_id=0),
            "all 64 tokens of 8 answers to different prompts are the same (id 0)",
        ),
        (
            BrokenOutput(Sign.SAME_TOKEN_AFTER_FIRST, 8, replica=1, tokens=56, token_id=3),
            "replica 1: all 56 tokens after the first of 8 answers to different prompts are the"
            " same (id 3)",
        ),
        (
            BrokenOutput(Sign.SAME_TEXT, 8, piece="!"),
            "all 8 answers to different prompts repeat '!'",
        ),
    ],
)
def test_every_sign_of_broken_output_has_a_sentence(broken: BrokenOutput, text: str) -> None:
    assert broken_output_text(broken) == text


def first_attempt(store: Store) -> AttemptData:
    """The attempt that was committed first, with its figures."""
    return next(attempt_data(store, store.commits(checked=True)))


def test_each_part_of_a_mix_is_told_behind_the_whole(tmp_path: Path) -> None:
    words = measured_words(first_attempt(store_of_mix(tmp_path)), [SLO]).split("; ")
    assert words == [
        "failing, 67 tok/s, TTFT p99 400 ms, 100 % slo",
        "chat: 40 tok/s, TTFT p99 100 ms, 100 % slo",
        "rag: 27 tok/s, TTFT p99 400 ms, 75 % slo",
    ]
    # both fit a terminal of 80 columns beside the time and a short label
    assert all(len(sentence) < 50 for sentence in words)


def test_more_parts_than_a_line_holds_are_counted(tmp_path: Path) -> None:
    rows = [request(n, 50 * n, part=f"part-{n}") for n in range(7)]
    store = Store.open(str(tmp_path), "exp")
    commit_measurement(store, "m", rows, window_end_ns=WINDOW.end_ns)
    words = measured_words(first_attempt(store), [ANSWERED]).split("; ")
    assert [sentence.split(":")[0] for sentence in words[1:]] == [
        "part-0",
        "part-1",
        "part-2",
        "part-3",
        "and 3 more parts",
    ]


def test_what_is_no_mix_is_told_in_one_sentence(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_measurement(store, "m", [request(0, 0)], window_end_ns=WINDOW.end_ns)
    assert ";" not in measured_words(first_attempt(store), [ANSWERED])

"""Doubts as lines: a cause, the deployments it is about, and what would decide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.capacity.answers import SearchedClaim
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.doubts import (
    DeploymentClaims,
    DeploymentLevels,
    Doubt,
    DoubtKind,
    Remedy,
)
from orchestrator.capacity.first_change import (
    FirstChange,
    LongerProbes,
    WiderPrecision,
    WidestMiss,
)
from orchestrator.report.doubt_lines import doubt_line_text, doubt_lines, merged
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Level, Limit

LEVEL = Level(control="request_rate", value=8)
HIGHER = Level(control="request_rate", value=16)
AT_LEVEL = (DeploymentLevels("a", (LEVEL,)),)
SEARCHED = (DeploymentClaims("a", (SearchedClaim("request_rate", Claim(8, 8, 9, "budget", ())),)),)


def text_of(doubt: Doubt, ranked: tuple[str, ...] = ("a", "b", "c"), width: int = 100) -> str:
    (line,) = doubt_lines([doubt])
    return doubt_line_text(line, ranked, width)


def searched(label: str, change: FirstChange | None) -> DeploymentClaims:
    claim = Claim(None, 0, 12, "unresolved", ())
    return DeploymentClaims(label, (SearchedClaim("request_rate", claim, change),))


@pytest.mark.parametrize(
    ("remedy", "changes", "text"),
    [
        (Remedy.WIDER_PRECISION, (WiderPrecision(0.2),), "precision: 0.2"),
        (Remedy.WIDER_PRECISION, (WiderPrecision(0.2), WiderPrecision(0.1)), "precision: 0.2"),
        (Remedy.LONGER_PROBES, (LongerProbes(8, 100), LongerProbes(4, 610)), "duration: 11m"),
        (Remedy.LONGER_PROBES, (LongerProbes(8, 100), None), "a longer duration"),
    ],
)
def test_an_unresolved_search_says_what_takes_all_of_them_further(
    remedy: Remedy, changes: tuple[FirstChange | None, ...], text: str
) -> None:
    claims = tuple(searched("a", change) for change in changes)
    doubt = Doubt(DoubtKind.NOT_SETTLED, ("a",), remedy, claims=claims)
    assert text_of(doubt).partition("to decide: ")[2] == text


def test_where_nothing_holds_each_question_names_the_limit_to_change_first() -> None:
    lines = []
    for seconds in (0.5, 0.2):
        limit = Limit("ttft", "ttft", seconds, None)
        miss = WidestMiss(1.0, limit, needed=0.9, met=0.2, value_s=0.9)
        claims = (searched("a", miss),)
        doubt = Doubt(DoubtKind.NOT_SETTLED, ("a",), Remedy.OTHER_LIMITS, claims=claims)
        lines += doubt_lines([doubt])
    (line,) = merged(lines)
    assert line.first_changes == (
        "the limit ttft<=500ms: 90% of requests took up to 900ms at 1 req/s (a)",
        "the limit ttft<=200ms: 90% of requests took up to 900ms at 1 req/s (a)",
    )


@pytest.mark.parametrize(
    ("doubt", "text"),
    [
        (
            Doubt(DoubtKind.NOT_MEASURED, ("a",), Remedy.RUN_AGAIN, startable_deployments=2),
            "not measured yet (a); to decide: run again (max_deployments allows 2 more)",
        ),
        (
            Doubt(DoubtKind.NOT_MEASURED, ("a",), Remedy.MORE_DEPLOYMENTS),
            "not measured yet (a); to decide: a larger max_deployments",
        ),
        (
            Doubt(DoubtKind.OPEN_LEVELS, ("a",), Remedy.RUN_AGAIN, levels=AT_LEVEL),
            "no valid measurement (a at 8 req/s); to decide: run again",
        ),
        (
            Doubt(DoubtKind.NEAR_THE_LIMIT, ("a",), Remedy.MORE_REPEATS_OR_LONGER, levels=AT_LEVEL),
            "too near the limit to tell (a at 8 req/s); to decide: more repeats, or longer",
        ),
        (
            Doubt(DoubtKind.NOT_SETTLED, ("a",), Remedy.SEARCH_LONGER, claims=SEARCHED),
            "search not settled (a budget); to decide: search longer",
        ),
        (
            Doubt(DoubtKind.SIMULATED, ("b",), Remedy.MEASURE, leader="a", shortlist_size=3),
            "too close to call (b); to decide: run --shortlist 3",
        ),
        (
            Doubt(DoubtKind.SIMULATED, ("b",), Remedy.MEASURE, leader="a", deployments_of_run=3),
            "too close to call (b); to decide: measure all",
        ),
        (
            Doubt(DoubtKind.SIMULATED, ("b",), Remedy.MEASURE, leader="a"),
            "too close to call (b); to decide: measure both",
        ),
        (
            Doubt(DoubtKind.SIMULATED, ("b", "c"), Remedy.MEASURE, leader="a"),
            "too close to call (b, c); to decide: measure all 3",
        ),
        (
            Doubt(DoubtKind.SIMULATED, (), Remedy.MEASURE, leader="a"),
            "nothing was measured; to decide: measure the first",
        ),
        (
            Doubt(DoubtKind.NOT_SETTLED, ("a",), Remedy.OTHER_LIMITS, claims=SEARCHED),
            "no load holds (a budget); to decide: other limits",
        ),
        (
            Doubt(DoubtKind.CAPACITY_NOT_REACHED, ("a",), Remedy.HIGHER_LEVELS, levels=AT_LEVEL),
            "limit not reached (a); to decide: measure above 8 req/s",
        ),
        (
            Doubt(DoubtKind.CAPACITY_NOT_REACHED, ("a",), Remedy.STRETCH, levels=AT_LEVEL),
            "limit not reached (a); to decide: scale: stretch, or a busier trace",
        ),
        (Doubt(DoubtKind.INCOMPARABLE, ("a",)), "cannot be compared (a)"),
        (
            Doubt(DoubtKind.ONE_START, ("a", "b"), Remedy.MORE_STARTS, to_remedy=("a",)),
            "one start, spread unknown (a, b); to decide: starts: 2 for a",
        ),
        (
            Doubt(
                DoubtKind.STARTS_DIFFER,
                ("b",),
                Remedy.MORE_STARTS,
                levels=(*AT_LEVEL, DeploymentLevels("b", (HIGHER,))),
                starts_needed=5,
            ),
            "behind by less than starts differ (b);"
            " to decide: about 5 starts each of a at 8 req/s and b at 16 req/s",
        ),
        (
            Doubt(DoubtKind.BOUNDS_OVERLAP, ("b",), leader="a", excess=0.042),
            "could hold up to 4.2% more than the first, levels are 1.5% apart (b)",
        ),
        (
            Doubt(DoubtKind.NO_LEVEL_HOLDS, ("a",), Remedy.LOWER_LEVELS, levels=AT_LEVEL),
            "to decide: measure below 8 req/s (a)",
        ),
        (
            Doubt(DoubtKind.NO_LEVEL_HOLDS, ("a", "b"), Remedy.LONGER_CONTEXT),
            "to decide: raise max_model_len if refused requests (http_4xx) are too long (a, b)",
        ),
        (
            Doubt(DoubtKind.NO_LOAD_HELPS, ("a",), Remedy.REPAIR, validity=Validity.BROKEN_OUTPUT),
            "to decide: change a: no load makes output of such answers"
            " (docs/explained/validity.md#broken_output)",
        ),
    ],
    ids=lambda value: value.kind.name if isinstance(value, Doubt) else "",
)
def test_a_line_is_the_cause_the_names_and_what_would_decide(doubt: Doubt, text: str) -> None:
    assert text_of(doubt) == text


@pytest.mark.parametrize("kind", DoubtKind)
def test_each_kind_has_words(kind: DoubtKind) -> None:
    attained: Any = SimpleNamespace(
        name="attainment", part=None, share=Interval(0.96, 0.9, 1.0), target=0.95
    )
    (line,) = doubt_lines([Doubt(kind, ("a",), levels=AT_LEVEL, claims=SEARCHED, test=attained)])
    assert line.cause or kind in (DoubtKind.NO_LEVEL_HOLDS, DoubtKind.NO_LOAD_HELPS)


@pytest.mark.parametrize("remedy", Remedy)
def test_each_remedy_has_words(remedy: Remedy) -> None:
    doubt = Doubt(
        DoubtKind.ONE_START,
        ("a",),
        remedy,
        levels=AT_LEVEL,
        claims=(searched("a", WiderPrecision(0.2)),),
        validity=Validity.BROKEN_OUTPUT,
    )
    (line,) = doubt_lines([doubt])
    assert line.remedy
    assert line.is_run_again is (remedy is Remedy.RUN_AGAIN)


def test_what_is_said_of_all_in_the_ranking_names_none() -> None:
    two = Doubt(DoubtKind.REPEATS_NOT_VALID, ("a", "b"))
    assert text_of(two, ranked=("a", "b")) == "repeats failed or not valid (both)"
    assert text_of(two, ranked=("a", "b", "c")) == "repeats failed or not valid (a, b)"
    three = Doubt(DoubtKind.REPEATS_NOT_VALID, ("a", "b", "c"))
    assert text_of(three) == "repeats failed or not valid (all 3)"
    assert text_of(Doubt(DoubtKind.REPEATS_NOT_VALID, ("a",)), ("a",)).endswith("(a)")


def test_names_are_cut_where_the_width_is_too_small() -> None:
    names = tuple(f"deployment-{at}" for at in range(9))
    doubt = Doubt(DoubtKind.INCOMPARABLE, names)
    assert text_of(doubt, (), 100).endswith("deployment-4 and 4 more)")
    assert text_of(doubt, (), 60) == "cannot be compared (deployment-0, deployment-1 and 7 more)"
    assert text_of(doubt, (), 20) == "cannot be compared (9 deployments)"


def test_where_a_name_with_its_level_has_no_room_it_stands_alone() -> None:
    levels = (DeploymentLevels("engine tp=1", (LEVEL,)),)
    doubt = Doubt(DoubtKind.OPEN_LEVELS, ("engine tp=1",), Remedy.RUN_AGAIN, levels=levels)
    long = "no valid measurement (engine tp=1 at 8 req/s); to decide: run again"
    short = "no valid measurement (engine tp=1); to decide: run again"
    assert text_of(doubt, (), len(long)) == long
    assert text_of(doubt, (), len(long) - 1) == short
    assert text_of(doubt, (), len(short)) == short


def test_a_long_name_is_cut_so_that_what_would_decide_is_seen() -> None:
    doubt = Doubt(DoubtKind.ONE_START, ("x" * 90,), Remedy.SEARCH_LONGER)
    text = text_of(doubt, (), 80)
    assert len(text) == 80
    assert text.endswith("xxx…); to decide: search longer")


def test_lines_that_say_the_same_become_one_about_all_names() -> None:
    lines = doubt_lines(
        [
            Doubt(DoubtKind.INCOMPARABLE, ("a", "b")),
            Doubt(DoubtKind.REPEATS_NOT_VALID, ("a",)),
        ]
    )
    lines += doubt_lines([Doubt(DoubtKind.INCOMPARABLE, ("b", "c"))])
    incomparable, repeats = merged(lines)
    assert incomparable.names == incomparable.deployments == ("a", "b", "c")
    assert repeats.names == ("a",)

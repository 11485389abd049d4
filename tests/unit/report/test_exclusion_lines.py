"""What is left out, counted by reason."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.capacity.answers import Excluded, Exclusion
from orchestrator.report.documents.answer import ExcludedDocument
from orchestrator.report.exclusion_lines import (
    exclusion_line_text,
    exclusion_lines,
    nearest_text,
    spoilt_text,
)


def excluded(
    label: str, reason: Exclusion, level: float | None = None, text: str = "", **changes: Any
) -> ExcludedDocument:
    deployment: Any = SimpleNamespace(label=label)
    point: Any = SimpleNamespace(head=SimpleNamespace(control="concurrency", level=level))
    of_level = point if level is not None else None
    return ExcludedDocument(Excluded(deployment, reason, level=of_level, **changes), text)


def evidence(
    validity: str = "valid",
    reason: str | None = None,
    kind: str | None = None,
    reasons: Sequence[str] = (),
) -> Any:
    repeat = SimpleNamespace(head=SimpleNamespace(reason=reason, failure_kind=kind))
    return SimpleNamespace(
        validity=validity, engine_failures=[], repeats=[repeat], reasons=list(reasons)
    )


def no_level(label: str, share: float) -> ExcludedDocument:
    test = SimpleNamespace(share=Interval(share, share, share), target=0.9)
    shortfall: Any = SimpleNamespace(test=test)
    text = f"no level holds the limits: attainment is at most {share}"
    return excluded(label, Exclusion.NO_LEVEL_HOLDS, text=text, shortfall=shortfall)


def lines_of(*documents: ExcludedDocument, width: int = 100) -> list[str]:
    return [exclusion_line_text(line, width) for line in exclusion_lines(documents)]


def test_each_reason_is_a_line_with_its_count_and_the_levels_of_each_deployment() -> None:
    disturbed, failed = evidence("disturbed"), evidence(kind="oom_load", reason="It died.")
    assert lines_of(
        excluded("a", Exclusion.NOT_VALID, 4, evidence=disturbed),
        excluded("b", Exclusion.FAILED, 4, evidence=failed),
        excluded("a", Exclusion.NOT_VALID, 8, evidence=disturbed),
        excluded("c", Exclusion.NOT_VALID, 8, evidence=evidence("client_bound")),
    ) == [
        "2 levels disturbed: a at 4 in flight, 8 in flight",
        "1 level failed (oom_load): b at 4 in flight",
        "1 level client_bound: c at 8 in flight",
    ]


def test_what_spoilt_a_level_is_said_of_the_first() -> None:
    disturbed = evidence("disturbed", reasons=["n1: others took 62 % of its CPU", "and more"])
    (line,) = exclusion_lines(
        [
            excluded("a", Exclusion.NOT_VALID, 4, evidence=disturbed),
            excluded("b", Exclusion.NOT_VALID, 8, evidence=disturbed),
        ]
    )
    assert spoilt_text(line) == "for example: n1: others took 62 % of its CPU"


@pytest.mark.parametrize(
    "document",
    [
        excluded("a", Exclusion.NOT_VALID, 4, evidence=evidence("invalid", reasons=["it lies"])),
        excluded("a", Exclusion.NOT_VALID, 4, evidence=evidence("disturbed")),
        excluded("a", Exclusion.NO_LEVEL_HOLDS),
    ],
)
def test_what_the_engine_did_or_nobody_knows_is_not_called_spoilt(
    document: ExcludedDocument,
) -> None:
    (line,) = exclusion_lines([document])
    assert spoilt_text(line) is None


def test_a_failure_without_a_kind_is_told_by_how_its_reason_begins() -> None:
    document = excluded("a", Exclusion.FAILED, 4, evidence=evidence(reason="It died.\nBadly."))
    assert lines_of(document) == ["1 level failed (It died. Badly.): a at 4 in flight"]
    document = excluded("a", Exclusion.FAILED, 4, evidence=evidence())
    assert lines_of(document) == ["1 level failed: a at 4 in flight"]


@pytest.mark.parametrize("reason", set(Exclusion) - {Exclusion.FAILED, Exclusion.NOT_VALID})
def test_each_other_reason_has_words(reason: Exclusion) -> None:
    (line,) = lines_of(excluded("a", reason))
    assert line.startswith("1 deployment")
    assert line.endswith(": a")


def test_levels_go_before_names_where_the_width_is_too_small() -> None:
    point = evidence("disturbed")
    documents = [
        excluded(f"deployment-{at}", Exclusion.NOT_VALID, 4, evidence=point) for at in range(12)
    ]
    assert lines_of(*documents[:2], width=60) == [
        "2 levels disturbed: deployment-0, deployment-1",
    ]
    assert lines_of(*documents) == [
        "12 levels disturbed: deployment-0, deployment-1, deployment-2 and 9 more: --format json"
    ]
    assert lines_of(*documents, width=44) == ["12 levels disturbed: deployment-0 and 11 more"]


def test_the_nearest_to_the_limits_is_known_with_its_reason() -> None:
    (line,) = exclusion_lines([no_level("a", 0.2), no_level("b", 0.8), no_level("c", 0.5)])
    assert nearest_text(line) == "nearest: b: attainment is at most 0.8"
    (line,) = exclusion_lines([excluded("a", Exclusion.NO_REQUESTS, 4)])
    assert nearest_text(line) is None

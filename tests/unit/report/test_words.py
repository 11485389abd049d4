"""The sentences about an answer: one for each verdict, doubt, remedy, exclusion and note."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from orchestrator.analysis.deployments import ComparedModel
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.output_agreement import Agreement, AgreementNote, Disagreement
from orchestrator.analysis.points import Attained
from orchestrator.analysis.slo import parse_slo
from orchestrator.capacity.answers import (
    ExceededPercentile,
    Excluded,
    Exclusion,
    MissedLimit,
    Note,
    NoteKind,
    SearchedClaim,
    Shortfall,
)
from orchestrator.capacity.best import Certainty, Comparison
from orchestrator.capacity.claim import Claim, ClaimStatus
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
from orchestrator.report.words import (
    claim_text,
    disagreement_text,
    doubt_text,
    failure_text,
    first_change_text,
    key_text,
    model_text,
    note_texts,
    on_hardware,
    option_text,
    point_doubt_texts,
    remedy_texts,
    search_status_text,
    short_model_text,
    shortfall_text,
    slo_text,
    unit_text,
    verdict_text,
)
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Level, Limit
from orchestrator.spec.settings import NO_HARDWARE

SLO = parse_slo("ttft<=500ms,attainment>=0.9")
TTFT = Limit(name="ttft", of="ttft", seconds=0.5, share=None)
AT_8 = (DeploymentLevels("a", (Level(control="request_rate", value=8),)),)


def comparison(certainty: Certainty = Certainty.DOUBTED, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "experiment": "exp",
        "workload": "chat",
        "model": ComparedModel("m"),
        "hardware": "h100",
        "slo": SLO,
        "per": "gpu",
        "devices_are_cores": False,
        "ranking": (),
        "excluded": (),
        "certainty": certainty,
        "doubts": (),
        "emulated": False,
        "measured": True,
        "run_again": None,
    }
    return Comparison(**fields | changes)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (ComparedModel("org/m"), "org/m"),
        (ComparedModel("org/m", 1), "org/m and 1 more checkpoint of it"),
        (ComparedModel("org/m", 2), "org/m and 2 more checkpoints of it"),
    ],
)
def test_a_model_is_named_with_the_number_of_its_other_checkpoints(
    model: ComparedModel, text: str
) -> None:
    assert model_text(model) == text


def test_a_heading_names_a_model_in_a_folder_by_two_names() -> None:
    assert short_model_text(ComparedModel("/data/models/org/m/", 1)) == (
        "org/m and 1 more checkpoint of it"
    )
    assert short_model_text(ComparedModel("org/m")) == "org/m"


@pytest.mark.parametrize("certainty", list(Certainty))
def test_each_certainty_has_a_sentence(certainty: Certainty) -> None:
    judged = comparison(certainty, incomparable=Exclusion.PRICE_UNKNOWN)
    assert verdict_text(judged).startswith("certain") is judged.certain


def test_a_level_that_passed_unconfirmed_is_named_where_nothing_holds() -> None:
    claim = Claim(None, 0.0, math.inf, "budget", (), passed=8.0)
    searched = Excluded(
        deployment=SimpleNamespace(label="a"),  # type: ignore[arg-type]
        reason=Exclusion.SEARCH_FOUND_NO_LEVEL,
        claims=(SearchedClaim("request_rate", claim),),
    )
    text = verdict_text(comparison(Certainty.NOTHING_HOLDS, excluded=(searched,)))
    assert text == (
        "no deployment is confirmed to hold ttft<=500ms,attainment>=0.9: a passed 8 req/s"
    )


def doubt(kind: DoubtKind, remedy: Remedy | None = None) -> Doubt:
    """A doubt with all the facts that the sentence of any kind or remedy needs."""
    claim = Claim(8.0, 8.0, 9.0, "unresolved", ())
    searched = SearchedClaim("request_rate", claim, WiderPrecision(0.2))
    return Doubt(
        kind,
        deployments=("a",),
        remedy=remedy,
        to_remedy=("a",),
        levels=AT_8,
        claims=(DeploymentClaims("a", (searched,)),),
        leader="b",
        test=Attained("attainment", Interval(0.92, 0.88, 0.96), target=0.9),
        validity=Validity.BROKEN_OUTPUT,
    )


def test_each_doubt_of_a_ranking_has_a_sentence() -> None:
    of_no_ranking = {DoubtKind.NO_LEVEL_HOLDS, DoubtKind.NO_LOAD_HELPS}
    kinds = set(DoubtKind) - of_no_ranking
    assert len({doubt_text(doubt(kind)) for kind in kinds}) == len(kinds)


def test_each_remedy_has_a_sentence() -> None:
    doubts = tuple(doubt(DoubtKind.ONE_START, remedy) for remedy in Remedy)
    assert len(set(remedy_texts(comparison(doubts=doubts)))) == len(Remedy)


def test_doubts_are_joined_to_one_verdict() -> None:
    doubts = (Doubt(DoubtKind.ONE_START, ("a",)), Doubt(DoubtKind.INCOMPARABLE, ("b",)))
    text = verdict_text(comparison(doubts=doubts))
    assert text == ("not certain: one start: spread unknown; b cannot be compared with the others")


def test_a_doubt_without_a_remedy_advises_nothing() -> None:
    assert remedy_texts(comparison(doubts=(Doubt(DoubtKind.INCOMPARABLE, ("b",)),))) == []


def test_the_command_follows_the_advice_to_run_again() -> None:
    open_levels = doubt(DoubtKind.OPEN_LEVELS, Remedy.RUN_AGAIN)
    doubted = comparison(doubts=(open_levels,), run_command="orchestrator run x")
    (text,) = remedy_texts(doubted)
    assert text == (
        "run the experiment again: it measures a at 8 req/s as far as that was spoilt, failed or is"
        " missing: orchestrator run x"
    )


def test_bounds_that_no_search_can_narrow_say_so() -> None:
    overlap = Doubt(DoubtKind.BOUNDS_OVERLAP, ("b",), leader="a", excess=0.02)
    assert doubt_text(overlap).startswith("bounds overlap: b could hold up to 2.0% more")
    assert "no search tells more" in doubt_text(overlap)


def test_the_unit_names_cores_where_there_are_no_gpus() -> None:
    assert unit_text(comparison()) == "output tokens/s per GPU"
    assert unit_text(comparison(devices_are_cores=True)) == "output tokens/s per core"
    assert unit_text(comparison(per="usd")) == "output tokens/USD"
    assert unit_text(comparison(per="deployment")) == "output tokens/s"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (6.9, 7.9, "between 6.9 and 7.9 req/s"),
        (6.9, math.inf, "at least 6.9 req/s"),
        (0.0, math.inf, "unknown"),
    ],
)
def test_a_claim_lies_between_bounds(low: float, high: float, text: str) -> None:
    claim = Claim(claim=None, low=low, high=high, status="budget", levels=())
    assert claim_text("request_rate", claim) == text


def test_a_shortfall_is_a_percentile_beyond_its_limit_or_a_share_below_its_target() -> None:
    point: Any = SimpleNamespace(requests=SimpleNamespace(failed=2, scheduled=10))
    test = Attained("attainment", Interval(0.5, 0.4, 0.6), 0.9)
    (limit,) = SLO.limits
    by_percentile = Shortfall(test, ExceededPercentile(limit, "p90", 640.0))
    assert shortfall_text(point, by_percentile) == "ttft p90 there: 640 ms, limit 500ms"
    by_share = Shortfall(test, None, (MissedLimit(limit, 0.7),))
    assert shortfall_text(point, by_share) == (
        "ttft<=500ms was met by 0.700 there; 2 of 10 requests failed there"
    )


def test_an_agreement_that_is_not_known_says_why() -> None:
    unknown = Disagreement(Agreement(note=AgreementNote.NOT_STORED), 0.9)
    assert disagreement_text(unknown).endswith("no answers of it are stored")
    known = Disagreement(Agreement(0.5, 256, "tokens", "ref"), 0.9)
    assert disagreement_text(known) == ("its agreement with ref is 0.500 (n=256 tokens), not 0.9")


def test_each_note_has_a_sentence() -> None:
    test = Attained("ttft_p95", Interval(0.96, 0.9, 1.0), 0.95)
    point = SimpleNamespace(
        repeats=[1, 2],
        used_repeats=[SimpleNamespace(valid=False)],
        requests=SimpleNamespace(failed=1, scheduled=10),
        agreement=Agreement(0.01, 256, "tokens", "ref"),
    )
    notes = [Note(kind, test, ("b",)) for kind in NoteKind]
    ranked: Any = SimpleNamespace(notes=notes, point=point)
    texts = note_texts(ranked)
    assert len(set(texts)) == len(NoteKind)
    assert "the share within ttft_p95 0.960 is not certain to be at least 0.95" in texts


def test_a_failure_has_its_class_and_kind_behind_the_reason() -> None:
    failure: Any = SimpleNamespace(
        reason="It died.", failure_class="engine_crash", failure_kind="oom"
    )
    assert failure_text(failure) == "It died. (engine_crash: oom)"
    unknown: Any = SimpleNamespace(reason="It died.", failure_class=None, failure_kind=None)
    assert failure_text(unknown) == "It died."


def test_limits_of_the_command_line_have_no_name() -> None:
    assert slo_text(SLO) == "ttft<=500ms,attainment>=0.9"
    assert slo_text(SLO.model_copy(update={"name": "fast"})) == (
        "fast (ttft<=500ms,attainment>=0.9)"
    )


def test_an_endpoint_has_no_hardware_to_name() -> None:
    assert (on_hardware("h100"), on_hardware(None), on_hardware(NO_HARDWARE)) == (
        " on h100",
        "",
        "",
    )


@pytest.mark.parametrize("status", get_args(ClaimStatus))
def test_each_end_of_a_search_has_a_sentence(status: ClaimStatus) -> None:
    if status == "outraced":  # a search of one endpoint has no rivals
        return
    text = search_status_text(status)
    assert text.startswith(f"{status}: ")
    assert len(text) > len(f"{status}: ")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            WiderPrecision(0.18),
            "--precision 0.18: then the claim is the answer, what fails lies no farther above",
        ),
        (
            LongerProbes(level=14.1, seconds=61.2),
            "--duration 62s: probes that long would decide 14.1 req/s",
        ),
        (
            LongerProbes(level=14.1, seconds=1441.0),
            "--duration 25m: probes that long would decide 14.1 req/s",
        ),
        (
            WidestMiss(level=0.5, limit=TTFT, needed=0.95, met=0.6, value_s=0.8123),
            "the limit ttft<=500ms: 95% of requests took up to 812ms at 0.5 req/s",
        ),
        (
            WidestMiss(level=0.5, limit=TTFT, needed=0.95, met=0.6, value_s=math.inf),
            "the limit ttft<=500ms: 60% of requests met it at 0.5 req/s, not 95%",
        ),
    ],
)
def test_what_to_change_first_is_an_option_with_its_value_or_a_limit_with_its_miss(
    change: FirstChange, text: str
) -> None:
    assert first_change_text("request_rate", change, option_text) == text
    in_a_file = first_change_text("request_rate", change, key_text)
    assert in_a_file == text.replace("--duration ", "duration: ").replace(
        "--precision ", "precision: "
    )


def repeat(validity: str = "valid", reason: str | None = None) -> Any:
    """A repeat of a point; one with a reason failed."""
    head = SimpleNamespace(validity=validity, reason=reason)
    is_ok = reason is None
    return SimpleNamespace(head=head, ok=is_ok, valid=is_ok and validity == "valid")


def doubts_of(*repeats: Any, validity: str = "valid", reasons: tuple[str, ...] = ()) -> list[str]:
    point: Any = SimpleNamespace(
        repeats=repeats,
        validity=validity,
        reasons=reasons,
        requests=SimpleNamespace(failed=2, scheduled=10),
        figures=SimpleNamespace(errors={"http_429": 2}),
    )
    return point_doubt_texts(point)


def test_a_valid_point_is_in_doubt_where_repeats_failed_or_have_another_verdict() -> None:
    assert doubts_of(repeat()) == []
    assert doubts_of(repeat(), repeat("disturbed"), repeat(reason="It died.")) == [
        "1 of 3 repeats are disturbed",
        "1 of 3 repeats failed: It died.",
    ]


def test_another_verdict_of_a_point_has_its_reasons() -> None:
    assert doubts_of(repeat(), validity="disturbed", reasons=("it was loud",)) == [
        "disturbed: it was loud"
    ]
    assert doubts_of(repeat(), validity="disturbed") == ["disturbed: no reason was stored"]


def test_a_failing_point_counts_its_errors() -> None:
    assert doubts_of(repeat(), validity="failing") == [
        "failing: 2 of 10 requests failed (http_429 2)"
    ]

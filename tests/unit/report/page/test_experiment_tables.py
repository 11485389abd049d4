import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.points import StoredPoint
from orchestrator.capacity.answers import Excluded, Exclusion
from orchestrator.catalog.work import MissingWork
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import LeftOut, PredictedShortlist
from orchestrator.report.page import experiment_tables
from orchestrator.report.page.experiment_tables import (
    EfficiencyNoteCount,
    ExperimentSection,
    LeftOutCount,
    UnlistedDeployment,
    efficiency_note_counts,
    experiment_section,
    left_out_counts,
    verdict_counts,
)
from orchestrator.report.selection import answers, limits, with_limits
from orchestrator.results.root import Results, open_results
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import commit_answers, points_of

STORE = Path(__file__).parents[3] / "golden" / "store.tar.xz"


def section_of(store: Store) -> ExperimentSection:
    stored = [StoredExperiment(store)]
    (judged,) = with_limits(None, stored)
    (answered,) = answers(limits(None, stored)).experiments
    return experiment_section(judged, answered)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(str(tmp_path), "exp")


@pytest.fixture
def points(store) -> list[StoredPoint]:
    store_sweep(store, planned(levels=[2]), validity="disturbed", validity_reasons=["busy", "54 %"])
    return points_of(store)


def test_verdicts_are_counted_with_an_example(points):
    (count,) = verdict_counts(points)
    assert (count.verdict, count.points) == ("disturbed", 2)
    assert count.example == f"{points[0].deployment.label}: busy; 54 %"


def test_what_adapters_and_constraints_cost_is_said_of_each_point(store):
    store_sweep(
        store, planned(levels=[2]), adapter_share=0.5, adapters_asked=2, constrained_share=0.25
    )
    costs = section_of(store).costs
    assert [text.partition(": ")[2].partition(",")[0] for text in costs] == [
        "constrained: 25.0% of requests",
        "constrained: 25.0% of requests",
        "2 adapters answered 50.0% of requests",
        "2 adapters answered 50.0% of requests",
    ]


def test_what_is_left_out_is_counted_by_reason(points):
    first, second = points
    excluded = [
        Excluded(first.deployment, Exclusion.NOT_VALID, first, first),
        Excluded(second.deployment, Exclusion.NO_LEVEL_HOLDS, evidence=second),
        Excluded(second.deployment, Exclusion.NOT_VALID, second, second),
    ]
    assert list(left_out_counts(excluded)) == [
        LeftOutCount(Exclusion.NOT_VALID, "disturbed", 2),
        LeftOutCount(Exclusion.NO_LEVEL_HOLDS, None, 1),
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    """What real runs with an emulator left."""
    folder = tmp_path_factory.mktemp("results")
    with tarfile.open(STORE) as archive:
        archive.extractall(folder, filter="data")
    return open_results(str(folder))


@pytest.fixture(scope="module")
def measured(results) -> dict[str, ExperimentSection]:
    return {name: section_of(results.store(name)) for name in ("capacity", "levels")}


def test_points_stand_beside_what_was_predicted(measured):
    section = measured["levels"]
    assert section.predicted
    assert section.more_predicted == 0
    assert all(document.prediction is not None for document in section.predicted)


def test_predictions_that_the_page_has_no_room_for_are_counted(results, measured, monkeypatch):
    monkeypatch.setattr(experiment_tables, "MOST_ROWS", 1)
    section = section_of(results.store("levels"))
    assert len(section.predicted) == 1
    assert section.more_predicted == len(measured["levels"].predicted) - 1


def test_the_efficiency_of_points_has_its_peaks_once_and_its_notes_counted(measured):
    section = measured["capacity"]
    assert len(section.efficient) == len(section.points) == 6
    (peaks,) = section.peaks
    assert (peaks.device, peaks.compute_type) == ("H100-80GB", "bfloat16")
    assert all(0 < row.efficiency.mbu.estimate < 1 for row in section.efficient)
    (note,) = section.efficiency_notes
    assert note == EfficiencyNoteCount("of the accelerator that the emulator imitates", False, 6)


def test_where_efficiency_is_not_known_the_reasons_are_counted(points):
    on_cores = [
        replace(point, deployment=replace(point.deployment, work=MissingWork.CPU))
        for point in points
    ]
    (note,) = efficiency_note_counts(on_cores)
    assert note == EfficiencyNoteCount("no peak of these CPU cores is known", True, 2)


def test_a_searched_workload_has_claims_and_their_levels(measured):
    section = measured["capacity"]
    assert [document.claim.claim for document in section.capacities] == [5, 10]
    assert all(document.claim.levels for document in section.capacities)
    assert measured["levels"].capacities == ()


def test_figures_of_launches_that_nobody_knows_have_no_column(measured):
    titles = list(measured["levels"].launch_figures.values())
    assert titles == ["weights", "KV tokens", "concurrency"]


def test_an_emulator_makes_its_answers_up(measured):
    assert measured["levels"].are_answers_made_up


def test_each_deployment_has_its_agreement(store):
    store_sweep(store, planned())
    commit_answers(store, (1, 2, 3, 4), (1, 2, 9, 9))
    section = section_of(store)
    shares = {each.agreement.share for each in section.agreements}
    assert shares == {None, 0.5}  # one of them is the reference
    assert not section.are_answers_made_up


def test_what_a_shortlist_left_out_is_listed_with_its_reason(store):
    plan = planned()
    first, second = plan.deployments
    left_out = LeftOut(why="not_predicted", reason="no term for a router")
    record = PredictedShortlist(size=1, source="s/", considered="", of=2, listed=1, candidates=1)
    shortlisted = plan.with_deployments(
        [first, second.model_copy(update={"left_out": left_out})]
    ).model_copy(update={"shortlist": record})
    store_sweep(store, shortlisted)
    (unlisted,) = section_of(store).unlisted
    reason = "not predicted (no term for a router), and no place is left"
    assert unlisted == UnlistedDeployment(second.label, reason)


def test_each_workload_of_the_plan_is_described(store):
    store_sweep(store, planned(levels=[2]))
    (each,) = section_of(store).workloads
    assert each.workload.name == "chat"
    assert each.facts.prompt_tokens.count == 1000
    assert each.facts.left_out == 0
    assert each.parts == ()

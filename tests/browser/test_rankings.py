"""The page ranks what the Python analysis ranks: under 500 random limits, prices and units."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.selection import answers, experiments, limits
from orchestrator.report.words import ranked_load_text, ranked_mark
from orchestrator.results.root import open_results
from orchestrator.results.store import Store
from orchestrator.spec.load import Objective, Per
from tests.browser.judging import TRIPLES, assert_judged_alike, bounds, comparison_of
from tests.browser.stores import MIXED, VARIED, commit_varied, varied_plan
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import commit_answers

pytestmark = pytest.mark.browser


def stored(store: Store) -> StoredExperiment:
    return StoredExperiment(store)


def test_levels_of_one_start(opened, levels):
    compared = assert_judged_alike(opened, levels)
    # not all out of reach
    assert all(compared.ranked[per] > TRIPLES / 10 for per in get_args(Objective))


@pytest.mark.timeout(300)
def test_several_starts_failed_requests_and_missing_levels_on_two_hardwares(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "varied")
    commit_varied(store, varied_plan())
    page = opened_store(store.uri)
    assert page.evaluate("app.shown.payload.groups.map((group) => group.hardware)") == [
        "cpu",
        "h100",
    ]
    compared = assert_judged_alike(page, stored(store))
    assert all(compared.ranked[per] > TRIPLES / 10 for per in get_args(Objective))
    assert compared.open_levels > TRIPLES / 10
    assert compared.near_levels > TRIPLES / 10


def test_simulated_points_whose_model_has_no_known_error(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "varied")
    commit_varied(store, varied_plan(), simulated=True, emulated=False)
    compared = assert_judged_alike(opened_store(store.uri), stored(store), triples=100)
    assert all(compared.ranked[per] > 3 for per in get_args(Objective)), compared


@pytest.mark.parametrize("simulated", [False, True])
def test_requests_that_are_due_at_once_beside_rates(tmp_path, opened_store, simulated):
    """Of those due at once only repeats show how much the throughput varies."""
    load = "{levels: {request_rate: [2, 4, inf], concurrency: [8]}, requests: 60}"
    by_levels = "{levels: {concurrency: [1, 2, 4, 8, 16]}, duration: 10s, warmup: 0s}"
    plan = varied_plan(VARIED.replace(by_levels, load))
    store = Store.open(str(tmp_path / "results"), "varied")
    commit_varied(store, plan, simulated=simulated, emulated=not simulated)
    experiment = stored(store)
    page = opened_store(store.uri)
    compared = assert_judged_alike(page, experiment, triples=60)
    assert compared.ranked["deployment"] > 0
    throughputs = {
        point.head.point_id: point.output_token_throughput()
        for point in experiment.points().current
    }
    at_once = page.evaluate(
        """app.shown.result.judged
          .filter(({ point, throughput }) => point.level === Infinity && throughput !== null)
          .map(({ point, throughput: { estimate, lower, upper } }) => (
            [point.point_id, [estimate, lower, upper]]))"""
    )
    assert at_once
    for point_id, interval in at_once:
        expected = bounds(throughputs[point_id])
        assert interval == pytest.approx(expected, rel=1e-9, nan_ok=True)


@pytest.mark.timeout(300)
def test_parts_of_a_mix_whose_gpus_were_read(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "mixed")
    commit_varied(store, varied_plan(MIXED), has_energy=True)
    page = opened_store(store.uri)
    assert page.evaluate("app.shown.payload.groups.map((group) => group.parts)") == [
        ["chat", "rag"],
        ["chat", "rag"],
    ]
    compared = assert_judged_alike(page, stored(store))
    assert all(compared.ranked[per] > TRIPLES / 10 for per in get_args(Per))
    assert compared.ranked_by_parts > TRIPLES / 5
    assert compared.near_levels > TRIPLES / 20


def test_parts_of_a_simulated_mix_whose_model_has_no_known_error(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "mixed")
    commit_varied(store, varied_plan(MIXED), simulated=True, emulated=False)
    compared = assert_judged_alike(opened_store(store.uri), stored(store), triples=60)
    assert compared.ranked_by_parts > 3, compared


def test_points_without_a_plan_are_ranked_with_those_that_were_asked_the_same(
    tmp_path, opened_store
):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
    Path(store.uri, "exp", "plan.json").unlink()
    experiment = stored(Store.open(store.uri, "exp"))
    page = opened_store(store.uri)
    tabs = page.locator("#tabs [role=tab]").all_inner_texts()
    assert [tab.rpartition(", ")[2] for tab in tabs] == ["question 1 of 2", "question 2 of 2"]
    compared = assert_judged_alike(page, experiment, triples=20)
    assert compared.ranked["deployment"] > 0


def test_a_deployment_that_was_never_measured_is_named(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "varied")
    plan = varied_plan()
    commit_varied(store, plan)
    page = opened_store(store.uri)
    page.locator("#tabs [role=tab]").nth(1).click()  # its hardware
    page.locator("#limit-ttft").focus()
    page.keyboard.press("End")
    assert f"not measured yet: {plan.deployments[-1].label}" in page.inner_text("#caution")
    page.locator("#tabs [role=tab]").nth(0).click()
    page.locator("#limit-ttft").focus()
    page.keyboard.press("End")
    assert "not measured yet: " not in page.inner_text("#caution")
    page.select_option("#per", "usd")  # which compares all hardware
    assert f"not measured yet: {plan.deployments[-1].label}" in page.inner_text("#caution")


TIMELINE_END = """() => {
  const { series } = echarts.getInstanceByDom(document.getElementById("timeline")).getOption();
  return series[0].data.at(-1)[0];
}"""


def ranked_labels(page: Any) -> list[str]:
    return page.evaluate("app.shown.result.ranking.map((ranked) => ranked.deployment.label)")


def test_each_slo_has_its_own_agreement(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    plan = planned()
    (loose, _) = plan.slos
    strict = loose.model_copy(update={"name": "strict", "agreement": 0.9})
    plan = plan.model_copy(update={"slos": (loose, strict)})
    store_sweep(store, plan)
    commit_answers(store, (1, 2, 3, 4), (1, 9, 9, 9))
    page = opened_store(store.uri)
    experiment = stored(store)
    for place, slo in enumerate((loose, strict)):
        page.locator("#slo-tabs [role=tab]").nth(place).click()
        (comparison,) = experiment.comparisons(experiment.points(slo), slo)
        labels = [ranked.label for ranked in comparison.ranking]
        assert ranked_labels(page) == labels
        assert len(labels) == 2 - place
    assert "(answers differ)" in page.inner_text("#not-ranked")


def test_under_the_limits_of_the_file_a_search_is_ranked_by_its_claims(opened, uri):
    (experiment,) = experiments(open_results(uri), "capacity")
    comparisons = answers(limits(None, [experiment])).comparisons
    comparison = comparison_of(opened, 0, comparisons)
    rows = opened.evaluate(
        """app.shown.result.ranking.map((ranked) => [ranked.deployment.label, ranked.load, ranked.mark,
          ranked.throughput.estimate, ranked.throughput.lower, ranked.throughput.upper])"""
    )
    assert len(rows) == len(comparison.ranking) > 0
    for row, ranked in zip(rows, comparison.ranking, strict=True):
        assert row[:3] == [ranked.label, ranked_load_text(ranked), ranked_mark(ranked)]
        assert row[3:] == pytest.approx(bounds(ranked.throughput), rel=1e-9)


def test_a_probe_that_ended_early_fails_stricter_limits_too(opened):
    """Such a probe is made up from the search's highest one, which is said to have ended early."""
    marks = opened.evaluate(
        """() => {
          const { payload, planes } = app.shown;
          const group = structuredClone(payload.groups[0]);
          const [slo] = group.slos;
          group.points = group.points.filter((point) => point.deployment === 0 && point.excluded === null);
          const highest = group.points.reduce((first, second) => (first.level > second.level ? first : second));
          const early = { ...highest, point_id: "early", level: highest.level + 1, excluded: "ended early", ended_early: true };
          group.points.push(early);
          const judged = new judge.GroupJudge(group, planes, payload.student_t);
          const none = judge.NO_LIMIT;
          const limits = Object.fromEntries(judge.LATENCIES.map((name) => [name, slo.stops[name] ?? none]));
          const noLimits = Object.fromEntries(judge.LATENCIES.map((name) => [name, none]));
          return [limits, noLimits].map((each) => {
            const asked = [{ part: null, limits: each, target: slo.attainment }];
            return judged.judge({ asked, per: "deployment", price: null }).ranking[0]?.mark;
          });
        }"""
    )
    assert marks == ["", "not the limit"]


def test_runs_of_load_are_ranked_together_as_best_ranks_them(tmp_path, opened_store):
    uri = str(tmp_path / "results")
    for name, ttft_ms in (("after", 100), ("before", 140)):
        plan = planned(name=name, levels=[1, 2])
        one = plan.model_copy(
            update={"deployments": plan.deployments[:1], "load_options": "asked alike"}
        )
        store_sweep(
            Store.open(uri, name),
            one,
            tokens=8 if name == "before" else 16,
            ttft_ms=ttft_ms,
            attempt_id=name,
        )
    page = opened_store(uri)
    comparisons = answers(limits(None, experiments(open_results(uri), None))).comparisons
    (comparison,) = [each for each in comparisons if each.slo.name == "interactive"]
    expected = [ranked.label for ranked in comparison.ranking]
    assert expected == ["after", "before"]
    ends = []
    for place in range(2):
        page.locator("#tabs [role=tab]").nth(place).click()
        assert ranked_labels(page) == expected
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # which draws every chart
        ends.append(page.evaluate(TIMELINE_END))
    assert ends == [pytest.approx(10.04, abs=0.01), pytest.approx(10.08, abs=0.01)]  # each its own


def test_limits_that_the_page_cannot_move_are_judged_under_those_of_the_file(
    tmp_path, opened_store
):
    store = Store.open(str(tmp_path / "results"), "varied")
    slo = parse_slo("ttft_p90<=120ms,e2e<=2s,attainment>=0.9")
    commit_varied(store, varied_plan().model_copy(update={"slos": (slo,)}))
    experiment = stored(store)
    comparisons = experiment.comparisons(experiment.points(slo), slo)
    page = opened_store(store.uri)
    compared = 0
    for group in range(2):
        page.locator("#tabs [role=tab]").nth(group).click()
        ranking = comparison_of(page, group, comparisons).ranking
        rows = page.evaluate(
            """app.shown.result.ranking.map(({ deployment, load, throughput, judged: { attainment } }) => [
              deployment.label, load, throughput.estimate, attainment.estimate, attainment.lower])"""
        )
        for row, ranked in zip(rows, ranking, strict=True):
            assert row[:2] == [ranked.label, ranked_load_text(ranked)]
            figures = [
                ranked.throughput.estimate,
                ranked.attainment.estimate,
                ranked.attainment.lower,
            ]
            assert row[2:] == pytest.approx(figures, rel=1e-9)
        compared += len(rows)
    assert compared > 1

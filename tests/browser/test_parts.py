"""Limits on the parts of a mix in the page: it starts from those of the file, each part's can be moved,
and what misses them is named.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.analysis.points import deciding_test
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.words import ranked_load_text
from orchestrator.results.store import Store
from tests.browser.conftest import quiet_page, written
from tests.browser.judging import bounds, comparison_of
from tests.browser.stores import MIXED, commit_varied, varied_plan
from tests.unit.report.stores import with_model_error

pytestmark = pytest.mark.browser
MODEL_ERROR = {
    "ttft": 0.2,
    "tpot": 0.1,
    "source": "a test",
    "within": {"ttft": 1.5, "tpot": 1.2},
    "counted": True,
}
JUDGED = """app.shown.result.judged.map(({ point, tests }) => [
  point.point_id, tests.map(({ part, share }) => [part, share.estimate, share.lower, share.upper])])"""
CELLS = """[...document.querySelectorAll("#ranking-table tr")].map((row) => (
  [...row.children].map((cell) => cell.textContent)))"""
SENT = """[...document.querySelectorAll("table.workloads tbody tr:not(.reason)")].map((row) => (
  [...row.children].map((cell) => cell.textContent)))"""
MARGINS = """app.shown.result.ranking.map(({ judged: { tests } }) => (
  tests.map(({ part, share, target }) => [part, share.estimate - target, share.lower - target])))"""
Y_AXIS = """echarts.getInstanceByDom(document.getElementById("curves")).getOption().yAxis[0].name"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Store:
    store = Store.open(str(tmp_path_factory.mktemp("mixed")), "mixed")
    commit_varied(store, varied_plan(MIXED))
    return store


@pytest.fixture(scope="module")
def report(mixed, tmp_path_factory):
    return written(mixed.uri, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def opened(browser, report):
    with quiet_page(browser, report) as page:
        yield page


def assert_tests_are_those_of_python(page: Any, experiment: StoredExperiment) -> None:
    """Under the first limits of the file."""
    points = {point.head.point_id: point for point in experiment.points(experiment.slos[0]).current}
    judged = page.evaluate(JUDGED)
    assert judged
    for point_id, tests in judged:
        expected = [[test.part, *bounds(test.share)] for test in points[point_id].tests]
        assert [part for part, *_ in tests] == [part for part, *_ in expected]
        for (_, *found), (_, *interval) in zip(tests, expected, strict=True):
            assert found == pytest.approx(interval, rel=1e-9)


def test_what_was_sent_has_a_line_for_each_part(opened):
    assert [row[:3] for row in opened.evaluate(SENT)] == [
        ["office", "mix", "16.0"],
        ["office: chat", "random, 66.7 % of requests", "16.0"],
        ["office: rag", "random, 33.3 % of requests", "64.0"],
    ]


def test_the_page_starts_from_the_limits_of_each_part(opened, mixed):
    experiment = StoredExperiment(mixed)
    assert opened.locator("#limits-on").input_value() == "rag"
    options = opened.locator("#limits-on option").all_inner_texts()
    assert options == ["all requests", "chat", "rag"]
    limits = opened.inner_text("#part-limits")
    assert "rag TTFT ≤ 400 ms, ≥ 70 %; chat TTFT ≤ 120 ms, ≥ 90 %" in limits
    assert opened.inner_text("#winner").startswith("These are the limits of the file")
    assert_tests_are_those_of_python(opened, experiment)
    comparisons = experiment.comparisons(experiment.points(experiment.slos[0]), experiment.slos[0])
    ranking = comparison_of(opened, 0, comparisons).ranking
    rows = opened.evaluate(
        "app.shown.result.ranking.map(({ deployment, load }) => [deployment.label, load])"
    )
    assert rows == [[ranked.label, ranked_load_text(ranked)] for ranked in ranking]
    assert rows


def test_intervals_of_simulated_parts_are_those_of_the_models_error(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "mixed")
    plan = with_model_error(varied_plan(MIXED), MODEL_ERROR)
    commit_varied(store, plan, simulated=True, emulated=False)
    experiment = StoredExperiment(store)
    point = experiment.points().current[0]
    assert point.model_error == ErrorFactors(ttft=1.5, tpot=1.2, source="a test")
    assert_tests_are_those_of_python(opened_store(store.uri), experiment)


def test_the_limits_of_each_part_are_moved_by_keyboard_and_stay_in_the_address(opened):
    chosen = opened.locator("#limits-on")
    chosen.focus()
    opened.keyboard.press("ArrowUp")
    assert chosen.input_value() == "chat"
    slider = opened.locator("#limit-ttft")
    assert slider.get_attribute("aria-valuetext") == "≤ 120 ms"
    assert slider.get_attribute("aria-label") == "TTFT of chat"
    slider.focus()
    opened.keyboard.press("Home")
    assert "chat at 1 in flight: emulator " in opened.inner_text("#not-ranked")
    least_s = opened.evaluate("app.shown.payload.stops.ttft[0]")
    opened.wait_for_url(f"**part.chat.ttft={least_s}&**")
    before = opened.evaluate("structuredClone(app.shown.choices)")
    assert "rag TTFT ≤ 400 ms" in opened.inner_text("#part-limits")
    assert "part.rag" not in opened.url
    opened.reload()
    opened.wait_for_selector("body[data-drawn]")
    assert opened.evaluate("app.shown.choices") == before
    assert "No deployment holds these limits" in opened.inner_text("#winner")


def test_the_ranking_names_the_part_that_is_worst_off_and_the_one_that_misses_next(opened, mixed):
    headings, *texts = opened.evaluate(CELLS)
    assert headings.index("of part") < headings.index("first to miss")
    assert "TTFT p99 ms of rag" in headings
    margins_of_rows = opened.evaluate(MARGINS)
    missed_of_rows = opened.evaluate(
        """app.shown.result.ranking.map(({ next }) => next && next.missed.map(({ part }) => part))"""
    )
    named = 0
    for margins, missed, cells in zip(margins_of_rows, missed_of_rows, texts, strict=True):
        weakest = min(margins, key=lambda margin: margin[1:])[0]
        assert cells[headings.index("of part")] == weakest
        if missed:
            assert cells[headings.index("first to miss")].startswith(" and ".join(missed))
            named += 1
    assert named


def test_in_a_ranking_by_python_the_part_is_that_of_its_attainment(tmp_path, opened_store):
    """The page judges no percentile, so it takes another part to be the worst off."""
    slo = parse_slo("attainment>=0.7,chat:ttft<=200ms,rag:ttft<=2s,rag:ttft_p90<=900ms")
    store = Store.open(str(tmp_path / "results"), "mixed")
    commit_varied(store, varied_plan(MIXED).model_copy(update={"slos": (slo,)}))
    experiment = StoredExperiment(store)
    page = opened_store(store.uri)
    comparisons = experiment.comparisons(experiment.points(slo), slo)
    ranking = comparison_of(page, 0, comparisons).ranking
    expected = [deciding_test(ranked.point.tests).part for ranked in ranking]
    headings, *texts = page.evaluate(CELLS)
    assert [cells[headings.index("of part")] for cells in texts] == expected
    of_page = page.evaluate(MARGINS)
    assert [min(margins, key=lambda margin: margin[1:])[0] for margins in of_page] != expected


def test_the_lowest_level_that_is_missed_is_named_for_rates_and_for_requests_in_flight(
    tmp_path, opened_store
):
    """Which of the two is lower cannot be said."""
    levels = "{request_rate: [4, 8], concurrency: [1, 2]}"
    plan = varied_plan(MIXED.replace("{concurrency: [1, 2, 4, 8, 16]}", levels))
    store = Store.open(str(tmp_path / "results"), "mixed")
    commit_varied(store, plan)
    page = opened_store(store.uri)
    page.locator("#limit-ttft").focus()
    page.keyboard.press("Home")
    lowest_loads = page.evaluate(
        """[...app.shown.result.missed.values()].map((lowest) => lowest.map(({ point }) => point.load))"""
    )
    assert ["1 in flight", "4 req/s"] in lowest_loads
    assert re.search(
        "missed by .* at 1 in flight, missed by .* at 4 req/s: emulator",
        page.inner_text("#not-ranked"),
    )


def test_limits_on_all_requests_together_judge_no_part(opened):
    opened.select_option("#limits-on", "")
    assert not opened.locator("#part-limits").is_visible()
    parts = opened.evaluate(
        "[...new Set(app.shown.result.judged.flatMap(({ tests }) => tests.map(({ part }) => part)))]"
    )
    assert parts == [None]
    assert "of part" not in opened.evaluate(CELLS)[0]


def test_other_limits_of_the_file_are_on_all_requests(opened):
    opened.locator("#slo-tabs [role=tab]").nth(1).click()
    assert opened.locator("#limits-on").input_value() == ""
    assert opened.evaluate("app.shown.choices.ttft") == 0.3
    opened.select_option("#limits-on", "chat")  # which begins with the same limits on each part
    assert "rag TTFT ≤ 300 ms, ≥ 80 %" in opened.inner_text("#part-limits")
    assert opened.inner_text("#winner") != ""


def test_limits_moved_on_all_requests_are_those_of_each_part_until_it_is_moved(opened):
    opened.locator("#slo-tabs [role=tab]").nth(1).click()
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("ArrowLeft")
    moved = opened.locator("#limit-ttft").get_attribute("aria-valuetext")
    assert moved != "≤ 300 ms"
    opened.select_option("#limits-on", "chat")
    assert opened.locator("#limit-ttft").get_attribute("aria-valuetext") == moved
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("Home")
    of_chat = opened.locator("#limit-ttft").get_attribute("aria-valuetext")
    limits = opened.inner_text("#part-limits")
    assert f"chat TTFT {of_chat}" in limits
    assert f"rag TTFT {moved}" in limits
    opened.wait_for_url("**part.chat.ttft=**")
    assert "part.rag" not in opened.url
    opened.select_option("#limits-on", "")
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("End")
    opened.select_option("#limits-on", "chat")
    assert opened.locator("#limit-ttft").get_attribute("aria-valuetext") == of_chat
    assert "rag answered, ≥ 80 %" in opened.inner_text("#part-limits")


def test_charts_are_of_the_part_in_sight(opened):
    opened.select_option("#curve-metric", "ttft_p99_ms")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate(Y_AXIS) == "TTFT p99 ms of rag"
    assert opened.inner_text("#distribution-of") == "requests of rag"
    shares = opened.evaluate(
        """() => {
          const { payload, planes } = app.shown;
          const [group] = payload.groups;
          const point = group.points[0];
          const share = (part) => judge.distribution(point, planes.ttft, payload.stops.ttft, part);
          const requests = (part) => point.repeats.flatMap((repeat) => repeat.parts[part])
            .reduce((sum, count) => sum + count, 0);
          const middle = 120;
          return [share(null)[middle], [0, 1].map((part) => [share(part)[middle], requests(part)])];
        }"""
    )
    whole, parts = shares
    weighted = sum(share * requests for share, requests in parts)
    assert weighted / sum(requests for _, requests in parts) == pytest.approx(whole)


def test_a_newer_payload_brings_the_limits_on_parts_that_come_with_it(opened):
    """A page that is opened before the first request of a mix knows no part."""
    before, after, limits = opened.evaluate(
        """async () => {
          const packed = JSON.parse(document.getElementById("payload").textContent);
          const bins = await decode.unpacked(packed.bins);
          const early = await decode.described(packed.described);
          for (const group of early.groups) {
            group.parts = [];
            for (const slo of group.slos) slo.parts = {};
            for (const point of group.points) for (const repeat of point.repeats) repeat.parts = [];
          }
          app.show(early, bins);
          const before = app.shown.choices.part;
          app.show(await decode.described(packed.described), bins);
          return [before, app.shown.choices.part, document.getElementById("part-limits").textContent];
        }"""
    )
    assert [before, after] == ["", "rag"]
    assert "chat TTFT ≤ 120 ms" in limits

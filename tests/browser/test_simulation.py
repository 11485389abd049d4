"""The page of simulated results: marked in the head, on paper and without a script, with the known
error of the model as its intervals.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.browser.conftest import quiet_page, written
from tests.unit.report.stores import SOURCE, commit_simulation, points_of

pytestmark = pytest.mark.browser
BADGE = "simulated: nothing was measured"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(str(tmp_path_factory.mktemp("simulation")), "exp")
    commit_simulation(store)
    return store


@pytest.fixture(scope="module")
def report(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(store.uri, tmp_path_factory.mktemp("page") / "report.html")


def test_it_is_said_at_the_top_with_the_error_of_the_model_and_its_source(browser, report) -> None:
    with quiet_page(browser, report) as page:
        head = page.locator("header").inner_text()
        assert BADGE in head
        assert f"within 2.00x (TTFT) and 1.25x (all else) by {SOURCE}" in head
        assert "simulated" in page.locator(".answer").first.inner_text()
        page.emulate_media(media="print")
        assert page.locator("header .badge").is_visible()


def test_it_is_said_without_a_script(browser, report) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert BADGE in page.locator("header").inner_text()
    assert "(9 in 10: 0.00-98.6)" in page.locator(".answer h1").first.inner_text()
    assert "95 %" not in page.locator(".answer").first.inner_html()
    context.close()


def test_intervals_of_moved_limits_are_those_of_the_models_error(browser, report, store) -> None:
    points = {point.head.point_id: point for point in points_of(store)}
    with quiet_page(browser, report) as page:
        judged = page.evaluate(
            """app.shown.result.judged.map(({ point, throughput, attainment }) => (
            { id: point.point_id, throughput, attainment }))"""
        )
        assert page.evaluate("app.shown.payload.groups[0].simulated")
    assert len(judged) == len(points)
    for each in judged:
        point: StoredPoint = points[each["id"]]
        rate, share = point.output_token_throughput(), point.attainment
        assert rate is not None and share is not None
        assert each["throughput"]["lower"] == pytest.approx(rate.lower, rel=1e-9)
        assert each["throughput"]["upper"] == pytest.approx(rate.upper, rel=1e-9)
        assert each["attainment"]["estimate"] == share.estimate
        assert (each["attainment"]["lower"], each["attainment"]["upper"]) == pytest.approx(
            (share.lower, share.upper), rel=1e-9
        )


def test_intervals_of_other_limits_are_at_least_as_wide(browser, report, store) -> None:
    """Limits lie on stops, and between two of them the page takes the wider one."""
    with quiet_page(browser, report) as page:
        stops = page.evaluate("app.shown.payload.stops.ttft")
        for place in range(0, len(stops), 20):
            judged = page.evaluate(
                """(ttft) => (app.shown.judges.get(0).judge({
                asked: [{ part: null, limits: { ttft, tpot: 254, e2e: 254 }, target: 0.9 }], per: "gpu", price: null,
                }).judged.map(({ point, attainment }) => [point.point_id, attainment]))""",
                place,
            )
            for point in load_points(store, Slo(name="x", ttft=stops[place], attainment=0.9)):
                share, shown = point.attainment, dict(judged)[point.head.point_id]
                assert share is not None
                assert shown["estimate"] == share.estimate
                assert shown["lower"] <= share.lower and shown["upper"] >= share.upper


def test_a_moved_limit_names_the_error_and_no_starts(browser, report) -> None:
    with quiet_page(browser, report) as page:
        slider = page.locator("#limit-tpot")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("document.querySelector('#caution').textContent !== ''")
        caution = page.locator("#caution").inner_text()
        assert "simulated: nothing was measured" in caution
        assert "start" not in caution

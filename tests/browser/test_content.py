"""What the page shows beside the ranking: prices of tokens, time lines, tables that need no script."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from orchestrator.cli.main import cli
from orchestrator.report.page.prices import token_price
from orchestrator.report.page.timelines import GpuReadings, Timelines, timelines_of
from orchestrator.report.selection import with_limits
from tests.browser.conftest import show_view

pytestmark = pytest.mark.browser


def test_a_million_tokens_cost_what_python_says(opened, levels):
    computed = opened.evaluate(
        """() => app.shown.payload.groups.flatMap((group) => group.points).map((point) => [
          point.point_id, [1, 4, 20].map((ratio) => prices.perMillion(3.6, point.figures, ratio))])"""
    )
    by_point = dict(computed)
    compared = 0
    for point in levels.points().current:
        for place, ratio in enumerate((1, 4, 20)):
            expected = token_price(at_a_price(point), ratio)
            found = by_point[point.head.point_id][place]
            if expected is None:
                assert found is None
                continue
            assert found["input"] == pytest.approx(expected.input, rel=1e-9)
            assert found["output"] == pytest.approx(expected.output, rel=1e-9)
            assert found["outputAlone"] == pytest.approx(expected.output_alone, rel=1e-9)
            compared += 1
    assert compared > 10


def at_a_price(point):
    """The point at 3.6 USD per hour: the store knows no price."""
    return replace(point, deployment=replace(point.deployment, usd_per_hour=3.6))


def test_a_price_and_a_ratio_price_the_ranking(opened):
    opened.get_by_role("tab").nth(1).click()
    assert "No price is known" in opened.locator("#price-note").inner_text()
    opened.fill("#price", "2")
    rows = opened.locator("#price-table tbody tr")
    assert rows.count() == opened.evaluate("app.shown.result.ranking.length")
    show_view(opened, "Efficiency")
    opened.locator("#price-ratio").focus()
    opened.keyboard.press("Home")  # an output token costs what an input token costs
    cells = rows.first.locator("td").all_inner_texts()
    _, _, of_input, of_output, alike, output_alone = cells
    assert of_input == of_output == alike
    assert float(output_alone) > float(of_output)
    opened.wait_for_url("**ratio=1&**")


def test_the_time_line_of_a_point_is_drawn(opened):
    show_view(opened, "Points")
    opened.locator("#timeline").scroll_into_view_if_needed()
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(opened.locator("#timeline-facts")).to_contain_text("the steady window")
    label = opened.locator("#timeline").get_attribute("aria-label")
    assert label.startswith("output tokens per second, requests and KV cache over")


# Takes lines as the page of a running sweep does, and draws that of the point.
DRAW = """([lines, experiment, point]) => {
  timelines.takeLines(lines);
  const chart = echarts.getInstanceByDom(document.getElementById("timeline"));
  timelines.draw(chart, experiment, point, () => {});
  return chart.getOption().series.map((line) => [line.name, line.data.map((each) => each[1])]);
}"""


def test_a_time_line_has_power_and_temperature_where_gpus_were_read(opened, levels):
    (judged,) = with_limits(None, [levels])
    line = timelines_of([judged], ()).timelines[0]
    gpus = GpuReadings(seconds=[0.5, 1.0], power_w=[600, 1300], temperature_c=[61, 63])
    drawn = {}
    show_view(opened, "Points")
    opened.locator("#timeline").scroll_into_view_if_needed()
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(opened.locator("#timeline-facts")).to_contain_text("the steady window")
    for with_gpus in (line, replace(line, gpus=gpus)):
        lines = list(Timelines([with_gpus], 0).lines())
        drawn = dict(opened.evaluate(DRAW, [lines, line.experiment, line.point_id]))
        assert ("GPU power, W" in drawn) is (with_gpus.gpus is not None)
    assert drawn["GPU power, W"] == [600, 1300]
    assert drawn["hottest GPU, °C"] == [61, 63]


def test_tables_are_of_the_experiment_in_sight(opened):
    show_view(opened, "Points")
    sections = opened.locator(".of-experiment")
    assert [sections.nth(place).is_visible() for place in range(2)] == [True, False]
    opened.get_by_role("tab").nth(1).click()
    assert [sections.nth(place).is_visible() for place in range(2)] == [False, True]


def test_a_claim_is_marked_apart(opened):
    marks = opened.get_by_text("computed by the search; sliders do not change")
    assert marks.count() == 2  # beside the answer, and above the claims
    levels_probed = opened.locator(".of-experiment details").first
    levels_probed.locator("summary").click()
    assert levels_probed.locator("tbody tr").count() == 6


def test_paper_is_wide_enough_and_shows_what_was_folded(opened):
    opened.set_viewport_size({"width": 718, "height": 1018})  # A4 with its margins
    opened.emulate_media(media="print")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 718
    height = "Math.round(document.querySelector('.of-experiment details table').offsetHeight)"
    assert opened.evaluate(height) > 0
    visible = "document.querySelector('.of-experiment details tbody').checkVisibility({contentVisibilityAuto: true})"
    assert opened.evaluate(visible)


def test_without_a_script_every_table_is_there(browser, uri, tmp_path):
    output = tmp_path / "report.html"
    CliRunner().invoke(cli, ["report", uri, "--output", str(output)])
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(output.as_uri())
    titles = page.locator(".of-experiment").last.locator("h3").all_inner_texts()
    assert titles == [
        "What was sent",
        "Validity",
        "Points",
        "Efficiency",
        "Points, predicted beside measured",
        "Engine starts, predicted beside reported",
        "Agreement of outputs",
        "Environment",
    ]
    assert page.locator("section.how table tbody tr").count() > 15
    context.close()


def test_a_link_that_is_pasted_over_the_address_is_followed(opened):
    opened.evaluate("location.hash = '#group=1&price.cpu=2&ratio=7&view=efficiency'")
    opened.wait_for_selector("#price-table tbody tr")
    assert opened.get_by_role("tab").nth(1).get_attribute("aria-selected") == "true"
    assert opened.locator("#price").input_value() == "2"
    assert "7 times an input token" in opened.locator("#price-limits").inner_text()

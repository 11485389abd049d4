"""The page of a comparison in a real browser."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.main import cli
from orchestrator.results.store import Store
from tests.browser.conftest import quiet_page
from tests.unit.report.stores import commit_starts

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """The page of two sweeps; in the second one, TTFTs are longer at both levels."""
    folder = tmp_path_factory.mktemp("compared") / HOSTILE
    for name, ttft_ms in (("base", (100, 101)), ("new", (110, 111))):
        store = Store.open(str(folder / name), "exp")
        commit_starts(store, ttft_ms, levels=(2, 4), max_num_seqs=(8, 16))
    output = tmp_path_factory.mktemp("page") / "compare.html"
    sides = [str(folder / "base"), str(folder / "new")]
    done = CliRunner().invoke(cli, ["compare", *sides, "--output", str(output)])
    assert output.exists(), done.output
    return output


@pytest.fixture
def opened(browser, compared):
    with quiet_page(browser, compared) as page:
        yield page


def drawings(opened) -> str:
    return opened.get_attribute("body", "data-drawn")


def wait_for_a_drawing(opened, before: str) -> None:
    opened.wait_for_selector(f"body:not([data-drawn='{before}'])")


def series(opened, chart: str) -> list[dict]:
    return opened.evaluate(
        "(id) => echarts.getInstanceByDom(document.getElementById(id)).getOption().series.map("
        "({ name, lineStyle, symbol, data }) => ({ name, dash: lineStyle?.type, symbol, data }))",
        chart,
    )


def test_base_is_starred_and_dashed_beside_new(opened):
    curves = series(opened, "curve-chart")
    names = [curve["name"] for curve in curves]
    assert names == [f"{star}emulator seqs={seqs}" for seqs in (16, 8) for star in ("★ ", "")]
    assert [curve["dash"] for curve in curves] == ["dashed", "solid"] * 2
    assert curves[0]["symbol"].startswith("path://")
    base, new = (curve["data"][0]["value"] for curve in curves[:2])
    assert base[0] == new[0] == 2
    assert new[1] / base[1] == pytest.approx(1.0995, abs=1e-3)


def test_another_figure_can_be_chosen(opened):
    before = drawings(opened)
    opened.select_option("#change-choice", label="tokens/s")
    wait_for_a_drawing(opened, before)
    marks = series(opened, "change-chart")[1]["data"]
    assert [mark["symbol"] for mark in marks] == ["circle"] * 4
    label = opened.locator("#change-chart").get_attribute("aria-label")
    assert label.startswith("change of tokens/s in %, 4 pairs")


def test_every_change_has_its_badge(opened):
    rows = opened.locator("table.comparison tbody tr")
    assert rows.count() == 12
    first = rows.first
    assert first.locator(".badge").inner_text() == "+10.0%"
    assert first.locator("td").last.inner_text() == "worse"


def test_the_address_of_a_store_is_text(opened):
    assert HOSTILE in opened.locator(".source").first.inner_text()
    assert opened.locator("img").count() == 0


def test_colours_follow_the_browsers(opened):
    def background() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    opened.emulate_media(color_scheme="light")
    light = background()
    before = drawings(opened)
    opened.emulate_media(color_scheme="dark")
    wait_for_a_drawing(opened, before)
    assert background() != light
    axis = "echarts.getInstanceByDom(document.getElementById('curve-chart')).getOption().xAxis[0]"
    soft = opened.evaluate("charts.theme().soft")
    assert opened.evaluate(f"{axis}.nameTextStyle.color") == soft


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(opened, width):
    opened.set_viewport_size({"width": width, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_without_javascript_the_comparison_is_a_table(browser, compared):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(compared.as_uri())
    assert page.locator("h1").inner_text() == "4 of 12 figures are worse"
    assert page.locator("table.comparison tbody tr").count() == 12
    assert not page.locator("#charts").is_visible()
    context.close()

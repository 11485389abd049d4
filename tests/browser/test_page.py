"""The page in a real browser: its answer, its intervals, its tabs."""

import random

import numpy as np
import pytest

from orchestrator.analysis.intervals import rate_interval, share_interval, student_t
from orchestrator.analysis.throughput import Batches
from tests.browser.judging import bounds

pytestmark = pytest.mark.browser


def test_a_moved_limit_changes_the_winner_and_the_address(opened):
    slider = opened.locator("#limit-ttft")
    slider.focus()
    opened.keyboard.press("Home")
    assert "No deployment holds these limits" in opened.locator("#winner").inner_text()
    opened.wait_for_url(f"**ttft={opened.evaluate('app.shown.payload.stops.ttft[0]')}&**")
    opened.reload()
    opened.wait_for_selector("body[data-drawn]")
    assert "No deployment holds these limits" in opened.locator("#winner").inner_text()


def test_the_answer_says_what_was_asked_and_what_holds(opened):
    answer = opened.locator(".answer").first.inner_text()
    assert "chat of capacity: meta-llama/Llama-3.1-8B-Instruct on cpu, interactive" in answer
    assert "emulated: no real engine" in answer
    figures = "887 output tokens/s per core (95 %: 863-911)"
    assert f"emulator seqs=8 at 10 in flight (not the limit): {figures}" in answer


def test_what_may_hold_more_is_marked_beside_its_load(opened):
    opened.get_by_role("tab").nth(1).click()
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("End")
    label = opened.evaluate("app.shown.result.ranking[0].deployment.label")
    figures = "410 output tokens/s per core (95 %: 395-425)"
    assert f"{label} at 4 in flight (not the limit): {figures}" in opened.inner_text("#winner")
    cells = opened.locator("#ranking-table tbody tr").first.locator("td").all_inner_texts()
    assert cells[1:5] == ["4 in flight (not the limit)", "410", "395", "425"]
    assert "| 4 in flight (not the limit) | 410 |" in opened.evaluate("app.markdown()")
    rows = opened.locator(".answer table").all_text_contents()
    assert any("(not the limit)" in row for row in rows)
    assert not any("≥" in row for row in rows)


def test_tabs_change_with_the_arrow_keys(opened):
    tabs = opened.locator("[role=tab]")
    tabs.first.focus()
    opened.keyboard.press("ArrowRight")
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    assert opened.evaluate("document.activeElement.textContent") == tabs.nth(1).inner_text()


def test_charts_say_what_they_show(opened):
    labels = opened.eval_on_selector_all(
        "#frontier, #curves", "charts => charts.map((chart) => chart.getAttribute('aria-label'))"
    )
    assert all(labels)


def test_csv_has_a_line_for_each_ranked_deployment(opened):
    lines = opened.evaluate("app.csv()").splitlines()
    assert len(lines) == 1 + opened.evaluate("app.shown.result.ranking.length")


def test_a_narrow_page_does_not_scroll_sideways(opened):
    opened.set_viewport_size({"width": 390, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_javascript_the_answer_is_a_table(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("h1").first.is_visible()
    for table in ("points", "efficiency"):
        assert page.locator(f"table.{table} tbody tr").last.is_visible()
    assert not page.locator("#live, #views").first.is_visible()
    context.close()


def test_intervals_over_several_starts_are_those_of_python(opened):
    """The store has one start of each deployment: repeats here are made up."""
    chance = random.Random(7)
    quantiles = [student_t(freedom) for freedom in range(61)]
    for _ in range(200):
        repeats = [made_up_repeat(chance) for _ in range(chance.randint(1, 5))]
        found = opened.evaluate(
            "([repeats, t]) => [judge.rateInterval(repeats, t), judge.shareInterval(repeats, t)]",
            [repeats, quantiles],
        )
        starts = [repeat["start"] for repeat in repeats]
        rate = rate_interval(
            [Batches(np.array(each["amounts"]), np.array(each["sizes"])) for each in repeats],
            starts,
        )
        share = share_interval([flags_of(each) for each in repeats], starts)
        assert [found[0][name] for name in NAMES] == pytest.approx(bounds(rate), abs=1e-9, rel=1e-9)
        assert [found[1][name] for name in NAMES] == pytest.approx(bounds(share), abs=1e-9)


NAMES = ("estimate", "lower", "upper")


def made_up_repeat(chance):
    """A repeat of requests in batches, as they are cut; ``amounts``: how many met the limits."""
    requests = chance.randint(10, 300)
    base, larger = divmod(requests, 10)
    sizes = [base + (batch < larger) for batch in range(10)]
    return {
        "start": chance.randint(0, 2),
        "sizes": sizes,
        "amounts": [chance.randint(size // 2, size) for size in sizes],
    }


def flags_of(repeat):
    """One flag for each request, in order of schedule."""
    flags = []
    for size, amount in zip(repeat["sizes"], repeat["amounts"], strict=True):
        flags += [True] * amount + [False] * (size - amount)
    return flags

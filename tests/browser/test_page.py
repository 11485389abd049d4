"""The page in a real browser: what it judges is what the Python analysis judges, and it runs nothing
that results brought along.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest

from orchestrator.analysis.intervals import rate_interval, share_interval, student_t
from orchestrator.analysis.slo import parse_slo
from orchestrator.analysis.throughput import Batches
from orchestrator.capacity.best import Comparison, ComparisonRules, best
from orchestrator.report.page.payload import LATENCIES
from orchestrator.spec.load import Per, Slo

TRIPLES = 500
pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Choices:
    """What a reader sets. ``stops``: limits on TTFT, TPOT and E2E as numbers of stops; ``price``: USD
    per device and hour, None where only the file's counts.
    """

    stops: list[int]
    attainment: float
    per: Per
    price: float | None


def judged_in_page(page, group, choices):
    """What the page finds in a group: the ranking, and each point's attainment, by point id."""
    return page.evaluate(
        """([group, [ttft, tpot, e2e], target, per, price]) => {
          const { payload, planes } = app.shown;
          const limits = { ttft, tpot, e2e };
          window.judges ??= payload.groups.map(
            (each) => new judge.GroupJudge(each, planes, payload.student_t));
          const found = window.judges[group].judge({ limits, target, per, price });
          const interval = (value) => value && [value.estimate, value.lower, value.upper];
          return {
            ranking: found.ranking.map((ranked) => [
              ranked.deployment.label, ranked.judged.point.level, ...interval(ranked.throughput)]),
            attainment: Object.fromEntries(found.judged.map((each) => [
              each.point.point_id, interval(each.attainment)])),
          };
        }""",
        [group, choices.stops, choices.attainment, choices.per, choices.price],
    )


def slo_of(page_stops, choices) -> Slo:
    limits = [
        f"{name}<={page_stops[name][stop]!r}s"
        for name, stop in zip(LATENCIES, choices.stops, strict=True)
    ]
    return parse_slo(",".join([*limits, f"attainment>={choices.attainment}"]))


def comparisons_of(points, index, slo, choices) -> list[Comparison]:
    """The answers of Python under one of the SLOs that the points were judged by."""
    alone = []
    for point in points:
        repeats = [
            replace(repeat, verdicts=repeat.verdicts[index : index + 1]) for repeat in point.repeats
        ]
        alone.append(replace(at_a_price(point, choices.price), repeats=tuple(repeats)))
    return best(alone, slo, ComparisonRules(choices.per))


def at_a_price(point, price):
    """The point with another price per device and hour; None: the store's, which has none."""
    if price is None:
        return point
    usd_per_hour = price * point.deployment.devices
    return replace(point, deployment=replace(point.deployment, usd_per_hour=usd_per_hour))


def test_every_limit_is_judged_as_python_does(opened, levels):
    groups = opened.evaluate("app.shown.payload.groups.map((group) => group.experiment)")
    group = groups.index("levels")
    stops = opened.evaluate("app.shown.payload.stops")
    every = list(random_choices([len(stops[name]) for name in LATENCIES]))
    slos = [slo_of(stops, choices) for choices in every]
    points = levels.points(*slos).current
    ranked: Counter[Per] = Counter()
    for index, choices in enumerate(every):
        found = judged_in_page(opened, group, choices)
        (comparison,) = comparisons_of(points, index, slos[index], choices)
        expected = comparison.ranking
        assert [row[0] for row in found["ranking"]] == [each.label for each in expected], choices
        for row, each in zip(found["ranking"], expected, strict=True):
            figures = [each.point.head.level, *bounds(each.throughput)]
            assert row[1:] == pytest.approx(figures, abs=1e-9, rel=1e-9), (choices, row)
        for point in points:
            tests = point.attained_by_slo[index] if point.attained_by_slo else ()
            share = pytest.approx(bounds(tests[0].share), abs=1e-9) if tests else None
            assert found["attainment"][point.head.point_id] == share
        ranked[choices.per] += len(expected)
    assert all(ranked[per] > TRIPLES / 10 for per in get_args(Per))  # not all out of reach


def random_choices(counts):
    """Choices of a reader. In half of them one limit alone moved, as by a slider, which the page
    judges by its cumulative counts. ``counts``: of the stops of each latency.
    """
    chance = random.Random(20261128)
    stops = [0, 0, 0]
    for number in range(TRIPLES):
        if number % 2 == 0:
            stops = [chance.randrange(count) for count in counts]
        else:
            place = chance.randrange(len(counts))
            stops = [*stops[:place], chance.randrange(counts[place]), *stops[place + 1 :]]
        yield Choices(
            stops=stops,
            attainment=chance.choice([0.5, 0.9, 0.95, 0.99, 1.0]),
            per=chance.choice(get_args(Per)),
            price=chance.choice([None, 0.0, 0.05, 2.1, 33.0]),
        )


def bounds(interval):
    return [interval.estimate, interval.lower, interval.upper]


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
    assert page.locator("table.points tbody tr").count() > 0
    assert not page.locator("#live").is_visible()
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

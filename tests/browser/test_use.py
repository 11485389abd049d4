"""The page as people use it: by keyboard, on paper, with names that attack it, with nothing to show."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from tests.browser.conftest import quiet_page, show_view, written
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, planned, store_sweep
from tests.unit.report.test_formats import MARKDOWN_CELLS

pytestmark = pytest.mark.browser
TAG = "</script><img src=x onerror=alert(1)><b>"
WORKLOADS = "#tabs [role=tab]"
LIMITS = "#slo-tabs [role=tab]"
VIEWS = "#views [role=tab]"
TITLES = """[...document.querySelectorAll("h2, h3")].filter((title) => title.checkVisibility())
  .map((title) => title.firstChild.textContent.trim())"""
FORMULA = '=HYPERLINK("http://example.com","a|b")'


# Hostile names


@pytest.fixture
def hostile(tmp_path, opened_store) -> Any:
    """The page of a store whose names, reasons and settings are markup and formulas."""
    plan = planned(model=f"'{TAG}'", workload=f"'{TAG}|`*'", levels=[2, 4])
    first, second = plan.deployments
    named = [
        first.model_copy(update={"label": FORMULA}),
        second.model_copy(update={"label": TAG}),
    ]
    plan = plan.model_copy(update={"deployments": named})
    store = Store.open(str(tmp_path / "results"), "exp")
    reasons = (f"{TAG} was slow",)
    store_sweep(store, plan, validity_reasons=reasons, reason=TAG)
    page = opened_store(store.uri)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    return page


def test_names_are_shown_as_they_are(hostile):
    assert TAG in hostile.locator(".answer").first.inner_text()
    assert hostile.locator("img, b").count() == 0
    assert TAG in hostile.locator("#ranking-table").inner_text()
    names = hostile.locator("#point-deployment option").all_inner_texts()
    assert sorted(names) == sorted([FORMULA, TAG])


def test_a_copy_as_csv_holds_no_formula(hostile):
    (titles, *rows) = csv.reader(io.StringIO(hostile.evaluate("app.csv()")))
    column = titles.index("deployment")
    labels = {row[column] for row in rows}
    assert labels == {f"'{FORMULA}", TAG}
    assert {len(row) for row in rows} == {len(titles)}


def test_a_copy_as_markdown_keeps_its_columns(hostile):
    lines = hostile.evaluate("app.markdown()").splitlines()
    columns = [line.replace(r"\|", "").count("|") for line in lines]
    assert len(set(columns)) == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in lines[2] + lines[3]


def test_a_copy_as_markdown_escapes_as_the_commands_do(opened):
    for text, escaped in MARKDOWN_CELLS:
        assert opened.evaluate("text => ranking.markdownCell(text)", text) == escaped


def test_an_address_is_no_way_in(browser, report):
    attack = "#group=9&slo=x&ttft=<b>&per=__proto__&metric=constructor&sort=%3Cimg%3E&point=x&attainment=7&view=%3Cimg%3E"
    with quiet_page(browser, report) as page:
        page.goto(report.as_uri() + attack)
        page.reload()
        page.wait_for_selector("body[data-drawn]")
        assert page.evaluate("app.shown.choices.attainment") == 0.95
        assert page.evaluate("app.shown.choices.view") == "answer"
        assert page.locator("#ranking-table tbody tr").count() > 0


# Keyboard

STOPS = """
async (presses) => {
  const element = document.activeElement;
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  return {
    name: element.id || element.getAttribute("role") || element.tagName.toLowerCase(),
    isSeen: box.width > 0 && box.height > 0,
    isMarked: style.outlineStyle !== "none",
  };
}
"""


def stops_of(page: Any) -> list[str]:
    """What the Tab key reaches from the beginning of the page to its end."""
    names = []
    for _ in range(200):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOPS)
        if stop["name"] == "body":
            break
        assert stop["isSeen"], stop
        assert stop["isMarked"], stop
        names.append(stop["name"])
    return names


def test_the_whole_page_is_reached_by_tab(opened):
    names = stops_of(opened)
    for view in ("Points", "Efficiency"):
        show_view(opened, view)
        opened.evaluate("document.activeElement.blur()")
        names += stops_of(opened)
    wanted = {
        "tab", "summary", "limit-ttft", "limit-tpot", "limit-e2e", "limit-attainment", "per",
        "price", "price-slider", "price-ratio",  # each of them in its view
        "curve-metric", "copy-csv", "copy-markdown", "point-deployment", "point-choice",
    }  # fmt: skip
    assert wanted <= set(names)
    assert names[0] == "a"  # the skip link


TITLES_OF_LEVELS = {
    "answer": ["Ranking", "Two settings"],
    "points": ["One point", "levels: what was measured", "Validity", "Points", "Points, predicted beside measured"],
    "efficiency": ["What tokens cost", "How near to the device's peaks", "levels: what was measured", "Efficiency"],
    "run": ["levels: what was measured", "What was sent", "Engine starts, predicted beside reported", "Agreement of outputs", "Environment"],
    "words": ["How to read it"],
}  # fmt: skip


def test_views_share_the_page_and_arrows_and_addresses_lead_to_them(opened):
    opened.evaluate("location.hash = '#group=1&view=points&ratio=7'")
    opened.wait_for_selector("[data-view=points]")
    assert opened.evaluate(TITLES) == TITLES_OF_LEVELS["points"]
    opened.locator("#views [aria-selected=true]").focus()
    titles = {}
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight", "ArrowRight", "End"):
        opened.keyboard.press(key)
        titles[opened.evaluate("app.shown.choices.view")] = opened.evaluate(TITLES)
    assert titles == TITLES_OF_LEVELS
    assert opened.evaluate("document.activeElement.textContent") == "Words"
    opened.wait_for_url("**#view=words&group=1&**ratio=7**")
    opened.evaluate("location.hash = document.querySelector('.skip').hash")  # keeps the choices
    opened.wait_for_url("**#view=words&group=1&**ratio=7**")
    opened.evaluate("location.hash = '#group=1&view=efficiency'")
    opened.wait_for_selector("#roofline canvas")  # a chart is drawn when its view is opened
    sizes = "[...document.querySelectorAll('#roofline, #roofline canvas')].map((each) => each.clientWidth)"
    assert len(set(opened.evaluate(sizes))) == 1


def test_the_ranking_is_sorted_by_keyboard(opened):
    heading = opened.locator("#ranking-table th").nth(1)
    heading.locator("button").focus()
    opened.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    labels = opened.locator("#ranking-table tbody th").all_inner_texts()
    assert labels == sorted(labels)
    opened.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert opened.locator("#ranking-table tbody th").all_inner_texts() == labels[::-1]


def test_a_slider_says_its_limit(opened):
    slider = opened.locator("#limit-tpot")
    slider.focus()
    opened.keyboard.press("End")
    assert slider.get_attribute("aria-valuetext") == "no limit"
    opened.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext").startswith("≤ ")


def test_a_price_is_a_slider_and_a_number(opened):
    slider, field = opened.locator("#price-slider"), opened.locator("#price")
    assert slider.get_attribute("aria-valuetext") == "not known"
    slider.focus()
    opened.keyboard.press("ArrowRight")
    assert field.input_value() == "0.05"
    assert slider.get_attribute("aria-valuetext") == "0.05 USD"
    assert slider.get_attribute("aria-label") == "USD per core hour"
    opened.get_by_label("USD per core hour").first.fill("2.13")
    assert float(slider.input_value()) == pytest.approx(2.13, abs=0.03)
    assert opened.evaluate("app.shown.choices.prices") == {"cpu": 2.13}
    # per core a price ranks nothing anew
    assert opened.inner_text("#winner").startswith("These are the limits of the file")
    field.fill("")  # the price of the file
    assert opened.evaluate("app.shown.choices.prices") == {}


def test_details_open_by_keyboard(opened):
    opened.locator("summary").first.focus()
    opened.keyboard.press("Enter")
    assert opened.locator(".answer details").first.get_attribute("open") is not None


# Paper


def test_it_prints_every_chart_and_table(opened):
    pdf = opened.pdf()
    assert pdf.startswith(b"%PDF")
    opened.emulate_media(media="print")
    charts = opened.locator(".chart:visible")
    assert opened.locator(".chart:visible canvas").count() == charts.count() >= 4
    shown = opened.evaluate(TITLES)
    assert {"Ranking", "One point", "Efficiency", "Environment", "How to read it"} <= set(shown)
    assert not opened.locator(VIEWS).first.is_visible()
    charts.evaluate_all("charts => charts.forEach((chart) => { chart.hidden = true; })")
    assert len(pdf) > len(opened.pdf()) + 10_000  # without its charts it is smaller


def test_paper_has_limits_and_no_controls(opened):
    opened.emulate_media(media="print")
    assert opened.locator("#limits output").first.is_visible()
    assert not opened.locator("#limit-ttft").is_visible()
    assert not opened.locator("#copy-csv").is_visible()
    assert opened.locator(".priced output").is_visible()  # in place of the number's field
    assert opened.locator(WORKLOADS).first.is_visible()  # the chosen one names what is printed
    assert not opened.locator(WORKLOADS).last.is_visible()
    assert opened.locator("#ranking-table").is_visible()


def test_a_dark_page_is_drawn_in_its_own_colours(browser, report):
    with quiet_page(browser, report, color_scheme="dark") as page:
        dark = page.evaluate("charts.theme().ink")
        page.emulate_media(color_scheme="light")
        page.wait_for_function("ink => charts.theme().ink !== ink", arg=dark)


def test_a_dark_page_is_printed_in_the_colours_of_a_light_one(browser, report):
    with quiet_page(browser, report, color_scheme="dark") as page:
        dark = page.evaluate("charts.theme().ink")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("charts.theme().ink") == "#1b1f24"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("charts.theme().ink") == dark
        page.emulate_media(media="print")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"


# What there is to show


def test_each_experiment_has_a_tab_with_its_answer(opened):
    tabs = opened.locator(WORKLOADS)
    assert tabs.count() == 2
    seen = []
    for place in range(2):
        tabs.nth(place).click()
        (answer,) = [each for each in opened.locator(".answer").all() if each.is_visible()]
        seen.append(answer.get_attribute("data-experiment"))
    assert seen == ["capacity", "levels"]


DEPLOYMENTS = "{engine: emulator, hardware: cpu, vary: [{grid: {max_num_seqs: [8, 16]}}]}"
ONE = "{engine: emulator, hardware: cpu, max_num_seqs: 8}"
MODELS = "{engine: emulator, hardware: cpu, vary: [{grid: {model: [some-org/m, some-org/other]}}]}"
HARDWARE = """{engine: emulator, vary: [{grid: {hardware: [cpu, h100]}}]}
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8}}"""


def plan_of(deployments: str, **given: Any) -> Plan:
    """The plan of a file with these deployments."""
    text = EXPERIMENT.format(**VALUES | given)
    assert DEPLOYMENTS in text
    return make_plan(parse_experiment(text.replace(DEPLOYMENTS, deployments)))


def visible_answers(page: Any) -> list[str]:
    return [answer.inner_text() for answer in page.locator(".answer").all() if answer.is_visible()]


@pytest.mark.parametrize(
    ("deployments", "tabs", "answers"),
    [
        (
            MODELS,
            ["chat of exp: some-org/m on cpu", "chat of exp: some-org/other on cpu"],
            ["chat of exp: some-org/m on cpu, ", "chat of exp: some-org/other on cpu, "],
        ),
        (
            HARDWARE,
            ["chat of exp on cpu", "chat of exp on h100"],
            ["chat of exp: some-org/m on cpu, ", "chat of exp: some-org/m on h100, "],
        ),
    ],
    ids=["models", "hardware"],
)
def test_a_tab_shows_the_answer_of_its_group_alone(
    deployments, tabs, answers, tmp_path, opened_store
):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, plan_of(deployments))
    page = opened_store(store.uri)
    assert page.locator(WORKLOADS).all_inner_texts() == tabs
    for place, beginning in enumerate(answers):
        page.locator(WORKLOADS).nth(place).click()
        (answer,) = visible_answers(page)
        assert answer.startswith(beginning)


def test_the_answer_of_the_chosen_limits_is_shown_alone(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    page = opened_store(store.uri)
    for place, name in enumerate(("interactive", "tight")):
        page.locator(LIMITS).nth(place).click()
        (answer,) = visible_answers(page)
        assert f", {name} (ttft<=" in answer
        assert page.inner_text("#winner").startswith("These are the limits of the file")
    page.wait_for_url("**slo=1&**")
    page.reload()
    page.wait_for_selector("body[data-drawn]")
    (answer,) = visible_answers(page)
    assert ", tight (ttft<=" in answer


def test_limits_of_the_file_are_tabs_that_arrows_change(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    page = opened_store(store.uri)
    tabs = page.locator(LIMITS)
    assert tabs.all_inner_texts() == [
        "interactive: ttft<=150ms,attainment>=0.9",
        "tight: ttft<=1ms,attainment>=0.9",
    ]
    assert page.get_by_role("tablist", name="Limits of the file").is_visible()
    tabs.first.focus()
    page.keyboard.press("ArrowRight")
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.textContent").startswith("tight: ")
    assert page.evaluate("app.shown.choices.ttft") == 0.001
    page.locator("#limit-ttft").focus()
    page.keyboard.press("End")
    tabs.nth(1).click()  # again, which takes the limits of the file back
    assert page.evaluate("app.shown.choices.ttft") == 0.001


def test_the_headline_breaks_around_its_interval_and_not_within(opened):
    opened.set_viewport_size({"width": 390, "height": 844})
    heights = opened.eval_on_selector_all(
        "h1 .kept",
        "spans => spans.filter((span) => span.offsetWidth).map((span) => span.getClientRects().length)",
    )
    assert heights and set(heights) == {1}


LONG = """
version: 1
name: parallelism-of-a-large-model
model: some-org/model
hardware: {gpus: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3.6}}
deployments:
  engine: emulator
  hardware: gpus
  vary: [{grid: {max_num_seqs: [128, 256], enable_chunked_prefill: [true, false], max_num_batched_tokens: [8192]}}]
workloads: [{name: conversations, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [16, 64]}, duration: 10s, warmup: 0s}
slos: {interactive: {ttft: 150ms, tpot: 45.5ms, e2e: 12.75s, ttft_p99: 1.25s, tpot_p99: 99.5ms, attainment: 0.925}}
"""


@pytest.fixture
def long_texts(tmp_path, opened_store) -> Any:
    """The page of an experiment with prices, long names and many limits."""
    store = Store.open(str(tmp_path / "results"), "parallelism-of-a-large-model")
    store_sweep(store, make_plan(parse_experiment(LONG)))
    return opened_store(store.uri)


def test_long_limits_break_between_two_and_not_within_one(long_texts):
    long_texts.set_viewport_size({"width": 390, "height": 844})
    lines = long_texts.evaluate("""
      [...document.querySelector(".asked").childNodes]
        .filter((node) => node.nodeType === Node.TEXT_NODE)
        .map((node) => {
          const range = document.createRange();
          range.selectNodeContents(node);
          return [node.data, range.getClientRects().length];
        })
    """)
    _, *limits = lines  # the first text holds the names, too
    assert [text for text, _ in limits] == [
        *("tpot<=45.5ms,", "e2e<=12.75s,", "ttft_p99<=1.25s,", "tpot_p99<=99.5ms,"),
        "attainment>=0.925)",
    ]
    assert {count for _, count in limits} == {1}


def test_the_whole_ranking_is_in_sight_at_1280_pixels(long_texts):
    long_texts.set_viewport_size({"width": 1280, "height": 900})
    titles = long_texts.locator("#ranking-table thead th").all_inner_texts()
    assert titles[-1] == "USD per million output tokens, input free"
    width, room = long_texts.eval_on_selector(
        "#ranking-table", "table => [table.scrollWidth, table.parentElement.clientWidth]"
    )
    assert width <= room


def test_without_a_script_the_answer_of_every_limit_is_there(browser, tmp_path):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    path = written(store.uri, tmp_path / "report.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert len(visible_answers(page)) == 2
    context.close()


def test_runs_of_load_that_are_ranked_together_show_the_ranking_in_each_tab(tmp_path, opened_store):
    uri = str(tmp_path / "results")
    for name in ("after", "before"):
        plan = plan_of(ONE, name=name).model_copy(update={"load_options": "asked alike"})
        store_sweep(Store.open(uri, name), plan)
    page = opened_store(uri)
    tabs = page.locator(WORKLOADS)
    assert tabs.count() == 2
    for place in range(2):
        tabs.nth(place).click()
        (answer,) = visible_answers(page)
        assert answer.startswith("chat of after, before: ")


def test_a_search_says_that_sliders_make_no_claim(opened):
    assert opened.evaluate("app.shown.payload.groups[0].searched")
    said = "judged again from probes of a search: the highest that held, not a claim"
    assert opened.inner_text("#winner").startswith("These are the limits of the file")
    assert "the ranking is that of the search's claims" in opened.inner_text("#caution")
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("End")
    assert said in opened.inner_text("#caution")
    opened.get_by_role("tab").nth(1).click()  # its levels were chosen by the file
    assert said not in opened.inner_text("#caution")


def test_limits_that_the_page_cannot_judge_are_said_at_once(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    plan = planned().model_copy(update={"slos": (parse_slo("ttft_p95<=1s"),)})
    store_sweep(store, plan)
    page = opened_store(store.uri)
    assert "do not judge the limits on ttft_p95" in page.inner_text("#caution")
    page.locator("#limit-ttft").focus()
    page.keyboard.press("Home")
    assert "the limits on ttft_p95 are not judged here" in page.inner_text("#caution")


def test_a_ranking_by_a_price_that_nobody_knows_says_so(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    page = opened_store(store.uri)
    page.locator("#per").select_option("usd")
    assert page.inner_text("#winner") == "There is no price to rank by: set one above 0."


def test_nothing_valid_is_said(tmp_path, opened_store):
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(
        store, planned(), validity="client_bound", validity_reasons=("the client was late",)
    )
    page = opened_store(store.uri)
    page.locator("#limit-ttft").focus()
    page.keyboard.press("End")
    assert page.inner_text("#winner") == "No point has a valid measurement."
    assert "emulator seqs=8" in page.inner_text("#not-ranked")
    assert page.locator("#ranking-table tbody tr").count() == 0
    assert "the client was late" in page.inner_text("#point-facts")


def test_a_newer_payload_is_shown_in_place(opened):
    opened.get_by_role("tab").nth(1).click()
    opened.locator("#limit-ttft").focus()
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowLeft")
    before = opened.evaluate("structuredClone(app.shown.choices)")
    rows = opened.locator("#ranking-table tbody tr").all_inner_texts()
    opened.evaluate(
        """async () => {
          const packed = JSON.parse(document.getElementById("payload").textContent);
          const described = await decode.described(packed.described);
          const bins = await decode.unpacked(packed.bins);
          described.groups.reverse();
          app.show(described, bins);
        }"""
    )
    after = opened.evaluate("app.shown.choices")
    assert after == before | {"group": 0}
    assert opened.evaluate("document.activeElement.id") == "limit-ttft"
    assert opened.locator("#ranking-table tbody tr").all_inner_texts() == rows


def test_a_payload_without_groups_waits_for_the_next(opened):
    opened.evaluate(
        """() => { window.first = { ...app.shown.payload };
          app.show({ groups: [], missing: [], stops: {}, student_t: [] }, new Uint8Array(0)); }"""
    )
    assert not opened.locator("#live").is_visible()


def test_a_long_ranking_shows_its_first_rows(opened):
    opened.get_by_role("tab").nth(1).click()
    counts = opened.evaluate(
        """() => {
          const [first] = app.shown.result.ranking;
          const rows = Array.from({ length: 60 }, (_, place) => ({ ranked: first, place }));
          const view = { rows, unit: "tokens/s", per: "gpu", part: null, usdPerHour: () => null, sort: "rank", reversed: false };
          const element = document.createElement("table");
          const table = new ranking.RankingTable(element, () => {});
          return [false, true].map((hasAllRows) => {
            table.show({ ...view, hasAllRows });
            return element.tBodies[0].rows.length;
          });
        }"""
    )
    assert counts == [50, 60]

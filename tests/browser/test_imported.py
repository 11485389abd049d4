"""The page of points that other tools measured: each tool by itself, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan.current import StoredExperiment
from tests.browser.conftest import quiet_page, written
from tests.browser.judging import assert_judged_alike
from tests.unit.exchange.recorded import AIPERF, AIPERF_RECORDS, GUIDELLM, VLLM, VLLM_DETAILED
from tests.unit.exchange.recorded import imported as store_of

pytestmark = pytest.mark.browser
FILES = (GUIDELLM, VLLM, VLLM_DETAILED, AIPERF, AIPERF_RECORDS)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> StoredExperiment:
    return StoredExperiment(store_of(tmp_path_factory.mktemp("imported"), *FILES))


@pytest.fixture(scope="module")
def report(experiment: StoredExperiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(experiment.store.uri, tmp_path_factory.mktemp("page") / "report.html")


def test_the_head_and_the_tabs_name_the_tools(browser, report) -> None:
    with quiet_page(browser, report) as page:
        head = page.locator("header").inner_text()
        assert "imported from GuideLLM 0.8.1, vllm bench serve, AIPerf 0.13.0" in head
        tabs = page.locator("#tabs").inner_text()
        for tool in ("GuideLLM 0.8.1", "vllm bench serve", "AIPerf 0.13.0"):
            assert f"({tool})" in tabs
        assert "as it defines the figures" in page.locator("main").inner_text()


def test_no_group_holds_points_of_two_tools_and_limits_are_judged_as_best_does(
    browser, report, experiment
) -> None:
    with quiet_page(browser, report) as page:
        sources = page.evaluate("app.shown.payload.groups.map((each) => each.source)")
        assert sorted(set(sources)) == ["AIPerf 0.13.0", "GuideLLM 0.8.1", "vllm bench serve"]
        assert_judged_alike(page, experiment, triples=30)


def test_without_limits_the_best_of_a_tool_has_the_throughput_that_its_file_states(
    browser, report, experiment
) -> None:
    of_guidellm = [
        point.figures.output_token_throughput
        for point in experiment.points().current
        if point.source == "GuideLLM 0.8.1"
    ]
    with quiet_page(browser, report) as page:
        page.locator("#tabs [role=tab]", has_text="GuideLLM").click()
        assert f"{max(of_guidellm):.0f} output tokens/s" in page.locator("main").inner_text()

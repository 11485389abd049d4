"""``orchestrator watch`` while a real sweep runs against emulated engines: a page that was opened
before it began shows all of it, without being loaded again by hand.
"""

import re
import subprocess
import sys
import urllib.request

import pytest
from playwright.sync_api import Error

from tests.harness import ROOT, environment, exit_status, start, wait_for, write_experiment

POINTS = 12
EXPERIMENT = """
version: 1
name: seen
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  vary:
    - grid: {max_num_seqs: [4, 8]}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [1, 2, 3, 4, 5, 6]}, duration: 1s, warmup: 0s}
slos: {interactive: {ttft: 1s, attainment: 0.5}}
"""
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture
def page(browser):
    """Complains if anything is written to the console."""
    complaints = []
    opened = browser.new_page()
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert complaints == []


@pytest.fixture
def address(tmp_path):
    """The address of a server that watches a folder which does not exist yet."""
    argv = [sys.executable, "-m", "orchestrator", "watch", str(tmp_path / "results"), "--port", "0"]
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        yield re.search(r"http://\S+", line).group()
        server.terminate()


def sweep(tmp_path):
    """The command that runs it, in the background."""
    experiment = write_experiment(tmp_path, EXPERIMENT)
    argv = ["run", str(experiment), "--results", str(tmp_path / "results"), "--address", "local"]
    return start(*argv, log=tmp_path / "sweep.log")


def points_shown(page):
    """Rows of the table that the server wrote, and points that the page can judge; None while the
    page loads itself again.
    """
    counts = """[
        document.querySelectorAll("table.points tbody tr").length,
        (app.shown.payload?.groups ?? []).flatMap((group) => group.points).length,
    ]"""
    try:
        return tuple(page.evaluate(counts))
    except Error:
        return None


def test_a_page_that_was_opened_before_a_sweep_shows_all_of_it(address, page, tmp_path):
    page.goto(address)
    assert page.locator("#watching").inner_text() == "nothing is stored here yet"
    with sweep(tmp_path) as running:
        wait_for(lambda: (points_shown(page) or (0, 0))[1] > 1, 240, "no second point in the page")
        page.locator("#limit-ttft").fill("1")
        moved_s = page.evaluate("app.shown.choices.ttft")
        wait_for(lambda: points_shown(page) == (POINTS, POINTS), 240, "points are missing")
        # what a reader chose stays, at the stop that is nearest now
        assert page.evaluate("app.shown.choices.ttft") == pytest.approx(moved_s, rel=0.2)
        assert exit_status(running, 240, tmp_path / "sweep.log") == 0
    watching = page.locator("#watching")
    wait_for(
        lambda: watching.inner_text().startswith("seen: ended, 12 of 12 measured"),
        60,
        "the page does not say that the sweep ended",
    )
    grown = page.evaluate("app.csv()")
    page.reload()
    page.wait_for_selector("body[data-drawn]")
    assert points_shown(page) == (POINTS, POINTS)
    assert page.evaluate("app.csv()").splitlines()[0] == grown.splitlines()[0]
    metrics = urllib.request.urlopen(f"{address}metrics").read().decode()
    assert 'orchestrator_run_measurements{experiment="seen",kind="measured"} 12.0' in metrics

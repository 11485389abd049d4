"""Pages of small stores, opened in the installed Chromium."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli.main import cli
from orchestrator.report.selection import experiments
from orchestrator.results.root import open_results

STORE = Path(__file__).parents[1] / "golden" / "store.tar.xz"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="package")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("the page needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="package")
def uri(tmp_path_factory) -> str:
    """Two experiments: one of fixed levels, and a capacity search."""
    folder = tmp_path_factory.mktemp("results")
    with tarfile.open(STORE) as archive:
        archive.extractall(folder, filter="data")
    return str(folder)


@pytest.fixture(scope="package")
def levels(uri):
    (experiment,) = experiments(open_results(uri), "levels")
    return experiment


@pytest.fixture(scope="package")
def report(uri, tmp_path_factory) -> Path:
    """The page of both experiments."""
    return written(uri, tmp_path_factory.mktemp("page") / "report.html")


def written(uri: str, output: Path) -> Path:
    """The page of a store, written as a user writes it."""
    done = CliRunner().invoke(cli, ["report", uri, "--output", str(output)])
    assert output.exists(), done.output
    return output


@contextmanager
def quiet_page(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page of a file; fails if it wrote to the console or asked for anything but itself."""
    complaints = []
    page = browser.new_page(**options)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn]")
    yield page
    page.close()
    assert set(complaints) == {path.as_uri()}


def show_view(page: Any, title: str) -> None:
    """Opens one of the tabs between which the page is divided, such as Points."""
    page.get_by_role("tab", name=title, exact=True).click()


@pytest.fixture
def opened(browser, report):
    with quiet_page(browser, report) as page:
        yield page


@pytest.fixture
def opened_store(browser, tmp_path) -> Iterator[Callable[[str], Any]]:
    """Opens the page of one store."""
    pages = []

    def opened_page(uri: str) -> Any:
        manager = quiet_page(browser, written(uri, tmp_path / "report.html"))
        pages.append(manager)
        return manager.__enter__()

    yield opened_page
    for manager in pages:
        manager.__exit__(None, None, None)

"""What messages say to install is what the extras install."""

from __future__ import annotations

import re
import tomllib

from orchestrator.base.extras import PACKAGES, how_to_install
from tests.harness import ROOT

PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("notebooks/*.ipynb"),
    *ROOT.glob("notebooks/*.py"),  # of Marimo
)


def test_the_packages_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    del extras["dev"], extras["docs"]
    assert {extra: [package] for extra, package in PACKAGES.items()} == {
        extra: [requirement.partition(";")[0].strip() for requirement in requirements]
        for extra, requirements in extras.items()
    }
    assert how_to_install("optuna") == "pip install 'optuna>=5,<6'"


def test_nothing_names_an_install_from_an_index_that_does_not_have_this_program() -> None:
    """Remove this test when a release is on an index."""
    for path in (*PAGES, *ROOT.glob("orchestrator/**/*.py")):
        assert "llm-serving-orchestrator[" not in path.read_text(), path


def test_every_extra_that_a_page_installs_exists() -> None:
    named = [name for page in PAGES for name in re.findall(r"'\.+\[([a-z]+)\]'", page.read_text())]
    assert named
    assert set(named) <= {*PACKAGES, "dev", "docs"}

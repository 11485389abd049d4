"""What contributors are told works: hooks, issue forms, and the files that the page names."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml

from tests.harness import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_runs_a_program_that_make_lint_runs(hook: dict[str, str]) -> None:
    program, *words = shlex.split(hook["entry"])
    makefile = (ROOT / "Makefile").read_text()
    assert f"$(BIN)/{program.rpartition('/')[2]} {words[0]}" in makefile
    done = subprocess.run(
        ["ruff", *words, "tests/unit/test_contributing.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": str(ROOT / ".venv" / "bin")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one(form) -> None:
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(content)
    for part in content["body"]:
        assert part["type"] in ("textarea", "input", "dropdown", "checkboxes", "markdown")
        assert part["attributes"]["label"]
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))


def test_the_form_for_problems_asks_for_doctor_and_the_store() -> None:
    problem = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/problem.yml").read_text())
    required = [part["id"] for part in problem["body"] if "validations" in part]
    assert required == ["what", "doctor", "store"]


def test_every_target_and_file_that_the_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", PAGE):
        assert re.search(rf"^{target}( [\w-]+)*:", makefile, re.MULTILINE), target
    for path in re.findall(
        r"`((?:tests|scripts|docs|orchestrator|clusters|\.)[\w./-]*/[\w./-]+)`", PAGE
    ):
        assert (ROOT / path).exists(), path


def test_every_seam_has_a_first_task() -> None:
    seams = re.findall(
        r"^\| ([a-z][^|(]*?) (?:\(.*?\) )?\| `?", _table("docs/extending.md", "| seam |"), re.M
    )
    tasks = re.findall(r"^\| ([a-z][^|]*?) \|", _table("CONTRIBUTING.md", "| seam |"), re.M)
    assert tasks[1:] == seams[1:]
    assert len(tasks) > 5


def _table(page: str, head: str) -> str:
    text = (ROOT / page).read_text()
    return text[text.index(head) :].split("\n\n")[0]

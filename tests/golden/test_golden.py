"""What the commands say about stored results, the plans of the examples and the rows of a simulated
sweep are the same to the digit as before.

The store was measured once (``make.py``) and is read by every later version. A change on purpose
rewrites the expected outputs: ``python -m tests.golden.make --expected``.
"""

from __future__ import annotations

import difflib
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.golden.make import (
    ENDS_OF_RUNS,
    EXPECTED,
    OF_SIMULATION,
    OF_WIDTHS,
    PLANS,
    RESULTS,
    SCHEMAS,
    SIMULATED,
    STATUSES,
    write_outputs,
)

REWRITE = "If this is on purpose: python -m tests.golden.make --expected"
MOST_LINES = 60
PRINTED = [one.output for one in [*RESULTS, *OF_WIDTHS, *OF_SIMULATION, *PLANS]]
FROZEN = [path.name for path in sorted(EXPECTED.glob("frozen_*.json"))]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_outputs(folder)
    return folder


@pytest.mark.parametrize(
    "name", [*PRINTED, *ENDS_OF_RUNS.values(), *FROZEN, STATUSES, SCHEMAS, SIMULATED]
)
def test_an_output_is_the_same_as_before(outputs: Path, name: str) -> None:
    before = (EXPECTED / name).read_bytes().decode()
    now = (outputs / name).read_bytes().decode()
    if before != now:
        pytest.fail(difference(name, before, now), pytrace=False)


def test_each_output_is_expected(outputs: Path) -> None:
    assert sorted(path.name for path in outputs.iterdir()) == sorted(
        path.name for path in EXPECTED.iterdir()
    )


def difference(name: str, before: str, now: str) -> str:
    """The lines that changed, with JSON one value a line, and how to accept them."""
    changed = difflib.unified_diff(
        lines_of(name, before), lines_of(name, now), f"{name} before", f"{name} now", lineterm=""
    )
    lines = list(changed) or ["Only spaces changed."]
    more = len(lines) - MOST_LINES
    shown = lines[:MOST_LINES] + ([f"and {more} more lines"] if more > 0 else [])
    return "\n".join([*shown, REWRITE])


def lines_of(name: str, text: str) -> list[str]:
    if name.endswith(".json"):
        text = json.dumps(json.loads(text), indent=2)
    return text.splitlines()


def test_a_changed_value_is_shown_on_a_line_of_its_own() -> None:
    lines = difference("x.json", '{"a": 1, "b": 2}', '{"a": 1, "b": 3}').splitlines()
    assert lines[-5:] == ['   "a": 1,', '-  "b": 2', '+  "b": 3', " }", REWRITE]


# how footnotes begin (doubts, which name what decides them, are whole), and lines below some
FOOTNOTES = ("look at ", "failed: ", "left out: ", "[")
BELOW_FOOTNOTES = ("  run again: ", "  nearest: ", "  the engine ", "  log: ", "  for example: ")
WIDTH_BY_OUTPUT = {
    **{each.output: each.columns for each in [*OF_WIDTHS, *OF_SIMULATION] if each.columns},
    **{output: columns for columns, output in ENDS_OF_RUNS.items()},
}


@pytest.mark.parametrize("name", WIDTH_BY_OUTPUT)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    columns = WIDTH_BY_OUTPUT[name]
    assert columns is not None
    for line in (EXPECTED / name).read_text().splitlines():
        is_command = " orchestrator " in line  # left whole, to be copied
        assert is_command or len(line) <= columns, line


@pytest.mark.parametrize("name", WIDTH_BY_OUTPUT)
def test_a_footnote_is_one_line(name: str) -> None:
    """What is wrapped goes on in a line that begins with spaces."""
    lines = (EXPECTED / name).read_text().splitlines()
    for line, following in pairwise(lines):
        is_wrapped = following.startswith("  ") and not following.startswith(BELOW_FOOTNOTES)
        assert not (line.startswith(FOOTNOTES) and is_wrapped), f"{line}\n{following}"

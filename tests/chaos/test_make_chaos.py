"""``make chaos`` as the page of measurements has it, with one of its hundred rounds."""

from __future__ import annotations

import subprocess

import pytest

from tests.chaos.test_rounds import RUN_BY_MAKE
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT, outside_of_make

pytestmark = pytest.mark.timeout(900)


def test_a_round_of_the_hundred_is_run_by_make_chaos() -> None:
    (block,) = blocks_run_by(__file__, "docs/measurements.md")
    (words,) = command_lines(block)
    assert words == ["make", "chaos"]
    one = f"tests/chaos/test_rounds.py::test_round[{RUN_BY_MAKE}]"
    # of emulators: real engines, which take an index and many minutes, are not installed for it
    there = ("--old-file=.venv/installed", "--old-file=engines")
    done = subprocess.run(
        [*words, *there, f"PYTEST_ARGS={one}"],
        cwd=ROOT,
        env=outside_of_make(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout
    assert f"CHAOS={RUN_BY_MAKE}: " in done.stdout

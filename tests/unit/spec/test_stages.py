"""The table of stages names the one place that makes settings of each stage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import orchestrator
from orchestrator.spec import stages

ROOT = Path(orchestrator.__file__).parent
MADE_BY = dict(re.findall(r"^\| ``(\w+)`` \| ``([\w/.]+\.py)", stages.__doc__ or "", re.MULTILINE))


def makers(stage: str) -> set[str]:
    """The files that turn other settings into those of a stage."""
    files = (file for file in ROOT.rglob("*.py") if file.name != "stages.py")
    return {
        str(file.relative_to(ROOT))
        for file in files
        if re.search(rf"\b{stage}\(", file.read_text())
    }


@pytest.mark.parametrize(
    "stage", ["WrittenSettings", "ResolvedSettings", "PlannedSettings", "PinnedSettings"]
)
def test_settings_of_a_stage_are_made_in_one_place(stage: str) -> None:
    assert makers(stage) == {MADE_BY[stage]}

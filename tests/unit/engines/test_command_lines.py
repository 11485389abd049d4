"""The recorded command lines of engines, and which of them a deployment is held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.command_lines import FOLDER, ReleaseStanding, command_lines, release_of
from orchestrator.engines.registry import ENGINES, ROUTERS
from tests.unit.engines.builders import settings_of

RECORDED = sorted({*ENGINES.shipped(), *ROUTERS.shipped()} - {"emulator", "endpoint"})


@pytest.mark.parametrize(
    ("given", "standing"),
    [
        ({}, ReleaseStanding.ASSUMED),
        ({"executable": "/opt/nowhere/vllm"}, ReleaseStanding.ASSUMED),
        ({"engine_version": "0.33"}, ReleaseStanding.RECORDED),
        ({"engine_version": "v0.32.1"}, ReleaseStanding.RECORDED),
        ({"image": "vllm/vllm-openai:v0.33.0-cu129"}, ReleaseStanding.RECORDED),
        ({"engine_version": "0.34.0"}, ReleaseStanding.NEWER),
        ({"image": "vllm/vllm-openai:v0.40.1"}, ReleaseStanding.NEWER),
        ({"engine_version": "0.3"}, ReleaseStanding.OTHER),
        ({"engine_version": "0.31"}, ReleaseStanding.OTHER),
        ({"engine_version": "nightly"}, ReleaseStanding.OTHER),
        ({"image": "acme/fork:latest"}, ReleaseStanding.OTHER),
    ],
)
def test_a_release_is_recorded_newer_or_another(
    given: dict[str, Any], standing: ReleaseStanding
) -> None:
    release = release_of("vllm", settings_of("vllm", **given))
    assert release is not None
    assert release.standing is standing


def test_the_release_of_a_virtual_environment_is_read(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.12/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)
    release = release_of("vllm", settings_of("vllm", executable=str(tmp_path)))
    assert release is not None
    assert (release.stated, release.command_line.version) == ("0.32.0", "0.32.0")


@pytest.mark.parametrize("engine", RECORDED)
def test_every_recorded_release_is_complete(engine: str) -> None:
    lines = command_lines(engine)
    assert lines
    assert len({line.version for line in lines}) == len(lines)
    for line in lines:
        assert line.flags
        assert all(line.find(spelling) is flag for spelling, flag in line.flags.items())
    newest = json.loads((FOLDER / f"{engine}.json").read_text())
    assert newest["engine"] == engine
    assert newest["source"]


@pytest.mark.parametrize("engine", sorted({*ENGINES.shipped()} - {"emulator", "endpoint"}))
def test_newest_recorded_release_is_that_of_the_engines_record(engine: str) -> None:
    assert ENGINES[engine].knows(command_lines(engine)[0].version)
    assert command_lines(engine)[0].version.startswith(ENGINES[engine].version)
    assert not ENGINES[engine].knows("99.0")

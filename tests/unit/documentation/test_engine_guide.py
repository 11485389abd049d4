"""The engine that the guide to an engine of one's own shows is whole: it plans, and makes a command
line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.engines.command import Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.load.wire.wires import WIRES
from orchestrator.plan.make import load_plan
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.documentation.blocks import blocks
from tests.unit.documentation.pages import DOCS

FILES = {block.file_name: block.text for block in blocks(DOCS / "guides" / "your-own-engine.md")}
CPU = Hardware(name="cpu")


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers the guide's engine as an entry point would."""
    engine = FILES["orchestrator/engines/toy.py"]
    (tmp_path / "toy.py").write_text(engine, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ENGINES._entries, "toy", "toy:ENGINE")
    yield
    sys.modules.pop("toy", None)


def test_its_command_line_has_the_settings() -> None:
    settings = EngineSettings(engine="toy", model="m", executable="/opt/toy-server", max_num_seqs=4)
    assert problems_of(ENGINES["toy"], settings, CPU) == []
    command = ENGINES["toy"].command(settings, CPU, Node(port=21001, launch_id="L"), "a key")
    assert command.argv == (
        *("/opt/toy-server", "m", "--host", "127.0.0.1", "--port", "21001", "--name", "m-L"),
        *("--slots", "4"),
    )
    assert command.secrets == {"TOY_API_KEY": "a key"}


def test_what_it_lacks_is_refused_in_its_name() -> None:
    settings = EngineSettings(engine="toy", model="m", tensor_parallel_size=2)
    (problem,) = problems_of(ENGINES["toy"], settings, CPU)
    assert problem == "tensor_parallel_size: toy-server runs on one device"


def test_the_file_beside_it_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(FILES["toy.yaml"], encoding="utf-8")
    plan = load_plan(file)
    assert [deployment.status for deployment in plan.deployments] == ["planned"] * 2
    assert len(plan.points) == 4


def test_its_apis_have_wires() -> None:
    dialects = ENGINES["toy"].dialects(EngineSettings(engine="toy", model="m"))
    assert {dialect.wire for dialect in dialects.values()} <= set(WIRES)

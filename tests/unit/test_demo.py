"""What ``make demo`` prints once its sweep is over."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"


class Cluster:
    """A cluster that needs no Ray."""

    address = "127.0.0.1:6379"

    def __init__(self, nodes: int) -> None:
        assert nodes == 2

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """scripts/demo.py with its results in an empty folder."""
    cluster_module = SimpleNamespace(RayOnThisMachine=Cluster)
    monkeypatch.setitem(sys.modules, "ray_on_this_machine", cluster_module)
    spec = spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize("status", [0, 3])
def test_the_answer_is_left_to_the_sweep_and_the_page_is_named(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    commands: list[str] = []
    pages: list[Path] = []

    def run(_module: str, _name: str, command: str, *argv: str) -> int:
        commands.append(command)
        if command != "run":
            return 0
        page = demo.ROOT / argv[argv.index("--results") + 1] / "quickstart" / "report.html"
        page.parent.mkdir(parents=True)
        page.touch()
        pages.append(page)
        return status

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(demo, "verdicts", lambda _results: ["valid", "failed"])
    assert demo.measure("experiments/quickstart.yaml") == status
    assert commands == ["run", "results"]
    (page,) = pages
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["", f"page: {page}", f"Parquet: {page.parents[1]}"]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["valid", "disturbed"], 0),
        (["valid", "disturbed", "failed"], 3),
        (["valid", "client_bound"], 3),
    ],
)
def test_points_that_other_work_disturbed_do_not_fail_the_demo(
    demo: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: list[str],
    status: int,
) -> None:
    monkeypatch.setattr(demo, "run", lambda *argv: 3 if "run" in argv else 0)
    monkeypatch.setattr(demo, "verdicts", lambda _results: found)
    assert demo.measure("experiments/quickstart.yaml") == status
    said = "everything ran; 1 of 2 points were disturbed" in capsys.readouterr().out
    assert said is (status == 0)


def test_after_a_sweep_that_broke_nothing_is_shown(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run", lambda *argv: 1)
    assert demo.measure("experiments/quickstart.yaml") == 1
    assert capsys.readouterr().out == ""

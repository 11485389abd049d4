"""What a node is asked before anything starts, and how often the nodes are looked at; no Ray runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cluster.ray import nodes as ray_nodes


@pytest.mark.parametrize(
    ("config", "inside", "carried"),
    [(None, True, False), ({"runtime_env": {}}, True, False),
     ({"runtime_env": {"working_dir": "gcs://x.zip"}}, True, True),
     ({"runtime_env": {"working_dir": "gcs://x.zip"}}, False, False)],
)  # fmt: skip
def test_only_a_working_dir_with_the_package_carries_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: dict[str, Any] | None,
    inside: bool,
    carried: bool,
) -> None:
    monkeypatch.delenv(ray_nodes.JOB_CONFIG, raising=False)
    if config is not None:
        monkeypatch.setenv(ray_nodes.JOB_CONFIG, json.dumps(config))
    monkeypatch.chdir(ray_nodes.PACKAGE.parent if inside else tmp_path)
    assert ray_nodes._in_working_dir() is carried


def test_a_working_dir_that_vanished_under_its_job_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(
        ray_nodes.JOB_CONFIG, json.dumps({"runtime_env": {"working_dir": "gcs://x.zip"}})
    )
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InputError, match="has vanished from this node: submit the job again"):
        ray_nodes.shipped_package()


HEAD_ID = "a" * 56


class Head:
    """The head's node, which is asked once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_here: bool = False) -> None:
        self.answer: Any = ray_nodes.NoAnswer("gave no answer within 0 s")
        self.questions = 0
        self.now_s = 0.0
        driver = SimpleNamespace(get_node_id=lambda: HEAD_ID if is_here else "d", gcs_address="h:1")
        monkeypatch.setattr(ray_nodes.ray, "get_runtime_context", lambda: driver)
        monkeypatch.setattr(ray_nodes, "head_node", lambda: HEAD_ID)
        monkeypatch.setattr(ray_nodes, "monitor_has_configuration", lambda address: is_here)
        monkeypatch.setattr(ray_nodes, "answers", lambda refs, limit_s: {"head": self.answer})
        monkeypatch.setattr(ray_nodes, "_HAS_CONFIGURATION", self)
        self.monitor = ray_nodes.HeadMonitor(lambda: None, lambda: self.now_s)

    def options(self, **_: Any) -> Head:
        return self

    def remote(self) -> str:
        self.questions += 1
        return "question"


def test_a_head_elsewhere_is_asked_once_whether_its_monitor_may_add_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = Head(monkeypatch)
    assert head.monitor.has_configuration() is None
    assert head.monitor.has_configuration() is None
    head.answer = True
    assert head.monitor.has_configuration() is True
    head.answer = False
    assert head.monitor.has_configuration() is True
    assert head.questions == 1


def test_a_head_that_never_answers_has_no_autoscaler(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    assert head.monitor.has_configuration() is None
    head.now_s = 59.0
    assert head.monitor.has_configuration() is None
    head.now_s = 60.0
    assert head.monitor.has_configuration() is False


def test_a_head_on_the_drivers_node_is_looked_at_without_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = Head(monkeypatch, is_here=True)
    assert head.monitor.has_configuration() is True
    assert head.questions == 0

"""What nodes are asked for: facts, clocks, the network between them, and the results."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cluster import reachability
from orchestrator.cluster.base import Growth, Machine, NoAnswer
from orchestrator.cluster.local import LocalProbes
from orchestrator.cluster.machine_facts import facts, try_results
from orchestrator.cluster.protocol import ASK_LIMIT_S
from orchestrator.sweep import examine as asking
from orchestrator.sweep.examine import examine, requirements_of
from tests.unit.sweep.test_doctor import VLLM, deployments


def test_autoscaler_is_given_time_to_report_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, reports = [0.0], [0, 1, 1, 2]
    monkeypatch.setattr(asking.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(
        asking.time, "sleep", lambda pause_s: now_s.__setitem__(0, now_s[0] + pause_s)
    )

    def cluster(reports: list[int]) -> Any:
        return SimpleNamespace(
            growth=lambda: Growth(reports=reports.pop(0) if len(reports) > 1 else reports[0])
        )

    assert asking.growth_of(cluster(reports)).reports == 2
    assert asking.growth_of(cluster([1])).reports == 1
    assert now_s[0] == 3 + asking.REPORT_S


def test_endpoints_have_no_requirements() -> None:
    assert requirements_of(deployments("engine: endpoint, url: 'http://127.0.0.1:8000'")) == []


def test_deployments_with_caches_of_their_own_have_requirements_of_their_own() -> None:
    assert len(requirements_of(deployments(VLLM) * 2)) == 1
    for other in ("env: {HF_HOME: /data}", "revision: other"):
        assert len(requirements_of([*deployments(VLLM), *deployments(f"{VLLM}, {other}")])) == 2


class FakeProbes(LocalProbes):
    """Two nodes on this machine: the second says what a test makes of it."""

    def __init__(self, second: Any) -> None:
        super().__init__([Machine("one", "127.0.0.2"), Machine("two", "127.0.0.3")])
        self._second = second

    def ask(
        self, function: Any, *arguments: Any, limit_s: float = 0.0, nodes: Any = ()
    ) -> dict[str, Any]:
        answers = {
            "one": lambda: function(*arguments),
            "two": lambda: self._second(function, *arguments),
        }
        return {node: answers[node]() for node in nodes or answers}


def test_nodes_without_an_answer_are_named_with_a_remedy(tmp_path: Path) -> None:
    nodes, (found,) = examine(
        FakeProbes(lambda *_: NoAnswer("gave no answer within 30 s")), [], None
    )
    assert [one.machine.node_id for one in nodes] == ["one"]
    assert (found.level, found.where) == ("fail", "127.0.0.3, two")
    assert "raylet" in found.do
    asked = list[Any]()
    examine(
        FakeProbes(lambda function, *_: asked.append(function) or NoAnswer("none")),
        [],
        str(tmp_path),
    )
    assert asked == [facts], "a silent node is not waited for again"
    _, (found,) = examine(
        FakeProbes(lambda *_: NoAnswer("cannot run this program", cannot_run=True)), [], None
    )
    assert "install this program" in found.do


@pytest.mark.parametrize(("off_s", "least_s"), [(0.0, 0.0), (3.0, 2.5), (-3.0, 2.5)])
def test_clock_offset_is_at_least_what_round_trips_leave_open(off_s: float, least_s: float) -> None:
    probes = FakeProbes(
        lambda function, *given: time.time() + off_s if function is time.time else function(*given)
    )
    nodes, _ = examine(probes, [], None)
    first, second = (one.clock_s for one in nodes)
    assert first < 0.5
    assert least_s <= second <= abs(off_s) + 0.5


def test_node_that_sees_other_results_is_named_and_nothing_stays(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")

    def sees_another(function: Any, *given: Any) -> Any:
        return function(elsewhere, *given[1:]) if function is try_results else function(*given)

    probes = FakeProbes(sees_another)
    _, (found,) = examine(probes, [], str(tmp_path / "results"))
    assert found.check == "results"
    assert "does not see what the driver wrote" in found.what
    assert not (tmp_path / "results").exists()
    own = LocalProbes([Machine("one", "10.0.0.1")])
    assert examine(own, [], str(tmp_path / "results"))[1] == []
    (tmp_path / "file").write_text("")
    assert [one.check for one in examine(own, [], str(tmp_path / "file"))[1]] == ["results"]


def test_check_of_results_that_fails_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> list[bool]:
        raise OSError("the share is gone")

    monkeypatch.setattr(asking.Blobs, "exist", lost)
    _, (found,) = examine(FakeProbes(lambda function, *given: function(*given)), [], str(tmp_path))
    assert (found.check, found.what) == ("results", "the share is gone")
    assert list(tmp_path.iterdir()) == []


class Unhurried(LocalProbes):
    """Three nodes in virtual time: the second says what it is, and no more, and costs whoever asks
    it the limit.
    """

    def __init__(self) -> None:
        super().__init__([Machine(str(at), f"127.0.0.{at}") for at in (2, 3, 4)])
        self.now_s, self.until_s, self.asked = 0.0, 0.0, list[tuple[Any, int]]()

    def ask(
        self, function: Any, *given: Any, limit_s: float = ASK_LIMIT_S, nodes: Any = ()
    ) -> dict[str, Any]:
        nodes = nodes or [one.node_id for one in self.machines]
        self.asked.append((function, len(nodes)))
        if function is reachability.listen:
            self.until_s = self.now_s + given[-1]
            answer: Any = 21000
        elif function is reachability.unreached:
            late = self.now_s + reachability.PEERS * reachability.PATIENCE_S > self.until_s
            answer = dict.fromkeys(at for at, _ in given[0]) if late else {}
        else:
            answer = function(*given)
        silent = function is not facts and "3" in nodes
        self.now_s += limit_s * silent
        return {
            node: NoAnswer("gave no answer") if silent and node == "3" else answer for node in nodes
        }


def test_node_that_falls_silent_is_named_alone() -> None:
    probes = Unhurried()
    nodes, (found,) = examine(probes, [], None)
    assert len(nodes) == 3
    assert (found.level, found.check) == ("fail", "network")
    assert found.what == "gave no answer"
    assert "raylet" in found.do
    assert "127.0.0.3" in found.where
    assert probes.asked == [
        (facts, 3), (time.time, 3), *[(time.time, 2)] * 9, (reachability.listen, 3), (reachability.unreached, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accepts", "what"), [(False, "no connection to its port"), (True, "full packets are lost")]
)
def test_hosts_that_do_not_reach_each_other_are_named(
    monkeypatch: pytest.MonkeyPatch, accepts: bool, what: str
) -> None:
    monkeypatch.setattr(reachability, "PATIENCE_S", 0.3)
    with socket.socket() as other:
        other.bind(("127.0.0.3", 0))
        if accepts:
            other.listen()  # the kernel takes connections, and nobody answers
        port = other.getsockname()[1]
        probes = FakeProbes(
            lambda function, *given: port if function is reachability.listen else function(*given)
        )
        _, found = examine(probes, [], None)
    assert {(one.level, one.check) for one in found} == {("fail", "network")}
    assert all("127.0.0.3" in one.what and what in one.what for one in found)
    assert "127.0.0.2" in found[0].where

"""``orchestrator doctor``: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.doctor import ExaminedCluster, findings_text
from orchestrator.cluster import machine_facts
from orchestrator.cluster.base import Machine
from orchestrator.cluster.local import LocalCluster
from orchestrator.sweep import examine
from orchestrator.sweep.examine import Finding
from tests.unit.cli.commands import Done, invoke
from tests.unit.sweep.test_doctor import FINE, node


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command on a machine with the facts FINE, except for those that are given."""

    def run(*argv: str, **facts: object) -> Done:
        all_facts = FINE | {"versions": machine_facts.versions()} | facts
        monkeypatch.setattr(examine, "facts", lambda _: all_facts)
        machine = Machine("local", "127.0.0.1", gpus=0, cpus=2.0)
        monkeypatch.setattr(LocalCluster, "machines", lambda _: [machine])
        return invoke("doctor", *argv)

    return run


def test_where_all_is_well_the_status_is_0(doctor: Any) -> None:
    done = doctor()
    assert done.stdout.splitlines() == [
        "seen: 1 node with 96 cores, 1000 GiB, 2 x NVIDIA H100 80GB HBM3",
        "not checked: engines and models (--experiment), access to the results (--results)",
        "1 node: 0 findings that would fail a sweep, 0 warnings",
    ]
    assert done.status == 0


def test_what_was_asked_for_is_not_named_as_unchecked(doctor: Any, tmp_path: Path) -> None:
    done = doctor("--results", str(tmp_path), gpus={}, amd_gpus=4)
    assert "4 x AMD GPU\nnot checked: engines and models (--experiment)\n" in done.stdout


def test_a_warning_is_status_3_with_a_remedy(doctor: Any) -> None:
    done = doctor(limits=FINE["limits"] | {"nofile": 10_000})
    assert "what to do: raise `ulimit -Hn` before starting Ray" in done.stdout
    assert done.status == 3


def test_what_would_fail_a_sweep_is_status_2(doctor: Any, tmp_path: Path) -> None:
    done = doctor("--format", "json", "--results", str(tmp_path), taken_ports=50)
    document = json.loads(done.stdout)
    assert [finding["check"] for finding in document["findings"]] == ["ports"]
    assert document["nodes"][0]["address"] == "127.0.0.1"
    assert done.status == 2


def test_no_password_of_an_address_is_printed(doctor: Any) -> None:
    done = doctor("--format", "json", hostname="https://user:pass@host/")
    assert json.loads(done.stdout)["nodes"][0]["hostname"] == "https://***@host/"


def test_what_is_wrong_on_several_nodes_is_printed_once_and_failures_first() -> None:
    findings = [
        Finding("warning", "clock", "n1", "It is late.", "Times differ.", "Set it."),
        Finding("fail", "disk", "n1", "It is full.", "Nothing fits.", "Empty it."),
        Finding("fail", "disk", "n2", "It is full.", "Nothing fits.", "Empty it."),
    ]
    lines = findings_text(ExaminedCluster([node(), node(gpus={})], findings)).splitlines()
    assert lines == [
        "fail: disk: It is full.",
        "  where: n1, n2",
        "  why it matters: Nothing fits.",
        "  what to do: Empty it.",
        "warning: clock: It is late.",
        "  where: n1",
        "  why it matters: Times differ.",
        "  what to do: Set it.",
        "seen: 1 node with 96 cores, 1000 GiB, 2 x NVIDIA H100 80GB HBM3",
        "seen: 1 node with 96 cores, 1000 GiB, no GPU",
        "2 nodes: 1 finding that would fail a sweep, 1 warning",
    ]

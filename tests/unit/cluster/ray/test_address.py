"""Which cluster is joined, and how soon one that is gone is noticed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from ray.exceptions import AuthenticationError

from orchestrator.base.errors import InputError
from orchestrator.cluster.ray import address as ray_address
from orchestrator.cluster.ray import cluster as ray_cluster
from orchestrator.cluster.ray.address import (
    ClusterAddress,
    live_address,
    watch_head,
    why_not_joined,
)
from orchestrator.cluster.ray.cluster import RayCluster


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the last ``ray start`` is one of our own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_address, "ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


@pytest.fixture
def dead() -> str:
    """An address of this machine where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_without_any_cluster_one_is_started_here() -> None:
    assert live_address(None) == ClusterAddress("local")


def test_a_stale_file_is_passed_over_with_a_sentence(clean: Path, dead: str) -> None:
    clean.write_text(dead)
    live = live_address(None)
    assert live.address == "local"
    assert live.note is not None
    assert "is gone" in live.note


def test_a_named_cluster_that_does_not_answer_is_refused(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no Ray cluster answers"):
        live_address(dead)
    monkeypatch.setenv("RAY_ADDRESS", dead)
    with pytest.raises(InputError, match="RAY_ADDRESS"):
        live_address(None)


def test_auto_asks_for_a_cluster_that_runs(clean: Path, dead: str) -> None:
    with pytest.raises(InputError):
        live_address("auto")
    clean.write_text(dead)
    with pytest.raises(InputError):
        live_address("auto")


def test_something_that_listens_but_is_no_head_node_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(InputError):
        live_address(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_token_that_is_not_there_is_a_sentence(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shell that still names the token of a cluster that is gone."""

    def no_token(address: str | None) -> None:
        raise AuthenticationError("RAY_AUTH_TOKEN_PATH is set but file cannot be opened")

    monkeypatch.setattr(ray_cluster, "live_address", no_token)
    with pytest.raises(
        InputError, match=f"no Ray cluster at {dead}: RAY_AUTH_TOKEN_PATH is set .*[^)]$"
    ):
        RayCluster(None, dead)


VERSIONS = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.12.1
This process on 10.0.0.7 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


def test_a_cluster_of_another_version_is_there_and_no_token_would_help() -> None:
    text = why_not_joined("10.0.0.7:6379", RuntimeError(VERSIONS))
    assert text == (
        "the Ray cluster at 10.0.0.7:6379 cannot be joined: Version mismatch: The cluster was "
        "started with: Ray: 2.50.0 Python: 3.12.1 This process on 10.0.0.7 was started with: "
        "Ray: 2.60.0 Python: 3.11.7 (run with the cluster's versions of Ray and Python)"
    )


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_cluster_that_was_only_found_may_be_anothers(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = "another user's: --address local"
    refusal = ConnectionError("it refuses")
    text = why_not_joined(address, refusal)
    assert text.startswith("no Ray cluster at this machine: it refuses (one that asks for a token ")
    assert others in text
    assert others not in why_not_joined(address, refusal, is_started_here=True)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    text = why_not_joined(address, refusal)
    assert text.startswith("no Ray cluster at head:6379: it refuses")
    assert others not in text


class ProcessEnded(Exception):
    """In place of the end of the process."""


@dataclass(frozen=True)
class Look:
    """One question to the head: how long it took, and whether it was answered."""

    answers: bool
    seconds: float = 0.0


def sentences_about_head(
    looks: Sequence[Look], stop: Event, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What the user is told while the head answers so, until the process ends."""
    now_s = 0.0
    sentences: list[str] = []
    looks_left = iter(looks)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def end_process(*_: object) -> None:
        raise ProcessEnded

    def head_answers(*_: object) -> bool:
        look = next(looks_left, None)
        if look is None:
            raise ProcessEnded
        sleep(look.seconds)
        return look.answers

    monkeypatch.delenv(ray_address.RAY_LIMIT, raising=False)
    monkeypatch.setattr(ray_address, "head_answers", head_answers)
    monkeypatch.setattr(ray_address, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    monkeypatch.setattr(ray_address.os, "_exit", end_process)
    with pytest.raises(ProcessEnded):
        watch_head("head", sentences.append, stop)
    return sentences


def test_a_head_that_stays_silent_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Event()
    looks = [Look(answers=False)] * 6 + [Look(answers=True)]
    silent, again = sentences_about_head(looks, stop, monkeypatch)
    assert "silent for 10 s: this run ends at 45 s" in silent
    assert "the same command continues" in silent, (
        "a user reads this within half a minute, and the end comes later"
    )
    assert "answers again after 12 s" in again
    assert not stop.is_set()
    _, lost = sentences_about_head([Look(answers=False)] * 50, stop, monkeypatch)
    assert "is lost: it has not answered for 46 s" in lost
    assert stop.is_set()


def test_a_driver_that_stood_still_does_not_take_the_head_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that was paused: the first look after it may fail for that alone."""
    stop = Event()
    looks = [Look(answers=True), Look(answers=False, seconds=300), Look(answers=True)]
    assert sentences_about_head(looks, stop, monkeypatch) == []
    assert not stop.is_set()


def test_the_address_for_jobs_is_told_from_the_clusters() -> None:
    with pytest.raises(InputError, match="give the cluster's own, head:6379"):
        live_address("http://head:8265")

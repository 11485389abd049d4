"""Client processes and engines' logs of this machine, and what is found of a model."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.client_host import local_tokenizer
from orchestrator.cluster.clients import ClientRun
from orchestrator.cluster.engine_host import kept
from orchestrator.cluster.local import ClientProcess
from orchestrator.load.point import Progress


def test_of_a_long_log_the_start_and_the_end_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    lines = [f"line {number}" for number in range(1000)]
    log.write_text("\n".join(lines) + "\n")
    assert kept(log).decode() == log.read_text()
    first, *middle, last = kept(log, head=100, tail=50).decode().splitlines()
    assert (first, last) == ("line 0", "line 999")
    gap = next(at for at, line in enumerate(middle) if line.startswith("# ... about"))
    assert set(middle[:gap] + middle[gap + 1 :]) <= set(lines), "whole lines only"
    assert "about 8740 bytes are left out" in middle[gap]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, None),
        ("folder", "folder"),
        ("folder/tokenizer.json", "folder/tokenizer.json"),
        ("folder/tokens", "folder/tokens"),
        ("x.gguf", None),
        ("acme/x:Q4_K_M", None),
        ("acme/x", None),
        ("/nowhere/x.gguf", None),
    ],
)
def test_a_gguf_file_and_what_the_hub_has_not_given_are_no_tokenizer(
    name: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("folder/tokenizer.json", "folder/tokens", "x.gguf"):
        (tmp_path / file).write_bytes(b"GGUF")
    assert local_tokenizer(name) == found


def test_a_client_process_ignores_signals_from_its_very_beginning() -> None:
    """A terminal sends Ctrl-C to it too, and it may still be importing: it would end, or print where it was."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    client = ClientProcess()
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        assert client.process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin("wall_ns").result(30) > 0
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin("wall_ns").result(30) > 0
    finally:
        client.kill()


class Counting:
    """A client that still counts replies: it reports at the third question, or never answers."""

    def __init__(self, answers: bool) -> None:
        self.report: Future[str] = Future()
        self._asked, self._answers = 0, answers

    def begin(self, method: str, *args: object) -> Future[Any]:
        made: Future[Any] = Future()
        self._asked += 1
        if self._answers:
            made.set_result(Progress())
            if self._asked == 3:
                self.report.set_result("rows")
        return made

    def kill(self) -> None: ...


@pytest.mark.parametrize(("answers", "found"), [([True], [0]), ([False], []), ([True, False], [0])])
def test_who_answers_is_waited_for_and_who_does_not_is_not(
    answers: list[bool], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [Counting(one) for one in answers]
    run = ClientRun(clients, [one.report for one in clients])
    run.settle(0.0)
    assert list(run.reports()) == found

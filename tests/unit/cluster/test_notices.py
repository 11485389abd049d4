"""Notices of the three clouds as their metadata services give them, on loopback; and that of a
hook's file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.cluster import notices
from orchestrator.cluster.notices import (
    Notice,
    aws,
    azure,
    first_notice,
    google,
    in_file,
    notice_sources,
)

Serve = Callable[[dict[str, str]], str]
TOKEN = "session-token"  # noqa: S105


class Metadata(BaseHTTPRequestHandler):
    """Refuses what the real ones refuse: no session token, no flavor, no `Metadata: true`."""

    answers: dict[str, str]

    def do_PUT(self) -> None:
        granted = (
            self.path == "/latest/api/token"
            and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        )
        self._say(200 if granted else 400, TOKEN)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        allowed = {
            "/latest": self.headers["X-aws-ec2-metadata-token"] == TOKEN,
            "/computeMetadata": self.headers["Metadata-Flavor"] == "Google",
            "/metadata": self.headers["Metadata"] == "true" and "api-version=" in self.path,
        }
        if not any(granted for start, granted in allowed.items() if path.startswith(f"{start}/")):
            return self._say(401, "")
        return (
            self._say(200, self.answers[path])
            if path in self.answers
            else self._say(404, "not found")
        )

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A metadata service with these answers by path; the others are 404."""
    running = []

    def start(answers: dict[str, str]) -> str:
        server = HTTPServer(("127.0.0.1", 0), type("Answers", (Metadata,), {"answers": answers}))
        running.append(server)
        threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_aws_says_when_a_spot_instance_goes(serve: Serve) -> None:
    time = in_seconds(120).strftime("%Y-%m-%dT%H:%M:%SZ")
    action = json.dumps({"action": "terminate", "time": time})
    notice = aws(serve({"/latest/meta-data/spot/instance-action": action}))
    assert notice
    assert 110 < notice.left_s <= 120
    assert "terminate" in notice.why
    assert aws(serve({})) is None


@pytest.mark.parametrize(
    ("preempted", "event", "left_s"),
    [
        ("TRUE", "NONE", 30.0),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", 60.0),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", None),
        ("FALSE", "NONE", None),
    ],
)
def test_google_says_that_it_preempts_or_ends_and_a_migration_is_neither(
    preempted: str, event: str, left_s: float | None, serve: Serve
) -> None:
    paths = {"preempted": preempted, "maintenance-event": event}
    notice = google(
        serve({f"/computeMetadata/v1/instance/{name}": said for name, said in paths.items()})
    )
    assert (notice and notice.left_s) == left_s


@pytest.mark.parametrize(
    ("kind", "vm", "gone"),
    [("Preempt", "me", True), ("Preempt", "other", False), ("Freeze", "me", False)],
)
def test_azure_says_which_machine_of_a_set_goes(
    kind: str, vm: str, gone: bool, serve: Serve
) -> None:
    before = format_datetime(in_seconds(30), usegmt=True)
    event = {"EventType": kind, "Resources": [vm], "EventStatus": "Scheduled", "NotBefore": before}
    events = {
        "/metadata/scheduledevents": json.dumps({"Events": [event]}),
        "/metadata/instance/compute/name": "me",
    }
    notice = azure(serve(events))
    assert (notice is not None) == gone
    assert notice is None or 20 < notice.left_s <= 30


def test_azure_that_has_begun_names_no_time_and_leaves_none(serve: Serve) -> None:
    event = {"EventType": "Preempt", "Resources": ["me"], "EventStatus": "Started", "NotBefore": ""}
    events = {
        "/metadata/scheduledevents": json.dumps({"Events": [event]}),
        "/metadata/instance/compute/name": "me",
    }
    assert azure(serve(events)) == Notice(0.0, "Azure: Preempt")


def test_a_hook_writes_the_seconds_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert in_file(path) is None
    path.write_text("90\n")
    read = in_file(path)
    assert read and 80 < read.left_s <= 90 and read.why == f"{path} says so"
    written = time.time() - 60
    os.utime(path, (written, written))
    later = in_file(path)
    assert later and 20 < later.left_s <= 30
    path.write_text("1")
    os.utime(path, (written, written))
    assert in_file(path) == Notice(0.0, f"{path} says so")


@pytest.mark.parametrize(
    ("vendor", "asked"),
    [("Amazon EC2", 1), ("Google", 1), ("Microsoft Corporation", 1), ("LENOVO", 0)],
)
def test_only_the_cloud_that_a_machine_is_in_is_asked(
    vendor: str, asked: int, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "sys_vendor").write_text(f"{vendor}\n")
    assert len(notice_sources({}, tmp_path / "sys_vendor")) == asked
    assert notice_sources({}, tmp_path / "no_dmi") == []
    notice = {"/computeMetadata/v1/instance/preempted": "TRUE"}
    found = notice_sources({"ORCHESTRATOR_METADATA_URL": serve(notice)}, tmp_path / "sys_vendor")
    assert (first_notice(found) is not None) == (vendor == "Google")


def test_a_service_that_is_silent_or_talks_nonsense_gives_no_notice(serve: Serve) -> None:
    nonsense = serve(
        {"/latest/meta-data/spot/instance-action": "[]", "/metadata/scheduledevents": "[]"}
    )
    asked = [partial(aws, nonsense), partial(aws, "http://127.0.0.1:1"), partial(google, nonsense)]
    assert first_notice([*asked, partial(azure, nonsense)]) is None


def test_a_notice_that_cannot_be_passed_on_is_passed_on_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, passed_on = list[Notice](), threading.Event()

    def act(notice: Notice) -> None:
        heard.append(notice)
        if len(heard) < 3:
            raise ConnectionError("the head is away")
        passed_on.set()

    monkeypatch.setattr(notices, "LOOK_S", 0.0)
    monkeypatch.setattr(notices, "notice_sources", lambda: [lambda: Notice(9.0, "spot")])
    notices.watch(act)
    assert passed_on.wait(10.0)
    assert heard == [Notice(9.0, "spot")] * 3

"""``watch`` over an object store: a local S3 server in its own process, whose log says what is asked
of it.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from orchestrator.results.store import Store
from orchestrator.web.server import Watcher
from orchestrator.web.watched import REMOTE_PAUSE_S, WatchedResults
from tests.chaos.s3 import BUCKET, KEYS, answers
from tests.harness import free_port, wait_for
from tests.unit.plan.stored_sweeps import planned, store_sweep

HOUR_S = 3600
MOST_LISTINGS = 9  # of one experiment at one look


class LoggedS3:
    """A server with one bucket. ``uri``: of a folder in it; ``log``: what it wrote."""

    def __init__(self, log: Path) -> None:
        port = free_port()
        argv = [
            str(Path(sys.executable).parent / "moto_server"),
            "-H",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        with log.open("w") as written:
            self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=written)
        self.log = log
        wait_for(lambda: answers(port), 60, "moto_server answers")
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        self.uri = (
            f"s3://{BUCKET}/root?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        )

    def asked_since(self, begin: int) -> list[str]:
        """Methods and paths of the requests that came since a length of the log."""
        return re.findall(r'"([A-Z]+ /\S*) HTTP', self.log.read_text()[begin:])

    def log_size(self) -> int:
        return len(self.log.read_text())


@pytest.fixture
def s3(tmp_path, monkeypatch) -> Iterator[LoggedS3]:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    started = LoggedS3(tmp_path / "s3.log")
    yield started
    started.process.kill()
    started.process.wait(10)


def test_what_is_measured_into_a_bucket_is_seen(s3):
    watched = WatchedResults(s3.uri)
    watched.look()
    assert watched.now.content.document.experiments == ()
    store = Store.open(s3.uri, "exp")
    store_sweep(store, planned())
    assert watched.look()
    first = watched.now
    assert first.attempts == len(store.attempts())
    store_sweep(Store.open(s3.uri, "exp"), planned(levels=[2, 3]))
    assert watched.look()
    assert watched.now.attempts == first.attempts + 2


def test_a_bucket_in_which_nothing_changes_is_listed_and_not_read(s3):
    store_sweep(Store.open(s3.uri, "exp"), planned())
    watched = WatchedResults(s3.uri)
    watched.look()
    begin = s3.log_size()
    assert not watched.look()
    asked = s3.asked_since(begin)
    listings = [each for each in asked if each.startswith("GET") and "list-type" in each]
    assert 0 < len(listings) <= MOST_LISTINGS, "\n".join(asked)
    assert [each for each in asked if each.startswith("GET") and "list-type" not in each] == []


def test_an_hour_of_watching_lists_a_bucket_every_ten_seconds_at_most(s3, monkeypatch):
    """The clock is made up: each pause is over at once and counted."""
    store_sweep(Store.open(s3.uri, "exp"), planned())
    watched = WatchedResults(s3.uri)
    looks = 0
    slept_s = 0.0
    look = watched.look

    def counted_look() -> bool:
        nonlocal looks
        looks += 1
        return look() if looks < 5 else False

    async def instantly(pause_s: float) -> None:
        nonlocal slept_s
        slept_s += pause_s
        if slept_s >= HOUR_S:
            raise asyncio.CancelledError

    monkeypatch.setattr(watched, "look", counted_look)
    monkeypatch.setattr("orchestrator.web.server.asyncio.sleep", instantly)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Watcher(watched).run())
    assert 1 < looks <= HOUR_S / REMOTE_PAUSE_S

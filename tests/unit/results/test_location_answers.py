"""A storage that a command is about to use is asked once whether it answers, in bounded time."""

from __future__ import annotations

import socket
import time

import pytest
from pyarrow import fs

from orchestrator.base.errors import InputError
from orchestrator.cluster.ray.address import live_address
from orchestrator.results.location import Location, check_answers


class Storage:
    """A filesystem that answers every question in one way."""

    def __init__(self, error: str = "", silent_s: float = 0.0) -> None:
        self._error, self._silent_s = error, silent_s

    def get_file_info(self, path: str) -> None:
        time.sleep(self._silent_s)
        if self._error:
            raise OSError(self._error)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("curlCode: 6; Details: Could not resolve host: b.s3.x", "is there a network?"),
        ("AWS Error ACCESS_DENIED during HeadObject operation", "are there credentials"),
        ("AWS Error NO_SUCH_BUCKET during HeadObject operation", "is the bucket's name right?"),
    ],
)
def test_what_no_second_try_mends_is_one_sentence(
    error: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Location, "filesystem", lambda self: Storage(error))
    with pytest.raises(InputError, match="^s3://b/p cannot be used: ") as caught:
        check_answers("s3://b/p")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_storage_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "filesystem", lambda self: Storage(silent_s=2.0))
    with pytest.raises(InputError, match="gs://b/p has not answered for 0.1 s"):
        check_answers("gs://b/p", limit_s=0.1)


def test_a_storage_that_is_busy_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "filesystem", lambda self: Storage("AWS Error SLOW_DOWN"))
    check_answers("s3://b/p", limit_s=1.0)


def test_a_region_that_cannot_be_found_out_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(bucket: str) -> str:
        raise OSError("When resolving region: Could not resolve host")

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    monkeypatch.setattr(fs, "resolve_s3_region", unknown)
    with pytest.raises(InputError, match="the region of s3://b is not known"):
        check_answers("s3://b/p")


def test_a_host_of_aws_without_an_address_is_asked_for_no_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_address(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(InputError, match=r"Could not resolve host s3\.us-east-1\.amazonaws\.com"):
        check_answers("s3://b/p")


def test_the_address_for_jobs_is_told_from_the_clusters() -> None:
    with pytest.raises(InputError, match="give the cluster's own, head:6379"):
        live_address("http://head:8265")

"""Results URIs: what they stand for, and that no secret gets through them."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.results import location
from orchestrator.results.location import (
    FIRST_ANSWER,
    LAST_TRY_S,
    Location,
    check_answers,
    parse_location,
    uri_inside,
)


@pytest.fixture(autouse=True)
def _no_endpoint_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_location("results/").uri == str(tmp_path / "results")
    assert parse_location("file:///a/b%20c").path == "/a/b c"
    assert isinstance(parse_location("results").filesystem(), fs.LocalFileSystem)


def test_an_s3_uri_names_bucket_prefix_and_endpoint() -> None:
    location = parse_location(
        "s3://bucket/some//prefix/?scheme=http&endpoint_override=127.0.0.1:9000&region=eu-1"
    )
    assert location.path == "bucket/some/prefix"
    assert dict(location.options) == {
        "endpoint_override": "127.0.0.1:9000",
        "region": "eu-1",
        "scheme": "http",
    }
    assert isinstance(location.filesystem(), fs.S3FileSystem)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/p?endpoint_override=http://127.0.0.1:9000",
        "s3://bucket",
        "gs://bucket/a%20b?anonymous=true&endpoint_override=127.0.0.1:9",
        "/tmp/results",
    ],
)
def test_a_canonical_uri_gives_the_same_location_again(uri: str) -> None:
    location = parse_location(uri)
    assert parse_location(location.uri) == location


def test_the_endpoint_may_come_from_the_environment_but_the_uri_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://10.0.0.1:9000")
    found = dict(parse_location("s3://bucket/p").options)
    assert (found["endpoint_override"], found["scheme"], found["region"]) == (
        "10.0.0.1:9000",
        "http",
        "us-east-1",
    )
    own = dict(parse_location("s3://bucket/p?endpoint_override=other:1&scheme=https").options)
    assert (own["endpoint_override"], own["scheme"]) == ("other:1", "https")


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_region_of_an_endpoint_may_come_from_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "garage")
    uri = "s3://bucket/p?endpoint_override=127.0.0.1:9000"
    assert dict(parse_location(uri).options)["region"] == "garage"
    assert dict(parse_location(f"{uri}&region=own").options)["region"] == "own"


def test_a_google_uri_opens_without_asking_anyone() -> None:
    assert isinstance(parse_location("gs://bucket/p?anonymous=true").filesystem(), fs.GcsFileSystem)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:hunter2@bucket/prefix",
        "s3://bucket/prefix?access_key=AKIAKEY&secret_key=hunter2",
        "s3://bucket/prefix?session_token=hunter2",
        "gs://bucket/p?access_token=hunter2",
        "s3://bucket/prefix?endpoint_override=AKIAKEY:hunter2@127.0.0.1:9000",
    ],
)
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ProblemsError, match="holds credentials") as caught:
        parse_location(uri)
    assert "hunter2" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


def test_credentials_in_the_endpoint_of_the_environment_are_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://AKIAKEY:hunter2@10.0.0.1:9000")
    with pytest.raises(ProblemsError, match="its endpoint holds credentials") as caught:
        parse_location("s3://bucket/prefix")
    assert "hunter2" not in str(caught.value)


def test_all_problems_of_a_uri_come_at_once() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_location("s3://u:p@/prefix?colour=red")
    assert len(caught.value.problems) == 3
    assert "colour" in str(caught.value)


@pytest.mark.parametrize("uri", ["ftp://x/y", "", "file://"])
def test_other_uris_are_refused_with_what_to_write(uri: str) -> None:
    with pytest.raises(InputError, match="s3://"):
        parse_location(uri)


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
        (
            "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 77, Problem with "
            "the SSL CA cert (path? access rights?)",
            "is its certificate trusted here",
        ),
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


def test_a_storage_that_is_not_reached_is_tried_again_and_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = (
        "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7, Could not connect"
    )
    tries: list[str] = []

    class Unreached(Storage):
        def get_file_info(self, path: str) -> None:
            tries.append(path)
            super().get_file_info(path)

    monkeypatch.setattr(Location, "filesystem", lambda self: Unreached(error))
    monkeypatch.setattr(location, "FIRST_ANSWER", replace(FIRST_ANSWER, first_pause_s=0.01))
    with pytest.raises(InputError, match="^s3://b/p cannot be used: .*; is it up, is its address"):
        check_answers("s3://b/p", limit_s=LAST_TRY_S + 0.1)
    assert len(tries) > 1


@pytest.mark.parametrize(
    "error",
    [
        "AWS Error SLOW_DOWN",
        "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28, Timeout was reached",
    ],
)
def test_a_storage_that_is_busy_passes(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "filesystem", lambda self: Storage(error))
    monkeypatch.setattr(location, "FIRST_ANSWER", replace(FIRST_ANSWER, first_pause_s=0.01))
    check_answers("s3://b/p", limit_s=LAST_TRY_S + 0.1)


def test_a_region_that_cannot_be_found_out_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(bucket: str) -> str:
        raise OSError("When resolving region: Could not resolve host")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    monkeypatch.setattr(fs, "resolve_s3_region", unknown)
    with pytest.raises(InputError, match="the region of s3://b is not known"):
        check_answers("s3://b/p")


def test_a_host_of_aws_without_an_address_is_asked_for_no_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_address(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(InputError, match=r"Could not resolve host s3\.us-east-1\.amazonaws\.com"):
        check_answers("s3://b/p")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    check_answers(str(tmp_path / "new" / "folder"))
    file = tmp_path / "notes.txt"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(InputError, match=r"notes.txt is a file, and results are in a folder"):
            check_answers(str(place))


@pytest.mark.parametrize(
    ("uri", "inside"),
    [
        ("/results", "/results/exp/report.html"),
        ("/", "/exp/report.html"),
        ("/what?/results", "/what?/results/exp/report.html"),
        ("s3://bucket/a", "s3://bucket/a/exp/report.html"),
        ("s3://bucket/a?scheme=http", "s3://bucket/a/exp/report.html?scheme=http"),
    ],
)
def test_options_of_a_uri_stay_at_its_end(uri: str, inside: str) -> None:
    assert uri_inside(uri, "exp/report.html") == inside

"""Results URIs: what they stand for, and that no secret gets through them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.results.location import parse_location


@pytest.fixture(autouse=True)
def _no_endpoint_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
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

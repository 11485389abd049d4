"""Addresses of servers as people paste them."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import InputError
from orchestrator.spec.address import parse_address, parse_url, with_scheme

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("pasted", "base", "paths"),
    [
        ("http://h:8000", "http://h:8000", [CHAT, "/chat/completions"]),
        ("http://h:8000/", "http://h:8000", [CHAT, "/chat/completions"]),
        ("https://h/v1/", "https://h", [CHAT]),
        ("https://h/proxy/v1", "https://h/proxy", [CHAT]),
        ("https://h/api/v3", "https://h/api/v3", [CHAT, "/chat/completions"]),
        ("https://h/api/v3/chat/completions", "https://h/api/v3", ["/chat/completions"]),
        ("https://h/v1/completions", "https://h", [CHAT]),
        ("https://h/v1/chat/completions/", "https://h", [CHAT + "/"]),
        ("https://h/v1/models", "https://h", [CHAT]),
        ("https://h/o/v1?api-version=1", "https://h/o", [CHAT + "?api-version=1"]),
        ("http://[::1]:8000/v1", "http://[::1]:8000", [CHAT]),
    ],
)
def test_an_address_says_where_the_apis_are(pasted: str, base: str, paths: list[str]) -> None:
    address = parse_address(pasted)
    assert address.base == base
    assert address.paths(CHAT) == paths


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/generate_stream", "tgi"),
        ("/generate", "sglang"),
        ("/v1/models", None),
        ("/v1", None),
    ],
)
def test_a_pasted_path_names_its_api(path: str, api: str | None) -> None:
    assert parse_address(f"http://h{path}").api == api


def test_a_path_that_is_given_is_the_only_path_and_keeps_the_query() -> None:
    address = parse_address("http://h/v1?api-version=1", "/predict")
    assert address.paths(CHAT) == address.paths("/generate") == ["/predict?api-version=1"]
    assert address.model_lists == ["/v1/models?api-version=1"]
    assert parse_address("http://h?a=1", "/predict?b=2").paths(CHAT) == ["/predict?b=2"]


@pytest.mark.parametrize("query", ["key=x", "api_key=x", "sig=x", "access_token=x", "code=x"])
def test_a_query_that_may_hold_a_key_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="may be a key"):
        parse_address(f"http://h/v1?{query}")
    with pytest.raises(ValueError, match="may be a key"):
        parse_address("http://h", f"/x?{query}")


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "authority", "prefix"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, False, "10.0.0.1:8000", ""),
        ("https://example.org", "example.org", 443, True, "example.org", ""),
        ("http://[::1]:8000/gateway/", "::1", 8000, False, "[::1]:8000", "/gateway"),
        ("http://h", "h", 80, False, "h", ""),
    ],
)
def test_urls_are_split(
    url: str, host: str, port: int, tls: bool, authority: str, prefix: str
) -> None:
    origin = parse_url(url)
    assert (origin.host, origin.port, origin.tls, origin.authority, origin.prefix) == (
        host,
        port,
        tls,
        authority,
        prefix,
    )


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://u:secret@h",
        "http://h?x=1",
        "http://h:0",
    ]
    # no request line or header could hold these
    + ["http://h/a b", "http://h/\u65e5\u672c", "http://\u65e5\u672c.jp"],
)
def test_bad_urls_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://münchen.example:8000", r"host .* punycode \(xn--…\)"),
        ("http://a:8000/größe", "path .* percent-encode"),
        ("http://a:0/v1", "port 0"),
    ],
)
def test_an_address_without_a_server_is_refused_with_what_to_write(url: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_url(url)


@pytest.mark.parametrize(
    "typed", ["127.0.0.1:8531", "localhost:8000/v1", "[::1]:80", "gpu-7.lan:1"]
)
def test_a_host_with_its_port_is_taken_for_http(typed: str) -> None:
    assert with_scheme(typed) == f"http://{typed}"


@pytest.mark.parametrize(
    "typed", ["http://h:1", "https://h", "runs/", "file.yaml", "u:1@h:2", "http:80", "ftp://h:1"]
)
def test_other_addresses_are_left_as_they_were_typed(typed: str) -> None:
    assert with_scheme(typed) == typed

"""Text of others: no secret, no colour and no control character is left of it, and nothing else is
touched.
"""

from __future__ import annotations

import json
import unicodedata
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.redaction import (
    HIDDEN,
    is_like_secret,
    is_secret,
    redact,
    secrets_of,
    strip_control,
)
from orchestrator.engines.command import Command
from orchestrator.node.process import EngineProcess


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token hf_abcdefghijklmnopqrstuvwx used", "token *** used"),
        ("key=sk-proj-abcdefghijklmnop0123", "key=***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', '{"authorization": "Basic ***"}'),
        ("GET https://user:pa55@hub.example/x", "GET https://***@hub.example/x"),
        ("https://ghp_abcdefghijklmnopqrst@host/x.git", "https://***@host/x.git"),
        ("https://s3/x?X-Amz-Signature=abcd&part=1", "https://s3/x?X-Amz-Signature=***&part=1"),
        ("AKIAABCDEFGHIJKLMNOP denied", "*** denied"),
        ("ASIAABCDEFGHIJKLMNOP, ya29.a0AfB_byDx-abcdefgh", "***, ***"),
        ("github_pat_11ABCDEFG0abcdefghijkl and gsk_abcdefghijklmnop0123", "*** and ***"),
        (
            "Basic model settings, max_tokens=3, http://host/a@b",
            "Basic model settings, max_tokens=3, http://host/a@b",
        ),
        ("Namespace(api_key='abc def', port=1)", "Namespace(api_key='*** def', port=1)"),
        ('{"api_key": ["zzz9"], "hf_token": null}', '{"api_key": ["***"], "hf_token": null}'),
        (
            "--api-key=zzz --hf-token: yyy password=None",
            "--api-key=*** --hf-token: *** password=None",
        ),
        ("eos_token=</s> pad_token: x, secrets: 3, api_key_env: MY_NAME", None),
        ("half_precision sk-learn hf_hub", "half_precision sk-learn hf_hub"),
    ],
)
def test_known_shapes_of_secrets_are_hidden_and_words_are_not(
    text: str, expected: str | None
) -> None:
    assert redact(text) == (text if expected is None else expected)


SECRET = "aB3dE6gH9jK2mN5pQ8rS"


def test_a_secret_is_found_as_others_write_it() -> None:
    secret = 'p"a/ss\\wörd€'
    for text in (
        repr({"k": secret}),
        json.dumps({"k": secret}),
        f"https://h/?q={quote(secret, safe='')}",
    ):
        assert "wörd" not in redact(text, [secret])
        assert "w\\u00f6rd" not in redact(text, [secret])
        assert "w%C3%B6rd" not in redact(text, [secret])


@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
@pytest.mark.parametrize("secret", [SECRET, "s\u00fc?>~~\u00ffs-abc", "sixsix"])
def test_a_secret_is_found_in_base64(secret: str, encode: Callable[[bytes], bytes]) -> None:
    code = encode(secret.encode()).decode()
    for written in (code, code.rstrip("=")):
        assert redact(f"got <{written}>", [secret]).rstrip("=>") == f"got <{HIDDEN}"


def test_what_basic_authentication_says_in_base64_is_hidden_in_plain_too() -> None:
    header = "Basic " + b64encode(b"alice:s3cret-word").decode()
    assert redact("alice, your password s3cret-word is wrong (alice:s3cret-word)", [header]) == (
        "alice, your password *** is wrong (***)"
    )
    short = "Basic " + b64encode(b"alice:abc").decode()
    assert redact("abc of alice:abc", [short]) == "abc of ***"


def test_short_and_other_secrets_make_no_more_of_a_text_hidden() -> None:
    assert redact("k3y azN5 azN5IHg= YWJjZA", ["k3y"]) == "*** azN5 azN5IHg= YWJjZA"
    assert redact("abc: def", ["YWJjOmRlZg"]) == "abc: def", "no padding, no basic authentication"


def test_the_begin_of_a_path_is_no_secret() -> None:
    known = ["/root/.config/credentials.json", "https://hub.example/x"]
    text = "/root/.cache holds it, https://hub.example/y does not"
    assert redact(text, known) == text


def test_secrets_that_are_known_are_hidden_the_longest_first() -> None:
    assert redact(
        "a secret-one-two here, secret-one there", ["secret-one", "secret-one-two", ""]
    ) == ("a *** here, *** there")


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "apikey", "MY_KEY"]
    + ["HF_TOKENS", "HF_TOKEN_1", "GITHUB_PAT", "PASSPHRASE", "AWS_CREDENTIALS", "HTTP_AUTH"],
)
def test_a_name_says_that_its_value_is_secret(name: str) -> None:
    assert is_secret(name)
    assert secrets_of({name: "first-line\nsecond-line\nno"}) == ["first-line", "second-line"]


def test_passwords_in_urls_of_variables_are_secret_however_they_are_written() -> None:
    url = "http://user:pass-word-9@proxy:3128"
    assert secrets_of(
        {"HTTPS_PROXY": url, "URL": "http://host:80/a@b", "S3": "s3://key:x@host"}
    ) == ["pass-word-9"]
    assert redact(f"{quote(url, safe='')} {url}", ["pass-word-9"]).count("pass") == 0


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "KEYBOARD",
        "MONKEY",
        "PATH",
        "SSH_AUTH_SOCK",
        "AUTHOR",
        "RAY_AUTH_MODE",
    ]
    + ["--speculative-token-map", "pad_token", "image_token", "mask_token"],
)
def test_a_name_that_only_looks_like_one_says_nothing(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2m2026\x1b[0m \x1b[33m WARN\x1b[0m", "2026  WARN"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("10%\r20%\r\n100%\tdone\n", "10%\n20%\n100%\tdone\n"),
        ("a\x00b\x07c\x9bd\u202ee", "abcde"),
        ("0.32.\ud800 \U0001f600", "0.32.? \U0001f600"),
    ],
)
def test_colours_and_control_characters_are_gone(text: str, expected: str) -> None:
    assert strip_control(text) == expected


@given(st.text())
def test_no_control_character_is_left_of_any_text(text: str) -> None:
    assert not [
        char for char in redact(text) if unicodedata.category(char) == "Cc" and char not in "\t\n"
    ]
    assert redact(redact(text)) == redact(text)


WEB_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl-_"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"token={WEB_TOKEN}, x", "token=***, x"),
        (f"session-{WEB_TOKEN}", "session-***"),
        (f"sk-{WEB_TOKEN}", "sk-***"),
        (f"eyJ-a.{WEB_TOKEN} {WEB_TOKEN}", "eyJ-a.*** ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.", "***"),
        (f"x{WEB_TOKEN} eyJhbGciOiJIUzI1NiJ9 eyJhbGciOiJIUzI1NiJ9.short.x", None),
    ],
)
def test_a_web_token_is_hidden_wherever_it_begins(text: str, expected: str | None) -> None:
    assert redact(text) == (text if expected is None else expected)


REPEATED = [
    "eyJ-",
    "eyJ",
    "-eyJaaaaaaaa.b",
    "aaaaaaaa.",
    "sk-",
    "xoxb-",
    "AIza",
    "bearer ",
    "://",
    "://a:",
    "uthorization: ",
]
REPEATED += ["?", "&a", "&key", "api_key", "secret: [", "\x1b", "\x1b[0", "\x1b]", "a", "a1", " "]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("repeated", REPEATED)
def test_a_megabyte_that_nearly_is_a_secret_is_read_once(repeated: str) -> None:
    """Where each part of it is read to its end, it takes hours."""
    text = repeated * (1_000_000 // len(repeated))
    assert len(redact(text)) <= len(text)
    is_like_secret(text)
    assert not [one for one in secrets_of({"URL": text}) if len(one) > len(text)]


def test_a_name_is_like_a_secret_where_letters_and_digits_are_mixed() -> None:
    assert is_like_secret("my-a1b2c3d4e5f60718")
    assert is_like_secret("aaaaaaaaaaaaaaaaaa9")
    assert not is_like_secret("a" * 40)
    assert not is_like_secret("a1b2c3-d4e5f60718")


def test_an_engines_log_hides_what_its_whole_environment_keeps_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "inherited-from-the-node")
    command = Command(
        ("engine",),
        {"WANDB_API_KEY": "from-the-file", "MODE": "fast-mode"},
        {"ENGINE_API_KEY": "k3y"},
    )
    process = EngineProcess(command, tmp_path, "01L")
    process.log_path.write_text(
        "\x1b[31mkeys: inherited-from-the-node, from-the-file, k3y\x1b[0m in fast-mode\n"
    )
    assert process.log_tail() == "keys: ***, ***, *** in fast-mode"

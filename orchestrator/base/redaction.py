"""Makes text that others wrote fit to be stored and shown: removes secrets, colours and control
characters.
"""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
# A secret of at least this many characters is hidden wherever it occurs. Shorter values are words
# and numbers.
SHORTEST = 6
_NAME = re.compile(
    r"""
    (?<![A-Z])
    (
        # pad_token, image_token and the like are tokens of a vocabulary
        (?<!(PAD|BOS|EOS|UNK|SEP|CLS)[_-])
        (?<!MASK[_-])
        (?<!(IMAGE|AUDIO|VIDEO)[_-])
        TOKEN
        (?![_-]MAP)
        | (HF|HUB|API|AUTH|ACCESS)[_-]?TOKENS
        | (API|ACCESS)?KEYS?
        | SECRETS?
        | PASSW(OR)?DS?
        | PASSPHRASE
        | CREDENTIALS?
        | PAT
        | AUTH(?![_-](SOCK|MODE|TYPE|METHOD))
        | COOKIE
    )
    (?![A-Z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_TERMINAL = re.compile(
    r"""
    \x1b
    (?:
        \[ [0-?]* [ -/]* [@-~]                # CSI: colours, movements of the cursor
        | \] [^\x07\x1b]* (?: \x07 | \x1b\\ )  # OSC: titles, links
        | [ -/]* [0-~]                        # the other sequences, most of one character
    )
    """,
    re.VERBOSE,
)
# C0 and C1 without tab and line feed, and characters that reverse the direction of text.
_CONTROL: dict[int, str | None] = dict.fromkeys(
    [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
# halves of characters, which no file can hold
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), "?")
# The lookahead names the letters that a shape begins with: most characters are passed over at once.
_SHAPES = re.compile(
    r"(?=[hsrgxAyn])\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{16,}|(?:gh[pousr]"
    r"|github_pat)_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|gsk_\w{16,}|nvapi-[\w-]{16,})"
)
# A JSON web token, which may follow other letters of its alphabet. Of ``id-eyJhb….eyJzd….c2ln``
# group 1 is ``id-``, which stays. The lookahead examines once what follows the run of letters, and
# not again for each "eyJ".
_WEB_TOKEN = re.compile(
    r"(?<![\w-])(?=[\w-]++\.[\w-]{8,}+\.)([\w-]*?)\beyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+"
)
# Mixed letters and digits, longer than any word. Each run of them is examined once, from its start.
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}")
_PASSWORD = re.compile(r"://[^/\s@:]*:([^/\s@]+)@")
# Words that stay, followed by a secret. Each pattern begins with characters that are found fast.
_SECRET_AFTER = (
    re.compile(r"([Bb]earer +)[^\s\"'<>]+"),
    re.compile(r"(://)[^/\s@]+(?=@)"),
    re.compile(r"(uthorization[\"']?: *[\"']?Basic +)[^\s\"'<>]+"),
    re.compile(
        r"([?&][\w-]*(?:token|key|secret|password|signature|sig|credential)=)[^\s&\"'<>]+",
        re.IGNORECASE,
    ),
    re.compile(
        r"((?:(?:api|access)[_-]?key|(?:hf|hub|api|auth|access)[_-]token|secret|password"
        r"|passphrase)[\"']? ?[=:]"
        r" ?\[?[\"']?)(?!None\b|null\b|true\b|false\b)[^\s\"'<>,;&)}\]]+",
        re.IGNORECASE,
    ),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Text without control characters, ``secrets``, tokens of known shapes, keys in headers and
    credentials in URLs.
    """
    text = mask_secrets(strip_control(text), secrets)
    text = _WEB_TOKEN.sub(rf"\1{HIDDEN}", text) if "eyJ" in text else text
    text = _SHAPES.sub(HIDDEN, text)
    for pattern in _SECRET_AFTER:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def redact_all(value: Any) -> Any:
    """A document with all its texts redacted; the names of its fields stay."""
    if isinstance(value, Mapping):
        return {name: redact_all(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(inner) for inner in value]
    return redact(value) if isinstance(value, str) else value


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replaces whole ``secrets`` in a text, even where they are escaped or encoded."""
    forms: set[str] = set()
    for secret in filter(None, secrets):
        for value in (secret, *_of_basic(secret)):
            forms.update(_written(value))
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def _of_basic(secret: str) -> list[str]:
    """``user:password`` and the password, if the secret is the value of a header for basic
    authentication.
    """
    try:
        pair = b64decode(secret.rpartition(" ")[2], validate=True).decode()
    except ValueError:
        return []
    if ":" not in pair:
        return []
    password = pair.partition(":")[2]
    return [part for part in (pair, password) if len(part) >= SHORTEST]


def _written(secret: str) -> Iterator[str]:
    """The forms in which texts contain a secret: as it is, escaped as in Python or JSON,
    percent-encoded, and in base64 with or without its padding.
    """
    yield from (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, ""))
    if len(secret) >= SHORTEST:
        data = secret.encode(errors="replace")
        yield b64encode(data).decode().rstrip("=")
        yield urlsafe_b64encode(data).decode().rstrip("=")


def strip_control(text: str) -> str:
    """Text without terminal sequences and control characters. A carriage return becomes a line
    feed.
    """
    return _TERMINAL.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of variables whose name says that they are secret, line by line, and passwords in
    URLs.
    """
    secrets: list[str] = []
    for name, value in environment.items():
        if is_secret(name):
            secrets += value.splitlines()
        secrets += _PASSWORD.findall(value)
    return [secret for secret in secrets if len(secret) >= SHORTEST]


def is_secret(name: str) -> bool:
    """Whether the name of a variable or a setting says that its value is secret."""
    return _NAME.search(name) is not None


def holds_key(text: str) -> bool:
    """Whether a key or token of a known shape stands anywhere in a text."""
    return _SHAPES.search(text) is not None


def is_like_secret(name: str) -> bool:
    """Whether what was given as a name is probably a secret itself (value and name mixed up)."""
    return redact(name) != name or (not name.isupper() and _RANDOM.search(name) is not None)

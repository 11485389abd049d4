"""The command lines of engines as their own parsers describe them: the data of ``recorded/``.

``recorded/NAME.json`` is the release whose flags the engine's record in this folder uses,
``recorded/NAME-VERSION.json`` an earlier one. ``scripts/record_flags.py`` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.registry import did_you_mean
from orchestrator.spec.settings import EngineSettings, installed_version

FOLDER = Path(__file__).with_name("recorded")
# The version in an image's tag. A tag of two numbers is none: in NVIDIA's registry it is a year and
# a month.
_TAG = re.compile(r":(v?\d+\.\d+\.\d[\w.-]*)(?:@|$)")
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
# A release itself, perhaps as built for some devices; not a build between two releases.
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:[+-](?:cpu|cu\d+|rocm\d+))?")
_SHORT = 2  # characters of a flag like -q


@dataclass(frozen=True, slots=True)
class RecordedFlag:
    """One flag as the engine's parser has it."""

    name: str  # its main spelling
    kind: Literal["value", "list", "bare", "optional"]
    choices: tuple[str, ...] = ()
    any_case: bool = False  # choices in upper case, or with dashes for underscores, are taken too
    is_open: bool = False  # plugins of the engine may add choices
    keys: tuple[str, ...] = ()  # of the JSON object that it takes, if all of them are known

    def has_choice(self, value: object) -> bool:
        """Whether the engine takes this value. True for flags that take any."""
        text = str(value)
        if not self.choices or text in self.choices:
            return True
        return self.any_case and _folded(text) in {_folded(choice) for choice in self.choices}

    def reason_to_refuse(self, value: Any) -> str | None:
        """Why the parser refuses this value of ``extra_args``; None if it takes it.

        None and False are no values: the flag is left out then.
        """
        if value is None or value is False:
            return None
        if self.kind == "bare":
            return None if value is True else f"takes no value, not {value!r}; write true"
        if value is True:
            needs_value = self.kind in ("value", "list")
            return "needs a value" if needs_value else None
        values = value if isinstance(value, list) else [value]
        if self.kind == "value" and len(values) != 1:
            return f"takes one value, not {len(values)}"
        unknown = [word for word in values if not self.has_choice(word)]
        if not unknown:
            return None
        hint = nearest_word(str(unknown[0]), self.choices)
        if not hint:
            hint = f"it has {', '.join(self.choices)}"
        return f"has no value {unknown[0]!r}; {hint}"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Every flag that one release of an engine has, and the fields of its requests."""

    version: str
    flags: Mapping[str, RecordedFlag]  # by every spelling
    dashed: Mapping[str, RecordedFlag]  # the same, with dashes for underscores
    takes_abbreviations: bool = False  # as Python's argparse does
    takes_underscores: bool = False  # --max_num_seqs is --max-num-seqs
    takes_dots: bool = False  # --json-flag.key is a key of its JSON object
    # By API, all fields of a request that its server reads, where they are recorded: it ignores
    # others, or refuses requests with others in ``refusing_apis``.
    request_fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refusing_apis: frozenset[str] = frozenset()

    def find(self, name: str) -> RecordedFlag | None:
        """The flag that ``name`` means to the parser; None if the parser refuses it."""
        name = name.partition("=")[0]
        if self.takes_dots:
            name = name.partition(".")[0]
        flags = self.flags
        if self.takes_underscores and name.startswith("--"):
            name = name.replace("_", "-")
            flags = self.dashed
        if name in flags or not self.takes_abbreviations:
            return flags.get(name)
        if not name.startswith("--") and name[:_SHORT] in flags:
            return flags[name[:_SHORT]]  # its value follows without a space, as in -O3
        if len(name) <= _SHORT:
            return None
        candidates = {
            flag.name: flag for spelling, flag in flags.items() if spelling.startswith(name)
        }
        if len(candidates) != 1:
            return None  # no flag begins like this, or several do
        return next(iter(candidates.values()))

    def reason_to_refuse(self, name: str, value: Any) -> str | None:
        """Why the parser refuses a known flag of ``extra_args`` with this value; None if it does
        not, or if the value is a key of a JSON object.
        """
        flag = self.find(name)
        head, equals, inline = name.partition("=")
        is_key = self.takes_dots and "." in head
        is_joined = not head.startswith("--") and head not in self.flags  # -O3
        if flag is None or is_key or is_joined:
            return None
        return flag.reason_to_refuse(inline if equals else value)

    def nearest(self, name: str) -> str:
        """``did you mean '--x'?``, or "" if no flag is spelled like ``name``."""
        long_flags = [spelling for spelling in self.flags if spelling.startswith("--")]
        return did_you_mean(name.partition("=")[0].partition(".")[0], long_flags)


class ReleaseStanding(Enum):
    """How a deployment's release relates to the recorded ones."""

    ASSUMED = "assumed"  # the release is not known, and the newest recorded one is assumed
    RECORDED = "recorded"
    NEWER = "newer"  # than every recorded one
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Release:
    """The release by whose command line a deployment's flags and values are judged."""

    stated: str  # the version that the deployment runs, "" if it is not known
    standing: ReleaseStanding
    command_line: CommandLine

    @property
    def is_certain(self) -> bool:
        """Whether a flag or value that the command line does not have is refused."""
        return self.standing in (ReleaseStanding.ASSUMED, ReleaseStanding.RECORDED)

    @property
    def is_exact(self) -> bool:
        """Whether the version that the deployment states is the recorded one itself, and no build
        before or after it.
        """
        recorded = self.command_line.version
        if _is_commit(recorded):
            return is_same_release(self.stated, recorded)
        match = _RELEASE.fullmatch(self.stated)
        if match is None:
            return False
        return match[1].removesuffix(".0") == recorded.removesuffix(".0")


@cache
def command_lines(engine: str) -> tuple[CommandLine, ...]:
    """The recorded releases of an engine, the newest first; () for one that has no record."""
    newest = FOLDER / f"{engine}.json"
    if not newest.exists():
        return ()
    older = sorted(FOLDER.glob(f"{engine}-*.json"), reverse=True)
    return tuple(_read(path) for path in (newest, *older))


def release_of(engine: str, settings: EngineSettings) -> Release | None:
    """The release that a deployment runs; None if no release of its engine is recorded."""
    recorded = command_lines(engine)
    if not recorded:
        return None
    stated = stated_version(engine, settings)
    if not stated:
        return Release("", ReleaseStanding.ASSUMED, recorded[0])
    for command_line in recorded:
        if is_same_release(stated, command_line.version):
            return Release(stated, ReleaseStanding.RECORDED, command_line)
    is_newer = _numbers(stated) > _numbers(recorded[0].version)
    standing = ReleaseStanding.NEWER if is_newer else ReleaseStanding.OTHER
    return Release(stated, standing, recorded[0])


def stated_version(engine: str, settings: EngineSettings) -> str:
    """The version by the setting, the installation or the image's tag; "" if none of them has it.

    An image whose tag is no version is its own version: it may hold anything.
    """
    if settings.engine_version:
        return settings.engine_version
    if settings.image is not None:
        tag = _TAG.search(settings.image)
        return tag[1] if tag else settings.image
    if settings.executable:
        return _installed(settings.executable, engine) or ""
    return ""


@lru_cache(1024)  # a plan of 100,000 deployments has a few environments
def _installed(executable: str, engine: str) -> str | None:
    return installed_version(executable, engine)


def is_same_release(stated: str, recorded: str) -> bool:
    """Whether two versions are one release: 0.33.0 stands for 0.33 and every 0.33.x."""
    if _is_commit(recorded):
        return recorded in stated
    recorded_numbers = _numbers(recorded)
    if recorded_numbers[-1] == 0:
        recorded_numbers = recorded_numbers[:-1]
    stated_numbers = _numbers(stated)
    length = min(len(recorded_numbers), len(stated_numbers))
    return length > 0 and recorded_numbers[:length] == stated_numbers[:length]


def _is_commit(version: str) -> bool:
    return "." not in version


def _numbers(version: str) -> tuple[int, ...]:
    match = _NUMBERS.match(version)
    return tuple(map(int, match[1].split("."))) if match else ()


def nearest_word(value: str, words: Iterable[str]) -> str:
    """``did you mean 'x'?``, also for words in another case or with other dashes; "" if none is
    similar.
    """
    same = {_folded(word): word for word in words}
    if _folded(value) in same:
        return f"did you mean {same[_folded(value)]!r}?"
    return did_you_mean(value, same.values())


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")


def _read(path: Path) -> CommandLine:
    document = json.loads(path.read_text("utf-8"))
    flags: dict[str, RecordedFlag] = {}
    for name, entry in document["flags"].items():
        flag = RecordedFlag(
            name=name,
            kind=entry["kind"],
            choices=tuple(map(str, entry.get("choices", ()))),
            any_case=entry.get("any_case", False),
            is_open=entry.get("open", False),
            keys=tuple(entry.get("keys", ())),
        )
        flags |= dict.fromkeys((name, *entry.get("also", ())), flag)
    return CommandLine(
        version=document["version"],
        flags=flags,
        dashed={spelling.replace("_", "-"): flag for spelling, flag in flags.items()},
        takes_abbreviations=document.get("abbreviations", False),
        takes_underscores=document.get("underscores", False),
        takes_dots=document.get("dots", False),
        request_fields={
            api: frozenset(names) for api, names in document.get("request_fields", {}).items()
        },
        refusing_apis=frozenset(document.get("refusing_apis", ())),
    )

"""Reads one line of a log in any engine's format: its level, the process that wrote it, its text.

Engines mix formats: Python's logging and warnings, loguru, Rust's tracing, glog, torch's, NCCL's,
llama.cpp's letters, JSON. A level counts only in front of the text, after nothing but time stamps,
names in brackets and the like.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

_HEADER_CHARACTERS = 240  # no log has a longer header in front of its level
_HEADER_PARTS = 12


class LogLevel(IntEnum):
    """How serious a line is, by its writer."""

    INFO = 1  # and everything below it
    WARNING = 2
    ERROR = 3  # and everything above it


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log, taken apart."""

    raw: str
    level: LogLevel | None  # None: it does not say
    origin: str  # the process that wrote it: "(Worker_TP0 pid=71)"; "" if it does not say
    text: str  # without its header

    @property
    def is_passing(self) -> bool:
        """Whether its level says that it is no error."""
        return self.level is not None and self.level < LogLevel.ERROR


_NAMES = {
    **dict.fromkeys(("TRACE", "DEBUG", "INFO", "NOTICE", "NOTE", "REMARK"), LogLevel.INFO),
    **dict.fromkeys(("WARNING", "WARN"), LogLevel.WARNING),
    **dict.fromkeys(("ERROR", "ERR", "CRITICAL", "FATAL", "SEVERE"), LogLevel.ERROR),
}
_LETTERS = {
    **dict.fromkeys("TDI", LogLevel.INFO),
    "W": LogLevel.WARNING,
    **dict.fromkeys("EFC", LogLevel.ERROR),
}
_NAME = "|".join(_NAMES)
# A level as headers write it, with the brackets and names around it.
_LEVEL = re.compile(
    rf"\[?(?P<name>{_NAME})\b\]?"  # "WARNING", "[WARNING]", "[WARNING|modeling.py:12]"
    rf"|\[(?P<small>(?i:{_NAME})) *\]"  # "[warn]", structlog's "[warning  ]"
    rf"|\[[\dTZ:.,+ -]+ (?P<timed>{_NAME})\b[^\]]*\]?"  # Rust's env_logger: "[2026-… WARN x]"
    rf"|(?P<colon>(?i:{_NAME})) ?(?::|#\d)"  # "warning: ", "warning #20012-D: "
    r"|\[(?P<letter>[TDIWEFC])\]"  # TensorRT-LLM's "[W]"
    # glog's and torch's "[W1122 03:32:41.123 socket.cpp:464]"
    r"|\[?(?P<glog>[DIWEF])\d{4} \d\d:\d\d:\d\d(?:\.\d+)?(?: +\d+)*(?: [\w./-]+\.\w+:\d+)?\]?"
    r"|\[(?P<torch>[DIWEF]) [\w./]+\.\w+:\d+\]"  # torch's "[W socket.cpp:464]"
    r"|\[\d{4}-\d\d-\d\d [\d:,.]+ (?P<ray>[DIWEF]) [\d ]+\]"  # Ray's
    r"|(?:\S+\.py|<[\w .]+>):\d+: (?P<python>\w*Warning)\b"  # Python's "x.py:12: UserWarning: "
    r"|(?P<category>[A-Z]\w*Warning):"
)
_LONE_LETTER = re.compile(r"(?P<letter>[TDIWEFC])(?= )")  # llama.cpp's, which follows its time
# In JSON, and in what some call logfmt ("time=… level=warn msg=…").
_FIELD = re.compile(r"(?:^|[\s\"])(?:level|levelname|severity)\"?(?:=|: ?)\"?(?P<name>[A-Za-z]+)")
_JSON_TEXT = re.compile(r"\"(?:message|msg)\": ?\"((?:[^\"\\]|\\.)*)\"")
# One part of what may stand in front of a level.
_HEADER_PART = re.compile(
    r"\([^()]{0,80}\)"
    r"|\[[^\[\]]{0,80}\]"
    r"|std(?:out|err) [FP]\b|<std(?:out|err)>"  # Kubernetes', MPI's
    r"|[A-Z][a-z]{2} +\d+ [\d:]+ \S+ \S+\[\d+\]:"  # syslog's
    r"|NCCL\b"
    r"|[\w.-]+:\d+:\d+(?=\s)"  # NCCL's host, process and thread
    r"|\d[\w:.,/+-]*"
    r"|[\w./-]+(?=\s+[-|]\s)"  # a logger's name
    r"|\S+\.(?:py|rs|cpp|cc|cu|cuh|h|hpp|go)(?:\(\d+\)|:\d+)+:?"
    r"|(?:[a-z_]\w*\.)*[a-z_]\w*:(?=\s)"  # the name of a program or of a logger
    r"|(?:\S*/)?(?:nvcc|ptxas|ld|cc1plus|gcc|g\+\+|clang):?(?=\s)"
    r"|[-|:,;>\u2502]+"
)
# The process that wrote a line.
_ORIGIN = (
    r"\([^()]*\bpid=\d+[^()]*\)|\[rank ?\d+\]:?|\[RANK \d+\]|\[\d+,\d+\]<std(?:out|err)>:?"
    r"|[\w.-]+-\d+ +\|"  # docker compose's
)
_TIME = r"\[?\d+(?:[-/:.,T ]\d+){2,}Z?(?: ?[A-Z]{2}\d+)*\]?"
# What stands at the beginning of a line and does not belong to its text, even if no level follows.
_NOT_TEXT = re.compile(
    rf"(?P<origin>{_ORIGIN})|{_TIME}|\[[\w./-]+\.\w+:\d+\]"
    r"|[|\u2502+](?=\s)"  # boxes around tracebacks, groups of exceptions
)
# What follows a level and does not belong to the text.
_AFTER_LEVEL = re.compile(
    r"[-|:\]]+(?=\s|$)|[\w.<>]+:[\w<>]+:\d+(?= - )|[\w./-]+\.\w+:\d+\]?(?= |$)|[\w.]+:\d+(?= - )"
)


def read(raw: str) -> LogLine:
    """Takes a line apart, from which terminal colours have been removed."""
    line = raw.strip()
    if line.startswith("{"):
        field = _FIELD.search(line)
        if field is not None:
            message = _JSON_TEXT.search(line)
            text = message[1].strip() if message else line
            return LogLine(raw, _named(field["name"]), "", text)
    header = _header(line[:_HEADER_CHARACTERS])
    if not header.end:
        stripped = _without(line, _NOT_TEXT)
        return LogLine(raw, header.level, stripped.origin, stripped.text)
    origins = [match[0] for match in re.finditer(_ORIGIN, line[: header.end])]
    return LogLine(raw, header.level, " ".join(origins), _text_after_level(line[header.end :]))


@dataclass(frozen=True, slots=True)
class _LineHeader:
    """The header of a line."""

    level: LogLevel | None
    end: int  # where the header ends; 0 if it ends at no level, or if there is none


def _header(line: str) -> _LineHeader:
    """The header at the beginning of a line. It may consist of several headers with the same level,
    if one process passes on what another one logged.
    """
    if line.startswith(("time=", "ts=", "level=")):
        field = _FIELD.search(line)
        if field is not None:
            return _LineHeader(_named(field["name"]), 0)
    level: LogLevel | None = None
    header_end = 0
    position = 0
    for _ in range(_HEADER_PARTS):
        position = len(line) - len(line[position:].lstrip())
        match = _level_match(line, position)
        if match is None:
            part = _HEADER_PART.match(line, position)
            if part is None:
                break
            position = part.end()
            continue
        word = _level_word(match)
        if level not in (None, word.level):
            break  # a level in the text of the line
        level = word.level
        position = match.end()
        if not word.is_header:
            break
        header_end = position
    return _LineHeader(level, header_end)


def _level_match(line: str, position: int) -> re.Match[str] | None:
    """The level at a position of a line. A lone letter is one only if nothing but a time precedes
    it.
    """
    match = _LEVEL.match(line, position)
    if match is None and _is_time(line[:position]):
        return _LONE_LETTER.match(line, position)
    return match


@dataclass(frozen=True, slots=True)
class _LevelWord:
    """The word that names a level."""

    level: LogLevel | None
    is_header: bool  # False: it belongs to the text ("error: unexpected argument")


def _level_word(match: re.Match[str]) -> _LevelWord:
    """The word that a match of ``_LEVEL`` or ``_LONE_LETTER`` found."""
    groups = {kind: word for kind, word in match.groupdict().items() if word}
    kind, word = next(iter(groups.items()))
    if kind in ("python", "category"):
        return _LevelWord(LogLevel.WARNING, is_header=False)
    if kind in ("name", "small", "timed", "colon"):
        return _LevelWord(_named(word), is_header=kind != "colon")
    return _LevelWord(_LETTERS[word], is_header=True)


def _named(name: str) -> LogLevel | None:
    return _NAMES.get(name.upper())


def _is_time(header: str) -> bool:
    return re.fullmatch(r"[\d:.,\s-]+", header) is not None


def _text_after_level(rest: str) -> str:
    """The text after a level: without the place in the source, the time and further origins."""
    before = None
    while before != rest:
        before = rest
        rest = _without(rest, _NOT_TEXT).text
        no_text = _AFTER_LEVEL.match(rest)
        if no_text:
            rest = rest[no_text.end() :].lstrip()
    return rest


@dataclass(frozen=True, slots=True)
class _Stripped:
    """The text of a line without the parts before it, and the origins among these parts."""

    text: str
    origin: str


def _without(rest: str, parts: re.Pattern[str]) -> _Stripped:
    """``rest`` without the parts at its beginning that match."""
    origins = []
    rest = rest.lstrip()
    part = parts.match(rest)
    while part is not None:
        if part["origin"]:
            origins.append(part["origin"])
        rest = rest[part.end() :].lstrip()
        part = parts.match(rest)
    return _Stripped(rest, " ".join(origins))

"""What a file of another tool holds, in the form in which all formats are read.

Every format turns its file into these records; ``importing.py`` stores them. Figures stay those of
the tool, under the tool's definitions: they are never computed again under ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.results.records import Figures
from orchestrator.results.window import MeasuredWindow


class UnreadableFile(Exception):
    """One file cannot be read. ``reasons``: one sentence for each problem."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class UnreadableFiles(Exception):
    """Some of the files that a format recognised cannot be read.

    ``reasons``: by the file's name, one sentence for each problem.
    """

    def __init__(self, reasons: Mapping[str, Sequence[str]]) -> None:
        super().__init__(str(dict(reasons)))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class ImportFile:
    """A file that was read. ``documents``: its JSON values, one after the other."""

    name: str
    sha256: str
    documents: Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRequest:
    """One request. Instants are ns since the start of its point; None: the file does not say.

    ``gaps_s``: times between successive chunks with content, in seconds; None: unknown. ``chunks``:
    how many there were; None: as many as tokens. ``error``: why it failed; None: it was answered.
    """

    sent_ns: int
    done_ns: int
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    chunks: int | None = None
    gaps_s: Sequence[float] | None = None
    session: int | None = None
    turn: int | None = None
    error: str | None = None
    http_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLoad:
    """How a tool loaded the server: ``control`` and ``level`` as in points.

    ``max_in_flight``: how many requests may be in flight although more are due by the request rate;
    None: any number.
    """

    control: str
    level: float
    arrivals: str
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPoint:
    """One load level that a tool measured.

    ``place``: which of its file's points it is, from 0. ``workload``: what the file states
    of the prompts as they were asked for, never their measured lengths: a tool's points at several
    loads share it.
    ``window``: the time that the figures are about. ``definitions``: figure -> its name in the file
    and its formula. ``aggregates``: the figures as the file has them. ``left_out``: content that has
    no place in our tables -> how many values. ``requests``: empty if the file has only aggregates.
    """

    tool: str
    version: str | None
    place: int
    model: str
    load: ImportedLoad
    workload: Mapping[str, object]
    started_unix_ns: int
    window: MeasuredWindow
    figures: Figures
    definitions: Mapping[str, str]
    aggregates: Mapping[str, object]
    left_out: Mapping[str, int]
    requests: Sequence[ImportedRequest] = field(default=())

    @property
    def source(self) -> str:
        """``GuideLLM 0.8.1``; only the name where the file does not say the version."""
        return f"{self.tool} {self.version}" if self.version else self.tool


class ImportFormat(Protocol):
    """A format of files that another tool writes."""

    @property
    def title(self) -> str:
        """The tool and its file, for people: ``GuideLLM 0.8 JSON``."""

    def recognises(self, file: ImportFile) -> bool:
        """Whether the file's content is of this tool, in whatever version."""

    def read(self, files: Sequence[ImportFile]) -> Mapping[str, Sequence[ImportedPoint]]:
        """The points of all files of this format, by the file's name.

        The files come together, because a tool may describe one run in two of them. Raises
        UnreadableFiles with the problems of all of them.
        """

"""Requests from a file: text with one prompt per line, or JSON with one object per line or all in
one array.

Tables (CSV, Parquet) have a row per request, and any file may be a gzip file (tables.py).

An object has ``prompt`` (a text), ``messages`` (as OpenAI has them; sent up to the user's last
one), ``conversations`` (as ShareGPT has them; the user's first message is sent) or ``input_length``
(of a trace, perhaps with ``hash_ids``: a prompt of this many tokens is made). It may also have
pictures (``image``, ``images``, or parts of its messages) and tools, and give the length of the answer and
the sampling of its request (entries.py).

Request i sends entry i; after the last entry comes the first again. The tokens of a text are not
counted beforehand: its intended length is 0, and the rows hold what the engine counted.
"""

from __future__ import annotations

import codecs
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import orjson
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.text import counted
from orchestrator.results.ids import content_digest
from orchestrator.spec.constraint import ConstraintKind, ToolChoice
from orchestrator.spec.document import wrong
from orchestrator.spec.load import ContentKind, Growing, LengthBounds, Lengths, Workload
from orchestrator.spec.request_options import NamedTool, asks_for_more, tool_name
from orchestrator.spec.settings import OneLine, as_tuple
from orchestrator.spec.traces import Keep
from orchestrator.workloads.entries import (
    ANSWERS,
    BLOCK_TOKENS,
    PromptEntry,
    block_sizes,
    has_content,
    problems_of_unsent,
    read_entry,
    user_says,
    without_keys_of_messages,
)
from orchestrator.workloads.file_reading import (
    EntryError,
    columns_of_lines,
    first_names,
    lines_of,
    read_each,
    read_file,
    refuse_other_formats,
    refuse_traces,
    status_of,
    unknown_table,
)
from orchestrator.workloads.hub import HubDataset, local_files
from orchestrator.workloads.images import PictureFiles
from orchestrator.workloads.kind import (
    PROMPT_STREAM,
    Content,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)
from orchestrator.workloads.lengths import SessionLengths, SessionShape
from orchestrator.workloads.recorded_tools import TOOL_FIELDS, must_call_tool, tool_choice_of
from orchestrator.workloads.tables import (
    ROLES,
    Entry,
    rows_of_table,
    unpacked,
    with_columns,
    with_values,
)

JSON_LINES = (".jsonl", ".ndjson", ".json")
RECORDED = "file"  # as output_tokens: the length of the answer that the file has
# APIs whose requests carry the sampling fields of a line as they are
SAMPLED_APIS = ("completions", "chat")
NO_TOKENIZER = (
    "the recorded answers of the prompts are counted with the model's tokenizer, and none is given"
)

NO_TOKENIZER_TO_KEEP = (
    "'keep' needs the model's tokenizer to count the tokens of the prompts, and none is given"
)


class PromptColumns(Growing):
    """The names that a file has for what is sent; its other columns are not sent. Those that would
    change requests are refused unless ``leave_out`` names them.
    """

    LATER_KEYS = frozenset({"tools"})

    prompt: OneLine | None = Field(default=None, description="The column of the prompt's text.")
    system: OneLine | None = Field(
        default=None, description="The column of the system message, beside `prompt`."
    )
    messages: OneLine | None = Field(
        default=None, description="The column of messages with `role` and `content` (OpenAI)."
    )
    conversations: OneLine | None = Field(
        default=None, description="The column of messages with `from` and `value` (ShareGPT)."
    )
    turns: OneLine | None = Field(
        default=None, description="The column with a list of what the user says (MT-Bench)."
    )
    output_tokens: OneLine | None = Field(
        default=None, description="The column of the answer's length, in tokens."
    )
    answer: OneLine | None = Field(
        default=None, description="The column of the recorded answer, for `output_tokens: file`."
    )
    images: OneLine | None = Field(
        default=None,
        description="The column of the request's pictures: a path, a data URL, bytes, or a list of "
        "these.",
    )
    tools: OneLine | None = Field(
        default=None,
        description="The column of the request's tools: a list of definitions as OpenAI's API has "
        "them, or its JSON.",
    )
    leave_out: Annotated[tuple[OneLine, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="Columns that requests are sent without, though they would change them, and "
        "keys that messages are sent without, for example `[model, temperature]`.",
    )

    @property
    def named(self) -> dict[str, str]:
        """Role -> column, of those that are given."""
        return self.model_dump(exclude_none=True, exclude={"leave_out"})

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        contents = [self.prompt, self.messages, self.conversations, self.turns]
        if sum(content is not None for content in contents) != 1:
            raise ValueError("give one of: prompt, messages, conversations, turns")
        if self.system is not None and self.prompt is None:
            raise ValueError("'system' goes with 'prompt'")
        sent = list(self.named.values())
        for column in sent:
            if sent.count(column) > 1:
                raise ValueError(f"{column!r} is named twice: give each column one role")
        for column in self.leave_out:
            if column in sent:
                raise ValueError(f"'leave_out' names {column!r}, which is sent")
        return self


@dataclass(frozen=True, slots=True)
class FileRules:
    """How entries are read. ``sessions``: all that users say is sent, turn by turn."""

    columns: PromptColumns | None = None
    sessions: bool = False


class EntryLengths(NamedTuple):
    """Tokens of one request. ``prompt``: 0 where it is a text. ``answer``: None where the file gives no
    length for it.
    """

    prompt: int
    answer: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a plan needs of a file. ``lengths``: the different lengths of its requests."""

    digest: str
    prompts: int
    left_out: int  # entries in which the user says nothing
    lengths: frozenset[EntryLengths]
    with_later_turns: int = 0  # conversations in which the user says more than one message
    # entries without a length of their own and without a recorded answer that could be counted
    unanswered: int = 0
    recorded_answers: int = 0  # entries without a length of their own that have a recorded answer
    unused: frozenset[str] = frozenset()  # keys that change no request
    fields: frozenset[str] = frozenset()  # sampling fields that some entries give
    asked: frozenset[str] = frozenset()  # of these, the ones that ask for more than greedy answers
    block_tokens: int | None = None  # of hash_ids; None: no entry has any
    requests: int = 0  # with all turns that are sent
    unsent_messages: int = 0  # of all conversations
    urls: frozenset[str] = frozenset()  # of an OpenAI batch
    models: frozenset[str] = frozenset()  # that its lines name
    images: int = 0  # pictures of all requests
    token_ids: bool = False  # some prompts are given as token ids
    constrained: int = 0  # entries that constrain their answers
    constraint_kinds: frozenset[ConstraintKind] = frozenset()  # by which
    with_tools: int = 0  # entries with tools, or with messages of theirs
    tools_at: str | None = None  # where the first of them stands; None: there is none
    # who decides whether answers call tools -> where the first entry says it
    tool_choices: Mapping[ToolChoice, str] = field(default_factory=dict)
    # names of the tools that all entries with tools of their own have; None: no entry has any
    common_tools: frozenset[str] | None = None
    table_columns: int | None = None  # of lines of text that look like a table

    @classmethod
    def of(cls, data: bytes, entries: Sequence[PromptEntry | None]) -> Summary:
        requests = [entry for entry in entries if entry]
        lengths = {EntryLengths(entry.input_tokens, entry.output_tokens) for entry in requests}
        without_length = [entry for entry in requests if entry.output_tokens is None]
        images = [image for entry in requests for image in entry.images()]
        if images:  # pictures may lie in files of their own
            data += b"".join(sha256(image).digest() for image in images)
        return cls(
            digest=content_digest(data),
            images=len(images),
            token_ids=any(entry.has_token_ids for entry in requests),
            constrained=sum(entry.constraint is not None for entry in requests),
            constraint_kinds=frozenset(
                entry.constraint.kind for entry in requests if entry.constraint is not None
            ),
            prompts=len(requests),
            left_out=len(entries) - len(requests),
            lengths=frozenset(lengths),
            with_later_turns=sum(entry.has_later_turns for entry in requests),
            unanswered=sum(entry.answer is None for entry in without_length),
            recorded_answers=sum(entry.answer is not None for entry in without_length),
            unused=frozenset().union(*(entry.unused for entry in requests)),
            fields=frozenset().union(*(entry.fields for entry in requests)) - {*TOOL_FIELDS},
            asked=frozenset().union(*map(_asked_fields, requests)),
            block_tokens=next((entry.block_tokens for entry in requests if entry.blocks), None),
            requests=sum(1 + len(entry.later_turns) for entry in requests),
            unsent_messages=sum(entry.unsent_messages for entry in requests),
            urls=frozenset(entry.url for entry in requests if entry.url is not None),
            models=frozenset(entry.model for entry in requests if entry.model is not None),
            with_tools=sum(entry.has_tools for entry in requests),
            tools_at=next((entry.place for entry in requests if entry.has_tools), None),
            tool_choices=_tool_choices(requests),
            common_tools=_common_tools(requests),
            table_columns=columns_of_lines(
                [entry.messages[0].text for entry in requests if entry.is_line]
            ),
        )


READ_AS_IS = FileRules()
# The path that an API's requests have in an OpenAI batch; others have none.
_PATHS = {"chat": "/chat/completions", "completions": "/v1/completions"}


def _common_tools(entries: Sequence[PromptEntry]) -> frozenset[str] | None:
    """The names of the tools that all entries with tools of their own have; None: none has any."""
    names_of_each = [
        frozenset(filter(None, map(tool_name, entry.fields["tools"])))
        for entry in entries
        if "tools" in entry.fields
    ]
    return frozenset.intersection(*names_of_each) if names_of_each else None


def _asked_fields(entry: PromptEntry) -> frozenset[str]:
    """The fields that an engine must know beside those of tools that ``tool_choices`` are about."""
    return frozenset(
        name
        for name, value in entry.fields.items()
        if asks_for_more(name, value) and name not in ("tools", "tool_choice")
    )


def _tool_choices(entries: Sequence[PromptEntry]) -> dict[ToolChoice, str]:
    """Who decides whether answers call tools, each with the place of the first entry that says it."""
    places: dict[ToolChoice, str] = {}
    for entry in entries:
        choice = tool_choice_of(entry.fields)
        if choice is not None:
            places.setdefault(choice, entry.place)
    return places


def has_length(entry: PromptEntry) -> bool:
    """Whether the file says how long the answer to an entry shall be, or has that answer."""
    return entry.output_tokens is not None or entry.answer is not None


class AnswerLengths(Lengths):
    """As ``Lengths``, or ``file``: the length of the answer that the file has for each request,
    counted with the tokenizer.
    """

    WANTED: ClassVar[str] = Lengths.WANTED.replace(", {uniform", ", file, {uniform")
    SHORTHAND: ClassVar[Any] = Lengths.SHORTHAND | Literal["file"]

    recorded: bool = Field(
        default=False,
        description="The length of the recorded answer; `output_tokens: file` means this.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if value == RECORDED:
            return {"recorded": True}
        return value.model_dump() if type(value) is Lengths else value

    def _choices(self) -> list[object]:
        return [*super()._choices(), self.recorded or None]

    @property
    def bounds(self) -> LengthBounds:
        return LengthBounds(1, None) if self.recorded else super().bounds


class FileWorkload(Workload):
    """``kind: file``: the lines of a file in their order; after the last line comes the first
    again.
    """

    may_record_tools = True
    LATER_KEYS = frozenset({"columns", "use", "dataset", "keep"})

    kind: Literal["file"] = Field(description="`file`: prompts from a file, in its order.")
    prompts: str | None = Field(  # None in a file that has ``dataset``; a plan always has a path
        default=None,
        description="A UTF-8 file with one prompt per line as text, JSON or a table; blank lines do "
        "not count. Required unless there is a `dataset`.",
    )
    dataset: HubDataset | None = Field(
        default=None,
        description="Instead of `prompts`: a dataset of the Hugging Face hub, for example "
        "`{id: philschmid/mt-bench}`.",
    )
    columns: PromptColumns | None = Field(
        default=None,
        description="Which column is what, where the file has other names than ours, for example "
        "`{prompt: question}`.",
    )
    use: Literal["first", "sessions"] = Field(
        default="first",
        description="What is sent of a conversation: what the user says `first`, or all turns as "
        "`sessions`.",
    )
    output_tokens: AnswerLengths | None = Field(
        default=None,
        description="Tokens of an answer, for requests whose length the file does not give: a "
        "number, or `file` for the length of the recorded answer. Required where there are such "
        "requests.",
    )
    keep: Keep | None = Field(
        default=None,
        description="Only requests with lengths within bounds, for example `{input_tokens: [4, "
        "1024], total_tokens: [1, 2048]}`: of texts as the model's tokenizer counts them, of answers "
        "as they are asked for.",
    )
    prompts_digest: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{16}$",
        description="The first 16 digits of the file's `sha256sum`; other content is refused. "
        "`plan` sets it.",
    )
    _first: int = PrivateAttr(0)  # index of the entry that the first request sends

    @model_validator(mode="after")
    def _has_prompts(self) -> Self:
        if self.prompts is None and self.dataset is None:
            raise wrong("prompts", "'prompts' is missing", "give a file, or a dataset of the hub")
        if self.prompts is not None and self.dataset is not None and self.prompts_digest is None:
            raise wrong("dataset", "'prompts' and 'dataset' exclude each other")
        return self

    @model_validator(mode="after")
    def _keeps_single_requests(self) -> Self:
        if self.keep is not None and self.use == "sessions":
            raise wrong("keep", "'keep' is about single requests, not sessions", "leave out 'use'")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the file, or of the files of a split in their order. Raises ProblemsError
        for a dataset that cannot be had.
        """
        if self.dataset is not None and not self.is_here:
            return local_files(self.dataset).paths  # on another node than the plan was made on
        return self._placed_files

    @property
    def is_here(self) -> bool:
        """Whether this node has all files where the plan says that they are."""
        files = self._placed_files
        return bool(files) and all(Path(file).is_file() for file in files)

    @property
    def _placed_files(self) -> tuple[str, ...]:
        """The paths where the files were when the plan was made; none before a dataset is had."""
        if self.prompts is None:
            return ()
        return (self.prompts,) if self.dataset is None else self.dataset.beside(self.prompts)

    @property
    def counts_answers(self) -> bool:
        """Whether recorded answers say how long answers are to be."""
        return self.output_tokens is not None and self.output_tokens.recorded

    @property
    def rules(self) -> FileRules:
        return FileRules(self.columns, self.use == "sessions")

    def summary(self) -> Summary:
        """What is in the file. Raises ProblemsError as ``parse_prompts`` does."""
        return summary(self.files, self.rules)

    def resolved(self, path: Callable[[str], str]) -> Self:
        """Fixes the file's content, so that clients send what was planned or nothing. Raises
        ProblemsError.
        """
        dataset = self.dataset
        if dataset is not None and self.prompts is None:
            downloaded = local_files(dataset)
            file, dataset = downloaded.paths[0], downloaded.dataset
        else:
            file = path(self.prompts or self.files[0])
        placed = self.model_copy(update={"prompts": file, "dataset": dataset})
        file_summary = placed.summary()
        placed.check(file_summary)
        return placed.model_copy(update={"prompts_digest": file_summary.digest})

    def token_bounds(self) -> LengthBounds:
        """The bounds of all entries. There is no upper one if prompts are texts, whose tokens are
        not counted.
        """
        own = self.output_tokens.bounds if self.output_tokens else LengthBounds(1, 1)
        lengths = self.summary().lengths
        least = min(max(entry.prompt, 1) + (entry.answer or own.least) for entry in lengths)
        if own.most is None or any(entry.prompt == 0 for entry in lengths):
            return LengthBounds(least, None)
        most = max(entry.prompt + (entry.answer or own.most) for entry in lengths)
        return LengthBounds(least, most)

    def mean_turns(self) -> float:
        file_summary = self.summary()
        return file_summary.requests / file_summary.prompts

    def sends_images(self) -> bool:
        return self.summary().images > 0

    def sends_token_ids(self) -> bool:
        return self.summary().token_ids

    def tools_at(self) -> str | None:
        of_key = super().tools_at()
        if of_key is not None:
            return of_key
        recorded_at = self.summary().tools_at
        return None if recorded_at is None else self._place(recorded_at)

    def asked_tool_choices(self) -> Mapping[ToolChoice, str]:
        recorded = self.summary().tool_choices
        chosen = self.tool_choice
        if chosen is not None and recorded and not isinstance(chosen, NamedTool):
            return {chosen: ""}  # in place of the recorded ones
        places = {choice: self._place(place) for choice, place in recorded.items()}
        return {**places, **super().asked_tool_choices()}

    def _place(self, place: str) -> str:
        return f"prompts {self.prompts!r}, {place}"

    def distinct_requests(self) -> int:
        file_summary = self.summary()
        return file_summary.requests - self._skipped_answers(file_summary)

    def drawn(self) -> bool:
        has_texts = any(entry.prompt == 0 for entry in self.summary().lengths)
        return not has_texts

    def content_source(self) -> ContentKind | None:
        """``random`` for a trace: it has lengths, for which prompts are drawn."""
        try:
            return "random" if self.drawn() else "file"
        except ProblemsError:
            return None

    def constraint_kinds(self) -> frozenset[ConstraintKind]:
        return super().constraint_kinds() | self.summary().constraint_kinds

    def asked_fields(self) -> frozenset[str]:
        return super().asked_fields() | self.summary().asked

    def others(self, requests: int) -> Self:
        copy = self.model_copy()
        copy._first = 0 if self.drawn() else -requests
        return copy

    def left_out(self) -> int:
        file_summary = self.summary()
        return file_summary.left_out + self._skipped_answers(file_summary)

    def _skipped_answers(self, file_summary: Summary) -> int:
        """Entries that are not sent because they have no answer whose length could be counted."""
        return file_summary.unanswered if self.counts_answers else 0

    def notes(self, timed: bool = False) -> list[str]:
        file_summary = self.summary()
        notes = []
        if file_summary.table_columns is not None:
            notes.append(
                f"its lines look like a table of {file_summary.table_columns} columns, and each is "
                "sent as a prompt, the names of the columns too: if it is one, give the file the "
                "ending .csv"
            )
        if file_summary.with_later_turns and not self.rules.sessions:
            conversations = counted(file_summary.with_later_turns, "conversation")
            notes.append(
                f"of {conversations} with more turns only the user's first message is sent"
            )
        if file_summary.left_out:
            skipped = _entries(file_summary.left_out)
            notes.append(f"{skipped} skipped: the user says nothing there")
        if file_summary.unsent_messages:
            messages = counted(file_summary.unsent_messages, "message")
            notes.append(
                f"not sent: {messages} of the system or the assistant that no message of the user "
                "stands before, or that come after the answer to it"
            )
        unanswered = self._skipped_answers(file_summary)
        if unanswered:
            notes.append(f"{_entries(unanswered)} skipped: no answer was recorded")
        if self.keep is not None:
            notes.append(
                "entries whose lengths lie outside of 'keep' are left out: workload show counts them"
            )
        unused = file_summary.unused - {"timestamp"} if timed else file_summary.unused
        if self.counts_answers:
            unused -= {*ANSWERS}  # their lengths are those of the requests
        answer = None if self.columns is None else self.columns.answer
        if answer is not None and ROLES["answer"] in unused:
            unused = unused - {ROLES["answer"]} | {answer}  # as the file has it
        if unused:
            what = "change no request" if self.columns is None else "are not sent"
            notes.append(f"keys of the prompts that {what}: {first_names(unused)}")
        return notes

    def identity(self) -> dict[str, Any]:
        """Has the digest of the file's content in place of its path."""
        digest = self.prompts_digest or self.summary().digest
        content = super().identity() | {"prompts": digest, "prompts_digest": None}
        content.pop("dataset", None)
        if self.columns is not None:  # what is left out on purpose is not sent in any case
            columns = self.columns.model_dump(mode="json", exclude={"leave_out"})
            content["columns"] = columns
        return content

    def requests(self, prompter: Prompter, seed: int) -> FileRequests:
        return FileRequests(self, prompter, seed, self._first)

    def check(self, file_summary: Summary) -> None:
        """Raises ProblemsError for a file that is not the one that was planned, that lacks lengths,
        or whose entries ask for what cannot be sent.
        """
        reasons = []
        if self.prompts_digest not in (None, file_summary.digest):
            reasons.append(
                f"on {platform.node()} is not the file that was planned (digest "
                f"{file_summary.digest} instead of {self.prompts_digest}): it has changed since, or "
                "differs on this node"
            )
        lacks_lengths = any(entry.answer is None for entry in file_summary.lengths)
        if self.output_tokens is None and lacks_lengths:
            ways = "a number"
            if file_summary.recorded_answers:
                ways += ", or file for the lengths of the recorded answers"
            reasons.append(
                "does not say for each prompt how long the answer shall be: give 'output_tokens' "
                f"({ways})"
            )
        if self._skipped_answers(file_summary) == file_summary.prompts:
            reasons.append("has no recorded answers: give a number as 'output_tokens', not 'file'")
        if file_summary.fields and self.api not in SAMPLED_APIS:
            reasons.append(
                f"has {first_names(file_summary.fields)}, which the API {self.api!r} is not sent: use "
                f"{' or '.join(SAMPLED_APIS)}"
            )
        if file_summary.images and self.api != "chat":
            reasons.append(f"has images, which are sent through the API chat, not {self.api!r}")
        reasons += self._problems_of_tools(file_summary)
        if file_summary.token_ids and self.api == "chat":
            reasons.append("has prompts of token ids, which the API chat does not take")
        if len(file_summary.models) > 1:
            reasons.append(
                f"has requests of several models ({first_names(file_summary.models)}), and all go to the "
                "one that is measured: make a file for each; give adapters as the workload's "
                "'adapters'"
            )
        wrong_urls = [
            url for url in sorted(file_summary.urls) if not url.endswith(_PATHS.get(self.api, "?"))
        ]
        if wrong_urls:
            reasons.append(
                f"has requests of {first_names(frozenset(wrong_urls))}, and the API is {self.api!r}: "
                "use chat for /v1/chat/completions, completions for /v1/completions"
            )
        if reasons:
            raise ProblemsError(
                [Problem(f"prompts {self.prompts!r} {reason}") for reason in reasons]
            )

    def _problems_of_tools(self, file_summary: Summary) -> Iterator[str]:
        """What is wrong with the tools of its entries, beside what the engine takes."""
        if file_summary.tools_at is not None and self.api != "chat":
            yield (
                f"has tools ({file_summary.tools_at}), which are sent through the API chat, not "
                f"{self.api!r}"
            )
        if self.tool_choice is not None and self.tools is None and not file_summary.tool_choices:
            yield "has no tools, which 'tool_choice' needs"
        name = self.tool_choice.name if isinstance(self.tool_choice, NamedTool) else None
        common_tools = file_summary.common_tools
        if name is not None and common_tools is not None and name not in common_tools:
            yield f"has entries whose tools lack {name!r}, which 'tool_choice' names"
        for choice in ("required", "named"):
            place = file_summary.tool_choices.get(choice)
            if place is not None and self.constrain is not None and self.tool_choice is None:
                yield (
                    f"has an answer that must be a call of a tool ({place}), which 'constrain' "
                    "cannot constrain otherwise"
                )


def _entries(count: int) -> str:
    return "1 entry of the prompts is" if count == 1 else f"{count:,} entries of the prompts are"


class FileRequests(WorkloadKind):
    """One entry of the file per request."""

    def __init__(
        self, workload: FileWorkload, prompter: Prompter, seed: int, first: int = 0
    ) -> None:
        """Raises ProblemsError for a file that cannot be read, or that is not the one that was
        planned.
        """
        files = workload.files
        contents = [read_file("prompts", file) for file in files]
        entries = parse_files(contents, files, workload.rules)
        workload.check(Summary.of(b"".join(contents), entries))
        self._counts_answers = workload.counts_answers
        self._entries = [entry for entry in entries if entry]
        if self._counts_answers:
            self._entries = [_with_answers(entry) for entry in self._entries if has_length(entry)]
        self._first = first
        self._keep = workload.keep
        self._kept: list[int] = []  # indices of entries with lengths within ``keep``, as far as ...
        self.looked_at = 0  # ... so many of the first entries were looked at
        self.has_sessions = workload.rules.sessions
        self.needs_reply = workload.rules.sessions
        turns = [1 + len(entry.later_turns) for entry in self._entries]
        self.mean_turns = sum(turns) / len(turns)
        drawn = None if self._counts_answers else workload.output_tokens
        shape = SessionShape.of(Lengths(fixed=1), drawn or Lengths(fixed=1), max(turns))
        self._lengths = SessionLengths(shape, seed)
        self._prompter = prompter
        self._seed = seed
        counts = self._counts_answers or workload.keep is not None
        self._can_count = counts and prompter.count("") is not None
        self._answer_tokens = lru_cache(maxsize=None)(self._count_answer)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        index = self.index(session)
        entry = self._entries[index]
        if self._counts_answers and not self._can_count:
            raise InputError(NO_TOKENIZER)
        if self._keep is not None and not self._can_count and not entry.input_tokens:
            raise InputError(NO_TOKENIZER_TO_KEEP)
        messages = entry.messages
        if turn:
            messages = _messages_of_turn(entry, turn, earlier)
        if not messages:
            content = self._content_of_length(index, entry)
            messages = (Message("user", content, entry.input_tokens),)
        return Prompt(
            messages,
            self.input_tokens(session, turn),
            entry.fields,
            constraint=entry.constraint,
            ends_naturally=entry.constraint is not None or must_call_tool(entry.fields),
        )

    def _content_of_length(self, index: int, entry: PromptEntry) -> Content:
        """Content of the length that a trace gives. Equal blocks get equal tokens."""
        if not entry.blocks:
            rng = stream(self._seed, PROMPT_STREAM, 0, index)
            return (self._prompter.make(rng, entry.input_tokens),)
        parts = []
        tokens_left = entry.input_tokens
        for block in entry.blocks:
            size = min(entry.block_tokens, tokens_left)  # the last block may be shorter
            parts.append(self._prompter.make(stream(self._seed, PROMPT_STREAM, 1, block), size))
            tokens_left -= size
        return tuple(parts)

    def parts(self, session: int) -> list[tuple[tuple[str, int], int]]:
        """The parts of a prompt of given length: a name and its tokens. Parts of one name are equal
        tokens, as of ``_content_of_length``.
        """
        index = self.index(session)
        entry = self._entries[index]
        if not entry.blocks:
            return [(("entry", index), entry.input_tokens)]
        parts: list[tuple[tuple[str, int], int]] = []
        tokens_left = entry.input_tokens
        for block in entry.blocks:
            size = min(entry.block_tokens, tokens_left)
            parts.append((("block", block), size))
            tokens_left -= size
        return parts

    @cached_property
    def has_live_answers(self) -> bool:
        """Whether some prompts contain what the engine answered before: the file has not recorded
        it.
        """
        return any(not turn.recorded for entry in self._entries for turn in entry.later_turns)

    @property
    def has_images(self) -> bool:
        return any(any(entry.images()) for entry in self._entries)

    @property
    def has_lengths(self) -> bool:
        """Whether the length of all prompts is known: none is a text, and none has tools."""
        return all(entry.input_tokens and not entry.has_tools for entry in self._entries)

    def turns(self, session: int) -> int:
        return 1 + len(self._entries[self.index(session)].later_turns)

    def input_tokens(self, session: int, turn: int) -> int:
        entry = self._entries[self.index(session)]
        return 0 if "tools" in entry.fields else entry.input_tokens

    def output_tokens(self, session: int, turn: int) -> int:
        """0 where a recorded answer has the length and its tokens cannot be counted here."""
        index = self.index(session)
        length = self._entries[index].output_tokens
        if length is not None:
            return length
        if self._counts_answers:
            return self._answer_tokens(index, turn)
        return self._lengths.output_tokens(session, turn)

    def _count_answer(self, index: int, turn: int) -> int:
        entry = self._entries[index]
        answer = entry.later_turns[turn - 1].answer if turn else entry.answer
        tokens = self._prompter.count(answer or "")
        return 0 if tokens is None else max(tokens, 1)

    def comes_again(self, session: int) -> bool:
        """Whether another session before this one sent the same entry."""
        if self._keep is None:
            return session >= len(self._entries)
        self._look_at_entries(session + 1)
        return session >= len(self._kept)

    @property
    def filtered(self) -> int:
        """How many of the entries that were looked at have lengths outside of ``keep``."""
        return self.looked_at - len(self._kept)

    def index(self, session: int) -> int:
        """Which entry a session sends. Raises InputError where none has lengths that are kept."""
        number = self._first + session
        if self._keep is None:
            return number % len(self._entries)
        self._look_at_entries(math.inf if number < 0 else number + 1)
        if not self._kept:
            raise InputError(f"none of the prompts has lengths within 'keep' ({self.looked_at:,})")
        return self._kept[number % len(self._kept)]

    def _look_at_entries(self, wanted: float) -> None:
        """Looks at further entries until so many are known to be kept, or all are looked at: to
        count the tokens of a large file takes a minute.
        """
        while len(self._kept) < wanted and self.looked_at < len(self._entries):
            if self._is_kept(self.looked_at):
                self._kept.append(self.looked_at)
            self.looked_at += 1

    def _is_kept(self, index: int) -> bool:
        assert self._keep is not None
        entry = self._entries[index]
        prompt_tokens = entry.input_tokens
        if not prompt_tokens:
            if not self._can_count:
                return True  # no request is made without a tokenizer
            prompt_tokens = sum(
                self._prompter.count(message.text) or 0 for message in entry.messages
            )
        answer_tokens = entry.output_tokens
        if answer_tokens is None and self._counts_answers:
            answer_tokens = self._answer_tokens(index, 0)
        if answer_tokens is None:
            answer_tokens = self._lengths.output_tokens(index, 0)
        return self._keep.holds(prompt_tokens, answer_tokens)


def _messages_of_turn(
    entry: PromptEntry, turn: int, earlier: Sequence[Message]
) -> tuple[Message, ...]:
    """The messages of a later turn of a session. ``earlier``: what was said in it since it began.
    A session with calls of tools has the recorded messages in their place.
    """
    later_turn = entry.later_turns[turn - 1]
    if not later_turn.recorded:
        user = Message("user", (later_turn.text,), 0, later_turn.images)
        return (*entry.messages[:-1], *earlier, user)
    messages = list(entry.messages)
    for recorded_turn in entry.later_turns[:turn]:
        messages += recorded_turn.recorded
    return tuple(messages)


def _with_answers(entry: PromptEntry) -> PromptEntry:
    """A session up to its last turn whose answer was recorded, in a row."""
    if entry.output_tokens is not None:
        return entry
    answered = list(takewhile(lambda turn: turn.answer is not None, entry.later_turns))
    return replace(entry, later_turns=tuple(answered))


def summary(paths: tuple[str, ...], rules: FileRules = READ_AS_IS) -> Summary:
    """Reads files, again only where one has changed. Raises ProblemsError as ``parse_prompts``
    does.
    """
    statuses = [status_of("prompts", path) for path in paths]
    versions = tuple(FileVersion(status.st_mtime_ns, status.st_size) for status in statuses)
    return _summary(paths, rules, versions)


class FileVersion(NamedTuple):
    """What changes when a file does. ``size``: in bytes."""

    mtime_ns: int
    size: int


@lru_cache(maxsize=64)
def _summary(
    paths: tuple[str, ...], rules: FileRules, versions: tuple[FileVersion, ...]
) -> Summary:
    contents = [read_file("prompts", path) for path in paths]
    return Summary.of(b"".join(contents), parse_files(contents, paths, rules))


def parse_files(
    contents: Sequence[bytes], paths: Sequence[str], rules: FileRules = READ_AS_IS
) -> list[PromptEntry | None]:
    """The requests of all files, one after the other, as ``parse_prompts`` reads each."""
    entries: list[PromptEntry | None] = []
    for path, data in zip(paths, contents, strict=True):
        entries += _entries_of(data, path, rules)
    return _checked(entries, paths[0], rules)


def parse_prompts(
    data: bytes, path: str, rules: FileRules = READ_AS_IS
) -> list[PromptEntry | None]:
    """The requests of all lines that are not blank, or of all entries of an array; None for
    conversations in which the user says nothing.

    Raises ProblemsError with the file, the lines (entries) and what is wrong there. A file is JSON
    by its name, if its first line is an object, or if all of it is an array of objects. Lines end
    with LF or CR LF; a byte order mark is ignored.
    """
    return parse_files([data], [path], rules)


def _entries_of(data: bytes, path: str, rules: FileRules) -> list[PromptEntry | None]:
    """The requests of one file, perhaps of several. Raises ProblemsError as ``parse_prompts``."""
    data = unpacked(path, data)
    refuse_traces("prompts", path, data)
    pictures = PictureFiles(Path(path).parent)
    named = [] if rules.columns is None else [*rules.columns.named.values()]
    rows = rows_of_table(path, data, named)
    if rows is not None:
        return _entries_of_rows(rows, path, rules, pictures)
    refuse_other_formats("prompts", path, data)
    lines = lines_of(data, "prompts", path)
    has_json_name = path.lower().removesuffix(".gz").endswith(JSON_LINES)
    first = lines[0][1].lstrip()
    array = _array(data, path, has_json_name) if first.startswith(b"[") else None
    if array is not None:
        if not array:
            raise ProblemsError([Problem(f"prompts {path!r} is empty")])
        in_array = [(f"entry {number}", entry) for number, entry in enumerate(array, start=1)]
        return _read_all(path, in_array, lambda entry: _read(entry, entry, rules, pictures))
    first_is_object = isinstance(_json(first), dict)
    if has_json_name and first.startswith(b"{") and not first_is_object:
        _refuse_one_object(data, path)
    numbered = [(f"line {number}", line) for number, line in lines]
    is_json = has_json_name or first_is_object
    if not is_json and rules.columns is not None:
        text = "is text without columns: leave 'columns' out"
        raise ProblemsError([Problem(f"prompts {path!r} {text}")])

    def read(line: bytes) -> PromptEntry | None:
        if not is_json:
            return PromptEntry(user_says(line.decode()), is_line=True)
        text = line.decode()
        return _read(_json_line(text), text, rules, pictures)

    return _read_all(path, numbered, read)


def _read_all(
    path: str, entries: Sequence[tuple[str, Any]], read: Callable[[Any], PromptEntry | None]
) -> list[PromptEntry | None]:
    """As ``read_each``; requests with tools have their place, which refusals of engines name."""
    requests = read_each("prompts", path, entries, read)
    for index, request in enumerate(requests):
        if request is not None and request.has_tools:
            requests[index] = replace(request, place=entries[index][0])
    return requests


def _entries_of_rows(
    rows: list[Entry], path: str, rules: FileRules, pictures: PictureFiles
) -> list[PromptEntry | None]:
    """The requests of all rows of a table."""
    if not rows:
        raise ProblemsError([Problem(f"prompts {path!r} is empty")])
    names = [str(name) for name in rows[0].keys]
    if rules.columns is None and not has_content(names):
        raise unknown_table("prompts", path, names if len(names) > 1 else [])

    def read(row: Entry) -> PromptEntry | None:
        return _read(row.keys, row.keys, rules, pictures, is_table=True)

    return _read_all(path, [(row.place, row) for row in rows], read)


def _read(
    keys: Any, shown: object, rules: FileRules, pictures: PictureFiles, is_table: bool = False
) -> PromptEntry | None:
    """The request of one entry, whose keys may have other names. Raises ValueError.
    ``is_table``: numbers may be written as text.
    """
    entry = Entry("", keys)
    if rules.columns is not None:
        entry = with_columns(entry, rules.columns.named)
        cells = {name: keys[name] for name in entry.unsent if name in keys}
        problems = problems_of_unsent(
            dict(sorted(cells.items())), rules.columns.named, rules.columns.leave_out
        )
        if problems:
            raise EntryError(problems)
    if is_table:
        entry = with_values(entry)
    if rules.columns is not None and isinstance(entry.keys, dict):
        kept, found = without_keys_of_messages(entry.keys, rules.columns.leave_out)
        entry = replace(entry, keys=kept, unsent=entry.unsent | found)
    request = read_entry(entry.keys, shown, rules.sessions, pictures)
    if request is None or not entry.unsent:
        return request
    return replace(request, unused=request.unused | entry.unsent)


def _checked(
    entries: list[PromptEntry | None], path: str, rules: FileRules
) -> list[PromptEntry | None]:
    """The entries, if there is something to send and they have the columns that are left out."""
    if not any(entries):
        raise ProblemsError([Problem(f"prompts {path!r}: the user says nothing in any of them")])
    if rules.columns is not None:
        unsent = frozenset().union(*(entry.unused for entry in entries if entry))
        for column in rules.columns.leave_out:
            if column not in unsent:
                text = f"'leave_out' names {column!r}, which no entry that is sent has"
                raise ProblemsError([Problem(f"prompts {path!r}: {text}")])
    return _with_block_size(entries, path)


def _array(data: bytes, path: str, has_json_name: bool) -> list[Any] | None:
    """The entries of a file that is one JSON array; None for a file of texts."""
    try:
        entries = orjson.loads(data.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        if has_json_name or data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[{"):
            problem = Problem(f"prompts {path!r}, line {error.lineno}: {error.msg}")
            raise ProblemsError([problem]) from None
        return None
    if has_json_name or (entries and isinstance(entries[0], dict | list)):
        return list(entries)
    return None


def _refuse_one_object(data: bytes, path: str) -> None:
    """Raises ProblemsError for a file that is one JSON object over several lines."""
    whole = _json(data.removeprefix(codecs.BOM_UTF8))
    if not isinstance(whole, dict):
        return
    text = f"prompts {path!r} is one JSON object: give one object per line, or an array of objects"
    lists = [name for name, value in whole.items() if isinstance(value, list)]
    if lists:
        text += f"; {lists[0]!r} in it may be that array"
    raise ProblemsError([Problem(text)])


def _with_block_size(entries: list[PromptEntry | None], path: str) -> list[PromptEntry | None]:
    """The entries with the one size of blocks that fits all ``hash_ids`` of the file. Raises
    ProblemsError where none does.
    """
    fitting = set(BLOCK_TOKENS)
    for entry in entries:
        if entry and entry.blocks:
            fitting &= block_sizes(entry.input_tokens, len(entry.blocks))
    if not fitting:
        sizes = " and of others of ".join(str(size) for size in BLOCK_TOKENS)
        text = f"prompts {path!r}: hash_ids of some lines stand for blocks of {sizes} tokens"
        raise ProblemsError([Problem(text)])
    size = max(fitting)
    if size == max(BLOCK_TOKENS):
        return entries
    return [entry and replace(entry, block_tokens=size) for entry in entries]


def _json_line(text: str) -> Any:
    """The value of a line; None for a line that is plain text. Raises ValueError for what was to be
    an object and is none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not text.lstrip().startswith("{"):
            return None
        raise ValueError(f"{text[:60]!r} is no JSON: {error.msg}") from None


def _json(line: str | bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None

"""Requests of a recorded trace: its lengths, its sessions, its times, and which prompts have blocks
in common. What the prompts said is not in a trace, so they are made of random tokens.

After the last session the first comes again, with other tokens, so that a trace of any length can
be sent at any rate for any time and nothing of one round is in a prefix cache of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from orchestrator.base.arrays import Floats, Ints
from orchestrator.base.errors import InputError
from orchestrator.base.text import counted
from orchestrator.spec.document import wrong
from orchestrator.spec.images import Images
from orchestrator.spec.load import (
    MOST_REQUESTS,
    Arrivals,
    Begin,
    Duration,
    LengthBounds,
    Level,
    Scale,
    Workload,
)
from orchestrator.spec.settings import OneLine
from orchestrator.spec.traces import Filters, Keep, TraceColumns, Window
from orchestrator.workloads.fidelity import RATE_TOLERANCE
from orchestrator.workloads.file_reading import first_names
from orchestrator.workloads.images import DrawnImages
from orchestrator.workloads.kind import (
    ARRIVAL_STREAM,
    PROMPT_STREAM,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)
from orchestrator.workloads.trace_formats import problem
from orchestrator.workloads.trace_rows import TraceRows, TraceRules, read_rows

# Below this share of distinct times, requests come in bursts that nobody sent.
FEW_TIMES = 0.5

# Of recorded times: more would not be finite, and far less is longer than any point.
LONGEST_STRETCH = 1e30

# The random streams below PROMPT_STREAM, by purpose.
_ROW, _BLOCK = range(2)


class TraceWorkload(Workload):
    """``kind: trace``: the rows of a recorded trace."""

    LATER_KEYS = frozenset({"images"})

    kind: Literal["trace"] = Field(
        description="`trace`: lengths, sessions and times of a recorded trace."
    )
    trace: OneLine = Field(description="The file: CSV or JSON lines, gzipped or not, or Parquet.")
    format: Literal["azure", "burstgpt", "mooncake", "bailian", "weka"] | None = Field(
        default=None,
        description="The format of the file. A file of a named format may have other columns too; "
        "`plan` names those that change nothing. By default the format is found by the names of "
        "the columns.",
    )
    columns: TraceColumns | None = Field(
        default=None,
        description="Which column is what, in a table of your own, for example "
        "`{time: at, input_tokens: prompt, output_tokens: answer}`.",
    )
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None, description="The unit of times that are numbers, with `columns`."
    )
    window: Window | None = Field(
        default=None,
        description="The rows between two times since the first row, for example `[10m, 40m]`.",
    )
    where: Filters = Field(
        default=(),
        description="Only rows with this value, or one of these, in a column, for example "
        "`{Model: GPT-4}`.",
    )
    keep: Keep | None = Field(
        default=None,
        description="Only rows with lengths within bounds, for example "
        "`{input_tokens: [4, 8000]}`.",
    )
    spread: Duration | None = Field(
        default=None,
        gt=0,
        description="The requests of one time stamp are spread evenly over this time, for example "
        "`3s`.",
    )
    longest_pause: Duration | None = Field(
        default=None,
        gt=0,
        description="The longest pause within a session, for example `60s`: longer ones are cut. "
        "If the trace does not say how long answers took, the time from one request to the next "
        "is cut instead. Refused for a trace without sessions or times, which has no pauses.",
    )
    images: Images | None = Field(
        default=None,
        examples=[{"sizes": ["1120x700"], "distinct": 64}],
        description="The pictures of a trace that counts them (Azure 2025; `api: chat`), by their "
        "sizes: each request has as many as the trace says. The recorded prompt lengths are then "
        "those of the text alone.",
    )
    rows_digest: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{16}$",
        description="Digest of what is sent; other rows are refused. `plan` sets it.",
    )
    last_row: int | None = Field(
        default=None,
        ge=1,
        description="The last row of the file that is sent; clients read no further. `plan` sets "
        "it where there is a `window`.",
    )

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        if self.format is not None and self.columns is not None:
            raise wrong("format", "'format' and 'columns' exclude each other")
        return self

    @model_validator(mode="after")
    def _images_can_be_sent(self) -> Self:
        if self.images is None:
            return self
        if self.api != "chat":
            text = f"'images' are sent through the API chat, not through {self.api!r}"
            raise wrong("images", text, "set 'api' to chat")
        if self.images.count.bounds != (1, 1):
            raise wrong(("images", "count"), "the trace says how many images a request has")
        return self

    def rules(self) -> TraceRules:
        return TraceRules(
            path=self.trace,
            name=self.format,
            columns=self.columns,
            unit=self.unit,
            window=self.window,
            filters=self.where,
            keep=self.keep,
            spread_s=self.spread,
            longest_pause_s=self.longest_pause,
            with_images=self.images is not None,
        )

    def rows(self, last_row: int | None = None) -> TraceRows:
        """What is sent, and what is left out of the whole file, or up to ``last_row``. Raises
        ProblemsError for a file that cannot be read, or whose rows are not those that were planned.
        """
        rows = read_rows(self.rules(), last_row)
        if self.rows_digest not in (None, rows.digest):
            raise problem(
                self.trace,
                f"has not the rows that were planned (digest {rows.digest} instead of "
                f"{self.rows_digest}): it has changed since, or differs on this node",
            )
        return rows

    def resolved(self, path: Callable[[str], str]) -> Self:
        placed = self.model_copy(update={"trace": path(self.trace)})
        rows = placed.rows()
        last_row = int(rows.rows.max()) if self.window is not None else None
        return placed.model_copy(update={"rows_digest": rows.digest, "last_row": last_row})

    def identity(self) -> dict[str, Any]:
        """What is sent: its digest in place of the file and of the rules that choose its rows."""
        digest = self.rows_digest or self.rows().digest
        asked = super().identity()
        kept = Workload.LATER_KEYS | self.LATER_KEYS
        options = {key: asked[key] for key in kept if key in asked}
        return {"kind": self.kind, "api": self.api, "rows": digest, **options}

    def token_bounds(self) -> LengthBounds:
        lengths = self.rows().lengths
        assert lengths is not None  # all rows are read
        if self.sends_images():
            return LengthBounds(lengths.totals.least, None)
        return lengths.totals

    def longer_prompts(self, tokens: int) -> float | None:
        lengths = self.rows().lengths
        assert lengths is not None  # all rows are read
        share = lengths.share_longer(tokens)
        return None if share < 1 and self.sends_images() else share

    def sends_images(self) -> bool:
        images = self.rows().images
        return images is not None and bool(images.any())

    def most_turns(self) -> int:
        """1: the lengths of sessions are not drawn, so they take no memory."""
        return 1

    def mean_turns(self) -> float:
        rows = self.rows()
        return rows.requests / rows.sessions

    def recorded_rate(self) -> float | None:
        return self.rows().requests_per_s

    def distinct_times_share(self) -> float | None:
        rows = self.rows()
        return rows.distinct_times / rows.requests if rows.starts_ns is not None else None

    def most_requests(self) -> int:
        return self.rows().requests

    def left_out(self) -> int:
        return sum(count for _, count in self.rows().left_out)

    def notes(self, timed: bool = False) -> list[str]:
        rows = self.rows()
        notes = [f"{count:,} rows are left out: {reason}" for reason, count in rows.left_out]
        if rows.subagents:
            subagents = "is a subagent" if rows.subagents == 1 else "are subagents"
            notes.append(f"{counted(rows.subagents, 'session')} {subagents}")
        if rows.images_as_text:
            images = counted(rows.images_as_text, "request")
            notes.append(
                f"{images} of 'type: image' sent as text of the recorded lengths; "
                "'where' can leave them out"
            )
        if rows.unused:
            notes.append(f"columns that change nothing: {first_names(rows.unused)}")
        if rows.cut_pauses:
            pauses = counted(rows.cut_pauses, "pause")
            notes.append(f"{pauses} cut to {self.longest_pause:g} s")
        if rows.unknown_pauses:
            follow = "follows" if rows.unknown_pauses == 1 else "follow"
            notes.append(
                f"{counted(rows.unknown_pauses, 'request')} of agents {follow} the answer before at "
                "once: neither its 'api_time' nor their 'think_time' is recorded"
            )
        if timed and rows.requests_per_s is not None:
            notes.append(
                f"recorded: {rows.requests_per_s:.4g} requests/s on average; "
                f"{rows.distinct_times / rows.requests:.1%} as many distinct times as requests"
            )
        if timed and rows.starts_ns is not None and not self.spread:
            per_stamp = rows.requests / max(rows.distinct_times, 1)
            if rows.distinct_times < FEW_TIMES * rows.requests:
                notes.append(
                    f"{per_stamp:.1f} requests have each time stamp: give 'spread' (--spread of "
                    "load), how far the stamps are apart, or they are sent as bursts that nobody sent"
                )
        return notes

    def requests(self, prompter: Prompter, seed: int) -> TraceRequests:
        images = None if self.images is None else DrawnImages(self.images, seed)
        return TraceRequests(self.rows(self.last_row), prompter, seed, images)


class TraceRequests(WorkloadKind):
    """The sessions of a trace, round after round.

    ``images``: the pictures of requests that have some. ``chosen``: the sessions of a round; None:
    all. ``stretched``: by how much the starts of sessions are stretched. ``begin``: the first
    round begins with the first session after this share of the trace's time.
    """

    def __init__(
        self,
        rows: TraceRows,
        prompter: Prompter,
        seed: int,
        images: DrawnImages | None = None,
        chosen: Ints | None = None,
        stretched: float = 1.0,
        begin: float = 0.0,
    ) -> None:
        self._rows = rows
        self._prompter = prompter
        self._seed = seed
        self._images = images
        self.warmup_differs = images is not None
        self._chosen = np.arange(rows.sessions) if chosen is None else chosen
        self._stretched = stretched
        self._begin = begin
        counts = np.diff(rows.first_request)[self._chosen]
        self.mean_turns = float(counts.mean())
        self.has_sessions = rows.requests > rows.sessions

    # -- one load

    def at_level(self, level: Level, arrivals: Arrivals) -> TraceRequests:
        """Stretches the recorded starts to the rate of the level, or leaves out whole sessions.
        Raises InputError where the recorded rate does not allow that.
        """
        is_recorded = arrivals.process == "trace" and arrivals.trace is None
        if not is_recorded or level.control != "request_rate" or level.value == np.inf:
            return self
        recorded = self._rows.requests_per_s
        if recorded is None:
            raise InputError("the trace has no times: take other arrivals, such as poisson")
        begin = 0.0
        if arrivals.begin is Begin.ANYWHERE:
            begin = float(stream(self._seed, ARRIVAL_STREAM, 2).random())
        if arrivals.scale is Scale.STRETCH:
            factor = min(recorded / level.value, LONGEST_STRETCH)
            return self._with(stretched=factor, begin=begin)
        if arrivals.scale is Scale.THIN:
            share = level.value / recorded
            if share > 1 + RATE_TOLERANCE:
                raise InputError(
                    f"thinning leaves out sessions, so {level.value:g} requests/s are more than "
                    f"the recorded {recorded:.4g}: take scale: stretch"
                )
            return self._with(chosen=self._thinned(min(share, 1.0)), begin=begin)
        return self._with(begin=begin)

    def _with(
        self, chosen: Ints | None = None, stretched: float = 1.0, begin: float = 0.0
    ) -> TraceRequests:
        """The same requests, fewer of them or at other times."""
        return TraceRequests(
            self._rows, self._prompter, self._seed, self._images, chosen, stretched, begin
        )

    @property
    def has_images(self) -> bool:
        return self._images is not None

    def prepare(self) -> None:
        if self._images is not None:
            self._images.make()

    def _thinned(self, share: float) -> Ints:
        """This share of the sessions, drawn. A lower share has only sessions of a higher one."""
        units = stream(self._seed, ARRIVAL_STREAM, 1).random(self._rows.sessions)
        count = round(share * self._rows.sessions)
        if not count:
            raise InputError(
                f"thinned to {share:.2g}, no session of {self._rows.sessions:,} would be left: take "
                "a higher rate"
            )
        return np.sort(np.argsort(units, kind="stable")[:count])

    def starts_s(self, horizon_s: float | None, count: int | None) -> Floats | None:
        """When sessions begin, in seconds, up to the horizon or so many; None where the trace has
        no times. After the last session the next round begins one mean gap later. Raises InputError
        where they would be more than a client can hold.
        """
        starts_ns, rate = self._rows.starts_ns, self._rows.sessions_per_s
        if starts_ns is None or rate is None:
            return None
        period_s = self._rows.sessions / rate * self._stretched
        one_round = starts_ns[self._chosen] / 1e9 * self._stretched
        first = self._first_session
        begin_s = 0.0
        if self._begin:
            rounds_before, first_of_round = divmod(first, len(one_round))
            begin_s = rounds_before * period_s + float(one_round[first_of_round])
        if horizon_s is not None:
            most = horizon_s / period_s * len(one_round)
            if most > MOST_REQUESTS:
                raise InputError(
                    f"{most:.3g} sessions would be due; a point may have {MOST_REQUESTS:,}"
                )
            rounds = int((horizon_s + begin_s) // period_s) + 1
        else:
            assert count is not None
            rounds = -(-(first + count) // len(one_round))
        begins_of_rounds = np.arange(rounds)[:, np.newaxis] * period_s
        starts = (begins_of_rounds + one_round).ravel()[first:] - begin_s
        if horizon_s is not None:
            starts = starts[starts < horizon_s]
        return starts[:count]

    @cached_property
    def _first_session(self) -> int:
        """How many sessions of the first round begin before ``begin``."""
        starts_ns, rate = self._rows.starts_ns, self._rows.sessions_per_s
        if not self._begin or starts_ns is None or rate is None:
            return 0
        begin_ns = self._begin * self._rows.sessions / rate * 1e9
        return int(np.searchsorted(starts_ns[self._chosen], begin_ns))

    # -- sessions

    def _place(self, session: int) -> tuple[int, int]:
        """The round of a session, and which of the trace's it is."""
        round_number, index = divmod(session + self._first_session, len(self._chosen))
        return round_number, int(self._chosen[index])

    def _row(self, session: int, turn: int) -> int:
        return int(self._rows.first_request[self._place(session)[1]]) + turn

    def turns(self, session: int) -> int:
        recorded = self._place(session)[1]
        return int(self._rows.first_request[recorded + 1] - self._rows.first_request[recorded])

    def pause_s(self, session: int, turn: int) -> float:
        if self._rows.pauses_s is None or turn + 1 >= self.turns(session):
            return 0.0
        return float(self._rows.pauses_s[self._row(session, turn + 1)])

    def earliest_s(self, session: int, turn: int) -> float | None:
        """Without recorded pauses, a request is sent at its own time in the session, which is not
        stretched, or when the answer before it has come, whichever is later.
        """
        if self._rows.pauses_s is not None or self._rows.offsets_ns is None:
            return None
        return float(self._rows.offsets_ns[self._row(session, turn)]) / 1e9

    # -- requests

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        content = tuple(
            self._prompter.make(stream(self._seed, PROMPT_STREAM, *name), tokens)
            for name, tokens in self.parts(session, turn)
        )
        text_tokens = int(self._rows.inputs[self._row(session, turn)])
        count = self._image_count(session, turn)
        images: tuple[bytes, ...] = ()
        if self._images is not None and count:
            images = self._images.so_many(count, session, turn, phase)
        message = Message("user", content, text_tokens, images)
        return Prompt((message,), self.input_tokens(session, turn))

    def _image_count(self, session: int, turn: int) -> int:
        images = self._rows.images
        return 0 if images is None else int(images[self._row(session, turn)])

    def parts(self, session: int, turn: int) -> list[tuple[tuple[int, ...], int]]:
        """The parts of a prompt: a name and its tokens. Parts of one name are equal tokens, but for
        their number.
        """
        round_number, recorded = self._place(session)
        row = int(self._rows.first_request[recorded]) + turn
        scope = int(self._rows.rows[row]) if self._rows.local_blocks else 0
        tokens_left = int(self._rows.inputs[row])
        parts: list[tuple[tuple[int, ...], int]] = []
        for block in self._blocks(row):
            size = min(self._rows.block_tokens, tokens_left)  # the last block may be shorter
            parts.append(((_BLOCK, round_number, scope, block), size))
            tokens_left -= size
        if tokens_left:
            parts.append(((_ROW, round_number, row), tokens_left))
        return parts

    def _blocks(self, row: int) -> list[int]:
        if self._rows.blocks is None or self._rows.first_block is None:
            return []
        blocks: list[int] = self._rows.blocks[
            self._rows.first_block[row] : self._rows.first_block[row + 1]
        ].tolist()
        return blocks

    def input_tokens(self, session: int, turn: int) -> int:
        """Tokens of a prompt; 0 where it has images, whose tokens only the engine knows."""
        if self._image_count(session, turn):
            return 0
        return int(self._rows.inputs[self._row(session, turn)])

    def output_tokens(self, session: int, turn: int) -> int:
        return int(self._rows.outputs[self._row(session, turn)])

    def source_row(self, session: int, turn: int) -> int:
        """The number of a request's row in the file."""
        return int(self._rows.rows[self._row(session, turn)])

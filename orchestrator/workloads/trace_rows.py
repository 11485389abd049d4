"""The rows of a trace that are sent: filtered, cut to a window, put into sessions, spread.

Whatever is left out is counted by its reason.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.spec.images import MOST_IMAGES
from orchestrator.spec.load import MOST_REQUESTS, LengthBounds
from orchestrator.spec.traces import Filters, Keep, TraceColumns, Window, cell_text
from orchestrator.workloads.trace_formats import (
    TraceFormat,
    header_of,
    problem,
    used_columns,
    used_request_keys,
    wanted_format,
)
from orchestrator.workloads.trace_reader import (
    RowBatch,
    block_ids,
    json_lines,
    read_batches,
    seconds,
    whole_number,
)

# Why a row is left out.
BEFORE, OUTSIDE, FILTERED, EMPTY, OTHER_LENGTHS, MANY_IMAGES = (
    "before the first row of the file, from which the window counts",
    "outside the window",
    "not of the wanted values",
    "without tokens (a failed request)",
    "of other lengths",
    f"with more than {MOST_IMAGES} images",
)


@dataclass(frozen=True, slots=True)
class TraceRules:
    """Which file is read, how, and which of its rows are sent. ``with_images``: requests have the
    images that the file counts; otherwise it may count none.
    """

    path: str
    name: str | None  # of the format
    columns: TraceColumns | None
    unit: str | None
    window: Window | None
    filters: Filters
    keep: Keep | None
    spread_s: float | None
    longest_pause_s: float | None
    with_images: bool = False


@dataclass(frozen=True, slots=True)
class TraceLengths:
    """The figures of the lengths that a plan needs for every deployment. ``totals``: tokens of a
    prompt with its answer. ``sorted_inputs``: tokens of all prompts.
    """

    totals: LengthBounds
    sorted_inputs: NDArray[np.uint32]

    @classmethod
    def of(cls, inputs: Ints, outputs: Ints) -> TraceLengths:
        totals = inputs + outputs
        bounds = LengthBounds(int(totals.min()), int(totals.max()))
        sorted_inputs = np.sort(inputs.astype(np.uint32))
        return cls(bounds, sorted_inputs)

    def share_longer(self, tokens: int) -> float:
        """The share of prompts with more than ``tokens`` tokens."""
        fitting = np.searchsorted(self.sorted_inputs, np.uint32(tokens), side="right")
        return 1.0 - float(fitting) / len(self.sorted_inputs)


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Requests of a trace by session, in the order in which sessions begin.

    The requests of session s are ``first_request[s]:first_request[s + 1]``. ``rows``: of each
    request, the number of its row in the file. ``starts_ns``: of sessions, since the first; None:
    the trace has no times. ``offsets_ns``: of requests, since the start of their session.
    ``pauses_s``: before each request, after the answer before it; None where a trace does not say
    how long answers took. ``blocks``: names of blocks of all requests; those of request r are
    ``first_block[r]:first_block[r + 1]``. ``images``: of each request, how many it has; None: none
    has any.
    """

    format: TraceFormat
    first_request: Ints
    inputs: Ints
    outputs: Ints
    rows: Ints
    starts_ns: Ints | None = None
    offsets_ns: Ints | None = None
    pauses_s: Floats | None = None
    blocks: Ints | None = None
    first_block: Ints | None = None
    images: Ints | None = None
    block_tokens: int = 0
    local_blocks: bool = False  # equal names mean equal blocks only within a row of the file
    subagents: int = 0  # how many sessions are those of subagents
    total: int = 0  # rows of the file
    left_out: tuple[tuple[str, int], ...] = ()
    distinct_times: int = 0
    unused: tuple[str, ...] = ()  # columns, or keys of requests, that change nothing
    images_as_text: int = 0  # requests whose recorded lengths count images that nobody described
    cut_pauses: int = 0  # how many pauses were cut to the longest that is wanted
    unknown_pauses: int = 0  # requests of agents that follow at once, for want of a recorded pause
    lengths: TraceLengths | None = None  # set when all rows are read
    digest: str = ""  # 16 hex digits over everything that is sent; set when all rows are read

    @property
    def sessions(self) -> int:
        return len(self.first_request) - 1

    @property
    def requests(self) -> int:
        return len(self.inputs)

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first session to that of the last."""
        return 0.0 if self.starts_ns is None else float(self.starts_ns[-1]) / 1e9

    @property
    def sessions_per_s(self) -> float | None:
        """Mean rate at which sessions begin; None where all begin at once or without a time."""
        return (self.sessions - 1) / self.span_s if self.span_s > 0 else None

    @property
    def requests_per_s(self) -> float | None:
        """The recorded rate: sessions/s times their mean number of requests."""
        rate = self.sessions_per_s
        return None if rate is None else rate * self.requests / self.sessions

    def content_digest(self) -> str:
        """16 hex digits over everything that is sent."""
        content = hashlib.sha256()
        for array in (
            self.first_request,
            self.inputs,
            self.outputs,
            self.starts_ns,
            self.offsets_ns,
            self.pauses_s,
            self.blocks,
            self.first_block,
        ):
            content.update(b"-" if array is None else array.tobytes())
        content.update(f"{self.block_tokens} {self.local_blocks}".encode())
        if self.local_blocks:
            content.update(self.rows.tobytes())  # each row has blocks of its own
        if self.images is not None:
            content.update(self.images.tobytes())
        return content.hexdigest()[:16]


def read_rows(rules: TraceRules, last_row: int | None = None) -> TraceRows:
    """The rows of a trace that are sent, read again only where the file has changed. Raises
    ProblemsError.

    ``last_row``: rows behind this one are not sent, so they are not read, and those that are left
    out are counted up to there. None: the whole file is read.
    """
    try:
        status = os.stat(rules.path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise problem(rules.path, f"cannot be read: {reason}") from None
    if not os.path.isfile(rules.path):
        raise problem(rules.path, "is not a regular file")
    return _read(rules, last_row, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)  # traces of one file, all of which a mix may have as parts
def _read(rules: TraceRules, last_row: int | None, mtime_ns: int, size: int) -> TraceRows:
    header = header_of(rules.path, _named_columns(rules))
    trace_format = wanted_format(rules.path, rules.name, rules.columns, rules.unit, header)
    if rules.with_images and trace_format.images is None:
        raise problem(rules.path, "does not count images: leave 'images' out")
    if rules.longest_pause_s is not None:
        _check_pauses(rules.path, trace_format)
    if trace_format.columns is None:
        rows = _weka_rows(rules, trace_format)
    else:
        selection = _Selection(rules, trace_format)
        for batch in read_batches(rules.path, trace_format, header, rules.filters):
            selection.add(batch)
            if last_row is not None and selection.total >= last_row:
                break
        rows = selection.rows()
    if not rows.requests:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in rows.left_out)
        raise problem(rules.path, f"has no row to send: {left_out or 'it has none'}")
    unused_columns = set(header.names) - used_columns(trace_format, rules.filters)
    return replace(
        rows,
        unused=tuple(sorted(unused_columns.union(rows.unused))),
        lengths=TraceLengths.of(rows.inputs, rows.outputs),
        digest=rows.content_digest(),
    )


def _named_columns(rules: TraceRules) -> list[str]:
    """The columns that the user names."""
    named = [row_filter.column for row_filter in rules.filters]
    if rules.columns is not None:
        named += rules.columns.names
    return named


def _check_pauses(path: str, trace_format: TraceFormat) -> None:
    """Raises ProblemsError where a trace can have no pauses."""
    columns = trace_format.columns
    if columns is None:  # WEKA's sessions have some
        return
    lacks = ""
    if columns.session is None and trace_format.name != "bailian":
        lacks = "sessions"
    elif columns.time is None:
        lacks = "times"
    if lacks:
        raise problem(path, f"has no {lacks}, so it has no pauses: leave 'longest_pause' out")


class _Selection:
    """Gathers the rows that are kept, batch by batch."""

    def __init__(self, rules: TraceRules, trace_format: TraceFormat) -> None:
        self._rules = rules
        self._format = trace_format
        self._origin_ns: int | None = None  # the time of the first row
        self._kept: list[RowBatch] = []
        self._row_numbers: list[Ints] = []
        self._left_out: Counter[str] = Counter()
        self._kept_count = 0
        self._unused_keys: set[str] = set()  # of JSON lines
        self.total = 0

    def add(self, batch: RowBatch) -> None:
        """Keeps the rows of a batch that are to be sent, and counts the others."""
        self.total += len(batch.inputs)
        self._unused_keys |= batch.keys - used_columns(self._format, self._rules.filters)
        is_kept = batch.is_kept.copy()
        self._count_out(FILTERED, ~is_kept)
        if batch.times_ns is not None and self._origin_ns is None:
            self._origin_ns = int(batch.times_ns[0])
        window = self._rules.window
        if window is not None:
            if batch.times_ns is None or self._origin_ns is None:
                raise problem(self._rules.path, "has no times, so it has no 'window'")
            times_s = (batch.times_ns - self._origin_ns) / 1e9
            is_kept = self._narrowed(BEFORE, is_kept, times_s >= 0)
            is_inside = (times_s >= window.start) & (times_s < window.end)
            is_kept = self._narrowed(OUTSIDE, is_kept, is_inside)
        has_tokens = (batch.inputs > 0) & (batch.outputs > 0)
        is_kept = self._narrowed(EMPTY, is_kept, has_tokens)
        if self._rules.keep is not None:
            is_kept = self._narrowed(OTHER_LENGTHS, is_kept, _is_within(self._rules.keep, batch))
        if batch.images is not None:
            if not self._rules.with_images:
                self._refuse_images(batch.row, batch.images[is_kept])
            is_kept = self._narrowed(MANY_IMAGES, is_kept, batch.images <= MOST_IMAGES)
        places = np.flatnonzero(is_kept)
        if not len(places):
            return
        self._kept_count += len(places)
        if self._kept_count > MOST_REQUESTS:
            raise problem(
                self._rules.path,
                f"has more than {MOST_REQUESTS:,} requests: give a 'window', like [0s, 1h]",
            )
        self._row_numbers.append(places + batch.row)
        self._kept.append(_selected(batch, places))

    def _refuse_images(self, row: int, images: Ints) -> None:
        """Raises ProblemsError where there are any. ``row``: the first of the batch."""
        with_images = int(np.count_nonzero(images))
        if with_images:
            raise problem(
                self._rules.path,
                f"has requests with images ({with_images:,} from row {row} on), and nothing says "
                "of what size: give the workload images: {sizes: [1120x700]} and api: chat, or "
                f"where: {{{self._format.images}: 0}} for the requests without (load takes a "
                "workload of a file by --workload FILE --rate R --arrivals trace)",
            )

    def _narrowed(self, reason: str, is_kept: Bools, condition: Bools) -> Bools:
        self._count_out(reason, is_kept & ~condition)
        return is_kept & condition

    def _count_out(self, reason: str, is_left_out: Bools) -> None:
        count = int(np.count_nonzero(is_left_out))
        if count:
            self._left_out[reason] += count

    def rows(self) -> TraceRows:
        """All kept rows by session."""
        numbers = _joined(self._row_numbers)
        times_ns = None
        if self._origin_ns is not None:
            times_ns = _joined([b.times_ns for b in self._kept if b.times_ns is not None])
        elapsed_ns = None
        if any(batch.elapsed_ns is not None for batch in self._kept):
            elapsed_ns = _joined([b.elapsed_ns for b in self._kept if b.elapsed_ns is not None])
        images = None
        if self._rules.with_images:
            images = _joined([b.images for b in self._kept if b.images is not None])
        blocks: list[Sequence[int]] | None = None
        if self._format.block_tokens is not None:
            blocks = [row for batch in self._kept for row in batch.blocks or ()]
        distinct_times = 0
        if times_ns is not None:
            distinct_times = len(np.unique(times_ns))
            times_ns = self._spread(times_ns)
        order, first_request = _by_session(self._session_keys(numbers), times_ns, len(numbers))
        return _with_times_and_blocks(
            TraceRows(
                format=self._format,
                first_request=first_request,
                inputs=_joined([batch.inputs for batch in self._kept])[order],
                outputs=_joined([batch.outputs for batch in self._kept])[order],
                rows=numbers[order],
                images=None if images is None else images[order],
                block_tokens=self._format.block_tokens or 0,
                total=self.total,
                left_out=tuple(sorted(self._left_out.items())),
                distinct_times=distinct_times,
                unused=tuple(self._unused_keys),
                images_as_text=_count_with_images(self._kept),
            ),
            None if times_ns is None else times_ns[order],
            None if elapsed_ns is None else elapsed_ns[order],
            None if blocks is None else [blocks[place] for place in order.tolist()],
            self._rules.longest_pause_s,
        )

    def _session_keys(self, numbers: Ints) -> list[Any] | None:
        """A key of each row's session; None where every row is a session."""
        sessions = [key for batch in self._kept for key in batch.sessions or ()]
        if not sessions:
            return None
        parents = [key for batch in self._kept for key in batch.parents or ()]
        if parents:
            return _roots(sessions, parents)
        # a row without a session stands alone
        return [
            ("row", number) if key is None else key
            for key, number in zip(sessions, numbers.tolist(), strict=True)
        ]

    def _spread(self, times_ns: Ints) -> Ints:
        """Spreads rows that share a time stamp evenly over ``spread_s`` from it."""
        if self._rules.spread_s is None:
            return times_ns
        _, inverse, counts = np.unique(times_ns, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        first_of_stamp = np.cumsum(counts) - counts
        # the place of each row among those of its time stamp
        places = np.empty(len(times_ns), np.int64)
        places[order] = np.arange(len(times_ns)) - np.repeat(first_of_stamp, counts)
        shares = places / counts[inverse]
        return times_ns + np.round(shares * self._rules.spread_s * 1e9).astype(np.int64)


def _selected(batch: RowBatch, places: Ints) -> RowBatch:
    """Some rows of a batch."""
    chosen = places.tolist()

    def of_array(array: Ints | None) -> Ints | None:
        return None if array is None else array[places]

    def of_list(values: list[Any] | None) -> list[Any] | None:
        return None if values is None else [values[place] for place in chosen]

    return replace(
        batch,
        times_ns=of_array(batch.times_ns),
        inputs=batch.inputs[places],
        outputs=batch.outputs[places],
        is_kept=batch.is_kept[places],
        sessions=of_list(batch.sessions),
        parents=of_list(batch.parents),
        elapsed_ns=of_array(batch.elapsed_ns),
        images=of_array(batch.images),
        blocks=of_list(batch.blocks),
        has_image=None if batch.has_image is None else batch.has_image[places],
    )


def _count_with_images(batches: Sequence[RowBatch]) -> int:
    """How many rows have lengths that count images."""
    count = 0
    for batch in batches:
        if batch.has_image is not None:
            count += int(np.count_nonzero(batch.has_image))
    return count


def _is_within(keep: Keep, batch: RowBatch) -> Bools:
    is_within = np.ones(len(batch.inputs), dtype=bool)
    for bounds, tokens in (
        (keep.input_tokens, batch.inputs),
        (keep.output_tokens, batch.outputs),
        (keep.total_tokens, batch.inputs + batch.outputs),
    ):
        if bounds is not None:
            is_within &= (tokens >= bounds[0]) & (tokens <= bounds[1])
    return is_within


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _roots(chats: list[Any], parents: list[Any]) -> list[Any]:
    """For each row the first request of its conversation. A request whose parent is not among the
    rows begins one.
    """
    parent_of = dict(zip(chats, parents, strict=True))
    root_of: dict[Any, Any] = {}
    for chat in chats:
        members: dict[Any, None] = {}  # from this request up
        root = chat
        # stops at a request whose root is known, at a missing parent, or in a circle
        while root not in root_of and root not in members:
            members[root] = None
            if parent_of[root] not in parent_of:
                break
            root = parent_of[root]
        root = root_of.get(root, root)
        root_of.update(dict.fromkeys(members, root))
    return [root_of[chat] for chat in chats]


def _by_session(keys: list[Any] | None, times_ns: Ints | None, count: int) -> tuple[Ints, Ints]:
    """The order of rows by session, and where each session begins in it. Sessions are in the order
    in which they begin, requests of a session in that of their times.
    """
    if times_ns is None:
        times_ns = np.arange(count)
    if keys is None:
        return np.argsort(times_ns, kind="stable"), np.arange(count + 1)
    numbers: dict[Any, int] = {}
    sessions = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    starts = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(starts, sessions, times_ns)
    order = np.lexsort((np.arange(len(sessions)), times_ns, sessions, starts[sessions]))
    in_order = sessions[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=-1))
    return order, np.append(begins, len(order))


def _with_times_and_blocks(
    rows: TraceRows,
    times_ns: Ints | None,
    elapsed_ns: Ints | None,
    blocks: list[Sequence[int]] | None,
    longest_pause_s: float | None,
) -> TraceRows:
    """The rows with what follows from their times and blocks."""
    changes: dict[str, Any] = {}
    if times_ns is not None and len(times_ns):
        starts_ns = times_ns[rows.first_request[:-1]]
        changes["starts_ns"] = starts_ns - starts_ns[0]
        if elapsed_ns is None and longest_pause_s is not None:
            gaps_ns = np.diff(times_ns, prepend=times_ns[0])
            gaps_ns[rows.first_request[:-1]] = 0
            longest_ns = round(longest_pause_s * 1e9)
            changes["cut_pauses"] = int(np.count_nonzero(gaps_ns > longest_ns))
            times_ns = np.cumsum(np.minimum(gaps_ns, longest_ns))
            starts_ns = times_ns[rows.first_request[:-1]]
        changes["offsets_ns"] = times_ns - np.repeat(starts_ns, np.diff(rows.first_request))
    if times_ns is not None and elapsed_ns is not None:
        ends_ns = times_ns + elapsed_ns
        pauses_s = np.zeros(len(times_ns))
        pauses_s[1:] = np.maximum(times_ns[1:] - ends_ns[:-1], 0) / 1e9
        pauses_s[rows.first_request[:-1]] = 0.0
        if longest_pause_s is not None:
            changes["cut_pauses"] = int(np.count_nonzero(pauses_s > longest_pause_s))
            pauses_s = np.minimum(pauses_s, longest_pause_s)
        changes["pauses_s"] = pauses_s
    if blocks is not None:
        counts = np.array([len(row) for row in blocks], np.int64)
        flat = [block for row in blocks for block in row]
        changes["blocks"] = np.array(flat, np.int64)
        changes["first_block"] = np.concatenate([[0], np.cumsum(counts)])
    return replace(rows, **changes)


# -- WEKA's agent sessions

SCOPES = ("local", "global")  # equal hash_ids are equal blocks: in one row, or in the whole file


class _WekaSelection:
    """Sessions of agents, one per line. A subagent's requests are a session of their own, behind
    that of its agent, and have blocks in common with it.
    """

    def __init__(self, rules: TraceRules, trace_format: TraceFormat) -> None:
        self._rules = rules
        self._format = trace_format
        self._left_out: Counter[str] = Counter()
        self._used_keys = used_request_keys(rules.filters)
        self._unused_keys: set[str] = set()
        self._kept_count = 0
        self.sessions: list[list[_AgentRequest]] = []
        self.subagents = 0
        self.block_tokens: set[int] = set()
        self.scopes: set[str] = set()
        self.total = 0

    def add(self, number: int, session: dict[str, Any]) -> None:
        """Adds the session of a line."""
        path, place = self._rules.path, f"row {number}"
        self._unused_keys |= session.keys() - used_columns(self._format, self._rules.filters)
        block_tokens = whole_number(path, place, session, "block_size")
        if not block_tokens:
            raise problem(path, f"{place}: block_size is 0")
        self.block_tokens.add(block_tokens)
        scope = session.get("hash_id_scope", "local")
        if scope not in SCOPES:
            shown = str(scope)[:60]
            raise problem(path, f"{place}: hash_id_scope is {shown!r}; give {' or '.join(SCOPES)}")
        self.scopes.add(scope)
        requests = session.get("requests")
        if not isinstance(requests, list):
            raise problem(path, f"{place}: requests are {str(requests)[:60]!r}; give a list")
        self._add_requests(number, block_tokens, requests, is_subagent=False)

    def _add_requests(
        self, number: int, block_tokens: int, requests: list[Any], is_subagent: bool
    ) -> None:
        path = self._rules.path
        kept: list[_AgentRequest] = []
        subagents: list[list[Any]] = []
        for index, keys in enumerate(requests, start=1):
            place = f"row {number}, request {index}"
            if not isinstance(keys, dict):
                raise problem(path, f"{place}: {str(keys)[:60]!r} is not an object")
            self._unused_keys |= keys.keys() - self._used_keys
            if keys.get("type") == "subagent":
                inner = keys.get("requests")
                if not isinstance(inner, list):
                    raise problem(path, f"{place}: a subagent without requests")
                subagents.append(inner)
                continue
            self.total += 1
            request = _agent_request(path, place, number, block_tokens, keys)
            if not self._is_kept(keys, request):
                continue
            kept.append(request)
            self._kept_count += 1
            if self._kept_count > MOST_REQUESTS:
                raise problem(path, f"has more than {MOST_REQUESTS:,} requests: give fewer lines")
        if kept:
            self.sessions.append(kept)
            self.subagents += is_subagent
        for inner in subagents:
            self._add_requests(number, block_tokens, inner, is_subagent=True)

    def _is_kept(self, keys: dict[str, Any], request: _AgentRequest) -> bool:
        for row_filter in self._rules.filters:
            if cell_text(keys.get(row_filter.column)) not in row_filter.values:
                self._left_out[FILTERED] += 1
                return False
        if not request.inputs or not request.outputs:
            self._left_out[EMPTY] += 1
            return False
        keep = self._rules.keep
        if keep is not None and not keep.holds(request.inputs, request.outputs):
            self._left_out[OTHER_LENGTHS] += 1
            return False
        return True

    def rows(self) -> TraceRows:
        """All kept requests by session."""
        path = self._rules.path
        if self._rules.window is not None or self._rules.spread_s is not None:
            raise problem(path, "says no start of its sessions, so it has no 'window' or 'spread'")
        if len(self.block_tokens) > 1 or len(self.scopes) > 1:
            raise problem(path, "has sessions of several block sizes or scopes")
        requests = [request for session in self.sessions for request in session]
        counts = [len(session) for session in self.sessions]
        pauses = [pause for session in self.sessions for pause in _pauses_s(session)]
        pauses_s = np.array([pause or 0.0 for pause in pauses])
        longest = self._rules.longest_pause_s
        cut_pauses = 0
        if longest is not None:
            cut_pauses = int(np.count_nonzero(pauses_s > longest))
            pauses_s = np.minimum(pauses_s, longest)
        blocks = [block for request in requests for block in request.blocks]
        block_counts = [len(request.blocks) for request in requests]
        return TraceRows(
            format=self._format,
            first_request=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
            inputs=np.array([request.inputs for request in requests], np.int64),
            outputs=np.array([request.outputs for request in requests], np.int64),
            rows=np.array([request.row for request in requests], np.int64),
            pauses_s=pauses_s,
            blocks=np.array(blocks, np.int64),
            first_block=np.concatenate([[0], np.cumsum(block_counts)]).astype(np.int64),
            block_tokens=next(iter(self.block_tokens), 0),
            local_blocks=self.scopes != {"global"},
            subagents=self.subagents,
            total=self.total,
            left_out=tuple(sorted(self._left_out.items())),
            unused=tuple(self._unused_keys),
            cut_pauses=cut_pauses,
            unknown_pauses=pauses.count(None),
        )


@dataclass(frozen=True, slots=True)
class _AgentRequest:
    """One request of an agent. ``t_s``: in its session. ``took_s``: how long its answer took.
    ``waited_s``: what the agent and its tools took before it. Both are None where it is not said.
    """

    row: int
    t_s: float
    inputs: int
    outputs: int
    blocks: Sequence[int]
    took_s: float | None
    waited_s: float | None


def _agent_request(
    path: str, place: str, number: int, block_tokens: int, keys: dict[str, Any]
) -> _AgentRequest:
    inputs = whole_number(path, place, keys, "in")
    blocks: Sequence[int] = ()
    if keys.get("hash_ids") is not None:
        blocks = block_ids(path, place, keys)
    if len(blocks) > -(-inputs // block_tokens):
        raise problem(
            path,
            f"{place}: {len(blocks)} hash_ids for {inputs} tokens of blocks of {block_tokens}",
        )
    return _AgentRequest(
        row=number,
        t_s=seconds(path, place, keys, "t"),
        inputs=inputs,
        outputs=whole_number(path, place, keys, "out"),
        blocks=blocks,
        took_s=_duration_s(path, place, keys, "api_time"),
        waited_s=_duration_s(path, place, keys, "think_time"),
    )


def _duration_s(path: str, place: str, keys: dict[str, Any], name: str) -> float | None:
    if keys.get(name) is None:
        return None
    duration_s = seconds(path, place, keys, name)
    if duration_s < 0:
        raise problem(path, f"{place}: {name} is {duration_s:g}; give a number from 0 on")
    return duration_s


def _pauses_s(session: list[_AgentRequest]) -> Iterator[float | None]:
    """The pause before each request of a session, which its tools and its user took: the time since
    the answer before it ended. Where the trace does not say how long that answer took
    (``api_time``), the request's own ``think_time``, the client's delay before it (AIPerf 0.13,
    dataset/loader/weka_trace_models.py). None where neither is known: the time since the request
    before would count the server's time twice.
    """
    yield 0.0
    for before, request in pairwise(session):
        if before.took_s is None:
            yield request.waited_s
        else:
            yield max(request.t_s - before.t_s - before.took_s, 0.0)


def _weka_rows(rules: TraceRules, trace_format: TraceFormat) -> TraceRows:
    selection = _WekaSelection(rules, trace_format)
    for number, session in json_lines(rules.path):
        selection.add(number, session)
    return selection.rows()

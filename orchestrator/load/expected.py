"""How many prompt tokens a prefix cache of unlimited size would have held: the expectation beside
the hits that an engine reports.

A client computes it when its load is over, from the requests that were answered and from the facts
by which their prompts were drawn, so that nothing is computed while load is sent. Sessions are taken
in the order of the schedule. Of sessions that other clients sent, the schedule says what they
contained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.base.arrays import Bools, Ints
from orchestrator.load.prompt_tokens import PromptTokens, UncountedError
from orchestrator.load.requests import Assignment
from orchestrator.load.schedule import kind_of
from orchestrator.results.outcomes import RequestStatus
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import WorkloadKind
from orchestrator.workloads.segments import (
    EndlessCache,
    NameOfDraw,
    PromptContents,
    known_parts,
    parts_of_texts,
    share_tokens,
)
from orchestrator.workloads.trace import TraceRequests

COLUMN = "expected_cached_tokens"
# Of a point; more would keep a client busy for minutes after its load.
MOST_SESSIONS = 500_000
ROWS_AT_ONCE = 100_000  # that are read and written again
_NEEDED = (
    *("request_index", "session", "turn", "phase", "status", "output_tokens", "part"),
    "input_tokens",
)
# Of the texts of a point, with repeats; a core takes about 1.5 million a second.
MOST_SEGMENTS = 30_000_000
# Share of requests with a text whose prompt the engine may count otherwise than its tokenizer here.
MOST_MISCOUNTED = 0.01


def with_expected_hits(requests: RowFile, assignment: Assignment) -> RowFile:
    """The rows of a client with ``expected_cached_tokens``, as far as the tokens of their prompts
    are known.

    Raises ResultsError where there is no room for them.
    """
    point = assignment.point
    block_tokens = point.cache_block_tokens
    if block_tokens is None or not requests.rows:
        return requests
    parts = known_parts(point.workload, assignment.kind)
    of_texts = parts_of_texts(point.workload, assignment.kind)
    if of_texts:
        counted = _with_texts(requests, assignment, block_tokens, parts, of_texts)
        if counted is not None:
            return counted
    if not parts:
        return requests
    answered = _answered_in(requests, parts)
    if not share_tokens(point.workload):
        expected: Ints = np.zeros(requests.rows, np.int64)
    elif answered.sessions.size and int(answered.sessions.max()) < MOST_SESSIONS:
        expected = _Expectation(assignment, block_tokens, parts).of(answered)
    else:
        return requests
    return _rewritten(requests, pa.array(expected, pa.int32(), mask=~answered.is_counted))


def _with_texts(
    requests: RowFile,
    assignment: Assignment,
    block_tokens: int,
    parts: frozenset[str | None],
    of_texts: frozenset[str | None],
) -> RowFile | None:
    """The rows with the expected hits of texts too; None where nobody here can count their tokens
    as the engine does. ``of_texts``: the parts that are texts.
    """
    answered = _answered_in(requests, parts | of_texts)
    if not answered.sessions.size or int(answered.sessions.max()) >= MOST_SESSIONS:
        return None
    texts = PromptTokens.of(assignment.point)
    if texts is None:
        return None
    expectation = _Expectation(assignment, block_tokens, parts | of_texts, texts)
    try:
        expected = expectation.of(answered)
    except UncountedError:
        return None
    is_text = _is_of(answered.parts, of_texts) & answered.is_counted
    is_miscounted = is_text & (expectation.prompt_tokens != answered.prompt_tokens)
    if np.count_nonzero(is_miscounted) > MOST_MISCOUNTED * np.count_nonzero(is_text):
        return None
    return _rewritten(requests, pa.array(expected, pa.int32(), mask=~answered.is_counted))


def _answered_in(requests: RowFile, parts: frozenset[str | None]) -> _Answered:
    with pq.ParquetFile(requests.open()) as file:
        return _Answered.of(file.read(list(_NEEDED), use_threads=False), parts)


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a client's rows say of its requests; each array has an entry for every row."""

    sessions: Ints
    turns: Ints
    is_warmup: Bools
    is_counted: Bools  # was answered, and is of a part whose prompts are known
    answer_tokens: Ints
    prompt_tokens: Ints  # as the engine counted them
    parts: pa.ChunkedArray

    @classmethod
    def of(cls, rows: pa.Table, parts: frozenset[str | None]) -> _Answered:
        """``parts``: whose prompts are known."""
        indices = rows["request_index"].to_numpy().astype(np.int64)
        sessions = indices  # where requests name no session, each is one
        if not rows["session"].null_count:
            sessions = rows["session"].to_numpy().astype(np.int64)
        return cls(
            sessions=sessions,
            turns=_whole(rows["turn"]),
            is_warmup=_equals(rows["phase"], "warmup"),
            is_counted=_equals(rows["status"], RequestStatus.OK) & _is_of(rows["part"], parts),
            answer_tokens=_whole(rows["output_tokens"]),
            prompt_tokens=_whole(rows["input_tokens"]),
            parts=rows["part"],
        )

    def by_session(self) -> Iterator[tuple[int, list[int]]]:
        """Each session that has counted requests, in ascending order, with the places of these
        requests among the rows, in the order of their turns.
        """
        counted = np.flatnonzero(self.is_counted)
        order = np.lexsort(
            (self.turns[counted], self.sessions[counted])
        )  # the last key comes first
        places = counted[order]
        sessions, begins = np.unique(self.sessions[places], return_index=True)
        ends = np.append(begins, places.size)[1:]
        for session, begin, end in zip(sessions, begins, ends, strict=True):
            yield int(session), places[begin:end].tolist()

    def phase(self, place: int) -> str:
        return "warmup" if self.is_warmup[place] else "measure"


def _equals(column: pa.ChunkedArray, text: str) -> Bools:
    return np.asarray(pc.equal(column, str(text)).to_numpy(), np.bool_)


def _is_of(column: pa.ChunkedArray, parts: frozenset[str | None]) -> Bools:
    """Whether requests are of one of these parts; None stands for a workload that is no mix."""
    if None in parts:
        return np.ones(len(column), np.bool_)
    names = pa.array([part for part in parts if part is not None], pa.string())
    is_of_a_part = pc.is_in(column.cast(pa.string()), value_set=names)
    return np.asarray(is_of_a_part.to_numpy(), np.bool_)


def _whole(column: pa.ChunkedArray) -> Ints:
    """Whole numbers, with 0 for null."""
    return np.asarray(column.fill_null(0).to_numpy(), np.int64)


class _Taken(NamedTuple):
    """How many tokens of a prompt were held before, and how many it has."""

    hit_tokens: int
    prompt_tokens: int


class _Expectation:
    """The expected hits of a client's requests. Each target has a cache of its own."""

    def __init__(
        self,
        assignment: Assignment,
        block_tokens: int,
        parts: frozenset[str | None],
        texts: PromptTokens | None = None,
    ) -> None:
        """``parts``: whose prompts are known; other parts have no tokens in common with them.
        ``texts``: counts those that are texts of a file; None: no part has any.
        """
        point = assignment.point
        self._parts = parts
        self._assignment = assignment
        self._kind = _named(assignment)
        self._contents = PromptContents(self._kind, texts)
        self._segments_left = MOST_SEGMENTS if texts is not None else math.inf
        self._caches = [EndlessCache(block_tokens) for _ in point.targets]
        self._knows_answers = _returns_answers(point.dialect)
        self.prompt_tokens: Ints = np.zeros(0, np.int64)  # of each row, as counted here

    def of(self, answered: _Answered) -> Ints:
        """The tokens of each row; 0 where a request is not counted."""
        expected: Ints = np.zeros(len(answered.sessions), np.int64)
        self.prompt_tokens = np.zeros(len(answered.sessions), np.int64)
        schedule = self._assignment.schedule
        next_session = 0  # all before it were looked at
        for session, places in answered.by_session():
            for earlier in range(next_session, session):
                if not schedule.is_own(earlier):  # another client sent it
                    self._take_from_others(earlier, answered.phase(places[0]))
            next_session = session + 1
            for place in places:
                turn = int(answered.turns[place])
                answer_tokens = int(answered.answer_tokens[place])
                taken = self._take(session, turn, answered.phase(place), answer_tokens)
                expected[place] = taken.hit_tokens
                self.prompt_tokens[place] = taken.prompt_tokens
            self._contents.forget(session)
        return expected

    def _take(self, session: int, turn: int, phase: str, answer_tokens: int) -> _Taken:
        """The prompt of a request that was answered, and its expected hits."""
        cache = self._caches[self._assignment.target(session)]
        segments = self._contents.segments(session, turn, phase)
        self._segments_left -= len(segments)
        if self._segments_left < 0:
            raise UncountedError(f"more than {MOST_SEGMENTS:,} blocks of tokens")
        hit_tokens = cache.take(segments)
        answer = self._contents.answered(session, turn, answer_tokens)
        if answer is not None and self._knows_answers:
            cache.keep(segments, answer)
        return _Taken(hit_tokens, sum(segment.tokens for segment in segments))

    def _take_from_others(self, session: int, near_phase: str) -> None:
        """Adds the prompts of a session that another client sent, as far as others share them.

        ``near_phase``: the phase of the next session of this client. It is taken for that of the
        session where the schedule does not say when the session was due.
        """
        if self._kind.part(session) not in self._parts:
            return
        cache = self._caches[self._assignment.target(session)]
        schedule = self._assignment.schedule
        phase = near_phase
        if schedule.open_loop and session < len(schedule.due_ns):
            phase = schedule.phase(int(schedule.due_ns[session]))
        for turn in self._contents.turns_shared_by_others(session):
            cache.take(self._contents.segments(session, turn, phase))
        self._contents.forget(session)


def _named(assignment: Assignment) -> WorkloadKind:
    """What makes the requests of a point, with names in place of drawn tokens. Requests of a file
    or a trace have names already, and the file is not read again.
    """
    if isinstance(assignment.kind, FileRequests | TraceRequests):
        return assignment.kind
    return kind_of(assignment.point, NameOfDraw())


def _returns_answers(dialect: Dialect) -> bool:
    """Whether the next prompt of a conversation has the answer as the engine made it. Where prompts
    are token ids and the API sends none back, it has other ids in its place.
    """
    is_text = not dialect.prompt_token_ids
    return is_text or dialect.return_token_ids or dialect.wire == "sglang_generate"


def _rewritten(requests: RowFile, expected: pa.Array) -> RowFile:
    """The rows with the expected hits."""
    place = REQUESTS.get_field_index(COLUMN)
    writer = RowWriter("requests")
    try:
        first = 0
        with pq.ParquetFile(requests.open()) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                columns = batch.columns
                columns[place] = expected.slice(first, batch.num_rows)
                writer.write("requests", pa.Table.from_arrays(columns, schema=REQUESTS))
                first += batch.num_rows
        (finished,) = writer.finish()
    finally:
        writer.close()
    return finished

"""How many prompt tokens a prefix cache of unlimited size would have held: the expectation beside
the hits that an engine reports.

A client computes it when its load is over, from the requests that were answered, so that nothing is
computed while load is sent: from the facts by which prompts were drawn, and from the prompts
themselves where these facts do not say which tokens they have (sent_prompts.py). Sessions are taken
in the order of the schedule. Of sessions that other clients sent, the schedule says what they
contained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.base.arrays import Bools, Ints
from orchestrator.load.kept_answers import KeptAnswers
from orchestrator.load.prompt_tokens import UncountedError
from orchestrator.load.requests import Assignment
from orchestrator.load.schedule import kind_of
from orchestrator.load.sent_prompts import AnsweredPrompt, SentPrompts
from orchestrator.results.outcomes import RequestStatus
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import TokenIds, WorkloadKind
from orchestrator.workloads.segments import (
    EndlessCache,
    NameOfDraw,
    PromptContents,
    Segment,
    known_parts,
    other_parts,
    share_tokens,
)
from orchestrator.workloads.trace import TraceRequests

COLUMN = "expected_cached_tokens"
# Of a point; more would keep a client busy for minutes after its load.
MOST_SESSIONS = 500_000
TOO_MANY_SESSIONS = f"more than {MOST_SESSIONS:,} sessions would take minutes after the load"
ROWS_AT_ONCE = 100_000  # that are read and written again
_NEEDED = (
    *("request_index", "session", "turn", "phase", "status", "output_tokens", "part"),
    "input_tokens",
)
# Of the prompts of a client's point that are written again: some 100 bytes and 1 to 2 µs each.
MOST_SEGMENTS = 10_000_000
TOO_MANY_BLOCKS = f"prompts have more than {MOST_SEGMENTS:,} blocks of tokens"
# Share of prompts written again that the engine may count otherwise than they are counted here.
MOST_MISCOUNTED = 0.01


class ExpectedHits(NamedTuple):
    """A client's rows with what is expected. ``reason``: why nothing is expected of some of its
    requests, as the end of a sentence; None: there are none of these.
    """

    requests: RowFile
    reason: str | None = None


def with_expected_hits(
    requests: RowFile, assignment: Assignment, answers: KeptAnswers
) -> ExpectedHits:
    """The rows of a client with ``expected_cached_tokens``, as far as the tokens of their prompts
    are known. ``answers``: those that later prompts contain.

    Raises ResultsError where there is no room for them.
    """
    point = assignment.point
    if point.cache_block_tokens is None or not requests.rows:
        return ExpectedHits(requests)
    known = known_parts(point.workload, assignment.kind)
    others = other_parts(point.workload, assignment.kind)
    reason = None
    if others:
        answered = _answered_in(requests, known | others)
        try:
            expected = _expected_of_all(assignment, answered, known, others, answers)
            return ExpectedHits(_rewritten(requests, expected, answered))
        except UncountedError as error:
            reason = str(error)
    if not known:
        return ExpectedHits(requests, reason)
    answered = _answered_in(requests, known)
    if not share_tokens(point.workload):
        nothing: Ints = np.zeros(requests.rows, np.int64)
        return ExpectedHits(_rewritten(requests, nothing, answered), reason)
    if not answered.sessions.size or int(answered.sessions.max()) >= MOST_SESSIONS:
        return ExpectedHits(requests, reason or TOO_MANY_SESSIONS)
    expected = _Expectation(assignment, known).of(answered)
    return ExpectedHits(_rewritten(requests, expected, answered), reason)


def _expected_of_all(
    assignment: Assignment,
    answered: _Answered,
    known: frozenset[str | None],
    others: frozenset[str | None],
    answers: KeptAnswers,
) -> Ints:
    """The tokens of each row. ``others``: parts whose prompts are written again. Raises
    UncountedError where these cannot be counted here as the engine counts them.
    """
    if not answered.sessions.size or int(answered.sessions.max()) >= MOST_SESSIONS:
        raise UncountedError(TOO_MANY_SESSIONS)
    is_written = _is_of(answered.parts, others) & answered.is_counted
    prompts = int(np.count_nonzero(is_written))
    blocks = int((answered.prompt_tokens[is_written] // _block_tokens(assignment)).sum())
    if blocks > MOST_SEGMENTS:  # known before any time is spent on them
        raise UncountedError(TOO_MANY_BLOCKS)
    sent = _SentParts(others, assignment, answers, prompts)
    first_turns = _first_turns(answered, is_written, assignment.kind)
    sent.prompts.learn(first_turns)
    expectation = _Expectation(assignment, known, sent)
    expected = expectation.of(answered)
    is_miscounted = is_written & (expectation.prompt_tokens != answered.prompt_tokens)
    miscounted = int(np.count_nonzero(is_miscounted))
    if miscounted > MOST_MISCOUNTED * prompts:
        raise UncountedError(
            f"the engine counts other tokens in {miscounted:,} of {prompts:,} prompts than are "
            "counted here"
        )
    return expected


def _answered_in(requests: RowFile, parts: frozenset[str | None]) -> _Answered:
    with pq.ParquetFile(requests.open()) as file:
        return _Answered.of(file.read(list(_NEEDED), use_threads=False), parts)


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a client's rows say of its requests; each array has an entry for every row."""

    sessions: Ints
    turns: Ints
    is_warmup: Bools
    is_known: Bools  # is of a part whose prompts are known
    is_counted: Bools  # is, and was answered
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
        is_known = _is_of(rows["part"], parts)
        return cls(
            sessions=sessions,
            turns=_whole(rows["turn"]),
            is_warmup=_equals(rows["phase"], "warmup"),
            is_known=is_known,
            is_counted=_equals(rows["status"], RequestStatus.OK) & is_known,
            answer_tokens=_whole(rows["output_tokens"]),
            prompt_tokens=_whole(rows["input_tokens"]),
            parts=rows["part"],
        )

    def by_session(self) -> Iterator[tuple[int, list[int]]]:
        """Each session that has counted requests, in ascending order, with the places of all its
        requests among the rows, in the order of their turns.
        """
        is_of_session = np.isin(self.sessions, self.sessions[self.is_counted])
        known = np.flatnonzero(self.is_known & is_of_session)
        order = np.lexsort((self.turns[known], self.sessions[known]))  # the last key comes first
        places = known[order]
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


def _first_turns(
    answered: _Answered, is_written: Bools, kind: WorkloadKind
) -> Iterator[AnsweredPrompt]:
    """The first turns of sessions among the prompts that are written again."""
    for place in np.flatnonzero(is_written).tolist():
        session = int(answered.sessions[place])
        turn = int(answered.turns[place])
        if turn == kind.first_turn(session):
            counted = int(answered.prompt_tokens[place])
            yield AnsweredPrompt(session, turn, answered.phase(place), counted)


class _SentParts:
    """The parts of a mix whose prompts are written again (None: of a workload that is no mix)."""

    def __init__(
        self,
        parts: frozenset[str | None],
        assignment: Assignment,
        answers: KeptAnswers,
        requests: int,
    ) -> None:
        self.parts = parts
        self.prompts = SentPrompts(assignment, answers, _block_tokens(assignment), requests)
        self._kind = assignment.kind
        self._segments_left = MOST_SEGMENTS

    def segments(self, session: int, tokens: TokenIds) -> list[Segment]:
        """The segments of a prompt. LoRA adapters compute other values for the same tokens, so they
        have no segments in common.
        """
        segments = self.prompts.segments(tokens)
        self._segments_left -= len(segments)
        if self._segments_left < 0:
            raise UncountedError(TOO_MANY_BLOCKS)
        adapter = self._kind.adapter(session)
        if adapter is None:
            return segments
        return [Segment((adapter, segment.name), segment.tokens) for segment in segments]


class _Expectation:
    """The expected hits of a client's requests. Each target has a cache of its own."""

    def __init__(
        self,
        assignment: Assignment,
        known: frozenset[str | None],
        sent: _SentParts | None = None,
    ) -> None:
        """``known``: the parts of a mix whose prompts have known segments. ``sent``: those whose
        prompts are written again; None: there are none. Other parts have no tokens in common with
        them.
        """
        point = assignment.point
        self._known = known
        self._sent = sent
        self._assignment = assignment
        self._kind = _named(assignment)
        self._contents = PromptContents(self._kind)
        self._caches = [EndlessCache(_block_tokens(assignment)) for _ in point.targets]
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
                if not answered.is_counted[place]:
                    self._note_failed(session, answered, place)
                    continue
                taken = self._take(session, answered, place)
                expected[place] = taken.hit_tokens
                self.prompt_tokens[place] = taken.prompt_tokens
            self._forget(session)
        return expected

    def _take(self, session: int, answered: _Answered, place: int) -> _Taken:
        """The prompt of a request that was answered, and its expected hits."""
        turn = int(answered.turns[place])
        phase = answered.phase(place)
        cache = self._caches[self._assignment.target(session)]
        sent = self._sent_part(session)
        if sent is None:
            segments = self._contents.segments(session, turn, phase)
            hit_tokens = cache.take(segments)
            answer = self._contents.answered(session, turn, int(answered.answer_tokens[place]))
            if answer is not None and self._knows_answers:
                cache.keep(segments, answer)
            return _Taken(hit_tokens, sum(segment.tokens for segment in segments))
        counted = int(answered.prompt_tokens[place])
        tokens = sent.prompts.tokens(session, turn, phase, counted)
        hit_tokens = cache.take(sent.segments(session, tokens))
        with_answer = sent.prompts.with_answer(session, turn, tokens)
        if with_answer is not None:
            cache.hold(sent.segments(session, with_answer))
        return _Taken(hit_tokens, len(tokens))

    def _note_failed(self, session: int, answered: _Answered, place: int) -> None:
        """Adds a request without an answer to what later prompts of its session contain: the user's
        message, and what had come of the answer. No cache is taken to have them. (Prompts that are
        written again have them from the answers that were kept.)
        """
        if self._sent_part(session) is None:
            turn = int(answered.turns[place])
            self._contents.segments(session, turn, answered.phase(place))
            self._contents.answered(session, turn, int(answered.answer_tokens[place]))

    def _sent_part(self, session: int) -> _SentParts | None:
        """``sent``, if a session is of one of its parts."""
        if self._sent is not None and self._kind.part(session) in self._sent.parts:
            return self._sent
        return None

    def _take_from_others(self, session: int, near_phase: str) -> None:
        """Adds the prompts of a session that another client sent, as far as others share them.

        ``near_phase``: the phase of the next session of this client. It is taken for that of the
        session where the schedule does not say when the session was due.
        """
        cache = self._caches[self._assignment.target(session)]
        schedule = self._assignment.schedule
        phase = near_phase
        if schedule.open_loop and session < len(schedule.due_ns):
            phase = schedule.phase(int(schedule.due_ns[session]))
        sent = self._sent_part(session)
        if sent is not None:
            for turn in sent.prompts.turns_shared_by_others(session):
                tokens = sent.prompts.tokens(session, turn, phase, counted=None)
                cache.take(sent.segments(session, tokens))
        elif self._kind.part(session) in self._known:
            for turn in self._contents.turns_shared_by_others(session):
                cache.take(self._contents.segments(session, turn, phase))
        self._forget(session)

    def _forget(self, session: int) -> None:
        """Forgets a session that has no more turns."""
        self._contents.forget(session)
        if self._sent is not None:
            self._sent.prompts.forget(session)


def _block_tokens(assignment: Assignment) -> int:
    """Of a cache that keeps prefixes: of others nothing is expected."""
    block_tokens = assignment.point.cache_block_tokens
    assert block_tokens is not None
    return block_tokens


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


def _rewritten(requests: RowFile, tokens: Ints, answered: _Answered) -> RowFile:
    """The rows with the expected hits."""
    expected = pa.array(tokens, pa.int32(), mask=~answered.is_counted)
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

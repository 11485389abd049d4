"""The numbers of every session of a point: its turns, the lengths of prompts and answers, the pauses
between them. They are drawn in blocks, so that any session can be asked for alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.base.arrays import Floats, Ints
from orchestrator.spec.load import Lengths
from orchestrator.spec.sessions import Documents, LengthPair, Pauses
from orchestrator.workloads.kind import LENGTH_STREAM, SESSION_STREAM, stream
from orchestrator.workloads.random_values import Choices, choose, draw, draw_pauses_s

BLOCK = 1024  # sessions whose lengths are drawn together
SAMPLE = 1000  # sessions, less than a block, that are drawn to estimate prompt lengths
BLOCKS_KEPT = 16  # of lengths, in memory
DOCUMENT_LENGTHS_KEPT = 100_000
ONE_TURN = Lengths(fixed=1)
NO_PAUSE = Pauses(fixed=0.0)

# The random streams below SESSION_STREAM, by purpose.
_TURNS = 0
_PAUSES = 1
_RUNNING = 2
_PAIR_CHOICE = 3
_DOCUMENT_CHOICE = 4
_FIRST_INPUT = 5
_DOCUMENT_LENGTH = 6


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What the numbers of a session are drawn from. ``first_input``: of the first prompt, if it has
    lengths of its own.
    """

    pairs: tuple[LengthPair, ...]
    turns: Lengths = ONE_TURN
    first_input: Lengths | None = None
    pauses: Pauses = NO_PAUSE
    documents: Documents | None = None

    @classmethod
    def of(cls, inputs: Lengths, outputs: Lengths, turns: int = 1) -> SessionShape:
        """The shape of sessions with this number of turns."""
        return cls((LengthPair(input=inputs, output=outputs),), Lengths(fixed=turns))


@dataclass(frozen=True, slots=True)
class _Block:
    """BLOCK sessions: each array has a row for a session and, but for the first two, a column for a
    turn. ``inputs`` have the tokens of a turn's documents in them.
    """

    turns: Ints
    first_turns: Ints  # where sessions begin
    inputs: Ints
    outputs: Ints
    conversations: Ints  # prompts that contain everything before them in their session
    pauses_s: Floats | None  # after a turn; None: all are alike
    documents: dict[tuple[int, int], tuple[int, ...]]  # of (row, turn)


class SessionLengths:
    """Turns, pauses, and input and output token counts of every (session, turn) of a point.

    The first ``running`` sessions are under way when the point begins. Seen at a random moment, a
    session is met in proportion to its length, so their lengths are drawn again with that weight,
    and their current turn uniformly.
    """

    def __init__(self, shape: SessionShape, seed: int, running: int = 0) -> None:
        self._shape = shape
        self._seed = seed
        self._running = running
        self._block = lru_cache(maxsize=BLOCKS_KEPT)(self._draw_block)
        self._choices: Choices | None = None
        if shape.documents is not None:
            self._choices = Choices(shape.documents.pool, shape.documents.popularity)
        self._document_tokens = lru_cache(DOCUMENT_LENGTHS_KEPT)(self._draw_document_tokens)

    def _draw_block(self, number: int) -> _Block:
        shape = self._shape
        turns, first_turns = self._draw_turns(number)
        size = (BLOCK, int(turns.max()))
        rng = stream(self._seed, LENGTH_STREAM, number)
        inputs, outputs = self._draw_pairs(number, size, rng)
        if shape.first_input is not None:
            first_rng = stream(self._seed, SESSION_STREAM, _FIRST_INPUT, number)
            inputs[:, 0] = draw(shape.first_input, (BLOCK,), first_rng)
        documents = self._draw_documents(number, turns)
        for (row, turn), chosen in documents.items():
            inputs[row, turn] += sum(map(self.document_tokens, chosen))
        pauses_s = None
        if shape.pauses.fixed is None:
            pauses_rng = stream(self._seed, SESSION_STREAM, _PAUSES, number)
            pauses_s = draw_pauses_s(shape.pauses, size, pauses_rng)
        conversations = np.cumsum(inputs + outputs, axis=1) - outputs
        return _Block(turns, first_turns, inputs, outputs, conversations, pauses_s, documents)

    def _draw_turns(self, number: int) -> tuple[Ints, Ints]:
        """Turns of each session, and the turn at which it begins."""
        rng = stream(self._seed, SESSION_STREAM, _TURNS, number)
        turns = draw(self._shape.turns, (BLOCK,), rng)
        first_turns = np.zeros(BLOCK, np.int64)
        running = min(max(self._running - number * BLOCK, 0), BLOCK)
        if running:
            running_rng = stream(self._seed, SESSION_STREAM, _RUNNING, number)
            met_rows = choose(turns.astype(np.float64), (running,), running_rng)
            turns[:running] = turns[met_rows]
            units = running_rng.random(running)
            first_turns[:running] = np.floor(units * turns[:running])
        return turns, first_turns

    def _draw_pairs(
        self, number: int, size: tuple[int, int], rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Lengths of prompts, without their documents, and of answers."""
        pairs = self._shape.pairs
        if len(pairs) == 1:
            inputs = draw(pairs[0].input, size, rng)
            return inputs, draw(pairs[0].output, size, rng)
        weights = np.array([pair.weight for pair in pairs])
        chosen = choose(weights, size, stream(self._seed, SESSION_STREAM, _PAIR_CHOICE, number))
        inputs = np.empty(size, np.int64)
        outputs = np.empty(size, np.int64)
        for index, pair in enumerate(pairs):
            is_chosen = chosen == index
            count = (int(is_chosen.sum()),)
            inputs[is_chosen] = draw(pair.input, count, rng)
            outputs[is_chosen] = draw(pair.output, count, rng)
        return inputs, outputs

    def _draw_documents(self, number: int, turns: Ints) -> dict[tuple[int, int], tuple[int, ...]]:
        shape = self._shape.documents
        if shape is None or self._choices is None:
            return {}
        rng = stream(self._seed, SESSION_STREAM, _DOCUMENT_CHOICE, number)
        counts = draw(shape.count, (BLOCK, int(turns.max())), rng)
        documents: dict[tuple[int, int], tuple[int, ...]] = {}
        for row, its_turns in enumerate(turns.tolist()):
            for turn in range(its_turns):
                chosen = self._choices.several(int(counts[row, turn]), rng)
                documents[row, turn] = tuple(chosen)
        return documents

    def _draw_document_tokens(self, document: int) -> int:
        shape = self._shape.documents
        assert shape is not None
        rng = stream(self._seed, SESSION_STREAM, _DOCUMENT_LENGTH, document)
        return int(draw(shape.tokens, (1,), rng)[0])

    def document_tokens(self, document: int) -> int:
        """The length of a document of the pool."""
        return self._document_tokens(document)

    def documents(self, session: int, turn: int) -> tuple[int, ...]:
        """The documents of a request, in their order in the prompt."""
        if self._shape.documents is None:
            return ()
        return self._block(session // BLOCK).documents[session % BLOCK, turn]

    def turns(self, session: int) -> int:
        if self._shape.turns.fixed is not None:
            return self._shape.turns.fixed
        return int(self._block(session // BLOCK).turns[session % BLOCK])

    def first_turn(self, session: int) -> int:
        """The turn at which a session begins."""
        if session >= self._running:
            return 0
        return int(self._block(session // BLOCK).first_turns[session % BLOCK])

    def pause_s(self, session: int, turn: int) -> float:
        """The pause after a turn."""
        if self._shape.pauses.fixed is not None:
            return self._shape.pauses.fixed
        pauses_s = self._block(session // BLOCK).pauses_s
        assert pauses_s is not None
        return float(pauses_s[session % BLOCK, turn])

    def input_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK).inputs[session % BLOCK, turn])

    def output_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK).outputs[session % BLOCK, turn])

    def conversation_tokens(self, session: int, turn: int) -> int:
        """Length of a prompt that contains everything before it in its session."""
        return int(self._block(session // BLOCK).conversations[session % BLOCK, turn])

    def sample(self) -> Ints:
        """``conversation_tokens`` of all turns of the first SAMPLE sessions, sorted."""
        block = self._block(0)
        is_sent = np.arange(block.conversations.shape[1]) < block.turns[:, np.newaxis]
        return np.sort(block.conversations[:SAMPLE][is_sent[:SAMPLE]], axis=None)

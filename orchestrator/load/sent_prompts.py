"""The tokens of prompts as they were sent, written once more when the load is over.

What a cache finds again is known exactly where prompts were token ids; of texts and chats where the
model's tokenizer and template are here; of pictures because equal pictures have equal blocks: how
many tokens each takes follows from the engine's count of the whole prompt.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from orchestrator.load.kept_answers import MOST_ANSWERS, KeptAnswers, SessionOfKind
from orchestrator.load.prompt_tokens import MOST_CHARACTERS, PromptTokens, UncountedError
from orchestrator.load.requests import Assignment
from orchestrator.workloads.drawn import DrawnRequests
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import Message, Prompt, TokenIds, WorkloadKind
from orchestrator.workloads.mix import MixRequests
from orchestrator.workloads.segments import Segment
from orchestrator.workloads.trace import TraceRequests

# After so many prompts their mean length says whether there is time for all of them.
ESTIMATED_AFTER = 200
LEARNT_FROM = 300  # prompts that show what an engine makes of pictures and tools
MOST_SHAPES = 100  # of pictures that come together with others only
_BASE64 = b";base64,"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_HEAD = 32  # characters of base64 that hold a PNG's width and height


class AnsweredPrompt(NamedTuple):
    """A request that was answered. ``counted``: tokens of its prompt, as the engine counts them."""

    session: int
    turn: int
    phase: str
    counted: int


class CountedPictures(NamedTuple):
    """The pictures of a prompt, and how many tokens they take together."""

    pictures: Sequence[bytes]
    tokens: int


class _Place(NamedTuple):
    """A prompt of a file, of a part of a mix."""

    part: str | None
    entry: int
    turn: int


class SentPrompts:
    """The prompts of one client that were sent with more than drawn tokens."""

    def __init__(
        self,
        assignment: Assignment,
        answers: KeptAnswers,
        block_tokens: int,
        requests: int,
    ) -> None:
        """``requests``: how many prompts there are to write."""
        self._assignment = assignment
        self._kind = assignment.kind
        self._answers = answers
        self._block_tokens = block_tokens
        self._requests = requests
        self._written = 0
        self._counter: PromptTokens | None = None  # made when a text comes
        self._users: dict[int, dict[int, Message]] = {}  # by session and turn
        self._of_files: dict[_Place, TokenIds] = {}  # that depend on no answer
        self._pictures = PictureTokens()
        # whether prompts lack tools that no answer may call, as with SGLang; None: not known yet
        self._leaves_tools_out: bool | None = None
        self._sends_pictures = _sends_pictures(assignment.kind)

    def tokens(self, session: int, turn: int, phase: str, counted: int | None) -> TokenIds:
        """The tokens of a prompt. Those of a picture are numbers below 0, one for each picture.

        ``counted``: by the engine; None: another client sent it. Raises UncountedError.
        """
        of_kind = SessionOfKind.of(self._kind, session)
        is_live = of_kind.has_live_answers
        if is_live:
            self._check_answers(of_kind)
        earlier = self._earlier(session, turn, phase) if is_live else ()
        place: _Place | None = None
        if isinstance(of_kind.kind, FileRequests) and not earlier:
            place = _Place(of_kind.part, of_kind.kind.index(of_kind.number), turn)
            if place in self._of_files:
                return self._of_files[place]
        prompt = self._kind.request(session, turn, phase, earlier)
        if is_live:
            self._users.setdefault(session, {})[turn] = prompt.messages[-1]
        tokens = self._tokens_of(prompt, counted)
        if place is not None:
            self._of_files[place] = tokens
        return tokens

    def _check_answers(self, of_kind: SessionOfKind) -> None:
        """Raises UncountedError where answers that may be found again are not here."""
        if not self._answers.is_complete:
            raise UncountedError(
                f"answers have more than {MOST_ANSWERS:,} characters or tokens, too many to keep"
            )
        if self._assignment.clients == 1 or not isinstance(of_kind.kind, FileRequests):
            return
        if of_kind.kind.comes_again(of_kind.number):
            raise UncountedError(
                "sessions of the file came again, and other clients have the answers to some"
            )

    def _tokens_of(self, prompt: Prompt, counted: int | None) -> TokenIds:
        content = prompt.messages[-1].content
        if content and not isinstance(content[0], str):
            flat = prompt.flat()
            assert not isinstance(flat, str)
            return flat
        pieces = self._pieces(prompt)
        self._written += 1
        self._check_length(self._text_counter())
        pictures = _pictures_of(prompt)
        if not pictures:
            return pieces[0]
        of_pictures = None if counted is None else counted - sum(map(len, pieces))
        lengths = self._pictures.lengths(pictures, of_pictures)
        tokens = [pieces[0]]
        for picture, length, piece in zip(pictures, lengths, pieces[1:], strict=True):
            number = self._pictures.number(picture)
            tokens += [np.full(length, -1 - number, np.int32), piece]
        return np.concatenate(tokens)

    def learn(self, first_turns: Iterable[AnsweredPrompt]) -> None:
        """Finds out from the first turns of sessions what the engine's counts alone say: whether it
        leaves tools out that no answer may call, and how many tokens pictures take. Raises
        UncountedError.
        """
        counted: list[CountedPictures] = []
        for number, answered in enumerate(first_turns):
            is_enough = number == LEARNT_FROM and not self._sends_pictures
            if is_enough or len(counted) == LEARNT_FROM:
                break
            history = self._kind.history(answered.session)
            prompt = self._kind.request(answered.session, answered.turn, answered.phase, history)
            pictures = _pictures_of(prompt)
            if pictures:
                tokens = answered.counted - sum(map(len, self._pieces(prompt)))
                counted.append(CountedPictures(pictures, tokens))
            elif _has_unused_tools(prompt) and self._leaves_tools_out is None:
                with_tools = sum(map(len, self._pieces(prompt)))
                self._leaves_tools_out = answered.counted < with_tools
        self._pictures.learn(counted)

    def _pieces(self, prompt: Prompt) -> list[TokenIds]:
        tools = prompt.fields.get("tools", ())
        if self._leaves_tools_out and _has_unused_tools(prompt):
            tools = ()
        return self._text_counter().pieces(prompt.messages, tools)

    def _text_counter(self) -> PromptTokens:
        if self._counter is None:
            self._counter = PromptTokens.of(self._assignment.point)
        return self._counter

    def _check_length(self, counter: PromptTokens) -> None:
        """Raises UncountedError, before much time is lost, where prompts are going to be too long
        to be counted. A file's prompts come again, so that their number says nothing.
        """
        if self._written != ESTIMATED_AFTER or self._of_files:
            return
        if counter.characters / self._written * self._requests > MOST_CHARACTERS:
            raise counter.too_long()

    def _earlier(self, session: int, turn: int, phase: str) -> tuple[Message, ...]:
        """What was said in a session before a turn, as its prompt has it."""
        messages = [*self._kind.history(session)]
        users = self._users.setdefault(session, {})
        for before in range(self._kind.first_turn(session), turn):
            answer = self._answers.of(session, before)
            if answer is None:
                continue
            if before not in users:  # it failed, and its answer is empty
                failed = self._kind.request(session, before, phase, tuple(messages))
                users[before] = failed.messages[-1]
            messages += (users[before], Message("assistant", answer.content, 0))
        return tuple(messages)

    def with_answer(self, session: int, turn: int, prompt: TokenIds) -> TokenIds | None:
        """The tokens of a prompt and of its answer, but for the last one, which was never computed
        into the cache; None where no later prompt contains it.

        An answer whose tokens the engine did not send is taken to have those of its text: the
        engine may have made others of the same text.
        """
        answer = self._answers.of(session, turn)
        if answer is None:
            return None
        ids = answer.ids
        if ids is None:
            if not isinstance(answer.content[0], str):
                return None  # the next prompt has drawn ids in its place
            ids = self._text_counter().of_text("".join(map(str, answer.content)))
        return np.concatenate([prompt, ids[:-1]])

    def segments(self, tokens: TokenIds) -> list[Segment]:
        """One for each block of the tokens, from the first on."""
        blocks = range(0, len(tokens), self._block_tokens)
        pieces = [tokens[begin : begin + self._block_tokens] for begin in blocks]
        return [Segment(piece.astype(np.int32).tobytes(), len(piece)) for piece in pieces]

    def turns_shared_by_others(self, session: int) -> range:
        """The turns of another client's session whose prompts are known here: not those that
        contain its answers.
        """
        first = self._kind.first_turn(session)
        if SessionOfKind.of(self._kind, session).has_live_answers:
            return range(first, first + 1)
        return range(first, self._kind.turns(session))

    def forget(self, session: int) -> None:
        """Forgets a session that has no more turns."""
        self._users.pop(session, None)


class PictureTokens:
    """How many tokens pictures take. Pictures of one width and height take equally many; of a file
    whose size is not read here, those that are equal.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._shapes: dict[bytes, Hashable] = {}
        self._tokens: dict[Hashable, int] = {}

    def number(self, picture: bytes) -> int:
        """The number of a picture: equal pictures have one, whoever sends them."""
        return self._numbers.setdefault(picture, len(self._numbers))

    def learn(self, prompts: Sequence[CountedPictures]) -> None:
        """Finds out what follows from how many tokens the engine counted in prompts."""
        several: list[Counter[Hashable]] = []
        tokens_of_several: list[int] = []
        for prompt in prompts:
            shapes = Counter(map(self._shape, prompt.pictures))
            if len(shapes) == 1:
                self._learn_alike(*shapes.popitem(), prompt.tokens)
            else:
                several.append(shapes)
                tokens_of_several.append(prompt.tokens)
        self._solve(several, tokens_of_several)

    def _learn_alike(self, shape: Hashable, pictures: int, tokens: int) -> None:
        tokens_of_one, rest = divmod(tokens, pictures)
        if tokens_of_one > 0 and not rest:
            self._tokens.setdefault(shape, tokens_of_one)

    def _solve(self, prompts: Sequence[Counter[Hashable]], tokens: Sequence[int]) -> None:
        """Solves for the shapes that came together with others only, if that is possible."""
        unknown = sorted(
            {shape for shapes in prompts for shape in shapes} - {*self._tokens}, key=str
        )
        if not unknown or len(unknown) > MOST_SHAPES:
            return
        of_unknown = np.array([[shapes[shape] for shape in unknown] for shapes in prompts])
        of_known = [
            sum(self._tokens.get(shape, 0) * pictures for shape, pictures in shapes.items())
            for shapes in prompts
        ]
        rest = np.array(tokens) - np.array(of_known)
        solution, _, rank, _ = np.linalg.lstsq(of_unknown.astype(np.float64), rest, rcond=None)
        rounded = np.rint(solution).astype(np.int64)
        if rank == len(unknown) and (rounded > 0).all():
            self._tokens |= dict(zip(unknown, rounded.tolist(), strict=True))

    def lengths(self, pictures: Sequence[bytes], tokens: int | None) -> list[int]:
        """The tokens of each picture of a prompt. ``tokens``: of all of them, as the engine counts;
        None: unknown. Raises UncountedError.
        """
        shapes = [self._shape(picture) for picture in pictures]
        unknown = [shape for shape in shapes if shape not in self._tokens]
        if unknown and tokens is not None:
            known = sum(self._tokens[shape] for shape in shapes if shape in self._tokens)
            if len({*unknown}) == 1:
                self._learn_alike(unknown[0], len(unknown), tokens - known)
        if not all(shape in self._tokens for shape in shapes):
            raise UncountedError("the engine's counts do not say how many tokens a picture takes")
        return [self._tokens[shape] for shape in shapes]

    def _shape(self, picture: bytes) -> Hashable:
        if picture not in self._shapes:
            self._shapes[picture] = _size_of_png(picture) or picture
        return self._shapes[picture]


def _sends_pictures(kind: WorkloadKind) -> bool:
    if isinstance(kind, MixRequests):
        return any(map(_sends_pictures, kind.kinds.values()))
    if isinstance(kind, DrawnRequests | FileRequests | TraceRequests):
        return kind.has_images
    return False


def _has_unused_tools(prompt: Prompt) -> bool:
    """Whether a prompt defines tools that its answer must not call."""
    return "tools" in prompt.fields and prompt.fields.get("tool_choice") == "none"


def _pictures_of(prompt: Prompt) -> list[bytes]:
    return [picture for message in prompt.messages for picture in message.images]


def _size_of_png(picture: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG in the JSON of a message's part; None: it is another format, or too
    short to be a PNG.
    """
    begin = picture.find(_BASE64) + len(_BASE64)
    head = picture[begin : begin + _PNG_HEAD]
    if b'"' in head:  # the data ends before
        return None
    head = b64decode(head)
    if not head.startswith(_PNG):
        return None
    width, height = struct.unpack(">II", head[16:24])
    return width, height

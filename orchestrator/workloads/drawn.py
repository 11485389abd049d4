"""The kinds of workloads whose messages are drawn at random: single requests and conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.assumptions import IMAGE_TOKENS
from orchestrator.spec.document import wrong
from orchestrator.spec.images import Images
from orchestrator.spec.load import (
    MOST_TOKENS,
    MOST_TURNS,
    MOST_TURNS_OF_ALL,
    TOKENS_PER_WORD,
    Arrivals,
    ContentKind,
    LengthBounds,
    Lengths,
    Level,
    Workload,
)
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.sessions import (
    MOST_POOLED,
    ContentSource,
    Documents,
    LengthPair,
    LengthPairs,
    Pauses,
    Turns,
)
from orchestrator.workloads.corpus import identified, read_text
from orchestrator.workloads.images import DrawnImages
from orchestrator.workloads.kind import (
    PROMPT_STREAM,
    Message,
    Part,
    Prompt,
    Prompter,
    Speaker,
    WorkloadKind,
    stream,
)
from orchestrator.workloads.lengths import SessionLengths, SessionShape
from orchestrator.workloads.random_values import Choices, mean

# Phases have different prefixes, because the warm-up must not fill the cache that is measured.
PREFIX_NUMBER = {"warmup": 0, "measure": 1}
PREFIXES_KEPT = 1024  # in memory; others are drawn again
DOCUMENTS_KEPT = 1024  # likewise
PROMPTS_OF_TEXT = 20  # a text of fewer prompts makes many that are alike

# The random streams below PROMPT_STREAM, by purpose. 2 is that of answers whose ids an engine does
# not send.
_MESSAGE, _PREFIX, _, _CHOICE, _DOCUMENT, _ANSWER = range(6)
_PICTURE = -1  # begins the name of a picture; names of drawn tokens begin with other numbers


def _largest(lengths: Sequence[Lengths]) -> int | None:
    """The largest number that any of these lengths can draw; None: there is no limit."""
    limits = [candidate.bounds.most for candidate in lengths]
    finite = [limit for limit in limits if limit is not None]
    return max(finite) if len(finite) == len(limits) else None


def _least_input(shape: SessionShape, turns: int) -> int:
    """Fewest tokens of all user messages of a session with so many turns."""
    least = min(pair.input.bounds.least for pair in shape.pairs)
    first = least if shape.first_input is None else shape.first_input.bounds.least
    total = first + (turns - 1) * least
    if shape.documents is not None:
        total += turns * shape.documents.count.bounds.least * shape.documents.tokens.bounds.least
    return total


def _most_input(shape: SessionShape, turns: int) -> int | None:
    """Most tokens of all user messages of a session with so many turns; None: no limit."""
    most = _largest([pair.input for pair in shape.pairs])
    first = most if shape.first_input is None else shape.first_input.bounds.most
    if most is None or first is None:
        return None
    total = first + (turns - 1) * most
    if shape.documents is None:
        return total
    most_documents = shape.documents.count.bounds.most
    most_tokens = shape.documents.tokens.bounds.most
    if most_documents is None or most_tokens is None:
        return None
    return total + turns * most_documents * most_tokens


@lru_cache(MOST_TURNS_OF_ALL)
def _sample(shape: SessionShape) -> NDArray[np.uint32]:
    """``SessionLengths.sample``, drawn once for all deployments. Lengths that uint32 cannot hold
    are cut: no limit is as high.
    """
    sample = SessionLengths(shape, seed=0).sample()
    return np.minimum(sample, 2**32 - 1).astype(np.uint32)


class Drawn(Workload):
    """The keys of workloads whose messages are drawn at random. ``lengths`` stands for
    ``input_tokens`` and ``output_tokens``, where these belong together.
    """

    LATER_KEYS = frozenset({"lengths", "popularity", "documents", "content", "images"})

    input_tokens: Lengths | None = Field(
        default=None,
        description="Tokens of a user message: a number, or for example "
        "`{lognormal: {mean: 150, sigma: 0.6}}`. Required unless there are `lengths`.",
    )
    output_tokens: Lengths | None = Field(
        default=None,
        description="Tokens of an answer: a number, or for example "
        "`{uniform: {min: 50, max: 200}}`. Required unless there are `lengths`.",
    )
    lengths: LengthPairs | None = Field(
        default=None,
        description="Instead of `input_tokens` and `output_tokens`: pairs that belong together, "
        "as `[{input: 512, output: 128, weight: 6}]`.",
    )
    shared_prefix_tokens: int = Field(
        default=0,
        ge=0,
        le=MOST_TOKENS,
        description="Tokens that all prompts begin with, in addition to `input_tokens`.",
    )
    shared_prefix_count: int = Field(
        default=1,
        ge=1,
        le=MOST_TOKENS,
        description="How many different prefixes there are; each session draws one.",
    )
    popularity: Popularity | None = Field(
        default=None,
        description="How much more often some prefixes are drawn, for example `{zipf: 1.2}`. By "
        "default all are drawn equally often.",
    )
    documents: Documents | None = Field(
        default=None,
        description="Documents before each user message, out of a pool, in addition to "
        "`input_tokens`.",
    )
    content: ContentSource | None = Field(
        default=None,
        description="What prompts are made of: `words`, which sends text through every API, or "
        "`{text: FILE}` for slices of a file. By default token ids where the API takes them, else "
        "words.",
    )
    images: Images | None = Field(
        default=None,
        examples=[{"sizes": ["1120x700"], "count": 1, "distinct": 64}],
        description="Pictures before the text of each user message (`api: chat`). Default: none. "
        "`input_tokens` is then the length of the text alone.",
    )
    converses: ClassVar[bool] = False  # each request continues the conversation of its session
    image_tokens_fact = IMAGE_TOKENS

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("input_tokens", "output_tokens"):
            if (getattr(self, key) is None) == (self.lengths is None):
                problem = (
                    "is missing" if self.lengths is None else "and 'lengths' exclude each other"
                )
                raise wrong(key, f"{key!r} {problem}")
        if self.images is not None and self.api != "chat":
            text = f"'images' are sent through the API chat, not through {self.api!r}"
            raise wrong("images", text, "set 'api' to chat")
        if self.popularity is None:
            return self
        if self.shared_prefix_tokens == 0 or self.shared_prefix_count == 1:
            text = "'popularity' is that of prefixes, and there are not several"
            raise wrong("popularity", text, "give shared_prefix_tokens and shared_prefix_count")
        if self.shared_prefix_count > MOST_POOLED:
            text = f"popularity needs at most {MOST_POOLED:,} prefixes"
            raise wrong("shared_prefix_count", text)
        return self

    def content_source(self) -> ContentKind:
        is_text = self.content is not None and self.content.text is not None
        return "text" if is_text else "random"

    def sends_text(self, has_tokenizer: bool) -> bool:
        if self.content is None:
            return False
        return self.content.text is None or not has_tokenizer

    @property
    def pairs(self) -> tuple[LengthPair, ...]:
        """The lengths of prompts and answers; more than one pair where they belong together."""
        if self.lengths is not None:
            return self.lengths
        assert self.input_tokens is not None and self.output_tokens is not None  # _consistent
        return (LengthPair(input=self.input_tokens, output=self.output_tokens),)

    def sends_images(self) -> bool:
        return self.images is not None

    def session(self) -> SessionShape:
        """What a session of this kind is drawn from: here a single request."""
        return SessionShape(self.pairs, documents=self.documents)

    def resolved(self, path: Callable[[str], str]) -> Self:
        """Fixes the content of the text file. Raises ProblemsError where it cannot be read, or is
        not the one that was planned.
        """
        if self.content is None or self.content.text is None:
            return self
        return self.model_copy(update={"content": identified(self.content, path)})

    def notes(self, timed: bool = False) -> list[str]:
        """That a text is short beside the prompts that are slices of it."""
        if self.content is None or self.content.text is None:
            return []
        try:
            words = len(read_text(self.content).split())
        except ProblemsError:
            return []  # the file is gone since the plan was made
        weights = sum(pair.weight for pair in self.pairs)
        input_tokens = sum(pair.weight * mean(pair.input) for pair in self.pairs) / weights
        words_of_prompt = input_tokens / TOKENS_PER_WORD
        if words >= PROMPTS_OF_TEXT * words_of_prompt:
            return []
        return [
            f"text of {words:,} words: prompts of about {words_of_prompt:,.0f} words will begin "
            "alike; a longer text has more beginnings"
        ]

    def identity(self) -> dict[str, Any]:
        """Has the digest of the text file's content in place of its path."""
        content = super().identity()
        if self.content is not None and self.content.text is not None:
            digest = self.content.text_digest or identified(self.content, str).text_digest
            content["content"] = {"text": digest}
        return content

    def token_bounds(self) -> LengthBounds:
        """The last turn of a conversation contains all turns before it."""
        shape = self.session()
        least_turns = shape.turns.bounds.least
        least = self.shared_prefix_tokens + _least_input(shape, least_turns)
        least += least_turns * min(pair.output.bounds.least for pair in shape.pairs)
        most_output = _largest([pair.output for pair in shape.pairs])
        most_input = _most_input(shape, self.most_turns())
        if most_input is None or most_output is None or self.sends_images():
            return LengthBounds(least, None)
        most = self.shared_prefix_tokens + most_input + self.most_turns() * most_output
        return LengthBounds(least, most)

    def longer_prompts(self, tokens: int) -> float:
        """The share of prompts longer than ``tokens``: by the bounds of the lengths, else estimated
        from a sample.
        """
        shape = self.session()
        if self.shared_prefix_tokens + _least_input(shape, turns=1) > tokens:
            return 1.0
        longest = self._longest_prompt(shape)
        if longest is not None and longest <= tokens:
            return 0.0
        sample = _sample(shape)
        count = len(sample)
        fitting_tokens = np.uint32(tokens - self.shared_prefix_tokens)
        fitting = np.searchsorted(sample, fitting_tokens, side="right")
        return float(np.clip((count - fitting) / count, 1 / count, 1 - 1 / count))

    def _longest_prompt(self, shape: SessionShape) -> int | None:
        """Tokens of the longest prompt that can be drawn; None: there is no limit."""
        turns = self.most_turns()
        most_input = _most_input(shape, turns)
        if most_input is None:
            return None
        if turns == 1:
            return self.shared_prefix_tokens + most_input
        most_output = _largest([pair.output for pair in shape.pairs])
        if most_output is None:
            return None
        return self.shared_prefix_tokens + most_input + (turns - 1) * most_output

    def requests(self, prompter: Prompter, seed: int) -> DrawnRequests:
        return DrawnRequests(self, prompter, seed)


class RandomWorkload(Drawn):
    """``kind: random``, the default: requests that share nothing but an optional prefix and
    documents.
    """

    kind: Literal["random"] = Field(default="random", description="`random`: independent prompts.")


class ConversationsWorkload(Drawn):
    """``kind: conversations``: ``turns`` requests per session, each ``think_time`` after the answer
    before it.

    ``input_tokens`` is the length of one user message. The prompt of turn t also contains the t
    messages and the engine's own answers before it, as a chat application would send them. A turn
    whose predecessor failed is sent without that answer.

    ``start: anywhere``: the sessions with which a closed loop begins are met in the middle, with
    made messages before, so that the loop is steady from its start.
    """

    LATER_KEYS = Drawn.LATER_KEYS | {"first_input_tokens", "start"}

    kind: Literal["conversations"] = Field(
        description="`conversations`: sessions, where each request repeats the turns before it."
    )
    turns: Turns = Field(
        default=Turns(fixed=1),
        description="Requests of a session: a number, or for example "
        f"`{{uniform: {{min: 2, max: 8}}}}`; at most {MOST_TURNS:,}.",
    )
    think_time: Pauses = Field(
        default=Pauses(fixed=0.0),
        description="The pause between an answer and the next request: a duration, or for example "
        "`{exponential: {mean: 8s}}`.",
    )
    first_input_tokens: Lengths | None = Field(
        default=None,
        description="Tokens of the first user message of a session. By default as `input_tokens`.",
    )
    start: Literal["first_turn", "anywhere"] = Field(
        default="first_turn",
        description="`anywhere`: a closed loop begins as if it had run for long, with each session "
        "at a drawn turn after made-up earlier messages. `first_turn`: all sessions begin at once, "
        "with short prompts.",
    )
    converses = True

    def session(self) -> SessionShape:
        return SessionShape(
            self.pairs, self.turns, self.first_input_tokens, self.think_time, self.documents
        )

    def most_turns(self) -> int:
        return self.turns.most

    def mean_turns(self) -> float:
        return mean(self.turns)


class DrawnRequests(WorkloadKind):
    """A shared prefix of ``shared_prefix_tokens``, then documents, then ``input_tokens`` random
    tokens.
    """

    def __init__(self, workload: Drawn, prompter: Prompter, seed: int, running: int = 0) -> None:
        """``running``: so many sessions have begun before the point.

        ``image_patch`` may be set afterwards: side in pixels of the square of a picture that becomes
        one token. Pictures are then names with so many tokens, instead of files.
        """
        self._workload = workload
        self._given_prompter = prompter
        self._seed = seed
        self.mean_turns = workload.mean_turns()
        self.has_sessions = workload.converses
        self.needs_reply = workload.converses
        self._lengths = SessionLengths(workload.session(), seed, running)
        self._prefix_tokens = workload.shared_prefix_tokens
        self._prefix_count = workload.shared_prefix_count
        self.warmup_differs = self._prefix_tokens > 0 or workload.documents is not None
        self._prefix = lru_cache(PREFIXES_KEPT)(self._draw_prefix)
        self._document = lru_cache(DOCUMENTS_KEPT)(self._draw_document)
        self.image_patch: int | None = None
        self._images: DrawnImages | None = None
        if workload.images is not None:
            self._images = DrawnImages(workload.images, seed)
            self.warmup_differs = True

    def at_level(self, level: Level, arrivals: Arrivals) -> DrawnRequests:
        workload = self._workload
        if not isinstance(workload, ConversationsWorkload) or workload.start != "anywhere":
            return self
        at_level = DrawnRequests(workload, self._given_prompter, self._seed, level.slots)
        at_level.image_patch = self.image_patch
        return at_level

    def prepare(self) -> None:
        _ = self._prompter  # reads and tokenizes the text that prompts are slices of
        if self._images is not None and self.image_patch is None:
            self._images.make()

    @cached_property
    def _prompter(self) -> Prompter:
        """Made with the first prompt: whoever asks for lengths alone needs no text file."""
        content = self._workload.content
        if content is None:
            return self._given_prompter
        if content.text is None:
            return self._given_prompter.words()
        return self._given_prompter.slices(read_text(content))

    @cached_property
    def _prefix_choices(self) -> Choices:
        return Choices(self._prefix_count, self._workload.popularity)

    @property
    def has_images(self) -> bool:
        return self._images is not None

    def _draw_prefix(self, number: int) -> Message:
        return self._message("system", self._prefix_tokens, _PREFIX, number)

    def _draw_document(self, document: int, phase: str) -> Part:
        number = document * len(PREFIX_NUMBER) + PREFIX_NUMBER[phase]
        rng = stream(self._seed, PROMPT_STREAM, _DOCUMENT, number)
        return self._prompter.make(rng, self._lengths.document_tokens(document))

    def _message(self, role: Speaker, tokens: int, *path: int) -> Message:
        """``path``: the path of the random stream that the message is drawn from."""
        rng = stream(self._seed, PROMPT_STREAM, *path)
        return Message(role, (self._prompter.make(rng, tokens),), tokens)

    def turns(self, session: int) -> int:
        return self._lengths.turns(session)

    def first_turn(self, session: int) -> int:
        return self._lengths.first_turn(session)

    def pause_s(self, session: int, turn: int) -> float:
        return self._lengths.pause_s(session, turn)

    def history(self, session: int) -> tuple[Message, ...]:
        messages: list[Message] = []
        for turn in range(self.first_turn(session)):
            tokens = self._lengths.output_tokens(session, turn)
            answer = self._message("assistant", tokens, _ANSWER, session, turn)
            messages += (self._user(session, turn, "measure"), answer)
        return tuple(messages)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        user = self._user(session, turn, phase)
        messages = (*self._shared(session, phase), *earlier, user)
        tokens = sum(message.tokens for message in messages)
        return Prompt(messages, tokens if self._counts_all_tokens else 0)

    @property
    def _counts_all_tokens(self) -> bool:
        """Whether the tokens of prompts are known, those of pictures included."""
        return self._images is None or self.image_patch is not None

    def _user(self, session: int, turn: int, phase: str) -> Message:
        """The user's message of a turn: its pictures, its documents, then its own text."""
        message = self._text_of_user(session, turn, phase)
        if self._images is None:
            return message
        if self.image_patch is None:
            return replace(message, images=self._images.of_message(session, turn, phase))
        pictures = self._images.named(session, turn, phase, self.image_patch)
        names = [np.array([_PICTURE, picture.number, picture.tokens]) for picture in pictures]
        tokens = message.tokens + sum(picture.tokens for picture in pictures)
        return replace(message, content=(*names, *message.content), tokens=tokens)

    def _text_of_user(self, session: int, turn: int, phase: str) -> Message:
        path = (session, turn) if self.has_sessions else (session,)
        tokens = self._lengths.input_tokens(session, turn)
        documents = self._lengths.documents(session, turn)
        if not documents:
            return self._message("user", tokens, _MESSAGE, *path)
        own_tokens = tokens - sum(map(self._lengths.document_tokens, documents))
        own = self._message("user", own_tokens, _MESSAGE, *path)
        parts = [self._document(document, phase) for document in documents]
        return replace(own, content=(*parts, *own.content), tokens=tokens)

    def _shared(self, session: int, phase: str) -> Iterator[Message]:
        """The shared prefix of a session, where prompts have one."""
        if not self._prefix_tokens:
            return
        number = 0
        # drawn at random, because replicas already take sessions in turn
        if self._prefix_count > 1:
            rng = stream(self._seed, PROMPT_STREAM, _CHOICE, session)
            number = self._prefix_choices.one(rng)
        yield self._prefix(number * len(PREFIX_NUMBER) + PREFIX_NUMBER[phase])

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        if not self._counts_all_tokens:
            return 0
        tokens = self._prefix_tokens + self._lengths.conversation_tokens(session, turn)
        if self._images is None or self.image_patch is None:
            return tokens
        for turn_with_pictures in range(turn + 1):
            pictures = self._images.named(session, turn_with_pictures, "measure", self.image_patch)
            tokens += sum(picture.tokens for picture in pictures)
        return tokens

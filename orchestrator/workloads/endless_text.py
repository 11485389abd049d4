"""A text that is repeated without end, and the places where it can be cut without changing its
tokens.

A tokenizer gives a slice the tokens that the text has there only if the slice begins and ends where
tokens begin. Words mostly do, but not all: a comma may share its token with the line break behind
it. So the text is encoded once, and cut at those of its words with which a token begins.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from orchestrator.base.errors import InputError
from orchestrator.workloads.host_arrays import Arrays

PIECE_CHARACTERS = 100_000  # encoded at a time, because an encoding takes a hundred times its text
SECTION_CHARACTERS = 1_000_000  # encoded by one thread: a second of a core
AROUND_CHARACTERS = 5_000  # encoded on both sides of where a section is to begin
MOST_TOKENS_BETWEEN = 8  # two words at the mean; where there are more, texts are cut within words
PLACES_AT_ONCE = 100_000
LEAST_SPACES = 4  # where one word in so many follows a space, slices begin with these alone
_CJK_STOPS = "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
# the white space before a word, and in scripts without white space the beginning of a clause
_WORD_BEGINS = re.compile(rf"(?<!\s)\s+(?=\S)|(?<=[{_CJK_STOPS}])(?=[^\s{_CJK_STOPS}])")

NAMES_OF_ARRAYS = ("places", "tokens_before", "tokens_of_round", "begins")  # of an EndlessText
Places = NDArray[np.int32]  # in characters or tokens of a text, which has less than 2**31
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TextSlice:
    """A slice of a text. ``tokens``: those that the text has there."""

    text: str
    tokens: int


@dataclass(frozen=True)
class EndlessText:
    """A text that begins again after its end.

    ``places``: where it can be cut, in characters; those of one round, which may reach beyond the
    text's end. ``tokens_before``: how many tokens stand before each of these places.
    ``tokens_of_round``: from a place to the same place a round later. ``begins``: the numbers of the
    places where slices begin.
    """

    text: str
    places: Places
    tokens_before: Places
    tokens_of_round: int
    begins: Places

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        text: str,
        piece_characters: int = PIECE_CHARACTERS,
        section_characters: int = SECTION_CHARACTERS,
    ) -> EndlessText:
        """``text``: has one word or more. Raises InputError if the tokenizer has no token for it."""
        round_ = _round_of(text)
        more_characters = min(piece_characters, len(round_))
        encoder = _Encoder(tokenizer, round_, more_characters, piece_characters)
        begins = encoder.section_begins(section_characters)
        beyond = _word_begins(round_[:more_characters]) + np.int32(len(round_))
        words = encoder.cuts(begins, np.concatenate([_word_begins(round_), beyond]))
        endless = cls._of_cuts(round_, words, more_characters)
        if endless is None or endless.tokens_of_round > MOST_TOKENS_BETWEEN * len(endless.places):
            # words are long here, as where lines are data or a script has no white space
            every = encoder.cuts(begins, None)
            endless = cls._of_cuts(round_, every, more_characters) or endless
        if endless is not None:
            return endless
        tokens = len(tokenizer.encode(round_, add_special_tokens=False).ids)
        if not tokens:
            raise InputError("the tokenizer has no token for the text")
        # such a text can only be repeated as a whole
        return cls(round_, _places([0]), _places([0]), tokens, _places([0]))

    @classmethod
    def from_arrays(cls, text: str, arrays: Arrays) -> EndlessText:
        """The same as ``of`` for the same text and the ``arrays`` of its result."""
        (tokens_of_round,) = arrays["tokens_of_round"].tolist()
        return cls(
            _round_of(text),
            arrays["places"],
            arrays["tokens_before"],
            tokens_of_round,
            arrays["begins"],
        )

    @property
    def arrays(self) -> Arrays:
        """Everything but the text."""
        return {
            "places": self.places,
            "tokens_before": self.tokens_before,
            "tokens_of_round": _places([self.tokens_of_round]),
            "begins": self.begins,
        }

    @classmethod
    def _of_cuts(cls, round_: str, cuts: _Cuts, more_characters: int) -> EndlessText | None:
        """The text with those places of a round that are places of the next one, too; None if there
        are none. ``more_characters``: of the next round that are known.
        """
        of_next_round = cuts.places[np.searchsorted(cuts.places, len(round_)) :] - len(round_)
        begin = cuts.places[: np.searchsorted(cuts.places, more_characters, "right")]
        again = np.flatnonzero(np.isin(begin, of_next_round))
        if not again.size:
            return None
        first = int(again[0])
        after_round = int(np.searchsorted(cuts.places, cuts.places[first] + len(round_)))
        places = cuts.places[first:after_round]
        return cls(
            round_,
            places,
            cuts.tokens_before[first:after_round],
            int(cuts.tokens_before[after_round] - cuts.tokens_before[first]),
            _begins_of_slices(round_, places),
        )

    def longest_slice(self, cut: int, most_tokens: int) -> TextSlice:
        """The longest slice with at most so many tokens, empty if there is none. ``cut``: the
        number of the place where it begins.
        """
        begin_tokens = int(self.tokens_before[cut])
        first_tokens = int(self.tokens_before[0])
        wanted = begin_tokens + most_tokens - first_tokens
        rounds, rest = divmod(wanted, self.tokens_of_round)
        end = int(np.searchsorted(self.tokens_before, first_tokens + rest, "right")) - 1
        end_tokens = rounds * self.tokens_of_round + int(self.tokens_before[end])
        end_place = rounds * len(self.text) + int(self.places[end])
        text = self._between(int(self.places[cut]), end_place)
        return TextSlice(text, end_tokens - begin_tokens)

    def _between(self, begin: int, end: int) -> str:
        """What stands between two places; the second may lie some rounds after the first."""
        rounds_before, begin = divmod(begin, len(self.text))
        rounds, rest = divmod(end, len(self.text))
        if rounds == rounds_before:
            return self.text[begin:rest]
        whole_rounds = rounds - rounds_before - 1
        return self.text[begin:] + self.text * whole_rounds + self.text[:rest]


def _round_of(text: str) -> str:
    """A text as it is repeated: its first word may follow the last, so it has a space, too."""
    return f" {text.strip()}"


def _begins_of_slices(round_: str, places: Places) -> Places:
    """The numbers of the places where slices begin: those at a single space, because templates of
    chats cut off a line break before a message or join it with their own, unless these are so few
    that slices would be alike.
    """
    length = np.int32(len(round_))
    is_space = _are_spaces(round_, places % length)
    is_single = ~_are_white(round_, (places + np.int32(1)) % length)
    spaces = np.flatnonzero(is_space & is_single).astype(np.int32)
    if len(spaces) * LEAST_SPACES >= len(places):
        return spaces
    return np.arange(len(places), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Where a text can be cut, in characters, and how many tokens stand before each place."""

    places: Places
    tokens_before: Places

    def moved(self, characters: int, tokens: int) -> _Cuts:
        """The same in a longer text, with so much before it."""
        return _Cuts(self.places + np.int32(characters), self.tokens_before + np.int32(tokens))

    def before(self, end: int) -> _Cuts:
        """Those that lie before a place."""
        is_before = self.places < end
        return _Cuts(self.places[is_before], self.tokens_before[is_before])

    def to_a_space(self, text: str) -> _Cuts:
        """Those up to the last one at a space, where the next piece of a text is to begin: some
        tokenizers put a token before a text that begins with anything else. All of them where none
        is at a space.
        """
        spaces = np.flatnonzero(_are_spaces(text, self.places))
        if not spaces.size:
            return self
        end = int(spaces[-1]) + 1
        return _Cuts(self.places[:end], self.tokens_before[:end])


def token_ids(
    tokenizer: Any,
    text: str,
    piece_characters: int = PIECE_CHARACTERS,
    section_characters: int = SECTION_CHARACTERS,
) -> NDArray[np.int32]:
    """The tokens of a text, as if all of it was encoded at once."""
    encoder = _Encoder(tokenizer, text, 0, piece_characters)
    return encoder.ids(encoder.section_begins(section_characters))


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Encodes a text, and the first ``more_characters`` of it once more behind its end. Sections are
    encoded by several cores at once, each piece by piece.
    """

    tokenizer: Any
    text: str
    more_characters: int
    piece_characters: int

    def section_begins(self, section_characters: int) -> list[int]:
        """0, and places some ``section_characters`` apart at which a word and a token begin. They
        depend on the text alone, so that all machines have the same tokens.
        """
        around = min(AROUND_CHARACTERS, section_characters // 2)
        begins = [0]
        for middle in range(section_characters, len(self.text) - around, section_characters):
            window = self.text[middle - around : middle + around]
            words = _word_begins(window, around // 2, around + around // 2)
            cuts = _cuts_at(self._encoded(window).offsets, words)
            if cuts.places.size:
                spaces = cuts.places[_are_spaces(window, cuts.places)]
                first = spaces[0] if spaces.size else cuts.places[0]
                begins.append(middle - around + int(first))
        return begins

    def ids(self, begins: Sequence[int]) -> NDArray[np.int32]:
        """All tokens. ``begins``: of the sections."""
        return np.concatenate(_in_threads(self._ids_of_section, self._sections(begins)))

    def cuts(self, begins: Sequence[int], wanted: Places | None) -> _Cuts:
        """The wanted places at which a token begins, without the beginning of the text; None: all at
        which one does. ``begins``: of the sections.
        """

        def cuts_of(section: _Section) -> _CutsOfSection:
            return self._cuts_of_section(section, wanted)

        cuts: list[_Cuts] = []
        tokens_before = 0
        for begin, found in zip(begins, _in_threads(cuts_of, self._sections(begins)), strict=True):
            if begin:
                cuts.append(_Cuts(_places([begin]), _places([tokens_before])))
            cuts.append(found.cuts.moved(begin, tokens_before))
            tokens_before += found.tokens
        return _joined(cuts)

    def _sections(self, begins: Sequence[int]) -> list[_Section]:
        end_of_all = len(self.text) + self.more_characters
        return [_Section(begin, end) for begin, end in pairwise([*begins, end_of_all])]

    def _encoded(self, text: str) -> Any:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _text_of(self, section: _Section) -> str:
        beyond = max(section.end - len(self.text), 0)
        return self.text[section.begin : section.end] + self.text[:beyond]

    def _ids_of_section(self, section: _Section) -> NDArray[np.int32]:
        """Each piece is from a word on with which a token begins; where words are longer than a
        piece, from any token on.
        """
        text = self._text_of(section)
        pieces: list[NDArray[np.int32]] = []
        begin = 0
        size = self.piece_characters
        while True:
            piece = text[begin : begin + size]
            encoding = self._encoded(piece)
            if begin + size >= len(text):
                pieces.append(np.array(encoding.ids, np.int32))
                return np.concatenate(pieces)
            certain = len(piece) - size // 8  # the last tokens may be others than the text's
            cuts = _cuts_at(encoding.offsets, _word_begins(piece, 1, certain))
            if not cuts.places.size:
                cuts = _cuts_at(encoding.offsets, None).before(certain)
            if not cuts.places.size:
                size *= 2
                continue
            cuts = cuts.to_a_space(piece)
            pieces.append(np.array(encoding.ids[: cuts.tokens_before[-1]], np.int32))
            begin += int(cuts.places[-1])
            size = self.piece_characters

    def _cuts_of_section(self, section: _Section, wanted: Places | None) -> _CutsOfSection:
        """Each piece is from such a place on."""
        text = self._text_of(section)
        cuts: list[_Cuts] = []
        begin = 0
        tokens_before = 0
        size = self.piece_characters
        while True:
            end = min(begin + size, len(text))
            # the last tokens of a piece may be others than the text's
            margin = 0 if end == len(text) else size // 8
            candidates: Places | None = None
            if wanted is not None:
                of_piece = section.begin + begin
                first, last = np.searchsorted(wanted, (of_piece + 1, section.begin + end - margin))
                candidates = wanted[first:last] - np.int32(of_piece)
            offsets = self._encoded(text[begin:end]).offsets
            found = _cuts_at(offsets, candidates).before(end - begin - margin)
            if end < len(text):
                found = found.to_a_space(text[begin:end])
            if found.places.size:
                cuts.append(found.moved(begin, tokens_before))
            if end == len(text):
                return _CutsOfSection(_joined(cuts), tokens_before + len(offsets))
            size = 2 * size
            if found.places.size:
                begin += int(found.places[-1])
                tokens_before += int(found.tokens_before[-1])
                size = self.piece_characters


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a text, in characters."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _CutsOfSection:
    """Where a section can be cut, without its beginning, and how many tokens it has."""

    cuts: _Cuts
    tokens: int


def _in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of a function for each item. Tokenizers leave the interpreter to other threads
    while they encode.
    """
    if len(items) == 1:
        return [function(items[0])]
    # macOS has no affinity of processes to cores
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as threads:
        return list(threads.map(function, items))


def _word_begins(text: str, begin: int = 0, end: int = sys.maxsize) -> Places:
    matches = _WORD_BEGINS.finditer(text, begin, end)
    return np.fromiter((match.start() for match in matches), np.int32)


def _are_spaces(text: str, places: Places) -> NDArray[np.bool_]:
    """Whether there is a space at each place, and no line break."""
    return _are(text, places, lambda character: character == " ")


def _are_white(text: str, places: Places) -> NDArray[np.bool_]:
    """Whether there is white space of any kind at each place."""
    return _are(text, places, str.isspace)


def _are(text: str, places: Places, test: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Whether the character at each place passes a test."""
    # a list of all places would take several times the memory of the text
    parts = np.array_split(places, len(places) // PLACES_AT_ONCE + 1)
    passes = (test(text[place]) for part in parts for place in part.tolist())
    return np.fromiter(passes, np.bool_, len(places))


def _cuts_at(offsets: Sequence[tuple[int, int]], wanted: Places | None) -> _Cuts:
    """The wanted places at which a token begins; None: all at which one does. ``offsets``: where
    each token of a text begins and ends. Some tokenizers count the white space before a word as part
    of no token.
    """
    begins = _places([begin for begin, _ in offsets])
    ends = _places([end for _, end in offsets])
    places = np.unique(begins[begins > 0]) if wanted is None else wanted
    tokens = np.searchsorted(begins, places, "left").astype(np.int32)
    ends_before = np.concatenate([_places([0]), ends])[tokens]  # of the token before each place
    is_cut = (ends_before <= places) & (tokens < len(begins))
    return _Cuts(places[is_cut], tokens[is_cut])


def _joined(cuts: Sequence[_Cuts]) -> _Cuts:
    none = _places([])
    return _Cuts(
        np.concatenate([none, *(of_piece.places for of_piece in cuts)]),
        np.concatenate([none, *(of_piece.tokens_before for of_piece in cuts)]),
    )


def _places(places: Sequence[int]) -> Places:
    return np.array(places, np.int32)

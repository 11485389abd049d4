"""A text that is repeated without end, and the places where it can be cut without changing its
tokens.

A tokenizer gives a slice the tokens that the text has there only if the slice begins and ends where
tokens begin. Words mostly do, but not all: a comma may share its token with the line break behind
it. So the text is encoded once, and cut at those of its words with which a token begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.arrays import Ints

PIECE_CHARACTERS = 100_000  # encoded at a time, because an encoding takes a hundred times its text
_CJK_STOPS = "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
# the white space before a word, and in scripts without white space the beginning of a clause
_WORD_BEGINS = re.compile(rf"\s+(?=\S)|(?<=[{_CJK_STOPS}])(?=[^\s{_CJK_STOPS}])")


@dataclass(frozen=True, slots=True)
class TextSlice:
    """A slice of a text. ``tokens``: those that the text has there."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class EndlessText:
    """A text that begins again after its end.

    ``places``: where it can be cut, in characters; those of one round, which may reach beyond the
    text's end. ``tokens_before``: how many tokens stand before each of these places.
    ``tokens_of_round``: from a place to the same place a round later.
    """

    text: str
    places: Ints
    tokens_before: Ints
    tokens_of_round: int

    @classmethod
    def of(cls, tokenizer: Any, text: str, piece_characters: int = PIECE_CHARACTERS) -> EndlessText:
        """``text``: has one word or more."""
        round_ = f" {text.strip()}"  # its first word may follow the last, so it has a space, too
        beyond = round_[:piece_characters]
        cuts = list(_cuts(tokenizer, round_ + beyond, piece_characters))
        places = np.array([cut.place for cut in cuts], np.int64)
        tokens_before = np.array([cut.tokens_before for cut in cuts], np.int64)
        length = len(round_)
        # that can be cut in the next round, too
        again = np.flatnonzero(np.isin(places + length, places))
        if not again.size:  # such a text can only be repeated as a whole
            tokens = len(tokenizer.encode(round_, add_special_tokens=False).ids)
            return cls(round_, np.zeros(1, np.int64), np.zeros(1, np.int64), tokens)
        first = int(again[0])
        after_round = int(np.searchsorted(places, places[first] + length))
        return cls(
            round_,
            places[first:after_round],
            tokens_before[first:after_round],
            int(tokens_before[after_round] - tokens_before[first]),
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


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a text can be cut, in characters, and how many tokens stand before."""

    place: int
    tokens_before: int


def _cuts(tokenizer: Any, text: str, piece_characters: int) -> Iterator[_Cut]:
    """The beginnings of words with which a token begins, without that of the text. The text is
    encoded piece by piece, each from such a place on.
    """
    starts = np.array([match.start() for match in _WORD_BEGINS.finditer(text)], np.int64)
    begin = 0
    tokens_before = 0
    size = piece_characters
    while begin < len(text):
        end = begin + size
        offsets = tokenizer.encode(text[begin:end], add_special_tokens=False).offsets
        is_inside = (starts > begin) & (starts < min(end, len(text)))
        places = starts[is_inside]
        first_tokens = _tokens_that_begin_at(places - begin, offsets)
        cuts = [
            _Cut(place, tokens_before + token)
            for place, token in zip(places.tolist(), first_tokens, strict=True)
            if token is not None
        ]
        if end >= len(text):
            yield from cuts
            return
        if not cuts:
            size *= 2
            continue
        yield from cuts
        begin = cuts[-1].place
        tokens_before = cuts[-1].tokens_before
        size = piece_characters


def _tokens_that_begin_at(places: Ints, offsets: list[tuple[int, int]]) -> list[int | None]:
    """For each place the number of the token that begins there; None where none does. Some
    tokenizers count the white space before a word as part of no token. ``offsets``: first character
    of each token, and the one after its last.
    """
    begins = np.array([begin for begin, _ in offsets], np.int64)
    ends = np.array([end for _, end in offsets], np.int64)
    tokens = np.searchsorted(begins, places, "left")
    found: list[int | None] = []
    for place, token in zip(places.tolist(), tokens.tolist(), strict=True):
        is_within_token = token > 0 and ends[token - 1] > place
        found.append(None if is_within_token or token == len(begins) else token)
    return found

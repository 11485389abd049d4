"""A text that is repeated without end, and the places where it can be cut without changing its
tokens.

A tokenizer gives a slice the tokens that the text has there only if the slice begins and ends where
tokens begin. Words mostly do, but not all: a comma may share its token with the line break behind
it. So the text is encoded once, and cut at those of its words with which a token begins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.base.arrays import Ints
from orchestrator.base.errors import InputError

PIECE_CHARACTERS = 100_000  # encoded at a time, because an encoding takes a hundred times its text
MOST_TOKENS_BETWEEN = 8  # two words at the mean; where there are more, texts are cut within words
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
        """``text``: has one word or more. Raises InputError if the tokenizer has no token for it."""
        round_ = f" {text.strip()}"  # its first word may follow the last, so it has a space, too
        text_and_more = round_ + round_[:piece_characters]
        word_begins = [match.start() for match in _WORD_BEGINS.finditer(text_and_more)]
        words = _cuts(tokenizer, text_and_more, piece_characters, np.array(word_begins, np.int64))
        endless = cls._of_cuts(round_, words)
        if endless is None or endless.tokens_of_round > MOST_TOKENS_BETWEEN * len(endless.places):
            # words are long here, as where lines are data or a script has no white space
            every = _cuts(tokenizer, text_and_more, piece_characters, None)
            endless = cls._of_cuts(round_, every) or endless
        if endless is not None:
            return endless
        tokens = len(tokenizer.encode(round_, add_special_tokens=False).ids)
        if not tokens:
            raise InputError("the tokenizer has no token for the text")
        # such a text can only be repeated as a whole
        return cls(round_, np.zeros(1, np.int64), np.zeros(1, np.int64), tokens)

    @classmethod
    def _of_cuts(cls, round_: str, cuts: _Cuts) -> EndlessText | None:
        """The text with those places of a round that are places of the next one, too; None if there
        are none.
        """
        again = np.flatnonzero(np.isin(cuts.places + len(round_), cuts.places))
        if not again.size:
            return None
        first = int(again[0])
        after_round = int(np.searchsorted(cuts.places, cuts.places[first] + len(round_)))
        return cls(
            round_,
            cuts.places[first:after_round],
            cuts.tokens_before[first:after_round],
            int(cuts.tokens_before[after_round] - cuts.tokens_before[first]),
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
class _Cuts:
    """Where a text can be cut, in characters, and how many tokens stand before each place."""

    places: Ints
    tokens_before: Ints

    def before(self, end: int) -> _Cuts:
        """Those that lie before a place."""
        is_before = self.places < end
        return _Cuts(self.places[is_before], self.tokens_before[is_before])


def _cuts(tokenizer: Any, text: str, piece_characters: int, wanted: Ints | None) -> _Cuts:
    """The wanted places at which a token begins, without the beginning of the text; None: all at
    which one does. The text is encoded piece by piece, each from such a place on.
    """
    cuts: list[_Cuts] = []
    begin = 0
    tokens_before = 0
    size = piece_characters
    while True:
        end = min(begin + size, len(text))
        # the last tokens of a piece may be others than those of the text
        margin = 0 if end == len(text) else size // 8
        candidates: Ints | None = None
        if wanted is not None:
            first, last = np.searchsorted(wanted, (begin + 1, end - margin))
            candidates = wanted[first:last] - begin
        found = _cuts_of_piece(tokenizer, text[begin:end], candidates)
        found = found.before(end - begin - margin)
        if found.places.size:
            found = _Cuts(found.places + begin, found.tokens_before + tokens_before)
            cuts.append(found)
            begin = int(found.places[-1])
            tokens_before = int(found.tokens_before[-1])
        if end == len(text):
            return _joined(cuts)
        size = piece_characters if found.places.size else 2 * size


def _cuts_of_piece(tokenizer: Any, piece: str, wanted: Ints | None) -> _Cuts:
    """As ``_cuts``, of a piece of a text. Some tokenizers count the white space before a word as part
    of no token.
    """
    offsets = tokenizer.encode(piece, add_special_tokens=False).offsets
    begins = np.array([begin for begin, _ in offsets], np.int64)
    ends = np.array([end for _, end in offsets], np.int64)
    places = np.unique(begins[begins > 0]) if wanted is None else wanted
    tokens = np.searchsorted(begins, places, "left")
    ends_before = np.concatenate([[0], ends])[tokens]  # of the token before each place
    is_cut = (ends_before <= places) & (tokens < len(begins))
    return _Cuts(places[is_cut], tokens[is_cut])


def _joined(cuts: Sequence[_Cuts]) -> _Cuts:
    none = np.zeros(0, np.int64)
    return _Cuts(
        np.concatenate([none, *(of_piece.places for of_piece in cuts)]),
        np.concatenate([none, *(of_piece.tokens_before for of_piece in cuts)]),
    )

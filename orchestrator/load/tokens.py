"""Prompt content of a wanted length: token ids where the API takes them, else text.

Text needs the model's tokenizer to be of an exact length. Without one it is made of short common English words, which
nearly every vocabulary holds as one token each; what the engine counted is in the rows either way, and a point whose
input is off by more than 1 % says so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import InputError
from orchestrator.load.point import LoadPoint

Content = str | NDArray[np.int32]

# Token ids for a model we know nothing of. Control tokens sit below 1,000 (Mistral's tekken reserves exactly the first
# 1,000, Gemma's unused and Llama 2's byte tokens end below 300) or at the end of the vocabulary (Llama 3 from 128,000,
# Qwen from 151,643), and 31,000 is below the smallest usual vocabulary of 32,000.
SAFE_IDS = (1_000, 31_000)

MAX_WORDS = 4_096  # of a tokenizer's vocabulary; more would only make the start slower

WORDS = (
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with", "his",
    "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all",
    "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how", "their",
    "if", "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some", "her", "would",
    "make", "like", "him", "into", "time", "has", "look", "two", "more", "write", "go", "see", "number", "no",
    "way", "could", "people", "my", "than", "first", "water", "been", "call", "who", "oil", "its", "now", "find",
    "long", "down", "day", "did", "get", "come", "made", "may", "part",
)  # fmt: skip


class Prompter(Protocol):
    """Makes content of ``tokens`` tokens from a random stream."""

    exact: bool  # the engine will count what we counted

    def make(self, rng: np.random.Generator, tokens: int) -> Content: ...


class TokenIds:
    """Uniform ids of a set that holds no control tokens."""

    exact = True

    def __init__(self, ids: NDArray[np.int32] | tuple[int, int]) -> None:
        self._ids = ids

    def make(self, rng: np.random.Generator, tokens: int) -> Content:
        if isinstance(self._ids, tuple):
            return rng.integers(*self._ids, tokens, dtype=np.int32)
        return self._ids[rng.integers(0, len(self._ids), tokens)]


class Words:
    """Common words: about one token each."""

    exact = False

    def make(self, rng: np.random.Generator, tokens: int) -> Content:
        return "".join(" " + WORDS[choice] for choice in rng.integers(0, len(WORDS), tokens))


class TokenizedText:
    """Text that the given tokenizer splits into exactly the wanted number of tokens."""

    exact = True

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids = _word_ids(tokenizer)

    def make(self, rng: np.random.Generator, tokens: int) -> Content:
        """Draws whole words, then adds or drops some until the count is right (merges across words are rare)."""
        words = [self._word(rng) for _ in range(tokens)]
        for _ in range(64):
            off = len(self._tokenizer.encode("".join(words), add_special_tokens=False).ids) - tokens
            if off == 0:
                break
            words = words[:-off] if off > 0 else words + [self._word(rng) for _ in range(-off)]
        return "".join(words)

    def _word(self, rng: np.random.Generator) -> str:
        return str(self._ids[int(rng.integers(0, len(self._ids)))])


def load_tokenizer(path: str) -> Any:
    """A ``tokenizers.Tokenizer`` from a folder or a tokenizer.json. Raises InputError when there is none."""
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"no tokenizer at {path!r}: give a folder with tokenizer.json, or that file")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise InputError(f"{str(file)!r} is not a tokenizer: {error}") from None
    tokenizer.no_truncation()  # a file may carry both from training, and every count would be theirs
    tokenizer.no_padding()
    return tokenizer


def prompter(point: LoadPoint) -> Prompter:
    """Token ids where the dialect takes them, else text, exact when there is a tokenizer."""
    if point.dialect.prompt_token_ids:
        if point.vocabulary is not None:
            return TokenIds(point.vocabulary)
        return TokenIds(_plain_ids(load_tokenizer(point.tokenizer)) if point.tokenizer else SAFE_IDS)
    return TokenizedText(load_tokenizer(point.tokenizer)) if point.tokenizer else Words()


def _plain_ids(tokenizer: Any) -> NDArray[np.int32]:
    """Every id that stands for text: neither control nor added tokens."""
    added = set(tokenizer.get_added_tokens_decoder())
    return np.array([i for i in range(tokenizer.get_vocab_size()) if i not in added], dtype=np.int32)


def _word_ids(tokenizer: Any) -> list[str]:
    """Texts of single tokens that are a whole word with its space: they stay one token wherever they stand."""
    word = re.compile(r" [a-z]{2,}")
    texts = set(tokenizer.decode_batch([[i] for i in _plain_ids(tokenizer).tolist()]))
    texts |= {" " + text.lstrip() for text in texts}  # SentencePiece drops a leading space when it decodes
    found = [text for text in sorted(texts) if word.fullmatch(text)]
    found = found[:: max(1, len(found) // MAX_WORDS)]
    alone = len(tokenizer.encode(" a", add_special_tokens=False).ids)
    encoded = tokenizer.encode_batch([" a" + text for text in found], add_special_tokens=False)
    kept = [text for text, code in zip(found, encoded, strict=True) if len(code.ids) == alone + 1]
    if not kept:
        raise InputError("the tokenizer holds no token that is a lower-case word with its space; use --api completions")
    return kept

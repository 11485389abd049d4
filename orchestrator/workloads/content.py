"""Makes parts of prompts of a wanted length: token ids where the API takes them, else text.

Text has an exact length only with the model's tokenizer. Without one it is made of short common
English words, which nearly every vocabulary holds as one token each. In both cases the rows hold
what the engine counted, and a point whose input is off by more than 1 % says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator import __version__
from orchestrator.base.errors import InputError
from orchestrator.results.ids import content_digest
from orchestrator.spec.load import TOKENS_PER_WORD
from orchestrator.workloads.endless_text import NAMES_OF_ARRAYS, EndlessText, token_ids
from orchestrator.workloads.host_arrays import Arrays, host_arrays
from orchestrator.workloads.kind import IdRange, Part, Prompter, TokenIds

# Token ids for an unknown model. Control tokens sit below 1,000 (Mistral's tekken reserves exactly
# the first 1,000, Gemma's unused and Llama 2's byte tokens end below 300) or at the end of the
# vocabulary (Llama 3 from 128,000, Qwen from 151,643), and 31,000 is below the smallest usual
# vocabulary of 32,000.
SAFE_IDS = IdRange(1_000, 31_000)
# For vocabularies smaller than any usual one (test models): the first range that fits.
SMALLER_IDS = (SAFE_IDS, IdRange(1_000, 8_000), IdRange(300, 1_500), IdRange(100, 250))

MOST_CORRECTIONS = 64  # tries to give one text the wanted length
CHECKED = 64  # prompts of words for each that is counted, where a trial found that words add up
TRIAL_TEXTS, TRIAL_WORDS = 256, 64  # of that trial
MOST_FILLED = 8  # tokens of a slice that may be added to it as common words
# characters of a text that all clients of a host encode together; it takes one a second or two
LEAST_SHARED = 2_000_000
ENCODED_AS = 1  # raise it where texts are encoded or cut otherwise within one release
MAX_WORDS = 4_096  # taken from a tokenizer's vocabulary; more would only slow down the start

WORDS = (
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with", "his",
    "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all",
    "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how", "their",
    "if", "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some", "her", "would",
    "make", "like", "him", "into", "time", "has", "look", "two", "more", "write", "go", "see", "number", "no",
    "way", "could", "people", "my", "than", "first", "water", "been", "call", "who", "oil", "its", "now", "find",
    "long", "down", "day", "did", "get", "come", "made", "may", "part",
)  # fmt: skip


class RandomIds:
    """Token ids drawn uniformly from a set without control tokens, or from a range."""

    def __init__(self, ids: TokenIds | IdRange, tokenizer: Any = None) -> None:
        self._ids = ids
        self._tokenizer = tokenizer

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        if isinstance(self._ids, IdRange):
            return rng.integers(self._ids.first, self._ids.end, tokens, dtype=np.int32)
        return self._ids[rng.integers(0, len(self._ids), tokens)]

    def count(self, text: str) -> int | None:
        return None if self._tokenizer is None else _tokens_of(self._tokenizer, text)

    def words(self) -> Prompter:
        return Words() if self._tokenizer is None else TokenizedText(self._tokenizer)

    def slices(self, text: str) -> Prompter:
        if self._tokenizer is None:
            return WordSlices(text)
        return IdSlices(self._tokenizer, text)


class Words:
    """Common words: about one token each."""

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        choices = rng.integers(0, len(WORDS), tokens)
        return "".join(" " + WORDS[choice] for choice in choices)

    def count(self, text: str) -> int | None:
        return None

    def words(self) -> Prompter:
        return self

    def slices(self, text: str) -> Prompter:
        return WordSlices(text)


class TokenizedText:
    """Text that the given tokenizer splits into exactly the wanted number of tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._words = _whole_words(tokenizer)
        self._adds_up = self._trial_adds_up()

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        """Draws whole words, then adds or drops some until the count is right (tokens rarely merge
        across words). Where they never did in a trial, one prompt in CHECKED is counted.
        """
        words = self._draw(rng, tokens)
        if self._adds_up and rng.integers(CHECKED):
            return "".join(words)
        for _ in range(MOST_CORRECTIONS):
            surplus = _tokens_of(self._tokenizer, "".join(words)) - tokens
            if surplus == 0:
                break
            if surplus > 0:
                words = words[:-surplus]
            else:
                words += self._draw(rng, -surplus)
        return "".join(words)

    def count(self, text: str) -> int | None:
        return _tokens_of(self._tokenizer, text)

    def words(self) -> Prompter:
        return self

    def slices(self, text: str) -> Prompter:
        return TextSlices(self._tokenizer, text, self._words)

    def _trial_adds_up(self) -> bool:
        """Whether words in any order have as many tokens together as alone, in a trial of
        TRIAL_TEXTS texts that has every word once or more.
        """
        rng = np.random.default_rng(0)
        order = rng.permutation(max(len(self._words), TRIAL_TEXTS * TRIAL_WORDS)) % len(self._words)
        rows = np.array_split(order, TRIAL_TEXTS)
        texts = ["".join(self._words[word] for word in row.tolist()) for row in rows]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        counts = [len(encoding.ids) for encoding in encodings]
        return counts == [len(row) for row in rows]

    def _draw(self, rng: np.random.Generator, count: int) -> list[str]:
        choices = rng.integers(0, len(self._words), count).tolist()
        return [self._words[choice] for choice in choices]


def _words_of(text: str) -> list[str]:
    """The words of a text, each with the white space before it. The first gets some, too, because
    it may follow the last.
    """
    words = re.findall(r"\s*\S+", text)
    if not words[0][0].isspace():
        words[0] = f" {words[0]}"
    return words


class IdSlices:
    """Slices of a text as token ids. After its end the text begins again."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer = tokenizer
        self._ids = _ids_of(_TokenizedText.by(tokenizer, text))

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        start = int(rng.integers(len(self._ids)))
        return self._ids[np.arange(start, start + tokens) % len(self._ids)]

    def count(self, text: str) -> int | None:
        return _tokens_of(self._tokenizer, text)

    def words(self) -> Prompter:
        return TokenizedText(self._tokenizer)

    def slices(self, text: str) -> Prompter:
        return IdSlices(self._tokenizer, text)


class TextSlices:
    """Slices of a text that begin and end with its words and have the wanted number of tokens; where
    its words do not come out even, a few common words are added. After its end the text begins
    again.
    """

    def __init__(self, tokenizer: Any, text: str, words: Sequence[str]) -> None:
        """``words``: of one token each, whatever stands before them."""
        self._tokenizer = tokenizer
        self._words = words
        self._text = _endless(_TokenizedText.by(tokenizer, text))
        # Tokens of a slice beside those that the text has there: some tokenizers put one before every
        # text. None: they differ from slice to slice, so each has to be counted.
        self._added: int | None = 0
        self._added = self._trial_of_added()

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        """Where slices had as many tokens as the text has there in a trial, one in CHECKED is
        counted.
        """
        wanted = max(tokens - (self._added or 0), 0)
        text = ""
        for _ in range(MOST_CORRECTIONS):
            cut = self._cut(rng, wanted)
            text = self._made(rng, cut, wanted)
            if self._added is not None and rng.integers(CHECKED):
                break
            surplus = _tokens_of(self._tokenizer, text) - tokens
            if surplus == 0:
                break
            text = self._made(rng, cut, max(wanted - surplus, 0))
            if _tokens_of(self._tokenizer, text) == tokens:
                break
        return text

    def _cut(self, rng: np.random.Generator, tokens: int) -> int:
        """Where to begin, so that no more than MOST_FILLED tokens are missing, if that can be; else
        where the fewest are.
        """
        best_cut = int(self._text.begins[0])
        fewest_missing = tokens + 1
        for _ in range(MOST_CORRECTIONS):
            cut = int(self._text.begins[rng.integers(len(self._text.begins))])
            missing = tokens - self._text.longest_slice(cut, tokens).tokens
            if missing < fewest_missing:
                best_cut = cut
                fewest_missing = missing
            if missing <= MOST_FILLED:
                break
        return best_cut

    def _made(self, rng: np.random.Generator, cut: int, tokens: int) -> str:
        """A slice, and common words in place of the tokens that are missing."""
        piece = self._text.longest_slice(cut, tokens)
        choices = rng.integers(0, len(self._words), tokens - piece.tokens).tolist()
        return piece.text + "".join(self._words[choice] for choice in choices)

    def _trial_of_added(self) -> int | None:
        """How many tokens more than the text has there slices have, if it is the same for all
        TRIAL_TEXTS of a trial.
        """
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, 4 * TRIAL_WORDS, TRIAL_TEXTS).tolist()
        texts = [self._made(rng, self._cut(rng, length), length) for length in lengths]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        added = {
            len(encoding.ids) - length for encoding, length in zip(encodings, lengths, strict=True)
        }
        return added.pop() if len(added) == 1 else None

    def count(self, text: str) -> int | None:
        return _tokens_of(self._tokenizer, text)

    def words(self) -> Prompter:
        return TokenizedText(self._tokenizer)

    def slices(self, text: str) -> Prompter:
        return TextSlices(self._tokenizer, text, self._words)


class WordSlices:
    """Slices of a text without a tokenizer: TOKENS_PER_WORD tokens are taken for a word."""

    def __init__(self, text: str) -> None:
        self._words = _words_of(text)

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        start = int(rng.integers(len(self._words)))
        count = max(1, round(tokens / TOKENS_PER_WORD))
        places = range(start, start + count)
        return "".join(self._words[place % len(self._words)] for place in places)

    def count(self, text: str) -> int | None:
        return None

    def words(self) -> Prompter:
        return Words()

    def slices(self, text: str) -> Prompter:
        return WordSlices(text)


@dataclass(frozen=True, slots=True)
class _TokenizedText:
    """A text and what splits it into tokens. Equal ones have equal tokens."""

    text: str
    tokenizer_digest: str
    tokenizer: Any = field(compare=False)

    @classmethod
    def by(cls, tokenizer: Any, text: str) -> _TokenizedText:
        return cls(text, content_digest(tokenizer.to_str().encode()), tokenizer)

    def name_of(self, what: str) -> str:
        """A name that no other text and tokenizer have. Another version of this program or of the
        tokenizers may encode otherwise.
        """
        text_digest = content_digest(self.text.encode())
        versions = [__version__, str(ENCODED_AS), version("tokenizers")]
        parts = [text_digest, self.tokenizer_digest, *versions]
        return f"{what}-{content_digest(' '.join(parts).encode())}"


# Encoding a text of 64 MiB takes a minute of a core, so it is done once on a host, not for every
# client and point.
@lru_cache(maxsize=2)
def _ids_of(content: _TokenizedText) -> TokenIds:
    def made() -> Arrays:
        return {"ids": token_ids(content.tokenizer, content.text)}

    if len(content.text) < LEAST_SHARED:
        return made()["ids"]
    return host_arrays(content.name_of("ids"), ["ids"], made)["ids"]


@lru_cache(maxsize=2)
def _endless(content: _TokenizedText) -> EndlessText:
    def made() -> Arrays:
        return EndlessText.of(content.tokenizer, content.text).arrays

    if len(content.text) < LEAST_SHARED:
        return EndlessText.of(content.tokenizer, content.text)
    arrays = host_arrays(content.name_of("places"), NAMES_OF_ARRAYS, made)
    return EndlessText.from_arrays(content.text, arrays)


def _tokens_of(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def load_tokenizer(path: str) -> Any:
    """A ``tokenizers.Tokenizer`` from a folder or a tokenizer.json. Raises InputError where none
    can be read.
    """
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(
            f"no tokenizer at {path!r}: give a folder with tokenizer.json, or that file"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise InputError(f"{str(file)!r} is not a tokenizer: {error}") from None
    # a file may have both switched on from training: every count would be wrong
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # not `repository:quantization`


def local_tokenizer(name: str | None) -> str | None:
    """Path of a tokenizer on this node: the folder or file of this name, or the hub cache's file
    for a model of this name.

    None if the node has none (a GGUF file does not count): prompts are then token ids that every
    vocabulary has, or words.
    """
    if name is None:
        return None
    path = Path(name)
    if path.is_file():
        return None if path.suffix == ".gguf" else name
    if path.is_dir():
        return name
    if not _HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "tokenizer.json")
    return cached if isinstance(cached, str) else None


ENGLISH = (  # the beginning of the Gettysburg Address (1863), as an example of plain English
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, "
    "conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we "
    "are engaged in a great civil war, testing whether that nation, or any nation so conceived and "
    "so dedicated, can long endure. We are met on a great battle-field of that war."
)


def tokens_per_word(tokenizer: str) -> float | None:
    """Tokens per English word, with its share of spaces and punctuation; None if this node has no
    such tokenizer.
    """
    try:
        ids = load_tokenizer(tokenizer).encode(ENGLISH, add_special_tokens=False).ids
    except InputError:
        return None
    return len(ids) / len(ENGLISH.split()) if ids else None


def ids_within(vocab_size: int | None) -> IdRange | None:
    """The range of safe ids for a vocabulary of this size; None where the size is unknown or too
    small.
    """
    if vocab_size is None:
        return None
    return next((ids for ids in SMALLER_IDS if ids.end <= vocab_size), None)


def prompter(*, takes_ids: bool, tokenizer: str | None, id_range: IdRange | None) -> Prompter:
    """Makes token ids where the server takes them, else text. The length is exact where there is a
    tokenizer. ``id_range``: of ids that are safe without one; None: SAFE_IDS.
    """
    if tokenizer is None:
        return RandomIds(id_range or SAFE_IDS) if takes_ids else Words()
    loaded = load_tokenizer(tokenizer)
    if takes_ids:
        return RandomIds(_plain_ids(loaded), loaded)
    return TokenizedText(loaded)


def _plain_ids(tokenizer: Any) -> TokenIds:
    """All ids that stand for text, without control tokens and added tokens."""
    added = set(tokenizer.get_added_tokens_decoder())
    ids = [token for token in range(tokenizer.get_vocab_size()) if token not in added]
    return np.array(ids, dtype=np.int32)


_LOWER_CASE_WORD = re.compile(r" [a-z]{2,}")


def _whole_words(tokenizer: Any) -> list[str]:
    """Texts of single tokens that are a whole word with its space: they stay one token in any text."""
    texts = set(tokenizer.decode_batch([[token] for token in _plain_ids(tokenizer).tolist()]))
    # SentencePiece drops a leading space when it decodes
    texts |= {" " + text.lstrip() for text in texts}
    words = [text for text in sorted(texts) if _LOWER_CASE_WORD.fullmatch(text)]
    words = words[:: max(1, len(words) // MAX_WORDS)]
    tokens_before = _tokens_of(tokenizer, " a")
    encodings = tokenizer.encode_batch([" a" + word for word in words], add_special_tokens=False)
    whole_words = [
        word
        for word, encoding in zip(words, encodings, strict=True)
        if len(encoding.ids) == tokens_before + 1
    ]
    if not whole_words:
        raise InputError(
            "the tokenizer holds no token that is a lower-case word with its space; use --api "
            "completions"
        )
    return whole_words

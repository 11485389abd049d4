"""Slices of a text have the tokens that the text has there, after its end, too."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from orchestrator.base.errors import InputError
from orchestrator.workloads.endless_text import EndlessText, token_ids

PROSE = (
    "The quick fox, it is said, jumps over the dog.\n\nThen - 12 days later - it, too, sleeps.\n"
    * 9
)
CHINESE = "敏捷的狐狸，据说跳过了懒狗。十二天以后，它也睡着了！谁知道呢？没有人知道。" * 20
# as Llama 3 splits a text: stops take the line breaks behind them
WITH_BREAKS = r" ?[^\s\w]+[\r\n]*|\s*\w+|\s+"


def trained(text: str, pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 3, trainer)
    return tokenizer


GPT_2 = trained(PROSE, pre_tokenizers.ByteLevel(add_prefix_space=False))
TRIMMED = trained(PROSE, pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True))
LLAMA_3 = trained(
    PROSE,
    pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WITH_BREAKS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
)
OF_CHINESE = trained(CHINESE, pre_tokenizers.ByteLevel(add_prefix_space=False))
DATA = "".join(f'"key{number}":{{"a":[{number},2],"b":"fox"}},' for number in range(300))
LINKS = "\n".join(f"https://the.quick.fox/it/is/said/{number}/jumps-over" for number in range(90))
TEXTS = {
    "no white space": (GPT_2, DATA),
    "long words": (GPT_2, LINKS),
    "GPT 2": (GPT_2, PROSE),
    "offsets without spaces": (TRIMMED, PROSE),
    "Llama 3": (LLAMA_3, PROSE),
    "Chinese": (OF_CHINESE, CHINESE),
}
ENDLESS = {name: EndlessText.of(tokenizer, text) for name, (tokenizer, text) in TEXTS.items()}


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 10_000), st.integers(0, 3_000))
def test_a_slice_has_the_tokens_that_the_text_has_there(
    name: str, number: int, most_tokens: int
) -> None:
    tokenizer, text = TEXTS[name]
    endless = ENDLESS[name]
    piece = endless.longest_slice(number % len(endless.places), most_tokens)
    assert piece.tokens <= most_tokens
    assert count(tokenizer, piece.text) == piece.tokens
    assert piece.text in endless.text * 15


def test_a_text_without_a_token_is_refused() -> None:
    knows_a_alone = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(InputError, match="no token"):
        EndlessText.of(knows_a_alone, "xyz")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_many_places_to_cut(name: str) -> None:
    endless = ENDLESS[name]
    tokens = count(TEXTS[name][0], endless.text)
    assert len(endless.places) > tokens / 16
    assert endless.tokens_of_round == tokens


def test_a_text_is_not_cut_within_a_token() -> None:
    """A stop and the line breaks behind it are one token."""
    endless = ENDLESS["Llama 3"]
    after_stops = endless.text.index("\n\nThen")
    assert after_stops not in endless.places
    assert after_stops in ENDLESS["GPT 2"].places


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("characters", [40, 100, 1_000])
@pytest.mark.parametrize("section_characters", [150, 400, 1_000_000])
def test_a_text_that_is_encoded_in_pieces_has_the_same_places(
    name: str, characters: int, section_characters: int
) -> None:
    tokenizer, text = TEXTS[name]
    in_pieces = EndlessText.of(tokenizer, text, characters, section_characters)
    whole = ENDLESS[name]
    assert in_pieces.places.tolist() == whole.places.tolist()
    assert in_pieces.tokens_before.tolist() == whole.tokens_before.tolist()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("characters", [40, 100, 1_000, 1_000_000])
@pytest.mark.parametrize("section_characters", [150, 400, 1_000_000])
def test_the_tokens_of_a_text_in_pieces_are_those_of_all_of_it(
    name: str, characters: int, section_characters: int
) -> None:
    tokenizer, text = TEXTS[name]
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert token_ids(tokenizer, text, characters, section_characters).tolist() == whole


def test_a_text_is_encoded_where_processes_have_no_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    ids = token_ids(GPT_2, PROSE, 40, 150)
    assert len(ids) == count(GPT_2, PROSE)


def test_a_long_text_is_encoded_in_pieces() -> None:
    """An encoding takes a hundred times its text."""

    class Measured:
        longest = 0

        def encode(self, text: str, **options: Any) -> Any:
            self.longest = max(self.longest, len(text))
            return GPT_2.encode(text, **options)

    measured = Measured()
    text = PROSE * 700
    ids = token_ids(measured, text)
    assert len(ids) == count(GPT_2, text)
    assert measured.longest == 100_000 < len(text) / 4


def test_a_single_word_is_repeated() -> None:
    endless = EndlessText.of(GPT_2, "sleeps")
    tokens = count(GPT_2, " sleeps")
    assert endless.longest_slice(0, 3 * tokens).text == " sleeps sleeps sleeps"
    assert endless.longest_slice(0, tokens - 1).text == ""


# as Llama 2: a text that begins with anything but a space gets the sign of one before it
SENTENCE_PIECE = Tokenizer(models.BPE())
SENTENCE_PIECE.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Metaspace(prepend_scheme="first", split=True),
        pre_tokenizers.Split(Regex(r"\n"), "isolated"),
    ]
)
SENTENCE_PIECE.train_from_iterator(
    [PROSE], trainers.BpeTrainer(vocab_size=300, show_progress=False)
)


@pytest.mark.parametrize("section_characters", [150, 1_000_000])
def test_a_token_that_is_put_before_a_line_break_is_none_of_the_text(
    section_characters: int,
) -> None:
    assert count(SENTENCE_PIECE, "\nThen") == count(SENTENCE_PIECE, "\n") + 1
    whole = EndlessText.of(SENTENCE_PIECE, PROSE)
    in_pieces = EndlessText.of(SENTENCE_PIECE, PROSE, 64, section_characters)
    assert in_pieces.places.tolist() == whole.places.tolist()
    assert in_pieces.tokens_before.tolist() == whole.tokens_before.tolist()
    text = f" {PROSE.strip()}"
    ids = token_ids(SENTENCE_PIECE, text, 64, section_characters).tolist()
    assert ids == SENTENCE_PIECE.encode(text).ids


def test_slices_begin_with_a_space_where_the_text_has_enough_of_them() -> None:
    endless = EndlessText.of(SENTENCE_PIECE, PROSE)
    assert 0 < len(endless.begins) < len(endless.places)
    for cut in endless.begins.tolist():
        piece = endless.longest_slice(cut, 40)
        assert piece.text.startswith(" ")
        assert count(SENTENCE_PIECE, piece.text) == piece.tokens
    before_breaks = EndlessText.of(GPT_2, PROSE.replace(", ", ", \n"))
    for cut in before_breaks.begins.tolist():
        assert not before_breaks.longest_slice(cut, 40).text[1].isspace()
    lines = EndlessText.of(GPT_2, PROSE.replace(" ", "\n"))
    assert len(lines.begins) == len(lines.places)

"""Prompt content of a wanted length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from orchestrator.base.errors import InputError
from orchestrator.workloads.content import (
    SAFE_IDS,
    IdSlices,
    RandomIds,
    TextSlices,
    TokenizedText,
    Words,
    WordSlices,
    ids_within,
    load_tokenizer,
    local_tokenizer,
    prompter,
)
from orchestrator.workloads.endless_text import token_ids
from orchestrator.workloads.kind import IdRange

TEXT = [
    (
        "the quick brown fox jumps over the lazy dog and runs away from the other animals of that "
        "forest"
    )
] * 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer that puts a BOS before every text, as Llama's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("tokens", [1, 2, 17, 400])
def test_text_has_exactly_the_tokens_asked_for(folder: Path, tokens: int) -> None:
    tokenizer = load_tokenizer(str(folder))
    text_prompter = TokenizedText(tokenizer)
    for seed in range(20):
        text = text_prompter.make(rng(seed), tokens)
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) == tokens


def test_texts_can_be_joined_and_their_lengths_add_up(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    text_prompter = TokenizedText(tokenizer)
    parts = [text_prompter.make(rng(seed), 13) for seed in range(5)]
    assert len(tokenizer.encode("".join(map(str, parts)), add_special_tokens=False).ids) == 65


def test_token_ids_stay_within_their_range() -> None:
    ids = np.asarray(RandomIds(IdRange(10, 20)).make(rng(), 1000))
    assert ids.dtype == np.int32
    assert set(ids.tolist()) == set(range(10, 20))


def test_without_a_tokenizer_a_server_of_text_gets_words() -> None:
    assert isinstance(prompter(takes_ids=False, tokenizer=None, id_range=None), Words)


def test_with_a_tokenizer_a_server_of_text_gets_text_of_exact_length(folder: Path) -> None:
    text_prompter = prompter(takes_ids=False, tokenizer=str(folder), id_range=None)
    assert isinstance(text_prompter, TokenizedText)


def test_ids_for_an_unknown_vocabulary_are_safe_ones() -> None:
    ids: Any = prompter(takes_ids=True, tokenizer=None, id_range=None).make(rng(), 5000)
    assert ids.min() >= SAFE_IDS[0]
    assert ids.max() < SAFE_IDS[1]


def test_ids_stay_within_the_vocabulary_that_is_given() -> None:
    ids: Any = prompter(takes_ids=True, tokenizer=None, id_range=IdRange(5, 8)).make(rng(), 100)
    assert set(ids.tolist()) == {5, 6, 7}


def test_a_tokenizer_gives_ids_without_its_control_tokens(folder: Path) -> None:
    ids: Any = prompter(takes_ids=True, tokenizer=str(folder), id_range=IdRange(0, 1)).make(
        rng(), 5000
    )
    assert ids.min() >= 2  # neither <s> nor </s>


@pytest.mark.parametrize(
    ("size", "ids"),
    [(None, None), (128_256, SAFE_IDS), (31_000, SAFE_IDS), (2048, (300, 1_500)), (99, None)],
)
def test_ids_are_drawn_from_what_a_vocabulary_of_that_size_holds(
    size: int | None, ids: tuple[int, int] | None
) -> None:
    assert ids_within(size) == ids


def test_a_missing_or_broken_tokenizer_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer at"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizer"):
        load_tokenizer(str(tmp_path))


def test_truncation_and_padding_of_the_file_are_not_ours(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain, loaded = load_tokenizer(str(folder)), load_tokenizer(str(tmp_path))
    texts = ["fox", "the quick brown fox jumps over the lazy dog"]
    lengths = [len(code.ids) for code in loaded.encode_batch_fast(texts)]
    assert lengths == [len(plain.encode(text).ids) for text in texts]
    assert lengths[1] > 4


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (None, None),
        ("folder", "folder"),
        ("folder/tokenizer.json", "folder/tokenizer.json"),
        ("folder/tokens", "folder/tokens"),
        ("x.gguf", None),
        ("acme/x:Q4_K_M", None),
        ("acme/x", None),
        ("/nowhere/x.gguf", None),
    ],
)
def test_a_gguf_file_and_an_uncached_model_are_no_tokenizer(
    name: str | None, path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("folder/tokenizer.json", "folder/tokens", "x.gguf"):
        (tmp_path / file).write_bytes(b"GGUF")
    assert local_tokenizer(name) == path


def one_token_a_word() -> Tokenizer:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return words


def test_tokens_of_a_text_are_counted_only_with_a_tokenizer() -> None:
    assert Words().count("a b") is None
    assert RandomIds(IdRange(1000, 2000)).count("a b") is None
    assert RandomIds(IdRange(1, 2), one_token_a_word()).count("a b c") == 3


def test_texts_of_a_tokenizer_are_counted_by_it() -> None:
    prompter = TokenizedText.__new__(TokenizedText)
    prompter._tokenizer = one_token_a_word()
    assert prompter.count("a b") == 2


# -- slices of a text

PROSE = "The quick brown fox, it is said, jumps over the lazy dog.\n\nThen - 12 days later - " * 30


def test_a_text_is_encoded_once_for_all_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    def ids_of(tokenizer: Any, text: str) -> Any:
        encoded.append(text)
        return token_ids(tokenizer, text)

    monkeypatch.setattr("orchestrator.workloads.content.token_ids", ids_of)
    text = PROSE + "once"
    first, second = (
        RandomIds(IdRange(0, 9), load_tokenizer(str(folder))).slices(text) for point in range(2)
    )
    assert np.array_equal(first.make(rng(), 50), second.make(rng(), 50))
    assert encoded == [text]
    RandomIds(IdRange(0, 9), load_tokenizer(str(folder))).slices(text + " more")
    assert encoded == [text, text + " more"]


def test_slices_as_ids_are_rows_of_the_text_and_begin_again_after_its_end(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    slices = RandomIds(IdRange(0, 9), tokenizer).slices(PROSE)
    assert isinstance(slices, IdSlices)
    whole = tokenizer.encode(PROSE, add_special_tokens=False).ids
    twice = " ".join(map(str, whole * 2))
    for seed in range(30):
        ids = np.asarray(slices.make(rng(seed), 50)).tolist()
        assert len(ids) == 50
        assert " ".join(map(str, ids)) in twice
    assert len(np.asarray(slices.make(rng(), 3 * len(whole)))) == 3 * len(whole)


def test_slices_as_text_have_the_tokens_asked_for_and_are_of_the_text(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    slices = TokenizedText(tokenizer).slices(PROSE)
    assert isinstance(slices, TextSlices)
    for seed in range(400):
        text = str(slices.make(rng(seed), 20 + seed))
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 20 + seed
        assert text[: len(text) // 2] in f" {PROSE}" * 2


def trained_on_prose(tokenizer: Tokenizer) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator([PROSE], trainer)
    return tokenizer


def test_slices_have_the_tokens_asked_for_where_one_is_put_before_every_text() -> None:
    """As Llama 2 does, whose words begin with the sign that stands for a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("_"), normalizers.Replace(" ", "_")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("_", "merged_with_next")
    slices = TextSlices(trained_on_prose(tokenizer), PROSE, [" quick", " fox"])
    assert slices._added == 1
    counts = [len(tokenizer.encode(str(slices.make(rng(seed), 60))).ids) for seed in range(100)]
    assert counts == [60] * 100


def test_slices_whose_tokens_do_not_add_up_are_counted(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    words_of_two_tokens = [" xq", " qx"]
    slices = TextSlices(tokenizer, PROSE, words_of_two_tokens)
    assert slices._added is None
    texts = [str(slices.make(rng(seed), 60)) for seed in range(100)]
    counts = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    assert counts == [60] * 100


@pytest.mark.parametrize("text", ['{"a":[1,2],"b":"fox"},' * 200, "over-the-lazy-dog/" * 90])
def test_a_text_of_one_long_word_is_sent_in_slices(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(str(folder))
    slices = TokenizedText(tokenizer).slices(text)
    for seed in range(50):
        made = str(slices.make(rng(seed), 60))
        assert len(tokenizer.encode(made, add_special_tokens=False).ids) == 60
        assert made[: len(made) // 2] in f" {text}" * 2


def test_the_shortest_slices_are_common_words(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    slices = TokenizedText(tokenizer).slices(PROSE)
    for seed in range(20):
        text = str(slices.make(rng(seed), 1))
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 1


def test_slices_without_a_tokenizer_are_words_of_the_text() -> None:
    slices = RandomIds(IdRange(0, 9)).slices("one two three")
    assert isinstance(slices, WordSlices)
    assert str(slices.make(rng(), 8)).split() in (
        ["one", "two", "three", "one", "two", "three"],
        ["two", "three", "one", "two", "three", "one"],
        ["three", "one", "two", "three", "one", "two"],
    )


def test_words_that_add_up_are_counted_seldom_and_are_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = TokenizedText(load_tokenizer(str(folder)))
    counted: list[str] = []

    def tokens_of(_: Any, text: str) -> int:
        counted.append(text)
        return len(text.split())

    monkeypatch.setattr("orchestrator.workloads.content._tokens_of", tokens_of)
    texts = [always.make(rng(seed), 40) for seed in range(640)]
    assert 1 <= len(counted) < 40, "about one in 64"
    monkeypatch.setattr(always, "_adds_up", False)
    assert [always.make(rng(seed), 40) for seed in range(640)] == texts
    assert len(counted) > 640

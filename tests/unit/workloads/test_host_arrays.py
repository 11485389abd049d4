"""Arrays of a host: made once, read by all, kept as few, and made by each where no file can be."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import OrchestratorError
from orchestrator.workloads import content, host_arrays
from orchestrator.workloads.host_arrays import MOST_KEPT, Arrays

NAMES = ("a", "b")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_arrays, "node_folder", lambda name: tmp_path)
    return tmp_path


class Maker:
    """Counts how often arrays are made."""

    def __init__(self, first: int = 0) -> None:
        self.made = 0
        self._first = first

    def __call__(self) -> Arrays:
        self.made += 1
        return {"a": np.arange(self._first, 5, dtype=np.int32), "b": np.zeros(0, np.int32)}


def test_arrays_are_made_once_and_read_again(folder: Path) -> None:
    maker = Maker()
    for _ in range(3):
        arrays = host_arrays.host_arrays("x", NAMES, maker)
        assert arrays.keys() == {"a", "b"}
        assert type(arrays["a"]) is np.ndarray
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert not arrays["a"].flags.writeable  # all processes have the same pages
    assert maker.made == 1
    assert host_arrays.host_arrays("y", NAMES, Maker(3))["a"].tolist() == [3, 4]


def _make_in_process(folder: Path, made: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    host_arrays.node_folder = lambda name: folder  # type: ignore[assignment]
    maker = Maker()
    total = int(host_arrays.host_arrays("x", NAMES, maker)["a"].sum())
    made.put((maker.made, total))


def test_processes_that_ask_at_once_make_arrays_once(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    made = context.Queue()
    processes = [context.Process(target=_make_in_process, args=(folder, made)) for _ in range(3)]
    for process in processes:
        process.start()
    outcomes = [made.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(count for count, _ in outcomes) == 1
    assert {total for _, total in outcomes} == {10}


@pytest.mark.parametrize("content_of_file", [b"\x93NUMPY", None])
def test_damaged_files_are_made_anew(content_of_file: bytes | None, folder: Path) -> None:
    maker = Maker()
    host_arrays.host_arrays("x", NAMES, maker)
    file = folder / "x" / "a.npy"
    file.unlink()
    if content_of_file is not None:
        file.write_bytes(content_of_file)
    assert host_arrays.host_arrays("x", NAMES, maker)["a"].tolist() == [0, 1, 2, 3, 4]
    assert maker.made == 2


def test_the_last_used_are_kept(folder: Path) -> None:
    makers = {f"text-{number}": Maker() for number in range(MOST_KEPT + 1)}
    for name, maker in makers.items():
        host_arrays.host_arrays(name, NAMES, maker)
    kept = {entry.name for entry in folder.iterdir() if entry.is_dir()}
    assert kept == {*list(makers)[1:]}


@pytest.mark.parametrize("error", [OSError("no room"), OrchestratorError("not ours")])
def test_without_a_folder_each_process_makes_its_own(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_folder(name: str) -> Path:
        raise error

    monkeypatch.setattr(host_arrays, "node_folder", no_folder)
    maker = Maker()
    for _ in range(2):
        assert host_arrays.host_arrays("x", NAMES, maker)["a"].size == 5
    assert maker.made == 2


@pytest.fixture
def no_texts_known() -> Iterator[None]:
    for known in (content._ids_of, content._endless):
        known.cache_clear()
    yield
    for known in (content._ids_of, content._endless):
        known.cache_clear()


@pytest.mark.usefixtures("no_texts_known")
def test_slices_of_a_shared_text_are_those_of_a_text_of_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {word: number for number, word in enumerate(["[UNK]", "one", "two", "three", "and"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = "one two three, and two\n" * 40

    def made() -> list[object]:
        for known in (content._ids_of, content._endless):
            known.cache_clear()
        of_ids = content.IdSlices(tokenizer, text)
        of_text = content.TextSlices(tokenizer, text, [" and"])
        rng = np.random.default_rng(1)
        slices = [of_ids.make(rng, tokens).tolist() for tokens in (3, 50, 700)]
        return [*slices, *(of_text.make(rng, tokens) for tokens in (3, 50, 700))]

    own = made()
    assert not list(folder.iterdir())
    monkeypatch.setattr(content, "LEAST_SHARED", 0)
    first = made()
    monkeypatch.setattr(content, "token_ids", None)  # nothing is encoded again
    monkeypatch.setattr(content, "EndlessText", _Read)
    assert own == first == made()


class _Read:
    """The part of EndlessText that encodes nothing."""

    from_arrays = content.EndlessText.from_arrays

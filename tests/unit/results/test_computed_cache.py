"""Packed rows: every row once, whatever was merged, lost, torn or written twice."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.errors import ResultsError
from orchestrator.results import computed_cache
from orchestrator.results.blobs import Blobs
from orchestrator.results.computed_cache import ComputedRows
from orchestrator.results.location import parse_location
from orchestrator.results.records import Doubles


@dataclass
class Old:
    key: str
    value: int


@dataclass
class Row(Old):
    many: Doubles


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_cache, "FILES_PER_MERGE", 4)


def rows(keys: Sequence[str], value: int = 0) -> list[Row]:
    return [Row(key, value, np.ones(len(key))) for key in keys]


def opened(folder: Path | str) -> ComputedRows:
    return ComputedRows(Blobs(parse_location(str(folder))), "computed/x", Row, ("key",))


def found(store: ComputedRows) -> dict[str, int]:
    pairs = [
        pair
        for table in store.scan(["value"])
        for pair in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    ]
    assert len(dict(pairs)) == len(pairs), "a row came twice"
    return dict(pairs)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "computed" / "x").glob("*.parquet"))


def test_rows_come_back_in_the_columns_asked_for(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert found(store) == {}
    store.add(rows(["a", "bb"]))
    store.add(rows([]))
    (table,) = store.scan(["many"])
    assert table.to_pylist() == [{"key": "a", "many": [1.0]}, {"key": "bb", "many": [1.0, 1.0]}]
    assert len(files(tmp_path)) == 1


def test_many_small_files_become_few_and_nothing_is_lost(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for index in range(70):
        store.add(rows([f"k{index}"], index))
        assert found(opened(tmp_path)) == {f"k{nth}": nth for nth in range(index + 1)}
    assert len(files(tmp_path)) < 12  # at most three of each size: 1, 4, 16, 64


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(rows(["k0"], 0))
    (files(tmp_path)[0].parent / "copy.parquet").write_bytes(b"not ours")
    for index in range(1, 40):
        store.add(rows([f"k{index}"], index))
    assert found(opened(tmp_path)) == {f"k{nth}": nth for nth in range(40)}
    assert (files(tmp_path)[0].parent / "copy.parquet").read_bytes() == b"not ours"


def test_buffered_rows_become_few_files(tmp_path: Path) -> None:
    store, now_s = opened(tmp_path), 0.0
    with store.buffered(30.0, lambda: now_s):
        store.add(rows(["first"]))  # whoever measures slowly waits for nothing
        for index in range(9):
            store.add(rows([f"k{index}"], index))
        assert found(opened(tmp_path)) == {"first": 0}
        now_s = 30.0
        store.add(rows(["late"]))
        assert len(found(opened(tmp_path))) == 11
        store.add(rows(["last"]))
    assert len(files(tmp_path)) == 3
    assert found(opened(tmp_path)) == {"first": 0, "late": 0, "last": 0} | {
        f"k{nth}": nth for nth in range(9)
    }
    store.add(rows(["after"]))
    assert "after" in found(opened(tmp_path))


def test_many_bytes_are_not_buffered_and_a_failed_flush_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, large = opened(tmp_path), "x" * (computed_cache.GROUP_BYTES // 8)
    with store.buffered(30.0, lambda: 0.0):
        store.add(rows(["first"]))
        store.add(rows([large]))
        assert set(found(opened(tmp_path))) == {"first", large}
        store.add(rows(["last"]))
        monkeypatch.setattr(store, "_put", Mock(side_effect=ResultsError("the disk is full")))
    assert set(found(opened(tmp_path))) == {"first", large}


def test_of_equal_keys_the_newest_counts(tmp_path: Path) -> None:
    for value in range(9):
        opened(tmp_path).add(rows(["a"], value))
    assert found(opened(tmp_path)) == {"a": 8}
    opened(tmp_path).merge()
    assert found(opened(tmp_path)) == {"a": 8}


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_file_counts_as_missing_and_is_no_reason_to_fail(
    tmp_path: Path, damage: str
) -> None:
    store = opened(tmp_path)
    for index in range(3):
        store.add(rows([f"k{index}"], index))
    path = files(tmp_path)[1]
    content = bytearray(path.read_bytes())
    middle = content.index(b"k1")
    content[middle] ^= 0xFF
    path.write_bytes(
        {"cut": path.read_bytes()[:-9], "empty": b"", "flipped": bytes(content)}[damage]
    )
    assert found(opened(tmp_path)) == {"k0": 0, "k2": 2}
    store.add(rows(["k1"], 1))  # which merges: 4 files
    assert found(opened(tmp_path)) == {"k0": 0, "k1": 1, "k2": 2}


def test_a_file_of_another_schema_counts_as_missing(tmp_path: Path) -> None:
    other = ComputedRows(Blobs(parse_location(str(tmp_path))), "computed/x", Old, ("key",))
    other.add([Old("old", 0)])
    opened(tmp_path).add(rows(["new"]))
    assert found(opened(tmp_path)) == {"new": 0}


def test_a_file_that_is_merged_while_it_is_read_is_found_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for index in range(3):
        store.add(rows([f"k{index}"], index))
    scan = store.scan(["value"])
    seen = [next(scan)]
    store.add(rows(["k3"], 3))  # merges all four, and the three are gone
    assert len(files(tmp_path)) == 1
    seen += list(scan)
    assert sorted(key for table in seen for key in table["key"].to_pylist()) == [
        "k0",
        "k1",
        "k2",
        "k3",
    ]


def test_several_writers_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        store = opened(tmp_path)
        for index in range(20):
            store.add(rows([f"w{writer}-{index}", f"both-{index}"]))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    expected = {f"w{writer}-{index}" for writer in range(3) for index in range(20)}
    assert set(found(opened(tmp_path))) == expected | {f"both-{index}" for index in range(20)}


def test_rows_that_cannot_be_written_raise_and_stored_ones_stay(tmp_path: Path) -> None:
    opened(tmp_path).add(rows(["a"]))
    target = tmp_path / "elsewhere"
    target.write_text("not a folder")
    with pytest.raises(ResultsError):
        opened(target).add(rows(["b"]))
    assert found(opened(tmp_path)) == {"a": 0}


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)
        ),
        st.tuples(st.just("merge"), st.just([])),
        st.tuples(st.just("crash"), st.integers(0, 9).map(lambda at: [at])),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_row_counts_once_wherever_a_merge_is_cut_off(
    steps: list[tuple[str, list[int]]],
) -> None:
    """``crash``: a merge wrote its file and was killed after it removed some of those it had
    merged.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted: set[str] = set()
        for what, numbers in steps:
            store = opened(folder)
            if what == "add":
                keys = [f"k{number}" for number in numbers]
                store.add(rows(keys))
                wanted |= set(keys)
            elif what == "merge":
                store.merge()
            else:
                _cut_off_merge(Path(folder), numbers[0])
            assert set(found(opened(folder))) == wanted


def _cut_off_merge(folder: Path, removed: int) -> None:
    before = {path: path.read_bytes() for path in files(folder)}
    opened(folder).merge()
    gone = [path for path in before if not path.exists()]
    for path in gone[removed:]:
        path.write_bytes(before[path])

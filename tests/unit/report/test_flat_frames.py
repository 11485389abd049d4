"""Frames that stay for one release: columns have one type each, settings their defaults."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.report.flat_frames import metrics, read
from orchestrator.results.store import Store
from tests.unit.results.builders import (
    commit_measurement,
    deployment_row,
    failed_request,
    request,
)

LIBRARIES = ("pandas", "polars")
TYPES = {
    "level": ("float64", "Float64"),
    "settings.max_num_seqs": ("Int64", "Int64"),
    "settings.block_size": ("Int64", "Int64"),
    "settings.enforce_eager": ("boolean", "Boolean"),
    "settings.cpu_offload_gb": ("float64", "Float64"),
    "settings.extra_args.--flag": ("object", "String"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(store: Store, name: str, level: float, settings: dict[str, Any]) -> None:
    """A point of a deployment with these settings, both of this name."""
    all_settings = {"engine": "vllm", "model": "m"} | settings
    row = deployment_row(name, settings_json=json.dumps(all_settings))
    fields: dict[str, Any] = {"deployment_id": name, "point_id": name, "level": level}
    commit_measurement(store, name, [request(0)], deployment=row, **fields)


def commit_mixed(store: Store) -> None:
    """One level is infinite, one flag a word here and bare there, one setting given to one alone,
    others to none.
    """
    commit(store, "a", 4.0, {"max_num_seqs": 8, "extra_args": {"--flag": True}})
    commit(store, "b", math.inf, {"extra_args": {"--flag": "on"}})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_has_one_type_whatever_is_in_it(library: Any, store: Store) -> None:
    commit_mixed(store)
    frame = metrics(store.uri, library=library)
    at = LIBRARIES.index(library)
    assert {name: str(frame[name].dtype) for name in TYPES} == {
        name: types[at] for name, types in TYPES.items()
    }
    assert frame["level"].to_list() == [4.0, math.inf]
    assert frame["settings.extra_args.--flag"].to_list() == ["True", "on"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_settings_that_were_not_given_have_their_defaults(library: Any, store: Store) -> None:
    commit(store, "a", 4.0, {"max_num_seqs": 8})
    for frame in (
        metrics(store.uri, library=library),
        read(store.uri, "deployments", library=library),
    ):
        assert frame["settings.max_num_seqs"].to_list() == [8]
        assert frame["settings.tensor_parallel_size"].to_list() == [1]
        assert frame["settings.dtype"].to_list() == [None]


def test_a_table_keeps_nullable_integers(store: Store) -> None:
    commit_measurement(store, "m0", [request(0), failed_request(1)])
    frame = read(store.uri, "requests", ["output_tokens", "status"])
    assert str(frame["output_tokens"].dtype) == "Int32"
    assert frame["output_tokens"].isna().tolist() == [False, True]
    assert frame.loc[0, "status"] == "ok"


def test_repeats_have_no_column_of_their_own(store: Store) -> None:
    commit(store, "a", 4.0, {})
    assert not [name for name in metrics(store.uri).columns if name.startswith("repeats")]


def test_a_library_that_is_not_there_says_what_to_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_measurement(store, "m0", [request(0)])
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="pip install 'polars>="):
        read(store.uri, "requests", library="polars")

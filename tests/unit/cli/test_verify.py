"""``orchestrator verify``."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.results.store import Store
from tests.unit.cli.commands import Done, invoke
from tests.unit.results.builders import commit_measurement, request


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for name in ("first", "second"):
        commit_measurement(Store.open(str(tmp_path), name), "m0", [request(0)])
    return Store.open(str(tmp_path), "first")


def parts(store: Store) -> list[Path]:
    return sorted(Path(store.uri, "first").rglob("*.parquet"))


def counted(done: Done) -> int:
    """The number of files, none of which is damaged."""
    assert done.stdout.endswith(" files, 0 damaged\n")
    assert done.status == 0
    return int(done.stdout.split()[0])


def test_whole_files_are_counted_of_one_experiment_or_of_all(store: Store) -> None:
    of_first = counted(invoke("verify", store.uri, "--experiment", "first"))
    assert of_first >= len(parts(store))
    assert counted(invoke("verify", store.uri)) == 2 * of_first


def test_a_damaged_file_is_named_and_is_status_3(store: Store) -> None:
    damaged = parts(store)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = invoke("verify", store.uri)
    line, counts, *remedy = done.stdout.splitlines()
    assert line.startswith(f"first/{damaged.relative_to(Path(store.uri, 'first'))}: ")
    assert counts.endswith(" files, 1 damaged")
    assert " ".join(remedy).startswith("to mend it: the same run again measures what is gone")
    assert done.status == 3


def test_what_was_simulated_says_so(store: Store) -> None:
    commit_measurement(Store.open(store.uri, "made"), "m0", [request(0)], simulated=True)
    assert invoke("verify", store.uri).stdout.endswith("\nsimulated, nothing was measured: made\n")

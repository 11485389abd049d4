"""The store on a local disk: what counts, what does not, and what a crash leaves behind."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from orchestrator.base.errors import InputError, ResultsError
from orchestrator.results import blobs
from orchestrator.results.blobs import Blobs
from orchestrator.results.root import open_results
from orchestrator.results.store import Manifest, Store, first_ok
from orchestrator.results.validity import Validity
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    failed_request,
    point_row,
    request,
    table,
)

KEYS = {"measurement_id": "m0", "attempt_id": "a0"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "root"), "exp")


def manifest(**given: object) -> Manifest:
    fields = {
        "kind": "point",
        "measurement_id": "m0",
        "attempt_id": "a0",
        "status": "ok",
        "created_unix_ns": 1,
    }
    return Manifest(**fields | given)  # type: ignore[arg-type]


def test_files_lie_where_the_data_format_says(store: Store, tmp_path: Path) -> None:
    store.write_plan("{}")
    log = store.write_log("a0/rank0.log", b"hello")
    commit_measurement(store, "m0", [request(0)])
    commit_launch(store, "L0", deployment_row())
    root = tmp_path / "root" / "exp"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {
        "plan.json",
        "logs/a0/rank0.log",
        "data/points/v=1/m0-a0-driver.parquet",
        "data/requests/v=1/m0-a0-driver.parquet",
        "data/deployments/v=1/L0-L0-driver.parquet",
        "commits/m0/a0.json",
        "commits/launches/L0/L0.json",
    }
    assert log == "exp/logs/a0/rank0.log"
    assert store.read_log(log) == b"hello"
    assert (store.plan(), store.read_log("exp/logs/none")) == ("{}", None)


def test_a_part_tells_its_rows_bytes_and_hash(store: Store, tmp_path: Path) -> None:
    part = store.write_part("points", table("points", [point_row("m0", "a0")]), writer="c1", **KEYS)
    content = (tmp_path / "root" / "exp" / part.path).read_bytes()
    assert (part.rows, part.bytes, part.sha256) == (
        1,
        len(content),
        hashlib.sha256(content).hexdigest(),
    )


def test_a_part_without_its_manifest_is_invisible(store: Store) -> None:
    store.write_part("points", table("points", [point_row("m0", "a0")]), writer="driver", **KEYS)
    assert store.read("points", include_failed=True).num_rows == 0
    assert store.winners().keys() == set()


def test_what_is_committed_is_read_and_done(store: Store) -> None:
    commit_measurement(store, "m0", [request(0), failed_request(1)])
    assert store.winners().keys() == {"m0"}
    assert store.read("requests", ["status", "request_index"]).to_pydict() == {
        "status": ["ok", "error"],
        "request_index": [0, 1],
    }


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"kind": "point"}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_torn_manifest_is_ignored_with_a_warning(
    store: Store, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    whole = commit_measurement(store, "m0", [request(0)])
    torn = tmp_path / "root" / "exp" / "commits" / "m1" / "a1.json"
    torn.parent.mkdir()
    torn.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert store.manifests() == [whole]
    assert "a1.json is ignored" in caplog.text
    late = replace(whole, measurement_id="m1", attempt_id="a1")
    torn.write_text(late.to_json())  # an object store may show a late write
    assert store.winners().keys() == {"m0", "m1"}


def test_a_temporary_file_of_a_crash_is_no_part_or_manifest(store: Store, tmp_path: Path) -> None:
    commit_measurement(store, "m0", [request(0)])
    folder = tmp_path / "root" / "exp" / "commits" / "m0"
    (folder / ".a1.json.01J.tmp").write_text("{")
    assert len(store.manifests()) == 1


def test_a_write_that_dies_half_way_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match="No space left"):
        store.write_plan("x" * 100)
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_an_ok_attempt_wins_over_a_failed_one_before_and_after(store: Store) -> None:
    commit_measurement(
        store, "m0", [failed_request(0)], attempt_id="a0", created_unix_ns=1, status="failed"
    )
    assert store.winners().keys() == set()
    assert store.read("requests").num_rows == 0
    commit_measurement(store, "m0", [request(0), request(1)], attempt_id="a1", created_unix_ns=2)
    commit_measurement(
        store, "m0", [failed_request(0)], attempt_id="a2", created_unix_ns=3, status="failed"
    )
    assert set(store.read("requests")["attempt_id"].to_pylist()) == {"a1"}
    assert store.read("requests", include_failed=True).num_rows == 4


def test_the_first_ok_attempt_wins_whatever_drivers_clocks_say(
    store: Store,
) -> None:
    commit_measurement(store, "m0", [request(0)], attempt_id="b", created_unix_ns=6)
    commit_measurement(store, "m0", [request(0)], attempt_id="a", created_unix_ns=5)
    assert [commit.earlier for commit in store.commits()] == [0, 1]
    assert store.winners()["m0"].attempt_id == "b"


@pytest.mark.parametrize("verdict", [verdict for verdict in Validity if verdict.spoilt])
def test_an_attempt_that_nothing_spoilt_wins_over_spoilt_ones_before_and_after(
    store: Store, verdict: Validity
) -> None:
    for number, validity in enumerate((verdict, verdict, "valid", verdict, "valid")):
        commit_measurement(
            store, "m0", [request(0)], attempt_id=f"a{number}", validity=str(validity)
        )
    assert store.winners()["m0"].attempt_id == "a2"
    assert set(store.read("requests")["attempt_id"].to_pylist()) == {"a2"}


def test_the_first_spoilt_attempt_counts_until_a_better_one(
    store: Store,
) -> None:
    for number in range(2):
        commit_measurement(store, "m0", [request(0)], attempt_id=f"a{number}", validity="disturbed")
    assert store.winners()["m0"].attempt_id == "a0"


@given(st.permutations([("a", 2), ("b", 1), ("c", 1), ("d", 3)]))
def test_racing_attempts_have_one_winner_in_whatever_order_they_are_seen(
    order: list[tuple[str, int]],
) -> None:
    seen = [manifest(attempt_id=attempt, created_unix_ns=at) for attempt, at in order]
    failed = manifest(attempt_id="z", created_unix_ns=0, status="failed")
    assert first_ok([failed, *seen])["m0"].attempt_id == "b"


def test_a_launch_is_no_attempt_at_a_measurement(store: Store) -> None:
    commit_launch(store, "L0", deployment_row())
    assert (store.attempts(), store.commits(), store.winners().keys()) == (set(), [], set())
    assert [manifest.kind for manifest in store.manifests("launch")] == ["launch"]
    assert store.manifests("point") == []


def test_committing_the_same_again_changes_nothing_and_something_else_is_refused(
    store: Store,
) -> None:
    first = manifest()
    assert store.commit(first) == store.commit(first) == first
    with pytest.raises(ResultsError, match="committed only once"):
        store.commit(replace(first, status="failed", reason="second thoughts"))
    assert store.manifests() == [first]


def test_a_manifest_is_refused_while_a_part_is_not_there_whole(
    store: Store, tmp_path: Path
) -> None:
    part = store.write_part(
        "points", table("points", [point_row("m0", "a0")]), writer="driver", **KEYS
    )
    (tmp_path / "root" / "exp" / part.path).write_bytes(b"PAR1")
    with pytest.raises(ResultsError, match="missing or cut off"):
        store.commit(manifest(files=(part,)))
    assert store.manifests() == []


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def zeroed(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(40) + content[len(content) // 2 + 40 :])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("table", ["points", "requests"])
def test_a_part_with_one_changed_bit_is_left_out_and_named(
    store: Store, tmp_path: Path, table: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    commit_measurement(store, "m0", [request(0)])
    commit_measurement(store, "m1", [request(0)])
    path = tmp_path / "root" / "exp" / "data" / table / "v=1" / "m0-a0-driver.parquet"
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    assert store.read(table)["measurement_id"].to_pylist() == ["m1"]
    assert (
        "m0-a0-driver.parquet is committed but cannot be read: its content has changed (SHA-256)"
        in caplog.text
    )


def test_a_manifest_that_lies_where_another_belongs_is_none(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = commit_measurement(store, "m0", [request(0)])
    other = tmp_path / "root" / "exp" / "commits" / "m1" / "a1.json"
    other.parent.mkdir()
    other.write_text(whole.to_json())
    assert store.manifests() == [whole]
    assert "it is that of commits/m0/a0.json" in caplog.text
    assert dict(store.verify())["commits/m1/a1.json"] == "no whole manifest"


def test_a_plan_that_is_not_utf8_is_read_in_part(store: Store, tmp_path: Path) -> None:
    store.write_plan("{}")
    (tmp_path / "root" / "exp" / "plan.json").write_bytes(b'{"a": "\xff"}')
    assert store.plan() == '{"a": "\ufffd"}'


@pytest.mark.parametrize("damage", [torn, emptied, Path.unlink])
def test_a_damaged_part_costs_its_own_measurement_and_is_named(
    store: Store, tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    part = commit_measurement(store, "m0", [request(0)]).files[1]
    commit_measurement(store, "m1", [request(0)])
    damage(tmp_path / "root" / "exp" / part.path)
    assert store.read("requests")["measurement_id"].to_pylist() == ["m1"]
    assert "m0-a0-driver.parquet" in caplog.text
    again = Store.open(store.uri, "exp")
    assert again.winners().keys() == {"m1"}  # the next run measures it again
    assert "missing or cut off: data/requests" in caplog.text
    commit_measurement(again, "m0", [request(0), request(1)], attempt_id="a1")
    caplog.clear()
    whole = Store.open(store.uri, "exp")
    assert whole.winners()["m0"].attempt_id == "a1"
    assert whole.read("requests")["attempt_id"].to_pylist() == ["a0", "a1", "a1"]
    assert not (whole.damage or whole.lost or caplog.text), "the measurement is whole again"
    assert [path for path, problem in whole.verify() if problem] == [part.path]


@pytest.mark.parametrize("damage", [torn, zeroed, emptied, Path.unlink])
def test_verify_names_every_damaged_file(
    store: Store, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    part = commit_measurement(store, "m0", [request(0)]).files[1]
    commit_measurement(store, "m1", [request(0)])
    assert {problem for _, problem in store.verify()} == {None}
    damage(tmp_path / "root" / "exp" / part.path)
    (tmp_path / "root" / "exp" / "commits" / "m1" / "a0.json").write_text("{")
    problems = {path: problem for path, problem in store.verify() if problem}
    assert problems.keys() == {part.path, "commits/m1/a0.json"}


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "/etc/passwd", "data/../../other/x.parquet"]
)
def test_a_manifest_that_points_elsewhere_is_none(
    store: Store, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = store.write_part(
        "points", table("points", [point_row("m0", "a0")]), writer="driver", **KEYS
    )
    store._blobs.put(
        "exp/commits/m0/a0.json", manifest(files=(replace(part, path=path),)).to_json().encode()
    )
    assert store.manifests() == []
    assert "is not below the experiment's folder" in caplog.text


def test_a_part_with_fewer_rows_than_its_manifest_says_is_an_error(store: Store) -> None:
    part = store.write_part(
        "points", table("points", [point_row("m0", "a0")]), writer="driver", **KEYS
    )
    written = store.commit(manifest(files=(replace(part, rows=2),)))
    with pytest.raises(ResultsError, match="holds 1 rows; its manifest says 2"):
        store.read_manifests("points", [written])


def test_a_deployment_that_several_launches_wrote_is_read_once(store: Store) -> None:
    commit_launch(store, "L0", deployment_row("d0"), deployment_row("d1"))
    commit_launch(store, "L1", deployment_row("d0"), status="failed")
    assert store.read("deployments")["deployment_id"].to_pylist() == ["d0", "d1"]
    assert store.read("deployments", ["label"]).to_pydict() == {"label": ["label-d0", "label-d1"]}


def test_a_store_travels_by_its_uri(store: Store) -> None:
    commit_measurement(store, "m0", [request(0)])
    there = pickle.loads(pickle.dumps(store))
    assert (there.uri, there.experiment, there.winners().keys()) == (store.uri, "exp", {"m0"})


def test_two_stores_on_one_place_see_each_other(store: Store) -> None:
    other = Store.open(store.uri, "exp")
    assert other.winners().keys() == set()
    commit_measurement(store, "m0", [request(0)])
    assert other.winners().keys() == {"m0"}


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 300])
def test_names_that_cannot_be_part_of_a_path_are_refused(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="cannot be part of a path"):
        Store.open(store.uri, name)
    with pytest.raises(InputError, match="cannot be part of a path"):
        store.write_part(
            "points", table("points", []), measurement_id="m", attempt_id="a", writer=name
        )
    with pytest.raises(InputError, match="cannot be part of a path"):
        store.commit(manifest(measurement_id=name))


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../../x", "a/../../b"])
def test_logs_stay_below_their_folder(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="not a name for a log"):
        store.write_log(name, b"")


@pytest.mark.parametrize(
    "uri",
    [
        "../secret",
        "exp/logs/../../../secret",
        "exp/../../secret",
        "other/secret",
        "/etc/hostname",
        "exp/logs/\0",
    ],
)
def test_a_row_that_names_another_file_as_its_log_has_none(
    store: Store, tmp_path: Path, uri: str
) -> None:
    store.write_log("L0/rank0.log", b"ready")
    (tmp_path / "root" / "other").mkdir()
    for place in (tmp_path / "secret", tmp_path / "root" / "other" / "secret"):
        place.write_text("hunter2")
    assert store.read_log(uri) is None


def test_logs_are_found_where_the_experiments_folder_was_renamed(
    store: Store, tmp_path: Path
) -> None:
    log = store.write_log("L0/rank0.log", b"ready")
    (tmp_path / "root" / "exp").rename(tmp_path / "root" / "old")
    assert Store.open(store.uri, "old").read_log(log) == b"ready"


def test_a_place_is_tried_before_anything_starts(store: Store, tmp_path: Path) -> None:
    store.check_writable()
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="results cannot be written to"):
        Store.open(str(tmp_path / "file" / "below"), "exp").check_writable()


def test_a_root_with_several_experiments_is_read_as_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        commit_measurement(
            Store.open(str(tmp_path), name), f"m-{name}", [request(0)], experiment=name
        )
    (tmp_path / "unrelated").mkdir()
    results = open_results(str(tmp_path))
    assert results.experiments == ("one", "two")
    assert results.read("points", ["experiment"]).to_pydict() == {"experiment": ["one", "two"]}
    with pytest.raises(InputError, match="no experiment 'three'"):
        results.store("three")


def test_a_stray_folder_is_left_out_and_named(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit_measurement(store, "m0", [request(0)])
    (tmp_path / "root" / "old stuff" / "commits").mkdir(parents=True)
    assert open_results(store.uri).read("points")["measurement_id"].to_pylist() == ["m0"]
    assert "old stuff' is left out" in caplog.text


def test_experiments_are_found_where_folders_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google Cloud Storage through pyarrow lists only folders that somebody made, and nobody has
    to.
    """
    commit_measurement(Store.open(str(tmp_path), "one"), "m0", [request(0)])
    listing = Blobs.listing

    def without_folders(self: Blobs, prefix: str, *, recursive: bool = True) -> list[fs.FileInfo]:
        return [info for info in listing(self, prefix, recursive=recursive) if info.is_file]

    monkeypatch.setattr(Blobs, "listing", without_folders)
    assert open_results(str(tmp_path)).experiments == ("one",)


def test_an_experiments_own_folder_opens_too(store: Store, tmp_path: Path) -> None:
    commit_measurement(store, "m0", [request(0)])
    results = open_results(str(tmp_path / "root" / "exp"))
    assert (results.uri, results.experiments) == (str(tmp_path / "root"), ("exp",))
    assert results.read("requests").num_rows == 1


def test_a_place_without_results_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "not there"):
        with pytest.raises(InputError, match="no results at"):
            open_results(str(path))


def test_every_manifest_is_json_that_names_its_parts(store: Store, tmp_path: Path) -> None:
    commit_measurement(store, "m0", [request(0)])
    manifest = json.loads((tmp_path / "root" / "exp" / "commits" / "m0" / "a0.json").read_text())
    assert set(manifest["files"]) == {"points", "requests"}
    assert set(manifest["files"]["requests"][0]) == {"path", "rows", "bytes", "sha256"}


@pytest.mark.parametrize("listed", [False, True])
def test_what_dead_writers_left_beside_files_goes_after_a_day(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    commit_measurement(store, "m0", [request(0)])
    store = Store.open(store.uri, "exp")
    store.write_plan("{}")
    root, names = (
        tmp_path / "root" / "exp",
        (".a.json.01J.tmp", ".b.json.01J.tmp", ".gone.json.01J.tmp", "a.json"),
    )
    old, new, gone, whole = ([root / name, root / "commits" / "m0" / name] for name in names)
    for path in (*old, *new, *gone, *whole):
        path.write_text("{")
    for path in (*old, *whole):
        os.utime(path, (time.time() - 90_000,) * 2)
    if listed:
        store.commits()
        # large folders are not listed twice
        monkeypatch.setattr(blobs.os, "scandir", _but(root / "commits"))
    for path in gone:
        path.unlink()
    store.write_plan("{}")
    assert [path.exists() for path in (*old, *new, *whole)] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]


def _but(folder: Path) -> Callable[[str], Any]:
    scandir = os.scandir

    def scans(path: str) -> Any:
        assert folder not in (Path(path), *Path(path).parents)
        return scandir(path)

    return scans


def test_a_folder_that_cannot_be_cleaned_up_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(folder: str, but: str) -> list[str]:
        raise PermissionError(folder)

    monkeypatch.setattr(blobs, "_files_below", refuses)
    store = Store.open(str(tmp_path), "x")
    store.write_plan("{}")
    assert store.plan() == "{}"

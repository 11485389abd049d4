"""What is computed of attempts: the same as from their requests, whoever computed it, and rebuilt
when it is gone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis import attempt_summary
from orchestrator.analysis.attempt_summary import read_attempt
from orchestrator.analysis.intervals import rate_interval, share_interval
from orchestrator.analysis.metrics import figures, merge, observe
from orchestrator.analysis.points import StoredPoint, compute_ahead, load_points
from orchestrator.analysis.slo import judge, limit_values, parse_slo
from orchestrator.base.errors import InputError
from orchestrator.report.as_json import point_json
from orchestrator.report.documents.point import point_document
from orchestrator.report.formats import json_text
from orchestrator.results.records import METRICS_VERSION, AttemptData
from orchestrator.results.store import Store
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    events,
    failed_request,
    request,
    requests,
    table,
)

SLO = parse_slo("ttft<=120ms,tpot<=50ms,itl_p99<=90ms,attainment>=0.5")
WINDOW = MeasuredWindow(0, 10**9)


@st.composite
def repeat(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """Rows of one attempt, and the gaps in ms of those that answered."""
    rows, gaps = [], {}
    for index in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, 1100))
        if draw(st.integers(0, 4)) == 0:
            rows.append(failed_request(index, at))
            continue
        between = draw(st.lists(st.integers(0, 100), max_size=4))
        first = at + draw(st.integers(1, 200))
        gaps[index] = between
        rows.append(
            request(
                index, at, first_ms=first, last_ms=first + sum(between), tokens=len(between) + 1
            )
        )
    return rows, gaps


def shown(folder: str) -> list[Any]:
    documents = [
        point_json(point_document(point, [SLO]))
        for point in load_points(Store.open(folder, "exp"), SLO)
    ]
    return [json.loads(json_text(document)) for document in documents]


def commit(
    store: Store,
    repeats: Sequence[tuple[list[dict[str, Any]], dict[int, list[int]]]],
    **fields: Any,
) -> None:
    for number, (rows, gaps) in enumerate(repeats):
        attempt = {"attempt_id": f"a{number}", "repeat": number, "window_end_ns": WINDOW.end_ns}
        commit_measurement(store, f"m{number}", rows, token_events=events(gaps), **attempt | fields)


@settings(max_examples=25, deadline=None)
@given(st.lists(repeat(), min_size=1, max_size=4))
def test_pooled_answers_are_those_of_all_requests_together(
    repeats: list[tuple[list[dict[str, Any]], dict[int, list[int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        commit(Store.open(folder, "exp"), repeats)
        tables = [(requests(*rows), events(gaps) if gaps else None) for rows, gaps in repeats]
        observed = [observe(*rows, WINDOW) for rows in tables]
        for _ in range(2):  # computed now; read from what was kept
            (point,) = load_points(Store.open(folder, "exp"))
            assert point.figures == figures(merge(observed))
            assert [repeat.figures for repeat in point.repeats] == list(map(figures, observed))
            batches = [attempt.token_batches[0] for attempt in observed]
            assert point.output_token_throughput() == rate_interval(batches)
        if all(events is not None for _, events in tables):
            (point,) = load_points(Store.open(folder, "exp"), SLO)
            met = [judge(limit_values(*rows, WINDOW), SLO).met for rows in tables]
            assert point.attainment == share_interval(met)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    store = Store.open(str(tmp_path), "exp")
    commit_launch(store, "L0", deployment_row())
    rows = [
        request(index, 50 * index, first_ms=50 * index + 100, last_ms=50 * index + 180, tokens=3)
        for index in range(9)
    ]
    commit(
        store,
        [
            (rows, {index: [30, 50] for index in range(9)}),
            (rows[:5], {index: [30, 50] for index in range(5)}),
        ],
    )
    failed = {"status": "failed", "reason": "It died.", "point_id": "p1"}
    commit_measurement(store, "m8", [failed_request(0)], attempt_id="a8", **failed)
    commit_measurement(store, "m9", attempt_id="a9", **failed | {"point_id": "p2"})
    return str(tmp_path)


def computed(folder: str) -> list[Path]:
    return sorted((Path(folder) / "exp" / "computed").rglob("*.parquet"))


@pytest.mark.parametrize(
    "damage", ["delete one", "delete all", "tear", "of another version", "read-only", "no TMPDIR"]
)
def test_whatever_happens_to_what_was_computed_answers_stay_the_same(
    folder: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown(folder)
    assert computed(folder)
    if damage == "delete all":
        shutil.rmtree(Path(folder) / "exp" / "computed")
    elif damage == "read-only":
        shutil.rmtree(Path(folder) / "exp" / "computed")
        (Path(folder) / "exp" / "computed").write_text("a file where a folder would be")
    elif damage == "no TMPDIR":
        shutil.rmtree(Path(folder) / "exp" / "computed")
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    elif damage == "of another version":
        other = Path(folder) / "exp" / "computed"
        (other / f"v={METRICS_VERSION}").rename(other / "v=0")
    else:
        for path in computed(folder):
            path.write_bytes(path.read_bytes()[:-50]) if damage == "tear" else path.unlink()
    assert shown(folder) == before
    assert shown(folder) == before


def test_a_second_reader_opens_no_requests(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shown(folder)

    def never(*_: Any) -> None:
        raise AssertionError("it was computed already")

    monkeypatch.setattr(attempt_summary, "read_attempt", never)
    assert shown(folder) == before


def test_token_events_that_were_deleted_take_the_gaps_away_and_nothing_else(folder: str) -> None:
    for path in (Path(folder) / "exp" / "data" / "token_events").rglob("*.parquet"):
        path.unlink()
    document = point_json(point_document(load_points(Store.open(folder, "exp"))[0]))
    assert (document["itl_ms"], document["throughput_basis"]) == (None, "interpolated")
    assert json.loads(json_text(document))["ttft_ms"]["p50"] == 100
    with pytest.raises(InputError, match="needs the table token_events"):
        shown(folder)


def test_a_commit_that_was_taken_away_counts_no_more(folder: str) -> None:
    assert [point["requests"]["scheduled"] for point in shown(folder)] == [14, 1, 0]
    shutil.rmtree(Path(folder) / "exp" / "commits" / "m1")
    assert [point["requests"]["scheduled"] for point in shown(folder)] == [9, 1, 0]
    assert Store.open(folder, "exp").winners().keys() == {"m0"}


@pytest.mark.parametrize("table", ["requests", "points"])
def test_a_computed_attempt_that_lost_a_file_answers_until_measured_again(
    folder: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = shown(folder)
    (path,) = (Path(folder) / "exp" / "data" / table).rglob("m1-*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    assert shown(folder) == before
    assert Store.open(folder, "exp").winners().keys() == {"m0"}, "the next run measures m1 again"
    assert (
        f"measurement m1 is left out: missing or cut off: data/{table}/v=1/m1-a1-driver.parquet"
        in caplog.text
    )
    more = {"token_events": events({0: []}), "window_end_ns": WINDOW.end_ns}
    commit_measurement(
        Store.open(folder, "exp"), "m1", [request(0)], attempt_id="b1", repeat=1, **more
    )
    assert [point["requests"]["scheduled"] for point in shown(folder)] == [9 + 1, 1, 0]
    assert Store.open(folder, "exp").winners()["m1"].attempt_id == "b1"


def test_token_events_that_were_deleted_make_no_attempt_a_damaged_one(folder: str) -> None:
    shown(folder)
    shutil.rmtree(Path(folder) / "exp" / "data" / "token_events")
    assert Store.open(folder, "exp").winners().keys() == {"m0", "m1"}


def test_what_was_measured_meanwhile_is_added_and_pooled_anew(folder: str) -> None:
    shown(folder)
    store = Store.open(folder, "exp")
    more = {"token_events": events({0: []}), "window_end_ns": WINDOW.end_ns}
    commit_measurement(store, "m2", [request(0)], attempt_id="a2", repeat=2, **more)
    compute_ahead(store)
    first = shown(folder)[0]
    assert (first["merged"], first["requests"]["scheduled"]) == (
        {"of": 3, "used": 3, "failed": 0},
        15,
    )
    commit_measurement(
        store, "m8", [request(0)], attempt_id="b8", point_id="p1", created_unix_ns=5, **more
    )
    assert [point["status"] for point in shown(folder)] == ["ok", "ok", "failed"]


def test_many_attempts_are_a_few_files_and_resume_opens_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(str(tmp_path), "exp")
    rows = [request(index, index) for index in range(3)]
    for number in range(70):
        ids = {
            "attempt_id": f"a{number:02}",
            "point_id": f"p{number}",
            "status": "ok" if number % 2 else "failed",
        }
        commit_measurement(store, f"m{number}", rows, **ids)
    points: list[StoredPoint] = load_points(Store.open(str(tmp_path), "exp"))
    assert len(points) == 70
    assert len(computed(str(tmp_path))) <= 2
    monkeypatch.setattr(Store, "_read_manifest", lambda *_: pytest.fail("a manifest was opened"))
    assert Store.open(str(tmp_path), "exp").winners().keys() == {
        f"m{number}" for number in range(1, 70, 2)
    }


def test_a_row_of_what_is_computed_reads_as_sql_would_want_it(folder: str) -> None:
    shown(folder)
    rows: pa.Table = pa.concat_tables(
        Store.open(folder, "exp").computed.scan(list(AttemptData.__slots__))
    )
    rows = rows.filter(
        pa.array([attempt_id == "a0" for attempt_id in rows["attempt_id"].to_pylist()])
    )
    (row,) = rows.to_pylist()
    assert (row["point"]["level"], row["figures"]["ttft_ms"]["p99"], row["metrics_version"]) == (
        1.0,
        100.0,
        METRICS_VERSION,
    )
    assert row["request_ttft_s"] == [0.1] * 9
    assert row["request_ok"] == [True] * 9


def test_an_attempt_without_a_row_of_points_is_no_attempt(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(folder, "exp")
    manifest = store.manifest("m0", "a0")
    assert manifest is not None
    files = tuple(part for part in manifest.files if part.table != "points")
    bare = type(manifest)(
        kind="point",
        measurement_id="m7",
        attempt_id="a7",
        status="ok",
        created_unix_ns=9,
        files=files,
    )
    store.commit(bare)
    assert read_attempt(store, bare) is None
    assert len(shown(folder)) == 3
    assert "holds no row of points" in caplog.text


def test_half_of_the_token_events_answers_nothing(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    manifest = commit_measurement(
        store, "m0", [request(0), request(1)], token_events=events({0: [30]})
    )
    keys = {"measurement_id": "m0", "attempt_id": "a0"}
    other = table("token_events", [{**row, **keys} for row in events({1: [40]}).to_pylist()])
    part = store.write_part("token_events", other, writer="client1", **keys)
    both = replace(manifest, files=(*manifest.files, part))
    assert read_attempt(store, both).token_events.num_rows == 2
    (tmp_path / "exp" / part.path).unlink()
    assert read_attempt(store, both).token_events is None

"""``orchestrator results``: its forms, options and exit statuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import click
import pytest

from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import commit as commit_launch
from tests.unit.cli.commands import invoke
from tests.unit.plan.test_current import planned, run
from tests.unit.results.builders import deployment_row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two points that the plan asks for, and two of an earlier version of its file."""
    store = Store.open(str(tmp_path), "exp")
    run(store, planned(tokens=64), tokens=64)
    run(store, planned(tokens=8), tokens=8)
    return store


def test_a_table_has_the_current_points_and_a_note_on_older_ones(store: Store) -> None:
    done = invoke("results", store.uri)
    assert done.status == 0
    assert "2 points measured, 0 failed" in done.stdout
    assert "superseded: 2 points of earlier versions" in done.stderr


def test_older_points_have_a_table_of_their_own(store: Store) -> None:
    text = invoke("results", store.uri, "--all").stdout
    assert text.endswith("4 points measured, 0 failed\n")
    assert ", superseded: {" in text


def test_json_says_which_points_are_current(store: Store) -> None:
    objects = json.loads(invoke("results", store.uri, "--all", "--format", "json").stdout)
    assert [each["current"] for each in objects] == [True, True, False, False]
    assert {each["row"] for each in objects} == {"point"}


def test_csv_has_a_line_for_each_point(store: Store) -> None:
    text = invoke("results", store.uri, "--format", "csv").stdout
    lines = list(csv.DictReader(io.StringIO(text)))
    assert sorted(line["label"] for line in lines) == ["emulator seqs=16", "emulator seqs=8"]
    assert {line["output_tokens.mean"] for line in lines} == {"8.0"}


def test_limits_replace_those_of_the_file(store: Store) -> None:
    objects = json.loads(
        invoke("results", store.uri, "--slo", "ttft<=1s", "--format", "json").stdout
    )
    assert [list(each["slos"]) for each in objects] == [["slo"], ["slo"]]


def test_launches_are_shown_in_place_of_points(store: Store) -> None:
    commit_launch(store, "L0", deployment_row())
    assert "launches: 1 served, 0 failed" in invoke("results", store.uri, "--launches").stdout
    as_json = invoke("results", store.uri, "--launches", "--format", "json").stdout
    assert [launch["launch_id"] for launch in json.loads(as_json)] == ["L0"]
    as_csv = invoke("results", store.uri, "--launches", "--format", "csv").stdout
    assert [row["launch_id"] for row in csv.DictReader(io.StringIO(as_csv))] == ["L0"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--launches", "--slo", "ttft<=1s"], "--slo is about points"),
        (["--profile", "--launches"], "--profile is a table of points"),
        (["--profile", "--format", "json"], "--profile is a table of points"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    options: list[str], sentence: str, store: Store
) -> None:
    with pytest.raises(click.UsageError, match=sentence):
        invoke("results", store.uri, *options)


def test_damaged_files_are_status_3(store: Store) -> None:
    invoke("results", store.uri)
    for path in Path(store.uri, "exp").rglob("requests/**/*.parquet"):
        path.unlink()
    assert invoke("results", store.uri, "--slo", "ttft<=1s").status == 3

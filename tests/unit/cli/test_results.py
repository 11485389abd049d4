"""``orchestrator results``: its forms, options and exit statuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import click
import pytest

from orchestrator.base.errors import InputError
from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import commit as commit_launch
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.results.builders import deployment_row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two points that the plan asks for, and two of an earlier version of its file."""
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
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
        (["--profile", "--columns", "level"], "both say which columns"),
        (["--launches", "--where", "level == 1"], "--where is about points"),
        (["--launches", "--top", "1"], "--top is about points"),
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


def test_points_are_selected_alike_in_every_format(store: Store) -> None:
    options = ("--where", "max_num_seqs == 8", "--sort", "-level", "--top", "1")
    text = invoke("results", store.uri, *options).stdout
    assert "emulator seqs=8" in text
    assert "emulator seqs=16" not in text
    objects = json.loads(invoke("results", store.uri, *options, "--format", "json").stdout)
    assert [each["label"] for each in objects] == ["emulator seqs=8"]
    as_csv = invoke("results", store.uri, *options, "--format", "csv").stdout
    assert [line["label"] for line in csv.DictReader(io.StringIO(as_csv))] == ["emulator seqs=8"]


def test_an_object_that_is_selected_is_the_same_as_without_a_selection(store: Store) -> None:
    every = json.loads(invoke("results", store.uri, "--format", "json").stdout)
    some = json.loads(invoke("results", store.uri, "--top", "5", "--format", "json").stdout)
    assert sorted(some, key=str) == sorted(every, key=str)


def test_named_columns_are_the_only_ones_in_every_format(store: Store) -> None:
    options = ("--columns", "deployment,max_num_seqs", "--sort", "max_num_seqs")
    objects = json.loads(invoke("results", store.uri, *options, "--format", "json").stdout)
    assert objects == [
        {"deployment": "emulator seqs=8", "settings.max_num_seqs": 8},
        {"deployment": "emulator seqs=16", "settings.max_num_seqs": 16},
    ]
    as_csv = invoke("results", store.uri, *options, "--format", "csv").stdout
    assert as_csv.splitlines()[0] == "deployment,settings.max_num_seqs"
    text = invoke("results", store.uri, *options).stdout
    assert "TTFT" not in text
    as_markdown = invoke("results", store.uri, *options, "--format", "md").stdout
    assert "| emulator seqs=8 | 8 |" in as_markdown


def test_a_name_that_is_no_column_is_status_2_with_the_nearest(store: Store) -> None:
    for options in (["--where", "levle == 1"], ["--sort", "levle"], ["--columns", "levle"]):
        with pytest.raises(InputError, match="did you mean 'level'"):
            invoke("results", store.uri, *options)


def test_markdown_is_a_table_for_a_pull_request(store: Store) -> None:
    text = invoke("results", store.uri, "--format", "md").stdout
    assert text.startswith("**chat of exp: ")
    assert "| :-- |" in text
    assert "- 2 points measured, 0 failed" in text

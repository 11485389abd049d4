"""Results as frames: they equal what the commands print as JSON, have few columns, and units."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.report.arrow_frames import as_frame
from orchestrator.report.capacity_columns import USUAL_OF_CAPACITIES
from orchestrator.report.columns import USUAL
from orchestrator.report.formats import flat
from orchestrator.report.launch_columns import USUAL_OF_LAUNCHES
from orchestrator.report.ranked_columns import USUAL_OF_RANKED
from orchestrator.report.repeat_columns import USUAL_OF_REPEATS
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import invoke, planned, store_attempt, store_sweep
from tests.unit.report.stores import commit_answers, commit_simulation
from tests.unit.report.test_capacity_table import PREDICTED, store_search
from tests.unit.results.builders import commit_measurement, deployment_row, request

LIBRARIES = ("pandas", "polars", "arrow")
SLO = "ttft<=150ms,attainment>=0.9"
# the JSON of results lists the repeats of a point, and has the limits as an object
OF_POINTS = {"repeats": "merged.used", "slo": "slo.text"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


@pytest.fixture
def measured(store: Store) -> Store:
    """Two deployments at two levels, one of them measured on two starts."""
    plan = planned(levels=[2, 4])
    store_sweep(store, plan)
    store_attempt(store, plan, plan.points[0], repeat=1, ttft_ms=120, start=1)
    return store


def json_of(*argv: str) -> Any:
    return json.loads(invoke(*argv, "--format", "json").stdout)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Rows of a frame of any library, with None where a value is missing."""
    if isinstance(frame, pd.DataFrame):
        rows: list[Any] = frame.to_dict("records")
        return [
            {name: None if pd.isna(value) else value for name, value in row.items()} for row in rows
        ]
    return frame.to_pylist() if hasattr(frame, "to_pylist") else frame.to_dicts()


def names_of(frame: Any) -> list[str]:
    return list(getattr(frame, "column_names", None) or frame.columns)


def agree(
    rows: list[dict[str, Any]], documents: list[Any], renamed: Mapping[str, str] = OF_POINTS
) -> int:
    """How many values of these rows equal those of the JSON; fails where one does not."""
    compared = 0
    assert len(rows) == len(documents)
    for row, document in zip(rows, documents, strict=True):
        as_json = flat(document)
        for name, value in row.items():
            name_in_json = renamed.get(name, name)
            if name_in_json in as_json:
                assert value == as_json[name_in_json], name
                compared += value is not None
    return compared


@pytest.mark.parametrize("library", LIBRARIES)
def test_points_equal_the_json_of_results_to_the_digit(library: Any, measured: Store) -> None:
    shown = json_of("results", measured.uri, "--slo", SLO)
    usual = orchestrator.points(measured.uri, slo=SLO, library=library)
    assert tuple(names_of(usual)) == USUAL
    for name in USUAL:
        as_json = [flat(each).get(OF_POINTS.get(name, name)) for each in shown]
        assert [row[name] for row in rows_of(usual)] == as_json, name
    every = orchestrator.points(measured.uri, slo=SLO, columns="all", library=library)
    assert agree(rows_of(every), shown) > 4 * 80


def test_all_columns_hold_every_number_of_the_json(measured: Store) -> None:
    shown = json_of("results", measured.uri)
    names = set(orchestrator.points(measured.uri, columns="all").columns)
    left_out = ("repeats", "row", "slo.tests", "settings")
    in_json = {
        name
        for each in shown
        for name, value in flat(
            {key: each[key] for key in each if key not in ("repeats", "parts")}
        ).items()
        if value is not None and not name.startswith(left_out)
    }
    of_intervals = ("estimate", "confidence", "batches", "design_effect", "standard_error")
    missing = {
        name
        for name in in_json - names - {"label", "merged.used"}
        if not name.endswith(of_intervals) and ".tests" not in name and "interval." not in name
    }
    # the SLOs of the file have their intervals under shorter names; the first is the point's own
    assert {name for name in missing if not name.startswith(("slos.", "slo."))} == set()
    assert {"slos.tight.attainment", "slos.tight.attainment.lower", "slos.tight.met"} <= names


@pytest.mark.parametrize("library", LIBRARIES)
def test_intervals_are_numbers_and_types_stay_where_values_are_missing(
    library: Any, measured: Store
) -> None:
    frame = orchestrator.points(measured.uri, columns="all", library=library)
    for name in names_of(frame):
        if name.endswith((".lower", ".upper", ".p99")):
            dtype = str(frame.schema.field(name).type if library == "arrow" else frame[name].dtype)
            assert dtype.lower() in ("float64", "double"), name
    types = [
        str(frame.schema.field(name).type if library == "arrow" else frame[name].dtype)
        for name in ("level", "settings.max_num_seqs", "settings.block_size", "knee")
    ]
    assert [name.lower() for name in types] == {
        "pandas": ["float64", "int64", "int64", "boolean"],
        "polars": ["float64", "int64", "int64", "boolean"],
        "arrow": ["double", "int64", "int64", "bool"],
    }[library]


def test_a_frame_says_units_and_descriptions(measured: Store) -> None:
    frame = orchestrator.points(measured.uri, columns="all")
    assert frame.attrs["units"]["ttft_ms.p99"] == "ms"
    assert frame.attrs["units"]["per_device.lower"] == "tokens/s"
    assert "validity" not in frame.attrs["units"]
    assert set(frame.attrs["descriptions"]) == set(frame.columns)
    table = orchestrator.points(measured.uri, library="arrow")
    field = table.schema.field("goodput")
    assert field.metadata == {
        b"unit": b"requests/s",
        b"description": b"requests that met the limits",
    }


def test_columns_are_those_that_are_named(measured: Store) -> None:
    names = ["level", "max_num_seqs", "decode_throughput.p90", "slos.tight.met", "errors.timeout"]
    frame = orchestrator.points(measured.uri, columns=names)
    names[1] = "settings.max_num_seqs"
    assert list(frame.columns) == names
    assert frame["slos.tight.met"].tolist() == [False] * 4
    with pytest.raises(InputError, match=r"unknown column 'ttft_ms.p98'; did you mean 'ttft_ms"):
        orchestrator.points(measured.uri, columns=["ttft_ms.p98"])


def test_entries_of_mappings_are_columns_and_an_infinite_level_is_a_number(store: Store) -> None:
    for name, level, flag in (("a", 4.0, True), ("b", math.inf, "on")):
        settings = {"engine": "vllm", "model": "m", "extra_args": {"--flag": flag}}
        row = deployment_row(name, settings_json=json.dumps(settings))
        fields: dict[str, Any] = {"deployment_id": name, "point_id": name, "level": level}
        commit_measurement(store, name, [request(0)], deployment=row, **fields)
    frame = orchestrator.points(store.uri, columns="all")
    assert frame["level"].tolist() == [4.0, math.inf]
    assert frame["settings.extra_args.--flag"].tolist() == ["True", "on"]
    one = orchestrator.points(store.uri, columns=["extra_args.--flag"])
    assert one.columns.tolist() == ["settings.extra_args.--flag"]


def test_superseded_points_come_when_they_are_asked_for(store: Store) -> None:
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
    every = orchestrator.points(store.uri, superseded=True, columns=["current"])
    assert len(orchestrator.points(store.uri)) == 2
    assert every["current"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_ranking_equals_the_json_of_best_to_the_digit(library: Any, measured: Store) -> None:
    comparisons = json_of("best", measured.uri)["comparisons"]
    documents = [
        {**{name: value for name, value in each.items() if name != "ranking"}, **ranked}
        for each in comparisons
        for ranked in each["ranking"]
    ]
    frame = orchestrator.best(measured.uri, columns="all", library=library)
    rows = rows_of(frame)
    assert agree(rows, documents, {}) > 100
    for row, document in zip(rows, documents, strict=True):
        assert [row["value.lower"], row["value.upper"]] == document["interval"]
        bounds = [row["attainment.lower"], row["attainment.upper"]]
        assert bounds == document["attainment_interval"]
    assert [row["rank"] for row in rows] == [1, 2]
    assert tuple(names_of(orchestrator.best(measured.uri, library=library))) == USUAL_OF_RANKED


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_empty_frame_has_its_columns(library: Any, measured: Store) -> None:
    def names(frame: Any) -> set[str]:
        assert len(frame) == 0
        return set(names_of(frame))

    uri = measured.uri
    assert names(orchestrator.best(uri, "tight", library=library)) == set(USUAL_OF_RANKED)
    assert names(orchestrator.capacities(uri, library=library)) == set(USUAL_OF_CAPACITIES)
    assert names(orchestrator.launches(uri, library=library)) == set(USUAL_OF_LAUNCHES)
    never_run = Store.open(f"{uri}/other", "exp")
    never_run.write_plan(planned().to_json())
    assert names(orchestrator.points(never_run.uri, library=library)) == set(USUAL)
    assert names(orchestrator.repeats(never_run.uri, library=library)) == set(USUAL_OF_REPEATS)


def test_a_ranking_says_how_certain_it_is_or_why_it_is_empty(measured: Store) -> None:
    ranked = orchestrator.best(measured.uri, "interactive")
    assert ranked.attrs["why"].startswith("chat of exp: not certain: ")
    empty = orchestrator.best(measured.uri, "tight")
    assert "no deployment holds ttft<=1ms" in empty.attrs["why"]


def test_repeats_equal_those_of_the_json_to_the_digit(measured: Store) -> None:
    documents = []
    for point in json_of("results", measured.uri, "--slo", SLO):
        documents += [{**repeat, "deployment": point["deployment"]} for repeat in point["repeats"]]
    frame = orchestrator.repeats(measured.uri, slo=SLO, columns="all")
    assert agree(rows_of(frame), documents, {"slo": "slo.text"}) > 250
    assert sorted(frame["start"]) == [0, 0, 0, 0, 1]
    assert set(orchestrator.repeats(measured.uri).columns) == set(USUAL_OF_REPEATS)


def test_capacities_equal_those_of_the_json_to_the_digit(store: Store) -> None:
    store_search(store, predicted=PREDICTED)
    documents = [each for each in json_of("results", store.uri) if each["row"] == "capacity"]
    frame = orchestrator.capacities(store.uri, columns="all")
    assert agree(rows_of(frame), documents, {"slo": "slo.limits"}) > 2 * 10
    assert frame["predicted.level"].tolist()[0] == 24.0
    ranked = orchestrator.best(store.uri, "interactive")
    assert ranked["capacity.claim"].tolist() == frame["claim"].tolist()[:1]


def test_launches_equal_the_json_to_the_digit(store: Store) -> None:
    store_sweep(store, planned())
    commit_answers(store, (1, 2), (1, 2))
    documents = json_of("results", store.uri, "--launches")
    frame = orchestrator.launches(store.uri, columns="all")
    assert agree(rows_of(frame), documents, {}) > 2 * 8


def test_requests_come_measurement_by_measurement(store: Store) -> None:
    for name in ("m0", "m1"):
        commit_measurement(store, name, [request(0), request(1)], point_id=name)
    assert [rows.num_rows for rows in orchestrator.requests(store.uri)] == [2, 2]
    (of_point,) = orchestrator.requests(store.uri, point="m1")
    assert set(of_point["measurement_id"].to_pylist()) == {"m1"}
    metadata = of_point.schema.field("scheduled_ns").metadata
    assert metadata[b"unit"] == b"ns"
    assert metadata[b"description"].startswith(b"when it was due")
    units = {field.name: field.metadata[b"unit"] for field in of_point.schema}
    assert [units[name] for name in ("cached_tokens", "client")] == [b"tokens", b""]
    with pytest.raises(InputError, match=r"no requests of a point 'm2' are stored"):
        list(orchestrator.requests(store.uri, point="m2"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_frontier_takes_points_and_metrics(library: Any, measured: Store) -> None:
    points = orchestrator.points(measured.uri, library=library)
    frontier = orchestrator.frontier(points)
    assert set(names_of(frontier)) == set(USUAL)
    assert 1 <= len(frontier) <= len(points)
    if library != "arrow":
        of_metrics = orchestrator.frontier(orchestrator.metrics(measured.uri, library=library))
        assert list(of_metrics["point_id"]) == list(frontier["point_id"])
    with pytest.raises(InputError, match="needs the columns"):
        orchestrator.frontier(orchestrator.points(measured.uri, columns=["level"], library=library))


@pytest.mark.parametrize("of_points", [orchestrator.points, orchestrator.metrics])
def test_the_frontier_leaves_out_rows_whose_devices_are_not_known(
    of_points: Callable[[str], pd.DataFrame], measured: Store
) -> None:
    points = of_points(measured.uri).convert_dtypes()
    points["per_device"] = pd.array([1, *[None] * (len(points) - 1)], dtype="Int64")
    assert list(orchestrator.frontier(points)["point_id"]) == [points["point_id"][0]]
    points["per_device"] = None
    assert orchestrator.frontier(points).empty


@pytest.mark.parametrize("library", LIBRARIES)
def test_simulated_points_have_no_frontier_with_measured_ones(
    library: Any, measured: Store, tmp_path: Path
) -> None:
    simulation = Store.open(str(tmp_path / "simulation"), "exp")
    commit_simulation(simulation)
    simulated = orchestrator.points(simulation.uri, library=library)
    assert {row["simulated"] for row in rows_of(simulated)} == {True}
    assert len(orchestrator.frontier(simulated)) >= 1
    points = orchestrator.points(measured.uri, library="arrow")
    both = pa.concat_tables([points, orchestrator.points(simulation.uri, library="arrow")])
    with pytest.raises(InputError, match="simulated points do not compare with measured ones"):
        orchestrator.frontier(as_frame(both, library))


def test_a_library_that_is_not_there_says_what_to_install(
    measured: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="pip install 'polars>="):
        orchestrator.points(measured.uri, library="polars")

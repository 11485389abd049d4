"""The tables of ``results``: one line per point, and what is in doubt below."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.documents.load_run import LoadRunDocument
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.point_table import (
    USUAL,
    PointSection,
    PointView,
    ShownColumn,
    closing_text,
    load_runs_text,
    points_text,
)
from orchestrator.report.text import EMULATED, SIMULATED, Column
from orchestrator.report.written_form import Form, MarkdownForm, TextForm
from orchestrator.results.records import Figures
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.unit.report.stores import commit_simulation
from tests.unit.results.builders import commit_measurement, deployment_row, request

HOLDS = Slo(name="fast", ttft=0.15, attainment=0.9)
FAILS = Slo(name="tight", ttft=0.001, attainment=0.9)
PERCENTILE = parse_slo("ttft_p95<=150ms,attainment>=0.9,ttft<=150ms")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(store: Store, measurement_id: str = "m0", **point: Any) -> None:
    """100 requests over ten seconds, of 4 tokens each, with a TTFT of 100 ms."""
    rows = [
        request(at, at * 100, first_ms=at * 100 + 100, last_ms=at * 100 + 190, tokens=4)
        for at in range(100)
    ]
    deployment = deployment_row(point.get("deployment_id", "d0"))
    commit_measurement(store, measurement_id, rows, deployment=deployment, **point)


def documents(store: Store, *slos: Slo, knees: Any = ()) -> list[PointDocument]:
    points = load_points(store, *slos)
    return [point_document(point, slos, knees=knees) for point in points]


def lines_of(
    section: PointSection, view: PointView = USUAL, width: int = 240, form: Form | None = None
) -> list[str]:
    form = form or TextForm("--columns", width)
    lines = [*points_text(section, form, view), *closing_text(section.documents, form)]
    return [click.unstyle(line) for line in lines]


def shown(
    store: Store, *slos: Slo, profile: bool = False, knees: Any = (), width: int = 240
) -> list[str]:
    return lines_of(PointSection(documents(store, *slos, knees=knees)), PointView(profile), width)


@dataclass(frozen=True)
class Reads:
    """Figures that note whose they are whenever they are read."""

    figures: Figures
    of_point: str
    log: list[str]

    def read(self) -> Figures:
        self.log.append(self.of_point)
        return self.figures


@pytest.mark.parametrize("is_profile", [False, True])
def test_a_table_reads_the_figures_of_one_point_after_the_other(
    store: Store, is_profile: bool
) -> None:
    for number in range(3):
        commit(store, f"m{number}", point_id=f"p{number}", level=number + 1.0)
    log: list[str] = []
    watched: list[PointDocument] = []
    for point in load_points(store):
        reads = Reads(point.figures, point.head.point_id, log)
        watched.append(point_document(replace(point, _figures=reads)))
    log.clear()
    lines_of(PointSection(watched), PointView(is_profile))
    passes = [point_id for point_id, _ in itertools.groupby(log)]
    assert passes == ["p0", "p1", "p2"]  # they are decoded again each time


def table_of(lines: list[str]) -> list[dict[str, str]]:
    """The rows of the first table by the titles of its columns, whose lines are joined."""
    rule = next(at for at, line in enumerate(lines) if line.startswith(" ─"))
    rows = list(itertools.takewhile(lambda line: line.startswith(" "), lines[rule + 1 :]))
    title_lines = lines[1:rule]
    cuts = columns_of([*title_lines, *rows])
    titles = [" ".join(line[a:b].strip() for line in title_lines).strip() for a, b in cuts]
    return [dict(zip(titles, (row[a:b].strip() for a, b in cuts), strict=True)) for row in rows]


def columns_of(lines: list[str]) -> list[tuple[int, int]]:
    """Where columns begin and end: two columns of spaces part them."""
    width = max(map(len, lines))
    padded = [line.ljust(width) for line in lines]
    empty = [all(line[at] == " " for line in padded) for at in range(width)]
    cuts = []
    begin = 1
    for at in range(1, width):
        if empty[at] and at + 1 < width and empty[at + 1] and not empty[at - 1]:
            cuts.append((begin, at))
            begin = at
    return [*cuts, (begin, width)]


def test_a_heading_names_workload_model_hardware_and_the_only_limits(store: Store) -> None:
    commit(store)
    assert shown(store)[0] == "chat of exp: m on h100"
    assert shown(store, HOLDS)[0] == (
        "chat of exp: m on h100 under fast (ttft<=150ms,attainment>=0.9)"
    )


def test_each_point_is_one_line_with_a_number_in_a_cell(store: Store) -> None:
    commit(store)
    commit(store, "m1", point_id="p1", level=2.0)
    lines = shown(store, HOLDS)
    assert len([line for line in lines if line.startswith(" label-d0")]) == 2
    row = table_of(lines)[0]
    assert (row["deployment"], row["req/s"], row["ok/all"]) == ("label-d0", "1", "100/100")
    assert (row["TTFT ms p50"], row["TTFT ms p99"]) == ("100", "100")
    assert (row["attain- ment"], row["SLO"], row["verdict"]) == ("1.000", "✓", "valid")
    assert re.fullmatch(r"[\d.]+-[\d.]+", row["95 % interval"])


def test_the_unit_of_loads_stands_in_their_cells_where_they_differ(store: Store) -> None:
    commit(store)
    commit(store, "m1", point_id="p1", level=2.0, control="concurrency")
    assert [row["load"] for row in table_of(shown(store))] == ["2 in flight", "1 req/s"]


def test_several_limits_stand_below_the_heading_and_have_columns_of_their_own(
    store: Store,
) -> None:
    commit(store)
    lines = shown(store, HOLDS, FAILS)
    assert lines[:3] == [
        "chat of exp: m on h100",
        "  fast (ttft<=150ms,attainment>=0.9)",
        "  tight (ttft<=1ms,attainment>=0.9)",
    ]
    del lines[1:3]
    (row,) = table_of(lines)
    assert (row["fast"], row["tight"]) == ("✓", "✗")
    assert (row["attain- ment fast"], row["attain- ment tight"]) == ("1.000", "0.000")


def test_of_several_tests_those_that_fail_are_named(store: Store) -> None:
    commit(store)
    assert table_of(shown(store, PERCENTILE))[0]["SLO"] == "✓"
    late = parse_slo("ttft_p95<=50ms,attainment>=0.9,ttft<=150ms")
    assert table_of(shown(store, late))[0]["SLO"] == "✗ ttft_p95"


def test_a_profile_shows_prefill_and_decode_in_place_of_limits(store: Store) -> None:
    commit(store)
    (row,) = table_of(shown(store, HOLDS, profile=True))
    assert row["TTFT ms p50"] == "100"
    assert {"prefill tokens/s", "decode tokens/s", "all input tokens/s"} <= set(row)
    assert "SLO" not in row


def test_a_point_where_the_curve_bends_is_marked(store: Store) -> None:
    commit(store)
    assert table_of(shown(store, knees=["p0"]))[0]["curve"] == "knee"
    assert "curve" not in table_of(shown(store))[0]


def test_repeats_have_a_column_where_a_point_has_several(store: Store) -> None:
    commit(store)
    assert "repeats" not in table_of(shown(store))[0]
    commit(store, "m1", repeat=1)
    assert table_of(shown(store))[0]["repeats"] == "2 of 2"


def test_a_point_in_doubt_has_its_verdict_and_its_reasons_below(store: Store) -> None:
    commit(store, validity="disturbed", validity_reasons=["others took 60 %"])
    commit(
        store,
        "m1",
        point_id="p1",
        level=2.0,
        validity="disturbed",
        validity_reasons=["others took 70 %"],
    )
    lines = shown(store)
    assert [row["verdict"] for row in table_of(lines)] == ["disturbed [1]", "disturbed [1]"]
    assert "[1] (the first of 2) others took 60 %" in lines


def test_a_note_on_a_valid_point_stands_below(store: Store) -> None:
    commit(store, validity_reasons=["12.0% of prompt tokens came from the cache"])
    lines = shown(store)
    assert table_of(lines)[0]["verdict"] == "valid [1]"
    assert "[1] 12.0% of prompt tokens came from the cache" in lines


def test_a_percentile_of_too_few_requests_is_marked_once(store: Store) -> None:
    rows = [request(at, at * 100, first_ms=at * 100 + 100) for at in range(20)]
    commit_measurement(store, "m0", rows, deployment=deployment_row("d0"))
    lines = shown(store)
    (row,) = table_of(lines)
    assert (row["TTFT ms p50"], row["TTFT ms p99"]) == ("100", "100*")
    assert [line for line in lines if line.startswith("*")] == [
        "* fewer requests than this percentile needs"
    ]


def test_points_that_failed_alike_stand_below_with_their_failure(store: Store) -> None:
    commit(store)
    failure = {"reason": "It died.", "failure_class": "engine_crash", "failure_kind": "oom"}
    commit(store, "m1", status="failed", point_id="p1", level=2.0, **failure)
    commit(store, "m2", status="failed", point_id="p2", level=3.0, **failure)
    lines = shown(store)
    at = lines.index("failed: label-d0, chat, at 2 req/s, 3 req/s")
    assert lines[at + 1] == "  It died. (engine_crash: oom)"
    assert lines[-1] == "1 point measured, 2 failed"


def test_emulated_is_said_in_the_heading_and_below_and_not_in_the_rows(store: Store) -> None:
    commit(store, emulated=True)
    commit(store, "m1", point_id="p1", level=2.0, emulated=True)
    lines = shown(store)
    assert lines[0] == "chat of exp: m on h100 (emulated)"
    assert [line for line in lines[1:] if "emulated" in line] == [EMULATED]


def test_simulated_is_said_in_the_heading_and_below_and_intervals_are_the_models(
    store: Store,
) -> None:
    commit_simulation(store)
    lines = shown(store)
    assert lines[0] == "chat of exp: some-org/m on cpu (simulated)"
    text = "\n".join(lines)
    assert "9 in 10" in text and "95 %" not in text and "63.4-99.0" in text
    assert lines.count(SIMULATED) == 1
    assert lines[-1] == "4 points simulated, 0 failed"


def test_points_are_counted_by_what_they_are(store: Store) -> None:
    commit(store, simulated=True, experiment="other", point_id="p9")
    commit(store, "m1", point_id="p1", level=2.0)
    failure = {"reason": "It died.", "failure_class": "engine_crash", "failure_kind": "oom"}
    commit(store, "m2", status="failed", point_id="p2", level=3.0, **failure)
    assert shown(store)[-1] == "1 point measured, 1 simulated, 1 failed"


@pytest.mark.parametrize("width", [80, 110, 160])
def test_no_line_is_longer_than_the_width(store: Store, width: int) -> None:
    commit(store, validity="disturbed", validity_reasons=["others took the CPU " * 20])
    failure = {"reason": "It died of this. " * 20, "failure_class": "engine_crash"}
    commit(store, "m1", status="failed", point_id="p1", level=2.0, **failure)
    lines = shown(store, HOLDS, width=width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("not shown: ") for line in lines) == (width < 160)
    assert "… --format json has these reasons whole" in lines


def test_columns_that_points_are_sorted_by_are_shown_beside_the_usual_ones(store: Store) -> None:
    commit(store)
    seed = ShownColumn(Column("seed", name="seed"), lambda document: "7")
    latency = ShownColumn(Column("x", name="e2e_ms.p50"), lambda document: "never")
    view = PointView(more_columns=[seed, latency])
    (row,) = table_of(lines_of(PointSection(documents(store)), view))
    assert row["seed"] == "7"
    assert "x" not in row
    narrow = "\n".join(lines_of(PointSection(documents(store)), view, 80))
    assert "E2E ms" in narrow


def test_columns_that_are_named_are_the_only_ones(store: Store) -> None:
    commit(store)
    seed = ShownColumn(Column("seed", name="seed"), lambda document: "7")
    assert table_of(lines_of(PointSection(documents(store)), PointView(columns=[seed]))) == [
        {"seed": "7"}
    ]


def test_markdown_has_all_columns_and_escapes_what_is_foreign(store: Store) -> None:
    row = deployment_row("d0", label="a|b <script>")
    requests = [request(at, at * 100, first_ms=at * 100 + 100) for at in range(100)]
    commit_measurement(store, "m0", requests, deployment=row)
    lines = lines_of(PointSection(documents(store, HOLDS)), form=MarkdownForm())
    (title,) = [line for line in lines if line.startswith("| deployment")]
    assert "TTFT ms p50" in title
    assert "E2E ms p99" in title
    (row_line,) = [line for line in lines if line.startswith("| a")]
    assert row_line.startswith("| a\\|b &lt;script&gt; | 1 | 100/100 |")


def test_load_runs_share_a_table_and_say_in_what_they_differ(store: Store) -> None:
    commit(store)
    points = tuple(documents(store, HOLDS))
    runs = [
        LoadRunDocument("before", points, (HOLDS,)),
        LoadRunDocument("after", points, (HOLDS,), differences=("input tokens",)),
    ]
    form = TextForm("--columns", 200)
    lines = [click.unstyle(line) for line in load_runs_text(runs, points, form)]
    assert lines[0] == "2 load runs: m under fast (ttft<=150ms,attainment>=0.9)"
    assert table_of(lines)[0]["name"] == "label-d0"
    assert "after was asked otherwise than before: input tokens" in lines

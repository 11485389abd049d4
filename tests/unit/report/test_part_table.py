"""Parts of a mix: their figures are those of their requests alone, wherever they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import orchestrator
from orchestrator.analysis.metrics import figures, observe
from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.cli.main import cli
from orchestrator.report.as_json import csv_lines, point_json
from orchestrator.report.documents.part import part_documents
from orchestrator.report.documents.point import point_document
from orchestrator.report.formats import csv_text, json_text
from orchestrator.report.part_table import parts_text
from orchestrator.report.written_form import TextForm
from orchestrator.results.store import Store
from tests.unit.report.mixes import SLO, SLO_TEXT, WINDOW, rows_of, store_of_mix
from tests.unit.results.builders import commit_measurement, request, requests


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_of_mix(tmp_path)


def point_of(store: Store) -> StoredPoint:
    (point,) = load_points(store, SLO)
    return point


def test_figures_of_a_part_are_those_of_its_requests_alone(uri: str, store: Store) -> None:
    for _ in range(2):  # computed now; read from what was kept
        point = point_of(Store.open(uri, "exp"))
        for repeat, of_repeat in enumerate(point.repeats):
            by_part = {part.part: part.figures for part in of_repeat.part_figures}
            for part, found in by_part.items():
                own = requests(*[row for row in rows_of(repeat) if row["part"] == part])
                assert found == figures(observe(own, None, WINDOW))
        assert [part.part for part in point.part_figures] == ["chat", "rag"]
        chat, rag = (part.figures for part in point.part_figures)
        assert (chat.requests.scheduled, rag.requests.scheduled) == (16, 8)
        assert (rag.requests.failed, rag.errors) == (2, {"http_5xx": 2})
        assert chat.ttft_ms is not None and chat.ttft_ms.mean == 105
        whole = point.figures.output_token_throughput
        assert whole is not None
        of_parts = [chat.output_token_throughput, rag.output_token_throughput]
        assert sum(each or 0 for each in of_parts) == pytest.approx(whole)


def test_a_point_of_a_mix_holds_where_all_parts_do(store: Store) -> None:
    (result,) = point_document(point_of(store), [SLO]).slo_results
    assert result.is_met
    assert result.attainment is not None and result.attainment.estimate == 1.0, (
        "0.1 above its target, where that of rag is 0.25 above"
    )
    strict = parse_slo(SLO_TEXT.replace("0.5", "0.8"))
    (point,) = load_points(store, strict)
    (result,) = point_document(point, [strict]).slo_results
    assert result.is_met is False
    assert result.attainment is not None and result.attainment.estimate == 0.75
    assert point.attainment == result.attainment


def test_json_and_csv_have_a_row_per_part(store: Store) -> None:
    document = point_document(point_of(store), [SLO])
    shown = json.loads(json_text(point_json(document)))
    assert [part["part"] for part in shown["parts"]] == ["chat", "rag"]
    assert shown["parts"][1]["attainment"] == 0.75
    assert [len(repeat["parts"]) for repeat in shown["repeats"]] == [2, 2]
    lines = list(csv_lines([document]))
    assert [line["row"] for line in lines] == ["point", "part", "part", "repeat", "repeat"]
    assert all(line["settings"] == lines[0]["settings"] for line in lines)
    assert "rag" in csv_text(lines)
    without_parts = [line for line in lines if line["row"] != "part"]
    assert not any("parts" in line or "part" in line for line in without_parts)


def test_the_table_has_a_line_per_part_and_says_which_limit_fails(store: Store) -> None:
    strict = parse_slo(SLO_TEXT.replace("0.5", "0.8"))
    (point,) = load_points(store, strict)
    text = parts_text([point_document(point, [strict])], TextForm("x", 200))
    lines = [click.unstyle(line).split() for line in text]
    assert lines[0] == ["by", "part"]
    chat, rag = (next(line for line in lines if name in line) for name in ("chat", "rag"))
    assert "66.7%" in chat and "1.000" in chat and chat[-1] == "✓"
    assert "33.3%" in rag and "0.750" in rag and rag[-1] == "✗"


def test_points_of_other_workloads_have_no_parts(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_measurement(store, "m", [request(0)], window_end_ns=WINDOW[1])
    (point,) = load_points(store, SLO)
    document = point_document(point, [SLO])
    assert part_documents(document) == [] == point_json(document)["parts"]
    assert list(parts_text([document], TextForm("x", 200))) == []
    assert document.slo_results[0].is_met is None, "the limits say nothing of it"
    assert len(orchestrator.parts(str(tmp_path))) == 0


def test_best_shows_the_parts_of_what_is_ranked_first(uri: str, store: Store) -> None:
    arguments = ["best", uri, "--slo", SLO_TEXT, "--per", "deployment"]
    text = CliRunner().invoke(cli, arguments).output
    (chat,) = [line for line in text.splitlines() if "part chat on" in line]
    (rag,) = [line for line in text.splitlines() if "part rag on" in line]
    assert "attainment 1.000, TTFT p99 110* ms" in chat
    assert "attainment 0.750, TTFT p99 400* ms" in rag
    shown = json.loads(CliRunner().invoke(cli, [*arguments, "--format", "json"]).stdout)
    (ranked,) = shown["comparisons"][0]["ranking"]
    assert [(part["part"], part["attainment"]) for part in ranked["parts"]] == [
        ("chat", 1.0),
        ("rag", 0.75),
    ]

"""The columns of a part of a mix: those of its point, and its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.analysis.points import load_points
from orchestrator.report.documents.part import PartDocument, part_documents
from orchestrator.report.documents.point import point_document
from orchestrator.report.part_columns import (
    USUAL_OF_PARTS,
    named_slo_columns_of_parts,
    part_columns,
)
from tests.unit.report.mixes import SLO, SLO_TEXT, store_of_mix


@pytest.fixture
def rag(tmp_path: Path) -> PartDocument:
    named = SLO.model_copy(update={"name": "limits"})
    (point,) = load_points(store_of_mix(tmp_path), named)
    _, rag = part_documents(point_document(point, [named]))
    return rag


def test_a_part_has_the_columns_of_its_point(rag: PartDocument) -> None:
    columns = part_columns()
    assert columns["deployment_id"].value(rag) == "d0"
    assert columns["part"].value(rag) == "rag"
    assert columns["requests.scheduled"].value(rag) == 8  # four in each of two repeats


def test_limits_of_the_file_have_columns_by_their_names(rag: PartDocument) -> None:
    columns = {column.name: column for column in named_slo_columns_of_parts(["limits", "other"])}
    assert columns["slos.limits.attainment"].value(rag) == 0.75
    assert columns["slos.other.attainment"].value(rag) is None


def test_a_part_without_limits_has_no_attainment(rag: PartDocument) -> None:
    assert part_columns()["attainment"].value(replace(rag, slo_results=())) is None


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_frame_has_a_row_per_point_and_part(library: Any, tmp_path: Path) -> None:
    store_of_mix(tmp_path)
    uri = str(tmp_path)
    frame = orchestrator.parts(uri, slo=SLO_TEXT, library=library)
    names = frame.column_names if library == "arrow" else list(frame.columns)
    assert names == list(USUAL_OF_PARTS)
    values = frame["attainment"].to_pylist() if library == "arrow" else list(frame["attainment"])
    assert values == [1.0, 0.75]
    every = orchestrator.parts(uri, slo=SLO_TEXT, columns="all", library="arrow")
    assert {"ttft_ms.p95", "errors.http_5xx", "slo", "settings.max_num_seqs"} <= set(
        every.column_names
    )

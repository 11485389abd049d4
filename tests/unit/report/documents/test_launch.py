"""The record of an engine's start."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.analysis.launches import load_launches
from orchestrator.report.as_json import launch_json
from orchestrator.report.documents.launch import launch_documents
from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import commit
from tests.unit.results.builders import deployment_row

REPORTED = {
    "checkpoint_bytes": 32_212_255,
    "quantization_kernel": "CPUInt8ScaledMMLinearKernel",
    "some_other_name": "of one engine alone",
}


def test_known_names_have_fields_and_json_has_all_that_was_reported(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit(store, "L0", deployment_row(), engine_reported_json=json.dumps(REPORTED))
    (document,) = launch_documents(load_launches(store))
    assert document.checkpoint_bytes == 32_212_255
    assert document.quantization_kernel == "CPUInt8ScaledMMLinearKernel"
    assert (document.network, document.kv_transport) == (None, None)
    assert launch_json(document)["reported"] == REPORTED


def test_a_launch_without_a_stored_deployment_is_named_by_its_id(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit(store, "L0", None, status="failed", reason="It died.", engine_reported_json=None)
    (document,) = launch_documents(load_launches(store))
    assert (document.label, document.asked_version, document.has_served) == ("d0", None, False)
    assert launch_json(document)["engine_version"] == {"asked": None, "reported": "0.32.0"}

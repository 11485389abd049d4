"""Manifests of what was committed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.results.manifest import FilePart, Manifest

MANIFEST = Manifest(
    kind="point",
    measurement_id="m0",
    attempt_id="a0",
    status="failed",
    created_unix_ns=12,
    files=(
        FilePart("requests", "data/requests/v=1/x.parquet", 3, 99, "ab"),
        FilePart("points", "data/points/v=1/x.parquet", 1, 9, "cd"),
    ),
    reason="it broke",
    failure_class="infra",
    deployment_id="d0",
    client_version="1",
    emulated=True,
)


def test_a_manifest_survives_json_and_groups_its_files_by_table() -> None:
    text = MANIFEST.to_json()
    assert Manifest.from_json(text) == MANIFEST
    assert '"requests": [' in text
    assert '"ids": {' in text


def test_the_order_in_which_parts_were_written_does_not_matter() -> None:
    assert replace(MANIFEST, files=MANIFEST.files[::-1]).to_json() == MANIFEST.to_json()


def test_a_manifest_of_a_newer_version_is_read_without_what_is_new() -> None:
    text = MANIFEST.to_json().replace('"kind"', '"weather": "fair",\n "kind"')
    assert Manifest.from_json(text) == MANIFEST


@pytest.mark.parametrize("cut", [0, 1, 50, -3])
def test_a_torn_manifest_is_no_manifest(cut: int) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(MANIFEST.to_json()[:cut])


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"files": {}}', '{"files": {}, "ids": {}}', '{"files": [], "ids": {}}']
)
def test_other_json_is_no_manifest(text: str) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"created_unix_ns": 10**30},
        {"created_unix_ns": -1},
        {"earlier": 10**12},
        {"earlier": True},
        {"status": 5},
        {"status": ["ok"]},
        {"kind": "weather"},
        {"kind": []},
        {"reason": "\ud800"},
        {"failure_class": ["infra"]},
        {"measurement_id": None},
        {"ids": {"deployment_id": None}},
    ],
    ids=str,
)
def test_a_manifest_with_a_value_that_no_column_holds_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(json.dumps(json.loads(MANIFEST.to_json()) | change))


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"path": path}
            for path in (
                "",
                ".",
                "data",
                "data/requests",
                "data/points/v=1/x.parquet",
                "plan.json",
                5,
            )
        ),
        {"path": "data/requests/../../x.parquet"},
        {"path": "data/requests/\0x.parquet"},
        {"bytes": -1},
        {"bytes": 2**63},
        {"rows": 1.5},
    ],
    ids=str,
)
def test_a_manifest_with_a_part_that_cannot_be_its_own_is_none(change: dict[str, Any]) -> None:
    content = json.loads(MANIFEST.to_json())
    content["files"]["requests"][0] |= change
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(json.dumps(content))


def test_launches_lie_apart_from_measurements() -> None:
    assert MANIFEST.key == "commits/m0/a0.json"
    assert replace(MANIFEST, kind="launch").key == "commits/launches/m0/a0.json"

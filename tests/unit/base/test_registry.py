"""Names to parts, those of third parties included."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.registry import Registry, did_you_mean


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place on sys.path where packages can say which parts they bring."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "acme_parts.py").write_text("PART = 'theirs'")
    return tmp_path


def brings(place: Path, *lines: str) -> None:
    about = place / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(["[orchestrator.parts]", *lines, ""]))


def parts() -> Registry[object]:
    return Registry("parts", {"maxsize": "sys:maxsize"})


@pytest.mark.parametrize("value", ["acme_parts:PART", "acme_parts:PART [extra]"])
def test_a_third_party_adds_a_part_and_replaces_none_of_ours(third_party: Path, value: str) -> None:
    brings(third_party, f"mine = {value}", f"maxsize = {value}")
    registry = parts()
    assert registry.names() == ["maxsize", "mine"]
    assert registry.shipped() == ["maxsize"]
    assert registry["mine"] == "theirs"
    assert registry["maxsize"] == sys.maxsize


@pytest.mark.parametrize("value", ["acme_gone:PART", "acme_parts:GONE"])
def test_an_entry_point_that_leads_nowhere_is_a_sentence_that_names_it(
    third_party: Path, value: str
) -> None:
    brings(third_party, f"mine = {value}")
    with pytest.raises(
        InputError,
        match=rf"'mine' of the entry points 'orchestrator.parts' \({value}\) cannot be loaded: .+",
    ):
        parts()["mine"]


def test_a_name_in_other_capitals_is_the_nearest() -> None:
    assert did_you_mean("vLLM", ["lightllm", "sglang", "vllm"]) == "did you mean 'vllm'?"
    assert did_you_mean("SGLang", ["lightllm", "sglang", "vllm"]) == "did you mean 'sglang'?"


def test_an_unknown_name_gets_the_nearest_one(third_party: Path) -> None:
    brings(third_party, "mine = acme_parts:PART")
    with pytest.raises(
        InputError, match=r"unknown part 'mind'; did you mean 'mine'\? Known: maxsize, mine"
    ):
        parts()["mind"]
    with pytest.raises(InputError, match=r"unknown part 'zzzz'\. Known: maxsize, mine"):
        parts()["zzzz"]

"""The workloads that ``FILE[:NAME]`` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cli.workload_file import experiment_at, workload_at, workloads_at

TEXT = """
workloads:
  - {name: short, input_tokens: 8, output_tokens: 5}
  - {name: long, input_tokens: 800, output_tokens: 5}
"""


def written(folder: Path, name: str = "w.yaml", text: str = TEXT) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def names_at(place: str) -> list[str]:
    return [workload.name for workload in workloads_at(experiment_at(place), place)]


def test_a_file_alone_means_all_its_workloads(tmp_path: Path) -> None:
    assert names_at(written(tmp_path)) == ["short", "long"]


def test_a_name_after_the_file_chooses_one(tmp_path: Path) -> None:
    assert workload_at(f"{written(tmp_path)}:long").name == "long"


def test_of_names_with_colons_the_longest_that_is_a_file_counts(tmp_path: Path) -> None:
    written(tmp_path, "w", text="workloads: []")
    place = written(tmp_path, "w:long")
    assert names_at(place) == ["short", "long"]
    assert names_at(f"{place}:short") == ["short"]


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="short"):
        workload_at(f"{written(tmp_path)}:shart")


def test_one_of_several_workloads_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="several workloads: .* one of short, long"):
        workload_at(written(tmp_path))


def test_a_file_without_workloads_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path, text="name: x\n")
    with pytest.raises(InputError):
        workload_at(place)

"""A results root and the experiments in it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.results.root import open_results


def experiment(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    return folder


def test_a_root_names_its_experiments(tmp_path: Path) -> None:
    experiment(tmp_path, "one")
    experiment(tmp_path, "two")
    assert set(open_results(str(tmp_path)).experiments) == {"one", "two"}


def test_a_folder_without_a_plan_is_no_experiment(tmp_path: Path) -> None:
    experiment(tmp_path, "one")
    (tmp_path / "other").mkdir()
    assert open_results(str(tmp_path)).experiments == ("one",)


def test_the_folder_of_one_experiment_is_opened_through_its_root(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "one")
    experiment(tmp_path, "two")
    assert open_results(str(folder)).experiments == ("one",)


def test_a_name_that_no_experiment_can_have_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment(tmp_path, "one")
    experiment(tmp_path, "-x")
    with caplog.at_level(logging.WARNING):
        assert open_results(str(tmp_path)).experiments == ("one",)
    assert "no experiment can have this name" in caplog.text


def test_a_root_without_experiments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no results at .*plan\.json"):
        open_results(str(tmp_path))


def test_an_unknown_experiment_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    experiment(tmp_path, "one")
    with pytest.raises(InputError, match=r"no experiment 'two' at .*; there: one"):
        open_results(str(tmp_path)).store("two")

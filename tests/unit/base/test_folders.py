"""Folders of one user that programs on a node share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.base import folders
from orchestrator.base.errors import OrchestratorError
from orchestrator.base.folders import node_folder, node_path


def test_the_path_names_the_user() -> None:
    assert node_path("work") == Path(f"/tmp/orchestrator-{os.getuid()}/work")


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "node_path", lambda name: tmp_path / "shared" / name)
    folder = node_folder("work")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_link_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "node_path", lambda name: tmp_path / "shared" / name)
    (tmp_path / "shared").symlink_to(tmp_path)
    with pytest.raises(OrchestratorError, match="is a link or a file"):
        node_folder("work")


def test_a_file_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "node_path", lambda name: tmp_path / "shared" / name)
    (tmp_path / "shared").touch()
    with pytest.raises(OrchestratorError, match="is a link or a file"):
        node_folder("work")


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "node_path", lambda name: tmp_path / "shared" / name)
    node_folder("work")
    owner = os.getuid()
    monkeypatch.setattr(folders.os, "getuid", lambda: owner + 1)
    with pytest.raises(OrchestratorError, match=f"belongs to user {owner}, not to us"):
        node_folder("work")

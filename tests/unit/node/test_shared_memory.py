"""Shared memory of engines: which segments are theirs, and which are removed."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import pytest

from orchestrator.node.shared_memory import SharedSegment, mapped, names, remove


def test_only_segments_with_names_of_engines_are_seen(tmp_path: Path) -> None:
    for name in ("vllm_queue", "psm_1234", "something"):
        (tmp_path / name).write_bytes(bytes(4096))
    assert names(f"{tmp_path}/") == {"vllm_queue", "psm_1234"}


def test_no_folder_of_shared_memory_has_no_segments(tmp_path: Path) -> None:
    assert names(f"{tmp_path}/nothing/") == set()


def test_segments_that_a_process_has_mapped_are_its_own(tmp_path: Path) -> None:
    segment = tmp_path / "psm_mine"
    segment.write_bytes(bytes(4096))
    (tmp_path / "psm_of_another").write_bytes(bytes(4096))
    with segment.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert mapped([os.getpid()], folder=f"{tmp_path}/") == {
            SharedSegment(str(segment), segment.stat().st_ino)
        }
    assert mapped([os.getpid()], folder=f"{tmp_path}/") == set()


def test_a_file_of_the_same_name_with_another_inode_stays(tmp_path: Path) -> None:
    ours, replaced = tmp_path / "psm_ours", tmp_path / "psm_replaced"
    ours.touch()
    replaced.touch()
    remove(
        [
            SharedSegment(str(ours), ours.stat().st_ino),
            SharedSegment(str(replaced), replaced.stat().st_ino + 1),
        ]
    )
    assert not ours.exists()
    assert replaced.exists()


def test_removing_a_segment_that_is_gone_is_no_error(tmp_path: Path) -> None:
    remove([SharedSegment(str(tmp_path / "psm_gone"), 1)])


def test_a_process_stuck_in_the_kernel_does_not_delay_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, freed = "7f00-7f01 rw-s 0 00:19 99 /dev/shm/vllm_queue", threading.Event()
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, errors: lines if path.parent.name == "1" else str(freed.wait()),
    )
    try:
        assert mapped([1, 2, 1], limit_s=0.3) == {SharedSegment("/dev/shm/vllm_queue", 99)}
    finally:
        freed.set()

"""The text whose slices are sent: read once, the same as was planned, refused with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.results.ids import content_digest
from orchestrator.spec.sessions import ContentSource
from orchestrator.workloads.corpus import identified, read_text


def source(path: Path) -> ContentSource:
    return ContentSource(text=str(path))


def test_a_text_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("four score")
    planned = identified(ContentSource(text="a.txt"), lambda name: str(tmp_path / name))
    assert planned.text == str(path)
    assert planned.text_digest == content_digest(b"four score")
    assert read_text(planned) == "four score"


def test_another_text_than_the_planned_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("four score")
    planned = identified(source(path), str)
    path.write_text("five score!")
    with pytest.raises(ProblemsError, match="is not the file that was planned"):
        read_text(planned)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"abc\xff", "is not UTF-8 at byte 3"),
        (b" \n", "is empty"),
        (b"PAR1....", "is a Parquet file"),
        (b"\x1f\x8b..", r"is compressed \(gzip\)"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(ProblemsError, match=f"a.txt.*{reason}"):
        read_text(source(tmp_path / "a.txt"))

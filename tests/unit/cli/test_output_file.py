"""Files that commands write: whole, and into folders that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cli.output_file import check_folder, write_whole


def test_a_file_replaces_an_earlier_one_and_leaves_no_part(tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    output.write_bytes(b"an earlier page, which was longer")
    write_whole(output, b"a page")
    assert output.read_bytes() == b"a page"
    assert list(tmp_path.iterdir()) == [output]


def test_an_earlier_file_stays_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    output.write_bytes(b"an earlier page")
    (tmp_path / "page.html.partial").mkdir()  # nothing can be written there
    with pytest.raises(IsADirectoryError):
        write_whole(output, b"a page")
    assert output.read_bytes() == b"an earlier page"


def test_a_folder_that_is_missing_is_named_with_its_option(tmp_path: Path) -> None:
    check_folder(tmp_path / "page.html")
    folder = tmp_path / "none"
    with pytest.raises(InputError, match=f"--page: there is no folder {folder}"):
        check_folder(folder / "page.html", "--page")

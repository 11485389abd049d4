"""Looking objects up where storage refuses some of the calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import fs

from orchestrator.results.blobs import Blobs, Retry
from orchestrator.results.location import parse_location


class ThirdRefused:
    """A file system that refuses every third path that it is asked for, and with it the call it came in."""

    def __init__(self, under: Any) -> None:
        self._under, self._asked = under, 0

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        before, self._asked = self._asked, self._asked + len(paths)
        if before // 3 < self._asked // 3:
            raise OSError("slow down")
        found: list[fs.FileInfo] = self._under.get_file_info(paths)
        return found


def test_many_objects_are_looked_up_where_every_third_call_is_refused(tmp_path: Path) -> None:
    """All of them in one call would be refused for ever."""
    blobs = Blobs(parse_location(str(tmp_path)), Retry(sleep=lambda seconds: None))
    names = [f"part-{number}" for number in range(7)]
    for name in names[:-1]:
        blobs.put(name, name.encode())
    blobs.filesystem = ThirdRefused(blobs.filesystem)
    assert blobs.sizes(names) == [6] * 6 + [None]

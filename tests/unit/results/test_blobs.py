"""Looking objects up where storage refuses some of the calls."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow import fs

from orchestrator.results.blobs import Blobs
from orchestrator.results.location import parse_location
from orchestrator.results.storage_retry import Retry


class ThirdRefused:
    """A file system that refuses every third path that it is asked for, and with it the call it
    came in.
    """

    def __init__(self, under: Any) -> None:
        self._under, self._asked = under, 0

    def get_file_info(self, paths: str | list[str]) -> Any:
        before, self._asked = (
            self._asked,
            self._asked + (1 if isinstance(paths, str) else len(paths)),
        )
        if before // 3 < self._asked // 3:
            raise OSError("slow down")
        return self._under.get_file_info(paths)


def test_many_objects_are_looked_up_where_every_third_call_is_refused(tmp_path: Path) -> None:
    """All of them in one call would be refused for ever."""
    blobs = Blobs(parse_location(str(tmp_path)), Retry(sleep=lambda seconds: None))
    names = [f"part-{number}" for number in range(7)]
    for name in names[:-1]:
        blobs.put(name, name.encode())
    blobs.filesystem = ThirdRefused(blobs.filesystem)
    assert blobs.sizes(names) == [6] * 6 + [None]


class EveryThirdRefused:
    """A bucket that takes objects; of all calls every third is refused, and a look for what is not
    there is two.
    """

    def __init__(self) -> None:
        self.calls, self.objects = 2, dict[str, bytes]()  # the next one is the third

    def _call(self) -> None:
        self.calls += 1
        if self.calls % 3 == 0:
            raise OSError("AWS Error SLOW_DOWN during PutObject operation")

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[io.BytesIO]:
        self._call()
        yield (stream := io.BytesIO())
        self.objects[path] = stream.getvalue()

    def get_file_info(self, path: str) -> fs.FileInfo:
        self._call()
        self._call()
        return fs.FileInfo(path)


def test_an_object_is_written_where_every_third_call_is_refused() -> None:
    """Looking whether it arrived all the same would make the next try the third call again, for
    ever.
    """
    location = parse_location(
        "s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    )
    blobs = Blobs(location, Retry(sleep=lambda seconds: None))
    blobs.filesystem = bucket = EveryThirdRefused()
    blobs.put("part", b"rows")
    assert list(bucket.objects.values()) == [b"rows"]

"""A format is found by the names of its columns, and a table of other names is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.workloads.trace_formats import format_of, header_of
from tests.unit.workloads import traces
from tests.unit.workloads.traces import lines, rows


@pytest.mark.parametrize(
    ("text", "name", "block_tokens"),
    [
        (traces.AZURE_2023, "azure", None),
        (traces.AZURE_2024, "azure", None),
        (traces.AZURE_2025, "azure", None),
        ("\ufeff" + traces.BURSTGPT_1, "burstgpt", None),
        (traces.BURSTGPT_2, "burstgpt", None),
        (traces.MOONCAKE, "mooncake", 512),
        (traces.BAILIAN, "bailian", 16),
        (traces.WEKA, "weka", None),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_published_trace_is_found_by_its_header(
    tmp_path: Path, text: str, name: str, block_tokens: int | None, is_packed: bool
) -> None:
    path = tmp_path / "any name"
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    found = format_of(header_of(str(path)))
    assert found is not None
    assert (found.name, found.block_tokens) == (name, block_tokens)


def test_a_file_may_be_one_object_over_several_lines(tmp_path: Path) -> None:
    session = json.loads(traces.WEKA.splitlines()[0])
    read = rows(tmp_path / "t.json", json.dumps(session, indent=1))
    assert read.inputs.tolist() == [130, 256, 300, 64]
    with pytest.raises(ProblemsError, match="row 1: "):
        rows(tmp_path / "t.json", json.dumps(session, indent=1)[:-2])


@pytest.mark.parametrize(
    ("text", "name", "other"),
    [
        (traces.MOONCAKE.replace('{"timestamp"', '{"user": 3, "timestamp"', 1), "mooncake", "user"),
        (
            traces.AZURE_2024.replace("+00:00,", "+00:00,x,").replace("P,", "P,user,"),
            "azure",
            "user",
        ),
        (traces.BURSTGPT_2.replace("Log Type", "Kind"), "burstgpt", "Kind"),
    ],
)
def test_a_format_that_is_named_may_have_other_columns_which_change_nothing(
    tmp_path: Path, text: str, name: str, other: str
) -> None:
    read = rows(tmp_path / "t", text, format=name)
    assert read.format.name == name
    assert read.requests == 3
    assert other in read.unused
    with pytest.raises(ProblemsError, match=f"of {name} and others: .*give 'format: {name}'"):
        rows(tmp_path / "t", text)


@pytest.mark.parametrize(
    ("text", "keys", "reason"),
    [
        ("a,b\n1,2\n", {}, "has the columns a, b, which are those of no known trace"),
        (traces.AZURE_2023, {"format": "burstgpt"}, "has the columns of azure, not of burstgpt"),
        (traces.AZURE_2023, {"unit": "ms"}, "has dates as its times, which have no 'unit'"),
        (
            lines({"timestamp": 1, "input_length": 5, "output_length": 5}),
            {},
            "timestamp, input_length, output_length, which are those of no known trace",
        ),
        (
            lines(
                {"timestamp": "82", "input_length": 5, "output_length": 5, "hash_ids": {}, "u": 1}
            ),
            {},
            "give 'format: mooncake', else 'columns: {time: ",
        ),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:4bb3\nsize 52283111\n",
            {},
            "is the pointer of Git LFS and not the file",
        ),
        ("", {}, "is empty"),
        ("{]\n", {}, "row 1"),
        (b"\x80\x81\n", {}, "is neither a table"),
        (b"\x1f\x8bno gzip", {}, "cannot be read"),
        (b"PAR1no parquet", {}, "is a broken Parquet file"),
        (b"a,b\rc,d\n", {}, "has a header that cannot be read"),
    ],
)
def test_what_is_no_known_trace_is_refused(
    tmp_path: Path, text: str | bytes, keys: dict[str, str], reason: str
) -> None:
    with pytest.raises(ProblemsError, match=reason):
        rows(tmp_path / "t.csv", text, **keys)

"""Bytes and records as text of a page, read back as a browser does."""

from __future__ import annotations

import base64
import json
import zlib

from orchestrator.report.page.packing import json_line, packed, packed_bins

BINS = bytes(range(256)) * 4


def unpacked(text: str) -> bytes:
    """What ``DecompressionStream("deflate")`` makes of it: deflate in the format of zlib."""
    return zlib.decompress(base64.b64decode(text))


def test_packed_bytes_are_what_they_were() -> None:
    assert unpacked(packed(BINS)) == BINS
    assert unpacked(packed_bins(BINS)) == BINS


def test_sequences_that_recur_are_sought_only_outside_bins() -> None:
    assert len(packed(BINS)) < len(BINS) / 2  # the same 256 bytes four times
    assert len(packed_bins(BINS)) > len(BINS)  # all bytes are equally frequent


def test_a_record_is_one_line() -> None:
    line = json_line({"text": "a\nb", "level": 2.0})
    assert "\n" not in line
    assert json.loads(line) == {"text": "a\nb", "level": 2.0}

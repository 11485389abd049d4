"""Turns bytes and records into text that may stand in a page."""

import base64
import zlib
from collections.abc import Mapping

import orjson


def json_line(record: Mapping[str, object]) -> str:
    """The record as JSON in one line."""
    return orjson.dumps(record).decode()


def packed(data: bytes) -> str:
    """The compressed data in base64; ``DecompressionStream("deflate")`` decompresses it."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


def packed_bins(data: bytes) -> str:
    """``packed`` for bins, by Huffman codes alone.

    Sequences of bins do not recur, so this is smaller, and five times as fast.
    """
    coder = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return base64.b64encode(coder.compress(data) + coder.flush()).decode()

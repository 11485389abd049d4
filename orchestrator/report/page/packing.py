"""Bytes and records as text that a page may hold."""

import base64
import zlib
from collections.abc import Mapping

import orjson


def json_line(record: Mapping[str, object]) -> str:
    """The record as JSON in one line."""
    return orjson.dumps(record).decode()


def packed(data: bytes) -> str:
    """The data, compressed, in base64: ``DecompressionStream("deflate")`` undoes it."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


def packed_bins(data: bytes) -> str:
    """The same for bins, whose order repeats nothing: by Huffman codes alone, which is smaller and
    five times as fast.
    """
    coder = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return base64.b64encode(coder.compress(data) + coder.flush()).decode()

"""Bytes as text that a page may hold."""

import base64
import zlib


def packed(data: bytes) -> str:
    """The data, compressed, in base64: ``DecompressionStream("deflate")`` undoes it."""
    return base64.b64encode(zlib.compress(data, 6)).decode()

"""Secrets that tests plant, a server that repeats what it is told, and the search for leaks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tests.harness import ROOT, free_port, wait_for

ECHOING = ROOT / "tests" / "integration" / "echoing.py"
PLANTED = {
    "HF_TOKEN": "hf_Pl4ntedT0kenQwErTyUiOpAsDf",
    # of the endpoint: no known shape, and written otherwise in a URL
    "PLANTED_KEY": "zX9-plan/ted+key=Wm7Lq2Vt5Bn8",
    "PLANTED_PASSWORD": "pä\\ss\"'wörd-Yh3Gk6Rd9Tf",  # which repr and JSON escape
}
PIECE_LETTERS = 8  # so many letters of a secret in a row are a leak


@dataclass(frozen=True)
class Leak:
    """A piece of a secret that was found, with what stands before it."""

    place: str
    before: bytes
    piece: bytes


@contextmanager
def echoing_endpoint() -> Iterator[int]:
    """The port of an endpoint that repeats what it was told."""
    port = free_port()
    server = subprocess.Popen([sys.executable, str(ECHOING), str(port)], stdout=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 30, "the endpoint answers")
        yield port
    finally:
        server.terminate()
        server.wait()


def write_echoing_program(path: Path) -> None:
    """Writes a program that is started as vLLM is, and repeats what it is told."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ECHOING}" "$@"\n')
    path.chmod(0o700)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of all files, and the values of Parquet files, which are compressed."""
    for path in filter(Path.is_file, folder.rglob("*")):
        yield str(path), path.read_bytes()
        if path.suffix == ".parquet":
            values = pq.read_table(path).to_pylist()
            yield f"{path} (values)", json.dumps(values, default=str, ensure_ascii=False).encode()


def leaks(texts: Mapping[str, bytes], secrets: Collection[str]) -> list[Leak]:
    """The pieces of secrets in these texts. ``texts``: by the place where they were found."""
    pieces: set[bytes] = set()
    for secret in secrets:
        pieces |= _pieces(secret)
    found: list[Leak] = []
    for place, text in texts.items():
        for piece in pieces:
            begin = text.find(piece)
            if begin >= 0:
                found.append(Leak(place, text[max(0, begin - 60) : begin], piece))
    return found


def _pieces(secret: str) -> set[bytes]:
    begins = range(len(secret) - PIECE_LETTERS + 1)
    return {secret[begin : begin + PIECE_LETTERS].encode() for begin in begins}

"""Secrets that engines, servers and people say aloud are found nowhere afterwards: a sweep against
servers that do.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.harness import MODEL, ROOT, free_port, orchestrator, wait_for, write_experiment

ECHOING = ROOT / "tests" / "integration" / "echoing.py"
SECRETS = {
    "HF_TOKEN": "hf_Pl4ntedT0kenQwErTyUiOpAsDf",
    # of the endpoint: no known shape, and written otherwise in a URL
    "PLANTED_KEY": "zX9-plan/ted+key=Wm7Lq2Vt5Bn8",
    "PLANTED_PASSWORD": "pä\\ss\"'wörd-Yh3Gk6Rd9Tf",  # which repr and JSON escape
}
PIECES = 8  # letters: as many of a secret in a row are a leak
EXPERIMENT = """
version: 1
name: planted
model: {{id: {model}, tokenizer: {model}}}
hardware: {{}}
deployments:
  - {{engine: vllm, executable: {program}, hardware: cpu, env: {{DIE_AT: "70"}}}}
  - {{engine: vllm, executable: {program}, hardware: cpu, env: {{DIE_AT: "0"}}}}
  - {{engine: endpoint, url: "http://127.0.0.1:{port}", api_key_env: PLANTED_KEY, served_model_name: planted}}
  - {{engine: endpoint, url: "http://127.0.0.1:{port}", api_key_env: PLANTED_KEY, served_model_name: unknown}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, requests: 60, warmup: 0s, request_timeout: 20s}}
isolation: shared
"""


@contextlib.contextmanager
def echoing() -> Iterator[int]:
    """The port of an endpoint that repeats what it was told."""
    port = free_port()
    server = subprocess.Popen([sys.executable, str(ECHOING), str(port)], stdout=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 30, "the endpoint answers")
        yield port
    finally:
        server.terminate()
        server.wait()


def pieces(secret: str) -> set[bytes]:
    """All that must not be found of a secret."""
    return {secret[at : at + PIECES].encode() for at in range(len(secret) - PIECES + 1)}


def texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files as they are, and the values of Parquet, which is compressed."""
    for path in filter(Path.is_file, folder.rglob("*")):
        yield str(path), path.read_bytes()
        if path.suffix == ".parquet":
            values = pq.read_table(path).to_pylist()
            yield f"{path} (values)", json.dumps(values, default=str, ensure_ascii=False).encode()


@pytest.mark.skipif(not MODEL.exists(), reason="needs the tiny model: make model")
def test_a_secret_said_aloud_in_every_place_is_found_nowhere(tmp_path: Path) -> None:
    program, results = tmp_path / "program", tmp_path / "results"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ECHOING}" "$@"\n')
    program.chmod(0o700)
    environment = {**SECRETS, "HF_HUB_OFFLINE": "1"}
    with echoing() as port:
        file = write_experiment(
            tmp_path, EXPERIMENT.format(model=MODEL, program=program, port=port)
        )
        frozen = str(tmp_path / "plan.json")
        done = [
            orchestrator("plan", str(file), "--output", frozen, "--format", "json", **environment),
            orchestrator(
                "run", frozen, "--results", str(results), "--address", "local", **environment
            ),
        ]
    done += [
        orchestrator("results", str(results), *more)
        for more in (("--format", "json"), ("--format", "csv"))
    ]
    done += [
        orchestrator("results", str(results), "--all", "--launches"),
        orchestrator("logs", str(results)),
    ]
    assert [one.returncode for one in done[:2]] == [0, 3], [one.stderr[-2000:] for one in done[:2]]
    stored = dict(texts(results)) | {frozen: Path(frozen).read_bytes()}
    shown = {
        f"{at}: {' '.join(one.args[3:5])}": (one.stdout + one.stderr).encode()
        for at, one in enumerate(done)
    }
    assert any(b"***" in text for text in stored.values())
    assert any(
        "rank0.log" in name and b"PLANTED_PASSWORD=***" in text for name, text in stored.items()
    )
    leaks = [
        (name, *found)
        for name, text in (stored | shown).items()
        for secret in SECRETS.values()
        for piece in pieces(secret)
        if (found := leak(text, piece))
    ]
    assert not leaks, leaks[:20]


def leak(text: bytes, piece: bytes) -> tuple[bytes, bytes] | None:
    """A piece of a secret, with what stands before it."""
    at = text.find(piece)
    return None if at < 0 else (text[max(0, at - 60) : at], piece)

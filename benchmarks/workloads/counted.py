"""Does a real engine count as many tokens in a prompt as were asked for?

    python -m benchmarks.workloads.counted --prompts 3000

Starts vLLM on the CPU (scripts/install_engines.py) with the tiny model and sends prompts of each
kind: random ids, words, slices of a text as ids and as text, and words in chats. Prompts are 16 to
128 tokens long and answers have one token. In a chat the engine also counts its template, so the
difference should be the same for all prompts; other prompts should have no difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.load.point import LoadPoint, Target
from orchestrator.results.ids import new_ulid
from orchestrator.spec.load import Level, Workload
from orchestrator.sweep.endpoint import measure_here
from tests.integration.engine_real import CORES, Running, running, script, settings

IN_FLIGHT = 32
PROMPT_TOKENS = {"uniform": {"min": 16, "max": 128}}
CORPUS_SENTENCES = 4000


@dataclass(frozen=True)
class PromptKind:
    """One way to make prompts: where their tokens come from, and the API that they are sent to."""

    name: str
    api: str = "completions"
    sends_ids: bool = False
    cuts_text: bool = False


KINDS = (
    PromptKind("random ids", sends_ids=True),
    PromptKind("words"),
    PromptKind("slices of a text, as ids", sends_ids=True, cuts_text=True),
    PromptKind("slices of a text, as text", cuts_text=True),
    PromptKind("words in a chat", api="chat"),
    PromptKind("slices of a text in a chat", api="chat", cuts_text=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=3000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = script("make_tiny_model")
        tiny.make(folder / "model")
        corpus = folder / "corpus.txt"
        corpus.write_text(" ".join(tiny.text(np.random.default_rng(3), CORPUS_SENTENCES)))
        given = settings(
            "vllm",
            enforce_eager=True,
            max_model_len=1024,
            kv_cache_tokens=16384,
            max_num_seqs=IN_FLIGHT,
        )
        with running(given, folder / "engine", folder / "model", (CORES,)) as server:
            server.wait()
            for kind in KINDS:
                started = time.monotonic()
                point = point_of(kind, server, folder / "model", corpus, options)
                differences = counted_minus_asked(point)
                print(line_of(kind, differences, time.monotonic() - started), flush=True)


def point_of(
    kind: PromptKind, server: Running, model: Path, corpus: Path, options: argparse.Namespace
) -> LoadPoint:
    """A point that sends the prompts of one kind, IN_FLIGHT at a time."""
    workload: dict[str, Any] = {
        "name": "counted",
        "api": kind.api,
        "input_tokens": PROMPT_TOKENS,
        "output_tokens": 1,
    }
    if kind.cuts_text:
        workload["content"] = {"text": str(corpus)}
    dialect = server.engine.dialects(server.settings)[kind.api]
    return LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=replace(dialect, prompt_token_ids=kind.sends_ids).salted(new_ulid()),
        workload=Workload.model_validate(workload),
        level=Level(control="concurrency", value=IN_FLIGHT),
        duration_s=None,
        requests=options.prompts,
        warmup_s=0.0,
        seed=options.seed,
        tokenizer=str(model),
    )


def counted_minus_asked(point: LoadPoint) -> Counter[int]:
    """Tokens that the engine counted minus those asked for -> number of prompts."""
    loaded = measure_here(point).loaded
    assert loaded is not None
    errors = loaded.requests["error"].drop_null().to_pylist()
    assert not errors, errors[0]
    counted = loaded.requests["input_tokens"].to_pylist()
    asked = loaded.requests["input_tokens_asked"].to_pylist()
    return Counter(count - tokens for count, tokens in zip(counted, asked, strict=True))


def line_of(kind: PromptKind, differences: Counter[int], took_s: float) -> str:
    """The most frequent difference, how many prompts have it, and all other differences."""
    (usual, prompts), *others = differences.most_common()
    line = (
        f"{kind.name}: {prompts:,} of {differences.total():,} prompts were counted {usual:+d} "
        f"tokens, in {took_s:.0f} s"
    )
    if others:
        line += "; others: " + ", ".join(f"{tokens:+d} ({number})" for tokens, number in others)
    return line


if __name__ == "__main__":
    main()

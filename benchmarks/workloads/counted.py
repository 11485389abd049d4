"""Does a real engine count as many tokens in a prompt as were asked for?

    python -m benchmarks.workloads.counted --prompts 3000
    python -m benchmarks.workloads.counted --prompts 200 --longest 4000 --tokenizer FILE

Starts vLLM on the CPU (scripts/install_engines.py) with the tiny model and sends prompts of each
kind: random ids, words, slices of a text as ids and as text, chats, prefixes with documents, and
conversations. Prompts are 16 to ``--longest`` tokens long and answers have one token. In a chat the
engine also counts its template, so the difference should be the same for all prompts of a turn;
other prompts should have no difference.

``--tokenizer``: the model has that tokenizer and as many embeddings. FILE is a tokenizer.json, or
what fast_tokenizer.py makes one of: vocab.json (with merges.txt beside it), SentencePiece's
tokenizer.model, *.tiktoken or tekken*.json.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from orchestrator.load.point import LoadPoint, Target
from orchestrator.results.ids import new_ulid
from orchestrator.spec.load import Level, Workload
from orchestrator.sweep.endpoint import measure_here
from tests.integration.engine_real import CORES, Running, home_of, running, script, settings

IN_FLIGHT = 32
SHORTEST = 16
CORPUS_SENTENCES = 4000
# narrow, because the model may have 200,000 embeddings
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8192,
}
MAX_LENGTH = 8192
CONVERSATION = {"kind": "conversations", "turns": 4}
DOCUMENTS = {
    "shared_prefix_tokens": 100,
    "shared_prefix_count": 8,
    "documents": {"count": 3, "tokens": {"uniform": {"min": 50, "max": 200}}, "pool": 100},
}


@dataclass(frozen=True)
class PromptKind:
    """One way to make prompts: where their tokens come from, and the API that they are sent to."""

    name: str
    api: str = "completions"
    sends_ids: bool = False
    cuts_text: bool = False
    keys: dict[str, Any] = field(default_factory=dict)  # of the workload

    @property
    def is_conversation(self) -> bool:
        return self.keys.get("kind") == "conversations"


KINDS = (
    PromptKind("random ids", sends_ids=True),
    PromptKind("words"),
    PromptKind("slices of a text, as ids", sends_ids=True, cuts_text=True),
    PromptKind("slices of a text, as text", cuts_text=True),
    PromptKind("words in a chat", api="chat"),
    PromptKind("slices of a text in a chat", api="chat", cuts_text=True),
    PromptKind("ids with a prefix and documents", sends_ids=True, keys=DOCUMENTS),
    PromptKind("words with a prefix and documents", keys=DOCUMENTS),
    PromptKind("slices with a prefix and documents", cuts_text=True, keys=DOCUMENTS),
    PromptKind("conversations of ids", sends_ids=True, keys=CONVERSATION),
    PromptKind("conversations of words", keys=CONVERSATION),
    PromptKind("chats of four turns", api="chat", keys=CONVERSATION),
    PromptKind("chats with a prefix and documents", api="chat", cuts_text=True, keys=DOCUMENTS),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=3000, help="of each kind")
    parser.add_argument("--longest", type=int, default=128, help="tokens of the longest prompt")
    parser.add_argument("--tokenizer", type=Path, help="a published one, in place of the made one")
    parser.add_argument("--corpus", type=Path, help="a text; default: sentences of made words")
    parser.add_argument("--only", action="append", help="kinds whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = script("make_tiny_model")
        make_model(tiny, options.tokenizer, folder)
        corpus = options.corpus or folder / "corpus.txt"
        if options.corpus is None:
            corpus.write_text(" ".join(tiny.text(np.random.default_rng(3), CORPUS_SENTENCES)))
        given = settings(
            "vllm",
            enforce_eager=True,
            max_model_len=MAX_LENGTH,
            kv_cache_tokens=16 * MAX_LENGTH,
            max_num_seqs=IN_FLIGHT,
        )
        with running(given, folder / "engine", folder / "model", (CORES,)) as server:
            server.wait()
            for kind in KINDS:
                if options.only and not kind.name.startswith(tuple(options.only)):
                    continue
                started = time.monotonic()
                point = point_of(kind, server, folder / "model", corpus, options)
                differences = counted_minus_asked(point)
                print(line_of(kind, differences, time.monotonic() - started), flush=True)


def make_model(tiny: ModuleType, tokenizer: Path | None, folder: Path) -> None:
    """Writes a model with this tokenizer, or the tiny one's own, to FOLDER/model."""
    model = folder / "model"
    config = tiny.CONFIG | NARROW
    if tokenizer is None or tokenizer.name == "tokenizer.json":
        tiny.make(model, config=config, published=tokenizer)
        return
    python = home_of("vllm") / "bin" / "python"
    converter = Path(__file__).with_name("fast_tokenizer.py")
    subprocess.run([python, converter, tokenizer, folder / "converted"], check=True)
    tiny.make(model, config=config, published=folder / "converted" / "tokenizer.json")


@dataclass(frozen=True)
class Difference:
    """Tokens that the engine counted in a prompt minus those asked for."""

    turn: int
    tokens: int


def point_of(
    kind: PromptKind, server: Running, model: Path, corpus: Path, options: argparse.Namespace
) -> LoadPoint:
    """A point that sends the prompts of one kind, IN_FLIGHT at a time."""
    longest = options.longest // 4 if kind.is_conversation else options.longest
    workload: dict[str, Any] = {
        "name": "counted",
        "api": kind.api,
        "input_tokens": {"uniform": {"min": SHORTEST, "max": longest}},
        "output_tokens": 1,
        **kind.keys,
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


def counted_minus_asked(point: LoadPoint) -> Counter[Difference]:
    """Tokens that the engine counted minus those asked for, by turn -> number of prompts."""
    loaded = measure_here(point).loaded
    assert loaded is not None
    errors = loaded.requests["error"].drop_null().to_pylist()
    assert not errors, errors[0]
    counted = loaded.requests["input_tokens"].to_pylist()
    asked = loaded.requests["input_tokens_asked"].to_pylist()
    turns = loaded.requests["turn"].to_pylist()
    return Counter(
        Difference(turn, count - tokens)
        for turn, count, tokens in zip(turns, counted, asked, strict=True)
    )


def line_of(kind: PromptKind, differences: Counter[Difference], took_s: float) -> str:
    """The most frequent difference of each turn, how many prompts have it, and all others."""
    usual: list[Difference] = []
    for turn in sorted({difference.turn for difference in differences}):
        of_turn = {
            difference: count
            for difference, count in differences.items()
            if difference.turn == turn
        }
        usual.append(max(of_turn, key=lambda difference: of_turn[difference]))
    prompts = sum(differences[difference] for difference in usual)
    tokens = ", ".join(f"{difference.tokens:+d}" for difference in usual)
    line = (
        f"{kind.name}: {prompts:,} of {differences.total():,} prompts were counted {tokens} "
        f"tokens, in {took_s:.0f} s"
    )
    others = {
        difference: count for difference, count in differences.items() if difference not in usual
    }
    if others:
        line += "; others: " + ", ".join(
            f"{difference.tokens:+d} ({number})" for difference, number in others.items()
        )
    return line


if __name__ == "__main__":
    main()

"""Reuse of prompts: what an endless prefix cache would have."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.spec.load import Workload
from orchestrator.workloads.mix import MixWorkload
from orchestrator.workloads.reuse import Reuse, WorkloadReuse, reuse_of
from orchestrator.workloads.segments import NameOfDraw


def reuse(sessions: int, **keys: Any) -> Reuse:
    workload = Workload.model_validate({"name": "w", "output_tokens": 16, **keys})
    return all_of(reuse_of(workload, 0, range(sessions)))


def all_of(found: WorkloadReuse) -> Reuse:
    """The reuse of a workload whose prompts are all known."""
    assert found.of_all is not None
    assert not found.uncounted
    return found.of_all


def why_unknown(keys: dict[str, Any]) -> list[str]:
    """What the prompts of a workload hold whose reuse is not known."""
    found = reuse_of(Workload.model_validate(keys), 0, range(1))
    assert found.of_all is None and found.of_known is None
    return [*found.uncounted]


def test_requests_that_share_nothing_have_none() -> None:
    assert reuse(50, input_tokens=64) == Reuse(50 * 64, 0)


def test_all_but_the_first_have_a_shared_prefix() -> None:
    assert reuse(50, input_tokens=64, shared_prefix_tokens=160) == Reuse(50 * 224, 49 * 160)


def test_each_adapter_computes_a_shared_prefix_anew() -> None:
    adapters = {"names": ["sql", "law"]}
    shared = reuse(50, input_tokens=64, shared_prefix_tokens=160, adapters=adapters)
    assert shared == Reuse(50 * 224, 48 * 160)


def test_prompts_with_tools_have_no_known_reuse() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    keys = {"name": "w", "api": "chat", "input_tokens": 64, "output_tokens": 3, "tools": [tool]}
    assert why_unknown(keys) == ["tools"]


def test_slices_of_a_text_have_no_known_reuse(tmp_path: Path) -> None:
    """Many slices of a short text begin at the same word."""
    (tmp_path / "text.txt").write_text("one two three four five six\n" * 20)
    content = {"text": str(tmp_path / "text.txt")}
    slices = {"name": "w", "input_tokens": 64, "output_tokens": 3, "content": content}
    assert why_unknown(slices) == ["slices of a text"]
    words = {**slices, "content": "words"}
    assert all_of(reuse_of(Workload.model_validate(words), 0, range(5))) == Reuse(5 * 64, 0)


def test_a_turn_has_everything_before_it() -> None:
    talk = {"kind": "conversations", "turns": 3, "input_tokens": 32}
    # Prompts of 32, 80 and 128 tokens. Of an answer the last token is in no cache, so of the second
    # prompt 47 tokens are known, and of the third 95: 2 and 5 blocks of 16.
    assert reuse(10, **talk) == Reuse(10 * 240, 10 * 112)


def test_blocks_of_a_trace_are_found_again(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 16, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 1536, "output_length": 16, "hash_ids": [1, 2, 3]},
        {"timestamp": 10, "input_length": 512, "output_length": 16, "hash_ids": [2]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    workload = Workload.model_validate({"name": "w", "kind": "trace", "trace": str(path)})
    assert all_of(reuse_of(workload, 0, range(3))) == Reuse(1024 + 1536 + 512, 1024)


def test_texts_that_nobody_counted_have_no_reuse(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n")
    keys = {"name": "w", "kind": "file", "prompts": str(tmp_path / "p.txt"), "output_tokens": 3}
    assert why_unknown(keys) == ["texts of a file"]


def test_recorded_tools_beside_a_length_are_why_it_has_no_reuse(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    line = {"input_length": 40, "output_length": 5, "tools": [tool]}
    (tmp_path / "t.jsonl").write_text(json.dumps(line))
    keys = {"name": "w", "kind": "file", "prompts": str(tmp_path / "t.jsonl"), "api": "chat"}
    assert why_unknown(keys) == ["tools"]


def test_the_known_parts_of_a_mix_have_their_reuse(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four five six\n" * 20)
    lengths = {"input_tokens": 64, "output_tokens": 16}
    contents = {
        "shared": {"shared_prefix_tokens": 160},
        "apart": {},
        "code": {"content": {"text": str(tmp_path / "text.txt")}},
    }
    parts = [
        {"workload": name, "content": {"name": name, **lengths, **keys}}
        for name, keys in contents.items()
    ]
    mix = MixWorkload.model_validate({"name": "m", "kind": "mix", "parts": parts})
    found = reuse_of(mix, 0, range(100))
    requests = mix.requests(NameOfDraw(), 0)
    sent = Counter(requests.part(session) for session in range(100))
    assert found.by_part == {
        "shared": Reuse(sent["shared"] * 224, (sent["shared"] - 1) * 160),
        "apart": Reuse(sent["apart"] * 64, 0),
    }
    assert found.of_all is None
    of_known = found.of_known
    assert of_known is not None
    assert of_known.cached_tokens == (sent["shared"] - 1) * 160
    assert of_known.prompt_tokens == sent["shared"] * 224 + sent["apart"] * 64
    assert found.uncounted == ["slices of a text"]
    _, apart, code = mix.contents
    assert all_of(found.of_part(apart)) == found.by_part["apart"]
    assert found.of_part(code).of_all is None
    assert found.of_part(code).uncounted == ["slices of a text"]


def test_popular_documents_are_found_again() -> None:
    documents = {
        "count": 2,
        "tokens": {"uniform": {"min": 100, "max": 100}},
        "pool": 1000,
    }
    alike = reuse(300, input_tokens=16, documents=documents)
    popular = reuse(300, input_tokens=16, documents={**documents, "popularity": {"zipf": 1.5}})
    assert popular.share > 0.3 > alike.share
    assert Reuse(0, 0).share == pytest.approx(0)

"""GGUF files: what their header says, and the parts of a model."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import memory, models
from orchestrator.catalog.gguf import parts_of
from orchestrator.catalog.models import model_facts
from orchestrator.spec.settings import EngineSettings


@pytest.fixture(autouse=True)
def _fresh() -> None:
    models._facts_cached.cache_clear()


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_file(path: Path, weights: int, version: int = 3, **more: Any) -> bytes:
    """A GGUF file of a Llama: its header by the format's description, then so many bytes of
    weights.
    """
    keys: dict[str, Any] = {
        "general.architecture": "llama", "llama.embedding_length": 256, "llama.block_count": 12,
        "llama.attention.head_count": 8, "llama.attention.head_count_kv": [4, 2], "llama.context_length": 4096,
        "llama.feed_forward_length": 512, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": ["a", "\u20ac", ""], "tokenizer.ggml.scores": [0.5, 1.5, 2.5],
    } | more  # fmt: skip
    kinds: dict[type, tuple[int, str]] = {int: (4, "<I"), float: (6, "<f")}

    def encoded(value: Any) -> tuple[int, bytes]:
        """The kind of a value, and its bytes."""
        if isinstance(value, str):
            return 8, gguf_text(value)
        if isinstance(value, list):
            items = [encoded(item) for item in value]
            start = struct.pack("<IQ", items[0][0], len(items))
            return 9, start + b"".join(data for _, data in items)
        kind, code = kinds[type(value)]
        return kind, struct.pack(code, value)

    header = struct.pack("<4sIQQ", b"GGUF", version, 1, len(keys))
    for name, value in keys.items():
        kind, data = encoded(value)
        header += gguf_text(name) + struct.pack("<I", kind) + data
    header += gguf_text("token_embd.weight") + struct.pack("<IQQIQ", 2, 256, 3, 8, 0)
    path.write_bytes(header + bytes(weights))
    return header


def test_a_header_has_all_that_a_config_has(tmp_path: Path) -> None:
    gguf_file(tmp_path / "x.gguf", weights=4_000_000)
    facts = model_facts(str(tmp_path / "x.gguf"))
    assert facts is not None
    assert (facts.model_type, facts.all_parameters_counted, facts.max_model_len) == (
        "llama",
        True,
        4096,
    )
    shape = facts.shape
    assert (
        shape.hidden_size,
        shape.num_hidden_layers,
        shape.num_key_value_heads,
        shape.vocab_size,
    ) == (256, 12, 4, 3)
    assert shape.tie_word_embeddings, "it has no output.weight"
    assert memory.weights(facts).total == pytest.approx(4_000_000)
    settings = EngineSettings(
        engine="llama_cpp", model="x", max_model_len=1000, kv_cache_dtype="q4_0"
    )
    assert memory.kv_bytes_per_token(facts, settings, 1) == 12 * 2 * 4 * 32 * 18 / 32


def test_the_weights_of_all_parts_of_a_model_count(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        gguf_file(tmp_path / f"x-{number:05}-of-00003.gguf", weights=1_000_000)
    facts = model_facts(str(tmp_path / "x-00001-of-00003.gguf"))
    assert facts is not None
    assert facts.checkpoint_bytes == pytest.approx(3_000_000, rel=0.01)


@pytest.mark.parametrize("stem", ["x", "x[1]", "x*", "x-00001-of-00002"])
def test_the_parts_of_a_model_are_its_own(tmp_path: Path, stem: str) -> None:
    own = [tmp_path / f"{stem}-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in (
        *(part.name for part in own),
        "x-large-00001-of-00002.gguf",
        "x1-00001-of-00002.gguf",
        "x-1-of-00002.gguf",
    ):
        (tmp_path / name).touch()
    assert [parts_of(part) for part in own] == [own, own]
    assert parts_of(tmp_path / "no-00001-of-00002.gguf") == [tmp_path / "no-00001-of-00002.gguf"]


def test_of_a_long_array_only_the_length_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    arrays = {"tokenizer.ggml.scores": [0.5] * 20_000, "tokenizer.ggml.tokens": ["a"] * 20_000}
    gguf_file(path, weights=4_000_000, **arrays)
    facts = model_facts(str(path))
    assert facts is not None
    assert (facts.shape.vocab_size, facts.shape.hidden_size) == (20_000, 256)


@pytest.mark.parametrize(
    ("kind", "count"), [(0, 30 << 30), (8, 3 << 30)], ids=["bytes", "empty texts"]
)
def test_of_a_huge_header_only_the_largest_plausible_part_is_read(
    tmp_path: Path, kind: int, count: int
) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
        + gguf_text("a")
        + struct.pack("<IIQ", 9, kind, count)
    )
    os.truncate(path, 40 << 30)  # sparse
    assert model_facts(str(path)) is None


@given(st.data())
def test_a_damaged_header_gives_facts_or_none(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Cut off anywhere, and any few bytes of its header changed: never a traceback, never a long
    wait.
    """
    path = tmp_path_factory.getbasetemp() / "odd.gguf"
    header = bytearray(gguf_file(path, weights=64))
    for at in data.draw(st.lists(st.integers(0, len(header) - 1), max_size=4)):
        header[at] = data.draw(st.integers(0, 255))
    path.write_bytes(header[: data.draw(st.integers(0, len(header)))])
    models._facts_cached.cache_clear()
    model_facts(str(path))
    assert model_facts("/nowhere/x.gguf") is None


@pytest.mark.parametrize("version", [1, 4])
def test_other_versions_of_the_format_are_not_guessed_at(tmp_path: Path, version: int) -> None:
    gguf_file(tmp_path / "x.gguf", 64, version=version)
    assert model_facts(str(tmp_path / "x.gguf")) is None

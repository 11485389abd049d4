"""Reads the header of a GGUF file (versions 2 and 3, ggml/docs/gguf.md) as a config.json would
describe the model.
"""

import glob
import mmap
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HeaderValue = int | float | str | Sequence[int | float]
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
MOST_HEADER_BYTES = 64 << 20  # the largest vocabularies take 20 MB; a sparse file may have any size
ALIGNMENT = 32  # of tensors in the file, unless general.alignment says otherwise
# numbers in an array that has one for each layer; longer ones are of the vocabulary
MOST_LAYERS = 10_000
# Name in a config.json -> key below the architecture's.
_NAMES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
}
_MODEL_TYPES = {  # architectures with another name in transformers
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "deepseek2": "deepseek_v2",
    "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe", "gptneox": "gpt_neox", "phi2": "phi",
}  # fmt: skip


class _HeaderReader:
    """Reads values one after the other. Raises struct.error when the file ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self._data[self.at - size : self.at].decode(errors="replace")

    def value(self, kind: int) -> _HeaderValue:
        """A value. Of arrays of text and long ones only the length is kept: a vocabulary has
        100,000 entries.
        """
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])  # type: ignore[no-any-return]
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALARS and count > MOST_LAYERS:
            self.at += count * struct.calcsize(_SCALARS[kind])
            return range(count)
        if kind in _SCALARS:
            values = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, self.at)
            self.at += struct.calcsize(f"<{count}{_SCALARS[kind]}")
            return values
        if kind != _STRING:
            raise ValueError("an array of arrays")
        for _ in range(count):
            self.at += 8 + struct.unpack_from("<Q", self._data, self.at)[0]
        return range(count)


def read_header(path: Path) -> tuple[dict[str, Any], int] | None:
    """(config, bytes of the weights in all parts of the model); None if this is not a readable GGUF
    file.

    Takes 0.1 s for a vocabulary of 130,000 tokens.
    """
    try:
        with _mapped(path) as data:
            header = _read(_HeaderReader(data))
            weight_bytes = sum(part.stat().st_size for part in parts_of(path)) - header.end
            whole = len(parts_of(path)) == 1
            tied = whole and "output.weight" not in header.tensors
            return _config(header.values, tied), weight_bytes
    except (OSError, ValueError, KeyError, OverflowError, struct.error):
        return None


def tensor_offsets(path: Path) -> tuple[int, list[int]]:
    """(the end of the header, where each tensor starts) in bytes; (0, []) if this is not a readable
    GGUF file.
    """
    try:
        with _mapped(path) as data:
            header = _read(_HeaderReader(data))
    except (OSError, ValueError, KeyError, OverflowError, struct.error):
        return 0, []
    alignment = header.values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        return 0, []
    start = -(-header.end // alignment) * alignment
    return header.end, [start + offset for offset in header.tensors.values()]


def _mapped(path: Path) -> mmap.mmap:
    """The start of a file, long enough for any header."""
    with path.open("rb") as file:
        size = min(os.fstat(file.fileno()).st_size, MOST_HEADER_BYTES)
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


def parts_of(path: Path) -> list[Path]:
    """All files of a model that is split (``x-00001-of-00003.gguf``); ``path`` is its first file."""
    found = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name, re.ASCII | re.DOTALL)
    others = path.parent.glob(glob.escape(found[1]) + "[0-9]" * 5 + found[2]) if found else ()
    return sorted({path, *others})


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the weights: values by name, offsets of tensors by name, and where it
    ends.
    """

    values: dict[str, _HeaderValue]
    tensors: dict[str, int]
    end: int


def _read(reader: _HeaderReader) -> _Header:
    """Raises ValueError for a file that is no GGUF file."""
    if reader.number("I") != 0x46554747 or reader.number("I") not in (2, 3):  # "GGUF"
        raise ValueError("no GGUF file of version 2 or 3")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    values: dict[str, _HeaderValue] = {}
    for _ in range(pairs):
        name = reader.text()
        values[name] = reader.value(reader.number("I"))
    offsets: dict[str, int] = {}
    for _ in range(tensors):
        name = reader.text()
        dimensions = reader.number("I")
        reader.at += 8 * dimensions + 4  # its shape and type
        offsets[name] = reader.number("Q")
    return _Header(values, offsets, reader.at)


def _config(found: dict[str, _HeaderValue], tied: bool) -> dict[str, Any]:
    architecture = str(found["general.architecture"])
    tokens = found.get("tokenizer.ggml.tokens", ())
    config: dict[str, Any] = {"vocab_size": len(tokens) if isinstance(tokens, Sequence) else 0}
    for name, key in _NAMES.items():
        value = found.get(f"{architecture}.{key}")
        if isinstance(value, Sequence) and not isinstance(value, str):  # one per layer
            value = max(value, default=None)
        if value is not None:
            config[name] = value
    if "kv_lora_rank" in config:
        config["qk_rope_head_dim"] = found.get(f"{architecture}.rope.dimension_count")
    return config | {
        "model_type": _MODEL_TYPES.get(architecture, architecture),
        "tie_word_embeddings": tied,
        "quantization_config": {"quant_method": "gguf"},
    }

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

from orchestrator.catalog.parameters import MOST_LAYERS, Config, StoredModel

_HeaderValue = int | float | str | Sequence[int | float]
# Kinds of values -> codes of ``struct``.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9
_MAGIC = 0x46554747  # "GGUF"
_VERSIONS = (2, 3)
MOST_HEADER_BYTES = 64 << 20  # the largest vocabularies take 20 MB; a sparse file may have any size
ALIGNMENT = 32  # of tensors in the file, unless general.alignment says otherwise
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
        self._data = data
        self.at = 0  # offset of what is read next, in bytes

    def number(self, code: str) -> Any:
        """The next number. ``code``: its type, as ``struct`` writes it."""
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        """The next text: its length in bytes, then the bytes."""
        size = self.number("Q")
        start = self.at
        self.at += size
        return self._data[start : self.at].decode(errors="replace")

    def value(self, kind: int) -> _HeaderValue:
        """The next value, of this kind. Raises ValueError for an array of arrays."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self.number(_SCALARS[kind])  # type: ignore[no-any-return]

    def _array(self) -> Sequence[int | float]:
        """The next array: its numbers, if it is no longer than a model has layers.

        Arrays of texts and longer arrays belong to the vocabulary. Only their length is needed, so
        a range of this length stands for them.
        """
        kind = self.number("I")
        count = self.number("Q")
        if kind == _STRING:
            for _ in range(count):
                (size,) = struct.unpack_from("<Q", self._data, self.at)
                self.at += 8 + size
            return range(count)
        if kind not in _SCALARS:
            raise ValueError("an array of arrays")
        code = f"<{count}{_SCALARS[kind]}"
        start = self.at
        self.at += count * struct.calcsize(_SCALARS[kind])
        if count > MOST_LAYERS:
            return range(count)
        return struct.unpack_from(code, self._data, start)


def read_header(path: Path) -> StoredModel | None:
    """The config, and the bytes of the weights in all parts of the model. None if this is not a
    readable GGUF file.

    Takes 0.1 s for a vocabulary of 130,000 tokens.
    """
    try:
        with _mapped(path) as data:
            header = _read(_HeaderReader(data))
            parts = parts_of(path)
            weight_bytes = sum(part.stat().st_size for part in parts) - header.end
            # the first of several parts does not name the tensors of the others
            is_tied = len(parts) == 1 and "output.weight" not in header.tensor_offsets
            return StoredModel(_config(header.values, is_tied), weight_bytes)
    except (OSError, ValueError, KeyError, OverflowError, struct.error):
        return None


@dataclass(frozen=True, slots=True)
class TensorOffsets:
    """Where a file's header ends, and where each of its tensors starts, in bytes."""

    header_end: int
    starts: list[int]


def tensor_offsets(path: Path) -> TensorOffsets | None:
    """Where the tensors of a GGUF file are. None if this is not a readable GGUF file."""
    try:
        with _mapped(path) as data:
            header = _read(_HeaderReader(data))
    except (OSError, ValueError, KeyError, OverflowError, struct.error):
        return None
    alignment = header.values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        return None
    first_start = -(-header.end // alignment) * alignment  # the end, rounded up
    starts = [first_start + offset for offset in header.tensor_offsets.values()]
    return TensorOffsets(header.end, starts)


def _mapped(path: Path) -> mmap.mmap:
    """The start of a file, long enough for any header."""
    with path.open("rb") as file:
        size = min(os.fstat(file.fileno()).st_size, MOST_HEADER_BYTES)
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


def parts_of(path: Path) -> list[Path]:
    """All files of a model that is split (``x-00001-of-00003.gguf``); ``path``: its first file."""
    match = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name, re.ASCII | re.DOTALL)
    if match is None:
        return [path]
    start, end = match.groups()
    pattern = glob.escape(start) + "[0-9]" * 5 + end
    return sorted({path, *path.parent.glob(pattern)})


@dataclass(frozen=True, slots=True)
class _GgufHeader:
    """What stands before the weights.

    ``values``: by name. ``tensor_offsets``: by the tensor's name, bytes since the first tensor.
    ``end``: the header's size in bytes.
    """

    values: dict[str, _HeaderValue]
    tensor_offsets: dict[str, int]
    end: int


def _read(reader: _HeaderReader) -> _GgufHeader:
    """Reads the whole header. Raises ValueError for a file that is no GGUF file."""
    if reader.number("I") != _MAGIC or reader.number("I") not in _VERSIONS:
        raise ValueError("no GGUF file of version 2 or 3")
    tensor_count = reader.number("Q")
    value_count = reader.number("Q")
    values: dict[str, _HeaderValue] = {}
    for _ in range(value_count):
        name = reader.text()
        kind = reader.number("I")
        values[name] = reader.value(kind)
    offsets: dict[str, int] = {}
    for _ in range(tensor_count):
        name = reader.text()
        dimensions = reader.number("I")
        reader.at += 8 * dimensions + 4  # its shape and type
        offsets[name] = reader.number("Q")
    return _GgufHeader(values, offsets, reader.at)


def _config(values: dict[str, _HeaderValue], is_tied: bool) -> Config:
    """The config.json of a model whose header has these values.

    ``is_tied``: the input embeddings are the output layer too. Of values that differ by layer, the
    config has the largest.
    """
    architecture = str(values["general.architecture"])
    tokens = values.get("tokenizer.ggml.tokens", ())
    config: Config = {"vocab_size": len(tokens) if isinstance(tokens, Sequence) else 0}
    for name, key in _NAMES.items():
        value = values.get(f"{architecture}.{key}")
        if isinstance(value, Sequence) and not isinstance(value, str):  # one for each layer
            value = max(value, default=None)
        if value is not None:
            config[name] = value
    if "kv_lora_rank" in config:
        config["qk_rope_head_dim"] = values.get(f"{architecture}.rope.dimension_count")
    return config | {
        "model_type": _MODEL_TYPES.get(architecture, architecture),
        "tie_word_embeddings": is_tied,
        "quantization_config": {"quant_method": "gguf"},
    }

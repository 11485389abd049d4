"""Checkpoints that answer differently are different deployments, however alike their files are."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.plan import checkpoints, identity
from orchestrator.plan.checkpoints import checkpoint_digest
from scripts import make_quantized_models
from tests.unit.plan.files import planned

Change = Callable[[str, NDArray[np.uint8]], NDArray[Any]]
SEED = 7


def bfloat16_times(factor: float, only: str = "") -> Change:
    """Multiplies scales, those of tensors with ``only`` in their name."""

    def change(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
        if not name.endswith("weight_scale") or only not in name:
            return raw
        scales = make_quantized_models.from_bfloat16(raw.view(np.uint16))
        return make_quantized_models.to_bfloat16(scales * np.float32(factor))

    return change


def shuffled_scales(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if not name.endswith("weight_scale"):
        return raw
    return np.random.default_rng(SEED).permutation(raw.view(np.uint16))


def one_nan(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if name != "model.layers.1.mlp.down_proj.weight_scale":
        return raw
    halves = raw.view(np.uint16).copy()
    halves[3] = 0x7FC0
    return halves


def float16_times(factor: float) -> Change:
    def change(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
        if not name.endswith("scales"):
            return raw
        return (raw.view(np.float16) * np.float16(factor)).astype(np.float16)

    return change


def other_zero_points(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if not name.endswith("qzeros"):
        return raw
    return raw.view(np.uint32) + np.uint32(0x11111111)


def reordered_nibbles(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if not name.endswith("qweight"):
        return raw
    return (raw >> 4) | (raw << 4)


def shuffled_weights(name: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if not name.endswith("_proj.weight"):
        return raw
    return np.random.default_rng(SEED).permutation(raw.view(np.uint16))


VARIANTS: list[tuple[str, str, Change]] = [
    ("base", "base-shuffled", shuffled_weights),
    ("int8", "int8-shuffled", shuffled_scales),
    ("int8", "int8-nan", one_nan),
    ("int8", "int8-layer", bfloat16_times(1.5, "layers.0.")),
    ("int8", "int8-scaled", bfloat16_times(1.25)),
    ("gptq4", "gptq4-zeros", other_zero_points),
    ("gptq4", "gptq4-scaled", float16_times(1.25)),
    ("awq4", "awq4-zeros", other_zero_points),
    ("awq4", "awq4-scaled", float16_times(1.25)),
    ("awq4", "awq4-order", reordered_nibbles),
    ("fp8", "fp8-copy", lambda name, raw: raw),
]


def rewritten(source: Path, target: Path, change: Change) -> None:
    """A copy of a checkpoint in which each tensor is what ``change`` makes of its name and bytes."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    start = 8 + length
    header = json.loads(content[8:start])
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        first, end = (start + offset for offset in tensor["data_offsets"])
        before = np.frombuffer(bytes(content[first:end]), np.uint8)
        after = np.ascontiguousarray(change(name, before)).tobytes()
        assert len(after) == end - first
        content[first:end] = after
    path.write_bytes(content)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_quantized_models.make(folder, size="tiny", only=("int8", "fp8", "int4", "gptq4", "awq4"))
    for source, name, change in VARIANTS:
        rewritten(folder / source, folder / name, change)
    return folder


@pytest.mark.parametrize("whole_file_bytes", [checkpoints.WHOLE_FILE_BYTES, 0])
def test_checkpoints_that_differ_in_scales_alone_are_different_deployments(
    models: Path, monkeypatch: pytest.MonkeyPatch, whole_file_bytes: int
) -> None:
    """With no file small enough to be read whole, it is the headers that tell where scales are."""
    monkeypatch.setattr(checkpoints, "WHOLE_FILE_BYTES", whole_file_bytes)
    monkeypatch.setattr(checkpoints, "END_BYTES", 4096)
    names = sorted(path.name for path in models.iterdir() if path.name != "fp8-copy")
    plan = planned(
        models / "x.yaml",
        model=None,
        deployments={
            "engine": "vllm",
            "vary": [{"grid": {"model": [f"./{name}" for name in names]}}],
        },
    )
    assert (
        len(names)
        == len(plan.deployments)
        == len({deployment.id for deployment in plan.deployments})
        == 16
    )


def test_a_copy_is_the_same_model(models: Path) -> None:
    assert identity.model_digest(str(models / "fp8")) == identity.model_digest(
        str(models / "fp8-copy")
    )


def sparse_checkpoint(path: Path, tensors: dict[str, int]) -> dict[str, int]:
    """A safetensors file with tensors of these sizes, all zero, that takes no room on a disk; where
    each of them starts.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in tensors}


def write_at(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


BIG, SMALL = 30 << 20, 100 << 10


def test_a_byte_of_any_small_tensor_in_a_large_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors: dict[str, int] = {}
    for layer in range(12):
        tensors |= {f"{layer}.weight": BIG, f"{layer}.scale": SMALL}
    places = sparse_checkpoint(path, tensors)
    before = checkpoint_digest(path)
    for layer in range(12):
        write_at(path, places[f"{layer}.scale"] + 12_345, b"\x01")
        assert checkpoint_digest(path) != before
        write_at(path, places[f"{layer}.scale"] + 12_345, b"\x00")
    assert checkpoint_digest(path) == before


def test_every_large_tensor_has_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    places = sparse_checkpoint(path, {f"{index}.weight": 2 << 20 for index in range(300)})
    before = checkpoint_digest(path)
    for index in range(0, 300, 37):
        write_at(path, places[f"{index}.weight"] + (1 << 20), b"\x01" * 16)
        assert checkpoint_digest(path) != before
        write_at(path, places[f"{index}.weight"] + (1 << 20), b"\x00" * 16)


def test_no_model_is_read_for_more_than_a_stated_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts in 4 bits are all small and nearly all of a model."""
    path = tmp_path / "m.safetensors"
    sizes = {f"{index}.weight": 768 << 10 for index in range(400)}
    sparse_checkpoint(path, sizes | {f"{index}.scale": 24 << 10 for index in range(400)})
    read: list[int] = []
    pread = checkpoints.os.pread

    def counted(file: int, length: int, start: int) -> bytes:
        read.append(length)
        return pread(file, length, start)

    monkeypatch.setattr(checkpoints.os, "pread", counted)
    assert checkpoint_digest(path, whole_bytes=50 << 20) is not None
    # beside the tensors that are read whole: a sample of each of the others, and what lies between
    assert 50 << 20 < sum(read) < 60 << 20


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\xff" * 8,
        (5).to_bytes(8, "little") + b"[1,2]",
        (2).to_bytes(8, "little") + b"{}",
        (47).to_bytes(8, "little") + b'{"a":{"data_offsets":[0,99999999999999999999]}}',
        (31).to_bytes(8, "little") + b'{"a":{"data_offsets":[-4,1000]}}'[:31],
    ],
)
def test_a_file_with_no_sensible_header_is_read_in_samples(tmp_path: Path, start: bytes) -> None:
    assert_read_in_samples(tmp_path / "m.safetensors", start)


@pytest.mark.parametrize("start", [b"no GGUF file", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)])
def test_a_large_gguf_file_without_tensors_is_read_in_samples(tmp_path: Path, start: bytes) -> None:
    assert_read_in_samples(tmp_path / "m.gguf", start)


def assert_read_in_samples(path: Path, start: bytes) -> None:
    """A large file that begins so has a digest, which its last bytes change."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(checkpoints.WHOLE_FILE_BYTES + 5)
    before = checkpoint_digest(path)
    assert before is not None
    write_at(path, checkpoints.WHOLE_FILE_BYTES, b"\x01")
    assert checkpoint_digest(path) not in (None, before)


def gguf_text(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def test_norms_and_vocabulary_of_a_large_gguf_file_count(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = {"blk.0.ffn_up.weight": 70 << 20, "blk.0.norm.weight": 16384, "output": 20 << 20}
    words = b"".join(gguf_text(f"word{index:06}") for index in range(40_000))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 2)
    header += gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("llama")
    header += gguf_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 40_000) + words
    vocabulary = len(header) - 100  # past what is read of any file
    offset = 0
    offsets = {}
    for name, size in tensors.items():
        header += gguf_text(name) + struct.pack("<IQIQ", 1, size // 4, 0, offset)
        offsets[name] = offset
        offset += size
    data = -(-len(header) // 32) * 32
    with path.open("wb") as file:
        file.write(header)
        file.truncate(data + offset)
    before = checkpoint_digest(path)
    assert vocabulary > checkpoints.END_BYTES
    write_at(path, vocabulary, b"X")
    changed = checkpoint_digest(path)
    write_at(path, data + offsets["blk.0.norm.weight"] + 5000, b"X")
    assert len({before, changed, checkpoint_digest(path)}) == 3

"""Makes quantized checkpoints of a tiny random Llama on this machine: seconds, nothing downloaded,
no GPU, no torch.

    python scripts/make_quantized_models.py .demo/quantized [--size tiny] [--only int8 gptq4]

OUT/base is scripts/make_tiny_model.py's model in bfloat16, OUT/<scheme> the same with quantized
linear layers in the format that users' checkpoints have. Weights are rounded to the nearest step,
nothing is calibrated; they are random, which is the hardest case for 4 bits, so that schemes differ
to be seen. ``--size small`` (the default) is large enough for engines to show its bytes, and its
groups of 128 stay whole on one and on two ranks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent))
import make_tiny_model

Array = NDArray[Any]
Stored = dict[str, tuple[str, Array]]  # name -> (dtype of the file, what is written for it)
SIZES: dict[str, dict[str, int]] = {
    "tiny": {},
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "head_dim": 64,
    },
}
GROUP = 128  # inputs that share a scale
LEAST = np.float32(1e-6)  # scale of weights that are all zero
# bytes, by safetensors' names
WIDTHS = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I8": 1}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the eight numbers in each int32


def to_bfloat16(values: Array) -> Array:
    """The upper halves of float32, rounded to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(halves: Array) -> Array:
    return (halves.astype(np.uint32) << 16).view(np.float32)


# Positive numbers of float8_e4m3fn by their codes 0 to 126: 4 bits of exponent (bias 7), 3 of
# mantissa, up to 448.
_CODES = np.arange(127)
FP8 = np.where(
    _CODES < 8, _CODES / 8 * 2.0**-6, (1 + _CODES % 8 / 8) * 2.0 ** (_CODES // 8 - 7)
)  # fmt: skip


def int8(weight: Array) -> tuple[Stored, Array]:
    """Symmetric, a scale per output channel; activations are rounded per token by the kernel."""
    scale = to_bfloat16(np.maximum(np.abs(weight).max(1, keepdims=True) / 127, LEAST))
    steps = np.clip(np.rint(weight / from_bfloat16(scale)), -127, 127).astype(np.int8)
    return {"weight": ("I8", steps), "weight_scale": ("BF16", scale)}, steps * from_bfloat16(scale)


def fp8(weight: Array) -> tuple[Stored, Array]:
    """float8_e4m3fn, a scale per output channel."""
    scale = np.maximum(np.abs(weight).max(1, keepdims=True) / 448, LEAST).astype(np.float32)
    codes = np.searchsorted((FP8[1:] + FP8[:-1]) / 2, np.abs(weight) / scale)
    same = np.sign(weight) * FP8[codes] * scale
    stored = (codes + 128 * (weight < 0)).astype(np.uint8)
    return {"weight": ("F8_E4M3", stored), "weight_scale": ("F32", scale)}, same.astype(np.float32)


def grouped(
    weight: Array, symmetric: bool, bfloat: bool = False
) -> tuple[Array, Array, Array, Array]:
    """4 bits: steps 0 to 15 [outputs, inputs], scales and zero points [outputs, groups], the same
    numbers as float32.

    Scales are rounded to float16, or to bfloat16 and given as that.
    """
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    if symmetric:
        low, high = -np.abs(groups).max(2) * 8 / 7, np.abs(groups).max(2)
    else:
        low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    wide = np.maximum((high - low) / 15, LEAST)
    scale = to_bfloat16(wide) if bfloat else wide.astype(np.float16)
    step = from_bfloat16(scale) if bfloat else scale.astype(np.float32)
    zero = np.full_like(step, 8) if symmetric else np.clip(np.rint(-low / step), 0, 15)
    steps = np.clip(np.rint(groups / step[..., None]) + zero[..., None], 0, 15)
    same = ((steps - zero[..., None]) * step[..., None]).reshape(weight.shape)
    return (
        steps.reshape(weight.shape).astype(np.uint32),
        scale,
        zero.astype(np.uint32),
        same.astype(np.float32),
    )


def packed(values: Array, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Eight 4-bit numbers along the last axis into each int32, the first of ``order`` in the lowest
    bits.
    """
    eights = values.reshape(*values.shape[:-1], -1, 8)[..., list(order)]
    shifts = 4 * np.arange(8, dtype=np.uint32)
    return np.bitwise_or.reduce(eights << shifts, axis=-1).view(np.int32)


def gptq(weight: Array) -> tuple[Stored, Array]:
    steps, scale, zero, same = grouped(weight, symmetric=True)
    stored: Stored = {
        "qweight": ("I32", packed(steps).T),  # [inputs / 8, outputs]
        "qzeros": ("I32", packed(np.ascontiguousarray((zero - 1).T))),  # the format holds one less
        "scales": ("F16", scale.T),
        "g_idx": ("I32", (np.arange(weight.shape[1]) // GROUP).astype(np.int32)),
    }
    return stored, same


def awq(weight: Array) -> tuple[Stored, Array]:
    steps, scale, zero, same = grouped(weight, symmetric=False)
    stored: Stored = {
        # [inputs, outputs / 8]
        "qweight": ("I32", packed(np.ascontiguousarray(steps.T), AWQ_ORDER)),
        "qzeros": ("I32", packed(np.ascontiguousarray(zero.T), AWQ_ORDER)),
        "scales": ("F16", scale.T),
    }
    return stored, same


def int4(weight: Array) -> tuple[Stored, Array]:
    steps, scale, _, same = grouped(weight, symmetric=True, bfloat=True)
    shape = np.array(weight.shape, np.int64)
    return {
        "weight_packed": ("I32", packed(steps)),
        "weight_scale": ("BF16", scale),
        "weight_shape": ("I64", shape),
    }, same


def compressed(
    form: str, weights: dict[str, Any], activations: dict[str, Any] | None
) -> dict[str, Any]:
    """``quantization_config`` of compressed-tensors with one scheme for all linear layers but the
    head.
    """
    scheme = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": scheme},
    }


def numbers(bits: int, kind: str, strategy: str, dynamic: bool = False) -> dict[str, Any]:
    group = GROUP if strategy == "group" else None
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "strategy": strategy,
        "dynamic": dynamic,
        "group_size": group,
    }


Quantizer = Callable[[Array], tuple[Stored, Array]]
SCHEMES: dict[str, tuple[Quantizer, dict[str, Any]]] = {
    "int8": (
        int8,
        compressed("int-quantized", numbers(8, "int", "channel"), numbers(8, "int", "token", True)),
    ),
    "fp8": (
        fp8,
        compressed(
            "float-quantized", numbers(8, "float", "channel"), numbers(8, "float", "token", True)
        ),
    ),
    "int4": (int4, compressed("pack-quantized", numbers(4, "int", "group"), None)),
    "gptq4": (
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    ),
    "awq4": (
        awq,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
    ),
}


def write(folder: Path, tensors: Stored, config: dict[str, Any], like: Path) -> None:
    """A checkpoint with the tokenizer of ``like``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if like != folder:
            shutil.copyfile(like / name, folder / name)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blocks: list[bytes] = []
    end = 0
    # keeps them aligned
    for name, (kind, values) in sorted(tensors.items(), key=lambda item: -WIDTHS[item[1][0]]):
        blocks.append(np.ascontiguousarray(values).tobytes())
        header[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [end, end := end + len(blocks[-1])],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(
        b"".join([len(text).to_bytes(8, "little"), text, *blocks])
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(
    out: Path,
    size: str = "small",
    only: tuple[str, ...] = tuple(SCHEMES),
    dequantized: bool = False,
) -> None:
    """``out``/base and one folder per scheme; ``dequantized``: OUT/<scheme>-dequantized too, the
    numbers as float32.
    """
    base, config = out / "base", make_tiny_model.CONFIG | SIZES[size]
    make_tiny_model.make(base, config=config)
    floats = load_file(base / "model.safetensors")
    halves: Stored = {name: ("BF16", to_bfloat16(values)) for name, values in floats.items()}
    write(base, halves, config | {"dtype": "bfloat16"}, base)
    for scheme in only:
        quantize, settings = SCHEMES[scheme]
        stored, same = (
            dict(halves),
            {name: ("F32", from_bfloat16(one)) for name, (_, one) in halves.items()},
        )
        for name in [name for name in halves if name.endswith("_proj.weight")]:
            parts, values = quantize(same[name][1])
            del stored[name]
            stored |= {name.removesuffix("weight") + part: one for part, one in parts.items()}
            same[name] = ("F32", values)
        write(
            out / scheme,
            stored,
            config | {"dtype": "bfloat16", "quantization_config": settings},
            base,
        )
        if dequantized:
            write(out / f"{scheme}-dequantized", same, config, base)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument(
        "--only", nargs="+", choices=SCHEMES, default=list(SCHEMES), metavar="SCHEME"
    )
    parser.add_argument(
        "--dequantized",
        action="store_true",
        help="also the same numbers as float32, to compare with",
    )
    given = parser.parse_args()
    make(given.out, given.size, tuple(given.only), given.dequantized)
    for folder in sorted(path for path in given.out.iterdir() if path.is_dir()):
        print(f"{(folder / 'model.safetensors').stat().st_size / 1e6:8.1f} MB  {folder}")


if __name__ == "__main__":
    main()

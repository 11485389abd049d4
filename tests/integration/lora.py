"""LoRA adapters for the tiny model, written by hand, and the same model with one merged into it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

RANK, ALPHA = 4, 8
TARGETS = ("q_proj", "v_proj")
CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": [*TARGETS],
}


def write_adapter(model: Path, folder: Path, seed: int, changes: bool = True) -> Path:
    """An adapter of random matrices. ``changes``: False: it has no effect, because one of the two
    matrices of each layer is 0.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in _changed_weights(model).items():
        rows, columns = weight.shape
        module = "base_model.model." + name.removesuffix(".weight")
        down = rng.normal(0, 0.1, (RANK, columns)).astype(np.float32)
        up = rng.normal(0, 0.1, (rows, RANK)).astype(np.float32)
        tensors[module + ".lora_A.weight"] = down
        tensors[module + ".lora_B.weight"] = up if changes else np.zeros_like(up)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """The model with W + alpha / r * B A in place of each changed weight (https://arxiv.org/abs/
    2106.09685, section 4.1).
    """
    shutil.copytree(model, folder)
    weights = load_file(model / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name in _changed_weights(model):
        module = "base_model.model." + name.removesuffix(".weight")
        down, up = tensors[module + ".lora_A.weight"], tensors[module + ".lora_B.weight"]
        weights[name] = weights[name] + ALPHA / RANK * (up @ down)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _changed_weights(model: Path) -> dict[str, NDArray[Any]]:
    weights = load_file(model / "model.safetensors")
    return {name: weight for name, weight in weights.items() if name.split(".")[-2] in TARGETS}

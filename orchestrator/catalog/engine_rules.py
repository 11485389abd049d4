"""What engines ask of a model's shape and take of a device's memory, where they differ.

Sources: vLLM 0.32 and SGLang 0.5.23 in source; TGI 3.3.7, TensorRT-LLM 1.2, LMDeploy 0.18, llama.cpp documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.memory import DEFAULT_UTILIZATION


@dataclass(frozen=True, slots=True)
class EngineRules:
    """What differs between engines. Defaults are the common case; fractions are of all memory unless ``of_free``."""

    heads_divisible: bool = True
    replicates_kv_heads: bool = True
    longer_than_positions: Literal["impossible", "risky"] = "risky"
    long_variable: str = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"  # set to 1 it turns the check of lengths off
    token_budget: bool = False  # max_num_batched_tokens must hold max_num_seqs, and a prompt without chunked prefill
    memory_fraction: float = 0.9
    of_free: bool = False
    experts_evenly: bool = True
    flag_names_checkpoint: bool = False  # a quantization flag must match the checkpoint's own method


_VLLM = EngineRules(
    longer_than_positions="impossible", token_budget=True, memory_fraction=DEFAULT_UTILIZATION, experts_evenly=False,
    flag_names_checkpoint=True,
)  # fmt: skip
RULES: dict[str, EngineRules] = {
    "vllm": _VLLM,
    "emulator": _VLLM,
    "sglang": EngineRules(
        longer_than_positions="impossible",
        long_variable="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        memory_fraction=0.88,
        flag_names_checkpoint=True,
    ),
    "tgi": EngineRules(replicates_kv_heads=False),
    "tensorrt_llm": EngineRules(of_free=True),
    "lmdeploy": EngineRules(of_free=True, memory_fraction=0.8),
    "transformers": EngineRules(of_free=True),
    "llama_cpp": EngineRules(heads_divisible=False, memory_fraction=1.0),
}

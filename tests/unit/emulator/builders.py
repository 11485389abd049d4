"""Small models and replicas with round numbers, for tests of the emulator."""

from __future__ import annotations

from typing import Any

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts, facts_from_config
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Constants
from orchestrator.spec.settings import EngineSettings

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
# Nothing but reading and arithmetic at the device's peaks.
IDEAL = Constants(
    **{name: 1.0 if name.endswith("efficiency") else 0.0 for name in Constants.model_fields}
)


def device(**changes: Any) -> Accelerator:
    """80 GB, 1 TB/s, 100 TFLOP/s, links fast enough not to matter."""
    values: dict[str, Any] = {
        "name": "round", "memory_bytes": 80 * 10**9, "bandwidth_bytes_s": 1e12, "capability": None,
        "flops": {"bfloat16": 1e14, "fp8": 2e14}, "link_bytes_s": 1e15, "network_bytes_s": 1e15,
        "usd_per_hour": None, "source": "test",
    }  # fmt: skip
    return Accelerator(**values | changes)


def facts(**changes: Any) -> ModelFacts:
    """Llama-3.1-8B with 8,192 positions, with changes to its config."""
    result = facts_from_config("test", LLAMA | changes)
    assert result is not None
    return result


def settings(**changes: Any) -> EngineSettings:
    """An emulator deployment with 64 sequences and 2,048 tokens a step."""
    base: dict[str, Any] = {
        "engine": "emulator",
        "model": "test",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
    }
    return EngineSettings(**base | changes)


def a_replica(
    constants: Constants = IDEAL, config: dict[str, Any] | None = None, **changes: Any
) -> Replica:
    """A replica of the small deployment on the round device."""
    return replica(settings(**changes), facts(**config or {}), device(), constants)

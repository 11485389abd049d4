"""Small models and replicas with round numbers, for tests of the emulator."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts, facts_from_config
from orchestrator.emulator.api import Serving
from orchestrator.emulator.flags import Options
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Constants, Profile
from orchestrator.spec.settings import EngineSettings, Hardware

STREAMS = Path(__file__).parents[2] / "contract" / "streams"

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
    """A replica of the small deployment on the round device. ``config``: changes to the model's
    config; ``changes``: to the deployment's settings.
    """
    return replica(settings(**changes), facts(**config or {}), device(), constants)


OPTIONS = Options(settings(), Hardware(name="emulated"), Profile(), "m")
SERVING = Serving(OPTIONS, a_replica(kv_cache_tokens=5000), vocab_size=1000)


def body(**fields: Any) -> bytes:
    """The body of a request."""
    return json.dumps(fields).encode()


@dataclass(frozen=True)
class HttpAnswer:
    """What a server answered."""

    status: int
    content_type: str
    body: str  # without its chunks


def http_answer(raw: bytes) -> HttpAnswer:
    """The answer in these bytes. An answer in chunks has its body on every other line, between
    lines with the chunks' sizes; the last chunk is empty.
    """
    head, _, content = raw.partition(b"\r\n\r\n")
    content_type = re.search(rb"content-type: (\S+)", head)
    assert content_type
    if b"chunked" in head and b"\r\n" in content:
        lines = content.split(b"\r\n")
        content = b"".join(lines[1:-3:2])
    return HttpAnswer(
        status=int(head.split()[1]),
        content_type=content_type[1].decode().rstrip(";"),
        body=content.decode().strip(),
    )


def recorded_tgi(name: str) -> HttpAnswer:
    """What TGI 3.3.7 answered. Its answers were recorded without the sizes of their chunks."""
    return http_answer((STREAMS / f"tgi-{name}.http").read_bytes())

"""Engines and routers by name. docs/guides/your-own-engine.md says what a new one needs."""

from __future__ import annotations

from orchestrator.base.registry import Registry
from orchestrator.engines.engine import Engine

ENGINES: Registry[Engine] = Registry(
    "engines",
    {
        "vllm": "orchestrator.engines.vllm:ENGINE",
        "sglang": "orchestrator.engines.sglang:ENGINE",
        "tgi": "orchestrator.engines.tgi:ENGINE",
        "tensorrt_llm": "orchestrator.engines.tensorrt_llm:ENGINE",
        "lmdeploy": "orchestrator.engines.lmdeploy:ENGINE",
        "lightllm": "orchestrator.engines.lightllm:ENGINE",
        "llama_cpp": "orchestrator.engines.llama_cpp:ENGINE",
        "transformers": "orchestrator.engines.transformers:ENGINE",
        "endpoint": "orchestrator.engines.endpoint:ENGINE",
        "emulator": "orchestrator.engines.emulator:ENGINE",
    },
)
# What stands between clients and the replicas of one deployment: records of the same kind, and no
# model in them.
ROUTERS: Registry[Engine] = Registry(
    "routers",
    {
        "vllm_router": "orchestrator.engines.vllm_router:ROUTER",
        "sglang_router": "orchestrator.engines.sglang_router:ROUTER",
    },
)


def program_of(name: str) -> Engine:
    """The engine or router of this name. Raises InputError when there is neither."""
    return ROUTERS[name] if name in ROUTERS else ENGINES[name]

"""One file per engine, and the process that runs it. To add an engine: docs/extending.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.registry import Registry

if TYPE_CHECKING:
    from orchestrator.engines.base import Engine

ENGINES: Registry[type[Engine]] = Registry(
    "engines",
    {
        "vllm": "orchestrator.engines.vllm:Vllm",
        "sglang": "orchestrator.engines.sglang:Sglang",
        "tgi": "orchestrator.engines.tgi:Tgi",
        "tensorrt_llm": "orchestrator.engines.tensorrt_llm:TensorrtLlm",
        "lmdeploy": "orchestrator.engines.lmdeploy:Lmdeploy",
        "lightllm": "orchestrator.engines.lightllm:Lightllm",
        "llama_cpp": "orchestrator.engines.llama_cpp:LlamaCpp",
        "transformers": "orchestrator.engines.transformers:Transformers",
        "endpoint": "orchestrator.engines.endpoint:Endpoint",
        "emulator": "orchestrator.engines.emulator:Emulator",
    },
)

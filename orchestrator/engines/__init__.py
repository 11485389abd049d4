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
        "transformers": "orchestrator.engines.transformers:Transformers",
        "endpoint": "orchestrator.engines.endpoint:Endpoint",
        "emulator": "orchestrator.engines.emulator:Emulator",
    },
)

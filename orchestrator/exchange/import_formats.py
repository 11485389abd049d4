"""The formats of other tools' files that can be read."""

from orchestrator.base.registry import Registry
from orchestrator.exchange.imported import ImportFormat

IMPORT_FORMATS: Registry[ImportFormat] = Registry(
    "import_formats",
    {
        "vllm": "orchestrator.exchange.vllm_bench:FORMAT",
        "guidellm": "orchestrator.exchange.guidellm:FORMAT",
        "aiperf": "orchestrator.exchange.aiperf:FORMAT",
    },
)

"""The formats for other tools that can be written."""

from orchestrator.base.registry import Registry
from orchestrator.exchange.exported import ExportFormat

EXPORT_FORMATS: Registry[ExportFormat] = Registry(
    "export_formats",
    {
        "llm-d": "orchestrator.exchange.llm_d:FORMAT",
        "inferencex": "orchestrator.exchange.inferencex:FORMAT",
    },
)

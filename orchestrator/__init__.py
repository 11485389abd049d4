"""Experiment orchestrator for LLM serving: one YAML file in, Parquet and an answer with its
confidence out.

For notebooks: ``read``, ``metrics``, ``best`` and ``requests`` (docs/recipes.md), which are loaded
when asked for.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["best", "metrics", "read", "requests"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("orchestrator.report.frames"), name)


def __dir__() -> list[str]:
    """The API alone: tab completion offers no module of the program's inside."""
    return [*__all__, "__doc__", "__version__"]

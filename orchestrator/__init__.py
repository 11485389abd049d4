"""Experiment orchestrator for LLM serving: one YAML file in, Parquet and an answer with its
confidence out.

For notebooks: ``points``, ``parts``, ``best``, ``repeats``, ``capacities``, ``launches``, ``costs``,
``series``, ``requests``, ``frontier`` and the pictures of ``plot`` (docs/guides/notebooks.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.report import plot
    from orchestrator.report.frames import (
        best,
        capacities,
        costs,
        frontier,
        launches,
        metrics,
        parts,
        points,
        read,
        repeats,
        requests,
        series,
    )

__version__ = "0.1.0"
__all__ = [
    "best",
    "capacities",
    "costs",
    "frontier",
    "launches",
    "metrics",
    "parts",
    "plot",
    "points",
    "read",
    "repeats",
    "requests",
    "series",
]


def __getattr__(name: str) -> Any:
    """Loads the API when somebody asks for it: commands start without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "plot":
        from orchestrator.report import plot

        return plot
    from orchestrator.report import frames

    return getattr(frames, name)


def __dir__() -> list[str]:
    """The API alone: tab completion offers no module of the program's inside."""
    return [*__all__, "__doc__", "__version__"]

"""Search strategies by name: which load level is measured next."""

from orchestrator.registry import Registry
from orchestrator.search.base import Strategy

STRATEGIES: Registry[type[Strategy]] = Registry(
    "searches",
    {
        "levels": "orchestrator.search.base:LevelsInOrder",
        "curve": "orchestrator.search.curve:Curve",
        "capacity": "orchestrator.search.capacity:Capacity",
    },
)

"""Search strategies by name."""

from orchestrator.base.registry import Registry
from orchestrator.capacity.strategy import Strategy

STRATEGIES: Registry[type[Strategy]] = Registry(
    "searches",
    {
        "levels": "orchestrator.capacity.strategy:LevelsInOrder",
        "curve": "orchestrator.capacity.curve:Curve",
        "capacity": "orchestrator.capacity.search:Capacity",
    },
)

"""Gives engines time to start: from ``ResolvedSettings`` to ``PlannedSettings``, a stage of
spec/stages.py.
"""

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis.prediction import PredictedStart
from orchestrator.engines.engine import Engine
from orchestrator.plan.cost import START_S, weight_bytes
from orchestrator.spec.stages import PlannedSettings, ResolvedSettings

DOWNLOAD_BYTES_S = 1e8  # bytes per second from a hub to a node that has no weights yet


def planned(
    settings: ResolvedSettings, engine: Engine, starts: Mapping[str, PredictedStart]
) -> PlannedSettings:
    """Settings with a ``startup_timeout_s`` within which a new node can also download the weights.

    They stay as they are if the file gives a limit, if the weights are small enough for the usual
    limit, or if their size is unknown. ``starts``: what ``feasibility.py`` predicts, by
    role.
    """
    if "startup_timeout_s" in settings.model_fields_set or not engine.launches:
        return PlannedSettings(settings)
    downloads = [
        weight_bytes(starts, role) * part.world_size for role, part in settings.engines.items()
    ]
    limit_s = START_S + max(downloads) / DOWNLOAD_BYTES_S
    if limit_s <= settings.startup_timeout_s:
        return PlannedSettings(settings)
    limit = {"startup_timeout_s": limit_s}
    changed: dict[str, Any] = dict(limit)
    if settings.roles:
        changed["roles"] = {
            role: part.model_copy(update=limit) for role, part in settings.roles.items()
        }
    return PlannedSettings(settings.model_copy(update=changed))

"""Takes settings from one stage to the next, as far as planning does: ``spec/stages.py`` has them
all.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from orchestrator.engines.engine import Engine
from orchestrator.plan.cost import START_S, weight_bytes
from orchestrator.plan.paths import Paths
from orchestrator.plan.placement import spread
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PlannedSettings, ResolvedSettings, WrittenSettings

DOWNLOAD_BYTES_S = 1e8  # from a hub to a node that has no weights yet


def resolved(
    written: WrittenSettings, engine: Engine, hardware: Hardware, paths: Paths
) -> ResolvedSettings:
    """Settings with absolute paths, and with replicas spread over nodes where the engine can.

    Raises ValueError for an environment variable that is not set, and for the home folder of an
    unknown user.
    """
    settings: EngineSettings = written
    if engine.several_nodes:
        settings = settings.each(partial(spread, hardware=hardware))
    return ResolvedSettings(settings.each(paths.absolute))


def with_time_to_start(
    settings: ResolvedSettings, engine: Engine, predicted: Mapping[str, Any]
) -> PlannedSettings:
    """Settings with a ``startup_timeout_s`` within which a new node can also download the weights.

    Unchanged if the settings give it, or if the weights are unknown or small enough. ``predicted``:
    by feasibility.py.
    """
    if "startup_timeout_s" in settings.model_fields_set or not engine.launches:
        return PlannedSettings(settings)
    downloads = [
        weight_bytes(predicted, role) * part.world_size for role, part in settings.engines.items()
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

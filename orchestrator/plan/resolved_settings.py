"""Resolves settings: turns ``WrittenSettings`` into ``ResolvedSettings`` (see spec/stages.py)."""

from functools import partial

from orchestrator.engines.engine import Engine
from orchestrator.plan.paths import Paths
from orchestrator.plan.placement import spread
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import ResolvedSettings, WrittenSettings


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

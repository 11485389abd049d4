"""How requests to a deployment are written: the dialects of its engine, as far as a router passes
them on.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ROUTERS
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings


def dialect_of(engine: Engine, settings: EngineSettings, api: str) -> Dialect:
    """The dialect of one API of a deployment. Raises KeyError if it does not have that API."""
    drafted = 0
    if engine.drafts is not None:
        drafted = max(engine.drafts.tokens(part) for part in settings.engines.values())
    return replace(dialects_of(engine, settings)[api], tokens_per_step=1 + drafted)


def dialects_of(engine: Engine, settings: EngineSettings) -> dict[str, Dialect]:
    """The dialects of a deployment by API, limited to what a router in front of it passes on."""
    own = engine.dialects(settings)
    if settings.router is None:
        return own
    of_router = ROUTERS[settings.router.engine].dialects(settings)
    return {
        api: dialect.through(of_router[api]) for api, dialect in own.items() if api in of_router
    }

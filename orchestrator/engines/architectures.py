"""Which models each engine has code for, by the lists of its own sources (architectures.json).

scripts/record_architectures.py makes them. An engine that is not in them is not judged.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from orchestrator.base.data_files import data_beside


@dataclass(frozen=True, slots=True)
class Support:
    """What one engine has code for."""

    version: str  # the releases whose lists these are
    by_class: bool  # ``names`` are of ``architectures`` in a config.json; else they are model types
    names: frozenset[str]
    turbomind: frozenset[str] | None  # LMDeploy: what the faster of its two backends has


@cache
def support(engine: str) -> Support | None:
    """The lists of one engine; None if there are none."""
    recorded: dict[str, Any] | None = data_beside(__file__, "architectures.json").get(engine)
    if recorded is None:
        return None
    turbomind = recorded.get("turbomind")
    return Support(
        recorded["version"],
        recorded["chosen_by"] == "architectures",
        frozenset(recorded["names"]),
        None if turbomind is None else frozenset(turbomind),
    )

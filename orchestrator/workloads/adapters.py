"""Which LoRA adapter a session asks for."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.spec.load import Workload
from orchestrator.spec.request_options import Adapters
from orchestrator.workloads.kind import ADAPTER_STREAM, stream
from orchestrator.workloads.random_values import Choices

# A client writes requests ahead, and needs the adapters of their sessions again as it sends them: a
# draw takes as long as a good part of sending a request.
SESSIONS_KEPT = 32_768


class PopularAdapters:
    """Draws the adapter of each session by popularity: a pure function of seed and session."""

    def __init__(self, adapters: Adapters, seed: int) -> None:
        self._adapters = adapters
        self._seed = seed
        self._choices = Choices(len(adapters.names), adapters.pick)
        self._kept = lru_cache(SESSIONS_KEPT)(self._drawn)

    def of_session(self, session: int) -> str | None:
        """The name of its adapter; None: it asks for the model itself."""
        return self._kept(session)

    def _drawn(self, session: int) -> str | None:
        rng = stream(self._seed, ADAPTER_STREAM, session)
        if rng.random() < self._adapters.base_share:
            return None
        return self._adapters.names[self._choices.one(rng)]


def adapters_of(workload: Workload, seed: int) -> PopularAdapters | None:
    """What chooses the adapters of a workload's sessions; None where it asks for none."""
    return None if workload.adapters is None else PopularAdapters(workload.adapters, seed)

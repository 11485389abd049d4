"""Tells the user what happens to a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.results.events import Event, Listener
from orchestrator.results.phases import Phase, PhaseName, RequestProgress


@dataclass(frozen=True, slots=True)
class Announcer:
    """Tells ``listener`` what happens, under the ``label`` of the deployment; empty for ``load``,
    which has no launch either.
    """

    listener: Listener = lambda item: None
    label: str = ""
    launch_id: str = ""

    def event(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:
        """Tell of something that happened or was decided."""
        self.listener(Event(kind, text, self.label, self.launch_id, data=data or {}))

    def phase(
        self,
        name: PhaseName,
        detail: str = "",
        elapsed_s: float = 0.0,
        total_s: float = 0.0,
        requests: RequestProgress | None = None,
        says: str = "",
    ) -> None:
        """Show what is done now. See ``Phase`` for what is shown of it."""
        self.listener(Phase(self.label, name, detail, elapsed_s, total_s, requests, says))

"""The race among deployments, as somebody sees it who looks at it now and then."""

from __future__ import annotations

from orchestrator.capacity.race import Race


class FollowedRace:
    """A race, and which version of it was looked at last. ``race``: None if nothing is searched."""

    def __init__(self, race: Race | None) -> None:
        self.race = race
        self._seen_version = -1

    @property
    def has_moved(self) -> bool:
        """Whether searches have found something since the race was looked at last."""
        return self.race is not None and self.race.version != self._seen_version

    def look(self) -> None:
        """Note that what searches have found until now is looked at. Called before looking: what
        they find meanwhile is seen the next time.
        """
        if self.race is not None:
            self._seen_version = self.race.version

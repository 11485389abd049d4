"""The race among deployments, as somebody sees it who looks at it now and then."""

from __future__ import annotations

from orchestrator.capacity.race import Race


class FollowedRace:
    """A race, and which version of it was looked at last. ``race``: None if nothing is searched.

    ``seen_version``: what was looked at before; 0 is a race in which nothing was found.
    """

    def __init__(self, race: Race | None, seen_version: int = -1) -> None:
        self.race = race
        self._seen_version = seen_version

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

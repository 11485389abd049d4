"""What an earlier simulation left in the store, from which the next one goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.results.manifest import Manifest
from orchestrator.results.records import Committed, PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store


class PlanChanged(Exception):
    """The plan, or this program, would make other launches than those that are stored."""


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """An attempt that counts. ``failure``: None if it is ok."""

    committed: Committed
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class CommittedLaunch:
    """A committed launch, with its attempts by their ids."""

    manifest: Manifest
    attempts: Mapping[str, StoredAttempt]

    def attempt(self, attempt_id: str) -> StoredAttempt:
        """The attempt with this id. Raises PlanChanged if the launch made no such attempt."""
        stored = self.attempts.get(attempt_id)
        if stored is None:
            raise PlanChanged
        return stored


class LaunchesToRepeat:
    """The committed launches of an earlier simulation that were not repeated yet.

    A simulation that goes on repeats them: it makes the same decisions, and takes what each attempt
    found from the store. So its searches, its races and its clock come to where the earlier one
    was ended.
    """

    def __init__(self, launches: Sequence[CommittedLaunch] = ()) -> None:
        self._launches = {launch.manifest.launch_id: launch for launch in launches}

    @property
    def are_left(self) -> bool:
        """Whether some launches were not repeated yet."""
        return bool(self._launches)

    def launch(self, launch_id: str) -> CommittedLaunch | None:
        """The launch with this id; None: all stored launches were repeated, and this one is new.

        Raises PlanChanged if other launches are stored in its place.
        """
        launch = self._launches.get(launch_id)
        if launch is None and self._launches:
            raise PlanChanged
        return launch

    def note_repeated(self, launch: CommittedLaunch) -> None:
        """Note that a launch was repeated."""
        del self._launches[launch.manifest.launch_id]


def committed_launches(store: Store, with_figures: bool) -> list[CommittedLaunch]:
    """The committed launches with their attempts, the oldest first.

    Attempts of a launch that was not committed do not count: they are made again. ``with_figures``:
    the attempts have figures, which searches for capacities need.
    """
    manifests = store.manifests("launch")
    attempts: dict[str, dict[str, StoredAttempt]] = {
        manifest.launch_id: {} for manifest in manifests
    }
    points = [manifest for manifest in store.manifests("point") if manifest.launch_id in attempts]
    committed: dict[str, Committed] = {manifest.attempt_id: manifest for manifest in points}
    if with_figures:
        committed = {attempt.attempt_id: attempt for attempt in attempt_data(store, points)}
    failures = _failures(store, points)
    for manifest in points:
        attempt_id = manifest.attempt_id
        if attempt_id in committed:
            attempts[manifest.launch_id][attempt_id] = StoredAttempt(
                committed[attempt_id], failures.get(attempt_id)
            )
    return [CommittedLaunch(manifest, attempts[manifest.launch_id]) for manifest in manifests]


def _failures(store: Store, points: Sequence[Manifest]) -> dict[str, Failure]:
    """Why attempts failed, by their ids."""
    failed = [manifest for manifest in points if manifest.status != "ok"]
    kinds = {str(kind): kind for kind in FailureKind}
    failures: dict[str, Failure] = {}
    for row in rows_of(store.read_manifests("points", failed), PointRow):
        kind = kinds.get(row.failure_kind or "", FailureKind.INTERNAL)
        failures[row.attempt_id] = Failure(kind, row.reason or "")
    return failures

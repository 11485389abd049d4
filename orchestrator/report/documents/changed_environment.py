"""What changed around the engine between two sweeps: hosts, drivers, and the measuring program.

A difference between their figures may then come from there, and not from the engine's version.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.launches import launches_of
from orchestrator.analysis.points import StoredPoint
from orchestrator.base.grouping import values_by_key
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.host_facts import IMAGE, HostFact, host_facts
from orchestrator.results.records import LaunchRow
from orchestrator.results.stored_json import host_environment, parsed_environment

PROGRAM = "orchestrator"


@dataclass(frozen=True, slots=True)
class ChangedFact:
    """Something around the engine that is not the same on both sides.

    ``hardware``: the class whose hosts it is about; None: it is about the measuring program.
    ``base``, ``new``: all values that it had on that side.
    """

    hardware: str | None
    title: str
    base: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredSide:
    """The points of one side of a comparison, and the experiment that holds them.

    ``client_versions``: the versions of this program that measured them, as far as they are known.
    """

    experiment: StoredExperiment
    points: Sequence[StoredPoint]
    client_versions: tuple[str, ...]


def changed_facts(base: MeasuredSide, new: MeasuredSide) -> tuple[ChangedFact, ...]:
    """What is not the same on both sides: this program, and the hosts of each hardware class.

    Which host of a class it was does not count. What is not known of a side, such as of a server that already
    ran, has not changed. Where the sides name different images, so do their digests.
    """
    base_facts = _facts_by_hardware(base)
    new_facts = _facts_by_hardware(new)
    names_same_images = _images(base.points) == _images(new.points)
    changed: list[ChangedFact] = []
    is_known = base.client_versions and new.client_versions
    if is_known and base.client_versions != new.client_versions:
        changed.append(ChangedFact(None, PROGRAM, base.client_versions, new.client_versions))
    for hardware, facts in base_facts.items():
        values_in_new = {fact.title: fact.values for fact in new_facts.get(hardware, ())}
        for fact in facts:
            values = values_in_new.get(fact.title, fact.values)
            is_comparable = fact.title != IMAGE or names_same_images
            if is_comparable and values != fact.values:
                changed.append(ChangedFact(hardware, fact.title, fact.values, values))
    return tuple(changed)


def _facts_by_hardware(side: MeasuredSide) -> dict[str, tuple[HostFact, ...]]:
    """The facts of the hosts of each hardware class, at the launches that the points ran on."""
    heads = []
    hardware_of_launch = {}
    for point in side.points:
        for repeat in point.used_repeats:
            heads.append(repeat.head)
            hardware_of_launch[repeat.head.launch_id] = point.deployment.hardware
    launches = launches_of(side.experiment.store, heads)
    by_hardware = values_by_key(
        (hardware_of_launch[launch_id], launch) for launch_id, launch in launches.items()
    )
    return {hardware: _facts(of_class) for hardware, of_class in by_hardware.items()}


def _facts(launches: Iterable[LaunchRow]) -> tuple[HostFact, ...]:
    environments = [parsed_environment(launch.environment_json) for launch in launches]
    return host_facts(
        host_environment(host) for environment in environments for host in environment.values()
    )


def _images(points: Iterable[StoredPoint]) -> set[object]:
    return {point.deployment.settings.get("image") for point in points}

"""The engines, hardware and hosts with which an experiment was measured, as far as is stored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.points import StoredPoint
from orchestrator.base.grouping import values_by_key
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.host_facts import HostFact, host_facts
from orchestrator.report.documents.launch import LaunchDocument
from orchestrator.results.stored_json import PlacedRank, host_environment, placed_ranks

MOST_VERSIONS_READ = 50  # launches for which a stored row is read to find the version


@dataclass(frozen=True, slots=True)
class EngineVersions:
    """The versions of one engine, and how many of its launches served and failed.

    ``reported``: the versions that launches reported. ``asked``: the versions that the file names.
    """

    engine: str
    reported: tuple[str, ...]
    asked: tuple[str, ...]
    served: int
    failed: int


@dataclass(frozen=True, slots=True)
class HardwareClass:
    """A hardware class of the file. ``usd_per_gpu_hour``: None: it has no price."""

    name: str
    accelerator: str
    usd_per_gpu_hour: float | None


@dataclass(frozen=True, slots=True)
class HostDescription:
    """A host on which ranks of engines ran, as it was found. ``gpus``: names and UUIDs. ``facts``:
    its kernel, CPU, drivers and images, by what they are; several where they changed meanwhile.
    """

    name: str
    gpus: tuple[str, ...]
    cores: int
    launches: int
    facts: tuple[HostFact, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredWith:
    """With what an experiment was measured.

    ``measured_by``: the versions of this program that measured it. ``planned_by``: the version that
    wrote the plan; None: there is no readable plan.
    """

    measured_by: tuple[str, ...]
    planned_by: str | None
    engines: tuple[EngineVersions, ...]
    hardware: tuple[HardwareClass, ...]
    hosts: tuple[HostDescription, ...]


@dataclass(frozen=True, slots=True)
class _RankOfLaunch:
    launch_id: str
    rank: PlacedRank


def measured_with(
    experiment: StoredExperiment,
    points: Sequence[StoredPoint],
    launches: Sequence[LaunchDocument],
) -> MeasuredWith:
    """Gathers with what an experiment was measured. ``points``, ``launches``: all of them."""
    return MeasuredWith(
        measured_by=_measured_by(experiment, points),
        planned_by=experiment.plan.program_version if experiment.plan else None,
        engines=tuple(_engines(launches)),
        hardware=tuple(_hardware(points)),
        hosts=tuple(_hosts(launches)),
    )


def _measured_by(experiment: StoredExperiment, points: Sequence[StoredPoint]) -> tuple[str, ...]:
    """The versions that measured, from one attempt per launch: a launch has only one version."""
    one_of_launch = {point.head.launch_id: point.head.ids for point in points}
    manifests = []
    for ids in list(one_of_launch.values())[:MOST_VERSIONS_READ]:
        manifest = experiment.store.manifest(*ids)
        if manifest is not None:
            manifests.append(manifest)
    rows = experiment.store.read_manifests(
        "points", manifests, ["client_version"], skip_damaged=True
    )
    return tuple(sorted(set(rows["client_version"].to_pylist())))


def _engines(launches: Iterable[LaunchDocument]) -> Iterable[EngineVersions]:
    by_engine = values_by_key(
        (launch.deployment.engine, launch) for launch in launches if launch.deployment is not None
    )
    for engine, of_engine in sorted(by_engine.items()):
        reported = {launch.row.engine_version for launch in of_engine}
        asked = {launch.asked_version for launch in of_engine}
        served = sum(launch.has_served for launch in of_engine)
        yield EngineVersions(
            engine=engine,
            reported=_texts(reported),
            asked=_texts(asked),
            served=served,
            failed=len(of_engine) - served,
        )


def _texts(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _hardware(points: Iterable[StoredPoint]) -> Iterable[HardwareClass]:
    """The hardware classes of these points, without endpoints, whose hardware is unknown."""
    classes: dict[HardwareClass, None] = {}
    for point in points:
        deployment = point.deployment
        if not deployment.hardware or not deployment.launched:
            continue
        price = deployment.usd_per_hour
        per_device = price / deployment.devices if price and deployment.devices else None
        classes[HardwareClass(deployment.hardware, deployment.accelerator, per_device)] = None
    return classes


def _hosts(launches: Sequence[LaunchDocument]) -> Iterable[HostDescription]:
    ranks: list[_RankOfLaunch] = []
    for launch in launches:
        for rank in placed_ranks(launch.row.placement_json):
            ranks.append(_RankOfLaunch(launch.row.launch_id, rank))
    ranks_by_host = values_by_key((each.rank.hostname or "not known", each) for each in ranks)
    for name, of_host in sorted(ranks_by_host.items()):
        cores: set[int] = set()
        gpus: set[str] = set()
        for each in of_host:
            cores.update(each.rank.cores)
            gpus.update(each.rank.gpus)
        yield HostDescription(
            name=name,
            gpus=_texts(gpus),
            cores=len(cores),
            launches=len({each.launch_id for each in of_host}),
            facts=host_facts(
                host_environment(launch.environment[name])
                for launch in launches
                if name in launch.environment
            ),
        )

"""Expands an experiment: every combination of settings becomes a candidate, resolved and with an
id.

A candidate is judged next, and becomes a deployment of the plan.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.engines.engine import Engine
from orchestrator.engines.problems import notes_of
from orchestrator.engines.registry import ENGINES, ROUTERS, program_of
from orchestrator.plan.identity import Contents, deployment_id, version_mismatch
from orchestrator.plan.paths import Paths
from orchestrator.plan.resolved_settings import resolved
from orchestrator.spec.combinations import Combination
from orchestrator.spec.document import Place, Problems
from orchestrator.spec.experiment import Experiment
from orchestrator.spec.settings import NO_HARDWARE, ROUTER, Hardware
from orchestrator.spec.stages import ResolvedSettings, WrittenSettings

ANY = Hardware(name="any", accelerator="any")  # no hardware is named: whatever the cluster has
NONE = Hardware(name=NO_HARDWARE, accelerator=NO_HARDWARE)  # for endpoints, which need no nodes
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination on its way to becoming a deployment. It does not keep the settings as they are
    written, which would take 2 KB each.
    """

    id: str
    settings: ResolvedSettings
    spread_roles: tuple[str, ...]  # roles spread over nodes although the file gives no nnodes
    engine: Engine
    hardware: Hardware
    hardware_in_file: str | None  # its name there
    derived: Mapping[str, Any]
    excluded_by: str | None


def engines_of(experiment: Experiment) -> dict[str, Engine]:
    """Every engine that the file names. Reports unknown engines and routers, and endpoints without
    a URL.
    """
    problems = experiment.problems
    for setting, place, name in experiment.engines:
        if setting == "engine":
            _check_known(problems, place, "engine", name, ENGINES.names())
        else:
            _check_known(problems, place, "router", name, ROUTERS.names())
    for name in experiment.parts.get("environments", ()):
        _check_known(problems, ("environments", name), "engine", name, ENGINES.names())
    used = {combination.settings.engine for combination in experiment.combinations}
    engines = {name: ENGINES[name] for name in used if name in ENGINES}
    for combination in experiment.combinations:
        engine = engines.get(combination.settings.engine)
        if engine is not None and not engine.launches and combination.settings.url is None:
            message = f"engine {combination.settings.engine!r} needs the 'url' it runs at"
            problems.add(combination.place("url"), message, "write url: http://host:port")
    return engines


def _check_known(
    problems: Problems, place: Place, kind: str, name: str, names: Collection[str]
) -> None:
    if name not in names:
        problems.unknown(place, kind, name, names)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of an experiment, and notes about them."""

    candidates: list[Candidate]
    notes: list[str]


def expand(experiment: Experiment, engines: Mapping[str, Engine], paths: Paths) -> Candidates:
    """Candidates without duplicates, and notes about them. A candidate that some blocks exclude and
    others do not is measured.

    Empties the experiment's list of combinations. Reports paths that cannot be resolved, and
    versions other than the installed ones.
    """
    candidates: dict[str, Candidate] = {}
    duplicates = 0
    for candidate in _candidates(experiment, engines, paths):
        first = candidates.get(candidate.id)
        if first is None:
            candidates[candidate.id] = candidate
            continue
        duplicates += 1
        if first.excluded_by is not None and candidate.excluded_by is None:
            candidates[candidate.id] = candidate
    notes: list[str] = []
    if duplicates:
        notes.append(f"{duplicates} combinations are equal to another one and are measured once")
    notes += _unknown_releases(candidates.values())
    return Candidates(list(candidates.values()), notes)


def drained(items: list[Item]) -> Iterator[Item]:
    """Yields each item in order and removes it from the list, because what is made of the item
    needs the memory.
    """
    items.reverse()
    while items:
        yield items.pop()


def _candidates(
    experiment: Experiment, engines: Mapping[str, Engine], paths: Paths
) -> Iterator[Candidate]:
    """The candidates of all combinations whose engine, router and hardware are known."""
    contents = Contents()
    for combination in drained(experiment.combinations):
        engine = engines.get(combination.settings.engine)
        hardware = _hardware_of(combination, engine, experiment.hardware)
        router = combination.settings.router
        if engine is None or hardware is None or (router and router.engine not in ROUTERS):
            continue
        try:
            settings = resolved(combination.settings, engine, hardware, paths)
        except ValueError as error:
            experiment.problems.add(combination.block, str(error))
            continue
        _check_versions(experiment, combination, settings, contents)
        yield Candidate(
            id=deployment_id(combination.settings, settings, hardware, contents),
            settings=settings,
            spread_roles=_spread_roles(combination.settings, settings),
            engine=engine,
            hardware=hardware,
            hardware_in_file=combination.hardware,
            derived=combination.derived,
            excluded_by=combination.excluded_by,
        )


def _spread_roles(written: WrittenSettings, settings: ResolvedSettings) -> tuple[str, ...]:
    """The roles that resolving spread over more nodes than the file says."""
    return tuple(
        role
        for role, part in settings.engines.items()
        if part.nnodes != written.engines[role].nnodes
    )


def _hardware_of(
    combination: Combination, engine: Engine | None, classes: Mapping[str, Hardware]
) -> Hardware | None:
    """The hardware that the file names; None if the file does not define it. If the file names
    none, it is NONE for an endpoint and ANY for everything else.
    """
    if combination.hardware is not None:
        return classes.get(combination.hardware)
    if engine is not None and not engine.launches:
        return NONE
    return ANY


def _check_versions(
    experiment: Experiment,
    combination: Combination,
    settings: ResolvedSettings,
    contents: Contents,
) -> None:
    """Reports versions other than the installed ones."""
    for role, part in settings.parts.items():
        mismatch = version_mismatch(part, contents)
        if mismatch is not None:
            name = "router.engine_version" if role == ROUTER else "engine_version"
            experiment.problems.add(combination.place(name), mismatch, "correct one of them")


def _unknown_releases(candidates: Iterable[Candidate]) -> list[str]:
    """Notes on engines whose release is not among those that this program knows."""
    notes: dict[str, None] = {}
    for candidate in candidates:
        for part in candidate.settings.parts.values():
            notes |= dict.fromkeys(notes_of(program_of(part.engine), part))
    return list(notes)

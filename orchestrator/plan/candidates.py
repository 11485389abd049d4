"""Expands an experiment: every combination of settings becomes a candidate, resolved and with an
id.

A candidate is judged next, and becomes a deployment of the plan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.engines.engine import Engine
from orchestrator.engines.problems import notes_of
from orchestrator.engines.registry import ENGINES, ROUTERS, program_of
from orchestrator.plan.identity import Contents, deployment_id, version_mismatch
from orchestrator.plan.paths import Paths
from orchestrator.plan.resolved_settings import resolved
from orchestrator.spec.combinations import Combination
from orchestrator.spec.experiment import Experiment
from orchestrator.spec.settings import NO_HARDWARE, ROUTER, Hardware
from orchestrator.spec.stages import ResolvedSettings

ANY = Hardware(name="any", accelerator="any")  # no hardware is named: whatever the cluster has
# of endpoints: no nodes are held for them
NONE = Hardware(name=NO_HARDWARE, accelerator=NO_HARDWARE)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination on its way to a deployment, without the settings as they are written: those
    take 2 KB.
    """

    id: str
    settings: ResolvedSettings
    spread_roles: tuple[str, ...]  # whose replicas were spread over nodes; the file does not say so
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
    in_environments = [
        ("engine", ("environments", name), name)
        for name in experiment.parts.get("environments", ())
    ]
    for setting, place, name in (*experiment.engines, *in_environments):
        if setting == "engine":
            kind, names = "engine", ENGINES.names()
        else:
            kind, names = "router", ROUTERS.names()
        if name not in names:
            problems.unknown(place, kind, name, names)
    used = {combination.settings.engine for combination in experiment.combinations}
    engines = {name: ENGINES[name] for name in used if name in ENGINES}
    for combination in experiment.combinations:
        engine = engines.get(combination.settings.engine)
        if engine is not None and not engine.launches and combination.settings.url is None:
            message = f"engine {combination.settings.engine!r} needs the 'url' it runs at"
            problems.add(combination.place("url"), message, "write url: http://host:port")
    return engines


def expand(
    experiment: Experiment, engines: Mapping[str, Engine], paths: Paths
) -> tuple[list[Candidate], list[str]]:
    """Candidates without duplicates, and notes about them. One that only some blocks exclude is
    measured.

    Takes the experiment's combinations. Reports unresolvable paths, and versions other than the
    installed ones.
    """
    candidates: dict[str, Candidate] = {}
    merged = 0
    for candidate in _candidates(experiment, engines, paths):
        first = candidates.setdefault(candidate.id, candidate)
        merged += first is not candidate
        if first.excluded_by is not None and candidate.excluded_by is None:
            candidates[candidate.id] = candidate
    notes = []
    if merged:
        notes.append(f"{merged} combinations are equal to another one and are measured once")
    notes += _unknown_releases(candidates.values())
    return list(candidates.values()), notes


def drained(items: list[Item]) -> Iterator[Item]:
    """Yields each item in order and removes it from the list: what is made of it needs the
    memory.
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
        written = combination.settings.engines
        yield Candidate(
            deployment_id(combination.settings, settings, hardware, contents),
            settings,
            tuple(
                role
                for role, part in settings.engines.items()
                if part.nnodes != written[role].nnodes
            ),
            engine,
            hardware,
            combination.hardware,
            combination.derived,
            combination.excluded_by,
        )


def _hardware_of(
    combination: Combination, engine: Engine | None, classes: Mapping[str, Hardware]
) -> Hardware | None:
    """The hardware that the file names, None if it is unknown; ANY without a name, NONE for an
    endpoint.
    """
    if combination.hardware is not None:
        return classes.get(combination.hardware)
    return NONE if engine is not None and not engine.launches else ANY


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
    """What cannot be known of deployments whose engine is of a release that is not recorded."""
    notes: dict[str, None] = {}
    for candidate in candidates:
        for part in candidate.settings.parts.values():
            notes |= dict.fromkeys(notes_of(program_of(part.engine), part))
    return list(notes)

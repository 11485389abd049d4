"""Experiment to plan: names looked up, paths resolved, every deployment judged, points and their ids made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.catalog.models import model_facts
from orchestrator.engines import ENGINES
from orchestrator.engines.base import Engine
from orchestrator.errors import Problem, ProblemsError
from orchestrator.load.arrivals import problems as arrivals_problems
from orchestrator.load.workloads import WORKLOADS, pinned
from orchestrator.load.workloads import problems as workload_problems
from orchestrator.plan import identity
from orchestrator.plan.checks import placement_problems, workload_mismatch
from orchestrator.plan.feasibility import assess
from orchestrator.plan.labels import labels
from orchestrator.plan.model import Deployment, Plan, Point, Status
from orchestrator.plan.paths import Paths
from orchestrator.results.ids import digest
from orchestrator.spec.combinations import Combination
from orchestrator.spec.experiment import Experiment
from orchestrator.spec.load import Arrivals, Level, Workload
from orchestrator.spec.problems import nearest
from orchestrator.spec.settings import EngineSettings, Hardware

ANY = Hardware(name="any", accelerator="any")  # a launched engine without hardware: whatever the cluster has
NONE = Hardware(name="none", accelerator="none")  # an endpoint: we hold nothing


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A combination on its way to a deployment."""

    id: str
    combination: Combination
    settings: EngineSettings  # paths resolved
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was found about a candidate. ``unserved``: workloads it cannot serve at all."""

    status: Status
    reasons: tuple[str, ...] = ()
    predicted: dict[str, Any] | None = None
    unserved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Load:
    """What is asked of every deployment; ``digest`` names it."""

    workload: Workload
    level: Level
    arrivals: Arrivals
    digest: str


def make_plan(experiment: Experiment, *, cluster_nodes: int | None = None) -> Plan:
    """The frozen plan of an experiment. ``cluster_nodes``: nodes of the cluster it is for, None when not known.

    Raises ProblemsError for names that nothing answers to (engine, workload kind, arrivals) and paths that cannot be
    resolved. What a deployment cannot do is no error: it is in the plan as ``impossible``, with the reasons.
    """
    paths = Paths(experiment.folder)
    engines = _engines(experiment)
    arrivals = _arrivals(experiment, paths)
    workloads = _workloads(experiment, paths)
    candidates, notes = _merged(_candidates(experiment, paths, engines))
    names = labels([(one.settings, one.hardware.name) for one in candidates], [one.id for one in candidates])
    loads = _loads(experiment, workloads, arrivals)
    deployments, points = [], []
    for one, label in zip(candidates, names, strict=True):
        verdict = _judge(one, engines[one.settings.engine], workloads, cluster_nodes)
        deployments.append(_deployment(one, label, verdict))
        if deployments[-1].runs:
            points += [_point(one.id, load, experiment) for load in loads if load.workload.name not in verdict.unserved]
    spec = experiment.spec
    return Plan(
        name=spec.name,
        experiment_digest=digest(experiment.document.value),
        deployments=tuple(deployments),
        points=tuple(points),
        slos=tuple(spec.slos.values()),
        budget=spec.budget,
        isolation=spec.isolation,
        repeats=spec.repeats,
        seed=spec.seed,
        clients=spec.clients,
        notes=tuple(notes),
    )


def _engines(experiment: Experiment) -> dict[str, Engine]:
    """An object of every engine named. Raises ProblemsError for unknown ones and what each needs to be named at all."""
    problems: dict[Problem, None] = {}
    document, known = experiment.document, ENGINES.names()
    found: dict[str, Engine] = {}
    for one in experiment.combinations:
        name = one.settings.engine
        if name not in known:
            problems.setdefault(document.problem(one.place("engine"), f"unknown engine {name!r}", nearest(name, known)))
            continue
        engine = found.setdefault(name, ENGINES[name]()) if name not in found else found[name]
        if not engine.launches and one.settings.url is None:
            hint = "write url: http://host:port"
            problems.setdefault(document.problem(one.place("url"), f"engine {name!r} needs the 'url' it runs at", hint))
    for index, workload in enumerate(experiment.spec.workloads):
        if workload.kind not in WORKLOADS:
            place = ("workloads", index, "kind")
            hint = nearest(workload.kind, WORKLOADS.names())
            problems.setdefault(document.problem(place, f"unknown workload kind {workload.kind!r}", hint))
    for name in experiment.spec.environments:
        if name not in known:
            problems.setdefault(
                document.problem(("environments", name), f"unknown engine {name!r}", nearest(name, known))
            )
    if problems:
        raise ProblemsError(list(problems))
    return found


def _arrivals(experiment: Experiment, paths: Paths) -> Arrivals:
    """With the trace's path resolved. Raises ProblemsError when nothing can be drawn from it."""
    arrivals = experiment.spec.load.arrivals
    try:
        if arrivals.trace is not None:
            arrivals = arrivals.model_copy(update={"trace": paths.path(arrivals.trace)})
        found = arrivals_problems(arrivals)
    except ValueError as error:
        found = [str(error)]
    if found:
        raise ProblemsError([experiment.document.problem(("load", "arrivals"), text) for text in found])
    return arrivals


def _workloads(experiment: Experiment, paths: Paths) -> list[Workload]:
    """With paths resolved and the content of files held fast. Raises ProblemsError for prompts that cannot be sent."""
    out, found = [], []
    for index, workload in enumerate(experiment.spec.workloads):
        try:
            resolved = workload.model_copy(update={"prompts": paths.path(workload.prompts)} if workload.prompts else {})
            wrong = workload_problems(resolved)
            if not wrong:
                out.append(pinned(resolved))
        except ValueError as error:
            wrong = [str(error)]
        found += [experiment.document.problem(("workloads", index), text) for text in wrong]
    if found:
        raise ProblemsError(found)
    return out


def _candidates(experiment: Experiment, paths: Paths, engines: Mapping[str, Engine]) -> Iterator[_Candidate]:
    contents = identity.Contents()
    classes = experiment.hardware
    problems: dict[Problem, None] = {}
    for one in experiment.combinations:
        without = ANY if engines[one.settings.engine].launches else NONE
        hardware = classes[one.hardware] if one.hardware is not None else without
        try:
            settings = paths.resolved(one.settings)
        except ValueError as error:
            problems.setdefault(experiment.document.problem(one.block, str(error)))
            continue
        if (mismatch := identity.version_mismatch(settings, contents)) is not None:
            problems.setdefault(
                experiment.document.problem(one.place("engine_version"), mismatch, "correct one of them")
            )
            continue
        yield _Candidate(identity.deployment_id(one.settings, settings, hardware, contents), one, settings, hardware)
    if problems:
        raise ProblemsError(list(problems))


def _merged(candidates: Iterator[_Candidate]) -> tuple[list[_Candidate], list[str]]:
    """Equal deployments once; one that a rule leaves out in one block and not in another is measured."""
    kept: dict[str, _Candidate] = {}
    merged = 0
    for one in candidates:
        before = kept.setdefault(one.id, one)
        merged += before is not one
        if before.combination.excluded_by is not None and one.combination.excluded_by is None:
            kept[one.id] = one
    notes = [f"{merged} combinations are equal to another one and are measured once"] if merged else []
    return list(kept.values()), notes


def _judge(one: _Candidate, engine: Engine, workloads: Sequence[Workload], cluster_nodes: int | None) -> _Verdict:
    """Whether a candidate can run, from everything known without starting it."""
    settings, hardware = one.settings, one.hardware
    if one.combination.excluded_by is not None:
        return _Verdict("excluded", (f"left out by the rule: {one.combination.excluded_by}",))
    wrong = engine.problems(settings, hardware)
    if not wrong and engine.launches:
        wrong = placement_problems(settings, hardware, cluster_nodes)
    if wrong:
        return _Verdict("impossible", tuple(wrong))
    verdict = _feasible(settings, hardware) if engine.launches else _Verdict("planned")
    if verdict.status == "impossible":
        return verdict
    return _with_workloads(verdict, settings, workloads, sorted(engine.dialects(settings)))


def _feasible(settings: EngineSettings, hardware: Hardware) -> _Verdict:
    facts = model_facts(settings.model, settings.revision, settings.hf_overrides)
    draft = settings.speculative.model if settings.speculative else None
    found = assess(_as_started(settings, hardware), facts, hardware, draft=model_facts(draft) if draft else None)
    status: Status = "planned" if found.status == "fits" else found.status
    return _Verdict(status, tuple(found.reasons), found.predicted or None)


def _as_started(settings: EngineSettings, hardware: Hardware) -> EngineSettings:
    """With what its engine pins where the settings leave it open: predictions are of the command that will run."""
    return settings.model_copy(update=ENGINES[settings.engine]().pinned(settings, hardware))


def _with_workloads(
    verdict: _Verdict, settings: EngineSettings, workloads: Sequence[Workload], apis: Sequence[str]
) -> _Verdict:
    """A workload that cannot be served is not measured; when none can be, the deployment is impossible."""
    limit = settings.max_model_len or (verdict.predicted or {}).get("max_model_len")  # the model's own, where known
    found = {one.name: workload_mismatch(one, settings.engine, limit, apis) for one in workloads}
    bad = {name: mismatch for name, mismatch in found.items() if mismatch is not None}
    if not bad:
        return verdict
    unserved = frozenset(name for name, mismatch in bad.items() if mismatch.nothing_works)
    status: Status = "risky" if len(unserved) < len(bad) else verdict.status
    if len(unserved) == len(found):
        status = "impossible"
    reasons = (*verdict.reasons, *(mismatch.sentence for mismatch in bad.values()))
    return replace(verdict, status=status, reasons=reasons, unserved=unserved)


def _deployment(one: _Candidate, label: str, verdict: _Verdict) -> Deployment:
    plain = json.loads(json.dumps({"predicted": verdict.predicted, "derived": dict(one.combination.derived)}))
    return Deployment(
        id=one.id,
        label=label,
        settings=one.settings,
        hardware=one.hardware,
        status=verdict.status,
        reasons=verdict.reasons,
        **plain,
    )


def _loads(experiment: Experiment, workloads: Sequence[Workload], arrivals: Arrivals) -> list[_Load]:
    """Every workload at every level."""
    drawn = arrivals.model_dump(mode="json", exclude_defaults=True)
    if arrivals.trace is not None:
        drawn["trace"] = identity.file_digest(arrivals.trace)
    rules = {name: value for name, value in _rules(experiment).items() if value is not None}
    out = []
    for workload in workloads:
        for level in experiment.spec.load.points():
            open_loop = {"arrivals": drawn} if level.control == "request_rate" else {}
            out.append(_Load(workload, level, arrivals, identity.load_digest(workload, level, rules | open_loop)))
    return out


def _rules(experiment: Experiment) -> dict[str, Any]:
    load = experiment.spec.load
    return {
        "warmup_s": load.warmup,
        "duration_s": 60.0 if load.duration is None and load.requests is None else load.duration,
        "requests": load.requests,
        "max_in_flight": load.max_in_flight,
        "request_timeout_s": load.request_timeout,
        "drain_timeout_s": load.drain_timeout,
    }


def _point(deployment_id: str, load: _Load, experiment: Experiment) -> Point:
    return Point(
        point_id=identity.point_id(deployment_id, load.digest),
        deployment_id=deployment_id,
        workload=load.workload,
        level=load.level,
        arrivals=load.arrivals,
        **_rules(experiment),
    )

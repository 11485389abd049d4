"""Experiment to plan: names looked up, paths resolved, every deployment judged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.catalog.models import model_facts
from orchestrator.engines import ENGINES
from orchestrator.engines.engine import Engine
from orchestrator.errors import InputError, Problem, ProblemsError
from orchestrator.load.arrivals import problems as arrivals_problems
from orchestrator.plan import identity
from orchestrator.plan.feasibility import Feasibility, assess, placement_problems, workload_mismatch
from orchestrator.plan.identity import labels
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.results.ids import digest
from orchestrator.search import STRATEGIES
from orchestrator.search.base import Question
from orchestrator.spec.combinations import Combination
from orchestrator.spec.experiment import Experiment, load_experiment
from orchestrator.spec.load import Arrivals, Workload
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


def load_plan(path: str | Path, *, cluster_nodes: int | None = None) -> Plan:
    """The plan of an experiment file, or a frozen plan as it is.

    Raises ProblemsError for an experiment with problems, InputError for a plan that cannot be run by this version.
    """
    if not _is_frozen(path):
        return make_plan(load_experiment(path), cluster_nodes=cluster_nodes)
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the frozen plan, whole or not at all. Raises InputError when it cannot be written."""
    beside = Path(f"{path}.part")
    try:
        beside.write_text(plan.to_json(), encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _is_frozen(path: str | Path) -> bool:
    """A plan says so near its start; anything else is read as an experiment, which may be JSON too."""
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError:
        return False  # reading it as an experiment says why
    return head.lstrip().startswith(b"{") and b'"plan_format"' in head


def make_plan(experiment: Experiment, *, cluster_nodes: int | None = None) -> Plan:
    """The frozen plan of an experiment. ``cluster_nodes``: nodes of the cluster it is for, None when not known.

    Raises ProblemsError for names that nothing answers to (engine, arrivals) and paths that cannot be
    resolved. What a deployment cannot do is no error: it is in the plan as ``impossible``, with the reasons.
    """
    paths = identity.Paths(experiment.folder)
    engines = _engines(experiment)
    arrivals = _arrivals(experiment, paths)
    workloads = _workloads(experiment, paths)
    candidates, notes = _merged(_candidates(experiment, paths, engines))
    names = labels([(one.settings, one.hardware.name) for one in candidates], [one.id for one in candidates])
    deployments = [
        _deployment(one, label, _assessed(one, engines[one.settings.engine], workloads, cluster_nodes))
        for one, label in zip(candidates, names, strict=True)
    ]
    spec = experiment.spec
    return Plan(
        name=spec.name,
        experiment_digest=digest(experiment.document.value),
        deployments=tuple(deployments),
        loads=_loads(experiment, workloads, arrivals),
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
        engine = found.setdefault(name, ENGINES[name]) if name not in found else found[name]
        if not engine.launches and one.settings.url is None:
            hint = "write url: http://host:port"
            problems.setdefault(document.problem(one.place("url"), f"engine {name!r} needs the 'url' it runs at", hint))
    for name in experiment.spec.environments:
        if name not in known:
            problems.setdefault(
                document.problem(("environments", name), f"unknown engine {name!r}", nearest(name, known))
            )
    if problems:
        raise ProblemsError(list(problems))
    return found


def _arrivals(experiment: Experiment, paths: identity.Paths) -> Arrivals:
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


def _workloads(experiment: Experiment, paths: identity.Paths) -> list[Workload]:
    """With their files found, and named by content too. Raises ProblemsError for what cannot be sent."""
    out: list[Workload] = []
    found: list[Problem] = []
    for index, workload in enumerate(experiment.spec.workloads):
        try:
            out.append(workload.resolved(paths.path))
        except (ValueError, ProblemsError) as error:
            wrong = error.problems if isinstance(error, ProblemsError) else [error]
            found += [experiment.document.problem(("workloads", index), str(text)) for text in wrong]
    if found:
        raise ProblemsError(found)
    return out


def _candidates(experiment: Experiment, paths: identity.Paths, engines: Mapping[str, Engine]) -> Iterator[_Candidate]:
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
    """Equal deployments once. One that is excluded in one block but not in another is measured."""
    kept: dict[str, _Candidate] = {}
    merged = 0
    for one in candidates:
        before = kept.setdefault(one.id, one)
        merged += before is not one
        if before.combination.excluded_by is not None and one.combination.excluded_by is None:
            kept[one.id] = one
    notes = [f"{merged} combinations are equal to another one and are measured once"] if merged else []
    return list(kept.values()), notes


def _assessed(one: _Candidate, engine: Engine, workloads: Sequence[Workload], cluster_nodes: int | None) -> Feasibility:
    """Whether a candidate can run, from everything known without starting it."""
    settings, hardware = one.settings, one.hardware
    if one.combination.excluded_by is not None:
        return Feasibility("excluded", (f"left out by the rule: {one.combination.excluded_by}",))
    wrong = engine.problems(settings, hardware)
    if not wrong and engine.launches:
        wrong = placement_problems(settings, hardware, cluster_nodes)
    if wrong:
        return Feasibility("impossible", tuple(wrong))
    verdict = Feasibility("fits")
    if engine.launches:  # judged with what the engine pins where the settings leave it open: the command that will run
        draft = settings.speculative.model if settings.speculative else None
        verdict = assess(
            settings.model_copy(update=engine.pinned(settings, hardware)),
            model_facts(settings.model, settings.revision, settings.hf_overrides),
            hardware,
            draft=model_facts(draft) if draft else None,
        )
    return verdict if verdict.status == "impossible" else _with_workloads(verdict, settings, workloads, engine)


def _with_workloads(
    verdict: Feasibility, settings: EngineSettings, workloads: Sequence[Workload], engine: Engine
) -> Feasibility:
    """A workload that cannot be served is not measured; when none can be, the deployment is impossible."""
    limit = settings.max_model_len or verdict.predicted.get("max_model_len")  # the model's own, where known
    apis = sorted(engine.dialects(settings))
    found = {one.name: workload_mismatch(one, settings.engine, limit, apis) for one in workloads}
    bad = {name: mismatch for name, mismatch in found.items() if mismatch is not None}
    if not bad:
        return verdict
    unserved = sorted(name for name, mismatch in bad.items() if mismatch.status == "impossible")
    status = "risky" if len(unserved) < len(bad) else verdict.status
    return replace(
        verdict,
        status="impossible" if len(unserved) == len(found) else status,
        reasons=(*verdict.reasons, *(mismatch.sentence for mismatch in bad.values())),
        unserved=tuple(unserved),
    )


def _deployment(one: _Candidate, label: str, verdict: Feasibility) -> Deployment:
    plain = json.loads(json.dumps({"predicted": verdict.predicted or None, "derived": dict(one.combination.derived)}))
    return Deployment(
        id=one.id,
        label=label,
        settings=one.settings,
        hardware=one.hardware,
        status="planned" if verdict.status == "fits" else verdict.status,
        reasons=verdict.reasons,
        unserved=verdict.unserved,
        **plain,
    )


def _loads(experiment: Experiment, workloads: Sequence[Workload], arrivals: Arrivals) -> tuple[PlannedLoad, ...]:
    """Every workload with the rules of the load. Raises ProblemsError for a search that is unknown or cannot start."""
    load, document = experiment.spec.load, experiment.document
    levels, slos = tuple(load.points()), tuple(experiment.spec.slos.values())
    if load.search not in STRATEGIES:
        hint = nearest(load.search, STRATEGIES.names())
        raise ProblemsError([document.problem(("load", "search"), f"unknown search {load.search!r}", hint)])
    question = Question(levels, load.control, slos, experiment.spec.repeats)
    if (problem := STRATEGIES[load.search].problem(question)) is not None:
        raise ProblemsError([document.problem(("load", "search"), f"search {load.search!r}: {problem}")])
    return tuple(
        PlannedLoad(
            workload=workload,
            arrivals=arrivals,
            trace_digest=identity.file_digest(arrivals.trace) if arrivals.trace is not None else None,
            search=load.search,
            levels=levels,
            control=load.control,
            warmup_s=load.warmup,
            duration_s=60.0 if load.duration is None and load.requests is None else load.duration,
            requests=load.requests,
            max_in_flight=load.max_in_flight,
            request_timeout_s=load.request_timeout,
            drain_timeout_s=load.drain_timeout,
        )
        for workload in workloads
    )

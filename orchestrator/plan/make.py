"""Makes the plan of an experiment: looks up names, resolves paths and judges every deployment."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.capacity import STRATEGIES
from orchestrator.capacity.strategy import Question
from orchestrator.engines import ENGINES, ROUTERS
from orchestrator.engines.engine import Engine, program_of
from orchestrator.plan import identity
from orchestrator.plan.feasibility import Feasibility
from orchestrator.plan.labels import labels
from orchestrator.plan.levels import levels_of
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.plan.paths import Paths
from orchestrator.plan.placement import placement_problems
from orchestrator.plan.settle import resolved, with_time_to_start
from orchestrator.plan.verdict import judged, models_left_behind, part_problems, together
from orchestrator.results.ids import digest
from orchestrator.spec.document import nearest, read_at_most, read_document
from orchestrator.spec.experiment import Experiment, Load, Predictions, SweepRules, examined
from orchestrator.spec.load import (
    READERS,
    TOKENS_PER_WORD,
    Arrivals,
    Level,
    LoadRules,
    Slo,
    Workload,
    counted,
)
from orchestrator.spec.settings import NO_HARDWARE, ROUTER, EngineSettings, Hardware
from orchestrator.spec.stages import ResolvedSettings

ANY = Hardware(name="any", accelerator="any")  # no hardware is named: whatever the cluster has
# of endpoints: no nodes are held for them
NONE = Hardware(name=NO_HARDWARE, accelerator=NO_HARDWARE)
MOST_MEASUREMENTS = 1_000_000
MOST_PLAN_BYTES = 500_000_000  # of a frozen plan: 100,000 deployments take a fifth
STEADY = ("constant", "poisson", "gamma")  # arrivals with a constant rate
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A combination on its way to a deployment, without the settings as they are written: those
    take 2 KB.
    """

    id: str
    settings: ResolvedSettings
    spread: tuple[str, ...]  # the roles whose replicas were
    hardware: Hardware
    named: str | None  # hardware, as the file has it
    derived: Mapping[str, Any]
    excluded_by: str | None


def load_plan(path: str | Path, *, cluster_nodes: int | None = None) -> Plan:
    """The plan of an experiment file; a frozen plan is returned as it is.

    Raises ProblemsError for an experiment with problems, InputError for a plan that this version
    cannot run.
    """
    if not _is_frozen(path):
        return make_plan(examined(read_document(path)), cluster_nodes=cluster_nodes)
    try:
        return Plan.from_json(read_at_most(path, MOST_PLAN_BYTES, pipe=True).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the frozen plan atomically. Raises InputError when it cannot be written."""
    beside = Path(f"{path}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(plan.json_parts())
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _is_frozen(path: str | Path) -> bool:
    """Whether a file is a frozen plan, which says so near its start. An experiment may be JSON too."""
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError:
        return False  # reading it as an experiment says why
    return head.lstrip().startswith(b"{") and b'"plan_format"' in head


def make_plan(experiment: Experiment, *, cluster_nodes: int | None = None) -> Plan:
    """The frozen plan of an experiment. ``cluster_nodes``: nodes of its cluster, None when not
    known.

    Takes the experiment's combinations, which are as large as the plan. Raises ProblemsError with
    everything wrong with the file and with what it names: engines, arrivals, searches, files. A
    deployment that cannot work is not an error: the plan has it as ``impossible``, with the
    reasons.
    """
    paths = Paths(experiment.folder)
    engines = _engines(experiment)
    candidates, notes = _merged(_candidates(experiment, paths, engines))
    notes += _unknown_releases(candidates)
    notes += models_left_behind(candidate.settings for candidate in candidates)
    predictions = _predictions(experiment, paths)
    loads = _loads(experiment, paths)
    _check_size(experiment, candidates, loads)
    _check_apis(
        experiment,
        {api for one in candidates for api in engines[one.settings.engine].apis(one.settings)},
    )
    _check_prices(experiment, candidates)
    _check_recorded_answers(experiment, candidates, engines)
    levels = _levels(experiment, candidates)
    spec = experiment.spec
    if spec.starts > 1 and not all(engines[one.settings.engine].launches for one in candidates):
        notes.append(
            f"starts: {spec.starts} does not apply to endpoints: they run already and are never restarted"
        )
    slos, readings = _resolved([*spec.slos.values()], [one.settings for one in candidates])
    notes += readings
    for load in loads:
        timed = load.arrivals.process == "trace"
        notes += [f"{load.workload.name!r}: {note}" for note in load.workload.notes(timed)]
    names = labels(
        [(one.settings, one.hardware.name) for one in candidates], [one.id for one in candidates]
    )
    deployments = [
        _deployment(
            one, label, _assessed(one, engines[one.settings.engine], loads, cluster_nodes), levels
        )
        for one, label in zip(_emptied(candidates), names, strict=True)
    ]
    return Plan(
        deployments=tuple(deployments),
        loads=tuple(loads),
        slos=tuple(slos),
        notes=tuple(notes),
        **{name: getattr(spec, name) for name in SweepRules.model_fields}
        | {"predictions": predictions},
    )


Levels = Mapping[str, tuple[Level, ...]]  # by deployment id


def _levels(experiment: Experiment, candidates: Sequence[_Candidate]) -> Levels:
    """Levels that follow from each deployment. Reports expressions that give none."""
    load: Load | None = experiment.parts.get("load")
    if load is None or load.levels is None or not load.levels.follow:
        return {}
    some = [one for one in candidates if one.excluded_by is None]
    values = (
        (one.settings.devices, one.settings.__dict__ | {"hardware": one.named}, one.derived)
        for one in some
    )
    return dict(
        zip((one.id for one in some), levels_of(load, values, experiment.problems), strict=True)
    )


def _resolved(
    slos: Sequence[Slo], settings: Sequence[EngineSettings]
) -> tuple[list[Slo], list[str]]:
    """SLOs with limits of readers turned into limits on time per output token, and a note on each
    of these.

    All deployments share one limit: that of the tokenizer with the most tokens per word.
    """
    if not any(one.reader for one in slos):
        return list(slos), []
    from orchestrator.workloads.content import tokens_per_word  # only readers need it

    names = {one.tokenizer or one.model for one in settings}
    counted = {
        name: count for name in sorted(names) if (count := tokens_per_word(name)) is not None
    }
    most = max(counted, key=lambda name: counted[name], default=None)
    tokens, by = (
        (counted[most], most)
        if most is not None
        else (TOKENS_PER_WORD, "no tokenizer at hand: English")
    )
    found, notes = [], []
    for slo in slos:
        one = slo.resolved(tokens)
        found.append(one)
        if slo.reader is not None and one.tpot is not None:
            said = f"{READERS[slo.reader]:g} words per minute, {tokens:.2f} tokens per word ({by})"
            notes.append(
                f"{slo.name}: a reader, {slo.reader}, is tpot<={one.tpot * 1e3:.3g}ms: {said}"
            )
    return found, notes


def _predictions(experiment: Experiment, paths: Paths) -> Predictions:
    """``predictions`` with the path of the profile resolved. Reports unreadable profiles and
    missing tables.
    """
    given: Predictions = experiment.parts.get("predictions", Predictions())
    if given.tables and find_spec("aiconfigurator_core") is None:
        why = "the tables are not installed"
        experiment.problems.add(
            ("predictions", "tables"), why, "pip install llm-serving-orchestrator[tables]"
        )
    if given.profile is None:
        return given
    from orchestrator.emulator.profile import load_profile  # few need it

    try:
        given = given.model_copy(update={"profile": paths.profile(given.profile)})
        load_profile(given.profile)
    except (ValueError, InputError) as error:
        experiment.problems.add(
            ("predictions", "profile"), str(error), "orchestrator emulator fit writes one"
        )
    return given


def _engines(experiment: Experiment) -> dict[str, Engine]:
    """Every engine that the file names. Reports unknown engines and routers, and endpoints without
    a URL.
    """
    problems = experiment.problems
    named = [
        ("engine", ("environments", name), name)
        for name in experiment.parts.get("environments", ())
    ]
    for setting, place, name in (*experiment.engines, *named):
        what, known = (
            ("engine", ENGINES.names()) if setting == "engine" else ("router", ROUTERS.names())
        )
        if name not in known:
            problems.unknown(place, what, name, known)
    used = {one.settings.engine for one in experiment.combinations}
    engines = {name: ENGINES[name] for name in used if name in ENGINES}
    for one in experiment.combinations:
        name = one.settings.engine
        if name in engines and not engines[name].launches and one.settings.url is None:
            message = f"engine {name!r} needs the 'url' it runs at"
            problems.add(one.place("url"), message, "write url: http://host:port")
    return engines


def _candidates(
    experiment: Experiment, paths: Paths, engines: Mapping[str, Engine]
) -> Iterator[_Candidate]:
    """Combinations with known engines. Reports unresolvable paths, and versions other than the one
    installed.
    """
    contents, classes = identity.Contents(), experiment.hardware
    for one in _emptied(experiment.combinations):
        engine = engines.get(one.settings.engine)
        hardware = ANY if one.hardware is None else classes.get(one.hardware)
        router = one.settings.router
        if engine is None or hardware is None or (router and router.engine not in ROUTERS):
            continue
        held = hardware if engine.launches or one.hardware is not None else NONE
        try:
            settings = resolved(one.settings, engine, held, paths)
        except ValueError as error:
            experiment.problems.add(one.block, str(error))
            continue
        for role, part in settings.parts.items():
            if (mismatch := identity.version_mismatch(part, contents)) is not None:
                name = "router.engine_version" if role == ROUTER else "engine_version"
                experiment.problems.add(one.place(name), mismatch, "correct one of them")
        parts = one.settings.engines
        spread_out = tuple(
            role for role, part in settings.engines.items() if part.nnodes != parts[role].nnodes
        )
        name = identity.deployment_id(one.settings, settings, held, contents)
        yield _Candidate(
            name, settings, spread_out, held, one.hardware, one.derived, one.excluded_by
        )


def _check_apis(experiment: Experiment, served: Set[str]) -> None:
    """Reports workloads that need an API which no deployment has. ``served``: APIs of all
    deployments.
    """
    for index, workload in enumerate(experiment.parts.get("workloads", ())):
        if served and workload.api not in served:
            message = f"no deployment has the API {workload.api!r}"
            experiment.problems.add(
                ("workloads", index, "api"), message, nearest(workload.api, served)
            )


def _check_prices(experiment: Experiment, candidates: Sequence[_Candidate]) -> None:
    """Reports hardware without a price in searches for the lowest cost."""
    load: Load | None = experiment.parts.get("load")
    free = sorted({one.hardware.name for one in candidates if not one.hardware.usd_per_gpu_hour})
    if load is not None and load.objective == "usd" and free:
        message = (
            f"'objective: usd' needs the price of all hardware, and {', '.join(free)} has none"
        )
        experiment.problems.add(
            ("load", "objective"), message, "give usd_per_gpu_hour, or objective: gpu"
        )


def _check_recorded_answers(
    experiment: Experiment, candidates: Sequence[_Candidate], engines: Mapping[str, Engine]
) -> None:
    """Reports workloads whose answers are to be as long as the recorded ones, where a deployment
    has no tokenizer to count these with.
    """
    counting = [
        index
        for index, workload in enumerate(experiment.parts.get("workloads", ()))
        if getattr(workload, "counts_answers", False)
    ]
    if not counting:
        return
    models: set[str] = set()
    for candidate in candidates:
        engine = engines[candidate.settings.engine]
        if candidate.excluded_by is None and not _may_have_tokenizer(candidate.settings, engine):
            models.add(candidate.settings.model)
    if not models:
        return
    message = (
        "recorded answers are counted with the model's tokenizer, and there is none of "
        f"{', '.join(sorted(models))} here"
    )
    for index in counting:
        place = ("workloads", index, "output_tokens")
        experiment.problems.add(
            place, message, "give 'tokenizer': a folder with tokenizer.json, or that file"
        )


def _may_have_tokenizer(settings: EngineSettings, engine: Engine) -> bool:
    """Whether clients may find the tokenizer of a deployment: it is given, this machine has it, or
    the engine brings the model's files to its nodes.
    """
    from orchestrator.workloads.content import local_tokenizer  # few workloads need it

    if settings.tokenizer is not None or local_tokenizer(settings.model) is not None:
        return True
    is_gguf = settings.model.endswith(".gguf") or ":" in settings.model
    return engine.launches and not is_gguf


def _check_size(
    experiment: Experiment, candidates: Sequence[_Candidate], loads: Sequence[PlannedLoad]
) -> None:
    """Reports plans with more than MOST_MEASUREMENTS measurements."""
    deployments = sum(one.excluded_by is None for one in candidates)
    load: Load | None = experiment.parts.get("load")
    levels = len(loads) * (
        len(load.levels.given) if load is not None and load.levels is not None else 0
    )
    repeats = experiment.parts.get("repeats", 1)
    if (count := deployments * levels * repeats) > MOST_MEASUREMENTS:
        factors = (
            counted(deployments, "deployment"),
            counted(levels, "level"),
            counted(repeats, "repeat"),
        )
        text = f"{' x '.join(factors)} are {count:,} measurements; at most {MOST_MEASUREMENTS:,} are allowed"
        experiment.problems.add(("load",), text, "make several experiments of it")
        experiment.problems.raise_any()  # looking at so many would take as long as planning them


def _emptied(some: list[Item]) -> Iterator[Item]:
    """Each in order, let go of when the next is asked for: what is made of it needs the memory."""
    some.reverse()
    while some:
        yield some.pop()


def _merged(candidates: Iterator[_Candidate]) -> tuple[list[_Candidate], list[str]]:
    """Candidates without duplicates. One that only some blocks exclude is measured."""
    kept: dict[str, _Candidate] = {}
    merged = 0
    for one in candidates:
        before = kept.setdefault(one.id, one)
        merged += before is not one
        if before.excluded_by is not None and one.excluded_by is None:
            kept[one.id] = one
    notes = (
        [f"{merged} combinations are equal to another one and are measured once"] if merged else []
    )
    return list(kept.values()), notes


def _unknown_releases(candidates: Iterable[_Candidate]) -> list[str]:
    """What cannot be known of deployments whose engine is of a release that is not recorded."""
    notes: dict[str, None] = {}
    for candidate in candidates:
        for part in candidate.settings.parts.values():
            notes |= dict.fromkeys(program_of(part.engine).notes(part))
    return list(notes)


def _assessed(
    one: _Candidate, engine: Engine, loads: Sequence[PlannedLoad], cluster_nodes: int | None
) -> Feasibility:
    """The verdict on a candidate from everything known without starting it."""
    if one.excluded_by is not None:
        return Feasibility("excluded", (f"by the rule: {one.excluded_by}",))
    settings, hardware = one.settings, one.hardware
    wrong = part_problems(settings, engine, hardware)
    if not wrong and engine.launches:
        wrong = placement_problems(settings, hardware, cluster_nodes)
    if wrong:
        return Feasibility("impossible", tuple(wrong))
    parts = settings.engines.items()
    apis = sorted(engine.apis(settings))
    return together(
        {
            role: judged(part, role in one.spread, hardware, engine, loads, apis, role)
            for role, part in parts
        }
    )


def _deployment(one: _Candidate, label: str, verdict: Feasibility, levels: Levels) -> Deployment:
    engine = ENGINES[one.settings.engine]
    derived = dict(one.derived)
    return Deployment(
        id=one.id,
        label=label,
        settings=with_time_to_start(one.settings, engine, verdict.predicted),
        hardware=one.hardware,
        status="planned" if verdict.status == "fits" else verdict.status,
        reasons=verdict.reasons,
        unserved=verdict.unserved,
        predicted=verdict.predicted or None,
        derived=json.loads(json.dumps(derived, default=str)) if derived else {},
        levels=levels.get(one.id, ()),
    )


def _loads(experiment: Experiment, paths: Paths) -> list[PlannedLoad]:
    """Every workload with the rules of the load. Reports invalid workloads, arrivals and searches."""
    load: Load | None = experiment.parts.get("load")
    workloads = _workloads(experiment, paths)
    if load is None:
        return []
    levels, slos = tuple(load.points()), tuple(experiment.parts.get("slos", {}).values())
    given = (
        [Level(control=one, value=1.0) for _, _, one, _ in load.levels.given]
        if load.levels is not None
        else []
    )
    if not given and load.search == "levels":  # Load: only recorded arrivals need no levels
        given = [Level(control="request_rate", value=1.0)]
    question = Question(tuple(given), load.control, slos, experiment.parts.get("repeats", 1))
    place = ("load", "search")
    if load.search not in STRATEGIES:
        experiment.problems.add(
            place, f"unknown search {load.search!r}", nearest(load.search, STRATEGIES.names())
        )
    elif (problem := STRATEGIES[load.search].problem(question)) is not None:
        experiment.problems.add(place, f"search {load.search!r}: {problem}")
    elif not hasattr(STRATEGIES[load.search], "claims"):
        only = ("full_grid", "precision", "max_deployments", "proposer")
        for name in (name for name in only if getattr(load, name)):
            said = f"search {load.search!r} has no use for {name!r}, which is for capacity searches"
            experiment.problems.add(("load", name), said, "leave it out")
    if load.proposer is not None and find_spec(load.proposer) is None:
        hint = f"pip install llm-serving-orchestrator[{load.proposer}]"
        experiment.problems.add(("load", "proposer"), f"{load.proposer} is not installed", hint)
    arrivals, unreadable = _arrivals(experiment, load.arrivals, paths)
    if load.is_closed_loop and "arrivals" in load.model_fields_set and not unreadable:
        text = "'arrivals' is for request_rate, and here all levels are concurrency"
        experiment.problems.add(("load", "arrivals"), text, "leave it out")
    for workload in workloads if arrivals.trace is not None else ():
        if left := workload.left_out():
            said = (
                f"{workload.name!r}: {left} entries of its prompts are not requests and are skipped"
            )
            hint = "remove them from both files, else the entries after them are sent at the wrong times"
            experiment.problems.add(("load", "arrivals"), said, hint)
    trace_digest = identity.file_digest(arrivals.trace) if arrivals.trace is not None else None
    more: dict[str, object] = {"arrivals": arrivals, "trace_digest": trace_digest, "levels": levels}
    if load.duration_s is None and load.requests is None:
        more["duration_s"] = load.default_s
    if load.warmup_s is None and (load.requests is not None or arrivals.process not in STEADY):
        # a number of requests counts all; a changing rate has no steady part
        more["warmup_s"] = 0.0
    if load.drain_timeout_s is None:
        more["drain_timeout_s"] = load.request_timeout_s
    rules = {name: getattr(load, name) for name in LoadRules.model_fields} | more
    if arrivals.process == "trace" and not (unreadable or load.is_closed_loop):
        from orchestrator.plan.recorded import recorded_levels  # only a trace needs it

        of_workloads = recorded_levels(load, arrivals, workloads, experiment.problems)
        return [
            PlannedLoad(
                workload=workload,
                **rules | {"levels": of_workloads.get(workload.name, levels)},
            )
            for workload in workloads
        ]
    return [PlannedLoad(workload=workload, **rules) for workload in workloads]


def _arrivals(experiment: Experiment, arrivals: Arrivals, paths: Paths) -> tuple[Arrivals, bool]:
    """Arrivals with the path of their trace resolved, and whether they cannot be drawn, which is
    reported.
    """
    problem, found = arrivals.problem(), []
    try:
        if arrivals.trace is not None:
            arrivals = arrivals.model_copy(update={"trace": paths.path(arrivals.trace)})
        if problem is None and arrivals.process == "trace":
            from orchestrator.load.arrivals import recorded  # only a trace needs it

            recorded(arrivals)
    except (ValueError, ProblemsError) as error:
        found = list(map(str, error.problems)) if isinstance(error, ProblemsError) else [str(error)]
    texts = [problem] if problem else found
    for text in texts:
        experiment.problems.add(("load", "arrivals"), text)
    return arrivals, bool(texts)


def _workloads(experiment: Experiment, paths: Paths) -> list[Workload]:
    """Workloads with their files found and identified by content. Reports those that cannot be
    sent.
    """
    out: dict[str, Workload] = {}  # by what they ask for
    for index, workload in enumerate(experiment.parts.get("workloads", ())):
        try:
            found = workload.resolved(paths.path)
        except (ValueError, ProblemsError) as error:
            for wrong in error.problems if isinstance(error, ProblemsError) else [error]:
                experiment.problems.add(("workloads", index), str(wrong))
            continue
        if (same := out.setdefault(digest(found.identity()), found)) is not found:
            message = f"{found.name!r} asks for the same as {same.name!r}"
            experiment.problems.add(
                ("workloads", index), message, "use repeats to measure a workload more than once"
            )
    return [*out.values()]

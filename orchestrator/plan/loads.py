"""Plans how deployments are loaded: every workload with its arrivals, limits and levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from orchestrator.base.errors import ProblemsError
from orchestrator.base.extras import how_to_install
from orchestrator.base.text import listed
from orchestrator.capacity.registry import STRATEGIES
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.plan.identity import file_digest
from orchestrator.plan.model import PlannedLoad
from orchestrator.plan.paths import Paths
from orchestrator.results.ids import digest
from orchestrator.spec.document import nearest
from orchestrator.spec.experiment import Experiment, Load
from orchestrator.spec.load import Arrivals, Begin, Level, LoadRules, Scale, Workload
from orchestrator.spec.mixes import measured
from orchestrator.workloads.file import FileWorkload

STEADY = ("constant", "poisson", "gamma")  # arrivals with a constant rate
# Keys of ``load`` that only capacity searches use.
OF_CAPACITY_SEARCHES = ("full_grid", "precision", "max_deployments", "proposer")


@dataclass(frozen=True, slots=True)
class _ResolvedArrivals:
    """Arrivals with the path of their trace resolved. ``are_drawable``: no problem was reported."""

    arrivals: Arrivals
    are_drawable: bool


def planned_loads(experiment: Experiment, paths: Paths) -> list[PlannedLoad]:
    """Every workload with the rules of its load. Reports invalid workloads, arrivals, searches."""
    load: Load | None = experiment.parts.get("load")
    workloads = _workloads(experiment, paths)
    if load is None:
        return []
    _check_search(experiment, load)
    _check_proposer(experiment, load)
    # a workload that cannot be read may have times
    all_are_read = len(workloads) == len(measured(experiment.parts.get("workloads", ())))
    timeless = [workload for workload in workloads if workload.recorded_rate() is None]
    resolved = _arrivals(experiment, load.arrivals, paths, timeless if all_are_read else [])
    arrivals = _with_begin(load, resolved.arrivals)
    _check_arrivals(experiment, load, resolved, workloads)
    levels = dict.fromkeys((workload.name for workload in workloads), tuple(load.points()))
    if resolved.are_drawable:
        levels |= _levels_of_traces(experiment, load, arrivals, workloads)
    rules = _rules(load, arrivals)
    planned: list[PlannedLoad] = []
    for workload in workloads:
        rates = _thinned_rates(load, arrivals, workload) if resolved.are_drawable else {}
        planned.append(
            PlannedLoad(workload=workload, levels=levels[workload.name], **rates, **rules)
        )
    return planned


def _with_begin(load: Load, arrivals: Arrivals) -> Arrivals:
    """Where points begin, for those that leave it open: the probes of a search at different times
    of the trace, because they would otherwise say again and again how its first minutes went.
    """
    is_scaled = arrivals.process == "trace" and arrivals.scale is not Scale.RECORDED
    if load.search == "levels" or not is_scaled or arrivals.begin is not None:
        return arrivals
    return arrivals.model_copy(update={"begin": Begin.ANYWHERE})


def _thinned_rates(load: Load, arrivals: Arrivals, workload: Workload) -> dict[str, float]:
    """The rates at which a search can send a workload whose recorded times it thins: of one session,
    and of all. Empty for other loads.
    """
    is_thinned = arrivals.process == "trace" and arrivals.scale is Scale.THIN
    if not is_thinned or load.search == "levels" or load.is_closed_loop:
        return {}
    rate = workload.recorded_rate()
    requests = workload.most_requests()
    assert rate is not None and requests is not None, "arrivals that can be drawn have times"
    return {"lowest_rate": rate * workload.mean_turns() / requests, "highest_rate": rate}


def note_on_rounds(load: PlannedLoad) -> str | None:
    """That a load has more requests than its workload's recording, which begins again."""
    recorded_requests = load.workload.most_requests()
    if recorded_requests is None or load.requests is None or load.requests <= recorded_requests:
        return None
    return (
        f"{load.requests:,} requests are more than the {recorded_requests:,} of the trace, which "
        "begins again with other tokens"
    )


def _levels_of_traces(
    experiment: Experiment, load: Load, arrivals: Arrivals, workloads: Sequence[Workload]
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels, where they follow from recorded times."""
    # only a trace needs these
    from orchestrator.plan.recorded_levels import levels_of_arrivals, levels_of_recordings

    is_timed = arrivals.process == "trace" and not load.is_closed_loop
    if is_timed and arrivals.trace is not None:
        return levels_of_arrivals(load, arrivals, workloads, experiment.problems)
    if is_timed or (load.levels is not None and load.levels.follow_a_trace):
        return levels_of_recordings(load, arrivals, workloads, experiment.problems)
    return {}


def _rules(load: Load, arrivals: Arrivals) -> dict[str, object]:
    """The rules of a planned load, with values for those that the file leaves open."""
    rules: dict[str, object] = {name: getattr(load, name) for name in LoadRules.model_fields}
    rules["arrivals"] = arrivals
    rules["trace_digest"] = file_digest(arrivals.trace) if arrivals.trace is not None else None
    if load.duration_s is None and load.requests is None:
        rules["duration_s"] = load.default_s
    if load.warmup_s is None and (load.requests is not None or arrivals.process not in STEADY):
        # a number of requests is counted from the first one on; a changing rate is never steady
        rules["warmup_s"] = 0.0
    if load.drain_timeout_s is None:
        rules["drain_timeout_s"] = load.request_timeout_s
    return rules


def _check_search(experiment: Experiment, load: Load) -> None:
    """Reports an unknown search, one that cannot work with these levels and SLOs, and keys that it
    has no use for.
    """
    place = ("load", "search")
    if load.search not in STRATEGIES:
        hint = nearest(load.search, STRATEGIES.names())
        experiment.problems.add(place, f"unknown search {load.search!r}", hint)
        return
    strategy = STRATEGIES[load.search]
    problem = strategy.problem(_question(experiment, load))
    if problem is not None:
        experiment.problems.add(place, f"search {load.search!r}: {problem}")
        return
    if hasattr(strategy, "claims"):
        return
    for name in OF_CAPACITY_SEARCHES:
        if getattr(load, name):
            message = (
                f"search {load.search!r} has no use for {name!r}, which is for capacity searches"
            )
            experiment.problems.add(("load", name), message, "leave it out")


def _check_proposer(experiment: Experiment, load: Load) -> None:
    """Reports a proposer whose package is not installed."""
    if load.proposer is not None and find_spec(load.proposer) is None:
        hint = how_to_install(load.proposer)
        experiment.problems.add(("load", "proposer"), f"{load.proposer} is not installed", hint)


def _question(experiment: Experiment, load: Load) -> SearchQuestion:
    """The search's question, with 1 in place of each level: expressions have no values yet."""
    levels: list[Level] = []
    if load.levels is not None:
        levels = [Level(control=level.control, value=1.0) for level in load.levels.written]
    if not levels and load.search == "levels":  # only recorded arrivals need no levels
        levels = [Level(control="request_rate", value=1.0)]
    return SearchQuestion(
        levels=tuple(levels),
        control=load.control,
        slos=tuple(experiment.parts.get("slos", {}).values()),
        repeats=experiment.parts.get("repeats", 1),
    )


def _arrivals(
    experiment: Experiment, arrivals: Arrivals, paths: Paths, timeless: Sequence[Workload]
) -> _ResolvedArrivals:
    """Resolves the path of the trace. Reports arrivals that cannot be drawn.
    ``timeless``: the workloads that have no times of their own, or the same time always.
    """
    problem = arrivals.problem(has_recorded_times=not timeless)
    messages: list[str] = []
    hint = None
    try:
        if arrivals.trace is not None:
            arrivals = arrivals.model_copy(update={"trace": paths.path(arrivals.trace)})
        if problem is None and arrivals.process == "trace" and arrivals.trace is not None:
            from orchestrator.load.arrivals import recorded  # only a trace needs it

            recorded(arrivals)
    except ProblemsError as error:
        messages = [str(problem_of_trace) for problem_of_trace in error.problems]
    except ValueError as error:
        messages = [str(error)]
    if problem:
        messages = [problem]
        if arrivals.process == "trace" and arrivals.trace is None and timeless:
            names = [workload.name for workload in timeless]
            messages = [f"{problem}: there are no different recorded times in {listed(names)}"]
            if any(workload.part_names() for workload in timeless):
                hint = "a mix draws when sessions begin, also those of a trace: take poisson"
    for message in messages:
        experiment.problems.add(("load", "arrivals"), message, hint)
    return _ResolvedArrivals(arrivals, are_drawable=not messages)


def _check_arrivals(
    experiment: Experiment,
    load: Load,
    resolved: _ResolvedArrivals,
    workloads: Sequence[Workload],
) -> None:
    """Reports arrivals that no level uses, and times that do not belong to the prompts' entries."""
    if load.is_closed_loop and "arrivals" in load.model_fields_set and resolved.are_drawable:
        message = "'arrivals' is for request_rate, and here all levels are concurrency"
        experiment.problems.add(("load", "arrivals"), message, "leave it out")
    if resolved.arrivals.trace is not None:
        for workload in workloads:
            _check_skipped_entries(experiment, workload)


def _check_skipped_entries(experiment: Experiment, workload: Workload) -> None:
    """Reports prompts of which some entries are skipped, where a file of times has all entries."""
    if isinstance(workload, FileWorkload) and workload.keep is not None:
        message = f"{workload.name!r}: 'keep' leaves out entries of its prompts"
        hint = "leave it out, else the entries after them are sent at the wrong times"
        experiment.problems.add(("load", "arrivals"), message, hint)
    skipped = workload.left_out()
    if not skipped:
        return
    message = (
        f"{workload.name!r}: {skipped} entries of its prompts are not requests and are skipped"
    )
    hint = "remove them from both files, else the entries after them are sent at the wrong times"
    experiment.problems.add(("load", "arrivals"), message, hint)


def _workloads(experiment: Experiment, paths: Paths) -> list[Workload]:
    """The workloads that are measured, with their files found and identified by content. Reports
    workloads that cannot be sent, and those that ask for the same as another.
    """
    in_file: list[Workload] = experiment.parts.get("workloads", [])
    resolved_by_name: dict[str, Workload] = {}
    names = {workload.name for workload in in_file}
    for index, workload in enumerate(in_file):
        if names.isdisjoint(workload.part_names()):
            resolved = _resolved(experiment, index, workload, paths)
            if resolved is not None:
                resolved_by_name[workload.name] = resolved
    for workload in in_file:
        parts = workload.part_names()
        if parts and resolved_by_name.keys() >= set(parts):  # a missing one is reported already
            resolved_by_name[workload.name] = workload.with_contents(resolved_by_name)
    by_identity: dict[str, Workload] = {}
    are_measured = {workload.name for workload in measured(in_file)}
    for index, workload in enumerate(in_file):
        known = resolved_by_name.get(workload.name)
        if known is None or workload.name not in are_measured:
            continue
        first = by_identity.setdefault(digest(known.identity()), known)
        if first is not known:
            message = f"{known.name!r} asks for the same as {first.name!r}"
            hint = "use repeats to measure a workload more than once"
            experiment.problems.add(("workloads", index), message, hint)
    return list(by_identity.values())


def _resolved(
    experiment: Experiment, index: int, workload: Workload, paths: Paths
) -> Workload | None:
    """The workload with its files found. Reports why it cannot be sent, and returns None then."""
    try:
        return workload.with_files(paths.path)
    except ProblemsError as error:
        for problem in error.problems:
            experiment.problems.add(("workloads", index), str(problem))
    except ValueError as error:
        experiment.problems.add(("workloads", index), str(error))
    return None

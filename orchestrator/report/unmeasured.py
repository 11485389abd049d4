"""What an experiment asks for without a valid measurement: then a command ends with status 3."""

from collections import Counter
from collections.abc import Sequence

from orchestrator.analysis.points import Repeat, StoredPoint
from orchestrator.base.grouping import values_by_key
from orchestrator.plan.current import Points, StoredExperiment
from orchestrator.results.validity import EndsSearch, Validity


def unmeasured(experiment: StoredExperiment, points: Points) -> list[str]:
    """Counts measurements without a valid attempt, by what came of them: ``8 disturbed``.
    ``points``: all points of the experiment.

    A level at which the engine fell behind is measured: that is what was to be found out. A search
    asks for a capacity, so one probe that tells something of its level is enough.
    """
    searches = experiment.searched
    missing: list[Repeat] = []
    probes: list[StoredPoint] = []
    for point in points.current:
        if point.head.workload in searches:
            probes.append(point)
        else:
            missing += [repeat for repeat in point.repeats if not repeat.shows_engine]
    probes_by_search = values_by_key(
        ((point.head.deployment_id, point.head.workload), point) for point in probes
    )
    for probes_of_search in probes_by_search.values():
        missing += _without_answer(probes_of_search)
    counts = Counter(repeat.head.validity if repeat.ok else "failed" for repeat in missing)
    return [f"{count} {verdict}" for verdict, count in counts.items()]


def _without_answer(probes: Sequence[StoredPoint]) -> list[Repeat]:
    """The probes of one search that call for another measurement.

    If the verdict of some probes is one that no load changes, these are returned. Otherwise all
    probes are returned if none tells anything of its level, and none if one does.
    """
    repeats: list[Repeat] = []
    for point in probes:
        repeats += point.repeats
    unchangeable = [repeat for repeat in repeats if _no_load_changes(repeat)]
    if unchangeable:
        return unchangeable
    if any(_tells_of_its_level(repeat) for repeat in repeats):
        return []
    return repeats


def _tells_of_its_level(repeat: Repeat) -> bool:
    """Whether a probe shows something of its level: it was measured, or it ended because its limits
    fail, perhaps before anything was answered and so without a valid figure.
    """
    return repeat.shows_engine or repeat.engine_failed or _ended_as_failing(repeat)


def _ended_as_failing(repeat: Repeat) -> bool:
    return repeat.head.ended_early == "fails"


def _no_load_changes(repeat: Repeat) -> bool:
    """Whether a probe of any other load would have the same verdict."""
    validity = repeat.head.validity
    if validity not in list(Validity) or _ended_as_failing(repeat):
        return False
    return Validity(validity).ends_search is EndsSearch.YES

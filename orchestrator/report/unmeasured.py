"""What an experiment asks for and has no valid measurement of: why a command ends with status 3."""

from collections import Counter

from orchestrator.analysis.points import Measurement, Point
from orchestrator.base.text import grouped
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.validity import EndsSearch, Validity


def unmeasured(experiment: StoredExperiment) -> list[str]:
    """Its measurements without a valid attempt, counted by what came of them: ``8 disturbed``.

    A level that the engine fell behind at is measured: that is what was to be found out. A search
    asks for a capacity, and one probe that tells of its level is enough.
    """
    searched = experiment.searched
    points = experiment.points().current
    listed = [point for point in points if point.head.workload not in searched]
    missing = [repeat for point in listed for repeat in point.repeats if not repeat.counts]
    searches = grouped(
        ((point.head.deployment_id, point.head.workload), point)
        for point in points
        if point.head.workload in searched
    )
    for probes in searches.values():
        missing += _without_answer(probes)
    verdicts = Counter(one.point.validity if one.ok else "failed" for one in missing)
    return [f"{number} {verdict}" for verdict, number in verdicts.items()]


def _without_answer(probes: list[Point]) -> list[Measurement]:
    """The probes of one search, if none of them tells of its level."""
    repeats = [repeat for point in probes for repeat in point.repeats]
    pointless = [one for one in repeats if _no_load_changes(one)]
    if pointless:
        return pointless
    return [] if any(one.counts or one.broken for one in repeats) else repeats


def _no_load_changes(repeat: Measurement) -> bool:
    validity = repeat.point.validity
    if validity not in list(Validity) or repeat.point.ended_early == "fails":
        return False
    return Validity(validity).ends_search is EndsSearch.YES

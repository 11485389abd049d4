"""Doubts about an answer in short, for a terminal: one line per cause, with what would decide it.

``words.py`` has them as whole sentences.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed, listed_within
from orchestrator.capacity.doubts import GRID_STEP, DeploymentLevels, Doubt, DoubtKind, Remedy
from orchestrator.report.text import cut
from orchestrator.report.words import (
    at_levels_text,
    level_text,
    limit_to_change_text,
    longer_probes_text,
    lower_levels_text,
    repair_text,
    test_text,
    wider_precision_text,
)

LEAST_NAME = 12  # characters that a name keeps, however long the rest of the line is


@dataclass(frozen=True, slots=True)
class DoubtLine:
    """One cause of doubt about an answer.

    ``remedy``: what would decide it; empty: no measurement does. ``names``: how the line names the
    deployments in doubt: by their labels, by labels with levels, or not at all. ``deployments``:
    their labels. ``is_run_again``: running the experiment's command again decides it.
    ``first_changes``: sentences on the limits to change first where nothing holds.
    """

    cause: str
    remedy: str
    names: tuple[str, ...]
    deployments: tuple[str, ...]
    is_run_again: bool = False
    first_changes: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, str]:
        """What the line says, apart from the deployments that it names."""
        return self.cause, self.remedy


def doubt_lines(doubts: Iterable[Doubt]) -> list[DoubtLine]:
    """A line for each cause and remedy."""
    return merged([_line(doubt) for doubt in doubts])


def merged(lines: Iterable[DoubtLine]) -> list[DoubtLine]:
    """One line for each cause and remedy, with the deployments of all lines that have these."""
    by_words = values_by_key((line.words, line) for line in lines)
    return [_merged_into_one(same_words) for same_words in by_words.values()]


def _merged_into_one(lines: Sequence[DoubtLine]) -> DoubtLine:
    names: list[str] = []
    deployments: list[str] = []
    first_changes: list[str] = []
    for line in lines:
        names += line.names
        deployments += line.deployments
        first_changes += line.first_changes
    return replace(
        lines[0],
        names=_unique(names),
        deployments=_unique(deployments),
        first_changes=_unique(first_changes),
    )


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in the order of their first places."""
    return tuple(dict.fromkeys(texts))


def doubt_line_text(line: DoubtLine, ranked: Collection[str], width: int) -> str:
    """``one start, spread unknown (all 7); to decide: starts: 2``.

    It takes ``width`` characters at most, where that is possible. ``ranked``: the labels of all
    deployments in the ranking.
    """
    remedy = f"to decide: {line.remedy}" if line.remedy else ""
    if not line.cause:
        return f"{remedy}{_in_brackets(line, ranked, width - len(remedy))}"
    ending = f"; {remedy}" if remedy else ""
    names = _in_brackets(line, ranked, width - len(line.cause) - len(ending))
    return f"{line.cause}{names}{ending}"


def _in_brackets(line: DoubtLine, ranked: Collection[str], room: int) -> str:
    """The names in brackets, after a space, in ``room`` characters.

    Labels of all ranked deployments become ``both`` or ``all 7``. Where the room is too small,
    levels are left out first; then several names become a number, and a single name is cut.
    """
    if not line.names:
        return ""
    has_labels_alone = line.names == line.deployments
    if has_labels_alone and len(line.names) > 1 and set(line.deployments) == set(ranked):
        return " (both)" if len(line.names) == 2 else f" (all {len(line.names)})"
    room -= len(" ()")
    for names in (line.names, line.deployments):
        text = listed_within(names, room)
        if len(text) <= room:
            return f" ({text})"
    if len(line.deployments) > 1:
        return f" ({len(line.deployments)} deployments)"
    return f" ({cut(line.deployments[0], max(room, LEAST_NAME))})"


def _line(doubt: Doubt) -> DoubtLine:
    limit = limit_to_change_text(doubt)
    return DoubtLine(
        cause=_cause_text(doubt),
        remedy="" if doubt.remedy is None else _remedy_text(doubt.remedy, doubt),
        names=_names(doubt),
        deployments=doubt.deployments,
        is_run_again=doubt.remedy is Remedy.RUN_AGAIN,
        first_changes=() if limit is None else (limit,),
    )


def _cause_text(doubt: Doubt) -> str:
    text_of = _CAUSES_BY_DOUBT.get(doubt.kind)
    return _CAUSES[doubt.kind] if text_of is None else text_of(doubt)


def _names(doubt: Doubt) -> tuple[str, ...]:
    """The names in a line: deployments, with their levels or statuses where they matter.

    Empty where the remedy names them (``repair_text``), and where the doubt is about the first of
    the ranking alone.
    """
    if doubt.remedy is Remedy.REPAIR or doubt.kind is DoubtKind.MAY_MISS_TARGET:
        return ()
    if doubt.kind in _ABOUT_LEVELS:
        return tuple(at_levels_text(deployment) for deployment in doubt.levels)
    if doubt.kind is DoubtKind.NOT_SETTLED:
        names = []
        for deployment in doubt.claims:
            statuses = [searched.claim.status for searched in deployment.claims]
            names.append(f"{deployment.label} {', '.join(statuses)}")
        return tuple(names)
    return doubt.deployments


_ABOUT_LEVELS = (
    DoubtKind.OPEN_LEVELS,
    DoubtKind.NEAR_THE_LIMIT,
    DoubtKind.NOT_STEADY,
)
_CAUSES: Mapping[DoubtKind, str] = {
    DoubtKind.NOT_MEASURED: "not measured yet",
    DoubtKind.OPEN_LEVELS: "no valid measurement",
    DoubtKind.NEAR_THE_LIMIT: "too near the limit to tell",
    DoubtKind.CAPACITY_NOT_REACHED: "limit not reached",
    DoubtKind.INCOMPARABLE: "cannot be compared",
    DoubtKind.NOT_STEADY: "never steady",
    DoubtKind.REPEATS_NOT_VALID: "repeats failed or not valid",
    DoubtKind.ONE_START: "one start, spread unknown",
    DoubtKind.ONE_VALID_START: "one valid start",
    DoubtKind.MORE_IS_CLAIMED: "claims more than the first, but is estimated lower",
    DoubtKind.STARTS_DIFFER: "behind by less than starts differ",
    # of these the line has only the remedy: the verdict above it says that nothing holds
    DoubtKind.NO_LEVEL_HOLDS: "",
    DoubtKind.NO_LOAD_HELPS: "",
}


def _may_miss_target(doubt: Doubt) -> str:
    assert doubt.test is not None
    name = test_text(doubt.test).removeprefix("the ")
    lower = doubt.test.share.lower
    target = doubt.test.target
    return f"{name} may be {lower:.3f} < {target:g}"


def _bounds_overlap(doubt: Doubt) -> str:
    cause = f"could hold up to {doubt.excess:.1%} more than the first"
    if doubt.remedy is not None:
        return cause
    # for each of these deployments, the bounds are neighbours on the grid: no search narrows them
    return f"{cause}, levels are {GRID_STEP - 1:.1%} apart"


def _simulated(doubt: Doubt) -> str:
    """A simulation leaves the order of ``doubt.deployments`` in doubt, which differ by less than
    the model's error; without such deployments, it is only in doubt because nothing was measured.
    """
    return "too close to call" if doubt.deployments else "nothing was measured"


def _not_settled(doubt: Doubt) -> str:
    return "no load holds" if doubt.remedy is Remedy.OTHER_LIMITS else "search not settled"


_CAUSES_BY_DOUBT: Mapping[DoubtKind, Callable[[Doubt], str]] = {
    DoubtKind.NOT_SETTLED: _not_settled,
    DoubtKind.MAY_MISS_TARGET: _may_miss_target,
    DoubtKind.BOUNDS_OVERLAP: _bounds_overlap,
    DoubtKind.SIMULATED: _simulated,
}


def _remedy_text(remedy: Remedy, doubt: Doubt) -> str:
    text_of = _REMEDIES_BY_DOUBT.get(remedy)
    return _REMEDIES[remedy] if text_of is None else text_of(doubt)


def _run_again(doubt: Doubt) -> str:
    if doubt.startable_deployments is None:
        return "run again"
    return f"run again (max_deployments allows {doubt.startable_deployments} more)"


def _more_starts(doubt: Doubt) -> str:
    if doubt.kind is DoubtKind.ONE_START:
        is_all = set(doubt.to_remedy) == set(doubt.deployments)
        return "starts: 2" if is_all else f"starts: 2 for {listed(doubt.to_remedy)}"
    starts = "many more starts"
    if doubt.starts_needed is not None:
        starts = f"about {doubt.starts_needed} starts each"
    return f"{starts} of {_listed_levels(doubt.levels)}"


def _listed_levels(deployments: Sequence[DeploymentLevels]) -> str:
    return " and ".join(at_levels_text(deployment) for deployment in deployments)


def _smaller_precision(doubt: Doubt) -> str:
    return f"search {listed(doubt.to_remedy)} on, with a smaller precision"


def _longer_probes(doubt: Doubt) -> str:
    return longer_probes_text(doubt) or "a longer duration"


def _measure(doubt: Doubt) -> str:
    if doubt.shortlist_size is not None:
        return f"run --shortlist {doubt.shortlist_size}"
    if doubt.deployments_of_run is not None:
        return "measure all"
    if not doubt.deployments:
        return "measure the first"
    if len(doubt.deployments) == 1:
        return "measure both"
    return f"measure all {len(doubt.deployments) + 1}"  # with the first


def _higher_levels(doubt: Doubt) -> str:
    texts: list[str] = []
    for deployment in doubt.levels:
        texts += [level_text(level) for level in deployment.levels]
    levels = _unique(texts)
    if len(levels) > 2:
        return "measure higher levels"
    return f"measure above {' and '.join(levels)}"


_REMEDIES: Mapping[Remedy, str] = {
    Remedy.MORE_DEPLOYMENTS: "a larger max_deployments",
    Remedy.MORE_ROOM: "nodes with room for it, then run again",
    Remedy.MORE_REPEATS_OR_LONGER: "more repeats, or longer",
    Remedy.MORE_REPEATS: "more repeats",
    Remedy.LONGER: "measure longer",
    Remedy.SEARCH_LONGER: "search longer",
    Remedy.VALID_PROBES: "run --again",
    Remedy.MORE_CLIENTS: "more clients",
    Remedy.STRETCH: "scale: stretch, or a busier trace",
    Remedy.OTHER_LIMITS: "other limits",
    Remedy.LONGER_CONTEXT: "raise max_model_len if refused requests (http_4xx) are too long",
}
_REMEDIES_BY_DOUBT: Mapping[Remedy, Callable[[Doubt], str]] = {
    Remedy.RUN_AGAIN: _run_again,
    Remedy.MORE_STARTS: _more_starts,
    Remedy.LONGER_PROBES: _longer_probes,
    Remedy.WIDER_PRECISION: wider_precision_text,
    Remedy.SMALLER_PRECISION: _smaller_precision,
    Remedy.HIGHER_LEVELS: _higher_levels,
    Remedy.MEASURE: _measure,
    Remedy.LOWER_LEVELS: lower_levels_text,
    Remedy.REPAIR: repair_text,
}

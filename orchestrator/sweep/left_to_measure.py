"""What the store leaves a sweep to measure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.text import counted
from orchestrator.capacity.race import Race
from orchestrator.results.events import Event
from orchestrator.results.records import Committed
from orchestrator.results.store import best_ok
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.default_hardware import check_same, on_this_cluster
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.earlier_attempts import (
    SpoiltAttempts,
    died_at,
    failed_by_configuration,
    spoilt_of,
)
from orchestrator.sweep.state import MeasurementCounts


@dataclass(frozen=True, slots=True)
class LeftToMeasure:
    """The work on every deployment that this cluster may run. ``started``: ids of the deployments
    that earlier sweeps have begun to measure.
    """

    works: Sequence[DeploymentWork]
    started: frozenset[str]


def left_to_measure(context: SweepContext, race: Race | None) -> LeftToMeasure:
    """Find what is left of each deployment, and tell what is not made, or made again."""
    plan = context.plan
    store = context.store
    deployments = on_this_cluster(plan.runnable(), context.cluster.machines())
    commits = store.commits(checked=True)
    spoilt = spoilt_of(store, commits, context.settings.most_again)
    ok = best_ok(commits, spoilt.verdicts)
    check_same(store, deployments, ok.values())
    committed = _settled(context, commits, ok, spoilt)
    start_times = context.state.start_times
    works = [
        DeploymentWork(plan, deployment, committed, start_times, race, spoilt.spoilt_counts)
        for deployment in deployments
    ]
    for work in works:  # after all exist: each sees what others hold
        work.follow_race()
    context.answer.enter(works, store)
    for work in works:
        earlier = work.earlier
        context.state.count(MeasurementCounts(skipped=earlier.skipped, refused=earlier.refused))
        if earlier.refused:
            _tell_refused(context, work)
    _tell_spoilt(context, spoilt, works)
    planned = {deployment.id for deployment in deployments}
    started = planned.intersection(commit.deployment_id for commit in commits)
    return LeftToMeasure(works, frozenset(started))


def _settled(
    context: SweepContext,
    commits: Sequence[Committed],
    ok: dict[str, Committed],
    spoilt: SpoiltAttempts,
) -> dict[str, Committed]:
    """The measurements that are not made again: by measurement id, the attempt that counts.

    ``ok``: the best attempt at each measurement that succeeded.
    """
    plan = context.plan
    store = context.store
    settled = {key: attempt for key, attempt in ok.items() if key not in spoilt.open}
    if not context.settings.retry_failed:
        failed = failed_by_configuration(store, commits)
        if any(load.searches for load in plan.loads):
            failed |= died_at(store, commits)
        settled = failed | settled
    if plan.needs_figures:
        with_figures = attempt_data(store, settled.values())
        settled = {attempt.measurement_id: attempt for attempt in with_figures}
    return settled


def _tell_refused(context: SweepContext, work: DeploymentWork) -> None:
    text = f"{counted(work.earlier.refused, 'measurement')} failed before and would fail again"
    text = f"{text}; --retry-failed tries them again"
    context.tell(Event("refused", text, work.deployment.label))


def _tell_spoilt(
    context: SweepContext, spoilt: SpoiltAttempts, works: Collection[DeploymentWork]
) -> None:
    """Tell which spoilt measurements are made again, and which were tried often enough."""
    left: set[str] = set()
    done: set[str] = set()
    for work in works:
        left |= work.open
        done |= work.earlier.done
    again = [attempt for key, attempt in spoilt.open.items() if key in left]
    kept = [attempt for key, attempt in spoilt.kept.items() if key in done]
    context.state.count(MeasurementCounts(kept=len(kept)))
    if again:
        text = f"{counted(len(again), 'measurement')} open again: {spoilt.words(again)}"
        context.tell(Event("open_again", text))
    if kept:
        text = f"{counted(len(kept), 'measurement')} kept as they are: {spoilt.words(kept)}"
        text = f"{text}; --again {context.settings.most_again + 1} tries once more"
        context.tell(Event("kept", text))

"""Finds everything that keeps a plan from being simulated into a store, before anything starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from orchestrator import __version__
from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, listed
from orchestrator.emulator.flags import with_faults
from orchestrator.emulator.profile import Faults, load_profile
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.predict.predictor import NotPredictable
from orchestrator.results.records import LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.simulation.models import EngineModels, model_digest
from orchestrator.simulation.virtual_clock import began_at, launch_id_at
from orchestrator.workloads.segments import NameOfDraw

LOOKED_AT = 64  # requests of a workload


def check(plan: Plan, store: Store) -> None:
    """Raises ProblemsError with everything that keeps a plan from being simulated into a store."""
    problems = [Problem(text, hint=hint) for text, hint in _problems(plan)]
    is_simulated = store.simulated()
    models = EngineModels(plan)
    problems += _nothing_simulated(plan, models)
    changed = _changed_models(plan, store, models) if is_simulated else []
    unfinished = _changed_unfinished(plan, store, models) if is_simulated else []
    if changed:
        problems.append(
            Problem(
                f"{store.uri} was simulated with other models of "
                f"{counted(len(changed), 'deployment')} ({changed[0]}): a profile, or what this "
                "program knows of engines, has changed since",
                hint="give another --results URI, or remove what is there",
            )
        )
    elif unfinished:
        problems.append(
            Problem(
                f"an earlier simulation into {store.uri} was ended while it simulated "
                f"{unfinished[0]}, and cannot go on: the limits, a profile or this program has "
                "changed since",
                hint="give another --results URI, or remove what is there",
            )
        )
    if is_simulated is False:
        problems.append(
            Problem(
                f"{store.uri} has measurements of {store.experiment!r}, and simulated results do "
                "not stand beside measured ones",
                hint="give another --results URI",
            )
        )
    if problems:
        raise ProblemsError(problems)


def _nothing_simulated(plan: Plan, models: EngineModels) -> list[Problem]:
    """A problem for each reason why a deployment or workload cannot be simulated, if nothing of the
    plan can be; else none: what cannot be simulated is stored as failed, beside the rest.
    """
    reasons: list[tuple[str, str]] = []
    for deployment in plan.runnable():
        try:
            models.step_model(deployment)
        except NotPredictable as reason:
            reasons.append((str(reason), deployment.label))
            continue
        for load in plan.loads_of(deployment.id):
            unknown = load.workload.known_to_engines_only()
            if unknown is None:
                return []
            name = f"workload {load.workload.name!r}"
            reasons.append((f"only the engine knows {unknown}", name))
    problems: list[Problem] = []
    for text, names in values_by_key(reasons).items():
        whose = listed(list(dict.fromkeys(names)))
        hint = "measure it: orchestrator run"
        problems.append(Problem(f"{whose} cannot be simulated: {text}", hint=hint))
    return problems


def _changed_models(plan: Plan, store: Store, models: EngineModels) -> list[str]:
    """Labels of the deployments whose simulated launches had another model than they have now."""
    rows = rows_of(store.read_manifests("launches", store.manifests("launch")), LaunchRow)
    before = {
        row.deployment_id: json.loads(row.engine_reported_json or "{}").get("model") for row in rows
    }
    changed: list[str] = []
    for deployment in plan.runnable():
        if deployment.id not in before:
            continue
        now: str | None = None  # stays None if the deployment cannot be simulated
        with suppress(NotPredictable):
            now = model_digest(models.step_model(deployment))
        if now != before[deployment.id]:
            changed.append(deployment.label)
    return changed


def _changed_unfinished(plan: Plan, store: Store, models: EngineModels) -> list[str]:
    """Labels of the deployments with attempts of a launch that was not committed, if the same
    launch would now make other attempts.

    The simulation that goes on makes these attempts again, and an attempt is committed only once.
    """
    launches = store.manifests("launch")
    launch_ids = {manifest.launch_id for manifest in launches}
    launch_counts = Counter(manifest.deployment_id for manifest in launches)
    runnable = {deployment.id: deployment for deployment in plan.runnable()}
    # one attempt of each unfinished launch
    unfinished = {
        attempt.launch_id: attempt
        for attempt in store.manifests("point")
        if attempt.launch_id not in launch_ids
    }
    changed: list[str] = []
    for attempt in unfinished.values():
        deployment = runnable.get(attempt.deployment_id)
        if deployment is None:
            continue
        rules = models.rules_digest(deployment)
        began_unix_ns = began_at(attempt.launch_id)
        same_launches = {
            launch_id_at(began_unix_ns, deployment.id, number, rules)
            for number in range(launch_counts[deployment.id] + 1)
        }
        is_same = attempt.launch_id in same_launches and attempt.client_version == __version__
        if not is_same:
            changed.append(deployment.label)
    return changed


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """Each problem and what to do about it."""
    for load in plan.loads:
        is_simulated = load.workload.known_to_engines_only() is None  # else a note says why not
        if is_simulated and not _has_lengths(load):
            yield (
                f"workload {load.workload.name!r}: how many tokens its prompts or answers have is "
                "known only with the model's tokenizer",
                "give a file with lengths, such as a trace, or drawn lengths",
            )
    for slo in plan.slos:
        if slo.agreement is not None:
            yield f"slo {slo.name!r}: a simulation has no answers to compare", "leave out agreement"
    for deployment in plan.runnable():
        if _has_faults(deployment):
            yield (
                f"{deployment.label}: faults of the emulator are not simulated",
                "leave out its fault script",
            )


def _has_lengths(load: PlannedLoad) -> bool:
    """Whether the lengths of a workload's prompts and answers are known."""
    requests = load.workload.requests(NameOfDraw(), 0)
    for session in range(LOOKED_AT):
        if not requests.input_tokens(session, 0) or not requests.output_tokens(session, 0):
            return False
    return True


def _has_faults(deployment: Deployment) -> bool:
    """Whether an emulator would follow a script of faults."""
    settings = deployment.settings
    if not ENGINES[settings.engine].emulated:
        return False
    faults = settings.extra_args.get("--fault", [])
    if not isinstance(faults, list):
        faults = [faults]
    try:
        profile = with_faults(load_profile(settings.profile), [str(fault) for fault in faults])
    except (InputError, ValueError):
        return False  # the plan has said what is wrong with it
    return profile.faults != Faults()

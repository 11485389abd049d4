"""Finds everything that keeps a plan from being simulated into a store, before anything starts."""

from __future__ import annotations

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
from orchestrator.results.stored_json import parsed_report
from orchestrator.simulation.models import EngineModels, model_digest
from orchestrator.simulation.virtual_clock import began_at, launch_id_at
from orchestrator.spec.assumptions import NOTHING_ASSUMED, Assumptions, with_option
from orchestrator.workloads.segments import NameOfDraw, count_images

SESSIONS_LOOKED_AT = 64  # of a workload, to see whether its lengths are known


def check(plan: Plan, store: Store) -> None:
    """Raises ProblemsError with everything that keeps a plan from being simulated into a store."""
    problems = [*_unsupported(plan), *_earlier_results(plan, store, EngineModels(plan))]
    if problems:
        raise ProblemsError(problems)


def _earlier_results(plan: Plan, store: Store, models: EngineModels) -> list[Problem]:
    """Why results that are in the store keep a simulation from being added to them."""
    is_simulated = store.simulated()
    if is_simulated is None:  # there are no results
        return []
    if not is_simulated:
        return [
            Problem(
                f"{store.uri} has measurements of {store.experiment!r}, and simulated results do "
                "not stand beside measured ones",
                hint="give another --results URI",
            )
        ]
    if _stored_assumptions(store) != plan.assumptions:
        return [
            Problem(
                f"{store.uri} was simulated under other assumptions (--assume)",
                hint="give the same ones, or another --results URI",
            )
        ]
    changed = _changed_models(plan, store, models)
    if changed:
        return [
            Problem(
                f"{store.uri} was simulated with other models of "
                f"{counted(len(changed), 'deployment')} ({changed[0]}): a profile, or what this "
                "program knows of engines, has changed since",
                hint="give another --results URI, or remove what is there",
            )
        ]
    unfinished = _changed_unfinished(plan, store, models)
    if unfinished:
        return [
            Problem(
                f"an earlier simulation into {store.uri} was ended while it simulated "
                f"{unfinished[0]}, and cannot go on: the limits, a profile or this program has "
                "changed since",
                hint="give another --results URI, or remove what is there",
            )
        ]
    return []


def _stored_assumptions(store: Store) -> Assumptions:
    """What an earlier simulation assumed; nothing if its plan cannot be read."""
    text = store.plan()
    if text is None:
        return NOTHING_ASSUMED
    try:
        return Plan.from_json(text, to_run=False).assumptions
    except InputError:
        return NOTHING_ASSUMED


def reasons_against_all(plan: Plan) -> list[str]:
    """Why nothing of the plan can be simulated: a sentence for each reason.

    Empty if a single workload can be simulated on a single deployment: then what cannot be is
    stored as failed, beside the rest.
    """
    models = EngineModels(plan)
    reasons: list[tuple[str, str]] = []  # each with the deployment or workload that it is about
    for deployment in plan.runnable():
        try:
            models.step_model(deployment)
        except NotPredictable as reason:
            reasons.append((with_option(str(reason), reason.fact), deployment.label))
            continue
        for load in plan.loads_of(deployment.id):
            unknown = load.workload.known_to_engines_only(plan.assumptions)
            if unknown is None:
                return []
            name = f"workload {load.workload.name!r}"
            reason_text = with_option(f"only the engine knows {unknown.text}", unknown)
            reasons.append((reason_text, name))
    sentences: list[str] = []
    for reason_text, names in values_by_key(reasons).items():
        distinct_names = listed(list(dict.fromkeys(names)))
        sentences.append(f"{distinct_names} cannot be simulated: {reason_text}")
    return sentences


def _changed_models(plan: Plan, store: Store, models: EngineModels) -> list[str]:
    """Labels of the deployments whose simulated launches had another model than they have now."""
    rows = rows_of(store.read_manifests("launches", store.manifests("launch")), LaunchRow)
    models_before = {
        row.deployment_id: parsed_report(row.engine_reported_json).get("model") for row in rows
    }
    changed: list[str] = []
    for deployment in plan.runnable():
        if deployment.id not in models_before:
            continue
        model_now: str | None = None  # stays None if the deployment cannot be simulated
        with suppress(NotPredictable):
            model_now = model_digest(models.step_model(deployment))
        if model_now != models_before[deployment.id]:
            changed.append(deployment.label)
    return changed


def _changed_unfinished(plan: Plan, store: Store, models: EngineModels) -> list[str]:
    """Labels of the deployments whose unfinished launch would now make other attempts.

    An unfinished launch has attempts that are committed, but is not committed itself. A simulation
    that goes on begins this launch again. The attempts that are committed stay as they are, so all
    its attempts must come out the same.
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


def _unsupported(plan: Plan) -> Iterator[Problem]:
    """A problem for each thing in the plan that no simulation has."""
    for load in plan.loads:
        if load.workload.known_to_engines_only(plan.assumptions) is not None:
            continue  # it is stored as failed, with this reason
        if not _has_lengths(load, plan.assumptions):
            yield Problem(
                f"workload {load.workload.name!r}: how many tokens its prompts or answers have is "
                "known only with the model's tokenizer",
                hint="give a file with lengths, such as a trace, or drawn lengths",
            )
    for slo in plan.slos:
        if slo.agreement is not None:
            yield Problem(
                f"slo {slo.name!r}: a simulation has no answers to compare",
                hint="leave out agreement",
            )
    for deployment in plan.runnable():
        if _has_faults(deployment):
            yield Problem(
                f"{deployment.label}: faults of the emulator are not simulated",
                hint="leave out its fault script",
            )


def _has_lengths(load: PlannedLoad, assumptions: Assumptions) -> bool:
    """Whether the lengths of a workload's prompts and answers are known, or assumed."""
    requests = load.workload.requests(NameOfDraw(), 0)
    count_images(requests, assumptions)
    for session in range(SESSIONS_LOOKED_AT):
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

"""What of a plan cannot be simulated at all. Everything is found before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.emulator.flags import with_faults
from orchestrator.emulator.profile import Faults, load_profile
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.results.store import Store
from orchestrator.simulation.contents import NameOfDraw

LOOKED_AT = 64  # requests of a workload


def check(plan: Plan, store: Store) -> None:
    """Raises ProblemsError with everything that keeps a plan from being simulated into a store."""
    problems = [Problem(text, hint=hint) for text, hint in _problems(plan)]
    if store.simulated() is False:
        problems.append(
            Problem(
                f"{store.uri} has measurements of {store.experiment!r}, and simulated results do "
                "not stand beside measured ones",
                hint="give another --results URI",
            )
        )
    if problems:
        raise ProblemsError(problems)


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """Each problem and what to do about it."""
    for load in plan.loads:
        if not _has_lengths(load):
            yield (
                f"workload {load.workload.name!r}: how many tokens its prompts or answers have is "
                "known only with the model's tokenizer",
                "give a file with lengths, such as a trace, or drawn lengths",
            )
    for slo in plan.slos:
        if slo.agreement is not None:
            yield f"slo {slo.name!r}: a simulation has no answers to compare", "leave out agreement"
        if any(limit.of == "itl_p99" for limit in slo.limits):
            yield (
                f"slo {slo.name!r}: when each token came is not simulated, so there is no itl_p99",
                "limit tpot",
            )
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
    """Whether an emulator would misbehave by script."""
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

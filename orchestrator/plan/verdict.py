"""The verdict on a deployment: judges each role by engine, model and workloads, then joins the
verdicts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.catalog.models import model_facts
from orchestrator.engines import ROUTERS
from orchestrator.engines.engine import Engine
from orchestrator.plan.feasibility import ORDER, Feasibility, Finding, assess
from orchestrator.plan.model import PlannedLoad
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import ROUTER, EngineSettings, Hardware
from orchestrator.spec.stages import ResolvedSettings
from orchestrator.spec.uploads import not_uploaded


def part_problems(settings: ResolvedSettings, engine: Engine, hardware: Hardware) -> list[str]:
    """Why the engine or the router cannot run its part of a deployment."""
    wrong = []
    if settings.roles and settings.router and settings.router.engine not in engine.routers:
        routers = " or ".join(engine.routers)
        said = (
            f"'s prefill and decode replicas need {routers}"
            if routers
            else " has no prefill and decode replicas"
        )
        wrong.append(f"roles: {engine.title}{said} here, not {settings.router.engine}")
    if settings.roles:
        wrong += [f"roles: {text}" for text in engine.role_problems(settings, hardware)]
    for role, part in settings.parts.items():
        found = (ROUTERS[part.engine] if role == ROUTER else engine).problems(part, hardware)
        wrong += [f"{role}: {text}".removeprefix(": ") for text in found]
    return wrong


def together(judged: Mapping[str, Feasibility]) -> Feasibility:
    """The verdict on a deployment from those on its roles: the worst status; reasons and
    predictions name the role.
    """
    if "" in judged:
        return judged[""]
    return Feasibility(
        min((one.status for one in judged.values()), key=lambda status: ORDER.index(status)),
        tuple(f"{role}: {reason}" for role, one in judged.items() for reason in one.reasons),
        {
            f"{role}.{name}": value
            for role, one in judged.items()
            for name, value in one.predicted.items()
        },
        tuple(sorted({name for one in judged.values() for name in one.unserved})),
    )


def judged(
    settings: ResolvedSettings,
    spread: bool,
    hardware: Hardware,
    engine: Engine,
    loads: Sequence[PlannedLoad],
    apis: Sequence[str],
    role: str = "",
) -> Feasibility:
    """Whether the replicas of one role can run and serve the workloads. ``apis``: names of the APIs
    they have. ``spread``: over nodes, as the file does not say.
    """
    verdict = Feasibility("fits")
    left_behind = models_left_behind([settings])
    if left_behind and engine.launches and not engine.emulated:
        return Feasibility("impossible", tuple(left_behind))
    if engine.launches:
        draft = settings.speculative.model if settings.speculative else None
        verdict = assess(
            engine.pinned(settings, hardware),
            model_facts(settings.model, settings.revision, settings.hf_overrides),
            hardware,
            draft=model_facts(draft) if draft else None,
            role=role,
        )
    if spread:
        text = f"spread over {settings.nnodes} nodes automatically: a node has {hardware.gpus_per_node} devices"
        verdict = replace(verdict, reasons=(*verdict.reasons, text))
    tokenizer = tokenizer_finding(settings)
    if tokenizer is not None and tokenizer.status == "impossible":
        return Feasibility("impossible", (tokenizer.sentence,))
    if tokenizer is not None:
        verdict = replace(verdict, reasons=(*verdict.reasons, tokenizer.sentence))
    # the model's own, where known
    limit = verdict.predicted.get("max_model_len") or settings.max_model_len
    return _with_workloads(
        verdict,
        {
            load.workload.name: workload_mismatch(load.workload, settings, limit, apis)
            for load in loads
        },
    )


def models_left_behind(settings: Iterable[EngineSettings]) -> list[str]:
    """A sentence for each local model, draft and tokenizer that a submitted job's upload left
    behind.
    """
    paths = dict.fromkeys(path for one in settings for path in _local_models(one))
    return [sentence for path in paths if (sentence := not_uploaded(path)) is not None]


def _local_models(settings: EngineSettings) -> list[str]:
    """The model, draft and tokenizer, as far as they are paths."""
    draft = settings.speculative.model if settings.speculative else None
    names = (settings.model, settings.tokenizer, draft)
    return [name for name in names if name is not None and Path(name).is_absolute()]


def tokenizer_finding(settings: EngineSettings) -> Finding | None:
    """What is wrong with the tokenizer that load clients make prompts with, as far as this machine
    has its files.
    """
    name = settings.tokenizer or settings.model
    if not Path(name).is_absolute():
        return None
    if settings.tokenizer and Path(name).is_file() and Path(name).suffix != ".json":
        return Finding(
            "impossible",
            "tokenizer",
            f"{name} is not a tokenizer.json, and prompts are made with it",
        )
    if Path(name).is_dir() and not (Path(name) / "tokenizer.json").is_file():
        sentence = f"{name} has no tokenizer.json, and prompts are made with it; give the setting 'tokenizer'"
        return Finding("impossible", "tokenizer", sentence)
    if Path(name).exists():
        return None
    sentence = f"{name} is not on this machine: clients without it make prompts of only about the length asked for"
    return Finding("fits", "tokenizer", sentence)


def workload_mismatch(
    workload: Workload, settings: EngineSettings, max_model_len: int | None, apis: Sequence[str]
) -> Finding | None:
    """Impossible when no request can be served, risky when some cannot; None when all fit, as far
    as is known.

    ``max_model_len``: the limit in effect, None if unknown. ``apis``: names of the APIs that the
    engine serves.
    """
    name = f"workload {workload.name!r}"
    if workload.api not in apis:
        sentence = f"{name} needs the API {workload.api!r}; {settings.engine} has {', '.join(apis)}"
        return Finding("impossible", "api", sentence)
    if settings.max_input_len and (share := workload.longer_prompts(settings.max_input_len)):
        limit = f"max_input_len is {settings.max_input_len:,}"
        if share == 1:
            return Finding(
                "impossible", "input_lengths", f"every prompt of {name} is longer, {limit}"
            )
        sentence = f"about {max(share, 0.01):.0%} of the prompts of {name} are longer, {limit}: those will fail"
        return Finding("risky", "input_lengths", sentence)
    if max_model_len is None:
        return None
    least, most = workload.token_bounds()
    limit = f"max_model_len is {max_model_len:,}"
    if least > max_model_len:
        return Finding(
            "impossible", "lengths", f"{name} needs at least {least:,} tokens a request, {limit}"
        )
    if most is not None and most > max_model_len:
        sentence = f"{name} has requests of up to {most:,} tokens, {limit}: those will fail"
        return Finding("risky", "lengths", sentence)
    return None


def _with_workloads(verdict: Feasibility, mismatches: Mapping[str, Finding | None]) -> Feasibility:
    """The verdict with workloads. One that cannot be served is not measured; if none can, nothing
    is possible.
    """
    bad = {name: mismatch for name, mismatch in mismatches.items() if mismatch is not None}
    if not bad:
        return verdict
    unserved = sorted(name for name, mismatch in bad.items() if mismatch.status == "impossible")
    status = "risky" if len(unserved) < len(bad) else verdict.status
    return replace(
        verdict,
        status="impossible"
        if verdict.status == "impossible" or len(unserved) == len(mismatches)
        else status,
        reasons=(*verdict.reasons, *(mismatch.sentence for mismatch in bad.values())),
        unserved=tuple(unserved),
    )

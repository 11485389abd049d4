"""Judges a deployment: each of its roles by engine, model and workloads, then all of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.analysis.prediction import PredictedStart
from orchestrator.catalog.models import model_facts
from orchestrator.engines.dialects import dialects_of
from orchestrator.engines.engine import Engine
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.plan.candidates import Candidate
from orchestrator.plan.feasibility import ORDER, Feasibility, RuleFinding, assess
from orchestrator.plan.model import PlannedLoad
from orchestrator.plan.placement import named, placement_problems
from orchestrator.plan.request_options import notes_on_fields, options_mismatch
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import ROUTER, EngineSettings, Hardware
from orchestrator.spec.stages import ResolvedSettings
from orchestrator.spec.uploads import not_uploaded

MOST_NAMED = 10  # adapters in a sentence


def judge(
    candidate: Candidate, loads: Sequence[PlannedLoad], cluster_nodes: int | None
) -> Feasibility:
    """The verdict on a candidate, from everything that is known without starting it.

    ``cluster_nodes``: the number of nodes of the cluster; None if it is not known.
    """
    if candidate.excluded_by is not None:
        return Feasibility("excluded", (f"by the rule: {candidate.excluded_by}",))
    settings = candidate.settings
    engine = candidate.engine
    hardware = candidate.hardware
    reasons = part_problems(settings, engine, hardware)
    if not reasons and engine.launches:
        reasons = placement_problems(settings, hardware, cluster_nodes)
    if reasons:
        return Feasibility("impossible", tuple(reasons))
    verdicts = {role: judge_role(candidate, role, loads) for role in settings.engines}
    return combine_verdicts(verdicts)


def part_problems(settings: ResolvedSettings, engine: Engine, hardware: Hardware) -> list[str]:
    """Why the engine or the router cannot run its part of a deployment."""
    problems: list[str] = []
    router = settings.router
    if settings.roles and router and router.engine not in engine.routers:
        if engine.routers:
            routers = " or ".join(engine.routers)
            reason = f"{engine.title}'s prefill and decode replicas need {routers}"
        else:
            reason = f"{engine.title} has no prefill and decode replicas"
        problems.append(f"roles: {reason} here, not {router.engine}")
    if settings.roles:
        problems += [f"roles: {text}" for text in engine.role_problems(settings, hardware)]
    for role, part in settings.parts.items():
        program = ROUTERS[part.engine] if role == ROUTER else engine
        problems += [named(role, text) for text in problems_of(program, part, hardware)]
    return problems


def combine_verdicts(verdicts: Mapping[str, Feasibility]) -> Feasibility:
    """The verdict on a deployment from those on its roles. Its status is the worst of theirs, and
    its reasons, remarks and predictions name the role.
    """
    if "" in verdicts:
        return verdicts[""]
    reasons: list[str] = []
    remarks: list[str] = []
    starts: dict[str, PredictedStart] = {}
    unserved: set[str] = set()
    for role, verdict in verdicts.items():
        reasons += [f"{role}: {reason}" for reason in verdict.reasons]
        remarks += [f"{role}: {remark}" for remark in verdict.remarks]
        starts |= verdict.starts
        unserved.update(verdict.unserved)
    worst = min((verdict.status for verdict in verdicts.values()), key=ORDER.index)
    unserved_in_order = tuple(sorted(unserved))
    return Feasibility(worst, tuple(reasons), starts, unserved_in_order, tuple(remarks))


def judge_role(candidate: Candidate, role: str, loads: Sequence[PlannedLoad]) -> Feasibility:
    """Whether the replicas of one role can run and serve the workloads."""
    settings = candidate.settings.engines[role]
    engine = candidate.engine
    left_behind = models_left_behind([settings])
    if left_behind and engine.launches and not engine.emulated:
        return Feasibility("impossible", tuple(left_behind))
    verdict = Feasibility("fits")
    facts = None
    if engine.launches:
        facts = model_facts(settings.model, settings.revision, settings.hf_overrides)
        draft = settings.speculative.model if settings.speculative else None
        verdict = assess(
            engine.pinned(settings, candidate.hardware),
            facts,
            candidate.hardware,
            draft=model_facts(draft) if draft else None,
            role=role,
        )
    tokenizer = tokenizer_finding(settings)
    if tokenizer is not None:
        if tokenizer.status == "impossible":
            return Feasibility("impossible", (tokenizer.sentence,))
        verdict = replace(verdict, remarks=(*verdict.remarks, tokenizer.sentence))
    # the length in effect, which also follows from the model
    limit = settings.max_model_len
    if role in verdict.starts:
        limit = verdict.starts[role].max_model_len or limit
    dialects = dialects_of(engine, candidate.settings)
    # a GGUF file has its encoder in another file
    may_see = facts is None or facts.vision_size is not None or settings.engine == "llama_cpp"
    mismatches: dict[str, RuleFinding | None] = {}
    for load in loads:
        mismatch = options_mismatch(load.workload, engine, settings, dialects)
        if mismatch is None:
            mismatch = workload_mismatch(load.workload, settings, limit, dialects, may_see)
        mismatches[load.workload.name] = mismatch
    verdict = _with_workloads(verdict, mismatches)
    if role in candidate.spread_roles:
        sentence = (
            f"spread over {settings.nnodes} nodes automatically: "
            f"a node has {candidate.hardware.gpus_per_node} devices"
        )
        return replace(verdict, remarks=(*verdict.remarks, sentence))
    return verdict


def models_left_behind(settings: Iterable[EngineSettings]) -> list[str]:
    """A sentence for each local model, draft, tokenizer and adapter that a submitted job's upload left
    behind.
    """
    paths: dict[str, None] = {}
    for part in settings:
        paths |= dict.fromkeys(_local_models(part))
    sentences = [not_uploaded(path) for path in paths]
    return [sentence for sentence in sentences if sentence is not None]


def models_taken_for_others(candidates: Iterable[Candidate]) -> list[str]:
    """A sentence for each model without a config at hand whose name, apart from its organisation or
    folder, is that of a well-known model: it is planned as that one.
    """
    sentences: dict[str, None] = {}
    for candidate in candidates:
        if candidate.excluded_by is not None or not candidate.engine.launches:
            continue
        for settings in candidate.settings.engines.values():
            facts = model_facts(settings.model, settings.revision, settings.hf_overrides)
            if facts is None or facts.known_as is None:
                continue
            if _owner(facts.model) != _owner(facts.known_as):
                sentences[
                    f"no config.json of {facts.model} was found, here or on the hub: by its name it "
                    f"is planned as {facts.known_as}"
                ] = None
    return list(sentences)


def _owner(model: str) -> str:
    """What stands before a model's own name: its organisation on the hub, or its folder."""
    return model.rpartition("/")[0].lower()


def fields_maybe_ignored(
    candidates: Iterable[Candidate], loads: Sequence[PlannedLoad]
) -> list[str]:
    """A sentence for each further field of a workload that an engine may ignore, because its
    recorded release does, or that it ignores without any harm.
    """
    sentences: dict[str, None] = {}
    for candidate in candidates:
        if candidate.excluded_by is not None:
            continue
        for settings in candidate.settings.engines.values():
            for load in loads:
                doubts = notes_on_fields(load.workload, candidate.engine, settings)
                sentences |= dict.fromkeys(doubts)
    return list(sentences)


def models_missing_here(settings: Iterable[EngineSettings]) -> list[str]:
    """A sentence for each local model, draft, tokenizer and adapter that this machine lacks, of
    engines that would be started on it. In a container a path may be the container's own.
    """
    paths: dict[str, None] = {}
    for part in settings:
        is_started_here = part.url is None and part.image is None
        if is_started_here and not ENGINES[part.engine].emulated:
            paths |= dict.fromkeys(_local_models(part))
    return [
        f"{path} is not there, and the engine on this machine shall load it: mend the path"
        for path in paths
        if not Path(path).exists()
    ]


def _local_models(settings: EngineSettings) -> list[str]:
    """The model, draft, tokenizer and adapters, as far as they are paths."""
    draft = settings.speculative.model if settings.speculative else None
    adapters = (settings.lora_modules or {}).values()
    names = (settings.model, settings.tokenizer, draft, *adapters)
    return [name for name in names if name is not None and os.path.isabs(name)]


def tokenizer_finding(settings: EngineSettings) -> RuleFinding | None:
    """What is wrong with the tokenizer that load clients make prompts with, as far as this machine
    has its files.
    """
    name = settings.tokenizer or settings.model
    if not os.path.isabs(name):
        return None
    if settings.tokenizer and Path(name).is_file() and Path(name).suffix != ".json":
        return RuleFinding(
            "impossible",
            "tokenizer",
            f"{name} is not a tokenizer.json, and prompts are made with it",
        )
    if Path(name).is_dir() and not (Path(name) / "tokenizer.json").is_file():
        sentence = (
            f"{name} has no tokenizer.json, and prompts are made with it; give the setting "
            "'tokenizer'"
        )
        return RuleFinding("impossible", "tokenizer", sentence)
    if Path(name).exists():
        return None
    sentence = (
        f"{name} is not on this machine: clients without it make prompts of only about the "
        "length asked for"
    )
    return RuleFinding("fits", "tokenizer", sentence)


def workload_mismatch(
    workload: Workload,
    settings: EngineSettings,
    max_model_len: int | None,
    dialects: Mapping[str, Dialect],
    may_see: bool = True,
) -> RuleFinding | None:
    """Impossible if no request can be served, risky if some cannot; None if all fit, as far as is
    known.

    ``max_model_len``: the limit in effect, in tokens; None if it is not known. ``dialects``: of
    the APIs that the engine serves. ``may_see``: the model may have an image encoder.
    """
    name = f"workload {workload.name!r}"
    if workload.api not in dialects:
        apis = ", ".join(sorted(dialects))
        sentence = f"{name} needs the API {workload.api!r}; {settings.engine} has {apis}"
        return RuleFinding("impossible", "api", sentence)
    unserved = adapter_problem(workload, settings, dialects[workload.api])
    if unserved is not None:
        return RuleFinding("impossible", "adapters", f"{name} {unserved}")
    if workload.sends_images() and not dialects[workload.api].images:
        return RuleFinding("impossible", "images", f"{name} has images, {_why_no_images(settings)}")
    if workload.sends_images() and not may_see:
        sentence = (
            f"{name} has images, and the config.json of {settings.model} has no vision_config"
        )
        return RuleFinding("risky", "images", sentence)
    if settings.max_input_len:
        mismatch = _input_mismatch(workload, settings.max_input_len)
        if mismatch is not None:
            return mismatch
    if max_model_len is None:
        return None
    bounds = workload.token_bounds()
    limit = f"max_model_len is {max_model_len:,}"
    if bounds.least > max_model_len:
        return RuleFinding(
            "impossible",
            "lengths",
            f"{name} needs at least {bounds.least:,} tokens a request, {limit}",
        )
    if bounds.most is not None and bounds.most > max_model_len:
        sentence = f"{name} has requests of up to {bounds.most:,} tokens, {limit}: those will fail"
        return RuleFinding("risky", "lengths", sentence)
    return None


def _why_no_images(settings: EngineSettings) -> str:
    if settings.engine == "llama_cpp":
        return "and llama.cpp takes them only with an image encoder: extra_args: {--mmproj: FILE}"
    behind = " behind its router" if settings.router is not None else ""
    return f"and requests to {settings.engine}{behind} cannot hold any"


def adapter_problem(workload: Workload, settings: EngineSettings, dialect: Dialect) -> str | None:
    """Why the adapters that a workload asks for cannot be had, without the workload's name; None if
    they can, as far as is known: nobody knows beforehand which adapters an endpoint serves.
    """
    names = workload.adapter_names()
    if not names:
        return None
    if dialect.adapter_field is None:
        asked = ", ".join(names[:MOST_NAMED])
        behind = " behind its router" if settings.router is not None else ""
        return (
            f"asks for LoRA adapters ({asked}); requests to {settings.engine}{behind} cannot name "
            f"one through the API {workload.api!r}"
        )
    if settings.url is not None:
        return None
    served = settings.lora_modules or {}
    missing = [name for name in names if name not in served]
    if not missing:
        return None
    serves = f"it serves {', '.join(list(served)[:MOST_NAMED])}" if served else "it serves none"
    return (
        f"asks for the LoRA adapter {', '.join(missing[:MOST_NAMED])}, which this deployment does "
        f"not serve: {serves} (setting lora_modules)"
    )


def _input_mismatch(workload: Workload, max_input_len: int) -> RuleFinding | None:
    """Impossible if every prompt is too long, risky if some are; None if none is."""
    longer = workload.longer_prompts(max_input_len)
    if not longer:
        return None
    name = f"workload {workload.name!r}"
    limit = f"max_input_len is {max_input_len:,}"
    if longer == 1:
        sentence = f"every prompt of {name} is longer, {limit}"
        return RuleFinding("impossible", "input_lengths", sentence)
    share = max(longer, 0.01)
    sentence = f"about {share:.0%} of the prompts of {name} are longer, {limit}: those will fail"
    return RuleFinding("risky", "input_lengths", sentence)


def _with_workloads(
    verdict: Feasibility, mismatches: Mapping[str, RuleFinding | None]
) -> Feasibility:
    """The verdict with the mismatches of workloads. A workload that cannot be served is not
    measured, and a remark says why; a deployment that can serve none is impossible.
    """
    findings = {name: finding for name, finding in mismatches.items() if finding is not None}
    if not findings:
        return verdict
    unserved = sorted(name for name, finding in findings.items() if finding.status == "impossible")
    status = verdict.status
    if status == "impossible" or len(unserved) == len(mismatches):
        status = "impossible"
    elif len(unserved) < len(findings):
        status = "risky"
    reasons = list(verdict.reasons)
    remarks = list(verdict.remarks)
    for finding in findings.values():
        if finding.status == "impossible" and status != "impossible":
            remarks.append(f"{finding.sentence}: not measured")
        else:
            reasons.append(finding.sentence)
    return replace(
        verdict,
        status=status,
        reasons=tuple(reasons),
        remarks=tuple(remarks),
        unserved=tuple(unserved),
    )

"""Judges without a GPU whether a deployment can work, from a model's config.json and an
accelerator's data sheet.

``impossible`` means that the engine itself would refuse it or could not load the model. What merely
looks tight is ``risky`` and runs last. docs/emulator.md, "Feasibility", explains the rules.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from orchestrator.catalog import quantization
from orchestrator.catalog.accelerators import Accelerator, memory_bytes, nearest, of_hardware
from orchestrator.catalog.drafts import draft_bytes, is_own_layers
from orchestrator.catalog.memory import (
    GIB,
    NO_DRAFT,
    DraftBytes,
    Prediction,
    expert_parallel_size,
    expert_ranks,
    layers_per_stage,
    memory_text,
    predict,
)
from orchestrator.catalog.models import ModelFacts, known_config
from orchestrator.engines import ENGINES, architectures
from orchestrator.engines.extra_args import extra_arguments, present_flags
from orchestrator.engines.model_rules import ModelRules
from orchestrator.plan.kernels import missing_kernels, status_of_cut_group
from orchestrator.spec.settings import EngineSettings, Hardware

Status = Literal["fits", "risky", "impossible"]
ORDER: tuple[Status, ...] = ("impossible", "risky", "fits")
BFLOAT16_CAPABILITY, NATIVE_FP8_CAPABILITY = 80, 89  # compute capability times ten


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found. The status ``fits`` marks a remark without consequences."""

    status: Status
    rule: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The verdict, its reasons, and what the engine is predicted to report (by the names of
    ``Engine.reported``).

    ``excluded``: a rule of the experiment leaves the deployment out, so it was not judged.
    ``unserved``: names of workloads that it cannot serve.
    """

    status: Status | Literal["excluded"]
    reasons: tuple[str, ...] = ()
    predicted: dict[str, Any] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """What rules judge. ``settings.data_parallel_size`` counts only ranks that share experts;
    ``copies`` the others.
    """

    settings: EngineSettings
    facts: ModelFacts
    hardware: Hardware
    device: Accelerator | None  # None: not in the catalogue
    rules: ModelRules
    prediction: Prediction
    draft: ModelFacts | None
    # what a draft adds to a rank; None: there is one and nothing is known of its size
    draft_bytes: DraftBytes | None
    copies: int  # of the model in a replica, experts and all
    fraction: float | None  # share of the memory that the engine takes; None: not known


Found = Iterator[tuple[Status, str]]  # a status and the reason in one sentence


def assess(
    settings: EngineSettings,
    facts: ModelFacts | None,
    on: Hardware,
    draft: ModelFacts | None = None,
    role: str = "",
) -> Feasibility:
    """The verdict on one deployment. A pure function that takes about 50 µs.

    ``facts`` come from ``model_facts(model, revision, hf_overrides)``; ``draft``: facts about the
    draft model.
    """
    if facts is None:
        unjudged = (
            "its weights, KV cache and parallelism are not judged, and the nodes must be "
            "able to load it"
        )
        return Feasibility(
            "fits", (f"nothing is known of {settings.model} (no config.json at hand): {unjudged}",)
        )
    case = case_of(settings, facts, on, draft, role)
    findings = sorted(findings_of(case), key=lambda finding: ORDER.index(finding.status))
    status = findings[0].status if findings else "fits"
    predicted = asdict(case.prediction)
    if (concurrency := case.prediction.max_concurrency) is not None:
        predicted["max_concurrency"] = round(concurrency, 2)
    if facts.sized:
        # which deployments serve one model: results/ids.py
        predicted["parameters"] = facts.parameters.total
    if facts.quantization is not None:
        predicted["checkpoint_quantization"] = facts.quantization.method
    return Feasibility(status, tuple(finding.sentence for finding in findings), predicted)


def case_of(
    settings: EngineSettings,
    facts: ModelFacts,
    hardware: Hardware,
    draft: ModelFacts | None = None,
    role: str = "",
) -> Case:
    """What rules judge, from settings as the user means them."""
    rules, device = ENGINES[settings.engine].rules, of_hardware(hardware)
    copies = (
        settings.data_parallel_size
        if rules.whole_replicas and not settings.enable_expert_parallel
        else 1
    )
    settings = settings.model_copy(update={"data_parallel_size": 1}) if copies > 1 else settings
    seen: dict[str, Any] = {
        "gpu_memory_utilization": fraction_of(settings, facts, hardware, rules, role)
    }
    if rules.other_positions and any(
        rules.other_positions in text for text in extra_arguments(settings)
    ):
        facts = replace(facts, max_model_len=None)
    if rules.caps_length and settings.max_model_len and facts.max_model_len:
        seen["max_model_len"] = min(settings.max_model_len, facts.max_model_len)
    if rules.cuts_longrope and not settings.max_model_len and facts.short_model_len:
        seen["max_model_len"] = facts.short_model_len
    seen_settings = settings.model_copy(update=seen)
    added = draft_bytes(facts, settings, draft)
    prediction = predict(
        facts, seen_settings, device, rules.share_of, rules.shares_dense, added or NO_DRAFT
    )
    if rules.moved(settings):
        prediction = replace(
            prediction, weight_bytes=None, kv_bytes_per_token=None, kv_cache_memory_bytes=None
        )
        prediction = replace(prediction, kv_cache_tokens=settings.kv_cache_tokens)
    return Case(
        settings,
        facts,
        hardware,
        device,
        rules,
        prediction,
        draft,
        added,
        copies,
        seen["gpu_memory_utilization"],
    )


def fraction_of(
    settings: EngineSettings, facts: ModelFacts, on: Hardware, rules: ModelRules, role: str
) -> float | None:
    """Share of a device's memory that the engine takes; None: it depends on memory that is not
    known.
    """
    takes, memory = rules.memory_fraction, memory_bytes(on)
    if settings.gpu_memory_utilization or not callable(takes):
        return settings.gpu_memory_utilization or (None if callable(takes) else takes)
    return None if memory is None or on.is_cpu else takes(settings, facts, memory, role)


def findings_of(case: Case) -> list[Finding]:
    """The findings of all rules. A rule is named by its function."""
    return [
        Finding(status, rule.__name__.removeprefix("_"), sentence)
        for rule in _RULES
        for status, sentence in rule(case)
    ]


def _heads(case: Case) -> Found:
    heads, tensor = case.facts.shape.num_attention_heads, _attention_ranks(case)
    if case.rules.heads_divisible and heads % tensor:
        yield (
            "impossible",
            f"{heads} attention heads cannot be divided by tensor_parallel_size={tensor}",
        )


def _attention_ranks(case: Case) -> int:
    """Ranks that divide the heads of attention."""
    return (
        1
        if present_flags(case.settings, case.rules.whole_attention)
        else case.settings.tensor_parallel_size
    )


def _intermediate(case: Case) -> Found:
    for name, (width, ranks) in _mlp_widths(case).items():
        if case.rules.heads_divisible and width % ranks and not _is_padded(case, name):
            yield "impossible", f"{name} {width} cannot be divided by {_over(case, ranks)}"


def _is_padded(case: Case, name: str) -> bool:
    """Whether kernels pad this width, as those for MXFP4 experts do (vLLM 0.32
    ``quantization/mxfp4.py``).
    """
    stored = case.facts.quantization
    return name == "moe_intermediate_size" and stored is not None and stored.method == "mxfp4"


def _kv_heads(case: Case) -> Found:
    heads, tensor = case.facts.shape.num_key_value_heads, _attention_ranks(case)
    if not case.rules.heads_divisible or case.facts.shape.mla or heads % tensor == 0:
        return
    over = f"tensor_parallel_size={tensor}"
    if not case.rules.repeats_kv_heads:
        yield (
            "impossible",
            f"{heads} KV heads cannot be divided by {over}, and this engine repeats none",
        )
    elif tensor % heads:
        yield "impossible", f"{heads} KV heads can neither be divided by nor repeated over {over}"


def _mlp_widths(case: Case) -> dict[str, tuple[int, int]]:
    """Name -> (width, ranks that divide it) of dense MLPs, shared experts, and experts unless ranks
    have whole ones.
    """
    shape, tensor, widths = case.facts.shape, case.settings.tensor_parallel_size, {}
    if "mlp" in shape.mlps and not present_flags(case.settings, case.rules.whole_dense):
        sharers = expert_ranks(case.settings) if case.rules.shares_dense else tensor
        widths["intermediate_size"] = (shape.intermediate_size, sharers)
    if (shared := shape.shared_expert_intermediate_size) and case.facts.counted:
        widths["shared_expert_intermediate_size"] = (shared, case.rules.shared_ranks(case.settings))
    if shape.num_moe_layers and expert_parallel_size(case.settings) == 1:
        widths["moe_intermediate_size"] = (shape.moe_intermediate_size, expert_ranks(case.settings))
    return widths


def _over(case: Case, ranks: int) -> str:
    """The settings that make this many ranks."""
    product = "" if ranks == case.settings.tensor_parallel_size else " * data_parallel_size"
    return f"tensor_parallel_size{product}={ranks}"


def _stages(case: Case) -> Found:
    layers, stages = case.facts.shape.num_hidden_layers, case.settings.pipeline_parallel_size
    if stages > layers:
        yield (
            "impossible",
            f"pipeline_parallel_size={stages} is more than the model's {layers} layers",
        )
    variable = case.rules.partition_variable or ""
    if (given := case.settings.env.get(variable)) is not None and stages > 1:
        parts = given.split(",")
        if (
            len(parts) != stages
            or not all(part.strip().isdigit() for part in parts)
            or sum(map(int, parts)) != layers
        ):
            yield (
                "impossible",
                f"{variable}={given} must be {stages} numbers that add up to {layers}",
            )
    counts = layers_per_stage(layers, stages)
    if len(set(counts)) > 1 and min(counts):
        yield "fits", f"pipeline stages of {', '.join(map(str, counts))} layers"


def _experts(case: Case) -> Found:
    experts, spread = case.facts.shape.num_experts, expert_parallel_size(case.settings)
    if case.copies > 1 and experts:
        yield (
            "fits",
            (
                f"{case.copies} copies of all experts: only enable_expert_parallel divides them in "
                "this engine"
            ),
        )
    if (
        case.rules.experts_span_nodes
        and 1 < case.settings.data_parallel_size < case.settings.nnodes
        and not experts
    ):
        sentence = (
            "data_parallel_size: ranks of a model without experts would meet at one "
            "address; use replicas"
        )
        yield "impossible" if case.facts.counted else "risky", sentence
    if case.settings.enable_expert_parallel and not experts:
        if case.facts.counted:
            yield "impossible", "enable_expert_parallel: the model has no experts"
        else:
            yield "risky", "enable_expert_parallel: the config names no number of experts"
    elif experts and experts % spread:
        sentence = f"{experts} experts are not divided evenly by {spread} expert-parallel ranks"
        yield "risky" if case.rules.experts_divisible else "fits", sentence


def _quantization(case: Case) -> Found:
    asked, stored, rules = case.settings.quantization, case.facts.quantization, case.rules
    method, named = rules.method(asked, stored), asked or (stored.method if stored else "")
    if (flag := rules.allowed_by.get(named)) and not present_flags(case.settings, (flag,)):
        yield (
            "impossible",
            f"quantization {named} is deprecated, and refused without extra_args: {{{flag}: true}}",
        )
    if case.hardware.is_amd and method in rules.not_on_amd:
        yield (
            "impossible",
            f"quantization {method} is one that this engine has on NVIDIA's GPUs only",
        )
    if named in rules.unknown_methods:
        yield (
            "risky",
            (
                f"quantization {named} is not part of this engine, unless a plugin or a newer release "
                "adds it"
            ),
        )
    if stored is not None and stored.method in rules.unread:
        yield (
            "impossible",
            f"the checkpoint is quantized with {stored.method}, which this engine does not read",
        )
    if asked is None:
        return
    needed = f"quantization {asked} needs a checkpoint made for it, {case.facts.model} "
    if (
        stored is None
        and asked
        in (quantization.CHECKPOINT_ONLY | rules.stored_methods) - rules.experts_while_loading
    ):
        unnamed = asked in rules.stored_methods and not _is_unquantized(case.facts)
        said = (
            "may be one: its config names no quantization" if unnamed else f"is {case.facts.dtype}"
        )
        yield "risky" if unnamed else "impossible", needed + said
    of_experts = method in quantization.MOE_ONLY | rules.experts_while_loading
    if (
        of_experts
        and not case.facts.shape.num_experts
        and (stored is None or stored.method != method)
    ):
        yield "risky", f"quantization {method} is for experts, the model has none"
    if stored is None or stored.method == "unknown" or rules.takes is None:
        return
    if not rules.takes(asked, stored.method):
        yield (
            "impossible",
            (
                f"the checkpoint is quantized with {stored.method}, quantization={asked} does not "
                "match it"
            ),
        )
    elif stored.method == "compressed-tensors" and asked in quantization.ONLINE:
        scheme = quantization.ONLINE[asked][1]
        if stored.scheme not in ("", scheme):
            yield "risky", f"{needed}holds {stored.scheme}: {asked} reads {scheme}"


def _is_unquantized(facts: ModelFacts) -> bool:
    """Whether a checkpoint without a quantization in its config has none: by its size, else if it
    is well known.
    """
    if facts.checkpoint_bytes and facts.exact:  # 16-bit embeddings may be most of a small model
        return facts.checkpoint_bytes > 1.9 * facts.parameters.total
    return known_config(facts.model) is not None


def _blocks(case: Case) -> Found:
    """Widths per rank against blocks or groups that share a scale."""
    stored, shape, tensor = case.facts.quantization, case.facts.shape, _attention_ranks(case)
    if stored is None or not case.rules.heads_divisible:
        return
    parts = {
        "intermediate_size": "mlp",
        "shared_expert_intermediate_size": "mlp",
        "moe_intermediate_size": "experts",
    }
    widths = {
        name: one
        for name, one in _mlp_widths(case).items()
        if stored.share(parts[name]) and not _is_padded(case, name)
    }
    if stored.share("attention") and shape.num_attention_layers and not shape.mla:
        widths["attention width"] = (shape.num_attention_heads * shape.head_dim, tensor)
        if stored.block:  # K and V are cut along their outputs, groups run along the inputs
            widths["KV width"] = (max(shape.num_key_value_heads, tensor) * shape.head_dim, tensor)
    size, what = (max(stored.block), "block") if stored.block else (stored.group_size, "group")
    for name, (width, ranks) in widths.items():
        if size and ranks > 1 and width % ranks == 0 and width // ranks % size:
            said = (
                f"{name} {width} / {_over(case, ranks)} is not a multiple of {stored.method}'s "
                f"{what} of {size}"
            )
            status = status_of_cut_group(case.rules, stored, width // ranks, case.hardware, name)
            # Code for one model may lay its attention out by itself, as SGLang 0.5.23
            # models/mimo_v2.py does.
            yield (
                status
                if case.facts.counted or name not in ("attention width", "KV width")
                else "risky",
                said,
            )


def _kernels(case: Case) -> Found:
    yield from missing_kernels(case.rules, case.settings, case.facts, case.hardware)


def _capability(case: Case) -> Found:
    if case.device is None or case.device.capability is None:
        return
    major, minor = case.device.capability
    has, settings, name, stored = (
        major * 10 + minor,
        case.settings,
        case.device.name,
        case.facts.quantization,
    )
    method = case.rules.method(settings.quantization, stored)
    if has < (needs := case.rules.min_capability.get(method, 0)):
        yield (
            "impossible",
            (
                f"quantization {method} needs compute capability {needs / 10:g}, {name} has "
                f"{has / 10:g}"
            ),
        )
    elif any(
        has not in case.rules.kernels_on.get(key, (has,))
        for key in (method, stored.scheme if stored else "")
    ):
        yield (
            "risky",
            f"quantization {method} on {name}: not every release of this engine has kernels for it",
        )
    if settings.dtype == "bfloat16" and has < BFLOAT16_CAPABILITY:
        refused = case.rules.min_capability.get("bfloat16", 0) > has
        yield (
            "impossible" if refused else "risky",
            f"bfloat16 needs compute capability 8, {name} has {has / 10:g}",
        )
    if "fp8" in method and needs <= has < NATIVE_FP8_CAPABILITY:
        yield "risky", f"{name} has no FP8 units: {method} runs as weights only, if at all"
    if "fp8" in (settings.kv_cache_dtype or "") and has < NATIVE_FP8_CAPABILITY:
        yield "risky", f"kv_cache_dtype {settings.kv_cache_dtype} on {name}, which has no FP8 units"


def _sparse_attention(case: Case) -> Found:
    needs, shape, device = case.rules.sparse_capability, case.facts.shape, case.device
    if not needs or not (shape.mla and shape.index_n_heads):
        return
    if device is None or device.capability is None:
        return
    major, minor = device.capability
    if major * 10 + minor < needs:
        yield (
            "impossible",
            f"sparse attention (index_n_heads) needs compute capability {needs / 10:g}, "
            f"{device.name} has {major}.{minor}",
        )


def _lengths(case: Case) -> Found:
    """max_model_len against the model's positions, and against everything that must hold as many
    tokens.
    """
    settings, rules, positions = case.settings, case.rules, case.facts.max_model_len
    length, batch = case.prediction.max_model_len, case.prediction.max_num_batched_tokens
    if settings.max_model_len and positions is not None and settings.max_model_len > positions:
        allowed = settings.env.get(rules.longer_variable or "", "").lower() in {"1", "true"}
        sentence = (
            f"max_model_len={settings.max_model_len} is more than the model's {positions} positions"
        )
        yield "impossible" if rules.refuses_longer and not allowed else "risky", sentence
    if (settings.max_input_len or 0) >= length:
        sentence = (
            f"max_input_len={settings.max_input_len} leaves no room for output in "
            f"max_model_len={length}"
        )
        yield "impossible", sentence
    if rules.whole_prompts and settings.enable_chunked_prefill is False and batch < length:
        sentence = (
            f"without chunked prefill max_num_batched_tokens={batch} must be at least "
            f"max_model_len={length}"
        )
        yield "impossible", sentence
    kept = (settings.block_size or 16) if rules.keeps_block else 0
    if (tokens := settings.kv_cache_tokens) is not None and tokens - kept < length:
        sentence = f"kv_cache_tokens={tokens} cannot hold one sequence of max_model_len={length}"
        yield "impossible" if rules.holds_length(settings) else "risky", sentence


def _draft(case: Case) -> Found:
    speculative, draft = case.settings.speculative, case.draft
    if speculative is not None and case.draft_bytes is None:
        if is_own_layers(case.settings) and not case.facts.draft_layers:
            yield (
                "risky",
                f"speculative method {speculative.method}: the config names no layers for it",
            )
        else:
            yield "fits", "the draft's weights and KV cache are not counted: no formula for it"
    if speculative is None or draft is None or speculative.method != "draft_model":
        return
    mine, theirs = case.facts.shape.vocab_size, draft.shape.vocab_size
    if abs(mine - theirs) > case.rules.draft_vocabulary_slack:
        yield "impossible", f"the draft model's vocabulary has {theirs} tokens, the model's {mine}"
    heads, tensor = draft.shape.num_attention_heads, speculative.draft_tensor_parallel_size
    ranks = tensor or case.settings.tensor_parallel_size
    if case.rules.heads_divisible and heads % ranks:
        yield "impossible", f"the draft model's {heads} heads cannot be divided by {ranks} ranks"


def _memory(case: Case) -> Found:
    """Weights with some room to spare, then the KV cache of one whole sequence, in the engine's
    share of memory.
    """
    hardware, memory = case.hardware, memory_bytes(case.hardware)
    if hardware.is_cpu:
        yield "fits", "memory is not judged on cpu"
        return
    if moved := case.rules.moved(case.settings):
        yield "fits", f"memory is not judged with {', '.join(moved)}"
        return
    if case.prediction.weight_bytes is None:
        return  # the rule ``architecture`` reports it
    if not memory:
        if hardware.accelerator == "any":
            yield "fits", "memory is not judged: no hardware is named"
            return
        unknown = f"accelerator {hardware.accelerator!r} is not in the catalogue"
        near = ", ".join(nearest(hardware.accelerator)) or "none"
        yield "fits", f"memory is not judged: {unknown} (nearest: {near}); give memory_gb"
        return
    weights = max(0.0, case.prediction.weight_bytes - (case.settings.cpu_offload_gb or 0) * GIB)
    free = case.rules.share_of == "free"
    # vLLM ignores the fraction (gpu_worker.py)
    fixed = case.settings.kv_cache_memory_bytes is not None and not free
    fraction = 1.0 if fixed or case.fraction is None else case.fraction
    budget = memory if free else memory * fraction
    held = f"{memory_text(weights)} of weights{_of_draft(case)} on each rank"
    if weights > budget:
        proven = _is_weight_proven(case)
        yield "impossible" if proven else "risky", f"{held} do not fit {memory_text(budget)}"
        return
    if weights * 1.05 + 2 * GIB > budget:
        yield "risky", f"{held} leave less than 5 % and 2 GiB of {memory_text(budget)}"
    yield from _kv_memory(case, (budget - weights) * (fraction if free else 1))


def _of_draft(case: Case) -> str:
    added = case.draft_bytes
    return f" ({memory_text(added.weights)} of them the draft's)" if added and added.weights else ""


def _is_weight_proven(case: Case) -> bool:
    """Whether a rank has at least the predicted bytes of weights. Of what has a formula for the
    language model they are a lower bound; a checkpoint's size is exact.
    """
    asked, stored = case.settings.quantization, case.facts.quantization
    if not (asked is None or stored is not None or asked in quantization.ONLINE):
        return False
    return _is_size_known(case.facts) and (case.draft is None or _is_size_known(case.draft))


def _is_size_known(facts: ModelFacts) -> bool:
    return facts.counted or facts.checkpoint_bytes is not None


def _kv_memory(case: Case, free: float) -> Found:
    """``free``: bytes beside the weights. Too little for one sequence is impossible if certain,
    else risky.
    """
    prediction, length, fixed = (
        case.prediction,
        case.prediction.max_model_len,
        case.settings.kv_cache_memory_bytes,
    )
    if fixed is not None and fixed > free:
        said = (
            f"kv_cache_memory_bytes={fixed} is more than the {memory_text(free)} beside the weights"
        )
        yield "impossible" if _is_kv_counted(case) else "risky", said
    if prediction.kv_bytes_per_token is None:
        return
    asked = prediction.kv_bytes_per_token * (case.settings.kv_cache_tokens or 0)
    if case.rules.allocates_tokens and asked > free:  # less where some layers look at a window only
        yield (
            "risky",
            (
                f"kv_cache_tokens={case.settings.kv_cache_tokens} needs {memory_text(asked)}, there "
                f"are {memory_text(free)}"
            ),
        )
    room, tokens, have = (
        prediction.kv_cache_memory_bytes,
        prediction.kv_cache_tokens,
        free if fixed is None else fixed,
    )
    needed = (
        room / tokens if room is not None and tokens else prediction.kv_bytes_per_token
    ) * length
    if needed > have:
        said = (
            f"one sequence of max_model_len={length} needs {memory_text(needed)} of KV cache, "
            f"there are {memory_text(have)}"
        )
        yield (
            "impossible"
            if _is_kv_counted(case) and case.rules.holds_length(case.settings)
            else "risky",
            said,
        )
    elif prediction.kv_cache_tokens is not None and prediction.kv_cache_tokens < length:
        yield (
            "risky",
            (
                f"about {prediction.kv_cache_tokens} tokens of KV cache may not hold "
                f"max_model_len={length}"
            ),
        )


def _is_kv_counted(case: Case) -> bool:
    return case.facts.counted and (case.draft is None or case.draft.counted)


# Engines that run what they have no code for by that of transformers, if it can be run so.
_BY_TRANSFORMERS = ("vllm", "sglang", "tgi")


def _support(case: Case) -> Found:
    """Whether the engine has code for the model, by the lists of its sources."""
    engine, facts = case.settings.engine, case.facts
    support = architectures.support(engine)
    if support is None or present_flags(case.settings, ("--model-impl",)):
        return
    chosen = facts.architectures if support.by_class else (facts.config_type,)
    names = [name for name in chosen if name]
    if not names:
        return
    title = ENGINES[engine].title
    if not support.names.intersection(names):
        own = " of its own; transformers' code may run it"
        yield (
            "risky",
            f"{title} {support.version} has no code for {names[0]}"
            f"{own if engine in _BY_TRANSFORMERS else ''}",
        )
        return
    if support.turbomind is None or case.settings.extra_args.get("--backend") == "pytorch":
        return
    if not support.turbomind.intersection(names):
        yield "fits", f"turbomind has no {names[0]}: {title} runs its pytorch backend instead"


def _architecture(case: Case) -> Found:
    facts = case.facts
    kind = facts.model_type or "this architecture"
    if not facts.sized:
        size = (
            "its weights are as large as its files"
            if facts.checkpoint_bytes
            else "nothing is known of its weights"
        )
        yield "fits", f"no formula for {kind}: {size}, nothing is known of its KV cache"
    elif not facts.counted:
        yield "fits", f"sizes are those of a plain transformer: no formula for {kind}"
    elif not facts.exact and not facts.checkpoint_bytes:
        yield "fits", f"sizes are those of the language model ({kind}) alone"


_RULES: tuple[Callable[[Case], Found], ...] = (
    _heads, _intermediate, _kv_heads, _stages, _experts, _quantization, _blocks, _kernels, _capability,
    _sparse_attention, _lengths,
    _draft, _memory, _support, _architecture,
)  # fmt: skip

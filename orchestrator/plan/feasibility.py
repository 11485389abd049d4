"""Judges without a GPU whether a deployment can work, from a model's config.json and an
accelerator's data sheet.

``impossible`` means that the engine itself would refuse it or could not load the model. What merely
looks tight is ``risky`` and runs last. docs/explained/feasibility.md, "Feasibility", explains the
rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from orchestrator.analysis.prediction import PredictedStart
from orchestrator.catalog import quantization
from orchestrator.catalog.accelerators import Accelerator, memory_bytes, nearest, of_hardware
from orchestrator.catalog.drafts import draft_bytes, is_own_layers
from orchestrator.catalog.memory import (
    GIB,
    NO_DRAFT,
    DraftBytes,
    MemoryEstimate,
    estimate_memory,
    expert_parallel_size,
    expert_ranks,
    layers_per_stage,
    memory_text,
)
from orchestrator.catalog.models import ModelFacts, known_config
from orchestrator.catalog.quantization import Quantization
from orchestrator.engines import architectures
from orchestrator.engines.extra_args import extra_arguments, present_flags
from orchestrator.engines.model_rules import ModelRules
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.kernels import missing_kernels, status_of_cut_group
from orchestrator.spec.settings import EngineSettings, Hardware

FitStatus = Literal["fits", "risky", "impossible"]
ORDER: tuple[FitStatus, ...] = ("impossible", "risky", "fits")
BFLOAT16_CAPABILITY = 80  # compute capability times ten
NATIVE_FP8_CAPABILITY = 89
DEFAULT_BLOCK = 16  # tokens in a block of a KV cache
# name of a width -> part of the model that it belongs to, as a quantization names what it covers
PART_OF_WIDTH = {
    "intermediate_size": "mlp",
    "shared_expert_intermediate_size": "mlp",
    "moe_intermediate_size": "experts",
}
ATTENTION_WIDTHS = ("attention width", "KV width")


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What one rule found. The status ``fits`` marks a remark without consequences."""

    status: FitStatus
    rule: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The verdict, its reasons, and what the engines are predicted to report.

    ``status``: ``excluded``: a rule of the experiment leaves the deployment out, so it was not
    judged. ``reasons``: for the status. ``starts``: what engines are predicted to report, by role,
    of those with a known model. ``unserved``: names of workloads that it cannot serve.
    ``remarks``: what is worth knowing and changes nothing.
    """

    status: FitStatus | Literal["excluded"]
    reasons: tuple[str, ...] = ()
    starts: Mapping[str, PredictedStart] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeasibilityCase:
    """What rules judge. ``settings.data_parallel_size`` counts only ranks that share experts;
    ``copies`` counts the others.
    """

    settings: EngineSettings
    facts: ModelFacts
    hardware: Hardware
    device: Accelerator | None  # None: not in the catalogue
    rules: ModelRules
    estimate: MemoryEstimate
    draft: ModelFacts | None
    # what a draft model adds to a rank; None: there is a draft, but its size is not known
    draft_bytes: DraftBytes | None
    copies: int  # how many copies of the model a replica has, experts and all
    fraction: float | None  # share of the memory that the engine takes; None: not known


Findings = Iterator[tuple[FitStatus, str]]  # a status and the reason in one sentence


def assess(
    settings: EngineSettings,
    facts: ModelFacts | None,
    hardware: Hardware,
    draft: ModelFacts | None = None,
    role: str = "",
) -> Feasibility:
    """The verdict on one deployment. A pure function that takes about 50 µs.

    ``facts`` come from ``model_facts(model, revision, hf_overrides)``; ``draft``: facts about the
    draft model.
    """
    if facts is None:
        remark = (
            f"nothing is known of {settings.model} (no config.json at hand): its weights, KV cache "
            "and parallelism are not judged, and the nodes must be able to load it"
        )
        return Feasibility("fits", remarks=(remark,))
    case = feasibility_case(settings, facts, hardware, draft, role)
    findings = sorted(findings_of(case), key=lambda finding: ORDER.index(finding.status))
    status = findings[0].status if findings else "fits"
    start = _predicted_start(case.estimate, facts)
    reasons = [finding.sentence for finding in findings if finding.status != "fits"]
    remarks = [finding.sentence for finding in findings if finding.status == "fits"]
    return Feasibility(status, tuple(reasons), {role: start}, remarks=tuple(remarks))


def _predicted_start(estimate: MemoryEstimate, facts: ModelFacts) -> PredictedStart:
    concurrency = estimate.max_concurrency
    return PredictedStart(
        weight_bytes=estimate.weight_bytes,
        kv_bytes_per_token=estimate.kv_bytes_per_token,
        max_model_len=estimate.max_model_len,
        max_num_batched_tokens=estimate.max_num_batched_tokens,
        max_num_seqs=estimate.max_num_seqs,
        kv_cache_memory_bytes=estimate.kv_cache_memory_bytes,
        kv_cache_tokens=estimate.kv_cache_tokens,
        max_concurrency=None if concurrency is None else round(concurrency, 2),
        # tells which deployments serve the same model (results/ids.py)
        parameters=facts.parameters.total if facts.has_parameter_count else None,
        checkpoint_quantization=None if facts.quantization is None else facts.quantization.method,
    )


def feasibility_case(
    settings: EngineSettings,
    facts: ModelFacts,
    hardware: Hardware,
    draft: ModelFacts | None = None,
    role: str = "",
) -> FeasibilityCase:
    """The case that rules judge, from settings as the user gives them."""
    rules = ENGINES[settings.engine].rules
    device = of_hardware(hardware)
    copies = 1
    if rules.whole_replicas and not settings.enable_expert_parallel:
        copies = settings.data_parallel_size
    if copies > 1:
        settings = settings.model_copy(update={"data_parallel_size": 1})
    fraction = fraction_of(settings, facts, hardware, rules, role)
    facts = _without_changed_positions(settings, facts, rules)
    in_effect = settings.model_copy(
        update={"gpu_memory_utilization": fraction, **_length_in_effect(settings, facts, rules)}
    )
    bytes_of_draft = draft_bytes(facts, settings, draft)
    estimate = estimate_memory(
        facts, in_effect, device, rules.share_of, rules.shares_dense, bytes_of_draft or NO_DRAFT
    )
    if rules.memory_overrides(settings):
        estimate = replace(
            estimate,
            weight_bytes=None,
            kv_bytes_per_token=None,
            kv_cache_memory_bytes=None,
            kv_cache_tokens=settings.kv_cache_tokens,
        )
    return FeasibilityCase(
        settings=settings,
        facts=facts,
        hardware=hardware,
        device=device,
        rules=rules,
        estimate=estimate,
        draft=draft,
        draft_bytes=bytes_of_draft,
        copies=copies,
        fraction=fraction,
    )


def _without_changed_positions(
    settings: EngineSettings, facts: ModelFacts, rules: ModelRules
) -> ModelFacts:
    """The facts; without the model's positions if ``extra_args`` change these."""
    part = rules.other_positions
    if part and any(part in text for text in extra_arguments(settings)):
        return replace(facts, max_model_len=None)
    return facts


def _length_in_effect(
    settings: EngineSettings, facts: ModelFacts, rules: ModelRules
) -> dict[str, int]:
    """``max_model_len`` as the engine takes it, if it differs from the settings; else nothing."""
    if rules.caps_length and settings.max_model_len and facts.max_model_len:
        return {"max_model_len": min(settings.max_model_len, facts.max_model_len)}
    if rules.cuts_longrope and not settings.max_model_len and facts.short_model_len:
        return {"max_model_len": facts.short_model_len}
    return {}


def fraction_of(
    settings: EngineSettings, facts: ModelFacts, hardware: Hardware, rules: ModelRules, role: str
) -> float | None:
    """Share of a device's memory that the engine takes; None: it depends on memory that is not
    known.
    """
    if settings.gpu_memory_utilization:
        return settings.gpu_memory_utilization
    share = rules.memory_fraction
    if not callable(share):
        return share
    memory = memory_bytes(hardware)
    if memory is None or hardware.is_cpu:
        return None
    return share(settings, facts, memory, role)


def findings_of(case: FeasibilityCase) -> list[RuleFinding]:
    """The findings of all rules. A rule is named by its function."""
    return [
        RuleFinding(status, rule.__name__.removeprefix("_"), sentence)
        for rule in _RULES
        for status, sentence in rule(case)
    ]


def _heads(case: FeasibilityCase) -> Findings:
    heads = case.facts.shape.num_attention_heads
    ranks = _attention_ranks(case)
    if case.rules.heads_divisible and heads % ranks:
        yield (
            "impossible",
            f"{heads} attention heads cannot be divided by tensor_parallel_size={ranks}",
        )


def _attention_ranks(case: FeasibilityCase) -> int:
    """Ranks that divide the heads of attention."""
    if present_flags(case.settings, case.rules.whole_attention):
        return 1
    return case.settings.tensor_parallel_size


def _intermediate(case: FeasibilityCase) -> Findings:
    if not case.rules.heads_divisible:
        return
    for name, divided in _mlp_widths(case).items():
        if divided.width % divided.ranks and not _is_padded(case, name):
            ranks = _rank_settings(case, divided.ranks)
            yield "impossible", f"{name} {divided.width} cannot be divided by {ranks}"


def _is_padded(case: FeasibilityCase, name: str) -> bool:
    """Whether kernels pad this width, as those for MXFP4 experts do (vLLM 0.32
    ``quantization/mxfp4.py``).
    """
    stored = case.facts.quantization
    return name == "moe_intermediate_size" and stored is not None and stored.method == "mxfp4"


def _kv_heads(case: FeasibilityCase) -> Findings:
    heads = case.facts.shape.num_key_value_heads
    ranks = _attention_ranks(case)
    if (
        not case.rules.heads_divisible
        or case.facts.shape.has_latent_attention
        or heads % ranks == 0
    ):
        return
    setting = f"tensor_parallel_size={ranks}"
    if not case.rules.repeats_kv_heads:
        yield (
            "impossible",
            f"{heads} KV heads cannot be divided by {setting}, and this engine repeats none",
        )
    elif ranks % heads:
        yield (
            "impossible",
            f"{heads} KV heads can neither be divided by nor repeated over {setting}",
        )


class DividedWidth(NamedTuple):
    """The width of a matrix, and the ranks that divide it."""

    width: int
    ranks: int


def _mlp_widths(case: FeasibilityCase) -> dict[str, DividedWidth]:
    """By name, the widths of dense MLPs, of shared experts and, unless ranks have whole experts, of
    experts.
    """
    shape = case.facts.shape
    settings = case.settings
    widths: dict[str, DividedWidth] = {}
    if "mlp" in shape.mlps and not present_flags(settings, case.rules.whole_dense):
        ranks = settings.tensor_parallel_size
        if case.rules.shares_dense:
            ranks = expert_ranks(settings)
        widths["intermediate_size"] = DividedWidth(shape.intermediate_size, ranks)
    shared_width = shape.shared_expert_intermediate_size
    if shared_width and case.facts.language_model_counted:
        ranks = case.rules.shared_ranks(settings)
        widths["shared_expert_intermediate_size"] = DividedWidth(shared_width, ranks)
    if shape.num_moe_layers and expert_parallel_size(settings) == 1:
        ranks = expert_ranks(settings)
        widths["moe_intermediate_size"] = DividedWidth(shape.moe_intermediate_size, ranks)
    return widths


def _rank_settings(case: FeasibilityCase, ranks: int) -> str:
    """The settings that make this many ranks."""
    if ranks == case.settings.tensor_parallel_size:
        return f"tensor_parallel_size={ranks}"
    return f"tensor_parallel_size * data_parallel_size={ranks}"


def _stages(case: FeasibilityCase) -> Findings:
    layers = case.facts.shape.num_hidden_layers
    stages = case.settings.pipeline_parallel_size
    if stages > layers:
        yield (
            "impossible",
            f"pipeline_parallel_size={stages} is more than the model's {layers} layers",
        )
    variable = case.rules.partition_variable or ""
    partition = case.settings.env.get(variable)
    if partition is not None and stages > 1 and not _is_partition(partition, layers, stages):
        yield (
            "impossible",
            f"{variable}={partition} must be {stages} numbers that add up to {layers}",
        )
    counts = layers_per_stage(layers, stages)
    if len(set(counts)) > 1 and min(counts):
        yield "fits", f"pipeline stages of {', '.join(map(str, counts))} layers"


def _is_partition(text: str, layers: int, stages: int) -> bool:
    """Whether a text gives the layers of each pipeline stage."""
    numbers = text.split(",")
    if len(numbers) != stages or not all(number.strip().isdigit() for number in numbers):
        return False
    return sum(map(int, numbers)) == layers


def _experts(case: FeasibilityCase) -> Findings:
    experts = case.facts.shape.num_experts
    settings = case.settings
    ranks = expert_parallel_size(settings)
    if case.copies > 1 and experts:
        yield (
            "fits",
            f"{case.copies} copies of all experts: "
            "only enable_expert_parallel divides them in this engine",
        )
    ranks_span_nodes = 1 < settings.data_parallel_size < settings.nnodes
    if case.rules.experts_span_nodes and ranks_span_nodes and not experts:
        yield (
            "impossible" if case.facts.language_model_counted else "risky",
            "data_parallel_size: ranks of a model without experts would meet at one address; "
            "use replicas",
        )
    if settings.enable_expert_parallel and not experts:
        if case.facts.language_model_counted:
            yield "impossible", "enable_expert_parallel: the model has no experts"
        else:
            yield "risky", "enable_expert_parallel: the config names no number of experts"
    elif experts and experts % ranks:
        sentence = f"{experts} experts are not divided evenly by {ranks} expert-parallel ranks"
        yield "risky" if case.rules.experts_divisible else "fits", sentence


def _quantization(case: FeasibilityCase) -> Findings:
    """What the engine does with the quantization that the settings or the checkpoint name."""
    requested = case.settings.quantization
    stored = case.facts.quantization
    rules = case.rules
    method = rules.method(requested, stored)
    stored_method = stored.method if stored else ""
    named_method = requested or stored_method
    flag = rules.allowed_by.get(named_method)
    if flag and not present_flags(case.settings, (flag,)):
        yield (
            "impossible",
            f"quantization {named_method} is deprecated, and refused without "
            f"extra_args: {{{flag}: true}}",
        )
    if case.hardware.is_amd and method in rules.not_on_amd:
        yield (
            "impossible",
            f"quantization {method} is one that this engine has on NVIDIA's GPUs only",
        )
    if named_method in rules.unknown_methods:
        yield (
            "risky",
            f"quantization {named_method} is not part of this engine, "
            "unless a plugin or a newer release adds it",
        )
    if stored is not None and stored.method in rules.unreadable_methods:
        yield (
            "impossible",
            f"the checkpoint is quantized with {stored.method}, which this engine does not read",
        )
    if requested is not None:
        yield from _requested_quantization(case, requested, method)


def _requested_quantization(case: FeasibilityCase, requested: str, method: str) -> Findings:
    """Whether the quantization of the settings suits the checkpoint. ``method``: the quantization
    in effect.
    """
    stored = case.facts.quantization
    rules = case.rules
    # the beginnings of sentences
    needs_checkpoint = (
        f"quantization {requested} needs a checkpoint made for it, {case.facts.model}"
    )
    made_before = quantization.CHECKPOINT_ONLY | rules.stored_methods
    if stored is None and requested in made_before - rules.experts_while_loading:
        if requested in rules.stored_methods and not _is_unquantized(case.facts):
            yield "risky", f"{needs_checkpoint} may be one: its config names no quantization"
        else:
            yield "impossible", f"{needs_checkpoint} is {case.facts.dtype}"
    of_experts = method in quantization.MOE_ONLY | rules.experts_while_loading
    is_stored = stored is not None and stored.method == method
    if of_experts and not case.facts.shape.num_experts and not is_stored:
        yield "risky", f"quantization {method} is for experts, the model has none"
    if stored is None or stored.method == "unknown" or rules.accepts_method is None:
        return
    if not rules.accepts_method(requested, stored.method):
        yield (
            "impossible",
            f"the checkpoint is quantized with {stored.method}, "
            f"quantization={requested} does not match it",
        )
    elif stored.method == "compressed-tensors" and requested in quantization.ONLINE:
        scheme = quantization.ONLINE[requested].scheme
        if stored.scheme not in ("", scheme):
            yield "risky", f"{needs_checkpoint} holds {stored.scheme}: {requested} reads {scheme}"


def _is_unquantized(facts: ModelFacts) -> bool:
    """Whether a checkpoint whose config names no quantization has none: its size tells or, without
    that, whether the model is well known.
    """
    # 16-bit embeddings may be most of a small model
    if facts.checkpoint_bytes and facts.all_parameters_counted:
        return facts.checkpoint_bytes > 1.9 * facts.parameters.total
    return known_config(facts.model) is not None


def _blocks(case: FeasibilityCase) -> Findings:
    """Whether widths per rank are multiples of the blocks or groups that share a scale."""
    stored = case.facts.quantization
    if stored is None or not case.rules.heads_divisible:
        return
    size = stored.group_size
    unit = "group"
    if stored.block:
        size = max(stored.block)
        unit = "block"
    for name, (width, ranks) in _quantized_widths(case, stored).items():
        is_cut = size and ranks > 1 and width % ranks == 0 and width // ranks % size
        if not is_cut:
            continue
        status: FitStatus = status_of_cut_group(
            case.rules, stored, width // ranks, case.hardware, name
        )
        if name in ATTENTION_WIDTHS and not case.facts.language_model_counted:
            # the code of a model may have its own layout of attention, as SGLang 0.5.23
            # models/mimo_v2.py does
            status = "risky"
        yield (
            status,
            f"{name} {width} / {_rank_settings(case, ranks)} is not a multiple of "
            f"{stored.method}'s {unit} of {size}",
        )


def _quantized_widths(case: FeasibilityCase, stored: Quantization) -> dict[str, DividedWidth]:
    """By name, the widths of the matrices that are stored quantized."""
    shape = case.facts.shape
    widths: dict[str, DividedWidth] = {}
    for name, divided in _mlp_widths(case).items():
        if stored.share(PART_OF_WIDTH[name]) and not _is_padded(case, name):
            widths[name] = divided
    if stored.share("attention") and shape.num_attention_layers and not shape.has_latent_attention:
        ranks = _attention_ranks(case)
        width = shape.num_attention_heads * shape.head_dim
        widths["attention width"] = DividedWidth(width, ranks)
        if stored.block:  # K and V are cut along their outputs, while groups run along the inputs
            kv_width = max(shape.num_key_value_heads, ranks) * shape.head_dim
            widths["KV width"] = DividedWidth(kv_width, ranks)
    return widths


def _kernels(case: FeasibilityCase) -> Findings:
    yield from missing_kernels(case.rules, case.settings, case.facts, case.hardware)


def _capability(case: FeasibilityCase) -> Findings:
    """What the device's compute capability (times ten) allows."""
    if case.device is None or case.device.capability is None:
        return
    major, minor = case.device.capability
    capability = major * 10 + minor
    settings = case.settings
    rules = case.rules
    name = case.device.name
    stored = case.facts.quantization
    method = rules.method(settings.quantization, stored)
    least_capability = rules.min_capability.get(method, 0)
    if capability < least_capability:
        yield (
            "impossible",
            f"quantization {method} needs compute capability {least_capability / 10:g}, "
            f"{name} has {capability / 10:g}",
        )
    elif not _has_kernels_everywhere(rules, (method, stored.scheme if stored else ""), capability):
        yield (
            "risky",
            f"quantization {method} on {name}: not every release of this engine has kernels for it",
        )
    if settings.dtype == "bfloat16" and capability < BFLOAT16_CAPABILITY:
        is_refused = rules.min_capability.get("bfloat16", 0) > capability
        yield (
            "impossible" if is_refused else "risky",
            f"bfloat16 needs compute capability 8, {name} has {capability / 10:g}",
        )
    if "fp8" in method and least_capability <= capability < NATIVE_FP8_CAPABILITY:
        yield "risky", f"{name} has no FP8 units: {method} runs as weights only, if at all"
    if "fp8" in (settings.kv_cache_dtype or "") and capability < NATIVE_FP8_CAPABILITY:
        yield "risky", f"kv_cache_dtype {settings.kv_cache_dtype} on {name}, which has no FP8 units"


def _has_kernels_everywhere(rules: ModelRules, keys: tuple[str, str], capability: int) -> bool:
    """Whether every release and model has kernels for a method and a scheme, as far as is known."""
    ranges = [rules.kernels_on[key] for key in keys if key in rules.kernels_on]
    return all(capability in capabilities for capabilities in ranges)


def _sparse_attention(case: FeasibilityCase) -> Findings:
    least_capability = case.rules.sparse_capability
    shape = case.facts.shape
    if not least_capability or not (shape.has_latent_attention and shape.index_n_heads):
        return
    device = case.device
    if device is None or device.capability is None:
        return
    major, minor = device.capability
    if major * 10 + minor < least_capability:
        yield (
            "impossible",
            f"sparse attention (index_n_heads) needs compute capability {least_capability / 10:g}, "
            f"{device.name} has {major}.{minor}",
        )


def _lengths(case: FeasibilityCase) -> Findings:
    """max_model_len against the model's positions, and against everything that must hold as many
    tokens.
    """
    settings = case.settings
    rules = case.rules
    positions = case.facts.max_model_len
    length = case.estimate.max_model_len
    batch = case.estimate.max_num_batched_tokens
    if settings.max_model_len and positions is not None and settings.max_model_len > positions:
        variable = settings.env.get(rules.longer_variable or "", "")
        is_allowed = variable.lower() in {"1", "true"}
        yield (
            "impossible" if rules.refuses_longer and not is_allowed else "risky",
            f"max_model_len={settings.max_model_len} is more than "
            f"the model's {positions} positions",
        )
    if (settings.max_input_len or 0) >= length:
        yield (
            "impossible",
            f"max_input_len={settings.max_input_len} leaves no room for output "
            f"in max_model_len={length}",
        )
    if rules.whole_prompts and settings.enable_chunked_prefill is False and batch < length:
        yield (
            "impossible",
            f"without chunked prefill max_num_batched_tokens={batch} must be at least "
            f"max_model_len={length}",
        )
    tokens = settings.kv_cache_tokens
    kept_tokens = 0  # those of a block that no sequence gets
    if rules.keeps_block:
        kept_tokens = settings.block_size or DEFAULT_BLOCK
    if tokens is not None and tokens - kept_tokens < length:
        yield (
            "impossible" if rules.holds_length(settings) else "risky",
            f"kv_cache_tokens={tokens} cannot hold one sequence of max_model_len={length}",
        )


def _draft(case: FeasibilityCase) -> Findings:
    speculative = case.settings.speculative
    draft = case.draft
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
    tokens = case.facts.shape.vocab_size
    draft_tokens = draft.shape.vocab_size
    if abs(tokens - draft_tokens) > case.rules.draft_vocabulary_slack:
        yield (
            "impossible",
            f"the draft model's vocabulary has {draft_tokens} tokens, the model's {tokens}",
        )
    heads = draft.shape.num_attention_heads
    ranks = speculative.draft_tensor_parallel_size or case.settings.tensor_parallel_size
    if case.rules.heads_divisible and heads % ranks:
        yield "impossible", f"the draft model's {heads} heads cannot be divided by {ranks} ranks"


def _memory(case: FeasibilityCase) -> Findings:
    """Weights with some room to spare, then the KV cache of one whole sequence, in the engine's
    share of memory.
    """
    memory = memory_bytes(case.hardware)
    reason = _why_memory_is_not_judged(case, memory)
    if reason:
        yield "fits", reason
    if reason or memory is None or case.estimate.weight_bytes is None:
        return  # the rule ``architecture`` reports unknown weights
    offloaded = (case.settings.cpu_offload_gb or 0) * GIB
    weights = max(0.0, case.estimate.weight_bytes - offloaded)
    # some engines take their share of what the weights leave free, for the KV cache alone
    takes_share_of_free = case.rules.share_of == "free"
    # with a KV cache of fixed size, vLLM ignores the fraction (gpu_worker.py)
    has_fixed_cache = case.settings.kv_cache_memory_bytes is not None and not takes_share_of_free
    fraction = 1.0 if has_fixed_cache or case.fraction is None else case.fraction
    budget = memory if takes_share_of_free else memory * fraction
    weights_text = f"{memory_text(weights)} of weights{_of_draft(case)} on each rank"
    if weights > budget:
        status: FitStatus = "impossible" if _is_weight_proven(case) else "risky"
        yield status, f"{weights_text} do not fit {memory_text(budget)}"
        return
    if weights * 1.05 + 2 * GIB > budget:
        yield "risky", f"{weights_text} leave less than 5 % and 2 GiB of {memory_text(budget)}"
    free = budget - weights
    yield from _kv_memory(case, free * fraction if takes_share_of_free else free)


def _why_memory_is_not_judged(case: FeasibilityCase, memory: int | None) -> str | None:
    """Why memory is not judged; None if it is, or if nothing is known of the weights."""
    hardware = case.hardware
    if hardware.is_cpu:
        return "memory is not judged on cpu"
    moved = case.rules.memory_overrides(case.settings)
    if moved:
        return f"memory is not judged with {', '.join(moved)}"
    if case.estimate.weight_bytes is None or memory:
        return None
    if hardware.accelerator == "any":
        return "memory is not judged: no hardware is named"
    near = ", ".join(nearest(hardware.accelerator)) or "none"
    return (
        f"memory is not judged: accelerator {hardware.accelerator!r} is not in the catalogue "
        f"(nearest: {near}); give memory_gb"
    )


def _of_draft(case: FeasibilityCase) -> str:
    """`` (1.2 GiB of them the draft's)``; empty without a draft."""
    draft = case.draft_bytes
    if draft is None or not draft.weights:
        return ""
    return f" ({memory_text(draft.weights)} of them the draft's)"


def _is_weight_proven(case: FeasibilityCase) -> bool:
    """Whether a rank has at least the predicted bytes of weights. They are a lower bound if there
    is a formula for the language model; the size of a checkpoint is exact.
    """
    requested = case.settings.quantization
    stored = case.facts.quantization
    if not (requested is None or stored is not None or requested in quantization.ONLINE):
        return False
    return _is_size_known(case.facts) and (case.draft is None or _is_size_known(case.draft))


def _is_size_known(facts: ModelFacts) -> bool:
    return facts.language_model_counted or facts.checkpoint_bytes is not None


def _kv_memory(case: FeasibilityCase, free: float) -> Findings:
    """Whether the KV cache has room. ``free``: bytes that the weights leave. Too little room for
    one sequence is impossible if it is certain, and risky otherwise.
    """
    settings = case.settings
    estimate = case.estimate
    length = estimate.max_model_len
    fixed = settings.kv_cache_memory_bytes
    if fixed is not None and fixed > free:
        yield (
            "impossible" if _is_kv_counted(case) else "risky",
            f"kv_cache_memory_bytes={fixed} is more than the {memory_text(free)} "
            "beside the weights",
        )
    if estimate.kv_bytes_per_token is None:
        return
    allocated = estimate.kv_bytes_per_token * (settings.kv_cache_tokens or 0)
    if case.rules.allocates_tokens and allocated > free:
        yield (
            "risky",  # less is allocated if some layers only look at a window
            f"kv_cache_tokens={settings.kv_cache_tokens} needs {memory_text(allocated)}, "
            f"there are {memory_text(free)}",
        )
    available = free if fixed is None else fixed
    bytes_per_token = estimate.kv_bytes_per_token
    # a layer with a window keeps fewer tokens, so a token of the whole cache may take fewer bytes
    if estimate.kv_cache_memory_bytes is not None and estimate.kv_cache_tokens:
        bytes_per_token = estimate.kv_cache_memory_bytes / estimate.kv_cache_tokens
    needed = bytes_per_token * length
    if needed > available:
        is_certain = _is_kv_counted(case) and case.rules.holds_length(settings)
        yield (
            "impossible" if is_certain else "risky",
            f"one sequence of max_model_len={length} needs {memory_text(needed)} of KV cache, "
            f"there are {memory_text(available)}",
        )
    elif estimate.kv_cache_tokens is not None and estimate.kv_cache_tokens < length:
        yield (
            "risky",
            f"about {estimate.kv_cache_tokens} tokens of KV cache may not hold "
            f"max_model_len={length}",
        )


def _is_kv_counted(case: FeasibilityCase) -> bool:
    """Whether formulas give the KV cache of the model and of its draft."""
    is_draft_counted = case.draft is None or case.draft.language_model_counted
    return case.facts.language_model_counted and is_draft_counted


# engines that run a model which they have no code for with the code of transformers, if that can
_BY_TRANSFORMERS = ("vllm", "sglang", "tgi")


def _support(case: FeasibilityCase) -> Findings:
    """Whether the engine has code for the model, by the lists of models in its sources."""
    engine = case.settings.engine
    facts = case.facts
    support = architectures.support(engine)
    if support is None or present_flags(case.settings, ("--model-impl",)):
        return
    chosen = facts.architectures if support.by_class else (facts.config_type,)
    names = [name for name in chosen if name]
    if not names:
        return
    title = ENGINES[engine].title
    if not support.names.intersection(names):
        sentence = f"{title} {support.version} has no code for {names[0]}"
        if engine in _BY_TRANSFORMERS:
            sentence += " of its own; transformers' code may run it"
        yield "risky", sentence
        return
    if support.turbomind is None or case.settings.extra_args.get("--backend") == "pytorch":
        return
    if not support.turbomind.intersection(names):
        yield "fits", f"turbomind has no {names[0]}: {title} runs its pytorch backend instead"


def _architecture(case: FeasibilityCase) -> Findings:
    facts = case.facts
    kind = facts.model_type or "this architecture"
    if not facts.has_parameter_count:
        size = "nothing is known of its weights"
        if facts.checkpoint_bytes:
            size = "its weights are as large as its files"
        yield "fits", f"no formula for {kind}: {size}, nothing is known of its KV cache"
    elif not facts.language_model_counted:
        yield "fits", f"sizes are those of a plain transformer: no formula for {kind}"
    elif not facts.all_parameters_counted and not facts.checkpoint_bytes:
        yield "fits", f"sizes are those of the language model ({kind}) alone"


_RULES: tuple[Callable[[FeasibilityCase], Findings], ...] = (
    _heads,
    _intermediate,
    _kv_heads,
    _stages,
    _experts,
    _quantization,
    _blocks,
    _kernels,
    _capability,
    _sparse_attention,
    _lengths,
    _draft,
    _memory,
    _support,
    _architecture,
)

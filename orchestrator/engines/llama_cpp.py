"""llama.cpp (``llama-server``) at commit 0c1e5709: GGUF models on CPUs and GPUs of one node.

Its KV cache consists of ``max_num_seqs`` equal slots, each rounded up to 256 tokens and limited to
the model's positions, so ``max_num_seqs`` and ``max_model_len`` give its size. (``--kv-unified``
makes one buffer of it, and fails all running requests once that is full.) By default it shrinks
what does not fit into memory; that is switched off, so that the settings asked for are measured.
Its HTTP server opens first and answers 503 while the model loads.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial

from orchestrator.base.errors import FailureKind
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import ADAPTERS_UNLIMITED, Engine, Reported
from orchestrator.engines.extra_args import present_flags
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind, ToolChoice
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from orchestrator.spec.stages import PinnedSettings

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
# in extra_args they may choose the way in which tensor_parallel_size splits, such as `row`, which
# keeps KV and attention on one GPU
SPLIT_FLAGS = ("--split-mode", "-sm")
CHUNK = 512  # default of --ubatch-size
SLOT_STEP = 256  # tokens
PINS = {"max_num_seqs": 32, "max_num_batched_tokens": 2048}
GIVE_SLOTS = "llama.cpp's KV cache is max_num_seqs slots of max_model_len tokens; give these"
# methods of speculative decoding -> llama.cpp's names
TYPES = {
    "draft_model": "draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "ngram": "ngram-simple",
}
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # n-grams with sizes of their own


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    """Pins the size of the KV cache too: it is what the slots need."""
    if not settings.max_model_len:
        return PINS
    slot_tokens = math.ceil(settings.max_model_len / SLOT_STEP) * SLOT_STEP
    slots = settings.max_num_seqs or PINS["max_num_seqs"]
    return PINS | {"kv_cache_tokens": slots * slot_tokens}


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    model = node.model_path or settings.model
    is_file = model.startswith("/") or model.endswith(".gguf")
    argv = [
        command.program(settings, "llama-server"),
        *("--model" if is_file else "--hf-repo", model),
        *("--host", node.bind, "--port", str(node.port), "--alias", _served_name(settings, node)),
        *_devices(settings, hardware, node),
        *("--fit", "off", "--metrics", "--no-webui"),
    ]
    if settings.enable_prefix_caching is False:
        # Without this the host's memory would still cache the content of slots.
        argv += ["--cache-ram", "0"]
    return Command(tuple(argv))


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    extra_body = {"cache_prompt": False} if settings.enable_prefix_caching is False else {}
    return openai(
        prompt_token_ids=True,
        min_tokens_field=None,
        # tools/server/server-common.cpp; it takes no regular expressions
        constraints={
            ConstraintKind.JSON_SCHEMA: ConstraintForm.SCHEMA_FIELD,
            ConstraintKind.CHOICE: ConstraintForm.GBNF,
        },
        tool_choices=_tool_choices(settings),
        # "Cannot use custom grammar constraints with tools."
        free_beside_tools=frozenset({ConstraintKind.CHOICE}),
        extra_body=extra_body,
        images=bool(present_flags(settings, ("--mmproj", "-mm", "--mmproj-url", "-mmu"))),
        adapter_field="lora",
        adapter_values=_adapter_values(settings),
    )


def _tool_choices(settings: EngineSettings) -> frozenset[ToolChoice]:
    """Only its templates in Jinja take tools, which are on by default; a name it takes for `auto`
    (tools/server/server-common.cpp).
    """
    if any(flag.startswith("--no") for flag in present_flags(settings, ("--no-jinja",))):
        return frozenset()
    return ANY_TOOL_CHOICE - {"named"}


def _adapter_values(settings: EngineSettings) -> dict[str, list[dict[str, float]]]:
    """What requests say for each adapter: its number in the order of the command line. Adapters
    that such a request does not name have the scale 0; all have the scale of the command line in a
    request that names none (tools/server/server-context.cpp).
    """
    names = settings.lora_modules or {}
    return {name: [{"id": number, "scale": 1.0}] for number, name in enumerate(names)}


def _served_name(settings: EngineSettings, node: Node) -> str:
    return command.nonce_name(settings, node).replace(",", "-")  # a comma separates names


def _devices(settings: EngineSettings, hardware: Hardware, node: Node) -> list[str]:
    if hardware.is_cpu:
        threads = ["--threads", str(len(node.cores))] if node.cores else []
        return ["--gpu-layers", "0", *threads]
    arguments = ["--gpu-layers", "all"]
    if present_flags(settings, SPLIT_FLAGS):
        return arguments
    if settings.tensor_parallel_size > 1:
        mode = "tensor"
    elif settings.pipeline_parallel_size > 1:
        mode = "layer"
    else:
        mode = "none"
    return [*arguments, "--split-mode", mode]


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.tensor_parallel_size > 1 and settings.pipeline_parallel_size > 1:
        yield "pipeline_parallel_size: llama.cpp splits tensors or layers, not both"
    split_flags = present_flags(settings, SPLIT_FLAGS)
    if settings.tensor_parallel_size == 1 and split_flags:
        yield f"extra_args: {split_flags[0]} is how tensor_parallel_size is done, which is 1"
    if hardware.is_cpu and settings.world_size > 1:
        yield (
            "tensor_parallel_size, pipeline_parallel_size: llama.cpp is one rank on a CPU, not "
            f"{settings.world_size}"
        )
    for name, path in (settings.lora_modules or {}).items():
        if "," in path or ":" in path:
            yield f"lora_modules: {name}: llama.cpp takes no ',' and no ':' in the path of an adapter"
    if not settings.max_model_len:
        yield (
            "max_model_len: llama.cpp cuts its KV cache into max_num_seqs slots; give the "
            "length of one"
        )


def _spec_type(spec: Speculative, settings: EngineSettings) -> str:
    """llama.cpp's name of the method."""
    method = spec.method or ""
    return TYPES.get(method, method)


def _unapplied_adapters(adapters: Mapping[str, str], settings: EngineSettings) -> str:
    """All adapters with the scale 0: with ``--lora`` all together would answer each request that
    names none, ``--lora-init-without-apply`` or not.
    """
    return ",".join(f"{path}:0" for path in adapters.values())


def _model_draft_tokens(spec: Speculative, settings: EngineSettings) -> int | None:
    """Tokens that are drafted at a time, if a model drafts them: another one, or the model's own
    draft layers.
    """
    is_by_model = _spec_type(spec, settings).startswith("draft-")
    return spec.num_speculative_tokens if is_by_model else None


def _lookup_draft_tokens(lookup: str, spec: Speculative, settings: EngineSettings) -> int | None:
    """Tokens that are drafted at a time, if this kind of n-grams is asked for."""
    return spec.num_speculative_tokens if _spec_type(spec, settings) == lookup else None


def _lookup_tokens(lookup: str, spec: Speculative, settings: EngineSettings) -> int | None:
    """Tokens that are looked up at a time, if this kind of n-grams is asked for."""
    return spec.prompt_lookup_max if _spec_type(spec, settings) == lookup else None


def _draft_flags() -> tuple[Flag, ...]:
    """The flags of ``speculative``; each kind of n-grams has two of its own."""
    flags = [
        Flag("--spec-type", value_from=_spec_type),
        Flag("--spec-draft-model", value_from=lambda spec, _: spec.model),
        Flag("--spec-draft-n-max", value_from=_model_draft_tokens),
    ]
    for lookup in LOOKUPS:
        drafted = partial(_lookup_draft_tokens, lookup)
        looked_up = partial(_lookup_tokens, lookup)
        flags.append(Flag(f"--spec-{lookup}-size-m", value_from=drafted))
        flags.append(Flag(f"--spec-{lookup}-size-n", value_from=looked_up))
    return tuple(flags)


def _reported(log: str) -> Reported:
    """Sizes in bytes are logged only with ``extra_args: {--log-verbosity: 4}``, beside a line per
    slot and request.
    """
    # tools/server/server-context.cpp, src/llama-model.cpp and src/llama-kv-cache.cpp
    figures: Reported = {}
    match = re.search(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'", log)
    if match:
        usable_tokens = int(match[2])
        # What a slot has beyond the training context is allocated and never used.
        longer = re.search(r"the slot context \((\d+)\) exceeds the training context", log)
        allocated_tokens = int(longer[1]) if longer else usable_tokens
        slots_share_one_buffer = match[3] == "true"
        buffers = 1 if slots_share_one_buffer else int(match[1])
        figures["kv_cache_tokens"] = buffers * allocated_tokens
        figures["max_model_len"] = usable_tokens
    for name, content in (("weight_bytes", "model"), ("kv_cache_bytes", "KV")):
        largest = _largest_buffer(log, content)
        if largest is not None:
            figures[name] = largest
    return figures


def _largest_buffer(log: str, content: str) -> int | None:
    """Bytes on the device that holds most of the buffers with this content; None if no size is
    logged.
    """
    devices_mib: dict[str, float] = {}
    for buffer, size in re.findall(rf"(\S+) {content} buffer size = +([\d.]+) MiB", log):
        # CPU, CPU_Mapped and CPU_REPACK are one memory
        device = "CPU" if buffer.startswith("CPU") else buffer
        devices_mib[device] = devices_mib.get(device, 0.0) + float(size)
    if not devices_mib:
        return None
    return round(max(devices_mib.values()) * (1 << 20))


ENGINE = Engine(
    name="llama_cpp",
    title="llama.cpp",
    version="0c1e570",
    version_at={"/props": "build_info"},
    metrics={
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "prefix_query_tokens_total": (
            "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"
        ),
        "prefix_hit_tokens_total": "llamacpp:prompt_tokens_cached_total",
        "spec_draft_tokens_total": "llamacpp:spec_decode_num_draft_tokens_total",
        "spec_accepted_tokens_total": "llamacpp:spec_decode_num_accepted_tokens_total",
        "prompt_tokens_total": "llamacpp:prompt_tokens_total",
        "generation_tokens_total": "llamacpp:tokens_predicted_total",
    },
    dialects=_dialects,
    served_name=_served_name,
    flags={
        "max_num_seqs": Flag("--parallel"),
        "kv_cache_tokens": Flag("--ctx-size"),
        "max_num_batched_tokens": (
            Flag("--batch-size"),
            # what one pass computes
            Flag("--ubatch-size", value_from=lambda batch, _: min(batch, CHUNK)),
        ),
        "kv_cache_dtype": (
            Flag("--cache-type-k", choices=KV_TYPES),
            Flag("--cache-type-v", choices=KV_TYPES),
        ),
        "enable_prefix_caching": Flag("--cache-prompt", "switch"),
        "load_format": Flag(
            "--load-mode", choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
        ),
        "speculative": _draft_flags(),
        "lora_modules": Flag("--lora-scaled", value_from=_unapplied_adapters),
    },
    handled_fields=(
        *("max_model_len", "served_model_name"),
        *("tensor_parallel_size", "pipeline_parallel_size"),
    ),
    unsupported=ADAPTERS_UNLIMITED
    | {
        "dtype": "a GGUF file has its own number format",
        "quantization": "a GGUF file has its own quantization: name another file",
        "revision": "name a local GGUF file, or repository:quantization as the model",
        **dict.fromkeys(
            ("gpu_memory_utilization", "kv_cache_tokens", "kv_cache_memory_bytes"), GIVE_SLOTS
        ),
        "enable_chunked_prefill": "llama.cpp always splits prompts above max_num_batched_tokens",
        "enforce_eager": "llama.cpp has no graphs to switch off by a flag",
        "block_size": "llama.cpp keeps its KV cache token by token",
        "hf_overrides": "use extra_args: {--override-kv: key=type:value}",
        "cpu_offload_gb": "llama.cpp counts layers; use extra_args: {--n-cpu-moe: n}",
        "attention_backend": "use extra_args: {--flash-attn: on}",
    },
    reserved=(
        *("--host", "--port", "--api-key", "--api-key-file", "--metrics"),
        *("--model", "-m", "-hf", "--hf-repo"),
        *("--fit", "-fit", "--gpu-layers", "--n-gpu-layers", "-ngl", "--alias", "-a"),
        "--lora-init-without-apply",
    ),
    aliases={
        "-c": "the fields max_model_len and max_num_seqs",
        "-np": "the field max_num_seqs",
        **dict.fromkeys(("--threads", "-t"), "the key cpus_per_device of the hardware"),
        **dict.fromkeys(("-b", "-ub"), "the field max_num_batched_tokens"),
        **dict.fromkeys(("-ctk", "-ctv"), "the field kv_cache_dtype"),
        **dict.fromkeys(("--model-draft", "-md"), "the field speculative"),
        "--lora": "the field lora_modules",
    },
    value_names={
        "kv_cache_dtype": {
            "auto": None,
            "float32": "f32",
            "float16": "f16",
            "bfloat16": "bf16",
            "int8": "q8_0",
            "int4": "q4_0",
        }
    },
    drafts=DraftMethods(
        TYPES,
        flag="--spec-type",
        no_methods=("none",),
        with_model=("draft_model", "eagle3", "draft-simple", "draft-eagle3"),
        without_model=("ngram", "suffix", *LOOKUPS, "ngram-mod", "ngram-cache"),
        optional_fields=("prompt_lookup_max",),
        tokens_flags=("--spec-draft-n-max",),
    ),
    on_cpus=True,
    on_amd=True,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    key_variable="LLAMA_API_KEY",
    rules=ModelRules(
        heads_divisible=False,
        memory_fraction=1.0,
        caps_length=True,
        allocates_tokens=True,
        draft_vocabulary_slack=128,  # common/speculative.cpp: SPEC_VOCAB_MAX_SIZE_DIFFERENCE
        moves_memory=(
            *("--cpu-moe", "-cmoe", "--n-cpu-moe", "-ncmoe", "--override-tensor", "-ot"),
            *("--no-kv-offload", "-nkvo"),
        ),
        other_positions="context_length=",  # --override-kv llama.context_length=int:8192
    ),
    reported=_reported,
    log=LogWords(
        failures={
            FailureKind.OOM_KV: r"failed to allocate buffer for kv cache",
            FailureKind.OOM_LOAD: (
                r"cudaMalloc failed: out of memory|unable to allocate \S+ buffer"
                r"|failed to allocate (?:compute \w+ buffers|buffer of size)"
            ),
            FailureKind.BAD_FLAG: r"error while handling argument",
            FailureKind.BAD_MODEL: r"[Uu]nknown model architecture",
            FailureKind.NO_MODEL: r"error loading model|failed to resolve commit for",
            FailureKind.PORT_TAKEN: r"couldn't bind HTTP server socket",
            FailureKind.BAD_CONFIG: r"failed to create context with model",
        },
        # without a GPU it goes on with the processor
        passing=r"([\d.]+ \w )?ggml_\w+_init: failed to initialize",
        # the only line about a model that is not on the hub
        causes_at_any_level=r"get_repo_files: failed to resolve commit",
    ),
)

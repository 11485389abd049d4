"""SGLang (``sglang serve``) 0.5.23, from its source and from runs, on GPUs and CPUs, on one node or
several.

Its HTTP server opens once the model is loaded, and answers 503 until a request of its own has
succeeded.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.base.errors import FailureKind
from orchestrator.catalog.accelerators import memory_bytes
from orchestrator.catalog.memory import GIB
from orchestrator.catalog.models import ModelFacts
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, LogFigure, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import Engine, Reported, estimates_of_work
from orchestrator.engines.extra_args import present_flags
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, SGLANG_GENERATE, openai
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from orchestrator.spec.stages import PinnedSettings

# Those marked "or 16 bits" also quantize a 16-bit checkpoint while it loads. Of quantized checkpoints
# the two w8a8 take compressed-tensors (configs/model_config.py: _verify_quantization); what the
# others take is in catalog/quantization.py.
QUANTIZATION = (
    "awq",
    "awq_marlin",
    "gptq",
    "gptq_marlin",
    "fp8",  # or 16 bits
    "mxfp8",  # or 16 bits
    "bitsandbytes",  # or 16 bits
    "gguf",
    "modelopt",
    "modelopt_fp8",
    "modelopt_fp4",
    "modelopt_mixed",
    "nvfp4_online",  # or 16 bits
    "petit_nvfp4",
    "w8a8_int8",  # would read 16-bit values as integers (quantization/w8a8_int8.py)
    "w8a8_fp8",  # or 16 bits
    "moe_wna16",
    "w4afp8",
    "mxfp4",
    "auto-round",
    "auto-round-int8",
    "compressed-tensors",
    "quark",
    "quark_int4fp8_moe",
    "quark_mxfp4",  # or 16 bits
    "humming",
    "unquant",
)
KV_TYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")
POLICIES = (
    *("fcfs", "lpm", "random", "dfs-weight", "lof", "priority", "routing-key", "hrrn"),
    "shortest-prefill-first",
)
LOAD_FORMATS = (
    *("auto", "pt", "safetensors", "npcache", "dummy", "sharded_state", "presharded", "gguf"),
    *("bitsandbytes", "mistral", "layered", "remote", "remote_instance", "fastsafetensors"),
    *("instanttensor", "runai_streamer", "expert_pack", "flash_rl"),
)
# Algorithms that draft a block at once instead of step by step.
BLOCK_ALGORITHMS = ("DFLASH", "DSPARK")
ALGORITHMS = {
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}
# Streams of chats have no return_token_ids, but running counts.
# Constraints: entrypoints/openai/serving_completions.py and protocol.py; adapters:
# entrypoints/openai/serving_base.py: _resolve_lora_path
CONSTRAINTS = {
    ConstraintKind.JSON_SCHEMA: ConstraintForm.RESPONSE_FORMAT,
    ConstraintKind.REGEX: ConstraintForm.REGEX_FIELD,
    ConstraintKind.CHOICE: ConstraintForm.REGEX_FIELD,
}
_WITH_TOKEN_IDS = openai(
    prompt_token_ids=True,
    return_token_ids=True,
    cache_salt=True,
    adapter_field="lora_path",
    constraints=CONSTRAINTS,
)
_WITH_RUNNING_USAGE = openai(
    continuous_usage=True,
    cache_salt=True,
    adapter_field="lora_path",
    constraints=CONSTRAINTS,
    tool_choices=ANY_TOOL_CHOICE,
)
DIALECTS = {
    "completions": _WITH_TOKEN_IDS["completions"],
    "chat": _WITH_RUNNING_USAGE["chat"],
    "native": replace(SGLANG_GENERATE, adapter_field="lora_path"),
}
# "[2026-11-21 18:12:51 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, K size: 1.00
# GB, V size: 1.00 GB". Groups: the rank (" TP0") and the sizes.
KV_CACHE_LINE = re.compile(
    r"^\[\S+ [\d:.]+([^\]]*)\] .*KV [Cc]ache (?:is )?allocated\. dtype: .*?#tokens: \d+, (.*)", re.M
)
_read_figures = command.log_reader(
    {
        "kv_cache_tokens": LogFigure(r"\bmax_total_num_tokens=(\d+)", int),
        "max_model_len": LogFigure(r"\bmax_total_num_tokens=\d+, .*\bcontext_len=(\d+)", int),
        "weight_bytes": LogFigure(
            r"Load weight end\. elapsed=.*mem usage=([\d.]+) GB", command.bytes_of_gib
        ),
    }
)


@dataclass(frozen=True, slots=True)
class MemoryClass:
    """SGLang's choices for devices of one size."""

    below_gib: float
    prefill_tokens: int
    graph_of_few_ranks: int  # sequences of the largest decode graph, with up to 3 tensor ranks
    graph_of_many_ranks: int  # the same with 4 or more


# 0.5.23 ``arg_groups/memory_hook.py: handle_gpu_memory_settings``
MEMORY_CLASSES = (
    MemoryClass(20, 2048, 8, 8),
    MemoryClass(35, 4096, 48, 160),
    MemoryClass(60, 4096, 32, 160),
    MemoryClass(160, 8192, 256, 512),
    MemoryClass(math.inf, 16384, 512, 512),
)
PREFILL_GRAPHS = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
DECODE_GRAPHS = (
    "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs-decode",
    "--cuda-graph-max-bs",
    "--cuda-graph-bs",
)
# the first release with --attn-dp-size; before it: --dp-size and --enable-dp-attention
ATTN_DP_SIZE_SINCE = (0, 5, 23)
TRANSFER_BACKEND = "--disaggregation-transfer-backend"
BOOTSTRAP_PORT = "--disaggregation-bootstrap-port"
# Seconds of a stage of requests. Of the stages that it has, prefill_forward goes from a request's
# first step to its first token (observability/req_time_stats.py: set_prefill_finished_time). No stage
# goes from there to the last token: decode_loop, which is one step, is traced and not observed.
STAGE_TIME = "sglang:per_stage_req_latency_seconds"
PREFILLS = 'stage="prefill_forward",pp_rank="0",tp_rank="0"'
# methods of checkpoints for which --quantization has no effect
FIXED_METHODS = frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed"})
# method of a checkpoint -> other values that --quantization may have for it
OTHER_METHODS = {
    "awq": ("awq_marlin", "moe_wna16"),
    "gptq": ("gptq_marlin", "moe_wna16"),
    "fp8": ("modelopt_fp4", "nvfp4_online"),
    "modelopt_mxfp8": ("mxfp8", "modelopt"),
    "compressed-tensors": ("w8a8_int8", "w8a8_fp8", "auto-round-int8"),
}
ATTENTION_FLAGS = ("--attn-dp-size", "--attention-data-parallel-size")


def _memory_class(memory: float) -> MemoryClass:
    """SGLang's choices for a device with this many bytes."""
    for choices in MEMORY_CLASSES:
        if memory < choices.below_gib * GIB:
            return choices
    raise ValueError(f"{memory} is no size of a memory")


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    pins = command.PINNED_BATCH | command.adapters_are_on(settings)
    memory = memory_bytes(hardware)
    if memory is None:
        return pins
    return pins | {"max_num_batched_tokens": _memory_class(memory).prefill_tokens}


def memory_fraction(settings: EngineSettings, facts: ModelFacts, memory: int, role: str) -> float:
    """Share of a GPU's memory for weights and KV cache, by SGLang's own estimate of activations and
    graphs (``handle_gpu_memory_settings`` and ``reserve_for_graph_mb``). Prefill replicas have no
    decode graphs; decode replicas have neither prefill graphs nor images.
    """
    choices = _memory_class(memory)
    has_prefills = role != "decode"
    has_decodes = role != "prefill"
    chunk = settings.max_num_batched_tokens or choices.prefill_tokens
    sequences = _decode_graph_sequences(settings, choices)
    step_tokens = chunk
    if not has_prefills:
        step_tokens = _decode_step_tokens(settings, sequences)
    ranks = _tensor_ranks(settings) * settings.pipeline_parallel_size
    attention_ranks = _attention_ranks(settings)
    has_graphs = not settings.enforce_eager
    reserved_mib = 512 + 1.5 * max(step_tokens, 2048)
    reserved_mib += 1024 / 8 * ranks
    if attention_ranks > 1 and has_decodes:
        reserved_mib += sequences * attention_ranks * (4.5 if sequences > 300 else 3)
    if has_graphs and has_decodes:
        reserved_mib += 2 * sequences
    if has_graphs and has_prefills and settings.pipeline_parallel_size == 1:
        reserved_mib += _prefill_graphs_mib(settings, facts, chunk)
    if memory > 60 * GIB:
        reserved_mib = max(reserved_mib, 10 * 1024)
    if has_graphs and has_decodes and _uses_deepep(settings):
        reserved_mib += 2048
    share = max(0.0, round(1 - reserved_mib * 2**20 / memory, 3))
    if has_prefills:
        share *= _image_encoder_factor(facts)
    return share


def _decode_graph_sequences(settings: EngineSettings, choices: MemoryClass) -> int:
    """Sequences of the largest decode graph."""
    from_extra_args = _decode_graph_of_extra_args(settings)
    if from_extra_args:
        return from_extra_args
    if _tensor_ranks(settings) < 4:
        largest = choices.graph_of_few_ranks
    else:
        largest = choices.graph_of_many_ranks
    return min(largest, settings.max_num_seqs or largest)


def _decode_step_tokens(settings: EngineSettings, graph_sequences: int) -> int:
    """Tokens of the largest step of a decode replica."""
    sequences = settings.max_num_seqs or graph_sequences
    if settings.speculative is None:
        return sequences
    return sequences * _verified_tokens(settings.speculative, settings)


def _prefill_graphs_mib(settings: EngineSettings, facts: ModelFacts, chunk: int) -> int:
    """MiB for the graphs of prefills up to a chunk."""
    if facts.shape.has_latent_attention:
        reserved_mib = 1536
    else:
        sizes = [*PREFILL_GRAPHS, *range(4608, chunk + 1, 512)]
        reserved_mib = 8 * len([size for size in sizes if size <= chunk])
    if _uses_deepep(settings):
        reserved_mib += 1024
    return reserved_mib


def _uses_deepep(settings: EngineSettings) -> bool:
    return settings.extra_args.get("--moe-a2a-backend") == "deepep"


def _decode_graph_of_extra_args(settings: EngineSettings) -> int:
    """Sequences of the largest decode graph that ``extra_args`` ask for; 0 if they ask for none."""
    sizes: list[str] = []
    for name in present_flags(settings, DECODE_GRAPHS):
        value = settings.extra_args[name]
        sizes += map(str, value if isinstance(value, list) else [value])
    return max((int(size) for size in sizes if size.isdigit()), default=0)


def _image_encoder_factor(facts: ModelFacts) -> float:
    """What the share is multiplied by for a model with an image encoder, by the encoder's size
    (``adjust_mem_fraction_for_vlm``); 1 for other models.
    """
    if facts.vision_size is None:
        return 1.0
    factor = 1.1 - 0.1 * facts.vision_size / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, factor))


def _attention_ranks(settings: EngineSettings) -> int:
    """Data-parallel ranks of attention within the tensor-parallel group. They correspond to vLLM's
    data parallelism with expert parallelism. Without expert parallelism, SGLang's data-parallel
    ranks are whole replicas.
    """
    return settings.data_parallel_size if settings.enable_expert_parallel else 1


def _tensor_ranks(settings: EngineSettings) -> int:
    """SGLang's ``tp_size``, which counts the ranks of all attention groups."""
    return settings.tensor_parallel_size * _attention_ranks(settings)


def _data_parallel_flags(settings: EngineSettings) -> list[str]:
    """Flags for data parallelism, of attention or of whole replicas, in the release that is named
    or installed, else in the newest.
    """
    size = _attention_ranks(settings)
    if size == 1:
        return ["--dp-size", str(settings.data_parallel_size)]
    release = command.release(settings, "sglang", 3)
    if release and release < ATTN_DP_SIZE_SINCE:
        return ["--dp-size", str(size), "--enable-dp-attention"]
    return ["--attn-dp-size", str(size)]


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *command.with_key(settings, "sglang.cli.main", "main", "--api-key"),
        *("serve", "--model-path", node.model_path or settings.model),
        *("--host", node.bind, "--port", str(node.http_port)),
        *("--served-model-name", _served_name(settings, node)),
        *_data_parallel_flags(settings),
        *command.rendezvous(settings, node),
    ]
    env = {"SGL_FORCE_SHUTDOWN": "1"}  # without it, stopping waits for requests without a limit
    if node.role:
        argv += ["--disaggregation-mode", node.role, BOOTSTRAP_PORT, str(node.rpc_port)]
        # its address for the other role; by default that of the first interface
        env["SGLANG_HOST_IP"] = node.host
    argv += ["--enable-metrics", "--enable-cache-report", "--sampling-defaults", "openai"]
    if hardware.is_cpu:
        argv += ["--device", "cpu"]
        env |= _on_cpu(settings, node)
    notes: list[str] = []
    if _attention_ranks(settings) > 1:
        notes.append(
            "max_num_seqs and max_num_batched_tokens are of all attention ranks together in SGLang"
        )
        if not command.release(settings, "sglang", 3):
            oldest = ".".join(map(str, ATTN_DP_SIZE_SINCE))
            notes.append(command.assumed_release_note(f"{oldest} or a later one"))
    return Command(tuple(argv), env, notes=tuple(notes))


def _on_cpu(settings: EngineSettings, node: Node) -> dict[str, str]:
    """Variables for CPUs. SGLang binds ranks to cores only on CPUs with AMX; elsewhere each rank
    would have a thread for every core of the node.
    """
    env = {"SGLANG_USE_CPU_ENGINE": "1"}  # without it ``--device cpu`` runs the code for GPUs
    groups = command.core_groups(settings, node)
    if groups:
        of_first_rank = groups.split("|")[0].split(",")
        env["SGLANG_CPU_OMP_THREADS_BIND"] = groups
        env["OMP_NUM_THREADS"] = str(len(of_first_rank))
    return env


def _served_name(settings: EngineSettings, node: Node) -> str:
    # ':' separates names of LoRA adapters
    return command.nonce_name(settings, node).replace(":", "-")


def _chunk(tokens: int, settings: EngineSettings) -> int:
    """Tokens of a chunk of a prompt; -1: prompts are not split."""
    return -1 if settings.enable_chunked_prefill is False else tokens


def _disabled(eager: bool, settings: EngineSettings) -> str | None:
    """SGLang's word for no CUDA graphs."""
    return "disabled" if eager else None


def _algorithm(spec: Speculative, settings: EngineSettings) -> str:
    """SGLang's name of the method, in upper case."""
    method = spec.method or ""
    return ALGORITHMS.get(method, method).upper()


def _steps(spec: Speculative, settings: EngineSettings) -> int | None:
    """Steps of a draft that is a chain or a tree of tokens; None for n-grams and blocks."""
    if _algorithm(spec, settings) in ("NGRAM", *BLOCK_ALGORITHMS):
        return None
    return spec.num_speculative_tokens


def _branches(spec: Speculative, settings: EngineSettings) -> int | None:
    """Branches of each step: 1 makes a chain."""
    if _steps(spec, settings) is None:
        return None
    return spec.eagle_topk or 1


def _verified_tokens(spec: Speculative, settings: EngineSettings) -> int:
    """Tokens that are verified at a time: of a tree as many as the settings say, of a chain or
    block the drafts and the last accepted token.
    """
    if spec.num_draft_tokens:
        return spec.num_draft_tokens
    if _algorithm(spec, settings) == "NGRAM":
        return spec.num_speculative_tokens
    return spec.num_speculative_tokens + 1


def _tree_problems(spec: Speculative) -> Iterator[str]:
    is_tree = spec.eagle_topk is not None and spec.eagle_topk > 1
    if is_tree and spec.num_draft_tokens is None:
        yield "speculative: eagle_topk above 1 makes a tree, which needs num_draft_tokens"
    if not is_tree and spec.num_draft_tokens is not None:
        yield (
            "speculative: num_draft_tokens is for trees (eagle_topk above 1); of a chain it "
            "follows from num_speculative_tokens"
        )


def _accepts_method(wanted: str, stored: str) -> bool:
    """Whether ``configs/model_config.py: _verify_quantization`` accepts a --quantization for a
    checkpoint that is stored with a method.

    ModelOpt's checkpoints keep their own method, whatever is wanted. But nvfp4_online would
    quantize again what modelopt_fp4 has quantized.
    """
    if stored in FIXED_METHODS:
        return not (wanted == "nvfp4_online" and stored == "modelopt_fp4")
    if wanted == "humming":
        return stored != "mxfp4"
    return wanted in (stored, "quark_mxfp4", *OTHER_METHODS.get(stored, ()))


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.quantization in ("gptq", "gptq_marlin") and hardware.is_cpu:
        yield "quantization: leave gptq out, on a CPU SGLang takes it from the checkpoint"
    has_whole_ranks = settings.data_parallel_size > 1 and not settings.enable_expert_parallel
    if has_whole_ranks and settings.nnodes > 1:
        yield (
            "data_parallel_size: SGLang runs whole data-parallel ranks on one node only; use "
            "replicas"
        )
    attention_flags = present_flags(settings, ATTENTION_FLAGS)
    if settings.data_parallel_size > 1 and attention_flags:
        yield (
            f"extra_args: {attention_flags[0]}: SGLang has it or data_parallel_size; "
            "enable_expert_parallel gives both"
        )
    if settings.cpu_offload_gb and settings.cpu_offload_gb != int(settings.cpu_offload_gb):
        yield f"cpu_offload_gb: SGLang takes whole GB, not {settings.cpu_offload_gb}"
    page = settings.block_size
    tokens = settings.max_num_batched_tokens
    splits_prompts = settings.enable_chunked_prefill is not False
    if splits_prompts and page and tokens and tokens % page:
        yield (
            f"max_num_batched_tokens: {tokens} must be a multiple of block_size ({page}) in SGLang"
        )
    if hardware.is_cpu and not settings.kv_cache_tokens:
        yield (
            "kv_cache_tokens: on a CPU SGLang fills the node's memory with its KV cache unless "
            "this says its size"
        )
    if settings.speculative:
        yield from _tree_problems(settings.speculative)
    if hardware.is_cpu and settings.speculative:
        yield "speculative: SGLang's kernels for it are not part of its CPU installation"
    if hardware.is_cpu and settings.cpu_offload_gb:
        yield "cpu_offload_gb: there is nothing to offload from on a CPU"


def _role_problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    prefill, decode = settings.engines.values()
    for name in ("block_size", "kv_cache_dtype"):
        of_prefill = getattr(prefill, name)
        of_decode = getattr(decode, name)
        # where a role leaves it open, SGLang may choose what the other role has
        is_left_open = not of_prefill or not of_decode or "auto" in (of_prefill, of_decode)
        if of_prefill != of_decode and not is_left_open:
            yield (
                f"{name}: {of_prefill} for prefill, {of_decode} for decode; "
                "SGLang hands over KV caches of one form only"
            )
    of_prefill = _transfer_backend(prefill)
    of_decode = _transfer_backend(decode)
    if "fake" in (of_prefill, of_decode):
        yield f"extra_args: {TRANSFER_BACKEND} fake hands nothing over"
    elif of_prefill.removesuffix("_tcp") != of_decode.removesuffix("_tcp"):
        yield f"extra_args: {TRANSFER_BACKEND}: {of_prefill} for prefill, {of_decode} for decode"
    # as runs showed: decode replicas need CUDA, prefill replicas register GPU memory
    if hardware.is_cpu:
        yield "SGLang hands KV caches over between GPUs only, not on CPUs"


def _transfer_backend(settings: EngineSettings) -> str:
    """What hands KV caches over."""
    return str(settings.extra_args.get(TRANSFER_BACKEND, "mooncake"))


def _reported(log: str) -> Reported:
    # managers/scheduler.py, model_executor/model_runner.py, mem_cache/memory_pool.py and
    # kv_pool_runtime.py
    figures: Reported = _read_figures(log)
    caches_gib: dict[str, float] = {}  # by rank; a hybrid model and a draft have one more each
    for rank, sizes_text in KV_CACHE_LINE.findall(log):
        sizes_gib = map(float, re.findall(r"size: ([\d.]+) GB", sizes_text))
        caches_gib[rank] = caches_gib.get(rank, 0.0) + sum(sizes_gib)
    if caches_gib:
        figures["kv_cache_bytes"] = command.bytes_of_gib(max(caches_gib.values()))
    return figures


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    ready_path="/ready",  # /health would generate a token at every poll
    ready_fallbacks=("/health", "/get_model_info", "/v1/models"),  # /ready is there since 0.5.20
    version_at={"/server_info": "version", "/get_server_info": "version"},
    # Each node has the series of its own schedulers, and one scheduler of each attention rank has
    # series (metrics_collector.py: init_new; utils/common.py: launch_dummy_health_check_server).
    metrics_on_every_rank=lambda settings: _attention_ranks(settings) > 1,
    reset_path="/flush_cache",
    metrics={
        # Every pipeline stage reports the same requests, and every tensor-parallel rank the same
        # queue times; with priorities there is one more series for each.
        "running": 'sglang:num_running_reqs{pp_rank="0",priority=""}',
        "waiting": 'sglang:num_queue_reqs{pp_rank="0",priority=""}',
        "kv_usage": "sglang:token_usage",
        "preemptions_total": 'sglang:num_retracted_requests_total{pp_rank="0"}',
        "prefix_query_tokens_total": "sglang:prompt_tokens_total",  # counts cached tokens too
        "prefix_hit_tokens_total": "sglang:cached_tokens_total",
        "queue_time_s_sum": 'sglang:queue_time_seconds_sum{pp_rank="0",tp_rank="0"}',
        "queue_time_count": 'sglang:queue_time_seconds_count{pp_rank="0",tp_rank="0"}',
        "ttft_s_sum": "sglang:time_to_first_token_seconds_sum",
        "ttft_count": "sglang:time_to_first_token_seconds_count",
        "prefill_time_s_sum": f"{STAGE_TIME}_sum{{{PREFILLS}}}",
        "prefill_time_count": f"{STAGE_TIME}_count{{{PREFILLS}}}",
        "prompt_tokens_total": "sglang:prompt_tokens_total",
        "generation_tokens_total": "sglang:generation_tokens_total",
        "spec_accept_length": "sglang:spec_accept_length",
        "spec_accept_share": "sglang:spec_accept_rate",
    }
    | estimates_of_work("sglang:"),
    dialects=lambda settings: DIALECTS,
    served_name=_served_name,
    flags={
        "revision": Flag("--revision"),
        "tokenizer": Flag("--tokenizer-path"),
        "guided_decoding_backend": Flag("--grammar-backend"),
        "trust_remote_code": Flag("--trust-remote-code", "bare"),
        "hf_overrides": Flag("--json-model-override-args", "json"),
        "tensor_parallel_size": Flag(
            "--tp-size", value_from=lambda size, settings: _tensor_ranks(settings)
        ),
        "pipeline_parallel_size": Flag("--pp-size"),
        "enable_expert_parallel": Flag(
            "--ep-size", value_from=lambda on, settings: _tensor_ranks(settings) if on else None
        ),
        "dtype": Flag(
            "--dtype", choices=("auto", "half", "float16", "bfloat16", "float", "float32")
        ),
        "quantization": Flag("--quantization", choices=QUANTIZATION),
        "kv_cache_dtype": Flag("--kv-cache-dtype", choices=KV_TYPES),
        "max_model_len": Flag("--context-length"),
        "max_num_seqs": Flag("--max-running-requests"),
        "max_num_batched_tokens": (
            Flag("--max-prefill-tokens"),
            Flag("--chunked-prefill-size", value_from=_chunk),
        ),
        "max_num_queued_reqs": Flag("--max-queued-requests"),
        "scheduling_policy": Flag("--schedule-policy", choices=POLICIES),
        "enable_prefix_caching": Flag("--disable-radix-cache", "off"),
        "stream_interval": Flag("--stream-interval"),
        "scheduler_recv_interval": Flag("--scheduler-recv-interval"),
        # weights and KV cache, of the whole memory
        "gpu_memory_utilization": Flag("--mem-fraction-static"),
        "kv_cache_tokens": Flag("--max-total-tokens"),
        "block_size": Flag("--page-size"),
        "cpu_offload_gb": Flag(
            "--cpu-offload-gb", value_from=lambda size, settings: int(size) or None
        ),
        "enforce_eager": (
            Flag("--cuda-graph-backend-decode", value_from=_disabled),
            Flag("--cuda-graph-backend-prefill", value_from=_disabled),
        ),
        "load_format": Flag("--load-format", choices=LOAD_FORMATS),
        "attention_backend": Flag("--attention-backend"),
        "speculative": (
            Flag("--speculative-algorithm", value_from=_algorithm),
            Flag("--speculative-draft-model-path", value_from=lambda spec, settings: spec.model),
            Flag("--speculative-num-steps", value_from=_steps),
            Flag("--speculative-eagle-topk", value_from=_branches),
            Flag("--speculative-num-draft-tokens", value_from=_verified_tokens),
        ),
        "enable_lora": Flag("--enable-lora", "bare"),
        "lora_modules": Flag("--lora-paths", "list", value_from=command.adapter_pairs),
        "max_loras": Flag("--max-loras-per-batch"),
        "max_lora_rank": Flag("--max-lora-rank"),
    },
    handled_fields=("served_model_name", "enable_chunked_prefill", "data_parallel_size"),
    unsupported={
        "kv_transfer_config": f"SGLang has {TRANSFER_BACKEND} instead; use roles and extra_args"
    },
    reserved=(
        *("--host", "--port", "--api-key", "--model-path", "--model"),
        *("--enable-metrics", "--sampling-defaults", "--device", "--enable-dp-attention"),
        *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"),
        *("--disaggregation-mode", BOOTSTRAP_PORT),
    ),
    aliases=dict.fromkeys(("--dp", "--dp-size"), "the field data_parallel_size")
    | {
        "--ep": "the field enable_expert_parallel",
        "--expert-parallel-size": "the field enable_expert_parallel",
        "--speculative-draft-model": "the field speculative",
    },
    value_names={
        "kv_cache_dtype": {"fp8": "fp8_e4m3"},
        "quantization": {"int8": "w8a8_int8", "fp8_per_channel": "w8a8_fp8", "gptq": "gptq_marlin"},
    },
    drafts=DraftMethods(
        ALGORITHMS,
        flag="--speculative-algorithm",
        with_model=("draft_model", "eagle", "eagle3", "STANDALONE", "DFLASH", "dflash"),
        without_model=("ngram", "NGRAM", "UNO"),
        optional_fields=("eagle_topk", "num_draft_tokens"),
        tokens_flags=("--speculative-num-steps", "--speculative-num-draft-tokens"),
    ),
    plugins_variable="SGLANG_PLUGINS",
    on_cpus=True,
    on_amd=True,
    several_nodes=True,
    routers=("sglang_router",),
    role_problems=_role_problems,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    key_variable=command.KEY_VARIABLE,
    follower_grace_s=0.5,  # a follower ignores SIGTERM and waits for rank 0
    rules=ModelRules(
        refuses_longer=True,
        longer_variable="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        memory_fraction=memory_fraction,
        share_of="static",
        holds_length=lambda settings: False,
        whole_replicas=True,
        # models/deepseek_v2.py; not with --moe-dense-tp-size 1 and some all-to-all backends
        shares_dense=True,
        whole_dense=("--moe-dense-tp-size",),  # SGLang takes no other value than 1 and its default
        moves_memory=(
            *("--offload-group-size", "--offload-num-in-group"),
            *("--dcp-size", "--decode-context-parallel-size", "--speculative-algorithm"),
        ),
        whole_attention=ATTENTION_FLAGS,
        accepts_method=_accepts_method,
        fixed_methods=FIXED_METHODS,
        experts_while_loading=frozenset({"modelopt_fp4"}),
        unknown_methods=frozenset({"fbgemm_fp8", "torchao"}),
        # configs/model_config.py: rocm_supported_quantization
        not_on_amd=frozenset(
            {
                *("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "nvfp4_online"),
                *("w4afp8", "w8a8_int8", "gptq", "gptq_marlin", "awq_marlin", "moe_wna16"),
                *("bitsandbytes", "humming"),
            }
        ),
        stored_methods=frozenset({"w8a8_int8"}),
        # sgl-kernel/csrc/gemm/int8_gemm_kernel.cu
        kernels_on=dict.fromkeys(("int8", "w8a8_int8"), range(100)),
        min_capability={  # layers/quantization: get_min_capability; GPTQ is run by gptq_marlin
            **dict.fromkeys(("awq_marlin", "gptq", "gptq_marlin", "mxfp4"), 80),
            **dict.fromkeys(("fp8", "modelopt_fp4", "modelopt_mixed"), 80),
            **dict.fromkeys(("w8a8_fp8", "modelopt", "modelopt_fp8"), 89),
            **dict.fromkeys(("w4afp8", "petit_nvfp4"), 90),
            **dict.fromkeys(("mxfp8", "modelopt_mxfp8", "nvfp4_online"), 100),
            **dict.fromkeys(("awq", "w8a8_int8"), 75),
            **dict.fromkeys(("bitsandbytes", "compressed-tensors", "quark", "moe_wna16"), 70),
            **dict.fromkeys(("gguf", "auto-round"), 60),
        },
        # layers/quantization: get_supported_act_dtypes; all others take 16 bits only
        float32_methods=frozenset({"bitsandbytes", "gguf"}),
    ),
    reported=_reported,
    log=LogWords(
        failures={
            FailureKind.GPU_DIRTY: r"Some GPUs may be occupied by other processes",
            FailureKind.OOM_KV: (
                r"Not enough memory\. Please try to increase --mem-fraction-static"
                r"|SWA pool \(\d+ tokens\) cannot hold even one request"
            ),
            FailureKind.OOM_LOAD: r"(?:Prefill|Decode) out of memory",
            FailureKind.BAD_QUANT: (
                r"does not match the quantization|is not supported for quantization method"
                r"|not supported for the current GPU\. Minimum capability"
                r"|For quantized MoE models, please make sure"
            ),
            FailureKind.BAD_MODEL: r"Model architectures .* are not supported",
            FailureKind.NO_MODEL: r"Cannot find any model weights with",
            FailureKind.PORT_TAKEN: r"at \d+ is not available in \d+ seconds",
            FailureKind.BAD_CONFIG: r"only supports sm\d+",
            FailureKind.ENGINE_DEAD: (
                r"Received sigquit|SIGQUIT received|watchdog timeout .*soft=False"
                r"|Subprocess \S+ \(pid=\d+\) crashed|could finish the model loading"
                r"|Initialization failed\. warmup error"
            ),
        },
        # Its lines have no level; causes are tracebacks, which have no time, and ERRORs of its HTTP
        # server.
        passing=r"\[\d{4}-\d\d-\d\d [^]]+\] (?!(\[\d+\] \[)?(ERROR|CRITICAL)\b)",
        consequences=r"could finish the model loading",
    ),
)

"""vLLM (``vllm serve``) with the flags of 0.33 and 0.32, on GPUs and CPUs, on one node or several
by its own multi-node launch.

tests/contract/test_engine_flags.py checks every flag used here against vLLM's parser.
"""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from orchestrator.base.errors import FailureKind
from orchestrator.catalog.accelerators import find, memory_bytes
from orchestrator.catalog.memory import DEFAULT_UTILIZATION, GIB
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, LogFigure, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import Engine, estimates_of_work, named_as_vllm
from orchestrator.engines.extra_args import present_flags
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import CpuKernels, ModelRules
from orchestrator.spec.constraint import ConstraintForm, ToolChoice, all_kinds
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from orchestrator.spec.stages import PinnedSettings

DAY_S = 86_400
# vLLM's own choices by hardware (0.32 ``arg_utils.py: get_batch_defaults``), made explicit: for a
# CPU rank, for A100s and GPUs below 70 GiB, and for GPUs from 160 GiB; all others get
# command.PINNED_BATCH.
CPU_BATCH = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
SMALL_BATCH = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
LARGE_BATCH = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
CPU_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # GiB; overrides --kv-cache-memory-bytes
CPU_KV_BYTES = 1 << 30  # per rank; by default every rank takes 92 % of the node's memory
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
# Methods of checkpoints that override --quantization; and for other methods, the further values
# that --quantization may have.
FIXED_METHODS = frozenset(
    {"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto-round", "mxfp4"}
)
KERNELS = {
    "awq": ("auto_awq", "awq_marlin", "marlin", "moe_wna16"),
    "gptq": ("auto_gptq", "gptq_marlin", "marlin", "moe_wna16"),
    "fp8": ("deepseek_v4_fp8",),
}
# Fields whose flags have their names.
VALUE_FIELDS = (
    *("revision", "tokenizer"),
    *("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
    *("dtype", "quantization", "kv_cache_dtype"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs"),
    *("stream_interval", "gpu_memory_utilization", "kv_cache_memory_bytes", "block_size"),
    *("cpu_offload_gb", "load_format", "attention_backend", "scheduling_policy"),
    *("max_loras", "max_lora_rank"),
)
SWITCH_FIELDS = (
    *("trust_remote_code", "enable_expert_parallel", "enable_chunked_prefill"),
    *("enable_prefix_caching", "enforce_eager", "enable_lora"),
)
# Words in names of models whose format, Harmony, brings a parser of tools.
BRING_A_TOOL_PARSER = ("gpt-oss", "gpt_oss")
JSON_FIELDS = ("hf_overrides", "kv_transfer_config")
# Tokens of a KV block; kv_cache_tokens are turned into blocks.
GPU_BLOCK = 16
CPU_BLOCK = 128


def _batch(hardware: Hardware) -> dict[str, int]:
    """Sequences and tokens of a batch that vLLM would choose for this hardware."""
    if hardware.is_cpu:
        return CPU_BATCH
    memory = memory_bytes(hardware)
    if memory is None:
        return command.PINNED_BATCH
    if memory >= 160 * GIB:
        return LARGE_BATCH
    device = find(hardware.accelerator)
    is_a100 = device is not None and "A100" in device.name
    if is_a100 or memory < 70 * GIB:
        return SMALL_BATCH
    return command.PINNED_BATCH


def batch_pins(settings: EngineSettings, batch: dict[str, int]) -> dict[str, int]:
    """``batch`` for the sizes that the settings leave open.

    A size that they set may change the other.
    """
    sequences = batch["max_num_seqs"]
    tokens = batch["max_num_batched_tokens"]
    if settings.max_num_batched_tokens:
        sequences = min(sequences, settings.max_num_batched_tokens)
    if settings.max_num_seqs:
        tokens = max(tokens, settings.max_num_seqs)
    if settings.enable_chunked_prefill is False and settings.max_model_len:
        tokens = max(tokens, settings.max_model_len)
    return {**batch, "max_num_seqs": sequences, "max_num_batched_tokens": tokens}


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    pins = batch_pins(settings, _batch(hardware)) | command.adapters_are_on(settings)
    is_size_given = settings.gpu_memory_utilization or settings.env.get(CPU_KV_VARIABLE)
    if hardware.is_cpu and not is_size_given:
        pins["kv_cache_memory_bytes"] = CPU_KV_BYTES
    if settings.kv_cache_tokens:
        pins["block_size"] = CPU_BLOCK if hardware.is_cpu else GPU_BLOCK
    return pins


def _cache_block(settings: EngineSettings, hardware: Hardware) -> int:
    return settings.block_size or (CPU_BLOCK if hardware.is_cpu else GPU_BLOCK)


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *(command.program(settings, "vllm"), "serve", node.model_path or settings.model),
        *_server(settings, node),
        *_nodes(settings, node),
        *_transfer(settings, node),
        # a model's own sampling defaults would change lengths and speed
        *("--generation-config", "vllm"),
        *("--disable-uvicorn-access-log", "--enable-prompt-tokens-details"),
    ]
    # The variable counts only if the experiment file sets it.
    return Command(tuple(argv), _environment(settings, hardware, node), hides=(CPU_KV_VARIABLE,))


def _server(settings: EngineSettings, node: Node) -> list[str]:
    """Where rank 0 listens, and the names of the model: the launch's, then the user's."""
    arguments: list[str] = []
    if node.rank == 0:
        arguments += ["--host", node.bind, "--port", str(node.port)]
    own_name = command.nonce_name(settings, node)
    arguments += ["--served-model-name", own_name]
    if settings.served_model_name and settings.served_model_name != own_name:
        arguments.append(settings.served_model_name)
    return arguments


def _nodes(settings: EngineSettings, node: Node) -> list[str]:
    """vLLM's multi-node launch: the same command on every node, with HTTP on the first only."""
    size = settings.data_parallel_size
    nnodes = settings.nnodes
    arguments = ["--data-parallel-size", str(size)] if size > 1 else []
    if nnodes == 1:
        return arguments
    has_whole_ranks = size > 1 and size % nnodes == 0
    if size > 1:
        port = node.master_port if has_whole_ranks else node.rpc_port
        arguments += ["--data-parallel-address", node.master_host]
        arguments += ["--data-parallel-rpc-port", str(port)]
    if has_whole_ranks:
        local = size // nnodes
        arguments += ["--data-parallel-size-local", str(local)]
        if node.rank:
            arguments += ["--data-parallel-start-rank", str(local * node.rank)]
    else:  # a rank spans several nodes; vLLM finds out which rank this is
        arguments += ["--nnodes", str(nnodes), "--node-rank", str(node.rank)]
        arguments += ["--master-addr", node.master_host, "--master-port", str(node.master_port)]
    if node.rank:
        arguments.append("--headless")
    return arguments


def _transfer(settings: EngineSettings, node: Node) -> list[str]:
    """By default NIXL transfers KV caches from prefill to decode replicas."""
    if not node.role or settings.kv_transfer_config is not None:
        return []
    config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[node.role]}
    return ["--kv-transfer-config", json.dumps(config, separators=(",", ":"), sort_keys=True)]


def _environment(settings: EngineSettings, hardware: Hardware, node: Node) -> dict[str, str]:
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        # The time of downloads does not count for startup_timeout_s, but for vLLM's own limit.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(max(DAY_S, int(settings.startup_timeout_s))),
    }
    if settings.nnodes > 1:
        env["VLLM_HOST_IP"] = node.host
    if node.role:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = node.host
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(node.extra_ports[1])
    if hardware.is_cpu:
        env |= _cores(settings, node)
    return env


def _cores(settings: EngineSettings, node: Node) -> dict[str, str]:
    """One group of cores per local rank; vLLM's ``auto`` needs a NUMA node for each rank."""
    groups = command.core_groups(settings, node)
    if not groups and settings.devices_per_node == 1:
        return {}
    return {"VLLM_CPU_OMP_THREADS_BIND": groups or "nobind"}


def _draft_config(spec: Speculative, settings: EngineSettings) -> str:
    """The JSON of --speculative-config. vLLM itself finds the method where it is left open."""
    own = spec.model_dump(exclude_none=True, exclude={"extra_args"})
    return json.dumps(own | spec.extra_args, separators=(",", ":"))


def _shared_ranks(settings: EngineSettings) -> int:
    """How many ranks divide shared experts: the tensor-parallel ranks, unless they divide the
    tokens of experts instead (``config/parallel.py: use_sequence_parallel_moe``).
    """
    divides_tokens = settings.enable_expert_parallel and settings.data_parallel_size > 1
    return 1 if divides_tokens else settings.tensor_parallel_size


def _accepts_method(wanted: str, stored: str) -> bool:
    """Whether ``config/model.py: _verify_quantization`` accepts a --quantization for a checkpoint:
    some checkpoints keep their own method, whatever is wanted.
    """
    return stored in FIXED_METHODS or wanted in (stored, "humming", *KERNELS.get(stored, ()))


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.distributed_executor_backend == "uni" and settings.world_size > 1:
        yield (
            "distributed_executor_backend: uni runs one rank, this replica has "
            f"{settings.world_size}"
        )
    size = settings.data_parallel_size
    nnodes = settings.nnodes
    if size > 1 and nnodes % size and size % nnodes:
        yield (
            f"data_parallel_size: {size} ranks cannot be divided over {nnodes} nodes; vLLM takes "
            "whole ranks on a node or whole nodes for a rank"
        )
    tokens = settings.max_num_batched_tokens
    sequences = settings.max_num_seqs
    if tokens and sequences and tokens < sequences:
        yield f"max_num_batched_tokens: {tokens} is below max_num_seqs ({sequences})"
    if settings.kv_cache_tokens and settings.kv_cache_memory_bytes:
        yield (
            "kv_cache_tokens and kv_cache_memory_bytes: both give the size of the KV cache; "
            "leave one out"
        )
    if hardware.is_cpu and settings.kv_cache_memory_bytes and settings.env.get(CPU_KV_VARIABLE):
        yield f"kv_cache_memory_bytes: {CPU_KV_VARIABLE} in env overrides it; leave one out"
    if hardware.is_cpu and settings.cpu_offload_gb:
        yield "cpu_offload_gb: there is nothing to offload from on a CPU"


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    return openai(
        prompt_token_ids=True,
        # counts as exactly as continuous usage, and makes a chunk 20 bytes longer instead of 100
        return_token_ids=True,
        cache_salt=True,
        adapter_field="model",  # entrypoints/openai/models/serving.py: models beside the base
        constraints=all_kinds(ConstraintForm.STRUCTURED_OUTPUTS),
        tool_choices=_tool_choices(settings),
    )


def _tool_choices(settings: EngineSettings) -> frozenset[ToolChoice]:
    """Without a parser of tools it refuses every choice that may call one, unless the format of the
    model or Mistral's tokenizer brings one (renderers/online_renderer.py, parser/parser_manager.py).
    """
    asked_parsers = present_flags(settings, ("--enable-auto-tool-choice", "--tokenizer-mode"))
    name = PurePosixPath(settings.model).name.lower()
    if asked_parsers or any(family in name for family in BRING_A_TOOL_PARSER):
        return ANY_TOOL_CHOICE
    return frozenset({"none"})


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    version="0.33",
    metrics=named_as_vllm("vllm:")
    | estimates_of_work("vllm:")
    | {
        "kv_usage": "vllm:kv_cache_usage_perc",
        "preemptions_total": "vllm:num_preemptions_total",
        "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
        "prefix_query_tokens_total": "vllm:prefix_cache_queries_total",
        "spec_drafts_total": "vllm:spec_decode_num_drafts_total",
    },
    dialects=_dialects,
    flags=command.named(*VALUE_FIELDS)
    | command.named(*SWITCH_FIELDS, kind="switch")
    | command.named(*JSON_FIELDS, kind="json")
    | {
        "kv_cache_tokens": Flag(
            "--num-gpu-blocks-override", value_from=command.whole_blocks(GPU_BLOCK)
        ),
        "speculative": Flag("--speculative-config", value_from=_draft_config),
        "lora_modules": Flag("--lora-modules", "list", value_from=command.adapter_pairs),
        "guided_decoding_backend": Flag(
            "--structured-outputs-config",
            value_from=lambda backend, _: json.dumps({"backend": backend}),
        ),
    },
    handled_fields=("data_parallel_size", "served_model_name"),
    value_names={"kv_cache_dtype": {"int8": "int8_per_token_head", "int4": "int4_per_token_head"}},
    missing_values={
        "quantization": {
            "gguf": "gguf is no longer part of vLLM (removed by 0.32)",
            "bitsandbytes": "bitsandbytes is no longer part of vLLM (removed by 0.32)",
            "int8": (
                "vLLM makes no int8 of a 16-bit checkpoint (of experts: "
                "int8_per_channel_weight_only); name a checkpoint in int8 (compressed-tensors) "
                "and leave this out"
            ),
        }
    },
    plugins_variable="VLLM_PLUGINS",
    # the length that the memory holds: no value of the field, which is a number
    open_flags={"--max-model-len": ("auto", "-1")},
    reserved=(
        *("--host", "--port", "--uds", "--api-key", "--model", "-n", "-r"),
        *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
        *("--data-parallel-size-local", "--data-parallel-start-rank"),
        *("--data-parallel-address", "--data-parallel-rpc-port", "-dpl", "-dpr", "-dpa", "-dpp"),
    ),
    aliases={
        "-tp": "the field tensor_parallel_size",
        "-pp": "the field pipeline_parallel_size",
        "-dp": "the field data_parallel_size",
        "-ep": "the field enable_expert_parallel",
        "-q": "the field quantization",
        **dict.fromkeys(
            ("-sc", "--spec-method", "--spec-model", "--spec-tokens"), "the field speculative"
        ),
        "--device-memory-utilization": "the field gpu_memory_utilization",
    },
    # config/speculative.py: __post_init__
    drafts=DraftMethods(
        flag="--spec-method",
        no_methods=("None",),
        with_model=(
            *("draft_model", "eagle", "eagle3", "dflash", "custom_class"),
            *("medusa", "mlp_speculator"),  # until 0.32
        ),
        without_model=("ngram", "ngram_gpu", "suffix"),
        optional_fields=(
            "draft_tensor_parallel_size",
            "prompt_lookup_min",
            "prompt_lookup_max",
            "extra_args",
        ),
        finds_method=True,
        tokens_flags=("--speculative-config", "-sc", "--spec-tokens"),
    ),
    on_cpus=True,
    on_amd=True,
    several_nodes=True,
    routers=("vllm_router",),
    pins=_pins,
    cache_block=_cache_block,
    more_problems=_problems,
    start=_start,
    key_variable="VLLM_API_KEY",
    follower_grace_s=0.5,  # on SIGTERM a follower only waits 10 s for its worker and then kills it
    rules=ModelRules(
        experts_divisible=False,
        experts_span_nodes=True,
        shared_ranks=_shared_ranks,
        cuts_longrope=True,  # config/model.py: _get_and_verify_max_len
        partition_variable="VLLM_PP_LAYER_PARTITION",
        refuses_longer=True,
        keeps_block=True,
        allocates_tokens=True,
        holds_length=lambda settings: not present_flags(settings, ("--max-model-len",)),
        longer_variable="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        whole_prompts=True,
        memory_fraction=DEFAULT_UTILIZATION,
        moves_memory=(
            *("--offload-group-size", "--offload-num-in-group", "--quantization-config"),
            *("--decode-context-parallel-size", "-dcp"),
            *("--prefill-context-parallel-size", "-pcp"),
            *("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"),
        ),
        accepts_method=_accepts_method,
        fixed_methods=FIXED_METHODS,
        unknown_methods=frozenset({"bitsandbytes", "gguf"}),
        # platforms/rocm.py: supported_quantization
        not_on_amd=frozenset(
            {
                *("moe_wna16", "experts_int8", "humming"),
                *("int8_per_channel_weight_only", "nvfp4_per_token"),
            }
        ),
        allowed_by=dict.fromkeys(("fbgemm_fp8", "fp_quant"), "--allow-deprecated-quantization"),
        # quantization/*.py: get_min_capability; platforms/cuda.py: check_if_supports_dtype
        min_capability={
            **dict.fromkeys(("auto_gptq", "gptq", "gptq_marlin", "inc"), 60),
            **dict.fromkeys(("compressed-tensors", "quark", "moe_wna16"), 70),
            **dict.fromkeys(("awq", "auto_awq", "awq_marlin", "torchao", "humming"), 75),
            **dict.fromkeys(("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"), 75),
            **dict.fromkeys(("mxfp8", "modelopt_fp4", "int8_per_channel_weight_only"), 75),
            **dict.fromkeys(("modelopt", "modelopt_mxfp8", "experts_int8"), 80),
            **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4", "fbgemm_fp8"), 80),
            **dict.fromkeys(("fp_quant", "nvfp4_per_token"), 100),
            "bfloat16": 80,
        },
        # v1/attention/backends/mla/*sparse*.py: supports_compute_capability, also in 0.33
        sparse_capability=90,
        # CUTLASS has no INT8 for Blackwell, and is chosen all the same
        # (kernels/linear/scaled_mm/cutlass.py).
        kernels_on={"int8": range(100)},
        whole_groups=True,
        # layers/fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape; not in earlier releases
        splits_blocks=True,
        # quantization/moe_wna16.py, if Marlin cannot
        halved_groups=frozenset({"gptq", "awq", "auto-round"}),
        # quantization/*.py: get_supported_act_dtypes
        float32_methods=frozenset({"compressed-tensors", "torchao"}),
        # kernels/linear/__init__.py, v1/attention/backends/cpu_attn.py; each tried on AVX512, and
        # int4 weights on AVX2, where cpu_gemm_wna16 is missing once the engine serves
        cpu=CpuKernels(
            schemes={"int8": True, "fp8 per channel": True, "int4 weights": False},
            risks={
                **dict.fromkeys(
                    ("fp8 per tensor", "fp8 per block", "int4"),
                    "a CPU with AMX (Sapphire Rapids or newer)",
                ),
                "int4 weights": "a CPU with AVX512",
                "humming": "the package humming",
                "torchao": "a checkpoint made with it, or hf_overrides that say how to quantize",
            },
            flags={"awq": ("awq", "humming")},
            kv_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
            kv_noise=frozenset(
                {"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4"}
            ),
        ),
    ),
    reported=command.log_reader(
        {
            "engine_version": LogFigure(r"Initializing a V1 LLM engine \(v([^)]+)\)", str),
            "kv_cache_tokens": LogFigure(r"KV cache size: ([\d,]+) tokens", int),
            "max_concurrency": LogFigure(
                r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x",
                float,
            ),
            "max_model_len": LogFigure(r"Using max model len ([\d,]+)", int),
            "weight_bytes": LogFigure(r"Model loading took ([\d.]+) GiB", command.bytes_of_gib),
            "checkpoint_bytes": LogFigure(r"Checkpoint size: ([\d.]+) GiB", command.bytes_of_gib),
            "kv_cache_bytes": LogFigure(
                r"(?:Available KV cache memory: |(?:Explicitly|Auto) set \()"
                r"([\d.]+)(?: GiB|/.* for KV cache)",
                command.bytes_of_gib,
            ),
            "init_engine_s": LogFigure(r"init engine \(.*\) took ([\d.]+) s", float),
            "attention_backend": LogFigure(r"Using (\S+) (?:attention )?backend", str),
            "quantization_kernel": LogFigure(
                r"(?:Selected|Using) (\w+) for "
                r"(?:\w+LinearMethod|CompressedTensors|ModelOpt|Quark|MX|NVFP|mixed)",
                str,
            ),
        }
    ),
    log=LogWords(
        failures={
            FailureKind.GPU_DIRTY: r"Free memory on device .* less than desired",
            FailureKind.OOM_KV: (
                r"No available memory for the cache blocks|To serve at least one request"
                r"|Available memory on node .* less than desired"
                r"|allocation is less than requested memory for kv"
            ),
            FailureKind.BAD_QUANT: (
                r"Unknown quantization method|Cannot find the config file for"
                r"|does not match the quantization|weight quantization block_[nk]"
                r"|not supported for the current GPU\. Minimum capability"
                r"|is not supported for quantization method"
            ),
            FailureKind.BAD_MODEL: r"Model architectures .* are not supported",
            FailureKind.NO_MODEL: (
                r"Invalid repository ID or local directory|Cannot find any model weights with"
            ),
            FailureKind.BAD_CONFIG: r"Value error, ",
            FailureKind.ENGINE_DEAD: r"EngineDeadError|died unexpectedly|EngineCore encountered",
        },
        consequences=(
            r"EngineDeadError|Engine core initialization failed"
            r"|WorkerProc initialization failed"
        ),
    ),
)

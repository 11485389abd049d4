"""Text Generation Inference (``text-generation-launcher``): its last release, 3.3.7, as its source
and runs on a CPU show it.

Its authors have archived it, but many results are still compared with it. It runs on one node, with
tensor parallelism only. Its HTTP API cannot force the length of an answer; rows have the requested
and the actual length. The HTTP port opens after the warm-up. An error within a stream is an event
of an answer with status 200. The launcher passes the key to its router as an argument, which every
user of the node can read while it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from orchestrator.base.errors import FailureKind
from orchestrator.catalog.accelerators import memory_bytes
from orchestrator.catalog.memory import GIB
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, LogFigure, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import ADAPTERS_UNLIMITED, Engine, Reported
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, TGI_STREAM, Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PinnedSettings

# methods that need a checkpoint made for them
PREQUANTIZED = ("awq", "gptq", "exl2", "marlin", "compressed-tensors")
# methods that quantize while the model loads; without TGI's "bitsandbytes", which has 8 bits, where
# other engines mean 4 by that name, and for which TGI itself recommends eetq
WHILE_LOADING = ("eetq", "fp8", "bitsandbytes-nf4", "bitsandbytes-fp4")
_read_slots = command.log_reader(
    {"kv_cache_tokens": LogFigure(r"Setting max batch total tokens to (\d+)", int)}
)
# bytes of a Unix socket's path, to which each shard appends its rank
LONGEST_SOCKET = 107 - len("-100")
QUEUED = 10000  # by default TGI refuses requests beyond 128; other engines queue them
# Tokens of a prefill. TGI's own default depends on the GPU as well (launcher/src/main.rs).
SMALL_PREFILL = 4096  # on GPUs below 60 GiB
LARGE_PREFILL = 8192


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    """Without chunked prefill a batch must hold the longest prompt (backends/v3/src/main.rs)."""
    memory = memory_bytes(hardware)
    is_large = memory is None or memory >= 60 * GIB
    tokens = LARGE_PREFILL if is_large else SMALL_PREFILL
    if settings.enable_chunked_prefill is False:
        tokens = max(tokens, settings.max_input_len or settings.max_model_len or 0)
    return {"max_num_batched_tokens": tokens, "max_num_queued_reqs": QUEUED}


def _adapters(adapters: Mapping[str, str], settings: EngineSettings) -> str:
    return ",".join(command.adapter_pairs(adapters, settings))


def _dialects() -> dict[str, Dialect]:
    """Its APIs, as router/src/lib.rs has them. A model other than "tgi" is an adapter."""
    dialects = openai(
        length_control="none",
        min_tokens_field=None,
        adapter_field="model",
        tool_choices=ANY_TOOL_CHOICE,
    )
    return dialects | {
        # CompletionRequest has no stream_options
        "completions": replace(dialects["completions"], include_usage=False),
        "tgi": replace(TGI_STREAM, adapter_field="adapter_id"),
    }


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    prometheus = node.extra_ports[0] if node.extra_ports else node.port + 1
    socket = f"{node.workdir}/shard"  # left behind by TGI, and removed with the launch
    if len(socket.encode()) > LONGEST_SOCKET:
        socket = f"/tmp/tgi-{node.launch_id}-{node.port}"  # noqa: S108
    argv = [
        command.program(settings, "text-generation-launcher"),
        *("--model-id", _served_name(settings, node)),
        *("--hostname", node.bind, "--port", str(node.port), "--prometheus-port", str(prometheus)),
        *("--master-port", str(node.master_port), "--shard-uds-path", socket),
        *("--usage-stats", "off"),
    ]
    return Command(tuple(argv), _switches(settings))


def _served_name(settings: EngineSettings, node: Node) -> str:
    return node.model_path or settings.model


def _switches(settings: EngineSettings) -> dict[str, str]:
    """Variables with the settings for which TGI has no flags."""
    switches = {
        "PREFIX_CACHING": settings.enable_prefix_caching,
        "PREFILL_CHUNKING": settings.enable_chunked_prefill,
    }
    env = {}
    for name, is_on in switches.items():
        if is_on is not None:
            env[name] = "1" if is_on else "0"
    if settings.attention_backend:
        env["ATTENTION"] = settings.attention_backend
    return env


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.dtype and settings.quantization:
        yield "dtype: TGI refuses it together with quantization"
    if settings.quantization == "exl2" and settings.tensor_parallel_size > 1:
        yield "quantization: exl2 cannot be sharded in TGI"
    prompt = settings.max_input_len
    length = settings.max_model_len
    if prompt and length and prompt >= length:
        yield f"max_input_len: {prompt} must be below max_model_len ({length})"
    longest_prompt = 0
    if prompt:
        longest_prompt = prompt
    elif length:
        longest_prompt = length - 1  # an answer has a token at least
    tokens = settings.max_num_batched_tokens
    if settings.enable_chunked_prefill is False and tokens and tokens < longest_prompt:
        yield (
            f"max_num_batched_tokens: {tokens} must hold a whole prompt ({longest_prompt}) where "
            "none is split"
        )
    if settings.max_num_queued_reqs == 0:
        yield "max_num_queued_reqs: 0 would refuse every request in TGI"
    spec = settings.speculative
    if spec and spec.model:
        yield "speculative: TGI takes no model; medusa heads come with the model itself"
    if hardware.is_cpu and not settings.max_input_len:
        yield (
            "max_input_len: on a CPU TGI's warm-up asks for more memory than there is unless this "
            "limits prompts"
        )
    if hardware.is_cpu and settings.quantization:
        yield "quantization: TGI quantizes on GPUs only"


def _reported(log: str) -> Reported:
    """The slots of its KV cache, logged after the warm-up (backends/v3/src/lib.rs).

    For models without such slots the logged number is a constant, and no memory is reserved for it.
    """
    if "does not support automatic max batch total tokens" in log:
        return {}
    return _read_slots(log)


ENGINE = Engine(
    name="tgi",
    title="TGI",
    version="3.3.7",
    version_at={"/info": "version"},
    metrics={
        "running": "tgi_batch_current_size",
        "waiting": "tgi_queue_size",
        "queue_time_s_sum": "tgi_request_queue_duration_sum",
        "queue_time_count": "tgi_request_queue_duration_count",
        # tokens beyond the first of every step
        "spec_accepted_tokens_total": "tgi_request_skipped_tokens_sum",
        "prompt_tokens_total": "tgi_request_input_length_sum",
        "generation_tokens_total": "tgi_request_generated_tokens_sum",
    },
    dialects=lambda settings: _dialects(),
    served_name=_served_name,
    flags={
        "revision": Flag("--revision"),
        "trust_remote_code": Flag("--trust-remote-code", "bare"),
        "tensor_parallel_size": Flag("--num-shard"),  # its own default is every GPU it sees
        "dtype": Flag("--dtype", choices=("float16", "bfloat16")),
        "quantization": Flag("--quantize", choices=PREQUANTIZED + WHILE_LOADING),
        "kv_cache_dtype": Flag("--kv-cache-dtype", choices=("fp8_e4m3fn", "fp8_e5m2")),
        "max_model_len": Flag("--max-total-tokens"),
        "max_input_len": Flag("--max-input-tokens"),
        "max_num_seqs": Flag("--max-batch-size"),
        "max_num_batched_tokens": Flag("--max-batch-prefill-tokens"),
        "max_num_queued_reqs": Flag("--max-concurrent-requests"),
        "gpu_memory_utilization": Flag("--cuda-memory-fraction"),
        "enforce_eager": Flag("--cuda-graphs", value_from=lambda on, _: 0 if on else None),
        "speculative": Flag("--speculate", value_from=lambda spec, _: spec.num_speculative_tokens),
        "lora_modules": Flag("--lora-adapters", value_from=_adapters),
    },
    # set by environment variables only
    handled_fields=("enable_prefix_caching", "enable_chunked_prefill", "attention_backend"),
    unsupported=ADAPTERS_UNLIMITED
    | {
        "served_model_name": "TGI answers to any name",
        "load_format": "TGI reads safetensors only",
        "kv_cache_tokens": (
            "TGI 3 ignores --max-batch-total-tokens with flash attention; use "
            "gpu_memory_utilization"
        ),
        "kv_cache_memory_bytes": "TGI fills what gpu_memory_utilization leaves; use that",
        "block_size": "TGI chooses the block size by its attention kernels",
    },
    value_names={
        "kv_cache_dtype": {"auto": None, "fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn"},
        "quantization": {"bitsandbytes": "bitsandbytes-nf4"},
    },
    allowed_values={"attention_backend": ("flashinfer", "flashdecoding", "paged")},
    reserved=(
        *("--model-id", "--hostname", "--port", "--api-key", "--sharded"),
        *("--prometheus-port", "--shard-uds-path", "--master-addr", "--master-port"),
        "--usage-stats",
    ),
    aliases={"--max-input-length": "the field max_input_len"},
    # the checkpoint decides whether the method is ngram or medusa
    drafts=DraftMethods({"ngram": "ngram", "medusa": "medusa"}, tokens_flags=("--speculate",)),
    on_cpus=True,
    on_amd=True,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    key_variable="API_KEY",
    # where max_model_len is left open, it becomes what the memory holds, and no length is too long
    # (models/flash_causal_lm.py: warmup)
    rules=ModelRules(
        repeats_kv_heads=False, holds_length=lambda settings: settings.max_model_len is not None
    ),
    reported=_reported,
    log=LogWords(
        failures={
            FailureKind.OOM_KV: (
                r"Not enough memory to handle \d+ prefill tokens|NotEnoughMemory\(\d+\)"
            ),
            FailureKind.BAD_QUANT: r"quantization is not supported for AutoModel",
            FailureKind.BAD_MODEL: r"Unsupported model type",
            FailureKind.NO_MODEL: r"DownloadError|No local weights found in",
            FailureKind.BAD_CONFIG: r"ArgumentValidation|NotEnoughCUDADevices",
            FailureKind.ENGINE_DEAD: (
                r"Shard process was signaled to shutdown with signal \d+"
                r"|Shard \d+ (?:crashed|failed to start)|Webserver Crashed"
            ),
        },
        warns_with_tracebacks=True,
    ),
)

"""``transformers serve`` 5.24 (and 5.19) with continuous batching: a reference for correctness, and
a light engine for CPUs.

It takes no API key. It lists no models, or the model under a name of its own, so only the owner of
the listening socket proves that a server is ours. Its log has no sizes: its cache is created with
the first request, and logged at a level that is off.
"""

from collections.abc import Iterator

from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.dialect import Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PinnedSettings

BLOCK = 256  # tokens of a KV block; kv_cache_tokens are turned into blocks
# By default its KV cache and attention mask would take most of a CPU node's memory, and its first
# request would take minutes.
CPU_PINS = {"kv_cache_tokens": 16384, "max_num_batched_tokens": 1024}
# modeling_utils.py: AttentionInterface
ATTENTION = (
    *("eager", "sdpa", "flex_attention"),
    *("flash_attention_2", "flash_attention_3", "flash_attention_4"),
)
# cli/serving/utils.py, CBGenerateManager: with continuous batching all requests are sampled as the
# first one is, and only their lengths are their own.
SAMPLING = ("temperature", "top_p", "seed", "stop", "frequency_penalty", "logit_bias")
# The only fields that a request may have: the server refuses those that it does not know.
FIELDS = ("model", "stream", "max_tokens", "generation_config", *SAMPLING)
# Of the fields that the server takes and ignores with a line in its log, those that requests may
# have (cli/serving/completion.py: UNUSED_LEGACY_COMPLETION_FIELDS; chat_completion.py:
# UNUSED_CHAT_COMPLETION_FIELDS). Some of them change no answer anywhere.
UNUSED = ("presence_penalty", "user")
UNUSED_IN_CHATS = ("parallel_tool_calls", "reasoning_effort", "metadata", "service_tier", "store")


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    # `generation_config` replaces the model's own, end-of-sequence token included. `stream_options`
    # and the like would be ignored with a line in the log each, so they are left out; the last
    # event always has the usage.
    dialects = openai(
        length_control="generation_config",
        min_tokens_field=None,
        include_usage=False,
        done_marker=False,
        allowed_fields=FIELDS,
        without_effect=frozenset(SAMPLING),
        # cli/serving/chat_completion.py: it ignores tool_choice and response_format
        tool_choices=frozenset({"auto"}),
    )
    completions = dialects["completions"].with_ignored_fields(UNUSED)
    chat = dialects["chat"].with_fields(["chat_template_kwargs"])
    chat = chat.with_ignored_fields([*UNUSED, *UNUSED_IN_CHATS])
    return {"completions": completions, "chat": chat}


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    pins = CPU_PINS if hardware.is_cpu else {}
    if settings.kv_cache_tokens or "kv_cache_tokens" in pins:
        return pins | {"block_size": BLOCK}
    return pins


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *(command.program(settings, "transformers"), "serve", _served_name(settings, node)),
        *("--continuous-batching", "--device", "cpu" if hardware.is_cpu else "cuda:0"),
        *("--host", node.bind, "--port", str(node.port)),
    ]
    env = {"HF_HUB_DISABLE_TELEMETRY": "1"}
    if hardware.is_cpu:
        env |= _cores(node)
    return Command(tuple(argv), env)


def _served_name(settings: EngineSettings, node: Node) -> str:
    model = node.model_path or settings.model
    return f"{model}@{settings.revision}" if settings.revision else model


def _cores(node: Node) -> dict[str, str]:
    if not node.cores:
        return {}
    cores = ",".join(map(str, node.cores))
    return {
        "OMP_NUM_THREADS": str(len(node.cores)),
        "OMP_PLACES": f"{{{cores}}}",
        "OMP_PROC_BIND": "true",
    }


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    yield from command.docker_problems("transformers serve", settings)
    for field in ("enable_prefix_caching", "enable_chunked_prefill"):
        if getattr(settings, field) is False:
            yield f"{field}: transformers serve always does this and cannot switch it off"
    attention = settings.attention_backend
    if attention and "/" not in attention and attention not in ATTENTION:
        yield (
            f"attention_backend: {attention!r} is none of {', '.join(ATTENTION)}, and no kernel "
            "of the hub (owner/name)"
        )


ENGINE = Engine(
    name="transformers",
    version="5.24",
    title="transformers serve",
    metrics_path=None,
    dialects=_dialects,
    served_name=_served_name,
    flags={
        "dtype": Flag("--dtype"),
        # others come with the checkpoint
        "quantization": Flag("--quantization", choices=("bnb-4bit", "bnb-8bit")),
        "trust_remote_code": Flag("--trust-remote-code", "switch"),
        "attention_backend": Flag("--attn-implementation"),
        # of memory that is free after loading
        "gpu_memory_utilization": Flag("--cb-max-memory-percent"),
        "max_num_batched_tokens": Flag("--cb-max-batch-tokens"),
        "kv_cache_tokens": Flag("--cb-num-blocks", value_from=command.whole_blocks(BLOCK)),
        "block_size": Flag("--cb-block-size"),
        "enforce_eager": Flag("--no-cb-use-cuda-graph", "bare", inverse="--cb-use-cuda-graph"),
    },
    handled_fields=("revision", "enable_prefix_caching", "enable_chunked_prefill"),
    unsupported={
        "tensor_parallel_size": "transformers serve has no tensor parallelism",
        **dict.fromkeys(
            ("max_model_len", "max_input_len"),
            "transformers serve takes what the model takes and has no limit of its own",
        ),
        "max_num_seqs": "transformers serve limits a batch by tokens only (max_num_batched_tokens)",
        "speculative": "transformers serve has no speculative decoding",
        "served_model_name": "transformers serve answers to the model's own name only",
    },
    value_names={"quantization": {"bitsandbytes": "bnb-4bit"}},
    # cli/serving/model_manager.py: names of torch
    allowed_values={
        "dtype": (
            *("auto", "bfloat16", "float16", "float32", "float64"),
            *("half", "float", "double"),
        )
    },
    reserved=(
        *("--host", "--port", "--device", "--model-timeout"),
        *("--continuous-batching", "--cb-use-cuda-graph"),
    ),
    on_cpus=True,
    on_amd=True,
    pins=_pins,
    cache_block=lambda settings, hardware: settings.block_size or BLOCK,
    # generation/continuous_batching/cache.py; it has no length of its own
    rules=ModelRules(share_of="free", holds_length=lambda settings: False, allocates_tokens=True),
    more_problems=_problems,
    start=_start,
)

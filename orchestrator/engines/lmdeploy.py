"""LMDeploy (``lmdeploy serve api_server``) 0.18, as its source shows it, on GPUs.

It has two backends and silently falls back from one to the other, so the backend is always given:
turbomind, or pytorch with ``extra_args: {--backend: pytorch}``. Only turbomind spans nodes. Its
HTTP server opens once the model is loaded; its gauges are updated every 10 s.
"""

from collections.abc import Iterator

from pydantic import ByteSize, TypeAdapter

from orchestrator.base.errors import FailureKind
from orchestrator.catalog.accelerators import of_hardware
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, LogFigure, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import ADAPTERS_UNLIMITED, Engine, named_as_vllm
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, Dialect
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PinnedSettings

BLOCK = 64
PYTORCH_ONLY = (
    *("enforce_eager", "kv_cache_tokens", "distributed_executor_backend", "speculative"),
    "lora_modules",  # cli/serve.py: TurbomindEngineConfig gets no adapters
)
# Turbomind describes its cache at the start and then every N steps; this N is never reached.
CACHE_LINE = {"TM_CACHE_LOG_INTERVAL": "1000000000"}
BYTES = TypeAdapter(ByteSize)
# Part of a GPU's name -> most sequences at once (lmdeploy/utils.py: get_max_batch_size).
SEQUENCES = {"a100": 384, "a800": 384, "h100": 1024, "h800": 1024, "l20y": 1024, "h200": 1024}
DEFAULT_SEQUENCES = 128
ALGORITHMS = {"eagle": "eagle", "eagle3": "eagle3", "mtp": "deepseek_mtp"}


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    device = of_hardware(hardware)
    if device is None:
        return command.PINNED_BATCH
    sequences = DEFAULT_SEQUENCES
    for part_of_name, size in SEQUENCES.items():
        if part_of_name in device.name.lower():
            sequences = size
            break
    return command.PINNED_BATCH | {"max_num_seqs": sequences}


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *command.with_key(settings, "lmdeploy.cli", "run", "--api-keys"),
        *("serve", "api_server", node.model_path or settings.model),
        *("--server-name", node.bind, "--server-port", str(node.http_port)),
        *("--model-name", command.nonce_name(settings, node)),
    ]
    if "--backend" not in settings.extra_args:
        argv += ["--backend", "turbomind"]
    argv += command.rendezvous(settings, node)
    notes: tuple[str, ...] = ()
    if settings.max_num_queued_reqs:
        notes = ("a full queue makes requests wait; LMDeploy never refuses one",)
    return Command(tuple(argv), CACHE_LINE, notes=notes)


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.extra_args.get("--backend") == "pytorch":
        yield from _of_pytorch(settings)
    else:
        yield from _of_turbomind(settings)
    if settings.max_num_queued_reqs == 0:
        yield "max_num_queued_reqs: 0 would let no request in"


def _of_pytorch(settings: EngineSettings) -> Iterator[str]:
    if settings.nnodes > 1:
        yield "nnodes: LMDeploy's pytorch backend spans nodes through Ray only"
    if settings.data_parallel_size > 1:
        yield (
            "data_parallel_size: LMDeploy's pytorch backend starts a server per rank behind a "
            "proxy of its own; use replicas, or its turbomind backend"
        )


def _of_turbomind(settings: EngineSettings) -> Iterator[str]:
    for field in PYTORCH_ONLY:
        if getattr(settings, field) is not None:
            needed = "extra_args: {--backend: pytorch}"
            yield f"{field}: only LMDeploy's pytorch backend has it ({needed})"
    if settings.enable_expert_parallel and settings.nnodes > 1:
        yield "enable_expert_parallel: LMDeploy's turbomind backend has it on one node only"
    if settings.kv_cache_dtype is not None and settings.kv_cache_dtype.startswith("fp8"):
        yield (
            "kv_cache_dtype: LMDeploy's turbomind backend refuses fp8; use int8, int4 or the "
            "pytorch backend"
        )


ENGINE = Engine(
    name="lmdeploy",
    title="LMDeploy",
    version="0.18",
    metrics=named_as_vllm("lmdeploy:")
    | {
        "kv_usage": "lmdeploy:gpu_cache_usage_perc",
        # counted with the next request
        "prefix_query_tokens_total": "lmdeploy:request_prompt_tokens_sum",
        "prefix_hit_tokens_total": "lmdeploy:cached_tokens_total",
    },
    dialects=lambda settings: {
        # serve/openai/utils.py: get_model_list. A model other than the base is an adapter.
        "completions": Dialect(
            "openai_completions", "/v1/completions", min_tokens_field=None, adapter_field="model"
        ),
        "chat": Dialect(
            "openai_chat",
            "/v1/chat/completions",
            min_tokens_field="min_new_tokens",
            adapter_field="model",
            # serve/openai/chat_completions/guided.py
            constraints={
                ConstraintKind.JSON_SCHEMA: ConstraintForm.RESPONSE_FORMAT,
                ConstraintKind.REGEX: ConstraintForm.REGEX_SCHEMA,
                ConstraintKind.CHOICE: ConstraintForm.REGEX_SCHEMA,
            },
            tool_choices=ANY_TOOL_CHOICE,
            images=True,
        ),
    },
    flags={
        "trust_remote_code": Flag("--trust-remote-code", "bare"),
        "hf_overrides": Flag("--hf-overrides", "json"),
        "tensor_parallel_size": Flag("--tp"),
        "data_parallel_size": Flag("--dp", value_from=lambda size, _: size if size > 1 else None),
        # turbomind/parallel_config.py: experts are spread over dp x tp devices
        "enable_expert_parallel": Flag(
            "--ep", value_from=lambda on, settings: settings.world_size if on else None
        ),
        "dtype": Flag("--dtype", choices=("auto", "float16", "bfloat16")),
        # All but hf need a checkpoint with that quantization.
        "quantization": Flag(
            "--model-format", choices=("hf", "awq", "gptq", "compressed-tensors", "fp8", "mxfp4")
        ),
        "kv_cache_dtype": Flag(
            "--quant-policy",
            choices=("none", "int4", "int8", "fp8", "fp8_e4m3", "fp8_e5m2", "turbo_quant"),
        ),
        "max_model_len": Flag("--session-len"),
        "max_num_seqs": Flag("--max-batch-size"),
        "max_num_batched_tokens": Flag("--max-prefill-token-num"),
        "max_num_queued_reqs": Flag("--max-concurrent-requests"),
        "enable_prefix_caching": Flag("--enable-prefix-caching", "bare"),
        # of what is free after the weights
        "gpu_memory_utilization": Flag("--cache-max-entry-count"),
        "kv_cache_tokens": Flag("--num-gpu-blocks", value_from=command.whole_blocks(BLOCK)),
        "block_size": Flag("--cache-block-seq-len"),
        "enforce_eager": Flag("--eager-mode", "bare"),
        "lora_modules": Flag("--adapters", "list", value_from=command.adapter_pairs),
        "distributed_executor_backend": Flag("--distributed-executor-backend"),
        "speculative": (
            Flag(
                "--speculative-algorithm",
                value_from=lambda spec, _: ALGORITHMS.get(spec.method, spec.method),
            ),
            Flag("--speculative-draft-model", value_from=lambda spec, _: spec.model),
            Flag(
                "--speculative-num-draft-tokens",
                value_from=lambda spec, _: spec.num_speculative_tokens,
            ),
        ),
    },
    unsupported=ADAPTERS_UNLIMITED
    | {
        "revision": (
            "LMDeploy takes the flag and serves the newest revision all the same; name a "
            "local folder"
        ),
        "enable_chunked_prefill": "LMDeploy always splits prompts above max_num_batched_tokens",
        "attention_backend": "LMDeploy chooses its kernels by the GPU",
        "kv_transfer_config": "LMDeploy has --role and --migration-backend instead; use extra_args",
    },
    handled_fields=("served_model_name",),
    value_names={"kv_cache_dtype": {"auto": "none"}},
    reserved=(
        *("--server-name", "--server-port", "--api-keys", "--model-name"),
        *("--nnodes", "--node-rank", "--dist-init-addr"),
    ),
    drafts=DraftMethods(
        ALGORITHMS,
        flag="--speculative-algorithm",
        with_model=("eagle", "eagle3", "dflash"),
        tokens_flags=("--speculative-num-draft-tokens",),
    ),
    several_nodes=True,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    key_variable=command.KEY_VARIABLE,
    rules=ModelRules(
        memory_fraction=0.8,
        share_of="free",
        # pytorch/engine/engine.py: _get_max_session_len; turbomind never looks
        holds_length=lambda settings: False,
        stored_methods=frozenset({"fp8", "mxfp4"}),
        min_capability={"awq": 70, "gptq": 70},
    ),
    # turbomind logs the size of its cache, not the size of a token; pytorch logs both, but only at
    # a level with lines for every request (pytorch/engine/executor/base.py).
    reported=command.log_reader(
        {
            # src/turbomind/memory/stats.cc
            "kv_cache_bytes": LogFigure(
                r"\[cache\] region=([\d.]+(?:B|[KMGT]iB))\b", BYTES.validate_python
            ),
            "backend": LogFigure(r"Fallback to (pytorch) engine because", str),  # lmdeploy/archs.py
        }
    ),
    log=LogWords(
        failures={
            FailureKind.OOM_KV: r"No enough gpu memory for (?:kv cache|state cache|runtime)",
            FailureKind.BAD_QUANT: (
                r"mismatched quant (?:method|group size)|unsupported quant[_ ]config"
            ),
            FailureKind.BAD_MODEL: r"turbomind does not support",
            FailureKind.NO_MODEL: r"Could not find model architecture from config",
        },
    ),
)

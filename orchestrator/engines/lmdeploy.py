"""LMDeploy (``lmdeploy serve api_server``), as its 0.18 reads; GPUs.

It has two backends and falls back from one to the other in silence, so the backend is always said: turbomind, or
pytorch through ``extra_args: {--backend: pytorch}``. Several nodes are turbomind's own launch. Its HTTP server opens
once the model is loaded; its gauges are refreshed every 10 s.
"""

from __future__ import annotations

import re
from typing import ClassVar

from orchestrator.engines import flags
from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.container import in_container
from orchestrator.engines.flags import Flag
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

TABLE = {
    "revision": Flag("--revision"),
    "trust_remote_code": Flag("--trust-remote-code", "bare"),
    "hf_overrides": Flag("--hf-overrides", "json"),
    "tensor_parallel_size": Flag("--tp"),
    "dtype": Flag("--dtype", choices=("auto", "float16", "bfloat16")),
    # All but hf need a checkpoint made for them.
    "quantization": Flag("--model-format", choices=("hf", "awq", "gptq", "compressed-tensors", "fp8", "mxfp4")),
    "kv_cache_dtype": Flag(
        "--quant-policy", choices=("none", "int4", "int8", "fp8", "fp8_e4m3", "fp8_e5m2", "turbo_quant")
    ),
    "max_model_len": Flag("--session-len"),
    "max_num_queued_reqs": Flag("--max-concurrent-requests"),
    "enable_prefix_caching": Flag("--enable-prefix-caching", "bare"),
    "gpu_memory_utilization": Flag("--cache-max-entry-count"),  # of what is free after the weights
    "block_size": Flag("--cache-block-seq-len"),
    "enforce_eager": Flag("--eager-mode", "bare"),
    "distributed_executor_backend": Flag("--distributed-executor-backend"),
}
OTHERS = {
    "served_model_name": "--model-name",
    "max_num_seqs": "--max-batch-size",
    "max_num_batched_tokens": "--max-prefill-token-num",
    "kv_cache_tokens": "--num-gpu-blocks",
    "enable_expert_parallel": "--ep",
    "speculative": "--speculative-algorithm",
    "lora_modules": "--adapters",
}
OURS = ("--server-name", "--server-port", "--api-keys", "--nnodes", "--node-rank", "--dist-init-addr", "--dp")
KNOWN = frozenset({*TABLE, *OTHERS, "nnodes", "enable_lora", "guided_decoding_backend"})
REASONS = {
    "pipeline_parallel_size": "LMDeploy has no pipeline parallelism",
    "data_parallel_size": "LMDeploy needs a proxy of its own for it; use replicas",
    "tokenizer": "LMDeploy takes the model's own tokenizer",
    "load_format": "LMDeploy cannot serve without the checkpoint's own weights",
    "max_input_len": "LMDeploy limits input and output together; use max_model_len",
    "kv_cache_memory_bytes": "LMDeploy counts its KV cache in blocks; use kv_cache_tokens",
    "enable_chunked_prefill": "LMDeploy always splits prompts above max_num_batched_tokens",
    "attention_backend": "LMDeploy chooses its kernels by the GPU",
    "cpu_offload_gb": "LMDeploy keeps all weights on the GPUs",
    "max_loras": "LMDeploy serves the adapters it is given (lora_modules)",
    "max_lora_rank": "LMDeploy takes the rank from the adapters",
    "stream_interval": "LMDeploy sends every token as it comes",
    "kv_transfer_config": "LMDeploy has --role and --migration-backend instead; use extra_args",
    "scheduling_policy": "LMDeploy serves in order of arrival",
}
PINS = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
BLOCK = 64
PYTORCH_ONLY = ("enforce_eager", "kv_cache_tokens", "distributed_executor_backend", "lora_modules")
# turbomind then describes its cache at the start and once in so many steps, that is never again.
CACHE_LINE = {"TM_CACHE_LOG_INTERVAL": "1000000000"}
CACHE_SIZE = re.compile(r"\[cache\] region=(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)\b")  # src/turbomind/memory/stats.cc
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
ALGORITHMS = {"eagle": "eagle", "eagle3": "eagle3", "mtp": "deepseek_mtp"}


class Lmdeploy:
    """See the module."""

    name: ClassVar[str] = "lmdeploy"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "lmdeploy:num_requests_running"),
        Metric("waiting", "lmdeploy:num_requests_waiting"),
        Metric("kv_usage", "lmdeploy:gpu_cache_usage_perc"),
        Metric("prefix_query_tokens_total", "lmdeploy:request_prompt_tokens_sum"),  # told with the next one
        Metric("prefix_hit_tokens_total", "lmdeploy:cached_tokens_total"),
        Metric("queue_time_s_sum", "lmdeploy:request_queue_time_seconds_sum"),
        Metric("queue_time_count", "lmdeploy:request_queue_time_seconds_count"),
        Metric("ttft_s_sum", "lmdeploy:time_to_first_token_seconds_sum"),
        Metric("ttft_count", "lmdeploy:time_to_first_token_seconds_count"),
        Metric("spec_draft_tokens_total", "lmdeploy:spec_decode_num_draft_tokens_total"),
        Metric("spec_accepted_tokens_total", "lmdeploy:spec_decode_num_accepted_tokens_total"),
        Metric("prompt_tokens_total", "lmdeploy:prompt_tokens_total"),
        Metric("generation_tokens_total", "lmdeploy:generation_tokens_total"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.gpu_only("LMDeploy", hardware),
            *flags.field_problems("LMDeploy", settings, TABLE, OTHERS, KNOWN, REASONS, OURS),
            *flags.whole_nodes(settings),
            *flags.only(settings, "guided_decoding_backend", ("xgrammar",), "it is built in"),
            *flags.speculative_problems("LMDeploy", settings.speculative, ALGORITHMS, ("eagle", "eagle3")),
            *_backend_problems(settings),
            *_feature_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return flags.left_open(settings, PINS)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *flags.with_key(settings, "lmdeploy.cli", "run", "--api-keys"),
            *("serve", "api_server", node.model_path or settings.model),
            *("--server-name", node.bind, "--server-port", str(node.port)),
            *("--model-name", self.served_name(settings, node)),
            *([] if "--backend" in settings.extra_args else ["--backend", "turbomind"]),
            *flags.mapped(settings, TABLE),
            *_features(settings, pins),
            *flags.rendezvous(settings, node),
            *flags.extra_arguments(settings),
        ]
        env = flags.environment(settings, hardware, node) | CACHE_LINE
        waits = (
            ("a full queue makes requests wait; LMDeploy never refuses one",) if settings.max_num_queued_reqs else ()
        )
        secrets = {flags.KEY_VARIABLE: api_key}
        command = Command(tuple(argv), env | settings.env, secrets, notes=flags.pin_notes(pins) + waits)
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect("openai_completions", "/v1/completions", min_tokens_field=None),
            "chat": Dialect("openai_chat", "/v1/chat/completions", min_tokens_field="min_new_tokens"),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return flags.nonce_name(settings, node.launch_id)

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return flags.package_version(settings, "lmdeploy")

    def reported(self, log: str) -> dict[str, float | int | str]:
        """turbomind says the size of its cache, not what a token takes of it; pytorch says both, but only at the log
        level where it also writes lines per request (pytorch/engine/executor/base.py)."""
        found: dict[str, float | int | str] = {}
        if match := CACHE_SIZE.search(log):
            found["kv_cache_bytes"] = round(float(match[1]) * (1 << UNITS[match[2]]))
        if "Fallback to pytorch engine because" in log:  # lmdeploy/archs.py
            found["backend"] = "pytorch"
        return found


def _features(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    spec, tokens = settings.speculative, settings.kv_cache_tokens
    arguments = flags.pairs(
        {
            "--max-batch-size": settings.max_num_seqs or pins["max_num_seqs"],
            "--max-prefill-token-num": settings.max_num_batched_tokens or pins["max_num_batched_tokens"],
            "--num-gpu-blocks": -(-tokens // (settings.block_size or BLOCK)) if tokens else None,
            "--ep": settings.tensor_parallel_size if settings.enable_expert_parallel else None,
            "--speculative-algorithm": ALGORITHMS[spec.method] if spec else None,
            "--speculative-draft-model": spec.model if spec else None,
            "--speculative-num-draft-tokens": spec.num_speculative_tokens if spec else None,
        }
    )
    if settings.lora_modules:
        arguments += ["--adapters", *(f"{name}={path}" for name, path in settings.lora_modules.items())]
    return arguments


def _backend_problems(settings: EngineSettings) -> list[str]:
    if settings.extra_args.get("--backend") == "pytorch":
        return ["nnodes: LMDeploy's pytorch backend spans nodes through Ray only"] if settings.nnodes > 1 else []
    found = [
        f"{field}: only LMDeploy's pytorch backend has it (extra_args: {{--backend: pytorch}})"
        for field in PYTORCH_ONLY
        if getattr(settings, field) is not None
    ]
    if settings.kv_cache_dtype is not None and settings.kv_cache_dtype.startswith("fp8"):
        found.append("kv_cache_dtype: LMDeploy's turbomind backend refuses fp8; use int8, int4 or the pytorch backend")
    return found


def _feature_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.enable_lora and not settings.lora_modules:
        found.append("enable_lora: LMDeploy needs the adapters themselves at start (lora_modules)")
    if settings.max_num_queued_reqs == 0:
        found.append("max_num_queued_reqs: 0 would let no request in")
    return found

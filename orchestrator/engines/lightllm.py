"""LightLLM (``python -m lightllm.server.api_server``), as of July 2025 (commit fc72ffab); GPUs, local model folders.

It takes no API key and lists no models, so readiness is proven by the owner of the listening socket alone. Its HTTP
server opens once the model is loaded, and ``/health`` generates two tokens before it says 200.
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

# Nearly all quantize a 16-bit checkpoint while it loads.
QUANTIZATION = (
    *("none", "ppl-w4a16-128", "flashllm-w6a16", "ao-int4wo-32", "ao-int4wo-64", "ao-int4wo-128", "ao-int4wo-256"),
    *("ao-int8wo", "ao-fp8w8a16", "ao-fp6w6a16", "vllm-w8a8", "vllm-fp8w8a8", "vllm-fp8w8a8-b128"),
    "triton-fp8w8a8-block128",
)
TABLE = {
    "trust_remote_code": Flag("--trust_remote_code", "bare"),
    "tensor_parallel_size": Flag("--tp"),
    "data_parallel_size": Flag("--dp"),
    "dtype": Flag("--data_type", choices=("fp16", "float16", "bf16", "bfloat16", "fp32", "float32")),
    "quantization": Flag("--quant_type", choices=QUANTIZATION),
    "kv_cache_dtype": Flag("--mode", choices=("triton_int8kv", "ppl_int8kv", "triton_fp8kv")),
    "max_model_len": Flag("--max_req_total_len"),
    "gpu_memory_utilization": Flag("--mem_fraction"),
    "kv_cache_tokens": Flag("--max_total_token_num"),
    "guided_decoding_backend": Flag("--output_constraint_mode", choices=("outlines", "xgrammar", "none")),
    "enforce_eager": Flag("--disable_cudagraph", "bare"),
}
OTHERS = {
    "served_model_name": "--model_name",
    "max_num_seqs": "--running_max_req_size",
    "max_num_batched_tokens": "--batch_max_tokens",
    "enable_chunked_prefill": "--disable_chunked_prefill",
    "enable_prefix_caching": "--disable_dynamic_prompt_cache",
    "speculative": "--mtp_mode",
}
OURS = ("--host", "--port", "--model_dir", "--nnodes", "--node_rank", "--nccl_host", "--nccl_port", "--run_mode")
KNOWN = frozenset({*TABLE, *OTHERS, "nnodes", "enable_expert_parallel"})
REASONS = {
    "pipeline_parallel_size": "LightLLM has no pipeline parallelism",
    "revision": "LightLLM reads a local folder; fetch the revision there",
    "tokenizer": "LightLLM takes the model's own tokenizer",
    "load_format": "LightLLM reads the checkpoint's own weights only",
    "max_num_queued_reqs": "LightLLM has an unbounded queue",
    "max_input_len": "LightLLM limits input and output together; use max_model_len",
    "block_size": "LightLLM keeps its KV cache token by token",
    "enable_lora": "LightLLM has no LoRA here",
    "kv_cache_memory_bytes": "LightLLM counts its KV cache in tokens; use kv_cache_tokens",
    "scheduling_policy": "LightLLM serves in order of arrival",
    "stream_interval": "LightLLM sends every token as it comes",
    "hf_overrides": "LightLLM reads the model's own config.json",
    "kv_transfer_config": "LightLLM has --run_mode instead, with processes of its own",
    "cpu_offload_gb": "LightLLM keeps all weights on the GPUs",
    "distributed_executor_backend": "LightLLM has one way to start its ranks; leave it out",
}
MAX_MODEL_LEN, CHUNK = 16384, 4096  # its own defaults
PINS = {"max_num_seqs": 1000, "max_num_batched_tokens": 8192}  # the first is its own default, said aloud


class Lightllm:
    """See the module."""

    name: ClassVar[str] = "lightllm"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"  # /readiness is a constant
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "lightllm_batch_current_size"),
        Metric("waiting", "lightllm_queue_size"),
        # its lightllm_request_queue_duration_bucket is declared and never filled
        Metric("prefix_query_tokens_total", "lightllm_request_input_length_sum"),
        Metric("prefix_hit_tokens_total", "lightllm_cache_length_sum"),
        Metric("ttft_s_sum", "lightllm_request_first_token_duration_sum"),
        Metric("ttft_count", "lightllm_request_first_token_duration_count"),
        Metric("prompt_tokens_total", "lightllm_request_input_length_sum"),
        Metric("generation_tokens_total", "lightllm_request_generated_tokens_sum"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.gpu_only("LightLLM", hardware),
            *flags.field_problems("LightLLM", settings, TABLE, OTHERS, KNOWN, REASONS, OURS),
            *flags.whole_nodes(settings),
            *flags.speculative_problems("LightLLM", settings.speculative, ("mtp",), ("mtp",)),
            *flags.not_in_docker("LightLLM", settings),
            *_value_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        pins = flags.left_open(settings, PINS)
        if settings.enable_chunked_prefill is False and "max_num_batched_tokens" in pins:
            longest = settings.max_model_len or MAX_MODEL_LEN  # a whole prompt must fit into one batch
            pins["max_num_batched_tokens"] = max(pins["max_num_batched_tokens"], longest)
        return pins

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *(flags.program(settings, "python3"), "-m", "lightllm.server.api_server"),
            *("--model_dir", node.model_path or settings.model, "--model_name", self.served_name(settings, node)),
            *("--host", node.bind, "--port", str(node.port), "--nccl_port", str(node.master_port)),
            *flags.mapped(settings, TABLE),
            *_features(settings, pins),
            *_nodes(settings, node),
            *flags.extra_arguments(settings),
        ]
        env = flags.environment(settings, hardware, node)
        if settings.enable_expert_parallel:
            env["MOE_MODE"] = "EP"
        command = Command(tuple(argv), env | settings.env, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect(
                "openai_completions",
                "/v1/completions",
                prompt_token_ids=True,
                min_tokens_field=None,
                include_usage=False,  # it has no usage in streams
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", min_tokens_field=None, include_usage=False),
            "tgi": Dialect(
                "tgi",
                "/generate_stream",
                min_tokens_field="min_new_tokens",
                include_usage=False,
                done_marker=False,
                model_field=False,
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return flags.nonce_name(settings, node.launch_id)

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return flags.package_version(settings, "lightllm")

    def reported(self, log: str) -> dict[str, float | int | str]:
        # lightllm/common/mem_manager.py where it chooses the size itself, else lightllm/server/api_start.py
        if sizes := PROFILED.search(log):
            tokens = int(sizes[2])
            return {"kv_cache_tokens": tokens, "kv_cache_bytes": round(float(sizes[1]) * tokens * (1 << 20))}
        given = re.search(r"all start args:.*\bmax_total_token_num=(\d+)", log)
        return {"kv_cache_tokens": int(given[1])} if given else {}


PROFILED = re.compile(r"([\d.]+) MB is the size of one token kv cache\s.*?(\d+) is the profiled max_total", re.S)


def _features(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    spec, tokens = settings.speculative, settings.max_num_batched_tokens or pins["max_num_batched_tokens"]
    chunked = settings.enable_chunked_prefill is not False
    arguments = flags.pairs(
        {
            "--running_max_req_size": settings.max_num_seqs or pins["max_num_seqs"],
            "--batch_max_tokens": tokens,
            "--chunked_prefill_size": tokens if chunked and tokens < CHUNK else None,  # never above the batch
            "--mtp_mode": "deepseekv3" if spec else None,
            "--mtp_draft_model_dir": spec.model if spec else None,
            "--mtp_step": spec.num_speculative_tokens if spec else None,
        }
    )
    if not chunked:
        arguments.append("--disable_chunked_prefill")
    if settings.enable_prefix_caching is False:
        arguments.append("--disable_dynamic_prompt_cache")
    return arguments


def _nodes(settings: EngineSettings, node: Node) -> list[str]:
    if settings.nnodes == 1:
        return []
    return ["--nnodes", str(settings.nnodes), "--node_rank", str(node.rank), "--nccl_host", node.master_host]


def _value_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.data_parallel_size not in (1, settings.tensor_parallel_size):
        found.append(
            "data_parallel_size: LightLLM wants it equal to tensor_parallel_size, or 1 (multi-head latent attention)"
        )
    off = [field for field in ("enable_prefix_caching", "enable_chunked_prefill") if getattr(settings, field) is False]
    if off == ["enable_prefix_caching"]:
        found.append(
            "enable_prefix_caching: LightLLM splits prompts only with it; set enable_chunked_prefill: false too"
        )
    if off and settings.guided_decoding_backend not in (None, "none"):
        found.append(f"guided_decoding_backend: LightLLM needs {' and '.join(off)} on for it")
    longest, tokens = settings.max_model_len or MAX_MODEL_LEN, settings.max_num_batched_tokens
    if settings.enable_chunked_prefill is False and tokens and tokens < longest:
        found.append(f"max_num_batched_tokens: {tokens} must hold a whole prompt ({longest}) where none is split")
    return found

"""LightLLM (``python -m lightllm.server.api_server``), flags as of July 2025; GPUs, local model folders.

It takes no API key and lists no models, so readiness is proven by the owner of the listening socket alone.
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
        Metric("queue_time_s_sum", "lightllm_request_queue_duration_bucket_sum"),
        Metric("queue_time_count", "lightllm_request_queue_duration_bucket_count"),
        Metric("ttft_s_sum", "lightllm_request_first_token_duration_sum"),
        Metric("ttft_count", "lightllm_request_first_token_duration_count"),
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
        return flags.left_open(settings, PINS)

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
        # lightllm/common/mem_manager.py: said only where it chooses the size itself
        match = re.search(r"(\d+) is the profiled max_total_token_num", log)
        return {"kv_cache_tokens": int(match[1])} if match else {}


def _features(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    spec = settings.speculative
    arguments = flags.pairs(
        {
            "--running_max_req_size": settings.max_num_seqs or pins["max_num_seqs"],
            "--batch_max_tokens": settings.max_num_batched_tokens or pins["max_num_batched_tokens"],
            "--mtp_mode": "deepseekv3" if spec else None,
            "--mtp_draft_model_dir": spec.model if spec else None,
            "--mtp_step": spec.num_speculative_tokens if spec else None,
        }
    )
    if settings.enable_chunked_prefill is False:
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
    return found

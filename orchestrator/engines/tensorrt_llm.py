"""TensorRT-LLM (``trtllm-serve``, PyTorch backend), as its 1.2 reads; one node.

Everything but the address goes into one YAML file: releases differ in whether that file or the command line wins, so
nothing is said twice. It takes no API key; over several nodes it needs an MPI launcher of its own. Its HTTP server
opens once the model is loaded. Its ``/metrics`` is JSON that is gone once read; the Prometheus metrics are elsewhere.
Those of 1.3 are asked for as well: what a release does not have stays null.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from orchestrator.engines import flags
from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.container import in_container
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative

CONFIG = "trtllm.yaml"
# Field -> key of the YAML file, dots for levels.
TABLE = {
    "revision": "revision",
    "tokenizer": "tokenizer",
    "trust_remote_code": "trust_remote_code",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "max_model_len": "max_seq_len",
    "max_input_len": "max_input_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_prefix_caching": "kv_cache_config.enable_block_reuse",
    "gpu_memory_utilization": "kv_cache_config.free_gpu_memory_fraction",  # of what is free after the weights
    "kv_cache_tokens": "kv_cache_config.max_tokens",
    "block_size": "kv_cache_config.tokens_per_block",
    "stream_interval": "stream_interval",
    "scheduling_policy": "scheduler_config.capacity_scheduler_policy",
    "attention_backend": "attn_backend",
    "guided_decoding_backend": "guided_decoding_backend",
    "load_format": "load_format",
}
KNOWN = frozenset({*TABLE, "enable_expert_parallel", "enforce_eager", "speculative", "enable_lora", "max_lora_rank"})
OURS = ("--host", "--port", "--backend", "--config", "--extra_llm_api_options")
# Its command line has these too; the file would contradict them, or they it.
ON_THE_COMMAND_LINE = {
    "--tp_size": "tensor_parallel_size",
    "--tensor_parallel_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--pipeline_parallel_size": "pipeline_parallel_size",
    "--ep_size": "enable_expert_parallel",
    "--moe_expert_parallel_size": "enable_expert_parallel",
    "--max_batch_size": "max_num_seqs",
    "--max_num_tokens": "max_num_batched_tokens",
    "--max_seq_len": "max_model_len",
    "--free_gpu_memory_fraction": "gpu_memory_utilization",
    "--kv_cache_free_gpu_memory_fraction": "gpu_memory_utilization",
    "--enable_chunked_prefill": "enable_chunked_prefill",
    "--tokenizer": "tokenizer",
    "--revision": "revision",
    "--trust_remote_code": "trust_remote_code",
}
REASONS = {
    "data_parallel_size": "trtllm-serve has no data parallelism of whole models; use replicas",
    "quantization": "TensorRT-LLM takes the quantization from the checkpoint; name a quantized model",
    "served_model_name": "trtllm-serve answers to the model's own name",
    "max_num_queued_reqs": "trtllm-serve has an unbounded queue",
    "kv_cache_memory_bytes": "TensorRT-LLM counts its KV cache in tokens; use kv_cache_tokens",
    "kv_transfer_config": "disaggregated serving has a launcher of its own (trtllm-serve disaggregated)",
}
PINS = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
POLICIES = ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH")
DECODING = {"draft_model": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP"}
WITH_MODEL, LACKING = ("draft_model", "eagle3"), ("draft_tensor_parallel_size", "prompt_lookup_min")
# It refuses unknown fields of a request.
FIELDS = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "ignore_eos",
        "min_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
    }
)


class TensorrtLlm:
    """See the module."""

    name: ClassVar[str] = "tensorrt_llm"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/prometheus/metrics"
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "trtllm_num_requests_running"),
        Metric("waiting", "trtllm_num_requests_waiting"),
        Metric("kv_usage", "trtllm_kv_cache_utilization"),
        Metric("prefix_query_tokens_total", "trtllm_prompt_tokens_total"),
        Metric("prefix_hit_tokens_total", "trtllm_prompt_cached_tokens_total"),
        Metric("queue_time_s_sum", "trtllm_request_queue_time_seconds_sum"),
        Metric("queue_time_count", "trtllm_request_queue_time_seconds_count"),
        Metric("ttft_s_sum", "trtllm_time_to_first_token_seconds_sum"),
        Metric("ttft_count", "trtllm_time_to_first_token_seconds_count"),
        Metric("spec_draft_tokens_total", "trtllm_spec_decode_num_draft_tokens_total"),
        Metric("spec_accepted_tokens_total", "trtllm_spec_decode_num_accepted_tokens_total"),
        Metric("prompt_tokens_total", "trtllm_prompt_tokens_total"),
        Metric("generation_tokens_total", "trtllm_generation_tokens_total"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        own = {flag: f"the field {field}" for flag, field in ON_THE_COMMAND_LINE.items()}
        return [
            *flags.gpu_only("TensorRT-LLM", hardware),
            *flags.unmapped("TensorRT-LLM", settings, KNOWN, REASONS),
            *flags.taken("TensorRT-LLM", settings, {}, own | dict.fromkeys(OURS, "this program")),
            *_nodes_problems(settings),
            *flags.only(settings, "scheduling_policy", POLICIES, "these are its capacity policies"),
            *flags.only(settings, "guided_decoding_backend", ("xgrammar", "llguidance"), "TensorRT-LLM has these"),
            *flags.only(settings, "load_format", ("auto", "dummy"), "TensorRT-LLM has these"),
            *flags.speculative_problems("TensorRT-LLM", settings.speculative, DECODING, WITH_MODEL, LACKING),
            *_feature_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return flags.left_open(settings, PINS)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *(flags.program(settings, "trtllm-serve"), node.model_path or settings.model),
            *("--host", node.bind, "--port", str(node.port), "--backend", "pytorch"),
            *("--extra_llm_api_options", CONFIG),  # the name that old and new releases know
            *flags.extra_arguments(settings),
        ]
        env = flags.environment(settings, hardware, node)
        files = {CONFIG: json.dumps(configuration(settings, pins), indent=1, sort_keys=True)}  # JSON is YAML
        command = Command(tuple(argv), env | settings.env, files=files, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect(
                "openai_completions",
                "/v1/completions",
                prompt_token_ids=True,
                continuous_usage=True,
                allowed_fields=FIELDS | {"prompt"},
            ),
            "chat": Dialect(
                "openai_chat", "/v1/chat/completions", continuous_usage=True, allowed_fields=FIELDS | {"messages"}
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        path = node.model_path or settings.model
        return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith("/") else path

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None

    def reported(self, log: str) -> dict[str, float | int | str]:
        # It makes a small cache first to see what a step needs, then the one it serves with: the last counts.
        # kvCacheManager.cpp, _torch/pyexecutor/py_executor_creator.py and _util.py (absent with kv_cache_tokens given)
        found: dict[str, float | int | str] = {}
        if sizes := re.findall(r"after loading model weights \(inside torch\) in .*: ([\d.]+) GiB", log):
            found["weight_bytes"] = round(max(map(float, sizes)) * (1 << 30))
        for gib, tokens in re.findall(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)", log):
            found |= {"kv_cache_tokens": int(tokens), "kv_cache_bytes": round(float(gib) * (1 << 30))}
        for length in re.findall(r"\bmax_seq_len=(\d+), max_num_requests=", log):
            found["max_model_len"] = int(length)
        return found


def configuration(settings: EngineSettings, pins: dict[str, int]) -> dict[str, Any]:
    """The YAML file: fields that were set, pins, and what makes its metrics appear."""
    document: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    for field, path in TABLE.items():
        value = pins.get(field, getattr(settings, field))
        if value is not None:
            _put(document, path, value)
    if settings.enable_expert_parallel:
        document["moe_expert_parallel_size"] = settings.tensor_parallel_size
    if settings.enforce_eager:
        document["cuda_graph_config"] = None
    if settings.enable_lora:
        document["lora_config"] = {"max_lora_rank": settings.max_lora_rank} if settings.max_lora_rank else {}
    if settings.speculative:
        document["speculative_config"] = _speculative(settings.speculative)
    return document


def _put(document: dict[str, Any], path: str, value: object) -> None:
    *levels, key = path.split(".")
    for level in levels:
        document = document.setdefault(level, {})
    document[key] = value


def _speculative(spec: Speculative) -> dict[str, Any]:
    found: dict[str, Any] = {"decoding_type": DECODING[spec.method]}
    if spec.method == "mtp":
        return found | {"num_nextn_predict_layers": spec.num_speculative_tokens}
    found["max_draft_len"] = spec.num_speculative_tokens
    if spec.model:
        found["speculative_model_dir"] = spec.model
    if spec.prompt_lookup_max:
        found["max_matching_ngram_size"] = spec.prompt_lookup_max
    return found


def _nodes_problems(settings: EngineSettings) -> list[str]:
    if settings.nnodes == 1:
        return []
    return ["nnodes: TensorRT-LLM spans nodes only under mpirun or srun, which place the ranks themselves"]


def _feature_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.max_lora_rank and not settings.enable_lora:
        found.append("max_lora_rank: needs enable_lora: true")
    return found

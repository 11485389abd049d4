"""LightLLM (``python -m lightllm.server.api_server``) of early 2026, on GPUs, with local model folders.

It is installed from its main branch, since no package index has it; versions of 2025 refuse ``--llm_kv_type`` and
``--enable_ep_moe``. It takes no API key and lists no models, so only the owner of the listening socket proves that it
is ours. Its HTTP server opens once the model is loaded; ``/health`` generates two tokens before it answers 200.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, Node
from orchestrator.engines.engine import Drafts, Engine, LogWords, Reported
from orchestrator.errors import FailureKind
from orchestrator.spec.dialect import TGI_STREAM, openai
from orchestrator.spec.settings import EngineSettings, Hardware

# All but awq quantize a 16-bit checkpoint while it loads.
QUANTIZATION = (
    *("none", "vllm-w8a8", "vllm-fp8w8a8", "vllm-fp8w8a8-b128", "deepgemm-fp8w8a8-b128", "triton-fp8w8a8-block128"),
    *("awq", "awq_marlin"),
)
MAX_MODEL_LEN, CHUNK = 16384, 8192  # its own defaults
PINS = {"max_num_seqs": 1000, "max_num_batched_tokens": 8192}  # the first is LightLLM's default, made explicit
PROFILED = re.compile(r"([\d.]+) MB is the size of one token kv cache\s.*?(\d+) is the profiled max_total", re.S)


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    if settings.enable_chunked_prefill is not False:
        return PINS
    longest = settings.max_model_len or MAX_MODEL_LEN  # a whole prompt must fit into one batch
    return PINS | {"max_num_batched_tokens": max(PINS["max_num_batched_tokens"], longest)}


def _start(settings: EngineSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *(command.program(settings, "python3"), "-m", "lightllm.server.api_server"),
        *("--model_dir", node.model_path or settings.model, "--model_name", command.nonce_name(settings, node)),
        *("--host", node.bind, "--port", str(node.http_port), "--nccl_port", str(node.master_port)),
        *_nodes(settings, node),
    ]
    return Command(tuple(argv))


def _chunk(tokens: int, settings: EngineSettings) -> int | None:
    """LightLLM's default (None), but never more than the batch."""
    return tokens if settings.enable_chunked_prefill is not False and tokens < CHUNK else None


def _nodes(settings: EngineSettings, node: Node) -> list[str]:
    if settings.nnodes == 1:
        return []
    return ["--nnodes", str(settings.nnodes), "--node_rank", str(node.rank), "--nccl_host", node.master_host]


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    yield from command.not_in_docker("LightLLM", settings)
    if settings.data_parallel_size > 1 and settings.tensor_parallel_size > 1:
        yield "tensor_parallel_size: LightLLM's data-parallel ranks are of one GPU each; set it or data_parallel_size"
    off = [field for field in ("enable_prefix_caching", "enable_chunked_prefill") if getattr(settings, field) is False]
    if off == ["enable_prefix_caching"]:
        yield ("enable_prefix_caching: LightLLM splits prompts only with it; set enable_chunked_prefill: false too")
    longest, tokens = settings.max_model_len or MAX_MODEL_LEN, settings.max_num_batched_tokens
    if settings.enable_chunked_prefill is False and tokens and tokens < longest:
        yield f"max_num_batched_tokens: {tokens} must hold a whole prompt ({longest}) where none is split"


def _reported(log: str) -> Reported:
    # lightllm/common/mem_manager.py where it chooses the size itself, else lightllm/server/api_start.py
    if sizes := PROFILED.search(log):
        tokens = int(sizes[2])
        return {"kv_cache_tokens": tokens, "kv_cache_bytes": round(float(sizes[1]) * tokens * (1 << 20))}
    given = re.search(r"all start args:.*\bmax_total_token_num=(\d+)", log)
    return {"kv_cache_tokens": int(given[1])} if given else {}


ENGINE = Engine(
    name="lightllm",
    title="LightLLM",
    metrics={
        "running": "lightllm_batch_current_size",
        "waiting": "lightllm_queue_size",
        # lightllm_request_queue_duration_bucket exists and is never filled
        "prefix_query_tokens_total": "lightllm_request_input_length_sum",
        "prefix_hit_tokens_total": "lightllm_cache_length_sum",
        "ttft_s_sum": "lightllm_request_first_token_duration_sum",
        "ttft_count": "lightllm_request_first_token_duration_count",
        "prompt_tokens_total": "lightllm_request_input_length_sum",
        "generation_tokens_total": "lightllm_request_generated_tokens_sum",
    },
    # It has no usage in streams.
    dialects=lambda settings: {
        **openai(prompt_token_ids=True, min_tokens_field=None, include_usage=False),
        "tgi": replace(TGI_STREAM, length_control="ignore_eos", min_tokens_field="min_new_tokens"),
    },
    flags={
        "trust_remote_code": Flag("--trust_remote_code", "bare"),
        # all GPUs: its data-parallel ranks are of attention, within the tensor-parallel group
        "tensor_parallel_size": Flag("--tp", of=lambda size, given: size * given.data_parallel_size),
        "data_parallel_size": Flag("--dp"),
        "dtype": Flag("--data_type", choices=("fp16", "float16", "bf16", "bfloat16", "fp32", "float32")),
        "quantization": Flag("--quant_type", choices=QUANTIZATION),
        "enable_expert_parallel": Flag("--enable_ep_moe", "bare"),
        "kv_cache_dtype": Flag("--llm_kv_type", choices=("None", "int8kv", "int4kv")),
        "max_num_seqs": Flag("--running_max_req_size"),
        "max_num_batched_tokens": (Flag("--batch_max_tokens"), Flag("--chunked_prefill_size", of=_chunk)),
        "max_model_len": Flag("--max_req_total_len"),
        "gpu_memory_utilization": Flag("--mem_fraction"),
        "kv_cache_tokens": Flag("--max_total_token_num"),
        "enable_chunked_prefill": Flag("--disable_chunked_prefill", "off"),
        "enable_prefix_caching": Flag("--disable_dynamic_prompt_cache", "off"),
        "enforce_eager": Flag("--disable_cudagraph", "bare"),
        "speculative": (
            Flag("--mtp_mode", of=lambda spec, _: "eagle_with_att"),  # of DeepSeek's own checkpoint
            Flag("--mtp_draft_model_dir", of=lambda spec, _: spec.model),
            Flag("--mtp_step", of=lambda spec, _: spec.num_speculative_tokens),
        ),
    },
    taken=("served_model_name",),
    words={
        "kv_cache_dtype": {"auto": "None", "int8": "int8kv", "int4": "int4kv"},
        "quantization": {
            **dict.fromkeys(("fp8", "fp8_per_channel"), "vllm-fp8w8a8"),
            "fp8_per_block": "vllm-fp8w8a8-b128",
            "int8": "vllm-w8a8",
        },
    },
    refused={
        "revision": "LightLLM reads a local folder; fetch the revision there",
        "block_size": "LightLLM keeps its KV cache token by token",
        "kv_transfer_config": "LightLLM has --run_mode instead, with processes of its own",
    },
    reserved=(
        *("--host", "--port", "--model_dir", "--model_name", "--run_mode"),
        *("--nnodes", "--node_rank", "--nccl_host", "--nccl_port"),
    ),
    drafts=Drafts(("mtp",), with_model=("mtp",)),
    several_nodes=True,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    reported=_reported,
    log=LogWords(
        failures={
            FailureKind.OOM_KV: (r"-[\d.]+ GB space is available after load the model weight|check max len infer fail"),
            FailureKind.BAD_QUANT: r"QuantMethod '.*' not supported",
            FailureKind.BAD_MODEL: r"Model type .* is not supported",
            FailureKind.PORT_TAKEN: r"Connection in use: \(|port \d+ has been used",
            FailureKind.BAD_CONFIG: r"assert .*% self\.tp_world_size_ == 0",
            FailureKind.ENGINE_DEAD: r"init func \w+ : (?!init ok)|kill all process consecutive_failures",
        },
        # The excepted line is the only one about a full cache.
        passing=r"(INFO|WARNING|DEBUG)\b(?!.*GB space is available after load)",
    ),
)

"""LightLLM 1.2 (``python -m lightllm.server.api_server``), on GPUs, with models in local folders.

What is said here was read in its source. It is installed from its repository, since no package
index has it; versions of 2025 refuse many of these flags. It takes no API key. Its HTTP server
opens once the model is loaded.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.base.errors import FailureKind
from orchestrator.engines import command
from orchestrator.engines.command import Command, Flag, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import Engine, Reported
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.dialect import TGI_STREAM, openai
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PinnedSettings

# All but awq quantize a 16-bit checkpoint while it loads. What follows w8a8 names the kernels.
QUANTIZATION = (
    "none",
    "awq",
    "awq_marlin",
    "w8a8",
    "w8a8-vllm",
    "fp8w8a8",
    "fp8w8a8-vllm",
    "fp8w8a8-pt",
    "fp8w8a8-pt-vllm",
    "fp8w8a8-pt-sgl",
    "fp8w8a8-pt-triton",
    "fp8w8a8-b128",
    "fp8w8a8-b128-vllm",
    "fp8w8a8-b128-deepgemm",
    "fp8w8a8-b128-triton",
    "fp8w8a8g128",
    "fp8w8a8g128-triton",
    "fp8w8a8g64",
    "fp8w8a8g64-triton",
    "fp4fp8-b32-deepgemm",
)
KV_TYPES = ("None", "int8kv", "int4kv", "fp8kv_sph", "fp8kv_spt", "fp8kv_dsa")
CALIBRATION = "--kv_quant_calibration_config_path"
MTP = {"mtp": "eagle_with_att"}
BATCH = 16384  # tokens: its default for all data-parallel ranks together
PROFILED = re.compile(
    r"([\d.]+) MB is the size of one token kv cache\s.*?(\d+) is the profiled max_total", re.S
)


def _pins(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    """LightLLM's own defaults. Where prompts are not split, it makes its batch large enough for the
    longest one itself.
    """
    sequences = {"max_num_seqs": 256}
    if settings.enable_chunked_prefill is False:
        return sequences
    return sequences | {"max_num_batched_tokens": BATCH // settings.data_parallel_size}


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *(command.program(settings, "python3"), "-m", "lightllm.server.api_server"),
        *("--model_dir", node.model_path or settings.model),
        *("--model_name", command.nonce_name(settings, node)),
        *("--host", node.bind, "--port", str(node.http_port), "--nccl_port", str(node.master_port)),
        *_nodes(settings, node),
    ]
    return Command(tuple(argv))


def _nodes(settings: EngineSettings, node: Node) -> list[str]:
    if settings.nnodes == 1:
        return []
    arguments = ["--nnodes", str(settings.nnodes), "--node_rank", str(node.rank)]
    return [*arguments, "--nccl_host", node.master_host]


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.data_parallel_size > 1 and settings.tensor_parallel_size > 1:
        yield (
            "tensor_parallel_size: LightLLM's data-parallel ranks have one GPU each; set it "
            "or data_parallel_size"
        )
    splits_prompts = settings.enable_chunked_prefill is not False
    if settings.enable_prefix_caching is False and splits_prompts:
        yield (
            "enable_prefix_caching: LightLLM splits prompts only with it; set "
            "enable_chunked_prefill: false too"
        )
    longest = settings.max_model_len
    batch = settings.max_num_batched_tokens
    if not splits_prompts and batch and longest and batch < longest:
        yield (
            f"max_num_batched_tokens: {batch} must hold a whole prompt ({longest}) where none "
            "is split"
        )
    needs_scales = settings.kv_cache_dtype in ("fp8kv_sph", "fp8kv_spt")
    if needs_scales and CALIBRATION not in settings.extra_args:
        needed = f"extra_args: {{{CALIBRATION}: file}}"
        yield f"kv_cache_dtype: LightLLM's {settings.kv_cache_dtype} needs the scales: {needed}"


def _reported(log: str) -> Reported:
    # where LightLLM chooses the size itself, common/kv_cache_mem_manager/mem_manager.py logs it
    sizes = PROFILED.search(log)
    if sizes:
        token_mib = float(sizes[1])
        tokens = int(sizes[2])
        return {
            "kv_cache_tokens": tokens,
            "kv_cache_bytes": round(token_mib * tokens * (1 << 20)),
        }
    # where the size was given, server/api_start.py logs it
    arguments = re.search(r"all start args:.*\bmax_total_token_num=(\d+)", log)
    return {"kv_cache_tokens": int(arguments[1])} if arguments else {}


ENGINE = Engine(
    name="lightllm",
    title="LightLLM",
    version="1.2",
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
    dialects=lambda settings: {
        **openai(prompt_token_ids=True, min_tokens_field=None),
        "tgi": replace(
            TGI_STREAM,
            length_control="ignore_eos",
            min_tokens_field="min_new_tokens",
            constraints={},
        ),
    },
    flags={
        "trust_remote_code": Flag("--trust_remote_code", "bare"),
        # --tp counts all GPUs: only attention is data-parallel, within the tensor-parallel group
        "tensor_parallel_size": Flag(
            "--tp", value_from=lambda size, settings: size * settings.data_parallel_size
        ),
        "data_parallel_size": Flag("--dp"),
        "dtype": Flag(
            "--data_type", choices=("fp16", "float16", "bf16", "bfloat16", "fp32", "float32")
        ),
        "quantization": Flag("--quant_type", choices=QUANTIZATION),
        "enable_expert_parallel": Flag("--enable_ep_moe", "bare"),
        "kv_cache_dtype": Flag("--llm_kv_type", choices=KV_TYPES),
        "max_num_seqs": Flag("--running_max_req_size"),
        "max_num_batched_tokens": Flag("--batch_max_tokens"),
        "max_model_len": Flag("--max_req_total_len"),
        "gpu_memory_utilization": Flag("--mem_fraction"),
        "kv_cache_tokens": Flag("--max_total_token_num"),
        "enable_chunked_prefill": Flag("--disable_chunked_prefill", "off"),
        "enable_prefix_caching": Flag("--disable_dynamic_prompt_cache", "off"),
        "enforce_eager": Flag("--disable_cudagraph", "bare"),
        "speculative": (
            # `mtp` becomes the mode for DeepSeek's checkpoints; LightLLM's own names are kept
            Flag("--mtp_mode", value_from=lambda spec, _: MTP.get(spec.method, spec.method)),
            Flag("--mtp_draft_model_dir", value_from=lambda spec, _: spec.model),
            Flag("--mtp_step", value_from=lambda spec, _: spec.num_speculative_tokens),
        ),
    },
    handled_fields=("served_model_name",),
    value_names={
        "kv_cache_dtype": {"auto": "None", "int8": "int8kv", "int4": "int4kv"},
        "quantization": {
            **dict.fromkeys(("fp8", "fp8_per_channel"), "fp8w8a8"),
            "fp8_per_tensor": "fp8w8a8-pt",
            "fp8_per_block": "fp8w8a8-b128",
            "int8": "w8a8",
        },
    },
    unsupported={
        "revision": "LightLLM reads a local folder; fetch the revision there",
        "block_size": "LightLLM keeps its KV cache token by token",
        "kv_transfer_config": "LightLLM has --run_mode instead, with processes of its own",
    },
    reserved=(
        *("--host", "--port", "--model_dir", "--model_name", "--run_mode"),
        *("--nnodes", "--node_rank", "--nccl_host", "--nccl_port"),
    ),
    drafts=DraftMethods(MTP, flag="--mtp_mode", tokens_flags=("--mtp_step",)),
    several_nodes=True,
    pins=_pins,
    more_problems=_problems,
    start=_start,
    # The fraction is of all memory, and holds weights and KV cache
    # (kv_cache_mem_manager/mem_manager.py).
    rules=ModelRules(memory_fraction=0.8, share_of="static", allocates_tokens=True),
    reported=_reported,
    log=LogWords(
        failures={
            FailureKind.OOM_KV: (
                r"-[\d.]+ GB space is available after load the model weight"
                r"|check max len infer fail"
                r"|max_total_token_num must be (?:>=|greater than)"
            ),
            FailureKind.BAD_QUANT: r"QuantMethod '.*' not supported",
            FailureKind.BAD_MODEL: r"Model type .* is not supported",
            FailureKind.PORT_TAKEN: r"port \d+ has been used",
            FailureKind.BAD_CONFIG: r"assert .*% self\.tp_world_size_ == 0",
            FailureKind.ENGINE_DEAD: (
                r"init func \w+ : (?!init ok)|kill all process consecutive_failures"
            ),
        },
        # no other line says that the cache is full
        causes_at_any_level=r"-[\d.]+ GB space is available after load",
    ),
)

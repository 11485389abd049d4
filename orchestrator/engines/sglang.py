"""SGLang (``sglang serve``), as its 0.5.23 reads; GPUs, one node or several by its own multi-node launch.

Its HTTP server opens once the model is loaded and says 503 until a request of its own has passed.
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

# fp8, mxfp8, bitsandbytes, nvfp4_online, quark_mxfp4 and the w8a8 kinds quantize a 16-bit checkpoint while it loads
# (catalog/quantization.py says which need one made for them).
QUANTIZATION = (
    *("awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "mxfp8", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8"),
    *("modelopt_fp4", "modelopt_mixed", "nvfp4_online", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "w4afp8"),
    *("mxfp4", "auto-round", "auto-round-int8", "compressed-tensors", "quark", "quark_int4fp8_moe", "quark_mxfp4"),
    *("humming", "unquant"),
)
KV_TYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")
POLICIES = (
    *("fcfs", "lpm", "random", "dfs-weight", "lof", "priority", "routing-key", "hrrn", "shortest-prefill-first"),
)
LOAD_FORMATS = (
    *("auto", "pt", "safetensors", "npcache", "dummy", "sharded_state", "presharded", "gguf", "bitsandbytes"),
    *("mistral", "layered", "remote", "remote_instance", "fastsafetensors", "instanttensor", "runai_streamer"),
    *("expert_pack", "flash_rl"),
)
TABLE = {
    "revision": Flag("--revision"),
    "tokenizer": Flag("--tokenizer-path"),
    "trust_remote_code": Flag("--trust-remote-code", "bare"),
    "hf_overrides": Flag("--json-model-override-args", "json"),
    "tensor_parallel_size": Flag("--tp-size"),
    "pipeline_parallel_size": Flag("--pp-size"),
    "data_parallel_size": Flag("--dp-size"),
    "dtype": Flag("--dtype", choices=("auto", "half", "float16", "bfloat16", "float", "float32")),
    "quantization": Flag("--quantization", choices=QUANTIZATION),
    "kv_cache_dtype": Flag("--kv-cache-dtype", choices=KV_TYPES),
    "max_model_len": Flag("--context-length"),
    "max_num_queued_reqs": Flag("--max-queued-requests"),
    "scheduling_policy": Flag("--schedule-policy", choices=POLICIES),
    "stream_interval": Flag("--stream-interval"),
    "gpu_memory_utilization": Flag("--mem-fraction-static"),  # weights and KV cache, of the whole memory
    "kv_cache_tokens": Flag("--max-total-tokens"),
    "block_size": Flag("--page-size"),
    "guided_decoding_backend": Flag("--grammar-backend", choices=("xgrammar", "outlines", "llguidance", "none")),
    "load_format": Flag("--load-format", choices=LOAD_FORMATS),
    "enable_lora": Flag("--enable-lora", "bare"),
    "max_loras": Flag("--max-loras-per-batch"),
    "max_lora_rank": Flag("--max-lora-rank"),
    "attention_backend": Flag("--attention-backend"),
}
OTHERS = {
    "served_model_name": "--served-model-name",
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--max-prefill-tokens",
    "enable_chunked_prefill": "--chunked-prefill-size",
    "enable_prefix_caching": "--disable-radix-cache",
    "enable_expert_parallel": "--ep-size",
    "enforce_eager": "--cuda-graph-backend-decode",
    "cpu_offload_gb": "--cpu-offload-gb",
    "speculative": "--speculative-algorithm",
    "lora_modules": "--lora-paths",
}
OURS = (
    *("--host", "--port", "--api-key", "--model-path", "--model", "--enable-metrics", "--sampling-defaults"),
    *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"),
)
ALIASES = {
    "--tensor-parallel-size": "the field tensor_parallel_size",
    "--pipeline-parallel-size": "the field pipeline_parallel_size",
    "--data-parallel-size": "the field data_parallel_size",
    "--cuda-graph-backend-prefill": "the field enforce_eager",
}
KNOWN = frozenset({*TABLE, *OTHERS, "nnodes"})
REASONS = {
    "max_input_len": "SGLang limits input and output together; use max_model_len",
    "kv_cache_memory_bytes": "SGLang counts its KV cache in tokens; use kv_cache_tokens",
    "distributed_executor_backend": "SGLang has one way to start its ranks; leave it out",
    "kv_transfer_config": "SGLang has --disaggregation-mode instead; use extra_args",
}
PINS = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}  # it would choose both by the GPU's memory
ALGORITHMS = {"draft_model": "STANDALONE", "ngram": "NGRAM", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
FOLLOWER_GRACE_S = 0.5  # a follower ignores SIGTERM and waits for rank 0's word


class Sglang:
    """See the module."""

    name: ClassVar[str] = "sglang"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/ready"  # /health would generate a token at every poll
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = "/flush_cache"
    metrics: ClassVar[tuple[Metric, ...]] = (
        # Every pipeline stage tells the same requests; with priorities each is told under its own once more.
        Metric("running", 'sglang:num_running_reqs{pp_rank="0",priority=""}'),
        Metric("waiting", 'sglang:num_queue_reqs{pp_rank="0",priority=""}'),
        Metric("kv_usage", "sglang:token_usage"),
        Metric("preemptions_total", 'sglang:num_retracted_requests_total{pp_rank="0"}'),
        Metric("prefix_query_tokens_total", "sglang:prompt_tokens_total"),  # counts cached tokens too
        Metric("prefix_hit_tokens_total", "sglang:cached_tokens_total"),
        Metric("queue_time_s_sum", 'sglang:queue_time_seconds_sum{pp_rank="0"}'),
        Metric("queue_time_count", 'sglang:queue_time_seconds_count{pp_rank="0"}'),
        Metric("ttft_s_sum", "sglang:time_to_first_token_seconds_sum"),
        Metric("ttft_count", "sglang:time_to_first_token_seconds_count"),
        Metric("prompt_tokens_total", "sglang:prompt_tokens_total"),
        Metric("generation_tokens_total", "sglang:generation_tokens_total"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.gpu_only("SGLang", hardware),
            *flags.field_problems("SGLang", settings, TABLE, OTHERS, KNOWN, REASONS, OURS, ALIASES),
            *flags.whole_nodes(settings),
            *_value_problems(settings),
            *flags.speculative_problems("SGLang", settings.speculative, ALGORITHMS, ("draft_model", "eagle", "eagle3")),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return flags.left_open(settings, PINS)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *flags.with_key(settings, "sglang.cli.main", "main", "--api-key"),
            *("serve", "--model-path", node.model_path or settings.model),
            *("--host", node.bind, "--port", str(_port(node)), "--served-model-name", self.served_name(settings, node)),
            *flags.mapped(settings, TABLE),
            *_batching(settings, pins),
            *_features(settings),
            *flags.rendezvous(settings, node),
            *("--enable-metrics", "--enable-cache-report", "--sampling-defaults", "openai"),
            *flags.extra_arguments(settings),
        ]
        env = flags.environment(settings, hardware, node)
        env["SGL_FORCE_SHUTDOWN"] = "1"  # else it drains without a limit when asked to stop
        command = Command(
            tuple(argv),
            env | settings.env,
            {flags.KEY_VARIABLE: api_key},
            grace_s=FOLLOWER_GRACE_S if node.rank else None,
            notes=flags.pin_notes(pins),
        )
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect(
                "openai_completions", "/v1/completions", prompt_token_ids=True, return_token_ids=True
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", return_token_ids=True),
            "native": Dialect(
                "sglang_generate",
                "/generate",
                prompt_token_ids=True,
                min_tokens_field="min_new_tokens",
                include_usage=False,  # every event carries the count so far
                model_field=False,
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return flags.nonce_name(settings, node.launch_id).replace(":", "-")  # it keeps ':' for LoRA names

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return flags.package_version(settings, "sglang")

    def reported(self, log: str) -> dict[str, float | int | str]:
        # managers/scheduler.py, model_executor/model_runner.py, mem_cache/memory_pool.py and kv_pool_runtime.py
        found: dict[str, float | int | str] = {}
        if match := re.search(r"\bmax_total_num_tokens=(\d+), .*\bcontext_len=(\d+)", log):
            found |= {"kv_cache_tokens": int(match[1]), "max_model_len": int(match[2])}
        if sizes := re.findall(r"Load weight end\. elapsed=.*mem usage=([\d.]+) GB", log):
            found["weight_bytes"] = _gib(max(map(float, sizes)))
        caches: dict[str, float] = {}  # by rank; a hybrid model and a draft have one more each
        for rank, sizes_of_one in CACHE.findall(log):
            caches[rank] = caches.get(rank, 0.0) + sum(map(float, re.findall(r"size: ([\d.]+) GB", sizes_of_one)))
        if caches:
            found["kv_cache_bytes"] = _gib(max(caches.values()))
        return found


# "[2026-11-21 18:12:51 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, K size: 1.00 GB, V size: 1.00 GB"
CACHE = re.compile(r"^\[\S+ [\d:.]+([^\]]*)\] .*KV [Cc]ache (?:is )?allocated\. dtype: .*?#tokens: \d+, (.*)", re.M)


def _gib(size: float) -> int:
    return round(size * (1 << 30))  # it writes GB and means GiB


def _port(node: Node) -> int:
    """Followers open a server too, which only says that they live."""
    return node.extra_ports[0] if node.rank and node.extra_ports else node.port


def _batching(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    tokens = settings.max_num_batched_tokens or pins["max_num_batched_tokens"]
    chunk = -1 if settings.enable_chunked_prefill is False else tokens
    arguments = flags.pairs(
        {
            "--max-running-requests": settings.max_num_seqs or pins["max_num_seqs"],
            "--max-prefill-tokens": tokens,
            "--chunked-prefill-size": chunk,
        }
    )
    return [*arguments, "--disable-radix-cache"] if settings.enable_prefix_caching is False else arguments


def _features(settings: EngineSettings) -> list[str]:
    arguments = []
    if settings.enable_expert_parallel:
        arguments += ["--ep-size", str(settings.tensor_parallel_size)]
    if settings.enforce_eager:
        arguments += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    if settings.cpu_offload_gb:
        arguments += ["--cpu-offload-gb", str(int(settings.cpu_offload_gb))]
    if settings.lora_modules:
        arguments += ["--lora-paths", *(f"{name}={path}" for name, path in settings.lora_modules.items())]
    return arguments + _speculative(settings)


def _speculative(settings: EngineSettings) -> list[str]:
    """A chain of k drafts is a tree of width 1: k steps, and k + 1 tokens verified with the last accepted one."""
    spec = settings.speculative
    if spec is None:
        return []
    tokens = spec.num_speculative_tokens
    chain = spec.method != "ngram"
    return flags.pairs(
        {
            "--speculative-algorithm": ALGORITHMS[spec.method],
            "--speculative-draft-model-path": spec.model,
            "--speculative-num-steps": tokens if chain else None,
            "--speculative-eagle-topk": 1 if chain else None,
            "--speculative-num-draft-tokens": tokens + 1 if chain else tokens,
        }
    )


def _value_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.data_parallel_size > 1 and settings.nnodes > 1:
        found.append("data_parallel_size: SGLang runs data-parallel ranks on one node only; use replicas")
    if settings.cpu_offload_gb and settings.cpu_offload_gb != int(settings.cpu_offload_gb):
        found.append(f"cpu_offload_gb: SGLang takes whole GB, not {settings.cpu_offload_gb}")
    if settings.lora_modules and not settings.enable_lora:
        found.append("lora_modules: needs enable_lora: true")
    page, tokens = settings.block_size, settings.max_num_batched_tokens
    if page and tokens and tokens % page and settings.enable_chunked_prefill is not False:
        found.append(f"max_num_batched_tokens: {tokens} must be a multiple of block_size ({page}) in SGLang")
    return found

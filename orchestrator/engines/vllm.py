"""vLLM (``vllm serve``), flags as of 0.32; GPUs and CPUs, one node or several by its own multi-node launch.

Every flag emitted here is checked against the real parser (tests/contract/test_engine_flags.py).
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from orchestrator.engines import flags
from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.container import in_container
from orchestrator.engines.flags import Flag
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

TABLE = {
    "revision": Flag("--revision"),
    "tokenizer": Flag("--tokenizer"),
    "trust_remote_code": Flag("--trust-remote-code", "switch"),
    "hf_overrides": Flag("--hf-overrides", "json"),
    "tensor_parallel_size": Flag("--tensor-parallel-size"),
    "pipeline_parallel_size": Flag("--pipeline-parallel-size"),
    "enable_expert_parallel": Flag("--enable-expert-parallel", "switch"),
    "distributed_executor_backend": Flag("--distributed-executor-backend"),
    "dtype": Flag("--dtype"),
    "quantization": Flag("--quantization"),
    "kv_cache_dtype": Flag("--kv-cache-dtype"),
    "max_model_len": Flag("--max-model-len"),
    "max_num_queued_reqs": Flag("--max-num-queued-reqs"),
    "scheduling_policy": Flag("--scheduling-policy"),
    "enable_chunked_prefill": Flag("--enable-chunked-prefill", "switch"),
    "enable_prefix_caching": Flag("--enable-prefix-caching", "switch"),
    "stream_interval": Flag("--stream-interval"),
    "gpu_memory_utilization": Flag("--gpu-memory-utilization"),
    "cpu_offload_gb": Flag("--cpu-offload-gb"),
    "enforce_eager": Flag("--enforce-eager", "switch"),
    "load_format": Flag("--load-format"),
    "enable_lora": Flag("--enable-lora", "switch"),
    "max_loras": Flag("--max-loras"),
    "max_lora_rank": Flag("--max-lora-rank"),
    "attention_backend": Flag("--attention-backend"),
    "kv_transfer_config": Flag("--kv-transfer-config", "json"),
}
# Written out below because they need more than their own value.
OTHERS = {
    "data_parallel_size": "--data-parallel-size",
    "served_model_name": "--served-model-name",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "kv_cache_tokens": "--num-gpu-blocks-override",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "block_size": "--block-size",
    "speculative": "--speculative-config",
    "guided_decoding_backend": "--structured-outputs-config",
    "lora_modules": "--lora-modules",
}
OURS = (
    *("--host", "--port", "--uds", "--api-key", "--model"),
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
    *("--data-parallel-size-local", "--data-parallel-start-rank"),
    *("--data-parallel-address", "--data-parallel-rpc-port"),
)
SHORT = {
    "-tp": "the field tensor_parallel_size",
    "-pp": "the field pipeline_parallel_size",
    "-dp": "the field data_parallel_size",
    "-ep": "the field enable_expert_parallel",
    "-q": "the field quantization",
    "-sc": "the field speculative",
    "-n": "this program",
    "-r": "this program",
}
REASONS = {"max_input_len": "vLLM limits input and output together; use max_model_len"}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# vLLM chooses these by the memory of the GPU it finds; two GPUs would then run two configurations. These are its
# choices for GPUs of 70 GiB and more, and for one CPU rank.
PINNED = {
    False: {"max_num_seqs": 1024, "max_num_batched_tokens": 8192},
    True: {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
}
CPU_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # GiB; where it is set it wins over --kv-cache-memory-bytes
CPU_KV_BYTES = 1 << 30  # per rank; its own choice is 92 % of the node's memory, for every rank again
FOLLOWER_GRACE_S = 0.5
BLOCK = {False: 16, True: 128}


class Vllm:
    """See the module."""

    name: ClassVar[str] = "vllm"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = "/reset_prefix_cache"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "vllm:num_requests_running"),
        Metric("waiting", "vllm:num_requests_waiting"),
        Metric("kv_usage", "vllm:kv_cache_usage_perc"),
        Metric("preemptions_total", "vllm:num_preemptions_total"),
        Metric("prefix_hit_tokens_total", "vllm:prefix_cache_hits_total"),
        Metric("prefix_query_tokens_total", "vllm:prefix_cache_queries_total"),
        Metric("queue_time_s_sum", "vllm:request_queue_time_seconds_sum"),
        Metric("queue_time_count", "vllm:request_queue_time_seconds_count"),
        Metric("ttft_s_sum", "vllm:time_to_first_token_seconds_sum"),
        Metric("ttft_count", "vllm:time_to_first_token_seconds_count"),
        Metric("spec_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        Metric("spec_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
        Metric("prompt_tokens_total", "vllm:prompt_tokens_total"),
        Metric("generation_tokens_total", "vllm:generation_tokens_total"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        known = frozenset({*TABLE, *OTHERS, "nnodes"})
        return [
            *flags.field_problems("vLLM", settings, TABLE, OTHERS, known, REASONS, OURS, SHORT),
            *flags.whole_nodes(settings),
            *flags.only(settings, "scheduling_policy", ("fcfs", "priority"), "vLLM has these two"),
            *_parallel_problems(settings),
            *_number_problems(settings, hardware),
            *_speculative_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return pinned(settings, hardware)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *(flags.program(settings, "vllm"), "serve", node.model_path or settings.model),
            *_server(settings, node, self.served_name(settings, node)),
            *flags.mapped(settings, TABLE),
            *_numbers(settings, hardware, pins),
            *_features(settings),
            *_nodes(settings, node),
            *("--generation-config", "vllm"),  # sampling defaults of a model would change lengths and speed
            *("--disable-uvicorn-access-log", "--enable-prompt-tokens-details"),
            *flags.extra_arguments(settings),
        ]
        env = _environment(settings, hardware, node) | settings.env
        # A follower has nothing to finish: left alone it waits 10 s for its own worker and then kills it.
        grace_s = FOLLOWER_GRACE_S if node.rank else None
        command = Command(tuple(argv), env, {"VLLM_API_KEY": api_key}, grace_s=grace_s, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        # return_token_ids costs about 20 bytes a chunk, continuous usage about 100; both count exactly.
        return {
            "completions": Dialect(
                "openai_completions", "/v1/completions", prompt_token_ids=True, return_token_ids=True
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", return_token_ids=True),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return flags.nonce_name(settings, node.launch_id)

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None if settings.image else (flags.program(settings, "vllm"), "--version")

    def reported(self, log: str) -> dict[str, float | int | str]:
        return {
            name: convert(match[1].replace(",", ""))
            for name, (pattern, convert) in REPORTED.items()
            if (match := pattern.search(log))
        }


def _gib(text: str) -> int:
    return round(float(text) * (1 << 30))


REPORTED: dict[str, tuple[re.Pattern[str], Any]] = {
    "engine_version": (re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)"), str),
    "kv_cache_tokens": (re.compile(r"KV cache size: ([\d,]+) tokens"), int),
    "max_concurrency": (re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x"), float),
    "max_model_len": (re.compile(r"Using max model len ([\d,]+)"), int),
    "weight_bytes": (re.compile(r"Model loading took ([\d.]+) GiB"), _gib),
    "checkpoint_bytes": (re.compile(r"Checkpoint size: ([\d.]+) GiB"), _gib),
    "kv_cache_bytes": (re.compile(r"Available KV cache memory: ([\d.]+) GiB"), _gib),
    "init_engine_s": (re.compile(r"init engine \(.*\) took ([\d.]+) s"), float),
    "attention_backend": (re.compile(r"Using (\S+) (?:attention )?backend"), str),
    "quantization_kernel": (re.compile(r"Using (\S+) (?:kernel )?for (?:\w+)LinearMethod"), str),
}


def pinned(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    """Fields left open that vLLM would fill by the hardware it finds, with the values they get instead."""
    pins = flags.left_open(settings, PINNED[hardware.is_cpu])
    if settings.enable_chunked_prefill is False and "max_num_batched_tokens" in pins and settings.max_model_len:
        pins["max_num_batched_tokens"] = max(pins["max_num_batched_tokens"], settings.max_model_len)
    said = settings.kv_cache_memory_bytes or settings.gpu_memory_utilization or settings.env.get(CPU_KV_VARIABLE)
    if hardware.is_cpu and not said:
        pins["kv_cache_memory_bytes"] = CPU_KV_BYTES
    return pins


def _server(settings: EngineSettings, node: Node, name: str) -> list[str]:
    names = [name] if settings.served_model_name is None else [name, settings.served_model_name]
    listen = ["--host", node.bind, "--port", str(node.port)] if node.rank == 0 else []
    return [*listen, "--served-model-name", *names]


def _numbers(settings: EngineSettings, hardware: Hardware, pins: dict[str, int]) -> list[str]:
    """Batch sizes and KV capacity. vLLM counts KV in blocks, so tokens need the block size said as well."""
    block = settings.block_size or (BLOCK[hardware.is_cpu] if settings.kv_cache_tokens else None)
    values = {
        "--max-num-seqs": settings.max_num_seqs or pins.get("max_num_seqs"),
        "--max-num-batched-tokens": settings.max_num_batched_tokens or pins.get("max_num_batched_tokens"),
        "--block-size": block,
        "--num-gpu-blocks-override": -(-settings.kv_cache_tokens // block)
        if settings.kv_cache_tokens and block
        else None,
        "--kv-cache-memory-bytes": settings.kv_cache_memory_bytes or pins.get("kv_cache_memory_bytes"),
    }
    return flags.pairs(values)


def _features(settings: EngineSettings) -> list[str]:
    arguments = []
    if settings.speculative:
        given = settings.speculative.model_dump(exclude_none=True)
        arguments += Flag("--speculative-config", "json").arguments(given)
    if settings.guided_decoding_backend:
        arguments += ["--structured-outputs-config", json.dumps({"backend": settings.guided_decoding_backend})]
    if settings.lora_modules:
        arguments += ["--lora-modules", *(f"{name}={path}" for name, path in settings.lora_modules.items())]
    return arguments


def _nodes(settings: EngineSettings, node: Node) -> list[str]:
    """Its own multi-node launch: the same command on every node, without HTTP on all but the first."""
    size, nnodes = settings.data_parallel_size, settings.nnodes
    arguments = ["--data-parallel-size", str(size)] if size > 1 else []
    if nnodes == 1:
        return arguments
    if size > 1:
        local = size // nnodes
        arguments += ["--data-parallel-size-local", str(local), "--data-parallel-address", node.master_host]
        arguments += ["--data-parallel-rpc-port", str(node.master_port)]
        arguments += ["--data-parallel-start-rank", str(local * node.rank)] if node.rank else []
    else:
        arguments += ["--nnodes", str(nnodes), "--node-rank", str(node.rank)]
        arguments += ["--master-addr", node.master_host, "--master-port", str(node.master_port)]
    return [*arguments, "--headless"] if node.rank else arguments


def _environment(settings: EngineSettings, hardware: Hardware, node: Node) -> dict[str, str]:
    env = flags.environment(settings, hardware, node) | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(settings.startup_timeout_s)),  # its own 600 s are short for big models
    }
    if node.bind in ("127.0.0.1", "::1", "localhost"):
        # Gives POST /reset_prefix_cache. These paths ask for no key, so never on an address others can reach.
        env["VLLM_SERVER_DEV_MODE"] = "1"
    if settings.nnodes > 1:
        env["VLLM_HOST_IP"] = node.host
    return env | (_cores(settings, node) if hardware.is_cpu else {})


def _cores(settings: EngineSettings, node: Node) -> dict[str, str]:
    """One group of cores per local rank, ``0,1|2,3``. Its ``auto`` needs one NUMA node per rank."""
    ranks = settings.devices_per_node
    if not node.cores:
        return {} if ranks == 1 else {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    size = max(1, len(node.cores) // ranks)
    groups = [[node.cores[(rank * size + i) % len(node.cores)] for i in range(size)] for rank in range(ranks)]
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, group)) for group in groups)}


def _parallel_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.distributed_executor_backend == "uni" and settings.world_size > 1:
        found.append(f"distributed_executor_backend: uni runs one rank, this replica has {settings.world_size}")
    if settings.data_parallel_size > 1 and settings.nnodes > 1 and settings.data_parallel_size % settings.nnodes:
        found.append(
            f"data_parallel_size: {settings.data_parallel_size} ranks cannot be divided over {settings.nnodes} nodes; "
            "vLLM puts whole data-parallel ranks on a node"
        )
    return found


def _number_problems(settings: EngineSettings, hardware: Hardware) -> list[str]:
    found = []
    if settings.quantization in ("gguf", "bitsandbytes"):
        found.append(f"quantization: {settings.quantization} is no longer part of vLLM (removed by 0.32)")
    if settings.max_lora_rank is not None and settings.max_lora_rank not in LORA_RANKS:
        found.append(
            f"max_lora_rank: vLLM takes one of {', '.join(map(str, LORA_RANKS))}, not {settings.max_lora_rank}"
        )
    if (
        settings.max_num_seqs
        and settings.max_num_batched_tokens
        and settings.max_num_batched_tokens < settings.max_num_seqs
    ):
        found.append(
            f"max_num_batched_tokens: {settings.max_num_batched_tokens} is below max_num_seqs ({settings.max_num_seqs})"
        )
    if settings.kv_cache_tokens and settings.kv_cache_memory_bytes:
        found.append("kv_cache_tokens and kv_cache_memory_bytes: give one of them, both say how large the KV cache is")
    if hardware.is_cpu and settings.kv_cache_memory_bytes and settings.env.get(CPU_KV_VARIABLE):
        found.append(f"kv_cache_memory_bytes: {CPU_KV_VARIABLE} in env wins over it; give one of them")
    if hardware.is_cpu and settings.cpu_offload_gb:
        found.append("cpu_offload_gb: there is nothing to offload from on a CPU")
    if settings.lora_modules and not settings.enable_lora:
        found.append("lora_modules: needs enable_lora: true")
    return found


def _speculative_problems(settings: EngineSettings) -> list[str]:
    spec = settings.speculative
    if spec is None:
        return []
    found = []
    if spec.method in ("draft_model", "eagle", "eagle3", "medusa") and spec.model is None:
        found.append(f"speculative: method {spec.method} needs a model")
    if spec.method in ("ngram", "suffix") and spec.model is not None:
        found.append(f"speculative: method {spec.method} has no model")
    if spec.method != "ngram" and (spec.prompt_lookup_min or spec.prompt_lookup_max):
        found.append(f"speculative: prompt_lookup_min and prompt_lookup_max are for ngram, not for {spec.method}")
    return found

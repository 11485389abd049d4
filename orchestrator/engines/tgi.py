"""Text Generation Inference (``text-generation-launcher``), as its 3.3.7 reads, its last release.

Archived by its authors; still what many results are compared with. One node, tensor parallelism only. The length of an
answer cannot be forced over HTTP: what was asked and what came are both in the rows. Its HTTP server opens after the
warm-up; a full queue is answered with 429.
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

PREQUANTIZED = ("awq", "gptq", "exl2", "marlin", "compressed-tensors")  # need a checkpoint made for them
WHILE_LOADING = ("eetq", "fp8", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4")
TABLE = {
    "revision": Flag("--revision"),
    "trust_remote_code": Flag("--trust-remote-code", "bare"),
    "tensor_parallel_size": Flag("--num-shard"),  # its own default is every GPU it sees
    "dtype": Flag("--dtype", choices=("float16", "bfloat16")),
    "quantization": Flag("--quantize", choices=PREQUANTIZED + WHILE_LOADING),
    "kv_cache_dtype": Flag("--kv-cache-dtype", choices=("fp8_e4m3fn", "fp8_e5m2")),
    "max_model_len": Flag("--max-total-tokens"),
    "max_input_len": Flag("--max-input-tokens"),
    "max_num_seqs": Flag("--max-batch-size"),
    "gpu_memory_utilization": Flag("--cuda-memory-fraction"),
}
OTHERS = {
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
    "max_num_queued_reqs": "--max-concurrent-requests",
    "enforce_eager": "--cuda-graphs",
    "speculative": "--speculate",
    "lora_modules": "--lora-adapters",
}
VARIABLES = ("enable_prefix_caching", "enable_chunked_prefill", "attention_backend")  # by environment only
OURS = (
    *("--model-id", "--hostname", "--port", "--api-key", "--sharded"),
    *("--prometheus-port", "--shard-uds-path", "--master-addr", "--master-port", "--usage-stats"),
)
KNOWN = frozenset({*TABLE, *OTHERS, *VARIABLES, "enable_lora", "guided_decoding_backend"})
REASONS = {
    "pipeline_parallel_size": "TGI has no pipeline parallelism",
    "data_parallel_size": "TGI has no data parallelism; use replicas",
    "tokenizer": "TGI takes the model's own tokenizer",
    "served_model_name": "TGI answers to any name",
    "scheduling_policy": "TGI serves in order of arrival",
    "load_format": "TGI reads safetensors only",
    "kv_cache_tokens": "TGI 3 ignores --max-batch-total-tokens with its flash attention; use gpu_memory_utilization",
    "kv_cache_memory_bytes": "TGI fills what gpu_memory_utilization leaves; use that",
    "hf_overrides": "TGI reads the model's own config.json",
    "kv_transfer_config": "TGI has no disaggregated prefill",
    "cpu_offload_gb": "TGI keeps all weights on the GPUs",
    "stream_interval": "TGI sends every token as it comes",
    "distributed_executor_backend": "TGI has one way to start its shards; leave it out",
    "enable_expert_parallel": "TGI has no expert parallelism",
    "block_size": "TGI chooses the block size by its attention kernels",
}
# It derives the first from the GPU; the second is 128 and answers 429 at once, where other engines queue.
PINS = {"max_num_batched_tokens": 8192, "max_num_queued_reqs": 10000}
ATTENTION = ("flashinfer", "flashdecoding", "paged")


class Tgi:
    """See the module."""

    name: ClassVar[str] = "tgi"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "tgi_batch_current_size"),
        Metric("waiting", "tgi_queue_size"),
        Metric("queue_time_s_sum", "tgi_request_queue_duration_sum"),
        Metric("queue_time_count", "tgi_request_queue_duration_count"),
        Metric("spec_accepted_tokens_total", "tgi_request_skipped_tokens_sum"),  # tokens beyond the first of every step
        Metric("prompt_tokens_total", "tgi_request_input_length_sum"),
        Metric("generation_tokens_total", "tgi_request_generated_tokens_sum"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.gpu_only("TGI", hardware),
            *flags.field_problems("TGI", settings, TABLE, OTHERS, KNOWN, REASONS, OURS),
            *flags.single_node("TGI", settings),
            *flags.only(settings, "attention_backend", ATTENTION, "TGI has these"),
            *flags.only(settings, "guided_decoding_backend", ("outlines",), "TGI has only this one"),
            *flags.speculative_problems("TGI", settings.speculative, ("ngram", "medusa")),
            *_value_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return flags.left_open(settings, PINS)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        prometheus = node.extra_ports[0] if node.extra_ports else node.port + 1
        argv = [
            *(flags.program(settings, "text-generation-launcher"), "--model-id", node.model_path or settings.model),
            *("--hostname", node.bind, "--port", str(node.port), "--prometheus-port", str(prometheus)),
            *("--master-port", str(node.master_port), "--shard-uds-path", f"/tmp/tgi-{node.launch_id}-{node.port}"),  # noqa: S108
            *flags.mapped(settings, TABLE),
            *_features(settings, pins),
            *("--usage-stats", "off"),
            *flags.extra_arguments(settings),
        ]
        env = {
            **_switches(settings),
            **flags.visible_devices(hardware, node.devices),
            **flags.offline(node.model_path or settings.model),
        }
        command = Command(tuple(argv), env | settings.env, {"API_KEY": api_key}, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {
            "completions": Dialect(
                "openai_completions", "/v1/completions", length_control="none", min_tokens_field=None
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", length_control="none", min_tokens_field=None),
            "tgi": Dialect(
                "tgi",
                "/generate_stream",
                length_control="none",
                min_tokens_field=None,
                include_usage=False,  # one token per event, and details on the last
                done_marker=False,
                model_field=False,
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return node.model_path or settings.model

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None if settings.image else (flags.program(settings, "text-generation-launcher"), "--version")

    def reported(self, log: str) -> dict[str, float | int | str]:
        # backends/v3/src/lib.rs, after its warm-up; the number is that of all slots of the KV cache
        match = re.search(r"Setting max batch total tokens to (\d+)", log)
        return {"kv_cache_tokens": int(match[1])} if match else {}


def _features(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    adapters = ",".join(f"{name}={path}" for name, path in (settings.lora_modules or {}).items())
    return flags.pairs(
        {
            "--max-batch-prefill-tokens": settings.max_num_batched_tokens or pins.get("max_num_batched_tokens"),
            "--max-concurrent-requests": pins.get("max_num_queued_reqs", settings.max_num_queued_reqs),
            "--cuda-graphs": 0 if settings.enforce_eager else None,
            "--speculate": settings.speculative.num_speculative_tokens if settings.speculative else None,
            "--lora-adapters": adapters or None,
        }
    )


def _switches(settings: EngineSettings) -> dict[str, str]:
    values = {
        "PREFIX_CACHING": settings.enable_prefix_caching,
        "PREFILL_CHUNKING": settings.enable_chunked_prefill,
    }
    env = {name: str(int(value)) for name, value in values.items() if value is not None}
    return env | ({"ATTENTION": settings.attention_backend} if settings.attention_backend else {})


def _value_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.dtype and settings.quantization:
        found.append("dtype: TGI refuses it together with quantization")
    if settings.quantization == "exl2" and settings.tensor_parallel_size > 1:
        found.append("quantization: exl2 cannot be sharded in TGI")
    if settings.max_input_len and settings.max_model_len and settings.max_input_len >= settings.max_model_len:
        found.append(f"max_input_len: {settings.max_input_len} must be below max_model_len ({settings.max_model_len})")
    if settings.max_num_queued_reqs == 0:
        found.append("max_num_queued_reqs: 0 would refuse every request in TGI")
    spec = settings.speculative
    if spec and spec.model:
        found.append("speculative: TGI takes no model; medusa heads come with the model itself")
    if settings.enable_lora and not settings.lora_modules:
        found.append("enable_lora: TGI needs the adapters themselves at start (lora_modules)")
    return found

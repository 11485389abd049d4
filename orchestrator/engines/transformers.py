"""``transformers serve`` with continuous batching, flags as of 5.19: the correctness reference, and a light CPU engine.

It takes no API key and lists no models, so readiness is proven by the owner of the listening socket alone.
"""

from __future__ import annotations

from typing import ClassVar

from orchestrator.engines import flags
from orchestrator.engines.base import Command, Metric, Node
from orchestrator.engines.container import in_container
from orchestrator.engines.flags import Flag
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

TABLE = {
    "dtype": Flag("--dtype"),
    "quantization": Flag("--quantization"),
    "trust_remote_code": Flag("--trust-remote-code", "switch"),
    "attention_backend": Flag("--attn-implementation"),
    "gpu_memory_utilization": Flag("--cb-max-memory-percent"),  # of the memory that is free after loading
    "enforce_eager": Flag("--no-cb-use-cuda-graph", "bare", inverse="--cb-use-cuda-graph"),
}
OTHERS = {
    "max_num_batched_tokens": "--cb-max-batch-tokens",
    "kv_cache_tokens": "--cb-num-blocks",
    "block_size": "--cb-block-size",
}
OURS = ("--host", "--port", "--device", "--continuous-batching", "--cb-use-cuda-graph", "--model-timeout")
KNOWN = frozenset({*TABLE, *OTHERS, "revision", "enable_prefix_caching", "enable_chunked_prefill"})
REASONS = {
    "tensor_parallel_size": "transformers serve has no tensor parallelism",
    "pipeline_parallel_size": "transformers serve has no pipeline parallelism",
    "data_parallel_size": "transformers serve has no data parallelism; use replicas",
    "max_model_len": "transformers serve takes what the model takes and has no limit of its own",
    "max_input_len": "transformers serve takes what the model takes and has no limit of its own",
    "max_num_seqs": "transformers serve limits a batch by tokens only (max_num_batched_tokens)",
    "max_num_queued_reqs": "transformers serve has an unbounded queue",
    "speculative": "transformers serve has no speculative decoding",
    "served_model_name": "transformers serve answers to the model's own name only",
    "kv_cache_memory_bytes": "transformers serve counts its KV cache in blocks; use kv_cache_tokens",
}
BLOCK = 256
# On a CPU it would take most of the node's memory for the KV cache and an attention mask as large again, and its first
# request would wait minutes for that.
CPU_PINS = {"kv_cache_tokens": 16384, "max_num_batched_tokens": 1024}
SAMPLING = ("temperature", "top_p", "seed", "stop", "frequency_penalty", "logit_bias")


class Transformers:
    """See the module."""

    name: ClassVar[str] = "transformers"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = None
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = ()

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.field_problems("transformers serve", settings, TABLE, OTHERS, KNOWN, REASONS, OURS),
            *flags.single_node("transformers serve", settings),
            *flags.only(
                settings, "quantization", ("bnb-4bit", "bnb-8bit"), "others come with the checkpoint: leave it out"
            ),
            *flags.not_in_docker("transformers serve", settings),
            *_fixed_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        return pinned(settings, hardware)

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        argv = [
            *(flags.program(settings, "transformers"), "serve", self.served_name(settings, node)),
            *("--continuous-batching", "--device", "cpu" if hardware.is_cpu else "cuda:0"),
            *("--host", node.bind, "--port", str(node.port)),
            *flags.mapped(settings, TABLE),
            *_batching(settings, pins),
            *flags.extra_arguments(settings),
        ]
        env = flags.environment(settings, hardware, node) | {"HF_HUB_DISABLE_TELEMETRY": "1"}
        if hardware.is_cpu:
            env |= _cores(node)
        command = Command(tuple(argv), env | settings.env, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        return {"completions": _dialect("completions", "prompt"), "chat": _dialect("chat/completions", "messages")}

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        model = node.model_path or settings.model
        return f"{model}@{settings.revision}" if settings.revision else model

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None if settings.image else (flags.program(settings, "transformers"), "version")

    def reported(self, log: str) -> dict[str, float | int | str]:
        """Nothing: its cache is made by the first request, when it is long ready, and told at a level below its own
        (generation/continuous_batching/cache.py); of its weights it says nothing at any."""
        return {}


def pinned(settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
    """Fields left open that it would fill by the memory it finds, with the values they get instead."""
    return flags.left_open(settings, CPU_PINS) if hardware.is_cpu else {}


def _batching(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    tokens = settings.kv_cache_tokens or pins.get("kv_cache_tokens")
    block = settings.block_size or BLOCK
    values = {
        "--cb-max-batch-tokens": settings.max_num_batched_tokens or pins.get("max_num_batched_tokens"),
        "--cb-num-blocks": -(-tokens // block) if tokens else None,
        "--cb-block-size": block if tokens else settings.block_size,
    }
    return flags.pairs(values)


def _dialect(path: str, content: str) -> Dialect:
    """It refuses unknown fields; ``generation_config`` replaces the model's own, end-of-sequence token included.

    ``stream_options`` and the like are accepted and ignored with a line in the log each, so they are left out.
    """
    return Dialect(
        wire="openai_chat" if content == "messages" else "openai_completions",
        path=f"/v1/{path}",
        length_control="generation_config",
        min_tokens_field=None,
        include_usage=False,  # always on the last event
        done_marker=False,
        allowed_fields=frozenset({"model", content, "stream", "max_tokens", "generation_config", *SAMPLING}),
    )


def _cores(node: Node) -> dict[str, str]:
    if not node.cores:
        return {}
    cores = ",".join(map(str, node.cores))
    return {"OMP_NUM_THREADS": str(len(node.cores)), "OMP_PLACES": f"{{{cores}}}", "OMP_PROC_BIND": "true"}


def _fixed_problems(settings: EngineSettings) -> list[str]:
    return [
        f"{field}: transformers serve always does this and cannot switch it off"
        for field in ("enable_prefix_caching", "enable_chunked_prefill")
        if getattr(settings, field) is False
    ]

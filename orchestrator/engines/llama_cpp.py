"""llama.cpp (``llama-server``), flags of 2026, run at commit 0c1e5709; GGUF models on CPUs and GPUs of one node.

Its context is one buffer for all slots, so its size is the KV capacity: ``kv_cache_tokens``, or ``max_model_len`` times
``max_num_seqs``. It would shrink what does not fit; that is switched off, so that what is measured was asked for. Its
HTTP server opens first and says 503 while the model loads.
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
    "enable_prefix_caching": Flag("--cache-prompt", "switch"),
    "load_format": Flag("--load-mode", choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")),
}
OTHERS = {
    "served_model_name": "--alias",
    "max_model_len": "--ctx-size",
    "max_num_seqs": "--parallel",
    "max_num_batched_tokens": "--batch-size",
    "kv_cache_dtype": "--cache-type-k",
    "tensor_parallel_size": "--split-mode",
    "speculative": "--spec-type",
    "lora_modules": "--lora",
}
SHORT = {
    **dict.fromkeys(("-a",), "the field served_model_name"),
    **dict.fromkeys(("-c",), "the fields max_model_len and max_num_seqs"),
    **dict.fromkeys(("-np",), "the field max_num_seqs"),
    **dict.fromkeys(("-b", "-ub", "--ubatch-size"), "the field max_num_batched_tokens"),
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-v"), "the field kv_cache_dtype"),
    **dict.fromkeys(("-sm",), "the fields tensor_parallel_size and pipeline_parallel_size"),
    **dict.fromkeys(("-md", "--spec-draft-model", "--spec-draft-n-max"), "the field speculative"),
}
OURS = (
    *("--host", "--port", "--api-key", "--api-key-file", "--model", "-m", "-hf", "--hf-repo", "--metrics"),
    *("--fit", "-fit", "--gpu-layers", "-ngl", "--threads", "-t"),
)
KNOWN = frozenset({*TABLE, *OTHERS, "pipeline_parallel_size", "kv_cache_tokens", "enable_lora"})
REASONS = {
    "dtype": "a GGUF file has its own number format",
    "quantization": "a GGUF file has its own quantization: name another file",
    "revision": "name a local GGUF file, or repository:quantization as the model",
    "data_parallel_size": "llama.cpp has no data parallelism; use replicas",
    "max_num_queued_reqs": "llama.cpp has an unbounded queue",
    "kv_cache_memory_bytes": "llama.cpp counts its KV cache in tokens; use kv_cache_tokens",
    "gpu_memory_utilization": "llama.cpp takes what the context needs; use kv_cache_tokens",
    "tokenizer": "a GGUF file holds its tokenizer",
    "max_input_len": "llama.cpp limits input and output together; use max_model_len",
    "enable_chunked_prefill": "llama.cpp always splits prompts above max_num_batched_tokens",
    "enable_expert_parallel": "llama.cpp has no expert parallelism",
    "enforce_eager": "llama.cpp has no graphs to switch off by a flag",
    "block_size": "llama.cpp keeps its KV cache token by token",
    "guided_decoding_backend": "llama.cpp has one of its own (GBNF)",
    "scheduling_policy": "llama.cpp serves in order of arrival",
    "hf_overrides": "use extra_args: {--override-kv: key=type:value}",
    "cpu_offload_gb": "llama.cpp counts layers; use extra_args: {--n-cpu-moe: n}",
    "attention_backend": "use extra_args: {--flash-attn: on}",
    "kv_transfer_config": "llama.cpp has no disaggregated prefill",
}
PINS = {"max_num_seqs": 32, "max_num_batched_tokens": 2048}
TYPES = {"draft_model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp", "ngram": "ngram-simple"}
WITH_MODEL, LACKING = ("draft_model", "eagle3"), ("draft_tensor_parallel_size", "prompt_lookup_min")
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


class LlamaCpp:
    """See the module."""

    name: ClassVar[str] = "llama_cpp"
    launches: ClassVar[bool] = True
    emulated: ClassVar[bool] = False
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    reset_path: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("running", "llamacpp:requests_processing"),
        Metric("waiting", "llamacpp:requests_deferred"),
        Metric("prefix_query_tokens_total", "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"),
        Metric("prefix_hit_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        Metric("spec_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total"),
        Metric("spec_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
        Metric("prompt_tokens_total", "llamacpp:prompt_tokens_total"),
        Metric("generation_tokens_total", "llamacpp:tokens_predicted_total"),
    )

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        return [
            *flags.field_problems("llama.cpp", settings, TABLE, OTHERS, KNOWN, REASONS, OURS, SHORT),
            *flags.single_node("llama.cpp", settings),
            *flags.only(settings, "kv_cache_dtype", KV_TYPES, "llama.cpp has these"),
            *flags.speculative_problems("llama.cpp", settings.speculative, TYPES, WITH_MODEL, LACKING),
            *_parallel_problems(settings, hardware),
            *_feature_problems(settings),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        """The context as well: it is what the slots need, not what the hardware allows."""
        pins = flags.left_open(settings, PINS)
        if settings.kv_cache_tokens is None and settings.max_model_len:
            pins["kv_cache_tokens"] = settings.max_model_len * (settings.max_num_seqs or pins["max_num_seqs"])
        return pins

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        pins = self.pinned(settings, hardware)
        model = node.model_path or settings.model
        argv = [
            flags.program(settings, "llama-server"),
            *(("--model", model) if model.endswith(".gguf") else ("--hf-repo", model)),
            *("--host", node.bind, "--port", str(node.port), "--alias", self.served_name(settings, node)),
            *_sizes(settings, pins),
            *_devices(settings, hardware, node),
            *flags.mapped(settings, TABLE),
            *_features(settings),
            *("--fit", "off", "--metrics", "--no-webui"),
            *flags.extra_arguments(settings),
        ]
        env = flags.visible_devices(hardware, node.devices)
        command = Command(tuple(argv), env | settings.env, {"LLAMA_API_KEY": api_key}, notes=flags.pin_notes(pins))
        return in_container(command, settings, hardware, node)

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        cold = {} if settings.enable_prefix_caching is not False else {"cache_prompt": False}
        return {
            "completions": Dialect(
                "openai_completions", "/v1/completions", prompt_token_ids=True, min_tokens_field=None, extra_body=cold
            ),
            "chat": Dialect("openai_chat", "/v1/chat/completions", min_tokens_field=None, extra_body=cold),
            "native": Dialect(
                "llama_cpp",
                "/completion",
                prompt_token_ids=True,
                min_tokens_field=None,
                include_usage=False,
                done_marker=False,
                model_field=False,
                extra_body=cold,
            ),
        }

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        return flags.nonce_name(settings, node.launch_id).replace(",", "-")  # a comma would make it two names

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        return None if settings.image else (flags.program(settings, "llama-server"), "--version")

    def reported(self, log: str) -> dict[str, float | int | str]:
        """Bytes only with ``extra_args: {--log-verbosity: 4}``, where it also writes a line per slot and request."""
        # tools/server/server-context.cpp, src/llama-model.cpp and src/llama-kv-cache.cpp
        found: dict[str, float | int | str] = {}
        if match := re.search(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'", log):
            slots = 1 if match[3] == "true" else int(match[1])  # of one buffer for all, or each of its own
            found |= {"kv_cache_tokens": slots * int(match[2]), "max_model_len": int(match[2])}
        for name, what in (("weight_bytes", "model"), ("kv_cache_bytes", "KV")):
            devices: dict[str, float] = {}
            for buffer, size in re.findall(rf"(\S+) {what} buffer size = +([\d.]+) MiB", log):
                device = "CPU" if buffer.startswith("CPU") else buffer  # CPU, CPU_Mapped and CPU_REPACK are one memory
                devices[device] = devices.get(device, 0.0) + float(size)
            if devices:
                found[name] = round(max(devices.values()) * (1 << 20))
        return found


def _sizes(settings: EngineSettings, pins: dict[str, int]) -> list[str]:
    batch = settings.max_num_batched_tokens or pins["max_num_batched_tokens"]
    return flags.pairs(
        {
            "--parallel": settings.max_num_seqs or pins["max_num_seqs"],
            "--ctx-size": settings.kv_cache_tokens or pins.get("kv_cache_tokens"),
            "--batch-size": batch,
            "--ubatch-size": min(batch, 512),  # what one pass computes; its own default, never above the batch
            "--cache-type-k": settings.kv_cache_dtype,
            "--cache-type-v": settings.kv_cache_dtype,
        }
    )


def _devices(settings: EngineSettings, hardware: Hardware, node: Node) -> list[str]:
    if hardware.is_cpu:
        threads = ["--threads", str(len(node.cores))] if node.cores else []
        return ["--gpu-layers", "0", *threads]
    split = "row" if settings.tensor_parallel_size > 1 else "layer" if settings.pipeline_parallel_size > 1 else "none"
    return ["--gpu-layers", "all", "--split-mode", split]


def _features(settings: EngineSettings) -> list[str]:
    spec = settings.speculative
    adapters = ",".join((settings.lora_modules or {}).values())
    return flags.pairs(
        {
            "--spec-type": TYPES[spec.method] if spec else None,
            "--spec-draft-model": spec.model if spec else None,
            "--spec-draft-n-max": spec.num_speculative_tokens if spec and spec.method != "ngram" else None,
            "--spec-ngram-simple-size-m": spec.num_speculative_tokens if spec and spec.method == "ngram" else None,
            "--spec-ngram-simple-size-n": spec.prompt_lookup_max if spec else None,
            "--lora": adapters or None,
        }
    )


def _parallel_problems(settings: EngineSettings, hardware: Hardware) -> list[str]:
    found = []
    if settings.tensor_parallel_size > 1 and settings.pipeline_parallel_size > 1:
        found.append("pipeline_parallel_size: llama.cpp splits by rows or by layers, not by both")
    if hardware.is_cpu and settings.world_size > 1:
        found.append(
            f"tensor_parallel_size, pipeline_parallel_size: llama.cpp is one rank on a CPU, not {settings.world_size}"
        )
    return found


def _feature_problems(settings: EngineSettings) -> list[str]:
    found = []
    if settings.kv_cache_tokens and settings.max_model_len:
        found.append("kv_cache_tokens: llama.cpp's context is max_model_len times max_num_seqs; give one of the two")
    if settings.enable_lora and not settings.lora_modules:
        found.append("enable_lora: llama.cpp needs the adapters themselves at start (lora_modules)")
    return found

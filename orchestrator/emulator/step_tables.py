"""Step times from tables of measured kernels, in place of those by formula (step_costs.py: ``Costs``).
Only this file uses the package with the tables: NVIDIA's ``aiconfigurator-core``, extra ``tables``.

The tables have the kernels of vLLM, SGLang and TensorRT-LLM on NVIDIA GPUs by shape and precision.
The time that a host adds to a step is not in them, and stays a constant. Kernels were timed with
CUDA graphs, with one pipeline stage, on one node.
"""

import json
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.extras import how_to_install
from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts, read_config
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.step_costs import Chunk, DecodeStep
from orchestrator.spec.settings import EngineSettings

PACKAGE = "aiconfigurator_core"
_BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "emulator": "vllm"}
_SYSTEMS = {
    "H100-80GB": "h100_sxm",
    "H100-PCIe-80GB": "h100_pcie",
    "H200-141GB": "h200_sxm",
    "B200-180GB": "b200_sxm",
    "GB200-186GB": "gb200",
    "B300-288GB": "b300_sxm",
    "A100-80GB": "a100_sxm",
    "A100-PCIe-80GB": "a100_pcie",
    "L4-24GB": "l4",
    "L40S-48GB": "l40s",
    "RTX-PRO-6000-96GB": "rtx_pro_6000_server",
}
# KV caches in 16 bit; the names of those in FP8 begin with fp8
_KV_TYPES = dict.fromkeys(("auto", "bfloat16", "bf16", "float16"), "bfloat16")
_ONLINE = {"fp8 per tensor": "fp8", "fp8 per channel": "fp8", "fp8 per block": "fp8_block"}
_AHEAD = 512  # more tokens of context, with which the growth of a decode step is measured
_PROBE = 1024  # tokens of the prompt and of the context with which a deployment is tried


class NoRow(InputError):
    """The tables have no row for a deployment or a step. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """Milliseconds of the kernels of one step, as ``mixed_step_breakdown`` has them."""

    total: float
    without_attention: float
    prompt_attention: float
    decode_attention: float


@dataclass(frozen=True, slots=True)
class Tables:
    """``StepTimes`` of one data-parallel rank. Sliding windows are in the tables' attention:
    ``window`` is 0.
    """

    kernels: Any  # aiconfigurator_core.sdk.EngineHandle, whose latencies are milliseconds
    step_s: float  # what a host adds to every step
    prefill_s: float  # to a step that holds a prompt
    sequence_s: float  # for each sequence
    window: int = 0

    def decode(self, sequences: int, context: int, windowed: float) -> DecodeStep:
        """As ``Costs.decode``: how long a step of decodes alone takes. Raises NoRow."""
        mean_context = max(1, round(context / sequences))
        kernels_ms = self._decode_ms(sequences, mean_context)
        ahead_ms = self._decode_ms(sequences, mean_context + _AHEAD)
        step_s = self.step_s + sequences * self.sequence_s + kernels_ms / 1e3
        growth_s = max(0.0, ahead_ms - kernels_ms) / _AHEAD / 1e3
        return DecodeStep(step_s, growth_s)

    def mixed(self, decodes: int, context: int, windowed: float, chunks: list[Chunk]) -> float:
        """As ``Costs.mixed``: seconds of a step of decodes and prefill chunks. Raises NoRow."""
        if not chunks:
            return self.decode(decodes, context, windowed).step_s
        tokens = decodes + sum(chunk.tokens for chunk in chunks)
        kernels_ms = self._parts(tokens, 0, tokens, 0).without_attention
        attention_ms = 0.0
        for chunk in chunks:
            length = chunk.start + chunk.tokens
            attention_ms += self._parts(length, 0, length, chunk.start).prompt_attention
        kernels_ms += attention_ms
        if decodes:
            mean_context = max(1, round(context / decodes))
            kernels_ms += self._parts(0, decodes, mean_context, 0).decode_attention
        host_s = self.step_s + self.prefill_s + (decodes + len(chunks)) * self.sequence_s
        return host_s + kernels_ms / 1e3

    def _decode_ms(self, sequences: int, context: int) -> float:
        """Milliseconds of the kernels of a step of decodes alone."""
        latency_ms: float = _ask(self.kernels.decode_step_latency, sequences, context, 1)
        return latency_ms

    def _parts(self, prompt: int, decodes: int, length: int, cached: int) -> StepParts:
        """The parts of a step with prompts of ``length`` tokens, of which ``cached`` were computed
        before.
        """
        return StepParts(
            *_ask(self.kernels.mixed_step_breakdown, prompt, decodes, length, 1, cached)
        )


def tables_of(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> Tables:
    """The tables' step times of a deployment, with the constants of its host.

    Raises NoRow where they have none for the engine, the device, the model, its precision or
    parallelism.
    """
    stored = read_config(facts.model, settings.revision, online=False)
    if stored is None:
        raise NoRow(f"no config.json of {facts.model} is at hand")
    if settings.engine not in _BACKENDS:
        raise NoRow(f"the tables have no engine {settings.engine}")
    if device.name not in _SYSTEMS:
        raise NoRow(f"the tables have no device {device.name}")
    if settings.pipeline_parallel_size > 1 or settings.nnodes > 1 or settings.enforce_eager:
        raise NoRow("the tables were made on one node, without pipeline stages, with CUDA graphs")
    options: dict[str, Any] = {"tp_size": settings.tensor_parallel_size}
    options |= _precision(settings, facts)
    if facts.shape.num_experts:
        ranks = memory.expert_ranks(settings)
        options["attention_dp_size"] = memory.expert_data_ranks(settings)
        options["moe_tp_size"] = 1 if settings.enable_expert_parallel else ranks
        options["moe_ep_size"] = ranks if settings.enable_expert_parallel else 1
    kernels = _compiled(
        json.dumps(stored.config | (settings.hf_overrides or {})),
        _SYSTEMS[device.name],
        _BACKENDS[settings.engine],
        tuple(sorted(options.items())),
    )
    if isinstance(kernels, str):
        raise NoRow(kernels)
    prefill_s = facts.shape.num_hidden_layers * constants.prefill_layer_overhead_s
    return Tables(kernels, constants.step_overhead_s, prefill_s, constants.sequence_overhead_s)


def _precision(settings: EngineSettings, facts: ModelFacts) -> dict[str, str]:
    """Options for the precision of the KV cache and of attention, and for that of matrix products
    where the engine quantizes while it loads; else the model's config has it. Raises NoRow.
    """
    cache_type = memory.kv_cache_dtype(facts, settings)
    cache_mode = "fp8" if cache_type.startswith("fp8") else _KV_TYPES.get(cache_type)
    if cache_mode is None:
        raise NoRow(f"the tables have no KV cache in {cache_type}")
    if settings.dtype in memory.FLOAT32:
        raise NoRow(f"the tables have no dtype {settings.dtype}")
    options = {"kvcache_quant_mode": cache_mode, "fmha_quant_mode": "bfloat16"}
    wanted = settings.quantization
    if not wanted:
        return options
    stored = facts.quantization
    if stored is not None:
        if memory.quantization_in_memory(stored, wanted) == stored:  # as the config has it
            return options
        raise NoRow(f"the tables have no quantization {wanted} of {stored.method}")
    scheme = memory.kernel_scheme(facts, settings)
    if scheme not in _ONLINE:
        raise NoRow(f"the tables have no quantization {wanted}")
    return options | dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), _ONLINE[scheme])


@cache
def _compiled(config: str, system: str, backend: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """The tables' engine of a model. Where there is none: the reason, as text, so that it is cached
    too.
    """
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError as error:
        return f"tables of kernels are not installed: {how_to_install('tables')} ({error})"
    with TemporaryDirectory() as folder:
        document = json.dumps(_with_class(json.loads(config)))
        (Path(folder) / "config.json").write_text(document, encoding="utf-8")
        try:
            kernels = EngineHandle.compile(folder, system, backend, **dict(options))
            kernels.decode_step_latency(1, _PROBE, 1)
            kernels.mixed_step_breakdown(_PROBE, 1, _PROBE, 1, 0)
        # a dozen types, some from Rust; their messages name what is missing
        except Exception as error:
            return _first_line(error)
    return kernels


def _with_class(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the class of the model, where the catalogue knows its type alone."""
    if not config.get("architectures"):
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        model_type = config.get("model_type", "")
        config["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, "")]
    return config


def _ask(method: Any, *arguments: int) -> Any:
    """What the tables' engine answers. Raises NoRow."""
    try:
        return method(*arguments)
    except Exception as error:  # a shape beyond the tables' last
        raise NoRow(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    message = str(error).strip()
    if not message:
        return type(error).__name__
    return f"{type(error).__name__}: {message.splitlines()[0][:200]}"

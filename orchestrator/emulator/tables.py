"""Step times from tables of measured kernels, in place of the formula's (model.py: ``Costs``). Only
this file knows the package that brings them: NVIDIA's ``aiconfigurator-core``, extra ``tables``.

The tables hold kernels of vLLM, SGLang and TensorRT-LLM on NVIDIA GPUs by shape and precision. What
a host adds to a step is no kernel: it stays a constant. Kernels were timed with CUDA graphs, one
pipeline stage, on one node.
"""

import json
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts, read_config
from orchestrator.emulator.profile import Constants
from orchestrator.spec.settings import EngineSettings

PACKAGE = "aiconfigurator_core"
_BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "emulator": "vllm"}
_SYSTEMS = {
    "H100-80GB": "h100_sxm", "H100-PCIe-80GB": "h100_pcie", "H200-141GB": "h200_sxm", "B200-180GB": "b200_sxm",
    "GB200-186GB": "gb200", "B300-288GB": "b300_sxm", "A100-80GB": "a100_sxm", "A100-PCIe-80GB": "a100_pcie",
    "L4-24GB": "l4", "L40S-48GB": "l40s", "RTX-PRO-6000-96GB": "rtx_pro_6000_server",
}  # fmt: skip
# those of FP8 begin with fp8
_KV_TYPES = dict.fromkeys(("auto", "bfloat16", "bf16", "float16"), "bfloat16")
_ONLINE = {"fp8 per tensor": "fp8", "fp8 per channel": "fp8", "fp8 per block": "fp8_block"}
_AHEAD = 512  # tokens over which the growth of a decode step with its context is taken
_PROBE = 1024  # tokens of the prompt and of the context that a deployment is tried with


class NoRow(InputError):
    """What the tables have no row for."""


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

    def decode(self, sequences: int, context: int, windowed: float) -> tuple[float, float]:
        """As ``Costs.decode``: seconds of a step of decodes alone, and by how much the next is
        longer. NoRow.
        """
        each = max(1, round(context / sequences))
        now, later = (
            _ask(self.kernels.decode_step_latency, sequences, at, 1) for at in (each, each + _AHEAD)
        )
        return self.step_s + sequences * self.sequence_s + now / 1e3, max(
            0.0, later - now
        ) / _AHEAD / 1e3

    def mixed(
        self, decodes: int, context: int, windowed: float, chunks: list[tuple[int, int]]
    ) -> float:
        """As ``Costs.mixed``: seconds of a step of decodes and prefill chunks of (start, tokens).
        NoRow.
        """
        if not chunks:
            return self.decode(decodes, context, windowed)[0]
        tokens = decodes + sum(count for _, count in chunks)
        ms = self._parts(tokens, 0, tokens, 0)[1]
        ms += sum(self._parts(start + count, 0, start + count, start)[2] for start, count in chunks)
        if decodes:
            ms += self._parts(0, decodes, max(1, round(context / decodes)), 0)[3]
        return self.step_s + self.prefill_s + (decodes + len(chunks)) * self.sequence_s + ms / 1e3

    def _parts(self, prompt: int, decodes: int, length: int, cached: int) -> tuple[float, ...]:
        """Milliseconds of a step: all, without attention, attention of prompts of ``length``,
        attention of decodes.
        """
        parts: tuple[float, ...] = _ask(
            self.kernels.mixed_step_breakdown, prompt, decodes, length, 1, cached
        )
        return parts


def tables_of(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> Tables:
    """The tables' step times of a deployment, with the constants of its host.

    Raises NoRow where they have none for the engine, the device, the model, its precision or
    parallelism.
    """
    found = read_config(facts.model, settings.revision, online=False)
    if found is None:
        raise NoRow(f"no config.json of {facts.model} is at hand")
    for what, name, known in (
        ("engine", settings.engine, _BACKENDS),
        ("device", device.name, _SYSTEMS),
    ):
        if name not in known:
            raise NoRow(f"the tables have no {what} {name}")
    if settings.pipeline_parallel_size > 1 or settings.nnodes > 1 or settings.enforce_eager:
        raise NoRow("the tables were made on one node, without pipeline stages, with CUDA graphs")
    words = {"tp_size": settings.tensor_parallel_size, **_precision(settings, facts)}
    if facts.shape.num_experts:
        ranks, whole = memory.expert_ranks(settings), settings.enable_expert_parallel
        words |= {"attention_dp_size": settings.data_parallel_size}
        words |= {"moe_tp_size": 1 if whole else ranks, "moe_ep_size": ranks if whole else 1}
    config = json.dumps(found[0] | (settings.hf_overrides or {}))
    kernels = _compiled(
        config, _SYSTEMS[device.name], _BACKENDS[settings.engine], tuple(sorted(words.items()))
    )
    if isinstance(kernels, str):
        raise NoRow(kernels)
    prefill_s = facts.shape.num_hidden_layers * constants.prefill_layer_overhead_s
    return Tables(kernels, constants.step_overhead_s, prefill_s, constants.sequence_overhead_s)


def _precision(settings: EngineSettings, facts: ModelFacts) -> dict[str, str]:
    """Of the KV cache and attention; of products where the engine quantizes while it loads. Else
    the config says it.
    """
    cache_type, asked, stored = (
        memory.kv_cache_dtype(facts, settings),
        settings.quantization,
        facts.quantization,
    )
    mode = "fp8" if cache_type.startswith("fp8") else _KV_TYPES.get(cache_type)
    if mode is None:
        raise NoRow(f"the tables have no KV cache in {cache_type}")
    if settings.dtype in memory.FLOAT32:
        raise NoRow(f"the tables have no dtype {settings.dtype}")
    words = {"kvcache_quant_mode": mode, "fmha_quant_mode": "bfloat16"}
    if asked and (stored is None or memory.loaded(stored, asked) != stored):
        scheme = memory.kernel_scheme(facts, settings)
        if stored is not None or scheme not in _ONLINE:
            raise NoRow(
                f"the tables have no quantization {asked}"
                + (f" of {stored.method}" if stored else "")
            )
        words |= dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), _ONLINE[scheme])
    return words


@cache
def _compiled(config: str, system: str, backend: str, words: tuple[tuple[str, Any], ...]) -> Any:
    """The tables' engine of a model; why there is none, as text, so that it is asked once."""
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError as error:
        return f"tables of kernels need the extra: llm-serving-orchestrator[tables] ({error})"
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(
            json.dumps(_named(json.loads(config))), encoding="utf-8"
        )
        try:
            kernels = EngineHandle.compile(folder, system, backend, **dict(words))
            kernels.decode_step_latency(1, _PROBE, 1)
            kernels.mixed_step_breakdown(_PROBE, 1, _PROBE, 1, 0)
        except Exception as error:  # of a dozen kinds, some from Rust; each says what is missing
            return _said(error)
    return kernels


def _named(config: dict[str, Any]) -> dict[str, Any]:
    """With the class of the model, where the catalogue knows its type alone."""
    if not config.get("architectures"):
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        config["architectures"] = [
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.get("model_type", ""), "")
        ]
    return config


def _ask(question: Any, *words: int) -> Any:
    try:
        return question(*words)
    except Exception as error:  # a shape beyond the tables' last
        raise NoRow(_said(error)) from error


def _said(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__

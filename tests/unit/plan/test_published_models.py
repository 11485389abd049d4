"""Sizes and verdicts of real models, from the fields of their published configs
(published_models.json has each one's source), beside what their cards and files say.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import memory
from orchestrator.catalog.models import ModelFacts, facts_from_config, with_modelopt
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.feasibility import Feasibility, assess
from orchestrator.plan.model import Plan
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.plan.files import planned

PUBLISHED = json.loads(
    Path(__file__).with_name("published_models.json").read_text(encoding="utf-8")
)
GIB = 2**30


def test_every_config_says_where_it_was_published() -> None:
    # a published file, or a revision of a repository
    where = re.compile(r"config\.json|\w+/\w+ [0-9a-f]{7}")
    assert [name for name, about in PUBLISHED.items() if not where.search(about["source"])] == []
    assert len(PUBLISHED) >= 50


def spelled_out(value: Any) -> Any:
    """Layers are written ``layers.{0-3,7}`` there, kinds of all layers with commas, flags of all as
    digits.
    """
    if isinstance(value, dict):
        lists = ("layer_types", "layers_block_type", "mlp_layer_types")
        return (
            {name: spelled_out(inner) for key, inner in value.items() for name in names(key)}
            | {
                key: inner.split(",")
                for key, inner in value.items()
                if key in lists and isinstance(inner, str)
            }
            | {
                key: list(map(int, inner))
                for key, inner in value.items()
                if key == "moe_layer_freq" and inner != 1
            }
        )
    if isinstance(value, list):
        return [
            name
            for inner in value
            for name in (names(inner) if isinstance(inner, str) else [spelled_out(inner)])
        ]
    return value


def names(text: str) -> list[str]:
    layers = re.search(r"\{([\d,-]+)\}", text)
    if layers is None:
        return [text]
    ranges = [[int(end) for end in part.split("-")] for part in layers[1].split(",")]
    numbers = [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]
    return [text.replace(layers[0], str(number)) for number in numbers]


@cache
def facts(name: str) -> ModelFacts:
    about = PUBLISHED[name]
    found = facts_from_config(
        name, with_modelopt(spelled_out(about["config"]), spelled_out(about.get("hf_quant_config")))
    )
    assert found is not None
    return found


def judge(name: str, accelerator: str, engine: str = "vllm", **given: Any) -> Feasibility:
    """As plan does: with what the engine pins."""
    hardware = Hardware(name="x", accelerator=accelerator, gpus_per_node=8)
    settings = EngineSettings(**{"engine": engine, "model": name, "max_model_len": 8192} | given)
    settings = settings.model_copy(update=ENGINES[engine].open_pins(settings, hardware))
    return assess(settings, facts(name), hardware)


# Billions of parameters as the cards and the hub's counts of safetensors say, without towers and
# layers for drafts; and GB of files that are quantized (of FP8 throughout: the parameters, and
# those of embedding and head once more).
SIZES: dict[str, tuple[float, float | None]] = {
    "Qwen/Qwen3-235B-A22B": (235.1, None),
    "Qwen/Qwen3-235B-A22B-FP8": (235.1, 236.4),
    "Qwen/Qwen3-30B-A3B-FP8": (30.5, 31.2),
    "Qwen/Qwen3-32B": (32.8, 65.5),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": (32.8, 34.3),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480.2, 960.3),
    "Qwen/Qwen3-Next-80B-A3B-Thinking": (79.7, 159.3),
    "Qwen/Qwen3.5-27B": (26.9, None),
    "Qwen/Qwen3.5-397B-A17B": (396.8, None),
    "Infermatic/Llama-3.3-70B-Instruct-FP8-Dynamic": (70.6, 72.7),
    "RedHatAI/Llama-3.3-70B-Instruct-NVFP4": (70.6, 42.7),
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": (70.6, 72.7),
    "amd/Llama-3.1-70B-Instruct-FP8-KV": (70.6, 72.7),
    "amd/Llama-3.3-70B-Instruct-MXFP4-Preview": (70.6, 40.6),
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": (70.6, 39.8),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (70.6, 72.7),
    "MiniMaxAI/MiniMax-M2.5": (228.7, 230.0),
    "deepseek-ai/DeepSeek-R1": (671.0, 673.2),
    "deepseek-ai/DeepSeek-V3.2": (671.9, 674.0),
    "google/gemma-3-27b-it": (27.0, 54.0),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21.8, None),
    "google/gemma-4-26B-A4B": (25.2, None),
    "google/gemma-4-31B": (30.7, None),
    "meta-llama/Llama-3.1-405B-Instruct-FP8": (405.9, 487.2),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400.7, 801.4),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (107.8, 215.5),
    "meta-llama/Meta-Llama-3.1-405B": (405.9, 811.7),
    "mistralai/Mistral-Large-Instruct-2407": (122.6, 245.2),
    "mistralai/Mistral-Small-4-119B-2603": (119.0, None),
    "mistralai/Mixtral-8x22B-v0.1": (140.6, 281.2),
    "moonshotai/Kimi-K2-Instruct": (1026.5, 1029.2),
    "moonshotai/Kimi-K2.5": (1026.5, 594.0),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.6, 63.2),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (549.0, 1098.0),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (8.89, 17.8),
    "nvidia/Nemotron-H-56B-Base-8K": (56.3, 112.6),
    "nvidia/Qwen3-235B-A22B-NVFP4": (235.1, 134.0),
    "openai/gpt-oss-120b": (116.8, 65.2),
    "openai/gpt-oss-20b": (20.9, 13.8),
    "tencent/Hy3-preview": (295.0, None),
    "upstage/Solar-Open-100B": (102.6, None),
    "zai-org/GLM-4.7": (352.8, 705.6),
    "zai-org/GLM-4.7-Flash": (29.9, None),
    "zai-org/GLM-5-FP8": (744.0, 746.0),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters_and_bytes_are_those_that_are_published(name: str) -> None:
    parameters, size = SIZES[name]
    assert facts(name).parameters.total == pytest.approx(parameters * 1e9, rel=0.005)
    assert memory.weights(facts(name)).total == pytest.approx(
        (size or 2 * parameters) * 1e9, rel=0.01
    )


# of a token over all layers, and positions: from the layers that attend and the heads in each
# config
KV_BYTES = {
    "Qwen/Qwen3-Next-80B-A3B-Thinking": (12 * 2 * 2 * 256 * 2, 262144),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (4 * 2 * 8 * 128 * 2, 131072),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (6 * 2 * 2 * 128 * 2, 262144),
    "Qwen/Qwen3.5-27B": (16 * 2 * 4 * 256 * 2, 262144),
    "google/gemma-3-27b-it": (62 * 2 * 16 * 128 * 2, 131072),
    "google/gemma-4-26B-A4B": (25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2, 262144),
    "google/gemma-4-31B": (50 * 2 * 16 * 256 * 2 + 10 * 2 * 4 * 512 * 2, 262144),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (80 * 2 * 8 * 128, 131072),  # its file asks for FP8
    "deepseek-ai/DeepSeek-R1": (61 * (512 + 64) * 2, 163840),
}


@pytest.mark.parametrize("name", KV_BYTES)
def test_only_layers_with_attention_have_a_cache(name: str) -> None:
    settings = EngineSettings(engine="vllm", model=name)
    found = memory.kv_bytes_per_token(facts(name), settings, 1), facts(name).max_model_len
    assert found == KV_BYTES[name]


COMPUTED = {
    "Infermatic/Llama-3.3-70B-Instruct-FP8-Dynamic": "fp8", "RedHatAI/Llama-3.3-70B-Instruct-NVFP4": "fp4",
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": "int8", "amd/Llama-3.1-70B-Instruct-FP8-KV": "fp8",
    "amd/Llama-3.3-70B-Instruct-MXFP4-Preview": "fp4", "meta-llama/Llama-3.1-405B-Instruct-FP8": "fp8",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "fp8", "nvidia/DeepSeek-V3.1-NVFP4": "fp4", "moonshotai/Kimi-K2.5": "bfloat16",
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": "bfloat16", "openai/gpt-oss-120b": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_the_arithmetic_is_that_of_the_stored_scheme(name: str) -> None:
    assert (
        memory.compute_type(facts(name), EngineSettings(engine="vllm", model=name))
        == COMPUTED[name]
    )


# Model, accelerator, engine, settings, verdict, GiB of weights on a rank or None where nobody can
# know. FP8 blocks are 128 wide: vLLM 0.32 cuts those of experts into smaller ones, SGLang 0.5.23
# refuses.
FITS, RISKY, IMPOSSIBLE = "fits", "risky", "impossible"
TP, DP, PP, EP = (
    "tensor_parallel_size",
    "data_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
)
# vLLM 0.32 calls fbgemm_fp8 so
DEPRECATED = {"extra_args": {"--allow-deprecated-quantization": True}}
WHOLE = {
    "extra_args": {
        "--moe-dense-tp-size": 1,
        "--moe-a2a-backend": "deepep",
        "--enable-dp-lm-head": True,
    }
}
DP16, DP32 = ({DP: nodes * 8, EP: True, "nnodes": nodes} for nodes in (2, 4))
UTILIZATION, GRAPHS = "gpu_memory_utilization", {"extra_args": {"--cuda-graph-max-bs-decode": 128}}
Row = tuple[str, str, str, dict[str, Any], str, float | None]
VERDICTS: list[Row] = [
    ("Qwen/Qwen3-235B-A22B", "H100-80GB", "vllm", {TP: 4}, IMPOSSIBLE, 109.5),
    # experts over 8, with EP and without
    ("Qwen/Qwen3-235B-A22B", "H100-80GB", "vllm", {TP: 4, DP: 2}, FITS, 56.7),
    ("Qwen/Qwen3-235B-A22B", "H100-80GB", "vllm", {TP: 4, DP: 2, EP: True}, FITS, 56.7),
    # two whole copies
    ("Qwen/Qwen3-235B-A22B", "H100-80GB", "sglang", {TP: 4, DP: 2}, IMPOSSIBLE, 109.5),
    ("Qwen/Qwen3-235B-A22B", "H200", "sglang", {TP: 4, DP: 2, EP: True}, FITS, 56.5),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "vllm", {TP: 4}, FITS, 55.1),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "vllm", {TP: 8}, RISKY, 27.7),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "vllm", {TP: 4, DP: 2}, RISKY, 28.7),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "vllm", {TP: 4, DP: 2, EP: True}, FITS, 28.7),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "sglang", {TP: 8}, IMPOSSIBLE, 27.7),
    ("Qwen/Qwen3-235B-A22B-FP8", "H200", "sglang", {TP: 8, EP: True}, FITS, 27.7),
    # its experts become NVFP4 while they load: 235B on one B200
    ("Qwen/Qwen3-235B-A22B-FP8", "B200", "sglang", {"quantization": "modelopt_fp4"}, FITS, 127.6),
    ("Qwen/Qwen3-235B-A22B", "B200", "sglang", {"quantization": "nvfp4_online"}, FITS, 133.9),
    ("Qwen/Qwen3-235B-A22B-FP8", "B200", "sglang", {}, IMPOSSIBLE, 219.0),
    (
        "Qwen/Qwen3-235B-A22B-FP8",
        "B200",
        "vllm",
        {"quantization": "modelopt_fp4"},
        IMPOSSIBLE,
        127.6,
    ),
    ("Qwen/Qwen3-30B-A3B-FP8", "L40S", "vllm", {}, FITS, 29.0),
    ("Qwen/Qwen3-30B-A3B-FP8", "L40S", "sglang", {}, FITS, 29.0),
    ("Qwen/Qwen3-30B-A3B-FP8", "L4", "vllm", {}, IMPOSSIBLE, 29.0),
    ("Qwen/Qwen3-32B", "H100-80GB", "vllm", {}, FITS, 61.0),
    ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "L40S", "vllm", {}, FITS, 32.0),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "H200", "vllm", {TP: 8}, FITS, 111.9),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "H100-80GB", "vllm", {TP: 8}, IMPOSSIBLE, 111.9),
    (
        "Qwen/Qwen3-Next-80B-A3B-Thinking",
        "H100-80GB",
        "vllm",
        {TP: 4, "max_model_len": 262144},
        FITS,
        37.2,
    ),
    ("Qwen/Qwen3-Next-80B-A3B-Thinking", "H100-80GB", "vllm", {TP: 2}, IMPOSSIBLE, 74.2),
    ("Qwen/Qwen3.5-27B", "H100-80GB", "vllm", {}, FITS, 50.1),
    ("Qwen/Qwen3.5-397B-A17B", "H200", "vllm", {TP: 8}, FITS, 92.5),
    ("Infermatic/Llama-3.3-70B-Instruct-FP8-Dynamic", "H200", "vllm", {}, FITS, 67.7),
    ("RedHatAI/Llama-3.3-70B-Instruct-NVFP4", "B200", "vllm", {}, FITS, 39.8),
    (
        "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8",
        "A100-80GB",
        "vllm",
        {TP: 2},
        FITS,
        33.8,
    ),
    # as its README says (26ef87c): SGLang's own code for it skips the check of blocks of 192 wide
    # heads (mimo_v2.py)
    ("XiaomiMiMo/MiMo-V2-Flash", "H200", "sglang", {TP: 4, DP: 2, EP: True}, RISKY, 37.0),
    ("XiaomiMiMo/MiMo-V2-Flash", "H200", "vllm", {TP: 4}, RISKY, 72.4),
    # no formula, so not impossible
    ("XiaomiMiMo/MiMo-V2-Flash", "H200", "vllm", {TP: 2}, RISKY, 144.8),
    ("amd/Llama-3.1-70B-Instruct-FP8-KV", "MI300X", "vllm", {}, FITS, 67.7),
    ("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "MI355X", "vllm", {}, FITS, 37.8),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "MI300X", "vllm", {}, FITS, 67.7),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "MI300X", "sglang", {}, IMPOSSIBLE, 67.7),
    ("google/gemma-4-26B-A4B", "H100-80GB", "vllm", {"max_model_len": 262144}, FITS, 47.0),
    ("google/gemma-4-26B-A4B", "L40S", "vllm", {}, IMPOSSIBLE, 47.0),
    ("google/gemma-4-26B-A4B", "L40S", "sglang", {TP: 2}, FITS, 23.5),
    ("google/gemma-4-31B", "H100-80GB", "vllm", {}, FITS, 57.2),
    # 27 GiB of cache
    ("google/gemma-4-31B", "H100-80GB", "vllm", {"max_model_len": 262144}, IMPOSSIBLE, 57.2),
    ("google/gemma-4-31B", "H100-80GB", "vllm", {TP: 2, "max_model_len": 262144}, FITS, 28.6),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "A100-80GB", "vllm", {}, FITS, 37.0),
    (
        "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        "A100-80GB",
        "tensorrt_llm",
        {},
        IMPOSSIBLE,
        37.0,
    ),
    (
        "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        "RTX 4090",
        "vllm",
        {TP: 2},
        FITS,
        18.5,
    ),
    # of 16.7
    (
        "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        "RTX 4090",
        "sglang",
        {TP: 2},
        IMPOSSIBLE,
        18.5,
    ),
    (
        "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        "RTX 4090",
        "lmdeploy",
        {TP: 2},
        FITS,
        18.5,
    ),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "L40S", "sglang", {TP: 2}, FITS, 18.5),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "A10G", "tgi", {TP: 4}, FITS, 9.3),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "H200", "vllm", {}, FITS, 67.7),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "H200", "vllm", {"quantization": "modelopt"}, FITS, 67.7),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "H200", "tensorrt_llm", {}, FITS, 67.7),
    ("MiniMaxAI/MiniMax-M2.5", "H200", "vllm", {TP: 4}, FITS, 53.6),
    ("MiniMaxAI/MiniMax-M2.5", "H200", "vllm", {TP: 8}, RISKY, 26.9),
    ("MiniMaxAI/MiniMax-M2.5", "H200", "vllm", {TP: 8, EP: True}, FITS, 26.9),
    ("deepseek-ai/DeepSeek-R1", "H200", "vllm", {TP: 8}, FITS, 79.3),
    ("deepseek-ai/DeepSeek-R1", "H200", "vllm", {DP: 8, EP: True}, FITS, 93.9),
    # all ranks share its dense MLPs, shared experts and output layer, of which each has its own in
    # vLLM
    ("deepseek-ai/DeepSeek-R1", "H200", "sglang", {DP: 8, EP: True}, FITS, 89.4),
    ("deepseek-ai/DeepSeek-R1", "H200", "sglang", {DP: 8}, IMPOSSIBLE, 627.0),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "sglang", {TP: 8, PP: 2, "nnodes": 2}, FITS, 40.9),
    # as SGLang's guide to large-scale expert parallelism runs it: 18432 / 32 is 4.5 blocks, so
    # dense MLPs stay whole; without its --mem-fraction-static the reserve for attention on so many
    # ranks is all of the memory
    (
        "deepseek-ai/DeepSeek-R1",
        "H100-80GB",
        "sglang",
        DP32 | WHOLE | {UTILIZATION: 0.835},
        FITS,
        31.8,
    ),
    (
        "deepseek-ai/DeepSeek-R1",
        "H100-80GB",
        "sglang",
        DP32 | {UTILIZATION: 0.835},
        IMPOSSIBLE,
        31.8,
    ),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "sglang", DP32 | WHOLE, IMPOSSIBLE, 31.8),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "sglang", DP16 | GRAPHS, FITS, 51.0),
    # of 26.7 by its own estimate
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "sglang", DP16, IMPOSSIBLE, 51.0),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "sglang", DP16 | {UTILIZATION: 0.85}, FITS, 51.0),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "vllm", DP32, FITS, 36.8),
    ("deepseek-ai/DeepSeek-R1", "H100-80GB", "vllm", DP16, FITS, 55.8),
    ("deepseek-ai/DeepSeek-R1", "H20", "vllm", {TP: 8}, FITS, 79.3),
    ("deepseek-ai/DeepSeek-R1", "H20", "sglang", {TP: 8}, RISKY, 79.3),
    ("deepseek-ai/DeepSeek-R1", "MI300X", "sglang", {TP: 8}, FITS, 79.3),
    ("deepseek-ai/DeepSeek-V3.2", "H200", "vllm", {TP: 8}, FITS, 79.4),
    ("deepseek-ai/DeepSeek-V4-Flash", "H200", "vllm", {TP: 8}, FITS, 19.1),
    ("deepseek-ai/DeepSeek-V4-Flash", "H200", "sglang", {DP: 8, EP: True}, FITS, 29.4),
    # no formula, so not impossible
    ("deepseek-ai/DeepSeek-V4-Flash", "H100-80GB", "vllm", {TP: 2}, RISKY, 75.7),
    (
        "deepseek-ai/DeepSeek-V4-Pro",
        "B200",
        "tensorrt_llm",
        {TP: 16, "nnodes": 2, EP: True},
        FITS,
        52.0,
    ),
    ("google/gemma-3-27b-it", "H100-80GB", "vllm", {"max_model_len": 131072}, FITS, 50.3),
    ("google/gemma-3-27b-it", "H100-80GB", "vllm", {"max_model_len": 131073}, IMPOSSIBLE, 50.3),
    (
        "meta-llama/Llama-3.1-405B-Instruct-FP8",
        "H100-80GB",
        "vllm",
        {TP: 8} | DEPRECATED,
        FITS,
        56.7,
    ),
    ("meta-llama/Llama-3.1-405B-Instruct-FP8", "H100-80GB", "vllm", {TP: 8}, IMPOSSIBLE, 56.7),
    ("meta-llama/Llama-3.1-405B-Instruct-FP8", "H100-80GB", "vllm", {TP: 4}, IMPOSSIBLE, 113.4),
    (
        "meta-llama/Meta-Llama-3.1-405B",
        "H100-80GB",
        "vllm",
        {TP: 8, PP: 2, "nnodes": 2},
        FITS,
        47.3,
    ),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "H100-80GB", "vllm", {TP: 4}, FITS, 50.2),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "H100-80GB", "vllm", {TP: 2}, IMPOSSIBLE, 100.4),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "H200", "vllm", {TP: 8}, FITS, 93.3),
    (
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "H100-80GB",
        "vllm",
        {TP: 8, PP: 2, "nnodes": 2},
        FITS,
        46.7,
    ),
    ("mistralai/Mistral-Large-Instruct-2407", "H100-80GB", "vllm", {TP: 4}, FITS, 57.1),
    ("mistralai/Mixtral-8x22B-v0.1", "H100-80GB", "vllm", {TP: 4}, FITS, 65.5),
    ("mistralai/Mixtral-8x22B-v0.1", "H100-80GB", "vllm", {TP: 2, DP: 2}, RISKY, 68.0),
    ("moonshotai/Kimi-K2-Instruct", "H200", "vllm", {TP: 16, "nnodes": 2}, FITS, 61.0),
    ("moonshotai/Kimi-K2.5", "H200", "vllm", {TP: 8}, FITS, 71.0),
    ("moonshotai/Kimi-K3", "B200", "vllm", {TP: 8}, FITS, None),
    ("nvidia/DeepSeek-V3.1-NVFP4", "B200", "vllm", {TP: 4}, FITS, 90.8),
    ("nvidia/DeepSeek-V3.1-NVFP4", "B200", "tensorrt_llm", {TP: 4, EP: True}, FITS, 90.8),
    ("nvidia/DeepSeek-V3.1-NVFP4", "B200", "vllm", {TP: 2}, IMPOSSIBLE, 180.5),
    ("nvidia/GLM-5-NVFP4", "B200", "vllm", {TP: 4}, FITS, 104.6),
    ("nvidia/GLM-5.1-NVFP4", "B200", "sglang", {TP: 4}, FITS, 105.8),
    ("nvidia/GLM-5.1-NVFP4", "B200", "vllm", {TP: 2}, IMPOSSIBLE, 208.9),
    ("nvidia/Gemma-4-26B-A4B-NVFP4", "L40S", "vllm", {}, FITS, 16.4),
    ("nvidia/Kimi-K2.5-NVFP4", "B200", "vllm", {TP: 4}, FITS, 138.9),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "H100-80GB", "vllm", {TP: 2}, FITS, None),
    ("nvidia/MiniMax-M2.5-NVFP4", "B200", "vllm", {}, FITS, 125.2),
    ("nvidia/MiniMax-M3-NVFP4", "B200", "vllm", {TP: 2}, FITS, 115.3),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "H100-80GB", "vllm", {}, FITS, 58.8),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "RTX 4090", "vllm", {}, FITS, 18.0),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "L4", "vllm", {}, RISKY, 18.0),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "H100-80GB", "vllm", {TP: 2}, FITS, 56.8),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "B200", "vllm", {}, FITS, 113.5),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "B200", "vllm", {TP: 8}, FITS, 128.3),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "H200", "vllm", {TP: 8}, RISKY, 128.3),
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "L4", "vllm", {}, FITS, 16.6),
    ("nvidia/Nemotron-H-56B-Base-8K", "H100-80GB", "vllm", {TP: 2}, FITS, 52.5),
    ("nvidia/Qwen3-235B-A22B-NVFP4", "B200", "vllm", {TP: 2}, FITS, 62.5),
    ("nvidia/Qwen3.5-397B-A17B-NVFP4", "B200", "vllm", {TP: 2}, FITS, 110.5),
    (
        "nvidia/Qwen3.6-35B-A3B-NVFP4",
        "H100-80GB",
        "vllm",
        {},
        FITS,
        19.4,
    ),  # its head has 4 bits, too
    ("openai/gpt-oss-120b", "H100-80GB", "vllm", {}, FITS, 60.7),
    ("openai/gpt-oss-120b", "H100-80GB", "vllm", {TP: 8}, FITS, 7.6),  # 2880 / 8 is padded
    ("openai/gpt-oss-120b", "H100-80GB", "sglang", {}, FITS, 60.7),
    ("openai/gpt-oss-120b", "H100-80GB", "tensorrt_llm", {}, FITS, 60.7),
    ("openai/gpt-oss-120b", "H100-80GB", "lmdeploy", {}, FITS, 60.7),
    ("openai/gpt-oss-120b", "MI300X", "vllm", {}, FITS, 60.7),
    ("openai/gpt-oss-120b", "MI300X", "sglang", {}, FITS, 60.7),
    ("openai/gpt-oss-20b", "RTX 4090", "vllm", {}, FITS, 12.8),
    ("openai/gpt-oss-20b", "T4", "vllm", {}, IMPOSSIBLE, 12.8),  # MXFP4 from compute capability 8
    ("Qwen/Qwen3-VL-235B-A22B-Thinking", "H100-80GB", "vllm", {TP: 8}, FITS, 54.9),
    ("baidu/ERNIE-4.5-21B-A3B-PT", "A100-80GB", "vllm", {TP: 4}, FITS, 10.2),
    ("baidu/ERNIE-4.5-21B-A3B-PT", "H100-80GB", "vllm", {TP: 8}, IMPOSSIBLE, 5.1),  # 20 heads
    # 560 billion, no formula
    ("meituan-longcat/LongCat-Flash-Chat", "H100-80GB", "vllm", {TP: 8}, FITS, None),
    ("mistralai/Mistral-Small-4-119B-2603", "A100-80GB", "sglang", {TP: 4}, FITS, 55.7),
    ("mistralai/Mistral-Small-4-119B-2603", "L4", "vllm", {}, IMPOSSIBLE, 221.6),
    ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "L4", "vllm", {}, IMPOSSIBLE, 91.5),
    ("poolside/laguna-XS.2", "A100-80GB", "tensorrt_llm", {TP: 4}, FITS, 15.5),
    ("poolside/laguna-XS.2", "L4", "vllm", {}, RISKY, 61.8),  # no formula, so not impossible
    ("tencent/Hy3-preview", "H100-80GB", "vllm", {TP: 8}, RISKY, 68.8),
    # of 64.7 by its own estimate
    ("tencent/Hy3-preview", "H100-80GB", "sglang", {TP: 8}, IMPOSSIBLE, 68.8),
    ("tencent/Hy3-preview", "A100-80GB", "vllm", {TP: 4}, IMPOSSIBLE, 137.5),
    ("upstage/Solar-Open-100B", "A100-80GB", "tensorrt_llm", {TP: 4}, FITS, 47.8),
    ("upstage/Solar-Open-100B", "L4", "sglang", {}, IMPOSSIBLE, 191.2),
    ("zai-org/GLM-4.7-Flash", "A100-80GB", "vllm", {TP: 4}, FITS, 14.1),
    ("zai-org/GLM-4.7-Flash", "H100-80GB", "sglang", {TP: 8}, IMPOSSIBLE, 7.2),  # 20 heads
    ("zai-org/GLM-4.7", "H200", "vllm", {TP: 8}, FITS, 82.3),
    ("zai-org/GLM-4.7", "H100-80GB", "vllm", {TP: 8}, IMPOSSIBLE, 82.3),
    ("zai-org/GLM-5-FP8", "H200", "vllm", {TP: 8}, FITS, 88.1),
]


@pytest.mark.parametrize(("name", "accelerator", "engine", "given", "status", "gib"), VERDICTS)
def test_the_verdict_is_the_true_one(
    name: str, accelerator: str, engine: str, given: dict[str, Any], status: str, gib: float | None
) -> None:
    verdict = judge(name, accelerator, engine, **given)
    assert verdict.status == status, verdict.reasons
    weights = verdict.starts[""].weight_bytes
    assert (weights and weights / GIB) == (None if gib is None else pytest.approx(gib, rel=0.01))


def test_every_published_config_has_a_verdict() -> None:
    assert PUBLISHED.keys() - {name for name, *_ in VERDICTS} == set()


@pytest.mark.parametrize(
    ("engine", "given", "status"),
    [
        ("vllm", {TP: 4}, FITS),
        ("vllm", {TP: 8}, IMPOSSIBLE),
        ("vllm", {TP: 8, EP: True}, IMPOSSIBLE),  # experts are whole, the shared one is not
        ("vllm", {TP: 4, DP: 2, EP: True}, FITS),  # ranks share tokens instead
        # it makes the shared expert one of the experts (models/qwen2_moe.py)
        ("sglang", {TP: 8, EP: True}, FITS),
    ],
)
def test_blocks_of_a_shared_expert_are_not_cut(
    engine: str, given: dict[str, Any], status: str
) -> None:
    """Qwen3-Next-80B in FP8: 512 / 8 is half a block, and its down_proj is refused as any
    row-parallel layer is (vLLM
    0.32 fp8_utils.py: validate_fp8_block_shape)."""
    published = spelled_out(PUBLISHED["Qwen/Qwen3-Next-80B-A3B-Thinking"]["config"])
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = facts_from_config(
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", published | {"quantization_config": blocks}
    )
    settings = EngineSettings(engine=engine, model="m", max_model_len=8192, **given)
    hardware = Hardware(name="x", accelerator="H200", gpus_per_node=8)
    settings = settings.model_copy(update=ENGINES[engine].open_pins(settings, hardware))
    verdict = assess(settings, found, hardware)
    assert verdict.status == status, verdict.reasons
    about = [
        reason
        for reason in verdict.reasons
        if reason.startswith("shared_expert_intermediate_size 512")
    ]
    assert bool(about) is (status == IMPOSSIBLE)


def test_experts_may_be_stored_in_fewer_bits_than_the_rest() -> None:
    """DeepSeek-V4-Flash has 162 GB, as a lossless conversion of its files has; with all in FP8 it
    had 292.
    """
    name = "deepseek-ai/DeepSeek-V4-Flash"
    other = facts_from_config(name, PUBLISHED[name]["config"] | {"expert_dtype": "fp8"})
    assert memory.weights(facts(name)).total == pytest.approx(162e9, rel=0.01)
    assert memory.weights(other).total == pytest.approx(292e9, rel=0.01)


def test_without_a_formula_only_the_size_of_files_counts() -> None:
    name, hardware = (
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        Hardware(name="x", accelerator="H100-80GB"),
    )
    unknown = judge(name, "H100-80GB")
    assert (unknown.starts[""].weight_bytes, unknown.starts[""].kv_cache_tokens) == (None, None)
    assert unknown.starts[""].parameters is None
    assert "nothing is known of its weights" in unknown.remarks[0]
    stored = facts_from_config(
        name, spelled_out(PUBLISHED[name]["config"]), checkpoint_bytes=99_733_000_000
    )
    one, two = (
        assess(EngineSettings(engine="vllm", model=name, **{TP: size}), stored, hardware)
        for size in (1, 2)
    )
    assert (one.status, two.status) == ("impossible", "fits")
    assert two.starts[""].weight_bytes == 99_733_000_000 // 2


def test_files_are_the_truth_where_they_are_at_hand() -> None:
    """Draft layers in them are not loaded, float32 is not either, and what is missing is not
    believed.
    """

    def total(name: str, size: int, **changes: Any) -> float:
        found = facts_from_config(
            name, spelled_out(PUBLISHED[name]["config"]) | changes, checkpoint_bytes=size
        )
        assert found is not None
        return memory.weights(found).total

    assert total("deepseek-ai/DeepSeek-R1", 688_586_727_753) == pytest.approx(673.2e9, rel=0.01)
    assert total("meta-llama/Llama-4-Scout-17B-16E-Instruct", 217_283_587_072) == pytest.approx(
        217.28e9, rel=0.001
    )
    assert total("Qwen/Qwen3-32B", 131_049_000_000, torch_dtype="float32") == pytest.approx(
        65.5e9, rel=0.01
    )
    assert total("Qwen/Qwen3-32B", 8_000_000_000) == pytest.approx(65.5e9, rel=0.01)


def test_impossible_deployments_can_be_run_if_they_have_a_command() -> None:
    plan = planned(
        hardware={"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8}},
        model="meta-llama/Llama-3.1-70B-Instruct",
        deployments={
            "engine": "vllm",
            "hardware": "h100",
            "max_model_len": 4096,
            "vary": [
                {
                    "cases": [
                        {},
                        {"tensor_parallel_size": 16},
                        {"quantization": "gguf"},
                        {"tensor_parallel_size": 4},
                    ]
                }
            ],
        },
    )
    assert [deployment.status for deployment in plan.deployments] == [
        "impossible",
        "impossible",
        "impossible",
        "planned",
    ]
    allowed = plan.allowing()
    assert [deployment.status for deployment in allowed.deployments] == [
        "risky",
        "impossible",
        "impossible",
        "planned",
    ]
    assert allowed.deployments[0].reasons[0].startswith("run all the same: 131.4 GiB of weights")
    assert [deployment.id for deployment in allowed.runnable()] == [
        plan.deployments[3].id,
        plan.deployments[0].id,
    ]
    assert allowed.notes[-1] == "--allow-impossible: runs 1 deployment all the same"
    assert Plan.from_json(allowed.to_json()) == allowed
    assert allowed.allowing() is allowed

"""Predicted weights and KV tokens against what real vLLM holds and reports, for small models of
many architectures.

vLLM for the CPU logs its KV tokens but not its weights, so each rank's own parameters are added up
as soon as they are loaded, before the CPU's kernels pack them into buffers of their own. One
process imports vLLM and forks for each case and its ranks; a case is over as soon as it has logged
its KV tokens.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.catalog.models import facts_from_config
from orchestrator.node.shared_memory import FOLDER, mapped, names
from orchestrator.plan.feasibility import assess
from orchestrator.spec.settings import EngineSettings, Hardware

PYTHON = Path(__file__).resolve().parents[3] / ".engines" / "vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no vLLM environment in {PYTHON.parent.parent}: make engines"
    ),
]
KV_GIB = "1"
BASE: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0, "initializer_range": 0.02,
}  # fmt: skip
QWEN_EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
LATENTS = {
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1, "num_key_value_heads": 8, "head_dim": None, "moe_layer_freq": 1,
    "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.0,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "sliding_window": 256,
}


def config(model_type: str, architecture: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture], **BASE, **more}


LLAMA = config("llama", "LlamaForCausalLM")
QWEN3_MOE = config("qwen3_moe", "Qwen3MoeForCausalLM", **QWEN_EXPERTS)
DEEPSEEK = config("deepseek_v2", "DeepseekV2ForCausalLM", **LATENTS)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama-tied": (LLAMA | {"tie_word_embeddings": True}, {}),
    "llama-biases-float32": (
        LLAMA | {"attention_bias": True, "mlp_bias": True},
        {"dtype": "float32"},
    ),
    "mixtral": (
        config("mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
        {},
    ),
    "qwen2": (config("qwen2", "Qwen2ForCausalLM"), {}),
    "qwen3-tied": (config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True), {}),
    "qwen3-moe": (QWEN3_MOE, {}),
    "gemma2": (config("gemma2", "Gemma2ForCausalLM", tie_word_embeddings=True, **GEMMA), {}),
    "gemma3": (config("gemma3_text", "Gemma3ForCausalLM", tie_word_embeddings=True, **GEMMA), {}),
    "phi3": (
        config("phi3", "Phi3ForCausalLM", original_max_position_embeddings=1024, pad_token_id=0),
        {},
    ),
    "deepseek-v2": (DEEPSEEK, {}),
    "llama-tied-pp2": (LLAMA | {"tie_word_embeddings": True}, {"pipeline_parallel_size": 2}),
    "qwen3-moe-one-kv-head-ep2": (
        QWEN3_MOE | {"num_key_value_heads": 1},
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    ),
}

# A plugin of vLLM, so that its worker processes have it too.
PLUGIN = """
import os
def install():
    from vllm.model_executor.model_loader import base_loader
    finish = base_loader.process_weights_after_loading
    def weigh(model, *rest):
        size = sum(part.numel() * part.element_size() for part in model.parameters())
        os.write(1, f"WEIGHTS {size}\\n".encode())
        return finish(model, *rest)
    base_loader.process_weights_after_loading = weigh
"""
ENGINES = """
import json, multiprocessing, os, sys, traceback
from vllm import LLM, ModelRegistry
from vllm.v1.executor import multiproc_executor
from vllm.v1.executor.abstract import Executor
multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")
# It is called after the sizes are logged, and would make the caches and warm up: the case ends here.
Executor.initialize_from_config = lambda *_: os._exit(0)
for line in sys.stdin:
    name, folder, architecture, options = json.loads(line)
    os.write(1, f"CASE {name}\\n".encode())
    if (child := os.fork()) == 0:
        try:
            # Registered by its class, it is not looked at in a process of its own, which takes ten seconds.
            ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
            LLM(folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, **options)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.waitpid(child, 0)
"""


@dataclass(frozen=True)
class Engine:
    """What one engine holds: bytes of parameters of every rank, KV tokens and concurrency; and the
    end of its log.
    """

    weight_bytes: list[int]
    kv_cache_tokens: int | None
    max_concurrency: float
    log: str


COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 1000,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
}


def plugin(folder: Path) -> Path:
    """A folder that PYTHONPATH makes an installed package of."""
    about = folder / "weigh-1.dist-info"
    about.mkdir()
    (folder / "weigh.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: weigh\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nweigh = weigh:install\n")
    return folder


def case_line(name: str, folder: Path) -> str:
    """The line of ENGINES' input for a case, with the model's configuration in ``folder``."""
    model, options = CASES[name]
    (folder / "config.json").write_text(json.dumps(model))
    return json.dumps([name, str(folder), model["architectures"][0], COMMON | options])


def remove_left_segments(before: set[str]) -> None:
    """Removes the shared memory of 8 MB that each worker of a case leaves. ``before``: the names of
    the segments that were there earlier. Segments that a process uses are of others' engines.
    """
    used = {segment.path for segment in mapped(psutil.pids(), limit_s=60)}
    for name in names() - before:
        if name.startswith("vllm_dist_") and FOLDER + name not in used:
            os.unlink(FOLDER + name)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    """By case, what real vLLM holds."""
    lines = [case_line(name, tmp_path_factory.mktemp(name)) for name in CASES]
    env = {
        "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": KV_GIB, "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": str(plugin(tmp_path_factory.mktemp("plugin"))),
    }  # fmt: skip
    before = names()
    process = subprocess.Popen(
        [str(PYTHON), "-c", ENGINES], env=os.environ | env, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        log, _ = process.communicate("\n".join(lines), timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        remove_left_segments(before)
    parts = (part.partition("\n") for part in log.split("CASE ")[1:])
    return {name: engine_of(case_log) for name, _, case_log in parts}


def engine_of(log: str) -> Engine:
    """What an engine holds, as its log says."""
    weight_bytes = [int(size) for size in re.findall(r"WEIGHTS (\d+)", log)]
    cache = re.search(
        (
            r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: "
            r"(\S+)x"
        ),
        log,
    )
    if cache is None:
        return Engine(weight_bytes, None, 0.0, log[-3000:])
    kv_cache_tokens = int(cache[1].replace(",", ""))
    return Engine(weight_bytes, kv_cache_tokens, float(cache[2]), log[-3000:])


@pytest.mark.parametrize("name", CASES)
def test_weights_and_kv_tokens_are_what_real_vllm_holds(
    name: str, engines: dict[str, Engine]
) -> None:
    model, options = CASES[name]
    facts = facts_from_config(name, model)
    given = {"env": {"VLLM_CPU_KVCACHE_SPACE": KV_GIB}} | COMMON | options
    predicted = assess(
        EngineSettings(engine="vllm", model=name, **given), facts, Hardware(name="cpu")
    ).starts[""]
    engine = engines[name]
    assert engine.kv_cache_tokens is not None, engine.log
    ranks = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
    assert len(engine.weight_bytes) == ranks
    print(
        f"{name}: weights {max(engine.weight_bytes):,} predicted {predicted.weight_bytes:,}, "
        f"KV tokens {engine.kv_cache_tokens:,} predicted {predicted.kv_cache_tokens:,}"
    )
    assert predicted.weight_bytes == pytest.approx(max(engine.weight_bytes), rel=0.02)
    assert predicted.kv_cache_tokens == pytest.approx(engine.kv_cache_tokens, rel=0.05)
    assert predicted.max_concurrency == pytest.approx(engine.max_concurrency, rel=0.05)

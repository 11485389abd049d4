"""Feasibility against real vLLM's own validator, both ways, over five hundred random configurations
of tiny models.

The validator is ``AsyncEngineArgs(...).create_engine_config()`` in one process
(engines/vllm_check.py): no weights are loaded. What only loading or a GPU can show is our rule
alone; those rules are listed in ONLY_AT_LOAD, each with what real vLLM does.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.models import facts_from_config
from orchestrator.engines.problems import problems_of
from orchestrator.engines.vllm import ENGINE as VLLM
from orchestrator.engines.vllm_check import JudgedCommand, Ruling, ask
from orchestrator.plan.feasibility import RuleFinding, feasibility_case, findings_of
from orchestrator.plan.placement import placement_problems
from orchestrator.spec.settings import EngineSettings, Hardware

SEEDS = (20261121, 1)
ENVIRONMENT = Path(__file__).resolve().parents[3] / ".engines" / "vllm"
PYTHON = ENVIRONMENT / "bin" / "python"
ONLY_AT_LOAD = {
    "stages": "more stages than layers: some ranks have nothing to run",
    "intermediate": (
        "MergedColumnParallelLinear asserts that every output divides (seen: TP=2, "
        "intermediate_size 513)"
    ),
    "kv_heads": "attention asserts that KV heads divide or repeat (seen: TP=2, 3 KV heads)",
    "blocks": (
        "validate_fp8_block_shape raises while layers are built; groups that are cut compute NaN"
    ),
    "kernels": "no kernel is found while layers are built (seen: mxfp8)",
    "memory": "there is none to judge on cpu",
    "capability": "there is none on cpu",
}
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no vLLM environment in {ENVIRONMENT}: make engines"
    ),
]


def random_config(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([4, 6, 8, 12])
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": heads * 32, "head_dim": 32,
        "num_hidden_layers": rng.choice([2, 4, 5]), "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([count for count in (1, 2, 3, 4, 6, 8, 12) if heads % count == 0]),
        "intermediate_size": rng.choice([256, 384, 512]), "vocab_size": 512, "tie_word_embeddings": False,
        "max_position_embeddings": rng.choice([1024, 4096]), "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "dtype": rng.choice(["float32", "bfloat16"]),
    }  # fmt: skip
    if rng.random() < 0.25:
        mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        config |= mixtral | {"num_local_experts": 4, "num_experts_per_tok": 2}
    elif rng.random() < 0.2:
        config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    if rng.random() < 0.2:
        config["quantization_config"] = rng.choice(
            [
                {
                    "quant_method": "gptq",
                    "bits": 4,
                    "group_size": 32,
                    "desc_act": False,
                    "sym": True,
                },
                {
                    "quant_method": "awq",
                    "bits": 4,
                    "group_size": 32,
                    "zero_point": True,
                    "version": "gemm",
                },
                {
                    "quant_method": "fp8",
                    "activation_scheme": "dynamic",
                    "weight_block_size": [128, 128],
                },
            ]
        )
    if rng.random() < 0.2:
        positions = config["max_position_embeddings"]
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": positions}
        config |= {
            "rope_scaling": rng.choice([{"rope_type": "linear", "factor": 2.0}, yarn]),
            "rope_theta": 10000.0,
        }
    return config


def random_settings(rng: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tensor_parallel_size": rng.choice([1, 1, 1, 2, 2, 3, 4, 6, 8]),
        "pipeline_parallel_size": rng.choice([1, 1, 1, 2, 3, 4, 8]),
        # always said: our engine pins both
        "max_num_seqs": rng.choice([1, 16, 128, 128, 256, 4096]),
        "max_num_batched_tokens": rng.choice([8, 512, 2048, 2048, 8192, 8192]),
    }
    choices: dict[str, tuple[float, list[Any]]] = {
        "max_model_len": (0.4, [256, 1024, 2048, 4096, 8192]),
        "enable_chunked_prefill": (0.4, [True, False]),
        "quantization": (
            0.2,
            [
                "fp8",
                "fp8_per_tensor",
                "fp8_per_block",
                "mxfp8",
                "awq",
                "gptq",
                "compressed-tensors",
            ],
        ),
        "nnodes": (0.1, [2, 3]),
        "enable_expert_parallel": (0.15, [True]),
        "data_parallel_size": (0.1, [2]),
        "kv_cache_dtype": (0.1, ["fp8", "auto"]),
        "block_size": (0.1, [16, 32, 128]),
    }
    return settings | {
        name: rng.choice(values)
        for name, (share, values) in choices.items()
        if rng.random() < share
    }


def arguments(settings: dict[str, Any]) -> list[str]:
    """As flags of ``vllm serve``."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{flag}"]
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    return words


def verdicts(folders: list[Path], settings: list[dict[str, Any]]) -> list[str | None]:
    """What vLLM says to each: None, or its error."""
    commands = [
        JudgedCommand(
            argv=(str(folder), *arguments(given)),
            env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            models=[(str(folder), None)],
            cpu=True,
        )
        for folder, given in zip(folders, settings, strict=True)
    ]
    report = ask(ENVIRONMENT, commands, limit_s=280)
    assert len(report.verdicts) == len(commands)
    assert Ruling.UNKNOWN not in {verdict.ruling for verdict in report.verdicts}
    return [verdict.sentence or None for verdict in report.verdicts]


def impossible(config: dict[str, Any], settings: dict[str, Any]) -> list[RuleFinding]:
    facts = facts_from_config("tiny", config)
    assert facts is not None
    made, hardware = EngineSettings(engine="vllm", model="tiny", **settings), Hardware(name="cpu")
    refused = [
        one for one in problems_of(VLLM, made, hardware) if one.startswith("max_num_batched_tokens")
    ]
    unplaced = [
        RuleFinding("impossible", "start", text)
        for text in (*refused, *placement_problems(made, hardware))
    ]
    found = findings_of(feasibility_case(made, facts, hardware))
    return unplaced + [finding for finding in found if finding.status == "impossible"]


Cases = list[tuple[dict[str, Any], dict[str, Any]]]


def cases(seed: int) -> Cases:
    """Half of the five hundred: model configurations, and settings for them."""
    rng = random.Random(seed)
    return list(
        zip(
            [random_config(rng) for _ in range(250)],
            [random_settings(rng) for _ in range(250)],
            strict=True,
        )
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str | None]]:
    """vLLM's verdicts by seed, of one process: importing it takes longer than all of them."""
    root = tmp_path_factory.mktemp("models")
    every = [case for seed in SEEDS for case in cases(seed)]
    folders = [root / str(number) for number in range(len(every))]
    for folder, (config, _) in zip(folders, every, strict=True):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    found = verdicts(folders, [given for _, given in every])
    size = len(every) // len(SEEDS)
    return {seed: found[at * size : (at + 1) * size] for at, seed in enumerate(SEEDS)}


@pytest.mark.parametrize("seed", SEEDS)
def test_real_vllm_and_we_refuse_the_same_configurations(
    seed: int, said: dict[int, list[str | None]]
) -> None:
    wrong = []
    for (config, given), error in zip(cases(seed), said[seed], strict=True):
        ours = impossible(config, given)
        if error is None and any(finding.rule not in ONLY_AT_LOAD for finding in ours):
            wrong.append(f"vLLM accepts {given}, we say {[finding.sentence for finding in ours]}")
        if error is not None and not ours:
            wrong.append(f"we accept {given} of {config}, vLLM says {error}")
    assert not wrong, "\n".join(wrong)
    accepted = sum(error is None for error in said[seed])
    assert 60 < accepted < 190, (
        f"{accepted} of {len(said[seed])} accepted: the cases no longer try both sides"
    )

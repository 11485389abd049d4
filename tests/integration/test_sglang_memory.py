"""The share of memory that SGLang's own code takes for our command lines, beside the one that
``plan`` judges by.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.accelerators import memory_bytes
from orchestrator.catalog.models import facts_from_config, known_configs
from orchestrator.engines.command import Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.feasibility import fraction_of
from orchestrator.spec.settings import ROLES, EngineSettings, Hardware
from tests.integration.engine_real import home_of

pytestmark = pytest.mark.sglang
SGLANG = ENGINES["sglang"]
LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3"
CLASSES = {LLAMA: "LlamaForCausalLM", DEEPSEEK: "DeepseekV3ForCausalLM"}
TP, EP = "tensor_parallel_size", "enable_expert_parallel"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (LLAMA, gpu, {})
        for gpu in (
            "T4",
            "L4",
            "RTX 4090",
            "A100-40GB",
            "L40S",
            "H100-80GB",
            "H200",
            "B200",
            "MI300X",
        )
    ),
    (LLAMA, "L40S", {TP: 4}),
    (LLAMA, "H100-80GB", {TP: 8}),
    (LLAMA, "H100-80GB", {TP: 2, "pipeline_parallel_size": 2}),
    (LLAMA, "H100-80GB", {"max_num_batched_tokens": 2048, "max_num_seqs": 16}),
    (LLAMA, "L4", {"max_num_batched_tokens": 16384}),
    (LLAMA, "H100-80GB", {"enforce_eager": True}),
    (LLAMA, "H100-80GB", {"gpu_memory_utilization": 0.7}),
    (DEEPSEEK, "H200", {TP: 8}),
    (DEEPSEEK, "H200", {TP: 8, EP: True}),
    (DEEPSEEK, "H200", {"data_parallel_size": 8, EP: True}),
    (DEEPSEEK, "H100-80GB", {TP: 2, "data_parallel_size": 8, EP: True, "max_num_seqs": 64}),
    (DEEPSEEK, "B200", {TP: 8, "pipeline_parallel_size": 2}),
    (DEEPSEEK, "H100-80GB", {"data_parallel_size": 16, EP: True}),
    (DEEPSEEK, "H100-80GB", {"data_parallel_size": 32, EP: True}),  # nothing is left
    (
        DEEPSEEK,
        "H100-80GB",
        {"data_parallel_size": 16, EP: True, "extra_args": {"--cuda-graph-max-bs-decode": 128}},
    ),
    (LLAMA, "H100-80GB", {"extra_args": {"--cuda-graph-bs-decode": [1, 8, 64]}}),
    (
        DEEPSEEK,
        "H200",
        {"data_parallel_size": 8, EP: True, "extra_args": {"--moe-a2a-backend": "deepep"}},
    ),
]
DRAFTED = {"speculative": {"method": "ngram", "num_speculative_tokens": 8}}
IN_ROLES = [
    *CASES,
    (LLAMA, "H100-80GB", {"max_num_seqs": 16}),
    (LLAMA, "H100-80GB", {TP: 4, "max_num_seqs": 4096}),
    (LLAMA, "H200", {TP: 8, "max_num_seqs": 512} | DRAFTED),
]
# Reads [[memory in MiB, arguments]], prints the share for each. Arguments are resolved as in a
# server up to the step that decides it; only the GPU's memory is told, since there is none to ask.
ASK = """
import argparse, json, sys
from sglang.srt.arg_groups import memory_hook
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.server_args import ServerArgs

class Decided(Exception):
    pass

@register_resolution_hook("handle_gpu_memory_settings")
def decided(server_args, previous):
    previous(server_args)
    raise Decided(resolving_view(server_args).mem_fraction_static)

out = []
for mib, argv in json.load(sys.stdin):
    memory_hook.get_device_memory_capacity = lambda device: mib
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    try:
        ServerArgs.from_cli_args(parser.parse_args(argv)).resolve_once()
    except Decided as share:
        out.append(share.args[0])
print(json.dumps(out))
"""


def settings(
    model: str, accelerator: str, given: dict[str, Any]
) -> tuple[EngineSettings, Hardware]:
    hardware = Hardware(name="x", accelerator=accelerator, gpus_per_node=16)
    made = EngineSettings(engine="sglang", model=model, **given)
    return made.model_copy(update=SGLANG.open_pins(made, hardware)), hardware


def arguments(made: EngineSettings, hardware: Hardware, folder: Path, role: str) -> list[str]:
    """Ours, and what the absent GPU would decide: a device, and graphs of prefills, which SGLang
    makes on CUDA.
    """
    argv = list(SGLANG.command(made, hardware, Node(model_path=str(folder), role=role), "k").argv)
    assert problems_of(SGLANG, made, hardware) == []
    graphs = ["--cuda-graph-backend-prefill", "breakable"]
    alone = made.enforce_eager or made.pipeline_parallel_size > 1  # which has none by default
    return [*argv[argv.index("--model-path") :], "--device", "cuda", *([] if alone else graphs)]


@pytest.mark.parametrize("role", ["", *ROLES])
def test_the_share_of_memory_that_is_judged_is_the_one_that_sglang_takes(
    tmp_path: Path, role: str
) -> None:
    cases = IN_ROLES if role else CASES
    python, asked, ours = home_of("sglang") / "bin/python", [], []
    for model, accelerator, given in cases:
        folder = tmp_path / model
        folder.mkdir(parents=True, exist_ok=True)
        config = known_configs()[model] | {"architectures": [CLASSES[model]]}
        (folder / "config.json").write_text(json.dumps(config))
        made, hardware = settings(model, accelerator, given)
        facts, memory = facts_from_config(model, config), memory_bytes(hardware)
        assert facts is not None and memory is not None
        asked.append((memory / 2**20, arguments(made, hardware, folder, role)))
        ours.append(fraction_of(made, facts, hardware, SGLANG.rules, role))
    done = subprocess.run(
        [python, "-c", ASK], input=json.dumps(asked), capture_output=True, text=True, timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert len(theirs) == len(cases)
    wrong = [
        (case, mine, share)
        for case, mine, share in zip(cases, ours, theirs, strict=True)
        if mine != pytest.approx(max(0.0, share), abs=0.0011)  # below 0 nothing is left of it
    ]
    assert wrong == []

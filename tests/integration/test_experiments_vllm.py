"""Example experiments run on the real vLLM: shortened, on this machine's CPU, with the tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import ROOT, assert_nothing_left, orchestrator
from tests.integration.engine_real import home_of, vision_model
from tests.integration.lora import write_adapter

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1800)]

FOLDER = ROOT / "experiments"
MODEL = ROOT / ".demo" / "model"
ENGINE = {
    "engine": "vllm",
    "hardware": "cpu",
    "dtype": "float32",
    "max_model_len": 4096,
    "enforce_eager": True,
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
}
# the tiny model drafts for itself
DRAFT_MODEL = {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 4}
# example -> how many of its deployments draft; the tiny model's answers repeat themselves, so
# looked-up drafts are accepted too
DRAFTING_DEPLOYMENTS = {"speculation": 2}
LEAST_ACCEPTED = 0.5
# of each file, what its deployments differ in here: a CPU has no FP8 and few cores, and the loaders
# of load-formats that are packages of their own are not installed
VARIED: dict[str, list[dict[str, Any]]] = {
    "adapters": [{"grid": {"max_loras": [1, 4]}}],
    "batch-size-knee": [],
    "chat-beside-rag": [{"grid": {"max_num_batched_tokens": [1024]}}],
    "guided": [{"grid": {"guided_decoding_backend": ["xgrammar", "guidance"]}}],
    "load-formats": [{"cases": [{"load_format": "safetensors"}, {"load_format": "dummy"}]}],
    "max-concurrency": [{"grid": {"max_num_seqs": [4]}}],
    "offline": [],
    "readers": [],
    "replicas-or-tp": [{"grid": {"tensor_parallel_size": [1, 2]}}],
    "speculation": [{"cases": [{}, {"speculative": NGRAM}, {"speculative": DRAFT_MODEL}]}],
    "vision": [{"grid": {"max_num_batched_tokens": [2048]}}],
    "workloads": [{"grid": {"enable_prefix_caching": [True, False]}}],
}
# Documents and prompts as they fit into the tiny model's context.
FEW_DOCUMENTS = {"documents": {"count": 2, "tokens": 500, "pool": 100}}
LONGEST_PROMPT = 2048
# Answers that a CPU gives within seconds.
SHORT_ANSWERS = {"uniform": {"min": 20, "max": 60}}
# Replicas that fill two cores, where the file fills a node of eight GPUs.
TWO_CORES = {"replicas": "2 // tensor_parallel_size"}
ONCE = {"repeats": 1, "starts": 1}


def on_this_machine(name: str, folder: Path) -> dict[str, Any]:
    """The file with another model and hardware, shorter prompts and less time; all else is its own.
    The adapters that it names are written into ``folder``.
    """
    text = (FOLDER / f"{name}.yaml").read_text()
    for path in ("person.json", "../LICENSE"):
        text = text.replace(path, str((FOLDER / path).resolve()))
    content: dict[str, Any] = yaml.safe_load(text)
    sees = any("images" in workload for workload in content["workloads"])
    content["model"] = str(vision_model(folder / "models") if sees else MODEL)
    del content["hardware"]
    executable = {"executable": str(home_of("vllm"))}
    published = content["deployments"]
    content["deployments"] = {**ENGINE, **executable, "vary": VARIED[name]}
    if "derive" in published:
        content["deployments"]["derive"] = TWO_CORES
    if "lora_modules" in published:
        content["deployments"]["max_lora_rank"] = published["max_lora_rank"]
        content["deployments"]["lora_modules"] = {
            adapter: str(write_adapter(MODEL, folder / adapter, seed))
            for seed, adapter in enumerate(published["lora_modules"])
        }
    content |= ONCE
    load = content["load"]
    if "requests" in load:
        load["requests"] = 40
    else:
        load |= {"warmup": "2s", "duration": "10s"}
    for control, levels in load["levels"].items():
        numbers = [level for level in levels if isinstance(level, int)]
        load["levels"][control] = [1] if numbers else levels
    for workload in content["workloads"]:
        if workload.get("preset") == "rag":
            workload |= FEW_DOCUMENTS
        if name == "workloads" and workload["preset"] != "chat":
            workload["output_tokens"] = SHORT_ANSWERS
        lengths = workload.get("input_tokens")
        if isinstance(lengths, dict) and "lognormal" in lengths:
            lengths["lognormal"]["max"] = LONGEST_PROMPT
    return content


def accepted_share(point: dict[str, Any]) -> float:
    """Accepted drafts over all drafts of the point's only repeat, as the engine counted them."""
    (repeat,) = point["repeats"]
    share: float = repeat["engine_side"]["spec_accepted_share"]
    return share


@pytest.mark.parametrize("name", VARIED)
def test_an_example_runs_on_the_real_engine(name: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(on_this_machine(name, tmp_path)))
    results = str(tmp_path / "results")
    done = orchestrator(
        "run", str(file), "--results", results, "--address", "local", timeout_s=1500
    )
    assert done.returncode == 0, done.stderr
    listed = orchestrator("results", results, "--format", "json")
    points = [point for point in json.loads(listed.stdout) if point["row"] == "point"]
    assert points
    assert {point["status"] for point in points} == {"ok"}
    assert all(point["output_token_throughput"] > 0 for point in points)
    speculating = [point for point in points if "speculative" in point["settings"]]
    assert len(speculating) == DRAFTING_DEPLOYMENTS.get(name, 0)
    assert all(accepted_share(point) > LEAST_ACCEPTED for point in speculating)
    assert_nothing_left()

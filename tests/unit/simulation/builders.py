"""Plans and stores of simulated sweeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.simulation.sweep import SimulatedSweep, SimulationReport
from orchestrator.spec.experiment import parse_experiment

EXPERIMENT = """
version: 1
name: x
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3.6}}
deployments:
  engine: vllm
  hardware: h100
  max_model_len: 8192
  vary: [{cases: [{tensor_parallel_size: 1}, {tensor_parallel_size: 2}]}]
workloads: [{name: w, input_tokens: 256, output_tokens: {uniform: {min: 16, max: 64}}}]
load: {levels: {request_rate: [2, 8]}, duration: 20s, warmup: 5s}
slos: {fast: {ttft: 500ms, tpot: 50ms, attainment: 0.95}}
"""


def planned(text: str = EXPERIMENT, **replacements: str) -> Plan:
    """The plan of an experiment, with ``key: line`` put in place of the line that begins so."""
    lines = text.splitlines()
    for key, line in replacements.items():
        lines = [line if old.startswith(f"{key}:") else old for old in lines]
        if line not in lines:
            lines.append(line)
    return with_predictions(make_plan(parse_experiment("\n".join(lines), "x.yaml")))


def simulated(
    plan: Plan,
    folder: Path,
    listener: Callable[[Event | Phase], None] = lambda item: None,
    stop: threading.Event | None = None,
) -> tuple[Store, SimulationReport]:
    """A plan simulated into a folder."""
    store = Store.open(str(folder), plan.name, survives_power_loss=False)
    sweep = SimulatedSweep(plan, store, listener, stop or threading.Event())
    return store, sweep.run()


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}

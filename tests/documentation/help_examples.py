"""The examples that the helps of the commands print, and what the commands of them work on: files and
stores under the names that the examples use.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
import yaml

from orchestrator.cli.main import cli
from orchestrator.emulator.flags import parser as emulator_parser
from orchestrator.plan.make import load_plan, write_plan
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.documentation.prepared import (
    DEVICE,
    EMULATED,
    files_of_other_tools,
    measured_on_a_gpu,
    two_sweeps,
)
from tests.harness import MEASURED_ONCE, MODEL, ROOT, undisturbed_status
from tests.in_this_process import run_here
from tests.unit.plan.stored_sweeps import planned, store_sweep

PROGRAMS = ("orchestrator", "ray", "curl")  # what a line of examples starts with
AGAIN = re.compile(r"\(the same again with (--\w+) (\w+)\)")
# A sweep with the name, the hardware and the limits that examples speak of, measured on emulators.
QUICKSTART = """
version: 1
name: quickstart
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {h100: {accelerator: cpu, gpus_per_node: 8, usd_per_gpu_hour: 2.99}}
deployments:
  engine: emulator
  hardware: h100
  profile: ./device.yaml
  vary: [{grid: {tensor_parallel_size: [1, 2]}}]
workloads: [{name: chat, input_tokens: 256, output_tokens: 16}]
load: {levels: {concurrency: [1, 8]}, duration: 1s, warmup: 0s}
slos: {interactive: {ttft: 2s, attainment: 0.9}}
"""
SHORT_LOAD = {"levels": {"request_rate": [1, 8]}, "duration": "5s", "warmup": "0s"}
TWO_WORKLOADS = """
version: 1
name: two
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, hardware: cpu}
workloads:
  - {name: chat, preset: chat}
  - {name: rag, preset: rag}
load: {levels: {concurrency: [2]}, duration: 5s}
"""
PROMPTS = '{"prompt": "What is a token?"}\n{"prompt": "And what is a batch?", "max_tokens": 8}\n'
TRACE = '{"timestamp": 0, "input_length": 64, "output_length": 4, "hash_ids": [1]}\n' * 2 + (
    '{"timestamp": 1500, "input_length": 600, "output_length": 8, "hash_ids": [1, 2]}\n'
)
LOG = "INFO: loading weights\nValueError: No available memory for the cache blocks.\n"


@dataclass(frozen=True, slots=True)
class Example:
    """A line that the help of a command prints. ``command``: such as ``predict fit``."""

    command: str
    line: str


def examples() -> list[Example]:
    """The examples of all helps, in order."""
    context = click.Context(cli, info_name="orchestrator")
    found: list[Example] = []
    for name, text in _texts(cli, context):
        found += [Example(name, line) for line in example_lines(text)]
    return found


def _texts(group: click.Group, context: click.Context, path: str = "") -> Iterator[tuple[str, str]]:
    """Each command's name, and all that its help says beside its options."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full_name = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from _texts(command, context, full_name)
        elif name == "emulator":
            yield full_name, emulator_parser().description or ""
        else:
            yield full_name, f"{inspect.cleandoc(command.help or '')}\n{command.epilog or ''}"


def example_lines(text: str) -> Iterator[str]:
    """The commands among the indented lines of a help, one a line as a reader would type it."""
    last = ""
    for line in re.sub(r"(\\|(?<=\|))\n +", " ", text).splitlines():
        words = line.split()
        again = AGAIN.fullmatch(line.strip())
        if again:
            yield re.sub(rf"{again[1]} \w+", f"{again[1]} {again[2]}", last)
        elif line.startswith("  ") and words and words[0] in PROGRAMS:
            last = " ".join(words)
            yield last


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def emulated(file: Path, name: str) -> None:
    """Writes a small sweep of emulators as this file."""
    _write(file, EMULATED.replace("name: emulated", f"name: {name}").replace("[1, 4]", "[2]"))
    _write(file.parent / "device.yaml", DEVICE)


def files_of_the_checkout(folder: Path) -> None:
    for name in (".demo", ".engines", "experiments"):
        (folder / name).symlink_to(ROOT / name)


def shorter_70b(folder: Path) -> None:
    """The experiment of the examples with less load, and its plan."""
    file = "experiments/llama70b-parallelism.yaml"
    content = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    content["load"] |= SHORT_LOAD
    content["repeats"] = 1
    _write(folder / file, yaml.safe_dump(content))
    write_plan(load_plan(folder / file), folder / "plan.json")


def emulated_sweeps(folder: Path) -> None:
    """The files that the examples of ``run`` and ``doctor`` measure."""
    for name in ("quickstart", "llama70b-parallelism", "x"):
        emulated(folder / "experiments" / f"{name}.yaml", name)
    write_plan(load_plan(folder / "experiments" / "x.yaml"), folder / "plan.json")


def measure_quickstart(folder: Path) -> None:
    """Measures ``results/`` on emulators, without Ray. One launch beside them failed."""
    file = folder / "quickstart.yaml"
    _write(file, QUICKSTART)
    _write(folder / "device.yaml", DEVICE)
    results = str(folder / "results")
    done = run_here("run", str(file), "--results", results, "--address", "local", *MEASURED_ONCE)
    assert undisturbed_status(done.returncode, done.stderr) == 0, done.stderr
    plan = load_plan(file)
    deployment = plan.deployments[-1]
    begun = launch_row(deployment, plan.name, 1)
    failed = replace(begun, status="failed", reason="It died.", log_tail=LOG)
    commit_launch(Store.open(results, plan.name), deployment, failed)


def sweeps_to_compare(folder: Path) -> None:
    two_sweeps(folder)
    for name, day in (("before", "monday"), ("after", "tuesday")):
        shutil.copytree(folder / name, folder / "results" / day)


def files_for_load(folder: Path) -> None:
    _write(folder / "prompts.jsonl", PROMPTS)
    _write(folder / "mooncake.jsonl", TRACE)
    shutil.copy(MODEL / "tokenizer.json", folder)


def files_to_import(folder: Path) -> None:
    files_of_other_tools(folder)
    for file in folder.glob("conc-*.json"):
        file.rename(folder / file.name.replace("conc-", "bench-"))
    (folder / "aiperf").rename(folder / "artifacts")
    shutil.rmtree(folder / "results")


def results_of_an_engine(folder: Path) -> None:
    """``results/`` with points of a closed loop that are not of emulators."""
    store_sweep(Store.open(str(folder / "results"), "quickstart"), planned(name="quickstart"))


def results_to_fit(folder: Path) -> None:
    measured_on_a_gpu(folder)


def two_workloads(folder: Path) -> None:
    _write(folder / "experiment.yaml", TWO_WORKLOADS)


def nothing(_folder: Path) -> None:
    """The examples work on what all find, or on nothing."""


# By command: what its examples find in their folder, beside ``results/`` of ``measure_quickstart``
# for those in OF_RESULTS.
PREPARATIONS: Mapping[str, Callable[[Path], None]] = {
    "plan": files_of_the_checkout,
    "simulate": shorter_70b,
    "run": emulated_sweeps,
    "results": nothing,
    "best": nothing,
    "compare": sweeps_to_compare,
    "report": nothing,
    "watch": nothing,
    "status": nothing,
    "stop": emulated_sweeps,
    "doctor": emulated_sweeps,
    "logs": nothing,
    "verify": nothing,
    "load": files_for_load,
    "import": files_to_import,
    "export": results_of_an_engine,
    "emulator": nothing,
    "predict fit": results_to_fit,
    "workload show": two_workloads,
    "init": nothing,
    "schema": nothing,
}
OF_RESULTS = ("results", "best", "report", "watch", "status", "logs", "verify")

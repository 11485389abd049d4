"""What the commands of some pages work on: stores of sweeps that were not run here, files of other
tools, and a checkout with a new engine.

Each preparation puts it into the folder in which the page's commands run, and returns which texts
of the page name something that only its reader has, with what stands for them here.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from orchestrator.plan.make import make_plan
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from tests.harness import MODEL, ROOT, free_port
from tests.unit.plan.stored_sweeps import planned, store_attempt, store_sweep
from tests.unit.predict.test_fit import measured
from tests.unit.report.stores import commit_starts

Replacements = Mapping[str, str]
NOTHING_REPLACED: Replacements = {}
FILES_OF_TOOLS = ROOT / "tests" / "contract" / "exchange"
GATE = """
version: 1
name: gate
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, hardware: cpu, max_num_seqs: 8}
workloads: [{name: chat, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: 1s, warmup: 0s}
repeats: 2
starts: 2
"""
EMULATED = """
version: 1
name: emulated
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  profile: ./device.yaml
  vary: [{grid: {max_num_seqs: [1, 8]}}]
workloads: [{name: chat, input_tokens: 256, output_tokens: {uniform: {min: 8, max: 16}}}]
load: {levels: {concurrency: [1, 4]}, duration: 1s, warmup: 0s}
slos: {interactive: {ttft: 2s, attainment: 0.9}}
"""
DEVICE = """
accelerator: {name: small, memory_gb: 80, bandwidth_gb_s: 1200, tflops: {bfloat16: 200}}
"""
FITTED = "predict fit results/"
# toy-server of the page: the emulator, behind other flags
TOY_SERVER = f"""#!{sys.executable}
import argparse
import os
import sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("model")
for flag in ("--host", "--port", "--name", "--slots"):
    parser.add_argument(flag)
given = parser.parse_args()
os.environ["EMULATOR_API_KEY"] = os.environ["TOY_API_KEY"]
argv = [sys.executable, "-m", "orchestrator.emulator", "--host", given.host, "--port", given.port]
argv += ["--model", given.model, "--served-model-name", given.name]
argv += ["--set", f"max_num_seqs={{given.slots}}"]
os.execv(sys.executable, argv)
"""
ENTRY = '        "emulator": "orchestrator.engines.emulator:ENGINE",\n'
REFUSED = "REFUSED: dict[str, dict[str, str]] = {\n"
REFUSAL = '"toy": dict.fromkeys(KINDS, "toy-server runs on one device"),'  # as the page has it
HEAD = "| name | what it is | flags, readiness, metrics and failures are from |\n|---|---|---|\n"
ROW = "| `toy` | toy-server | 1.0 |\n"  # of the table of engines


def two_sweeps(folder: Path) -> Replacements:
    """``before/`` and ``after/``: two starts of four points, whose TTFT became 11 ms longer."""
    for name, ttft_ms in (("before", (100, 101)), ("after", (111, 112))):
        commit_starts(Store.open(str(folder / name), "exp"), ttft_ms, levels=(2, 4))
    return NOTHING_REPLACED


def gate_and_baseline(folder: Path) -> Replacements:
    """``gate.yaml``, and in ``before/`` what a slow engine would have stored of it."""
    (folder / "gate.yaml").write_text(GATE, encoding="utf-8")
    plan = make_plan(parse_experiment(GATE))
    store = Store.open(str(folder / "before"), plan.name)
    store.write_plan(plan.to_json())
    for point in plan.points:
        for start in range(plan.starts):
            store_attempt(
                *(store, plan, point),
                repeat=start,
                ttft_ms=400 + start,
                start=start,
                arrivals="closed",
            )
    return NOTHING_REPLACED


def measured_on_a_gpu(folder: Path) -> Replacements:
    """``results/`` as a sweep of vLLM on an H100 leaves it."""
    measured(folder / "results", tensor_parallel=(1,))
    return NOTHING_REPLACED


def files_of_other_tools(folder: Path) -> Replacements:
    """Files that the tools wrote, and ``results/`` with two points of a closed loop."""
    store_sweep(Store.open(str(folder / "results"), "exp"), planned())
    shutil.copy(FILES_OF_TOOLS / "guidellm" / "benchmarks.json", folder)
    shutil.copytree(FILES_OF_TOOLS / "aiperf", folder / "aiperf")
    for name in ("concurrency", "failures-detailed"):
        shutil.copy(FILES_OF_TOOLS / "vllm" / f"{name}.json", folder / f"conc-{name}.json")
    return NOTHING_REPLACED


def published_points(folder: Path) -> Replacements:
    """``wheels/``, from which the wheel is downloaded. Skips where there is none for this Python.
    The client is measured without its peers, for seconds.
    """
    try:
        installed = distribution("aiconfigurator-core")
    except PackageNotFoundError:
        pytest.skip("NOT RUN: aiconfigurator-core is not installed")
    put_wheel(installed, folder / "wheels")
    short = f"--scenarios start --tools c ours --repeats 1 --output measured --port {free_port()}"
    return {"--scenarios streams512 open1000x1 start": short}


def put_wheel(installed: Distribution, folder: Path) -> None:
    """Packs what is installed of a distribution into a wheel again."""
    (tag,) = re.findall(r"^Tag: (.+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    name = installed.metadata["Name"].replace("-", "_")
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-{installed.version}-{tag}.whl", "w") as wheel:
        for file in installed.files or ():
            source = Path(str(installed.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                wheel.write(source, str(file))


def checkout_with_another_engine(folder: Path) -> Replacements:
    """A checkout in which the page's engine has its lines in files that are there already, the
    program ``toy-server`` and a model.
    """
    for name in ("orchestrator", "scripts", "docs", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", folder)
    (folder / "tests" / "contract" / "engines" / "toy").mkdir()
    page = (ROOT / "docs" / "guides" / "your-own-engine.md").read_text(encoding="utf-8")
    assert f"`{REFUSAL}`" in page
    registry = folder / "orchestrator" / "engines" / "registry.py"
    put_after(registry, ENTRY, ENTRY.replace("emulator", "toy"))
    put_after(folder / "tests" / "contract" / "deployments.py", REFUSED, f"    {REFUSAL}\n")
    put_after(folder / "docs" / "reference" / "engines.md", HEAD, ROW)
    program = folder / "toy-server"
    program.write_text(TOY_SERVER, encoding="utf-8")
    program.chmod(0o755)
    return {"/opt/toy/toy-server": str(program), "org/model": str(MODEL)}


def put_after(file: Path, text: str, addition: str) -> None:
    """Writes an addition behind a text that the file has once."""
    content = file.read_text(encoding="utf-8")
    assert content.count(text) == 1, f"{file}: {text}"
    file.write_text(content.replace(text, text + addition), encoding="utf-8")


def results_of_a_cluster(folder: Path) -> Replacements:
    """``results/`` stands for where the page's cluster would store them."""
    return {"s3://BUCKET/sweeps": "results", "/shared/sweeps": "results"}


def fit_of_emulators(_folder: Path) -> Replacements:
    """What is fitted to emulators has to be asked for, and needs their device."""
    return {FITTED: f"{FITTED} --emulated --profile device.yaml"}


def put_emulated_sweep(file: Path) -> None:
    """Writes a sweep of emulators as this experiment file, and their device beside it. Whichever
    simulations the commands of a page name are of this sweep.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(EMULATED, encoding="utf-8")
    (file.parent / "device.yaml").write_text(DEVICE, encoding="utf-8")


PREPARATIONS: dict[str, Callable[[Path], Replacements]] = {
    "docs/explained/predictions.md": measured_on_a_gpu,
    "docs/guides/ci.md": gate_and_baseline,
    "docs/guides/compare-versions.md": two_sweeps,
    "docs/guides/kubernetes.md": results_of_a_cluster,
    "docs/guides/other-tools.md": files_of_other_tools,
    "docs/guides/simulate.md": fit_of_emulators,
    "docs/guides/slurm.md": results_of_a_cluster,
    "docs/guides/your-own-engine.md": checkout_with_another_engine,
    "docs/measurements.md": published_points,
}


def prepare(page_id: str, folder: Path) -> Replacements:
    """Puts into the folder what the commands of a page work on, beside the files of the page."""
    preparation = PREPARATIONS.get(page_id)
    return preparation(folder) if preparation else NOTHING_REPLACED

"""make demo: real engines, a two-node Ray cluster on this machine, a sweep, and its answer.

Installs vLLM and SGLang for the CPU and transformers serve into .engines/, makes a tiny model in
.demo/model. Where SGLang cannot be installed it is left out; where the others cannot be, the
emulator is asked the same questions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import yaml
from ray_on_this_machine import RayOnThisMachine
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
CONSOLE = Console(stderr=True)
NO_BUILD = 4  # of scripts/install_engines.py: there is no build of the engine for this platform


def run(*argv: str) -> int:
    """A command of this repository, its output where the user sees it."""
    return subprocess.run([sys.executable, *argv], cwd=ROOT, check=False).returncode


def install(engine: str) -> int:
    """0; NO_BUILD when this machine cannot have it, and the script said why."""
    CONSOLE.print(
        f"installing {engine} into .engines/{engine} (first time: minutes)", highlight=False
    )
    return run("scripts/install_engines.py", engine, "--into", f".engines/{engine}")


def without(engine: str, experiment: str) -> str:
    """The same experiment without one engine, as another file beside the engines: its paths hold
    there.
    """
    document = yaml.safe_load((ROOT / experiment).read_text())
    document["deployments"] = [one for one in document["deployments"] if one["engine"] != engine]
    path = ROOT / ".demo" / Path(experiment).name
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return str(path)


def measure(experiment: str) -> int:
    """Runs an experiment on two nodes, which ends with the answer; then shows all points and where
    the page is. Exit status of the sweep; 0 where other work on this machine disturbed points and
    nothing else is wrong with any.
    """
    results = f".demo/results-{time.strftime('%Y%m%d-%H%M%S')}"
    CONSOLE.print("starting a two-node Ray cluster on this machine", highlight=False)
    with RayOnThisMachine(nodes=2) as cluster:
        status = run(
            "-m",
            "orchestrator",
            "run",
            experiment,
            "--results",
            results,
            "--address",
            cluster.address,
        )
    if status not in (0, 3):
        return status
    run("-m", "orchestrator", "results", results)
    print()
    for page in sorted((ROOT / results).glob("*/report.html")):
        print(f"page: {page}")
    print(f"Parquet: {ROOT / results}")
    if status == 0:
        return 0
    found = verdicts(results)
    if set(found) - {"valid", "disturbed"}:
        return status
    print(
        f"everything ran; {found.count('disturbed')} of {len(found)} points were disturbed: other "
        "work took this machine's cores, so they cannot win"
    )
    return 0


def verdicts(results: str) -> list[str]:
    """The verdict on each point: ``failed`` or its validity."""
    command = [sys.executable, "-m", "orchestrator", "results", results, "--format", "json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        point["validity"] if point["status"] == "ok" else "failed" for point in json.loads(printed)
    ]


def main() -> int:
    """Exit status of ``measure``."""
    experiment = "experiments/quickstart.yaml"
    installed = {engine: install(engine) for engine in ("vllm", "transformers", "sglang")}
    if set(installed.values()) - {0, NO_BUILD}:
        CONSOLE.print("[red]The installation failed half way; run make demo again to go on.[/]")
        return 1
    if installed["sglang"] == NO_BUILD:
        experiment = without("sglang", experiment)
    if NO_BUILD in (installed["vllm"], installed["transformers"]):
        CONSOLE.print(
            "[yellow]Real engines cannot be installed here: what follows is EMULATED, not "
            "measured.[/]"
        )
        experiment = "experiments/quickstart-emulated.yaml"
    if run("scripts/make_tiny_model.py", ".demo/model") != 0:
        return 1
    return measure(experiment)


if __name__ == "__main__":
    sys.exit(main())

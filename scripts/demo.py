"""make demo: real engines, a two-node Ray cluster on this machine, a sweep, and its answer.

Installs vLLM for the CPU and transformers serve into .engines/, makes a tiny model in .demo/model. Where these engines
cannot be installed it says so and runs the same questions against the emulator.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ray_on_this_machine import RayOnThisMachine
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
SLO = "ttft<=1s,tpot<=100ms,attainment>=0.9"
CONSOLE = Console(stderr=True)
NO_BUILD = 4  # of scripts/install_engines.py: there is no build of the engine for this platform


def run(*argv: str) -> int:
    """A command of this repository, its output where the user sees it."""
    return subprocess.run([sys.executable, *argv], cwd=ROOT, check=False).returncode


def install() -> int:
    """Both real engines. NO_BUILD when this machine cannot have them; the script said why."""
    for engine in ("vllm", "transformers"):
        CONSOLE.print(f"installing {engine} into .engines/{engine} (first time: minutes)", highlight=False)
        if status := run("scripts/install_engines.py", engine, "--into", f".engines/{engine}"):
            return status
    return 0


def main() -> int:
    """Exit status of the sweep."""
    experiment = "experiments/quickstart.yaml"
    installed = install()
    if installed not in (0, NO_BUILD):
        CONSOLE.print("[red]The installation failed half way; run make demo again to go on.[/]")
        return 1
    if installed == NO_BUILD:
        CONSOLE.print("[yellow]Real engines cannot be installed here: what follows is EMULATED, not measured.[/]")
        experiment = "experiments/quickstart-emulated.yaml"
    if run("scripts/make_tiny_model.py", ".demo/model") != 0:
        return 1
    results = f".demo/results-{time.strftime('%Y%m%d-%H%M%S')}"
    CONSOLE.print("starting a two-node Ray cluster on this machine", highlight=False)
    with RayOnThisMachine(nodes=2) as cluster:
        status = run("-m", "orchestrator", "run", experiment, "--results", results, "--address", cluster.address)
    if status not in (0, 3):
        return status
    run("-m", "orchestrator", "results", results)
    run("-m", "orchestrator", "best", results, "--slo", SLO, "--per", "gpu")
    print(f"\nParquet: {ROOT / results}")
    return status


if __name__ == "__main__":
    sys.exit(main())

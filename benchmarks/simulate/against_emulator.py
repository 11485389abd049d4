"""A simulated sweep beside the same sweep on emulators in real time: how far their figures are
apart.

    python -m benchmarks.simulate.against_emulator

Both have the same step model, so what differs is the emulator's clock, HTTP and the client. The
steps do not vary at random (``jitter: 0``), because both would draw other numbers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import orchestrator

EXPERIMENT = """
version: 1
name: both
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  profile: {profile}
  max_model_len: 4096
  vary: [{{cases: [{{max_num_seqs: 64}}, {{max_num_seqs: 8, replicas: 2}}]}}]
workloads:
  - {{name: chat, input_tokens: {{uniform: {{min: 100, max: 400}}}}, output_tokens: {{uniform: {{min: 20, max: 60}}}}}}
load: {{levels: {{request_rate: [4, 20], concurrency: [6]}}, duration: 20s, warmup: 4s}}
slos: {{interactive: {{ttft: 500ms, tpot: 50ms, attainment: 0.95}}}}
"""
PROFILE = (
    "accelerator: H100-80GB\nmodel: meta-llama/Llama-3.1-8B-Instruct\nconstants: {jitter: 0}\n"
)
FIGURES = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "output_token_throughput")


def command(*argv: str) -> None:
    done = subprocess.run([sys.executable, "-m", "orchestrator", *argv], check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{argv[0]} ended with {done.returncode}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.yaml"
        profile.write_text(PROFILE)
        file = Path(folder) / "both.yaml"
        file.write_text(EXPERIMENT.format(profile=profile))
        command("simulate", str(file), "--results", f"{folder}/simulated", "--no-report")
        command(
            *("run", str(file), "--results", f"{folder}/real", "--no-report"),
            *("--address", "local", "--again", "0"),
        )
        keys = ["deployment", "control", "level"]
        columns = [*keys, "validity", *FIGURES]
        simulated = orchestrator.points(f"{folder}/simulated", columns=columns)
        real = orchestrator.points(f"{folder}/real", columns=columns)
    both = simulated.merge(real, on=keys, suffixes=(" simulated", " real"))
    print("| deployment | level | verdict | " + " | ".join(FIGURES) + " |")
    print(f"|{'---|' * (3 + len(FIGURES))}")
    for row in both.to_dict("records"):
        cells = [row["deployment"], f"{row['control']} {row['level']:g}", row["validity real"]]
        for name in FIGURES:
            of_simulation, of_run = row[f"{name} simulated"], row[f"{name} real"]
            cells.append(f"{of_simulation:.4g} / {of_run:.4g} ({of_simulation / of_run - 1:+.1%})")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""A simulated sweep beside the same sweep on emulators in real time: how far their figures are
apart.

    python -m benchmarks.simulate.against_emulator [--short]

Both have the same step model, so what differs is the emulator's clock, HTTP and the client. The
steps do not vary at random (``jitter: 0``), because both would draw other numbers.

Both send the same requests at the same instants, so the second table compares each request with
itself: how much later its first token came in real time. A request that reaches the engine a little
later may miss the step that it got in the simulation; then it waits for the next one, and is later
by about a step. ``--short``: one deployment at one level for two seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import orchestrator
from orchestrator.base.arrays import Floats

EXPERIMENT = """
version: 1
name: both
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  profile: {profile}
  max_model_len: 4096
  vary: [{{cases: {deployments}}}]
workloads:
  - {{name: chat, input_tokens: {{uniform: {{min: 100, max: 400}}}}, output_tokens: {{uniform: {{min: 20, max: 60}}}}}}
load: {{levels: {levels}, duration: {duration}, warmup: {warmup}}}
slos: {{interactive: {{ttft: 500ms, tpot: 50ms, attainment: 0.95}}}}
"""
PROFILE = (
    "accelerator: H100-80GB\nmodel: meta-llama/Llama-3.1-8B-Instruct\nconstants: {jitter: 0}\n"
)
WHOLE = {
    "deployments": "[{max_num_seqs: 64}, {max_num_seqs: 8, replicas: 2}]",
    "levels": "{request_rate: [4, 20], concurrency: [6]}",
    "duration": "20s",
    "warmup": "4s",
}
SHORT = {
    "deployments": "[{max_num_seqs: 64}]",
    "levels": "{request_rate: [20]}",
    "duration": "2s",
    "warmup": "0s",
}
FIGURES = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "output_token_throughput")


def command(*argv: str) -> None:
    done = subprocess.run([sys.executable, "-m", "orchestrator", *argv], check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{argv[0]} ended with {done.returncode}")


def requests_of(results: str, point_id: str) -> pa.Table:
    """The requests of a point, in the order of their numbers."""
    (rows,) = orchestrator.requests(results, point=point_id)
    return rows.sort_by("request_index")


def since_due_ms(rows: pa.Table, name: str) -> Floats:
    """When something happened to each request, in ms since it was due; NaN if it did not."""
    happened_ns = np.asarray(rows[name].to_numpy(), dtype=np.float64)
    return (happened_ns - rows["scheduled_ns"].to_numpy()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    load = SHORT if parser.parse_args().short else WHOLE
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.yaml"
        profile.write_text(PROFILE)
        file = Path(folder) / "both.yaml"
        file.write_text(EXPERIMENT.format(profile=profile, **load))
        command("simulate", str(file), "--results", f"{folder}/simulated", "--no-report")
        command(
            *("run", str(file), "--results", f"{folder}/real", "--no-report"),
            *("--address", "local", "--again", "0"),
        )
        keys = ["deployment", "control", "level"]
        columns = [*keys, "point_id", "validity", *FIGURES]
        simulated = orchestrator.points(f"{folder}/simulated", columns=columns)
        real = orchestrator.points(f"{folder}/real", columns=columns)
        both = simulated.merge(real, on=keys, suffixes=(" simulated", " real")).to_dict("records")
        print_figures(both)
        print_requests(both, folder)


def print_figures(points: list[dict[str, Any]]) -> None:
    """Prints the figures of each point, simulated beside real."""
    print("| deployment | level | verdict | " + " | ".join(FIGURES) + " |")
    print(f"|{'---|' * (3 + len(FIGURES))}")
    for row in points:
        cells = [row["deployment"], f"{row['control']} {row['level']:g}", row["validity real"]]
        for name in FIGURES:
            of_simulation, of_run = row[f"{name} simulated"], row[f"{name} real"]
            cells.append(f"{of_simulation:.4g} / {of_run:.4g} ({of_simulation / of_run - 1:+.1%})")
        print(f"| {' | '.join(cells)} |")


def print_requests(points: list[dict[str, Any]], folder: str) -> None:
    """Prints how much later first tokens came in real time, request by request, of open loops: the
    requests of a closed loop are due when others end.
    """
    print("\n| deployment | level | requests | sent after due: p50, p99, ms ", end="")
    print("| TTFT later by: p50, p99, ms | more than half a step |")
    print(f"|{'---|' * 6}")
    for row in points:
        if row["control"] != "request_rate":
            continue
        simulated = requests_of(f"{folder}/simulated", row["point_id simulated"])
        real = requests_of(f"{folder}/real", row["point_id real"])
        later_ms = since_due_ms(real, "first_token_ns") - since_due_ms(simulated, "first_token_ns")
        sent_ms = since_due_ms(real, "sent_ns")
        half_a_step_ms = row["tpot_ms.p50 simulated"] / 2
        share = np.mean(np.abs(later_ms) > half_a_step_ms)
        cells = [row["deployment"], f"{row['level']:g}/s", str(later_ms.size)]
        for values in (sent_ms, later_ms):
            p50, p99 = np.nanpercentile(values, [50, 99])
            cells.append(f"{p50:.2f}, {p99:.2f}")
        print(f"| {' | '.join(cells)} | {share:.1%} |")


if __name__ == "__main__":
    main()

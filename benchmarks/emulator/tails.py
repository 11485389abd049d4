"""How far the tails of TTFT and TPOT stand above their medians, as published (tails.csv) and as simulated, by jitter.

    python benchmarks/emulator/tails.py          # about two minutes

``jitter`` is how much steps vary by themselves (orchestrator/emulator/profile.py). First what published streams show
of it: gaps between tokens of vLLM with one in flight, and with 4 and 8,192 tokens asked, which hardly ever hold a
prompt. Then for each engine and device the medians over all points of tail / median, measured and with each jitter, how
far medians and tails are off without jitter, and the mean |log| by which simulated tails miss the measured ones with
each jitter. Last for each engine which jitter the p99 of TTFT of one half of the configurations (model x device x TP,
by a hash) on H100 and H200 asks for, and what it does to those of the other half, to B200 and to p90.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import facts_from_config, known_config
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.simulate import run_closed
from orchestrator.spec.settings import EngineSettings

Floats = NDArray[np.float64]
JITTERS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FIGURES = ("TTFT", "TPOT")
KNOWN = {"deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3"}  # of one shape
FP4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


def read() -> list[dict[str, str]]:
    lines = Path(__file__).with_name("tails.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def simulated(row: dict[str, str], jitter: float) -> Floats:
    """Median and tail of TTFT, median and tail of TPOT, in milliseconds."""
    model = KNOWN.get(row["model"], row["model"])
    config: dict[str, Any] = dict(known_config(model) or {})
    if row["precision"] == "fp4" and "gpt-oss" not in model:
        config |= FP4
    facts, device = facts_from_config(model, config), find(row["device"])
    assert facts and device
    settings = EngineSettings(
        engine=row["engine"], model=model, tensor_parallel_size=int(row["tensor"]),
        enable_expert_parallel=int(row["expert"]) > 1 or None,
    )  # fmt: skip
    rng, in_flight = np.random.default_rng(0), int(row["concurrency"])
    requests = int(row["requests"] or 10 * in_flight)
    prompts, outputs = (
        rng.integers(round(0.8 * most), most + 1, requests) for most in (int(row["input"]), int(row["output"]))
    )
    one = replica(settings, facts, device, Constants(jitter=jitter))
    trace, outcome = run_closed(one, prompts, outputs, in_flight)
    ttft = outcome.first_token_s - trace.arrival_s
    tpot = (outcome.last_token_s - outcome.first_token_s) / (outputs - 1)
    tail = int(row["percentile"]) / 100
    return 1e3 * np.array([np.median(ttft), np.quantile(ttft, tail), np.median(tpot), np.quantile(tpot, tail)])


def jitter_of_gaps(rows: list[dict[str, str]]) -> Floats:
    """Standard deviation of steps as a share of them, if they are log-normal, of each run that shows it."""
    alike = {("1", "1000"), ("4", "8192")}
    steady = [row for row in rows if row["engine"] == "vllm" and (row["concurrency"], row["output"]) in alike]
    spread = np.log([float(row["itl_tail"]) / float(row["itl"]) for row in steady])
    return np.asarray(spread / ndtri([float(row["percentile"]) / 100 for row in steady]))


def missed(found: Floats, measured: Floats) -> Floats:
    """|log| by which simulated tail / median misses the measured one, of TTFT and TPOT, by jitter and run."""
    ratios = [np.log(one[..., 1::2] / one[..., ::2]) for one in (found, measured)]
    return np.asarray(np.abs(ratios[0] - ratios[1]))


def halves(rows: list[dict[str, str]], miss: Floats) -> None:
    """Print the jitter that one half asks for, and what it does to runs that did not choose it."""
    names = [" ".join(row[key] for key in ("engine", "model", "device", "tensor")) for row in rows]
    half = np.array([hashlib.sha256(name.encode()).digest()[0] % 2 for name in names])
    hopper = np.array([row["device"] != "B200-180GB" for row in rows])
    p99 = np.array([row["percentile"] == "99" for row in rows])
    for engine in ("vllm", "sglang"):
        own = np.array([row["engine"] == engine for row in rows])
        for seen in (0, 1):
            chosen = own & hopper & p99 & (half == seen)
            if not chosen.any():
                continue
            best = int(miss[:, chosen, 0].mean(axis=1).argmin())
            print(f"{engine}: half {seen} ({chosen.sum()} runs) asks for jitter {JITTERS[best]:g}; |log| without, with")
            others = {"the other half": hopper & p99 & (half != seen), "B200": ~hopper, "p90": ~p99}
            for what, which in others.items():
                if (own & which).any():
                    without, with_it = miss[[0, best]][:, own & which].mean(axis=1).round(4).tolist()
                    said = [f"{name} {one} {two}" for name, one, two in zip(FIGURES, without, with_it, strict=True)]
                    print(f"    {what}, {(own & which).sum()} runs: {', '.join(said)}")


def main() -> None:
    rows = read()
    gaps = jitter_of_gaps(rows)
    print(f"steps vary by {np.median(gaps):.1%} of themselves ({gaps.min():.1%} to {gaps.max():.1%}, {len(gaps)} runs)")
    measured = np.array([[float(row[key]) for key in ("ttft", "ttft_tail", "tpot", "tpot_tail")] for row in rows])
    found = np.array([[simulated(row, jitter) for row in rows] for jitter in JITTERS])
    miss = missed(found, measured)
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row["engine"], row["device"], row["source"], row["percentile"]].append(index)
    print(
        f"{'tail / median, of TTFT and TPOT':62} {'measured':>13}"
        + "".join(f" {f'jitter {one:g}':>13}" for one in JITTERS)
    )
    for name, of_group in sorted(groups.items()):
        at = np.array(of_group)
        ratios = [np.median(one[at, 1::2] / one[at, ::2], axis=0) for one in (measured, *found)]
        label = f"{name[0]} {name[1]} p{name[3]} {name[2]}, {len(at)} points"
        print(f"{label:62}" + "".join(f" {ttft:6.2f} {tpot:6.3f}" for ttft, tpot in ratios))
        off = np.median(np.abs(found[0][at] / measured[at] - 1), axis=0)
        words = ("median TTFT", "tail of TTFT", "median TPOT", "tail of TPOT")
        print("".join(f"    {what} off by {far:.0%}" for what, far in zip(words, off, strict=True)))
        for what, far in zip(FIGURES, miss[:, at].mean(axis=1).T, strict=True):
            print(f"    {what}: |log| of tails " + " ".join(f"{one:.3f}" for one in far))
    halves(rows, miss)


if __name__ == "__main__":
    main()

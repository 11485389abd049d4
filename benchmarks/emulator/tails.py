"""How far the tails of TTFT and TPOT stand above their medians, as published (tails.csv) and as
simulated, by jitter.

    python benchmarks/emulator/tails.py          # about two minutes

``jitter`` is how much steps vary by themselves (orchestrator/emulator/profile.py). First what
published gaps between tokens with one request in flight show of it (steps.csv), which are nothing
but steps: by engine the median over configurations (model x device) of the median over their runs;
in whole percents that is the jitter of constants.json. Then for each engine and device the medians
over all points of tail / median, measured and with each jitter; how far medians and tails are off
with the jitter that is shipped; the mean |log| by which simulated tails miss the measured ones with
each jitter; and at which simulated percentile the measured tails of TTFT stand. In runs of 10
requests per slot that says more than a ratio: all of the first wave wait, so that p90 is at the
edge between them and the others.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from silicon import recv_interval

from orchestrator.base.arrays import Floats
from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import facts_from_config, known_config
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants
from orchestrator.predict.simulate import run_closed
from orchestrator.spec.settings import EngineSettings

JITTERS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
SHIPPED = 0.02
FIGURES = ("TTFT", "TPOT")
KNOWN = {"deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3"}  # of one shape
FP4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


def read(name: str) -> list[dict[str, str]]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def simulated(row: dict[str, str], jitter: float) -> Floats:
    """Median and tail of TTFT, median and tail of TPOT, in milliseconds, and at which simulated
    percentile of TTFT the measured tail stands, both as multiples of their medians.
    """
    model = KNOWN.get(row["model"], row["model"])
    config: dict[str, Any] = dict(known_config(model) or {})
    if row["precision"] == "fp4" and "gpt-oss" not in model:
        config |= FP4
    facts, device = facts_from_config(model, config), find(row["device"])
    assert facts and device
    settings = EngineSettings(
        engine=row["engine"], model=model, tensor_parallel_size=int(row["tensor"]),
        enable_expert_parallel=int(row["expert"]) > 1 or None,
        scheduler_recv_interval=recv_interval(
            row["engine"], row["device"], int(row["tensor"]), row["precision"], int(row["concurrency"])
        ),
    )  # fmt: skip
    rng, in_flight = np.random.default_rng(0), int(row["concurrency"])
    requests = int(row["requests"] or 10 * in_flight)
    prompts, outputs = (
        rng.integers(round(0.8 * most), most + 1, requests)
        for most in (int(row["input"]), int(row["output"]))
    )
    one = replica(settings, facts, device, Constants(jitter=jitter))
    trace, outcome = run_closed(one, prompts, outputs, in_flight)
    ttft = outcome.first_token_s - trace.arrival_s
    tpot = (outcome.last_token_s - outcome.first_token_s) / (outputs - 1)
    tail = int(row["percentile"]) / 100
    found = [
        1e3 * value for one in (ttft, tpot) for value in (np.median(one), np.quantile(one, tail))
    ]
    stands = (ttft / np.median(ttft) <= float(row["ttft_tail"]) / float(row["ttft"])).mean()
    return np.array([*found, 100 * stands])


def jitter_of_gaps(engine: str) -> Floats:
    """Standard deviation of an engine's steps as a share of them, by configuration: as if they were
    log-normal and the steps in one gap independent.
    """
    spread: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read("steps.csv"):
        if row["engine"] == engine:
            above = np.log(float(row["gap_p99"]) / float(row["gap"])) / ndtri(0.99)
            spread[row["model"], row["device"]].append(above * int(row["tokens"]) ** 0.5)
    return np.array([np.median(of_one) for of_one in spread.values()])


def missed(found: Floats, measured: Floats) -> Floats:
    """|log| by which simulated tail / median misses the measured one, of TTFT and TPOT, by jitter
    and run.
    """
    ratios = [np.log(one[..., 1::2] / one[..., ::2]) for one in (found, measured)]
    return np.asarray(np.abs(ratios[0] - ratios[1]))


def main() -> None:
    for engine in ("vllm", "sglang"):
        gaps = jitter_of_gaps(engine)
        print(f"steps of {engine} vary by {np.median(gaps):.2%} of themselves", end=" ")
        print(f"({gaps.min():.1%} to {gaps.max():.1%}, {len(gaps)} configurations)")
    rows = read("tails.csv")
    measured = np.array(
        [[float(row[key]) for key in ("ttft", "ttft_tail", "tpot", "tpot_tail")] for row in rows]
    )
    found = np.array([[simulated(row, jitter) for row in rows] for jitter in JITTERS])
    found, stands = found[..., :4], found[JITTERS.index(SHIPPED), :, 4]
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
        off = np.median(np.abs(found[JITTERS.index(SHIPPED)][at] / measured[at] - 1), axis=0)
        words = ("median TTFT", "tail of TTFT", "median TPOT", "tail of TPOT")
        print("".join(f"    {what} off by {far:.0%}" for what, far in zip(words, off, strict=True)))
        for what, far in zip(FIGURES, miss[:, at].mean(axis=1).T, strict=True):
            print(f"    {what}: |log| of tails " + " ".join(f"{one:.3f}" for one in far))
        near = (np.abs(stands[at] - int(name[3])) <= 5).sum()
        print(
            f"    TTFT: measured tails stand at simulated p{np.median(stands[at]):.0f}, {near} "
            "within 5 points of it"
        )


if __name__ == "__main__":
    main()

"""How far TTFT moves if requests reach an engine a fraction of a millisecond after they are due, as
they do in real time, where a client sends them and HTTP and JSON are read.

    python -m benchmarks.simulate.late_arrivals [--repetitions 100]

Both are simulated, so nothing else differs. The deployments and the load are those of
``against_emulator``. How late a request is, is drawn from an exponential distribution.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import yaml

from benchmarks.simulate.against_emulator import PROFILE
from orchestrator.base.arrays import Floats
from orchestrator.emulator.profile import Profile
from orchestrator.predict.simulate import Trace, simulate
from orchestrator.spec.settings import EngineSettings

SECONDS = 16  # of a level, without its warm-up
DEPLOYMENTS = [{"max_num_seqs": 64}, {"max_num_seqs": 8, "replicas": 2}]
RATES = (4, 20)
LATE_MS = (0.3, 0.5, 0.8)  # on average
PERCENTILES = (50, 99)


def trace_of(rate: int, rng: np.random.Generator) -> Trace:
    """Requests with exponential gaps, as long as those of ``against_emulator``."""
    requests = rate * SECONDS
    return Trace(
        np.cumsum(rng.exponential(1 / rate, requests)),
        rng.integers(100, 401, requests),
        rng.integers(20, 61, requests),
    )


def moved_ms(settings: EngineSettings, rate: int, late_ms: float, seed: int) -> Floats:
    """By how much each of PERCENTILES of TTFT is longer where requests arrive late, in ms."""
    profile = Profile.model_validate(yaml.safe_load(PROFILE))
    rng = np.random.default_rng(seed)
    trace = trace_of(rate, rng)
    late_s = rng.exponential(late_ms / 1e3, len(trace.arrival_s))
    # engines take requests in the order in which they come
    arrival_s = np.maximum.accumulate(trace.arrival_s + late_s)
    in_time = simulate(profile, settings, trace)
    late = simulate(profile, settings, replace(trace, arrival_s=arrival_s))
    moved_s = np.percentile(late.first_token_s - trace.arrival_s, PERCENTILES)
    moved_s -= np.percentile(in_time.first_token_s - trace.arrival_s, PERCENTILES)
    return np.asarray(moved_s * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    repetitions = parser.parse_args().repetitions
    print("| deployment | requests/s | late, ms | TTFT p50 moves by, ms | TTFT p99 moves by, ms |")
    print(f"|{'---|' * 5}")
    for options in DEPLOYMENTS:
        settings = EngineSettings.model_validate(
            {"engine": "emulator", "model": "m", "max_model_len": 4096, **options}
        )
        name = f"{settings.replicas} x {settings.max_num_seqs} sequences"
        for rate in RATES:
            for late_ms in LATE_MS:
                moved = [moved_ms(settings, rate, late_ms, seed) for seed in range(repetitions)]
                cells = [name, str(rate), f"{late_ms:g}"]
                for values in np.transpose(moved):
                    p5, p50, p95 = np.percentile(values, [5, 50, 95])
                    cells.append(f"{p50:+.2f} ({p5:+.2f} to {p95:+.2f})")
                print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

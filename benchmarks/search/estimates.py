"""What a search of a few minutes says: how often the interval of its estimate covers the truth, how
wide it is, and how high the level is that it calls safe.

    python -m benchmarks.search.estimates [--repetitions 200] [--first-seed 0] [--only SERVER]
    [--requests 7680]

Searches in virtual time as in claims.py, with a budget. Each server gets as many seconds as so many
requests take at its capacity, so that all searches see about as many: 8 minutes at 16 requests/s
are 7,680.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.claims import KNOWN, Spent, search
from benchmarks.search.servers import SERVERS, Server
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.estimate import Estimate

REQUESTS = 8 * 60 * 16
USEFUL = 0.85  # of the capacity: a safe level that is worth knowing


@dataclass(frozen=True)
class Answer:
    """What one search says."""

    claim: Claim
    spent: Spent


def truth_of(server: Server) -> float:
    """The highest level that holds: of requests in flight a whole number."""
    return float(math.floor(server.capacity)) if server.closed else server.capacity


def budget_s(server: Server, requests: int) -> float:
    """Seconds in which a server at its capacity answers so many requests."""
    rate = server.capacity / server.request_s if server.closed else server.capacity
    return requests / rate


def row(server: Server, requests: int, answers: Sequence[Answer]) -> str:
    """Row of the table, from these repetitions."""
    truth = truth_of(server)
    count = len(answers)
    estimates = [answer.claim.estimate for answer in answers if answer.claim.estimate is not None]
    too_high = sum(estimate.lower > truth * KNOWN for estimate in estimates)
    too_low = sum(estimate.upper * KNOWN < truth for estimate in estimates)
    safe = [_safe(answer.claim.estimate) / truth for answer in answers]
    claims = [answer.claim.claim for answer in answers if answer.claim.claim is not None]
    false_claims = sum(claim > truth * KNOWN for claim in claims)
    cells = (
        server.name,
        f"{truth:.4g}",
        f"{budget_s(server, requests):,.0f}",
        f"{count}",
        f"{len(estimates) / count:.1%}",
        f"{1 - (too_high + too_low) / len(estimates):.1%}",
        f"{too_high / len(estimates):.1%}",
        " ".join(f"{width:.1%}" for width in half_widths(estimates)),
        f"{np.sqrt(np.mean([(estimate.level / truth - 1) ** 2 for estimate in estimates])):.1%}",
        f"{np.mean([part >= USEFUL for part in safe]):.1%}",
        f"{np.mean([part > KNOWN for part in safe]):.1%}",
        f"{len(claims) / count:.1%}",
        f"{false_claims / count:.1%}",
        f"{np.mean([answer.spent.probes for answer in answers]):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def half_widths(estimates: Sequence[Estimate]) -> Sequence[float]:
    """Their median and 90th percentile."""
    quantiles = np.quantile([estimate.half_width for estimate in estimates], [0.5, 0.9])
    return [float(quantile) for quantile in quantiles]


def _safe(estimate: Estimate | None) -> float:
    """The safe level; 0: none is known."""
    return 0.0 if estimate is None else estimate.safe or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0, help="of the first repetition")
    parser.add_argument("--only", default="", help="part of a server's name")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="at the capacity")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.repetitions)
    print(
        "| server | capacity | seconds | repetitions | with estimate | covers | too high "
        "| +- median, p90 | error rms | safe >= 0.85 | safe too high | claims | false claims "
        "| probes |"
    )
    print(f"|{'---|' * 14}")
    all_estimates: list[Estimate] = []
    covering = 0
    for server in [server for server in SERVERS if options.only in server.name]:
        answers: list[Answer] = []
        for seed in seeds:
            spent = Spent()
            rng = np.random.default_rng([seed, options.requests])
            claim = search(server, rng, spent, None, budget_s(server, options.requests))
            answers.append(Answer(claim, spent))
        print(row(server, options.requests, answers), flush=True)
        truth = truth_of(server)
        for answer in answers:
            estimate = answer.claim.estimate
            if estimate is not None:
                all_estimates.append(estimate)
                covering += estimate.lower <= truth * KNOWN and estimate.upper * KNOWN >= truth
    widths = " ".join(f"{width:.1%}" for width in half_widths(all_estimates))
    print(f"\nall: covers {covering / len(all_estimates):.1%}, +- median, p90: {widths}")


if __name__ == "__main__":
    main()

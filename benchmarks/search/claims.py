"""How often a capacity that was claimed is too high, how much of the truth is claimed, and what
load that takes.

    python -m benchmarks.search.claims [--repetitions 200] [--first-seed 0] [--only SERVER] [--rule
    NAME]

Every search runs as in a sweep, in virtual time: the strategy asks, a simulated server answers
(servers.py), the probe is looked at while it runs and ends when it knows. Beside it the rules of
others on the same servers.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.servers import SERVERS, TARGET, Run, Server
from orchestrator.analysis.steady import RequestSpans, steady_from
from orchestrator.capacity.choose_level import (
    expected_requests,
    level_to_confirm,
    level_to_explore,
)
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.levels import PRECISION
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.search import MOST_PROBES, Tier
from orchestrator.capacity.sequential_test import LOOK_S, LevelVerdict, Probe, next_look_s
from orchestrator.cli.load_options import SEARCH_PRECISION
from orchestrator.spec.load import Slo

KNOWN = 1.005  # the truth itself is simulated: a claim so little above it is not called false
CAP_S = 600.0  # of one probe, where it does not know before
SLO = Slo(name="slo", ttft=0.5, attainment=TARGET)


@dataclass
class Spent:
    """Load that a search took."""

    seconds: float = 0.0
    requests: int = 0
    probes: int = 0
    status: str = "-"
    high: float = math.inf

    def add(self, seconds: float, requests: int) -> None:
        self.seconds, self.requests, self.probes = (
            self.seconds + seconds,
            self.requests + requests,
            self.probes + 1,
        )


def probe(
    server: Server,
    level: float,
    rng: np.random.Generator,
    spent: Spent,
    tier: Tier,
    cap_s: float,
) -> ProbeOutcome:
    """One probe as a sweep runs it, and what is stored of it."""
    test, told = Probe([[TARGET]], [tier.before(level)], expected_requests(tier.state, level)), 0
    run = server.probe(level, cap_s, rng)
    by_end = np.argsort(run.done, kind="stable")
    ends, end, verdict, now = run.done[by_end], cap_s, None, LOOK_S
    while now < cap_s:
        until = int(np.searchsorted(ends, now, "right"))
        new, told = by_end[told:until], until
        test.tell(run.due[new], run.done[new], run.met[new, None])
        came = int(np.searchsorted(run.due, now, "right"))
        waits = run.due[:came][run.done[:came] > now]
        (verdict,) = test.look(now, waits, (now - waits > run.limit)[:, None])
        if verdict or test.takes_longer:
            end = now
            break
        now = next_look_s(now)
    spent.add(end, int(np.searchsorted(run.due, end)))
    return stored(run, level, end, verdict, test.diverging, end == CAP_S)


def stored(
    run: Run, level: float, end: float, verdict: LevelVerdict | None, diverging: bool, whole: bool
) -> ProbeOutcome:
    """What is kept of a probe that ended then."""
    asked = run.due < end
    begin = steady_from(lambda: [RequestSpans(run.due[asked], run.done[asked])], end) or 0.0
    met = run.met & (run.done <= end) if diverging else run.met  # what was open was aborted
    shows: Shows = "diverged" if diverging else "misses" if verdict == "fails" else "all"
    return ProbeOutcome(level, (met[asked & (run.due >= begin)],), shows, whole)


def search(
    server: Server,
    rng: np.random.Generator,
    spent: Spent,
    guess: float | None,
    budget_s: float = math.inf,
    precision: float = SEARCH_PRECISION,
) -> Claim:
    """A whole search of one tier, or as much of it as so many seconds of load allow."""
    tier = Tier(server.closed, SLO, precision)
    while spent.probes < MOST_PROBES and (left_s := budget_s - spent.seconds) > 0:
        level = level_to_explore(tier.state, guess, left_s=left_s) or level_to_confirm(tier.state)
        if level is None:
            break
        tier.tell(probe(server, level, rng, spent, tier, min(CAP_S, left_s)))
    spent.status, spent.high = tier.claim.status, tier.claim.high
    return tier.claim


def met(
    server: Server, level: float, requests: int, rng: np.random.Generator, spent: Spent
) -> float:
    """Attainment among so many requests, without any warm-up: a probe as others make it."""
    seconds = requests / level * (server.limit * 0.8 if server.closed else 1.0)
    run = server.probe(level, seconds, rng)
    spent.add(seconds, len(run.due))
    return float(run.met.mean()) if len(run.met) else 1.0


def bisection(holds: Callable[[float], bool], tolerance: float = 0.05) -> float | None:
    """Doubling from 1, then halving the bracket until it is 5 % wide."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, high * 2
    while high - low > tolerance * high and high > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low or None


def wilson_lower(share: float, n: int) -> float:
    """One-sided 95 %, as if requests were independent."""
    z2 = 1.645**2
    centre, half = (
        share + z2 / (2 * n),
        math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))),
    )
    return (centre - half) / (1 + z2 / n)


def uniform_scan(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    """Ten rates up to twice what it can do (somebody guessed well), 1,000 requests each: the
    highest that passes.
    """
    rates = [server.capacity * one / 5 for one in range(1, 11)]
    return max((one for one in rates if met(server, one, 1000, rng, spent) >= TARGET), default=None)


Rule = Callable[[Server, np.random.Generator, Spent], float | None]


def within(minutes: int) -> Rule:
    """A search that has so long."""
    return lambda server, rng, spent: search(server, rng, spent, None, 60.0 * minutes).claim


RULES: dict[str, Rule] = {
    "this program, to the end": lambda server, rng, spent: search(server, rng, spent, None).claim,
    "this program, to the precision of a file": lambda server, rng, spent: (
        search(server, rng, spent, None, precision=PRECISION).claim
    ),
    **{f"this program, {minutes} minutes": within(minutes) for minutes in (10, 20, 30, 60)},
    "this program, first guess off by sigma 0.4": lambda server, rng, spent: (
        search(server, rng, spent, server.capacity * float(rng.lognormal(0, 0.4))).claim
    ),
    "bisection, 100 requests": lambda server, rng, spent: bisection(
        lambda level: met(server, level, 100, rng, spent) >= TARGET
    ),
    "bisection, 1,000 requests": lambda server, rng, spent: bisection(
        lambda level: met(server, level, 1000, rng, spent) >= TARGET
    ),
    "best of 3 x 300": lambda server, rng, spent: bisection(
        lambda level: any(met(server, level, 300, rng, spent) >= TARGET for _ in range(3))
    ),
    # concurrency there; doubling, bisection to 10 %, at most 15 probes, point estimates
    "doubling and bisection to 10 %, 15 probes (GuideLLM)": lambda server, rng, spent: bisection(
        lambda level: spent.probes < 15 and met(server, level, 1000, rng, spent) >= TARGET, 0.1
    ),
    "uniform scan, 10 rates": uniform_scan,
}


def repetition(server: Server, rule: str, seed: int) -> tuple[float | None, Spent]:
    """What one search claims, and what it took."""
    spent = Spent()
    return RULES[rule](server, np.random.default_rng([seed, len(rule)]), spent), spent


def row(server: Server, rule: str, found: Sequence[tuple[float | None, Spent]]) -> str:
    """Of a table, from these repetitions."""
    claims, spents = [claim for claim, _ in found], [spent for _, spent in found]
    shares = np.array([one / server.capacity for one in claims if one is not None])
    at = np.quantile(shares, [0.05, 0.5, 0.95, 1.0]) if shares.size else ()
    cells = (
        *(server.name, f"{server.capacity:.4g}", rule, f"{len(found)}"),
        f"{np.sum(shares > KNOWN) / len(found):.1%}",
        # such a level was "shown to fail"
        f"{np.mean([one.high * KNOWN < server.capacity for one in spents]):.1%}",
        f"{np.mean([one is None for one in claims]):.1%}",
        " ".join(f"{one:.3f}" for one in at) or "-",
        *(
            f"{np.mean([getattr(one, of) for one in spents]):,.0f}"
            for of in ("requests", "seconds")
        ),
        ", ".join(
            f"{count} {status}"
            for status, count in Counter(one.status for one in spents).most_common()
        ),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="of the first repetition; each has the next one"
    )
    parser.add_argument("--only", default="", help="part of a server's name")
    parser.add_argument("--rule", default="", help="part of a rule's name")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.repetitions)
    print(
        "| server | capacity | rule | repetitions | false claims | high below capacity | no claim "
        "| claim / capacity p5, median, p95, most | requests | load s | statuses |"
    )
    print(f"|{'---|' * 11}")
    for server in (one for one in SERVERS if options.only in one.name):
        for rule in (one for one in RULES if options.rule in one):
            began = time.process_time()
            found = [repetition(server, rule, seed) for seed in seeds]
            print(row(server, rule, found), flush=True)
            print(f"{time.process_time() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

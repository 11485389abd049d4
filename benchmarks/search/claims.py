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
from itertools import product

import numpy as np

from benchmarks.search.servers import SERVERS, TARGET, Run, Server
from orchestrator.analysis.steady import RequestSpans, steady_from
from orchestrator.capacity.choose_level import (
    level_to_confirm,
    level_to_explore,
    probe_size,
)
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.search import MOST_PROBES, Tier
from orchestrator.capacity.sequential_test import LOOK_S, LevelVerdict, Probe, next_look_s
from orchestrator.cli.load_options import SEARCH_PRECISION
from orchestrator.spec.load import PRECISION, Slo

KNOWN = 1.005  # the truth itself is simulated: a claim so little above it is not called false
CAP_S = 600.0  # of one probe, where it does not know before
SLO = Slo(name="slo", ttft=0.5, attainment=TARGET)


@dataclass
class Spent:
    """Load that a search took, and how it ended."""

    seconds: float = 0.0
    requests: int = 0
    probes: int = 0
    status: str = "-"
    high: float = math.inf

    def add(self, seconds: float, requests: int) -> None:
        self.seconds += seconds
        self.requests += requests
        self.probes += 1


@dataclass(frozen=True)
class Result:
    """What one search claims (None: nothing), and what it took."""

    claim: float | None
    spent: Spent


def probe(
    server: Server,
    level: float,
    rng: np.random.Generator,
    spent: Spent,
    tier: Tier,
    cap_s: float,
    left_s: float = math.inf,
) -> ProbeOutcome:
    """One probe as a sweep runs it, and what is stored of it."""
    before = [tier.before(level, left_s=left_s)]
    test = Probe([[TARGET]], before, probe_size(tier.state, level, left_s))
    run = server.probe(level, cap_s, rng)
    by_end = np.argsort(run.done, kind="stable")
    ends = run.done[by_end]
    told = 0  # how many ended requests the test knows
    end = cap_s
    verdict = None
    now = LOOK_S
    while now < cap_s:
        ended = int(np.searchsorted(ends, now, "right"))
        new = by_end[told:ended]
        told = ended
        test.tell(run.due[new], run.done[new], run.met[new, None])
        came = int(np.searchsorted(run.due, now, "right"))
        waiting_since = run.due[:came][run.done[:came] > now]
        has_missed = (now - waiting_since > run.limit)[:, None]
        (verdict,) = test.look(now, waiting_since, has_missed)
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
    was_due = run.due < end
    begin = steady_from(lambda: [RequestSpans(run.due[was_due], run.done[was_due])], end) or 0.0
    met = run.met
    shows: Shows = Shows.ANY_VERDICT
    if diverging:
        met = met & (run.done <= end)  # open requests were aborted
        shows = Shows.DIVERGED
    elif verdict == "fails":
        shows = Shows.FAILURE_ONLY
    kept = was_due & (run.due >= begin)
    return ProbeOutcome(level, (met[kept],), shows, whole, seconds=end - begin)


def search(
    server: Server,
    rng: np.random.Generator,
    spent: Spent,
    guess: float | None,
    budget_s: float = math.inf,
    precision: float = SEARCH_PRECISION,
) -> Claim:
    """A whole search of one tier, or as much of it as so many seconds of load allow."""
    tier = Tier(SLO, server.closed, precision)
    while spent.probes < MOST_PROBES and spent.seconds < budget_s:
        left_s = budget_s - spent.seconds
        level = level_to_explore(tier.state, guess, left_s=left_s) or level_to_confirm(tier.state)
        if level is None:
            break
        tier.tell(probe(server, level, rng, spent, tier, min(CAP_S, left_s), left_s))
    spent.status = tier.claim.status
    spent.high = tier.claim.high
    return tier.claim


def met(
    server: Server, level: float, requests: int, rng: np.random.Generator, spent: Spent
) -> float:
    """Attainment among so many requests, without any warm-up: a probe as others make it."""
    seconds = requests / level
    if server.closed:
        seconds *= server.request_s
    run = server.probe(level, seconds, rng)
    spent.add(seconds, len(run.due))
    return float(run.met.mean()) if len(run.met) else 1.0


def bisection(holds: Callable[[float], bool], tolerance: float = 0.05) -> float | None:
    """Doubling from 1, then halving the bracket until it is 5 % wide."""
    low = 0.0
    high = 1.0
    while holds(high):
        low = high
        high *= 2
    while high - low > tolerance * high and high > 1e-3:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low or None


def uniform_scan(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    """Ten rates up to twice what the server can do (a good guess), 1,000 requests each: the highest
    that passes.
    """
    rates = [server.capacity * step / 5 for step in range(1, 11)]
    passing = [rate for rate in rates if met(server, rate, 1000, rng, spent) >= TARGET]
    return max(passing, default=None)


Rule = Callable[[Server, np.random.Generator, Spent], float | None]


def to_the_end(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    return search(server, rng, spent, None).claim


def to_the_precision_of_a_file(
    server: Server, rng: np.random.Generator, spent: Spent
) -> float | None:
    return search(server, rng, spent, None, precision=PRECISION).claim


def first_guess_off(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    guess = server.capacity * float(rng.lognormal(0, 0.4))
    return search(server, rng, spent, guess).claim


def within(minutes: int) -> Rule:
    """A search that has so long."""
    return lambda server, rng, spent: search(server, rng, spent, None, 60.0 * minutes).claim


def bisection_by_probes_of(requests: int) -> Rule:
    """A level passes if one probe of so many requests meets the target."""
    return lambda server, rng, spent: bisection(
        lambda level: met(server, level, requests, rng, spent) >= TARGET
    )


def best_of_three(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    """A level passes if one of three probes of 300 requests does."""
    return bisection(
        lambda level: any(met(server, level, 300, rng, spent) >= TARGET for _ in range(3))
    )


def at_most_15_probes(server: Server, rng: np.random.Generator, spent: Spent) -> float | None:
    """As GuideLLM, by concurrency there: doubling, bisection to 10 %, point estimates."""
    return bisection(
        lambda level: spent.probes < 15 and met(server, level, 1000, rng, spent) >= TARGET, 0.1
    )


# the length of a name is part of its seeds: a rule that is renamed has other random numbers
RULES: dict[str, Rule] = {
    "this program, to the end": to_the_end,
    "this program, to the precision of a file": to_the_precision_of_a_file,
    **{f"this program, {minutes} minutes": within(minutes) for minutes in (10, 20, 30, 60, 120)},
    "this program, first guess off by sigma 0.4": first_guess_off,
    "bisection, 100 requests": bisection_by_probes_of(100),
    "bisection, 1,000 requests": bisection_by_probes_of(1000),
    "best of 3 x 300": best_of_three,
    "doubling and bisection to 10 %, 15 probes (GuideLLM)": at_most_15_probes,
    "uniform scan, 10 rates": uniform_scan,
}


def repetition(server: Server, rule: str, seed: int) -> Result:
    """One search by a rule."""
    spent = Spent()
    claim = RULES[rule](server, np.random.default_rng([seed, len(rule)]), spent)
    return Result(claim, spent)


def row(server: Server, rule: str, results: Sequence[Result]) -> str:
    """Row of the table, from these repetitions."""
    claims = [result.claim for result in results if result.claim is not None]
    shares = np.array(claims) / server.capacity
    quantiles = np.quantile(shares, [0.05, 0.5, 0.95, 1.0]) if shares.size else ()
    # a level that holds was "shown to fail"
    too_low = [result.spent.high * KNOWN < server.capacity for result in results]
    statuses = Counter(result.spent.status for result in results).most_common()
    cells = (
        server.name,
        f"{server.capacity:.4g}",
        rule,
        f"{len(results)}",
        f"{np.sum(shares > KNOWN) / len(results):.1%}",
        f"{np.mean(too_low):.1%}",
        f"{1 - len(claims) / len(results):.1%}",
        " ".join(f"{quantile:.3f}" for quantile in quantiles) or "-",
        f"{np.mean([result.spent.requests for result in results]):,.0f}",
        f"{np.mean([result.spent.seconds for result in results]):,.0f}",
        ", ".join(f"{count} {status}" for status, count in statuses),
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
    servers = [server for server in SERVERS if options.only in server.name]
    rules = [rule for rule in RULES if options.rule in rule]
    for server, rule in product(servers, rules):
        began = time.process_time()
        results = [repetition(server, rule, seed) for seed in seeds]
        print(row(server, rule, results), flush=True)
        print(f"{time.process_time() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

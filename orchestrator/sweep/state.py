"""What a sweep's launches hold and have used (nodes, GPU time, money), and how much of its budget
is left.
"""

import itertools
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.cluster.base import Machine
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Deployment
from orchestrator.spec.experiment import Budget
from orchestrator.spec.load import format_duration
from orchestrator.sweep.admission import Cost, Running

# before a host that was given back is tried again: each try starts an agent where others measure
REST_S, MOST_REST_S = 2.0, 60.0


@dataclass(slots=True)
class Counts:
    """A sweep's measurements by how they ended."""

    measured: int = 0
    skipped: int = 0  # had an ok commit already
    failed: int = 0
    left_out: int = 0  # the budget was used up
    refused: int = 0  # failed in an earlier sweep and would fail again
    spoilt: int = 0  # of the measured: something beside the engine spoilt them
    kept: int = 0  # of the skipped: spoilt as often as they are tried


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How a sweep ended."""

    counts: Counts
    wall_s: float
    # share of wall_s in which no engine started, nothing was measured and nothing was waited for
    overhead: float
    left: int = 0  # measurements not done because the user stopped the sweep

    @property
    def interrupted(self) -> bool:
        return self.left > 0


class SweepState:
    """Shared by the threads of a sweep's launches. Thread-safe."""

    def __init__(self) -> None:
        self.counts = Counts()
        # deployment id -> seconds of its last start; engine -> actual divided by estimated time of
        # its starts
        self.starts: dict[str, float] = {}
        # engine -> actual and estimated seconds of its starts
        self._engines: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}  # by deployment id
        # deployment id -> since when it holds its GPUs
        self._held: dict[str, tuple[float, Deployment]] = {}
        self._spent = Cost()
        # see set_aside; the last: since when
        self._aside: dict[str, tuple[Deployment, float, float]] = {}
        # address -> since and until when it is not tried
        self._resting: dict[str, tuple[float, float]] = {}
        # deployment id -> address of the host that others hold, for which its launch waits
        self._waiting_for: dict[str, str] = {}
        # hosts of a launch that gave up waiting for now -> since when it had waited
        self._waited_since: dict[tuple[str, ...], int] = {}
        self._spans_unix_ns: list[tuple[int, int]] = []
        self._expected_s = self._took_s = 0.0
        self.overrun_s = 0.0  # by how much an attempt took longer than expected, at most

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def admitted(self, deployment_id: str, launch: Running) -> None:
        with self._lock:
            self._running[deployment_id] = launch

    def ended(self, deployment_id: str) -> None:
        with self._lock:
            del self._running[deployment_id]
            self._aside.pop(deployment_id, None)

    def end_s(self, deployment_id: str) -> float:
        """When the deployment's launch is expected to end."""
        with self._lock:
            return self._running[deployment_id].end_s

    def launch(self, deployment_id: str) -> Running:
        """The deployment's running launch."""
        with self._lock:
            return self._running[deployment_id]

    def running(self, but: str = "") -> list[Running]:
        """The running launches, without that of the deployment ``but``."""
        with self._lock:
            return [one for name, one in self._running.items() if name != but]

    def avoid(self, deployment_id: str) -> dict[str, int]:
        """``avoid`` for the clients of a deployment: nodes of other launches (2), then those of its
        own (1).
        """
        with self._lock:
            avoid: dict[str, int] = {}
            for owner, launch in self._running.items():
                for node in itertools.chain(*launch.nodes):
                    avoid[node] = max(avoid.get(node, 0), 1 if owner == deployment_id else 2)
            return avoid

    def placed(self, deployment: Deployment, now_s: float) -> None:
        """The deployment holds its devices from now on."""
        with self._lock:
            self._held[deployment.id] = (now_s, deployment)
            if deployment.id in self._aside:
                self._aside[deployment.id] = (deployment, self._aside[deployment.id][1], now_s)

    def released(self, deployment: Deployment, now_s: float) -> float | None:
        """The deployment gave back its devices; for how long it held them, None if it had none."""
        with self._lock:
            since, _ = self._held.pop(deployment.id, (None, None))
            self._aside.pop(deployment.id, None)
            if since is None:
                return None
            self._spent += cost_of(deployment, now_s - since)
            return now_s - since

    def spent(self, now_s: float) -> Cost:
        """GPU time and money used so far, running launches included."""
        with self._lock:
            under_way = [
                cost_of(deployment, now_s - since) for since, deployment in self._held.values()
            ]
            return sum(under_way, self._spent)

    def set_aside(self, deployment: Deployment, seconds: float, now_s: float) -> None:
        """What a launch does now will end in so many seconds, or if it holds no devices yet, so
        long after it does.
        """
        with self._lock:
            since_s = now_s if deployment.id in self._held else math.inf
            self._aside[deployment.id] = (deployment, seconds, since_s)

    def aside(self, now_s: float, but: str) -> Cost:
        """GPU time and money that launches will still use until what they do now ends as estimated,
        without that of the deployment ``but``.
        """
        with self._lock:
            others = [one for name, one in self._aside.items() if name != but]
        return sum(
            (cost_of(one, min(s, max(0.0, since_s + s - now_s))) for one, s, since_s in others),
            Cost(),
        )

    def rest(self, address: str, now_s: float, longer: bool = False) -> float:
        """Other sweeps hold this host: do not try it for a while. ``longer``: each time twice as
        long, so that other nodes have time to come. Returns for how long.
        """
        with self._lock:
            since_s, until_s = self._resting.get(address, (now_s, now_s))
            last_s = until_s - since_s if longer else 0.0
            rest_s = min(MOST_REST_S, max(REST_S, 2 * last_s))
            self._resting[address] = now_s, now_s + rest_s
            return rest_s

    def wake(self, address: str) -> None:
        """The host could be leased. Whoever of this sweep wants it next stands at the end of the
        line.
        """
        with self._lock:
            self._resting.pop(address, None)
            for addresses in list(self._waited_since):
                if address in addresses:
                    del self._waited_since[addresses]

    def waits_for(self, deployment_id: str, address: str) -> None:
        """A launch waits for a host that others hold; meanwhile its devices cost nothing, and no
        other launch is started there.
        """
        with self._lock:
            self._waiting_for[deployment_id] = address
            self._held.pop(deployment_id, None)

    def waits_no_more(self, deployment_id: str) -> None:
        with self._lock:
            self._waiting_for.pop(deployment_id, None)

    def waiting(self) -> list[str]:
        """Ids of the deployments whose launches wait for hosts of others."""
        with self._lock:
            return list(self._waiting_for)

    def keep_place(self, addresses: Iterable[str], since_ns: int) -> None:
        """A launch gave up waiting for these hosts for now: the next one that wants the same ones
        takes its place in line.
        """
        with self._lock:
            self._waited_since[tuple(sorted(addresses))] = since_ns

    def place_in_line(self, addresses: Iterable[str]) -> int:
        """Since when a launch of this sweep has waited for these hosts, by a host's clock; 0 if
        none has.
        """
        with self._lock:
            return self._waited_since.pop(tuple(sorted(addresses)), 0)

    def rested(self, machines: Iterable[Machine], now_s: float) -> list[Machine]:
        """The machines that may be tried now."""
        with self._lock:
            resting = {
                address for address, (_, until_s) in self._resting.items() if until_s > now_s
            }
            resting.update(self._waiting_for.values())
            return (
                [one for one in machines if one.address not in resting]
                if resting
                else list(machines)
            )

    def started(self, deployment: Deployment, seconds: float) -> None:
        """Note how long an engine took to start."""
        engine = deployment.settings.engine
        with self._lock:
            took_s, expected_s = self._engines.get(engine, (0.0, 0.0))
            sums = self._engines[engine] = (
                took_s + seconds,
                expected_s + estimated_start_s(deployment),
            )
            self.starts |= {deployment.id: seconds, engine: sums[0] / sums[1] if sums[1] else 1.0}

    def start_factors(self) -> list[tuple[str, float]]:
        """Each engine that was started, with the actual divided by the estimated time of its
        starts.
        """
        with self._lock:
            return [(engine, self.starts[engine]) for engine in self._engines]

    def took(self, expected_s: float, took_s: float) -> None:
        """Note how long an attempt was expected to take, and how long it took."""
        with self._lock:
            self._expected_s, self._took_s = self._expected_s + expected_s, self._took_s + took_s
            self.overrun_s = max(self.overrun_s, took_s - expected_s)

    @property
    def slowness(self) -> float:
        """Actual divided by expected time of all attempts; 1 before the first one."""
        with self._lock:
            return self._took_s / self._expected_s if self._expected_s else 1.0

    def add_span(self, span_unix_ns: tuple[int, int]) -> None:
        """Note a span of engine start-up, warm-up, measurement or waiting for other sweeps, which
        is not overhead.
        """
        with self._lock:
            self._spans_unix_ns.append(span_unix_ns)

    def overhead_share(self, sweep_unix_ns: tuple[int, int]) -> float:
        """Share of the sweep's wall time that no such span covers."""
        with self._lock:
            return overhead_share(self._spans_unix_ns, sweep_unix_ns)


def overhead_share(work: Iterable[tuple[int, int]], sweep: tuple[int, int]) -> float:
    """Share of a sweep that no span [start, end) of work covers; 0 for a sweep of no length.

    Work is an engine's start (from placement to ready) and a load point (from its common start,
    warm-up included, to the end of its window). So is the time for which a host is left to another
    sweep. The rest is overhead: planning, waiting for placement, draining and committing between
    points, stopping engines, pauses before retries.
    """
    start, end = sweep
    idle_ns, covered_until = 0, start
    for began, ended in sorted((min(max(a, start), end), min(b, end)) for a, b in work):
        idle_ns += max(0, began - covered_until)
        covered_until = max(covered_until, ended)
    return (idle_ns + max(0, end - covered_until)) / (end - start) if end > start else 0.0


def cost_of(deployment: Deployment, seconds: float) -> Cost:
    """The cost of holding a deployment's GPUs for so long; cores and endpoints cost nothing."""
    if deployment.hardware.is_cpu or deployment.settings.url:
        return Cost()
    gpu_s = seconds * deployment.devices
    return Cost(gpu_s, gpu_s / 3600 * (deployment.hardware.usd_per_gpu_hour or 0.0))


def used_up(budget: Budget, spent: Cost, wall_s: float) -> str | None:
    """Which part of the budget is used up, in words; None if none is."""
    if budget.wall is not None and wall_s >= budget.wall:
        return f"the budget of {format_duration(budget.wall)} wall time"
    if budget.gpu_hours is not None and spent.gpu_s / 3600 >= budget.gpu_hours:
        return f"the budget of {budget.gpu_hours:g} GPU hours"
    if budget.usd is not None and spent.usd >= budget.usd:
        return f"the budget of {budget.usd:g} USD"
    return None


def left_of(budget: Budget | None, spent: Cost) -> Cost:
    """GPU time and money that may still be used; infinite where the budget sets no limit."""
    gpu_hours, usd = (budget.gpu_hours, budget.usd) if budget is not None else (None, None)
    return Cost(
        math.inf if gpu_hours is None else 3600 * gpu_hours - spent.gpu_s,
        math.inf if usd is None else usd - spent.usd,
    )

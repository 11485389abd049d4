"""What a sweep's launches hold and have used: nodes, GPU time and money."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from orchestrator.base.clock import UnixSpan
from orchestrator.cluster.base import Avoidance, Machine
from orchestrator.plan.model import Deployment
from orchestrator.results.phases import LaunchState
from orchestrator.sweep.admission import Reservation, Spending
from orchestrator.sweep.launch_state import LaunchEvent, LaunchRecord
from orchestrator.sweep.start_times import StartTimes

# Seconds for which a host that others hold is not tried, at first and at most. Each try starts an
# agent where others measure.
REST_S = 2.0
MOST_REST_S = 60.0


@dataclass(slots=True)
class MeasurementCounts:
    """A sweep's measurements by how they ended."""

    measured: int = 0
    skipped: int = 0  # had an ok commit already
    failed: int = 0
    over_budget: int = 0  # not begun, or not ended: the budget was used up
    refused: int = 0  # failed in an earlier sweep and would fail again
    # of the measured, by verdict: something other than the engine spoilt them
    spoilt: Counter[str] = field(default_factory=Counter)
    kept: int = 0  # of the skipped: spoilt in every try that is allowed
    without_row: int = 0  # failed, and the row that says why could not be stored

    def add(self, more: MeasurementCounts) -> None:
        self.measured += more.measured
        self.skipped += more.skipped
        self.failed += more.failed
        self.over_budget += more.over_budget
        self.refused += more.refused
        self.spoilt += more.spoilt
        self.kept += more.kept
        self.without_row += more.without_row


@dataclass(frozen=True, slots=True)
class LeftUnmeasured:
    """What a sweep did not measure to the end because it can no longer be best.

    ``is_decided``: no deployment can be better than the best by more than the precision.
    """

    deployments: int
    measurements: int
    is_decided: bool


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How a sweep ended."""

    counts: MeasurementCounts
    wall_s: float
    # share of wall_s in which no engine started, nothing was measured and nothing was waited for
    overhead: float
    left_by_stop: int = 0  # measurements not done because the user stopped the sweep
    left_unmeasured: LeftUnmeasured | None = None  # None: no deployment was dropped as worse

    @property
    def interrupted(self) -> bool:
        return self.left_by_stop > 0


@dataclass(frozen=True, slots=True)
class _SetAside:
    """Budget that is set aside for what a launch does now, which ends ``seconds`` seconds after
    ``since_s``. ``since_s`` is infinite as long as the launch holds no devices.
    """

    deployment: Deployment
    seconds: float
    since_s: float

    def cost(self, now_s: float) -> Spending:
        """What the launch will still use of it."""
        left_s = max(0.0, self.since_s + self.seconds - now_s)
        return cost_of(self.deployment, min(self.seconds, left_s))


@dataclass(frozen=True, slots=True)
class _Rest:
    """The time in which a host is not tried, in seconds of the sweep's clock."""

    since_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        return self.until_s - self.since_s


class SweepState:
    """Which launch of a sweep is in which state, and what the launches hold and have used. Shared
    by their threads. Thread-safe.
    """

    def __init__(self) -> None:
        self.counts = MeasurementCounts()
        self.start_times = StartTimes()
        self._lock = threading.Lock()
        self._launches: dict[str, LaunchRecord] = {}  # deployment id -> its current launch
        self._spent = Spending()
        self._set_aside: dict[str, _SetAside] = {}  # by deployment id
        self._resting: dict[str, _Rest] = {}  # by address
        # hosts that a launch waited for before it chose others -> since when it had waited for them
        self._waited_since: dict[tuple[str, ...], int] = {}
        self._spans: list[UnixSpan] = []
        self._expected_s = 0.0
        self._took_s = 0.0
        self.overrun_s = 0.0  # the most by which an attempt took longer than expected

    def count(self, more: MeasurementCounts) -> None:
        """Add to the counts."""
        with self._lock:
            self.counts.add(more)

    def launch(self, deployment: Deployment) -> LaunchRecord:
        """The deployment's current launch; a new one, in the queue, if there is none."""
        with self._lock:
            return self._launch(deployment)

    def _launch(self, deployment: Deployment) -> LaunchRecord:
        """As ``launch``, for callers that have the lock."""
        return self._launches.setdefault(deployment.id, LaunchRecord(deployment))

    def advance(self, deployment: Deployment, event: LaunchEvent) -> None:
        """Change the state of the deployment's launch. Raises ImpossibleTransition."""
        with self._lock:
            self._launch(deployment).advance(event)

    def admitted(
        self,
        deployment: Deployment,
        reservation: Reservation,
        avoid: frozenset[str] = frozenset(),
        overtaken: Deployment | None = None,
    ) -> None:
        """The deployment's launch leaves the queue and gets these nodes.

        ``avoid``: nodes on which earlier launches of it failed. ``overtaken``: the deployment whose
        launch it overtakes without delaying it.
        """
        with self._lock:
            ahead = self._launch(overtaken) if overtaken is not None else None
            self._launch(deployment).admit(reservation, avoid, ahead)

    def withdraw(self, deployment: Deployment) -> None:
        """The deployment's launch leaves the queue without nodes. If the deployment queues again
        later, that is another launch.
        """
        with self._lock:
            self._launch(deployment).advance(LaunchEvent.REFUSED)
            del self._launches[deployment.id]

    def free_nodes(self, deployment: Deployment) -> bool:
        """Frees the launch's nodes, because its thread is over. Returns whether the launch is in
        the queue again; it keeps its record then, and loses it otherwise.
        """
        with self._lock:
            self._set_aside.pop(deployment.id, None)
            launch = self._launch(deployment)
            if launch.state is LaunchState.QUEUED:
                launch.reservation = None
                return True
            del self._launches[deployment.id]
            return False

    def reservation_of(self, deployment_id: str) -> Reservation:
        """The nodes and the expected end of a deployment's launch. Raises KeyError if it has no
        nodes.
        """
        with self._lock:
            reservation = self._launches[deployment_id].reservation
            if reservation is None:
                raise KeyError(deployment_id)
            return reservation

    def reservations(self, excluding: str = "") -> list[Reservation]:
        """The nodes that launches hold, without those of the deployment ``excluding``."""
        reservations: list[Reservation] = []
        with self._lock:
            for deployment_id, launch in self._launches.items():
                if launch.reservation is not None and deployment_id != excluding:
                    reservations.append(launch.reservation)
        return reservations

    def avoid(self, deployment_id: str) -> dict[str, Avoidance]:
        """Why the clients of a deployment should keep off nodes. Nodes that no launch holds are
        missing.
        """
        avoid: dict[str, Avoidance] = {}
        with self._lock:
            for owner, launch in self._launches.items():
                if launch.reservation is None:
                    continue
                is_own = owner == deployment_id
                reason = Avoidance.OWN_ENGINE if is_own else Avoidance.OTHER_ENGINE
                for node in itertools.chain(*launch.reservation.nodes):
                    avoid[node] = max(avoid.get(node, Avoidance.NONE), reason)
        return avoid

    def placed(self, deployment: Deployment, now_s: float) -> None:
        """The deployment holds its devices from now on."""
        with self._lock:
            self._launch(deployment).held_since_s = now_s
            aside = self._set_aside.get(deployment.id)
            if aside is not None:
                self._set_aside[deployment.id] = replace(aside, since_s=now_s)

    def released(self, deployment: Deployment, now_s: float) -> float | None:
        """The deployment gave back its devices. Returns for how long it held them, None if it held
        none.
        """
        with self._lock:
            self._set_aside.pop(deployment.id, None)
            launch = self._launch(deployment)
            if launch.held_since_s is None:
                return None
            held_s = now_s - launch.held_since_s
            launch.held_since_s = None
            self._spent += cost_of(deployment, held_s)
            return held_s

    def spend(self, deployment: Deployment, held_s: float) -> None:
        """Count devices that an earlier run of the sweep held for this deployment."""
        with self._lock:
            self._spent += cost_of(deployment, held_s)

    def spent(self, now_s: float) -> Spending:
        """GPU time and money used so far, running launches included."""
        with self._lock:
            spent = self._spent
            for launch in self._launches.values():
                if launch.held_since_s is not None:
                    spent += cost_of(launch.deployment, now_s - launch.held_since_s)
            return spent

    def set_aside(self, deployment: Deployment, seconds: float, now_s: float) -> None:
        """Set budget aside for what a launch does now. It ends after so many seconds, which begin
        now, or when the launch holds its devices.
        """
        with self._lock:
            holds_devices = self._launch(deployment).held_since_s is not None
            since_s = now_s if holds_devices else math.inf
            self._set_aside[deployment.id] = _SetAside(deployment, seconds, since_s)

    def aside_for_others(self, now_s: float, deployment_id: str) -> Spending:
        """GPU time and money that are set aside for launches of other deployments than this one."""
        with self._lock:
            others = [aside for key, aside in self._set_aside.items() if key != deployment_id]
        return sum((aside.cost(now_s) for aside in others), Spending())

    def rest(self, address: str, now_s: float, longer: bool = False) -> float:
        """Do not try this host for a while, because other sweeps hold it. Returns for how long.
        ``longer``: each time twice as long, so that other nodes have time to come.
        """
        with self._lock:
            rest_s = REST_S
            last = self._resting.get(address)
            if last is not None and longer:
                rest_s = min(MOST_REST_S, max(REST_S, 2 * last.length_s))
            self._resting[address] = _Rest(now_s, now_s + rest_s)
            return rest_s

    def wake(self, address: str) -> None:
        """The host was leased, so it may be tried again. Places kept in line for it
        (``keep_place``) are forgotten.
        """
        with self._lock:
            self._resting.pop(address, None)
            for addresses in list(self._waited_since):
                if address in addresses:
                    del self._waited_since[addresses]

    def waits_for(self, deployment: Deployment, address: str) -> None:
        """A launch waits for a host that others hold. Meanwhile its devices cost nothing, and no
        other launch is started on that host.
        """
        with self._lock:
            launch = self._launch(deployment)
            launch.advance(LaunchEvent.HOST_HELD)
            launch.held_host = address
            launch.held_since_s = None

    def waiting(self) -> list[str]:
        """Ids of the deployments whose launches wait for hosts of others."""
        with self._lock:
            return [launch.deployment.id for launch in self._occupied()]

    def _occupied(self) -> list[LaunchRecord]:
        launches = self._launches.values()
        return [launch for launch in launches if launch.state is LaunchState.OCCUPIED]

    def keep_place(self, addresses: Iterable[str], since_ns: int) -> None:
        """A launch no longer waits for these hosts. The next launch of this sweep that wants the
        same hosts takes its place in line.
        """
        with self._lock:
            self._waited_since[tuple(sorted(addresses))] = since_ns

    def place_in_line(self, addresses: Iterable[str]) -> int:
        """Since when a launch of this sweep had waited for these hosts, by a host's clock; 0 if
        none had. The place is given away only once.
        """
        with self._lock:
            return self._waited_since.pop(tuple(sorted(addresses)), 0)

    def that_may_be_tried(self, machines: Iterable[Machine], now_s: float) -> list[Machine]:
        """Those of the machines that need no rest now and that no launch waits for."""
        with self._lock:
            left_out = {name for name, rest in self._resting.items() if rest.until_s > now_s}
            left_out.update(launch.held_host for launch in self._occupied())
            return [machine for machine in machines if machine.address not in left_out]

    def took(self, expected_s: float, took_s: float) -> None:
        """Note how long an attempt was expected to take, and how long it took."""
        with self._lock:
            self._expected_s += expected_s
            self._took_s += took_s
            self.overrun_s = max(self.overrun_s, took_s - expected_s)

    @property
    def slowness(self) -> float:
        """Actual divided by expected time of all attempts; 1 before the first one."""
        with self._lock:
            return self._took_s / self._expected_s if self._expected_s else 1.0

    def add_span(self, span: UnixSpan) -> None:
        """Note a span of engine start-up, warm-up, measurement or waiting for other sweeps, which
        is not overhead.
        """
        with self._lock:
            self._spans.append(span)

    def overhead_share(self, sweep: UnixSpan) -> float:
        """Share of the sweep's wall time that no such span covers."""
        with self._lock:
            return overhead_share(self._spans, sweep)


def overhead_share(work: Iterable[UnixSpan], sweep: UnixSpan) -> float:
    """Share of a sweep that no span of work covers; 0 for a sweep of no length.

    Spans of work are an engine's start (from placement to ready), a load point (from its common
    start, warm-up included, to the end of its window), and the time for which a host is left to
    another sweep. All other time is overhead: planning, waiting for placement, draining and
    committing between points, stopping engines, pauses before retries. Instants are Unix
    nanoseconds.
    """
    if sweep.end_ns <= sweep.start_ns:
        return 0.0
    idle_ns = 0
    covered_until_ns = sweep.start_ns
    for span in sorted(work):
        idle_ns += max(0, min(span.start_ns, sweep.end_ns) - covered_until_ns)
        covered_until_ns = max(covered_until_ns, min(span.end_ns, sweep.end_ns))
    idle_ns += max(0, sweep.end_ns - covered_until_ns)
    return idle_ns / (sweep.end_ns - sweep.start_ns)


def cost_of(deployment: Deployment, seconds: float) -> Spending:
    """What holding a deployment's GPUs for ``seconds`` costs. Cores and endpoints cost nothing."""
    if deployment.hardware.is_cpu or deployment.settings.url:
        return Spending()
    gpu_s = seconds * deployment.devices
    usd_per_gpu_hour = deployment.hardware.usd_per_gpu_hour or 0.0
    return Spending(gpu_s, gpu_s / 3600 * usd_per_gpu_hour)

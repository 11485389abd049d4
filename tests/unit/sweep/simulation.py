"""A cluster without Ray, processes or sleep: virtual time, nodes that come and go, and steps that
fail as scripted.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.base.clock import Clock
from orchestrator.base.errors import Failure, FailureKind, PlacementError
from orchestrator.cluster.base import (
    Allocation,
    Avoidance,
    ClientLost,
    ClientProcess,
    ClientReport,
    DeadLog,
    Footprint,
    Growth,
    HostLost,
    Machine,
    Stopped,
)
from orchestrator.engines.command import Node
from orchestrator.load.point import ClientStats, HostLoad, LoadPoint, Progress, Reply, SoFar
from orchestrator.node.leases import Wish
from orchestrator.node.readiness import Ready
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.row_writer import RowFile
from orchestrator.results.store import FilePart, Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.context import SweepContext, SweepSettings
from orchestrator.sweep.state import SweepReport, SweepState
from orchestrator.sweep.sweep import Sweep
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.node_sampler import NodeTelemetry
from tests.unit.results.builders import events, failed_request, part_of, request, requests

FULL_DISK = "rows cannot be kept in /tmp of x until the point is over: No space left on device"


class VirtualClock(Clock):
    """Time that jumps to the next moment somebody waits for. One thread runs at a time, so nothing
    races.
    """

    def __init__(self) -> None:
        self._now_s, self._order = 0.0, itertools.count()
        self._waiting: list[_Waiter] = []

    def now_s(self) -> float:
        return self._now_s

    def unix_ns(self) -> int:
        return 10**18 + round(self._now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self._block(self._now_s + seconds, None)

    def wait(self, event: threading.Event, limit_s: float) -> bool:
        self._block(self._now_s + limit_s, event)
        return event.is_set()

    def spawn(self, run: Callable[[], None], name: str) -> None:
        turn = threading.Event()

        def body() -> None:
            turn.wait()
            run()
            self._pass_on()

        self._waiting.append(_Waiter(self._now_s, next(self._order), turn))
        threading.Thread(target=body, name=name, daemon=True).start()

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Something that happens by itself."""

        def body() -> None:
            self.sleep(when_s - self._now_s)
            what()

        self.spawn(body, "event")

    def _block(self, until_s: float, event: threading.Event | None) -> None:
        turn = threading.Event()
        self._waiting.append(_Waiter(until_s, next(self._order), turn, event))
        self._pass_on()
        turn.wait()

    def _pass_on(self) -> None:
        """Lets the next thread run: one whose event has happened, else the one whose time comes
        first.
        """
        if not self._waiting:
            return
        first = min(self._waiting, key=lambda waiter: (waiter.goes_on_s(self._now_s), waiter.order))
        self._waiting.remove(first)
        self._now_s = max(self._now_s, first.goes_on_s(self._now_s))
        first.turn.set()


@dataclass
class _Waiter:
    until_s: float
    order: int
    turn: threading.Event
    event: threading.Event | None = None

    def goes_on_s(self, now_s: float) -> float:
        """When it may go on: now if its event has happened, else when its time is over."""
        has_happened = self.event is not None and self.event.is_set()
        return now_s if has_happened else self.until_s


def node(name: str, gpus: int = 8, cpus: float = 96.0, **labels: str) -> Machine:
    return Machine(name, f"10.0.0.{name}", gpus, cpus, labels)


@dataclass(frozen=True)
class EngineDeath:
    at_s: float
    failure: Failure


@dataclass
class World:
    """A cluster, its agents and clients. ``fails``: step -> what its next calls raise or say, None
    for nothing.

    Steps: place, lease, queue, put back, start, ready, clients, prepare, first (requests), load,
    has work, stop (GPUs whose memory is still in use). ``log`` has the steps that were taken, and
    what was released and dropped. A load says None (all well), a Failure (the engine dies under
    it), or a word: lost (a client was), full (a client's disk is), slow (the client was), refused,
    redirected, broken, uncounted, drains (30 s longer), dying (it answers with errors, and ends 3 s
    later).
    """

    clock: VirtualClock
    nodes: list[Machine]
    note: str | None = None
    fails: dict[str, list[Any]] = field(default_factory=dict)
    grows_by: list[Machine] = field(default_factory=list)  # what an autoscaler adds, in this order
    grow_after_s: float = 60.0
    autoscaler: bool = False
    known_growth: Growth = Growth()  # what the autoscaler tells, if there is one
    engine_death: EngineDeath | None = None
    is_disturbed: bool = False  # other programs load the engines' hosts
    ready_after_s: float = 10.0
    kv_transport: str = "rc_mlx5/mlx5_0:1"
    client_limit: int = 4
    # where clients run, the first first, until these are taken back
    client_nodes: Sequence[str] = ()
    # the nodes whose disks have no room for rows, once a client's disk was full; None: all nodes
    unfit: set[str] | None = None
    keeps_cache: bool = False  # engines say that they do not empty it
    # to the fixed prompts, of each launch
    replies: list[tuple[Reply, ...]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    ranks: list[Node] = field(default_factory=list)  # as they were started
    api_keys: list[str] = field(default_factory=list)  # of each rank, in the same order
    # each node that was told how many bytes of the model the other nodes have, and how many
    heard: list[tuple[str, int]] = field(default_factory=list)
    # node -> where its rank serves /metrics, for ranks that a replica's first rank reads, too
    metrics_urls: dict[str, str] = field(default_factory=dict)
    # each node whose agent reads /metrics, and the pages of other ranks that it reads
    metrics_begun: list[tuple[str, ...]] = field(default_factory=list)
    # logs of engines whose agents died earlier, on every node
    dead_logs: list[DeadLog] = field(default_factory=list)
    held: dict[str, list[str]] = field(default_factory=dict)  # launch id -> nodes
    most_held: int = 0
    desired: list[Footprint] = field(default_factory=list)
    # of each call of ``clients``: how many it asked for, and the nodes that it avoided
    client_counts: list[int] = field(default_factory=list)
    avoided: list[dict[str, int]] = field(default_factory=list)
    loads: list[LoadPoint] = field(default_factory=list)
    firsts: list[LoadPoint] = field(default_factory=list)
    events: list[Event | Phase] = field(default_factory=list)
    # where clients write their rows, as real ones do; None: the driver does
    store: Store | None = None
    # nodes that drain, and when they are gone
    gone_s: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # nodes that were lost; some came back
    telemetry: NodeTelemetry = field(default_factory=NodeTelemetry)  # that every agent sampled
    _coming: int = 0

    def step(self, name: str) -> Any:
        """Note it; raise or return what was scripted for it."""
        self.log.append(name)
        script = self.fails.get(name)
        outcome = script.pop(0) if script else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def lose(self, name: str) -> None:
        self.nodes = [one for one in self.nodes if one.node_id != name]
        self.lost.add(name)

    # a Cluster
    def machines(self) -> list[Machine]:
        return [one for one in self.nodes if one.node_id not in self.gone_s]

    def watch(self, tell: Callable[[str], None], stop: threading.Event) -> None: ...

    def leaving(self) -> Mapping[str, float]:
        now_s = self.clock.now_s()
        return {name: max(0.0, gone_s - now_s) for name, gone_s in self.gone_s.items()}

    def growth(self) -> Growth:
        return self.known_growth if self.autoscaler else Growth(may_grow=False)

    def check_nodes(self) -> list[str]:
        return []

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self.desired = list(footprints)
        while self.grows_by and self._coming < len(self.desired):
            self._coming += 1
            self.clock.at(
                self.clock.now_s() + self.grow_after_s, partial(self._join, self.grows_by.pop(0))
            )

    def _join(self, machine: Machine) -> None:
        self._coming -= 1
        self.nodes.append(machine)

    def place(
        self, launch_id: str, footprint: Footprint, nodes: Sequence[str] | None, patience: object
    ) -> Placed:
        self.step("place")
        assert nodes is not None, "admission chooses the nodes"
        self.clock.sleep(1.0)
        if set(nodes) - {one.node_id for one in self.nodes}:
            raise PlacementError("the node is gone")
        self.held.setdefault(launch_id, []).extend(nodes)
        self.most_held = max(self.most_held, len(self.held))
        return Placed(self, launch_id, [FakeAgent(self, name) for name in nodes])

    def lease(self, node: str) -> None:
        """Raises Occupied while others hold a node's host."""
        self.step("lease")

    def clients(self, count: int, avoid: Mapping[str, Avoidance]) -> FakeClients:
        self.avoided.append(dict(avoid))
        self.step("clients")
        self.client_counts.append(count)
        nodes = [name for name in self.client_nodes if name not in self.gone_s]
        return FakeClients(self, [f"10.0.1.{index}" for index in range(count)], nodes[:count])

    def most_clients(self) -> int:
        return self.client_limit

    def close(self) -> None: ...


@dataclass
class Placed:
    world: World
    launch_id: str
    agents: list[FakeAgent]

    def release(self) -> None:
        self.world.log.append("release")
        self.world.held.pop(self.launch_id, None)


@dataclass
class FakeAgent:
    world: World
    node: str
    died: Failure | None = None

    @property
    def allocation(self) -> Allocation:
        return Allocation(
            node_id=self.node,
            address=f"10.0.0.{self.node}",
            hostname=self.node,
            devices=("0",),
            cores=tuple(range(8)),
            pid=1,
            log_path="/tmp/engine.log",
        )

    def _reach(self) -> None:
        """Raises HostLost if the node was lost and did not come back."""
        # asked first: hardly any node was ever lost, and a thousand nodes take long to look through
        was_lost = self.node in self.world.lost
        if was_lost and all(node.node_id != self.node for node in self.world.nodes):
            raise HostLost(f"node {self.node} is gone")

    def lease(self, wish: Wish) -> tuple[int, ...]:
        self._reach()
        self.world.lease(self.node)
        return tuple(range(wish.cores))

    def queue(self, wish: Wish, since_ns: int = 0) -> int:
        self._reach()
        self.world.step("queue")
        return since_ns or self.world.clock.unix_ns()

    def put_back(self) -> None:
        self.world.step("put back")

    def dead_logs(self) -> list[DeadLog]:
        return self.world.dead_logs

    def drop_dead(self, folder: str) -> None:
        self.world.log.append(f"drop {folder}")

    def reserve_ports(self, count: int) -> list[int]:
        self._reach()
        return list(range(21000, 21000 + count))

    def start(
        self, settings: EngineSettings, hardware: object, node: Node, api_key: str
    ) -> tuple[str, ...]:
        self._reach()
        self.world.ranks.append(node)
        self.world.api_keys.append(api_key)
        self.world.step("start")
        return ("engine", settings.model)

    def begin_ready(self, timeout_s: float) -> None:
        self._ready_s = self.world.clock.now_s() + self.world.ready_after_s

    def poll_ready(self, wait_s: float) -> Ready | Failure | None:
        self.world.clock.sleep(wait_s)
        self._reach()
        if self.world.clock.now_s() < self._ready_s:
            return None
        failure: Failure | None = self.world.step("ready")
        return failure or Ready({}, "0.32.0")

    def failure(self) -> Failure | None:
        self._reach()
        death = self.world.engine_death
        if death is not None and self.world.clock.now_s() >= death.at_s:
            self.died = death.failure
            self.world.engine_death = None  # the next engine lives
        return self.died

    def empty_cache(self) -> bool:
        return self.world.keeps_cache is False

    def saying(self) -> str:
        return "loading weights"

    def downloaded(self) -> int:
        self._reach()
        return int(self.world.clock.now_s() * 10**9)

    def hear_downloaded(self, elsewhere: int) -> None:
        self._reach()
        self.world.heard.append((self.node, elsewhere))

    def kv_transport(self) -> str:
        self._reach()
        return self.world.kv_transport

    def begin_host(self) -> None: ...

    def end_host(self, ours: object) -> HostLoad:
        is_disturbed = self.world.is_disturbed
        return HostLoad(
            host=self.node,
            foreign_cpu_s=50.0 if is_disturbed else 0.1,
            foreign_cpu_share=0.6 if is_disturbed else 0.01,
            foreign_launches=0,
        )

    def environment(self) -> dict[str, Any]:
        self._reach()
        return {"kernel": "6.8", "gpus": [{"uuid": "GPU-a"}]}

    def host_facts(self) -> dict[str, Any]:
        self._reach()
        return {"hostname": self.node, "cores": 8}

    def wall_ns(self) -> int:
        return self.world.clock.unix_ns()

    def begin_telemetry(self, ours: object, watches_host: bool) -> None: ...

    def end_telemetry(self) -> NodeTelemetry:
        self._reach()
        return self.world.telemetry

    def metrics_url(self) -> str | None:
        self._reach()
        return self.world.metrics_urls.get(self.node)

    def begin_metrics(self, urls_of_other_ranks: Sequence[str] = ()) -> None:
        self.world.metrics_begun.append((self.node, *urls_of_other_ranks))

    def has_work(self) -> bool:
        return bool(self.world.step("has work"))

    def end_metrics(self) -> list[Sample]:
        return [Sample(1, {"running": 2.0})]

    def stop(self) -> Stopped:
        self._reach()
        dirty = self.world.step("stop")
        self.world.clock.sleep(1.0)
        return Stopped(0, b"the log", dirty or ())


@dataclass
class FakeClients:
    world: World
    addresses: list[str]
    nodes: Sequence[str] = ()
    point: LoadPoint | None = None
    processes: Sequence[ClientProcess] = ()

    @property
    def nodes_without_room(self) -> set[str]:
        return self.unfit

    @property
    def unfit(self) -> set[str]:
        return (
            self.world.unfit
            if self.world.unfit is not None
            else {one.node_id for one in self.world.nodes}
        )

    def prepare(self, point: LoadPoint, stopped: Callable[[], bool]) -> int | None:
        self.world.step("prepare")
        self.point = point
        return 1 if not stopped() else None

    def start(self, lead_s: float, write: bool = True) -> FakeRun:
        assert self.point is not None
        (self.world.loads if write else self.world.firsts).append(self.point)
        outcome = self.world.step("load" if write else "first")
        return FakeRun(self.world, self.point, len(self.addresses), outcome)

    def release(self) -> None: ...


@dataclass
class FakeRun:
    """One request per client, at the end of the point."""

    world: World
    point: LoadPoint
    count: int
    outcome: Any
    only_ended: bool = False

    def __post_init__(self) -> None:
        self._start_s = self.world.clock.now_s()
        drain_s = 30.0 if self.outcome == "drains" else 0.0
        self._end_s = self._start_s + self.point.warmup_s + (self.point.duration_s or 1.0) + drain_s
        if isinstance(self.outcome, Failure):
            self.world.engine_death = EngineDeath(self._start_s, self.outcome)
        if self.outcome == "dying":
            late = Failure(FailureKind.ENGINE_DEAD, "It died late.")
            self.world.engine_death = EngineDeath(self._end_s + 3.0, late)

    def wait(self, wait_s: float) -> bool:
        self.world.clock.sleep(min(wait_s, max(0.0, self._end_s - self.world.clock.now_s())))
        if self.outcome == "lost":
            raise ClientLost([0], "killed")
        if self.outcome == "full":
            raise ClientLost([0], FULL_DISK)
        return self.world.clock.now_s() >= self._end_s

    def progress(self) -> Progress:
        return Progress(scheduled=self.count, sent=self.count)

    def so_far(self) -> list[SoFar]:
        return []

    def abort(self, rows: bool = True) -> None:
        self.only_ended = not rows

    def settle(self, limit_s: float) -> None: ...

    def reports(self) -> dict[int, ClientReport]:
        lag_ms = 50.0 if self.outcome == "slow" else 0.0
        lost = 1 if self.outcome in ("lost", "full") else 0
        replies = (
            self.world.replies.pop(0) if self.point.keep_replies and self.world.replies else ()
        )
        return {
            index: self._report(index, lag_ms, replies if index == 0 else ())
            for index in range(lost, self.count)
        }

    def _report(self, index: int, lag_ms: float, replies: tuple[Reply, ...]) -> ClientReport:
        """What one client reports, with token events only where clients store their rows."""
        stats = ClientStats(
            client=index,
            wall_s=1.0,
            cpu_s=0.1,
            cpu_share=0.1,
            loop_lag_p99_ms=0.0,
            loop_lag_max_ms=0.0,
            send_lag_p50_ms=lag_ms,
            send_lag_p99_ms=lag_ms,
            sockets_opened=1,
            sockets_max=1,
            reads=1,
            coalesced_reads=0,
            in_flight_max=1,
            start_error_ms=0.0,
        )
        rows = part_of("requests", self._requests(index))
        gaps = part_of("token_events", events({index: []})) if self.world.store else None
        return ClientReport(stats, self._stored(index, rows, gaps), rows, gaps, replies)

    def _stored(self, index: int, *parts: RowFile | None) -> tuple[FilePart, ...]:
        """The files that a client wrote."""
        if self.world.store is None or self.point.keep_replies:
            return ()
        keys = {"measurement_id": self.point.measurement_id, "attempt_id": self.point.attempt_id}
        return tuple(
            self.world.store.put_part(one, writer=f"client{index:04d}", **keys)
            for one in parts
            if one
        )

    def _requests(self, index: int) -> pa.Table:
        keys: dict[str, Any] = {
            "measurement_id": self.point.measurement_id,
            "attempt_id": self.point.attempt_id,
        }
        due_ms = 1e3 * self.point.warmup_s
        errors = {
            "refused": "http_4xx",
            "broken": "http_5xx",
            "dying": "http_5xx",
            "redirected": "garbage",
        }
        broken = errors.get(str(self.outcome))
        keys |= (
            {"http_status": 307, "error": "it is at /there"} if self.outcome == "redirected" else {}
        )
        keys |= {"token_count_source": "chunks"} if self.outcome == "uncounted" else {}
        table = requests(
            failed_request(index, due_ms, broken, **keys)
            if broken
            else request(index, due_ms, **keys)
        )
        now_ns = 1e9 * (self.world.clock.now_s() - self._start_s)
        return table.filter(pc.less(table["done_ns"], now_ns)) if self.only_ended else table


EXPERIMENT = """
version: 1
name: x
model: some-org/some-model
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3.6}}}}
deployments: {{engine: vllm, hardware: h100, vary: [{{cases: [{cases}]}}]}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 2}}]
load: {{levels: {{concurrency: [{levels}]}}, duration: 60s, warmup: 10s}}
"""


def plan_of(cases: str = "{tensor_parallel_size: 1}", levels: str = "8", more: str = "") -> Plan:
    """Deployments of these cases on nodes with 8 GPUs, 70 s a point."""
    return make_plan(
        parse_experiment(EXPERIMENT.format(cases=cases, levels=levels) + more, "x.yaml")
    )


def world_of(nodes: Iterable[Machine] = (node("a"),), **given: Any) -> World:
    return World(VirtualClock(), list(nodes), **given)


def context_of(
    world: World,
    plan: Plan,
    store: Store,
    state: SweepState | None = None,
    stop: threading.Event | None = None,
    **settings: Any,
) -> SweepContext:
    """``settings``: see ``SweepSettings``."""
    return SweepContext(
        plan,
        world,  # type: ignore[arg-type]
        store,
        world.events.append,
        SweepSettings(**settings),
        clock=world.clock,
        state=state or SweepState(),
        stop=stop or threading.Event(),
    )


def sweep(
    world: World,
    plan: Plan,
    store: Store,
    interrupt_s: float | None = None,
    state: SweepState | None = None,
    stop: threading.Event | None = None,
    **settings: Any,
) -> SweepReport:
    """``interrupt_s``: when Ctrl-C or SIGTERM comes. ``settings``: see ``SweepSettings``."""
    context = context_of(world, plan, store, state, stop, **settings)
    if interrupt_s is not None:
        world.clock.at(interrupt_s, context.stop.set)
    return Sweep(context).run()


def outcomes(store: Store) -> list[tuple[str, str | None]]:
    """Status and class of every attempt, in order."""
    points = store.manifests("point")
    return [(one.status, one.failure_class) for one in points]


def steps(world: World) -> Counter[str]:
    return Counter(world.log)


def reply(index: int, *token_ids: int, logprob: float = -1.0, replica: int = 0) -> Reply:
    """To the fixed prompt of that index."""
    text = " ".join(map(str, token_ids))
    return Reply(index, replica, f"prompt {index}", text, token_ids, (logprob,) * len(token_ids))

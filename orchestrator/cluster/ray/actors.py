"""Agents and clients as Ray actors, and how the driver calls them: each call has a time limit."""

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from orchestrator.base.errors import Failure
from orchestrator.cluster.base import Allocation, DeadLog, HostLost, Stopped
from orchestrator.cluster.calls import Arguments, T, answer, crossing
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.engine_host import EngineHost, assigned_gpus
from orchestrator.cluster.notices import watch
from orchestrator.cluster.ray.private import cluster_id, drain
from orchestrator.engines.command import Node
from orchestrator.load.point import HostLoad
from orchestrator.load.priority import lower_niceness
from orchestrator.node.leases import Wish
from orchestrator.node.readiness import Ready
from orchestrator.spec.settings import Hardware
from orchestrator.spec.stages import PlannedSettings
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.node_sampler import NodeTelemetry

HostT = TypeVar("HostT")

STOP_LIMIT_S = 120.0  # longer than other calls: an engine's grace, and the release of its memory
ACTOR = {"max_concurrency": 4, "max_restarts": 0}
# A raylet waits this long for its head, too, but then needs two more minutes to end its workers.
SILENT_LIMIT_S = 60.0
LOOK_EVERY_S = 10.0
LOOK_LIMIT_S = 5.0  # for the head's answer
ORPHAN_S = 3.0  # how long Ray has to end a worker whose raylet died, before we end it


def _settle_in() -> str:
    """Makes this actor end with its raylet, or when it is cut off from the head, and drain its node
    when a cloud takes that back. Returns the node's id.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    threading.Thread(target=_end_when_cut_off, daemon=True).start()
    node_id = str(ray.get_runtime_context().get_node_id())
    watch(lambda notice: drain(node_id, notice.left_s, notice.why))
    return node_id


def _end_with(raylet: int) -> None:
    """Ends this process after its raylet has ended. Ray usually ends the workers of a dead raylet,
    but one that it missed would keep its host's lease forever.
    """
    wait_until_orphaned(raylet)
    os._exit(1)


def wait_until_orphaned(
    parent: int,
    parent_now: Callable[[], int] = os.getppid,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns ORPHAN_S after this process has lost its parent.

    ``parent``: the parent's process id. ``parent_now``: returns the id that the parent has now.
    """
    while parent_now() == parent:
        sleep(1.0)
    sleep(ORPHAN_S)


class RayClientHost(ClientHost):
    """A load client. Its node, too, may be taken back."""

    def __init__(self) -> None:
        _settle_in()
        super().__init__()


class RayEngineHost(EngineHost):
    """An agent; Ray says on which node it runs and which GPUs it was given."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        lower_niceness(0)  # Ray starts workers at niceness 15, which its engine would inherit
        node_id = _settle_in()
        address = ray.util.get_node_ip_address()
        super().__init__(launch_id, node_id, address, assigned_gpus() if gpus else ())

    def describe(self) -> Allocation:
        """What this rank was given; a method, because an actor's attributes cannot be read from
        outside.
        """
        return self.allocation


def _end_when_cut_off() -> None:
    """Ends this actor, and through its guard an engine, when its node has been cut off from the
    head for a minute.

    A head that was restarted counts as lost: it knows nothing of this actor, and would never end
    it.
    """
    address = ray.get_runtime_context().gcs_address
    wait_for_silence(SameHead(lambda: cluster_id(address, LOOK_LIMIT_S)))
    os._exit(1)


class SameHead:
    """Tells whether the head that answered first still answers. ``ask``: asks the head for its
    cluster's id; see ``cluster_id``.
    """

    def __init__(self, ask: Callable[[], bytes | None]) -> None:
        self._ask = ask
        self._first_id = b""  # empty until a head has answered with its id

    def __call__(self) -> bool:
        cluster = self._ask()
        if cluster is None:
            return False
        if not self._first_id:
            self._first_id = cluster
        return cluster in (self._first_id, b"")


def wait_for_silence(
    answers: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once nothing has answered for SILENT_LIMIT_S."""
    last_answer_s = clock()
    while clock() - last_answer_s < SILENT_LIMIT_S:
        sleep(LOOK_EVERY_S)
        if answers():
            last_answer_s = clock()


AGENT_ACTOR: Any = ray.remote(**ACTOR)(RayEngineHost)
CLIENT_ACTOR: Any = ray.remote(**ACTOR)(RayClientHost)


class RayHandle(Generic[HostT]):
    """The driver's handle of an actor; of a client it is a ``ClientHandle``."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def begin(self, method: Callable[[HostT, *Arguments], T], *arguments: *Arguments) -> Future[T]:
        """Calls one of its methods without waiting. The future raises HostLost when the actor is
        gone.
        """
        future: Future[T] = Future()
        name = method.__name__

        def done(remote: Future[T]) -> None:
            error = remote.exception()
            if error is None:
                future.set_result(remote.result())
            else:
                future.set_exception(_own_error(error, name))

        try:
            call = getattr(self._actor, name).remote(*arguments)
            call.future().add_done_callback(done)
        except RayError as error:
            future.set_exception(_own_error(error, name))
        return future

    def kill(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)


def _own_error(error: BaseException, method: str) -> Exception:
    """Our exception for one that Ray raised: the actor's own exception, or one that says that the
    actor is gone.
    """
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return crossing(error.cause, method)
    return HostLost(f"its actor is gone: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The line of Ray's long message that says what happened; for an actor that did not start it is
    the last one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "creation task" in lines[0]:
        return f"it did not start: {lines[-1]}"
    return lines[0]


class RayAgent:
    """The driver's view of an EngineHost on another node (``Agent``). Each method calls that of the
    actor, waits for its answer, and raises HostLost when there is none. The constructor waits until
    the actor has started.
    """

    def __init__(self, handle: RayHandle[RayEngineHost]) -> None:
        self._handle = handle
        self.allocation = self._call(RayEngineHost.describe)

    def _call(self, method: Callable[[RayEngineHost, *Arguments], T], *arguments: *Arguments) -> T:
        return answer(self._handle.begin(method, *arguments), method.__name__)

    def lease(self, wish: Wish) -> tuple[int, ...]:
        return self._call(RayEngineHost.lease, wish)

    def queue(self, wish: Wish, since_ns: int = 0) -> int:
        return self._call(RayEngineHost.queue, wish, since_ns)

    def put_back(self) -> None:
        self._call(RayEngineHost.put_back)

    def dead_logs(self) -> list[DeadLog]:
        return self._call(RayEngineHost.dead_logs)

    def drop_dead(self, folder: str) -> None:
        self._call(RayEngineHost.drop_dead, folder)

    def reserve_ports(self, count: int) -> list[int]:
        return self._call(RayEngineHost.reserve_ports, count)

    def start(
        self, settings: PlannedSettings, hardware: Hardware, node: Node, api_key: str
    ) -> tuple[str, ...]:
        return self._call(RayEngineHost.start, settings, hardware, node, api_key)

    def begin_ready(self, timeout_s: float) -> None:
        self._call(RayEngineHost.begin_ready, timeout_s)

    def poll_ready(self, wait_s: float) -> Ready | Failure | None:
        return self._call(RayEngineHost.poll_ready, wait_s)

    def downloaded(self) -> int:
        return self._call(RayEngineHost.downloaded)

    def hear_downloaded(self, elsewhere: int) -> None:
        self._call(RayEngineHost.hear_downloaded, elsewhere)

    def saying(self) -> str:
        return self._call(RayEngineHost.saying)

    def kv_transport(self) -> str:
        return self._call(RayEngineHost.kv_transport)

    def failure(self) -> Failure | None:
        return self._call(RayEngineHost.failure)

    def empty_cache(self) -> bool:
        return self._call(RayEngineHost.empty_cache)

    def metrics_url(self) -> str | None:
        return self._call(RayEngineHost.metrics_url)

    def begin_metrics(self, urls_of_other_ranks: Sequence[str] = ()) -> None:
        self._call(RayEngineHost.begin_metrics, urls_of_other_ranks)

    def has_work(self) -> bool:
        return self._call(RayEngineHost.has_work)

    def end_metrics(self) -> list[Sample]:
        return self._call(RayEngineHost.end_metrics)

    def begin_host(self) -> None:
        self._call(RayEngineHost.begin_host)

    def end_host(self, ours: Collection[int]) -> HostLoad:
        return self._call(RayEngineHost.end_host, ours)

    def environment(self) -> dict[str, Any]:
        return self._call(RayEngineHost.environment)

    def host_facts(self) -> dict[str, Any]:
        return self._call(RayEngineHost.host_facts)

    def wall_ns(self) -> int:
        return self._call(RayEngineHost.wall_ns)

    def begin_telemetry(self, ours: Collection[int], watches_host: bool) -> None:
        self._call(RayEngineHost.begin_telemetry, ours, watches_host)

    def end_telemetry(self) -> NodeTelemetry:
        return self._call(RayEngineHost.end_telemetry)

    def stop(self) -> Stopped:
        return answer(self._handle.begin(RayEngineHost.stop), "stop", STOP_LIMIT_S)

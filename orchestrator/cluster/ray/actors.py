"""Agents and clients as Ray actors, and how the driver calls them: each call has a time limit."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from orchestrator.cluster.base import Allocation, HostLost
from orchestrator.cluster.calls import CALL_LIMIT_S, answer, crossing
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.engine_host import EngineHost, assigned_gpus
from orchestrator.cluster.notices import watch
from orchestrator.cluster.ray.private import cluster_id, drain
from orchestrator.load.priority import lower_niceness

LIMITS_S = {"stop": 120.0}  # methods for which CALL_LIMIT_S is too short
ACTOR = {"max_concurrency": 4, "max_restarts": 0}
# a raylet waits as long for its head, and then needs two more minutes to end its workers
SILENT_LIMIT_S = 60.0
LOOK_EVERY_S, LOOK_LIMIT_S = 10.0, 5.0
ORPHAN_S = 3.0  # for Ray to end a worker whose raylet died, before we do


def _settle_in() -> str:
    """Make this actor end with its raylet and when it is cut off, and drain its node when a cloud
    takes it back.

    Returns the node's id.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    threading.Thread(target=_end_when_cut_off, daemon=True).start()
    node_id = str(ray.get_runtime_context().get_node_id())
    watch(lambda notice: drain(node_id, notice.left_s, notice.why))
    return node_id


def _end_with(raylet: int) -> None:
    """Ray usually ends the workers of a dead raylet; one that it missed would keep its host's lease
    for ever.
    """
    wait_for_orphanage(raylet)
    os._exit(1)


def wait_for_orphanage(
    parent: int,
    parent_now: Callable[[], int] = os.getppid,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return ORPHAN_S after this process has lost its parent."""
    while parent_now() == parent:
        sleep(1.0)
    sleep(ORPHAN_S)


class RayClientHost(ClientHost):
    """A load client; its node, too, may be taken back."""

    def __init__(self) -> None:
        _settle_in()
        super().__init__()


class RayEngineHost(EngineHost):
    """An agent; Ray says on which node it runs and which GPUs it was given."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        lower_niceness(0)  # Ray starts workers at niceness 15, which its engine would inherit
        node_id, address = _settle_in(), ray.util.get_node_ip_address()
        super().__init__(launch_id, node_id, address, assigned_gpus() if gpus else ())

    def describe(self) -> Allocation:
        """What this rank was given; a method, because an actor's attributes cannot be read from
        outside.
        """
        return self.allocation


def _end_when_cut_off() -> None:
    """End this actor, and through its guard an engine, when its node has been cut off from the head
    for a minute.

    So has one whose head was restarted: that knows nothing of this cluster, and nobody else would
    end this actor.
    """
    address = ray.get_runtime_context().gcs_address
    wait_for_silence(SameHead(lambda: cluster_id(address, LOOK_LIMIT_S)))
    os._exit(1)


class SameHead:
    """Whether the head answers that did at first. ``ask``: for its cluster's id; see
    ``cluster_id``.
    """

    def __init__(self, ask: Callable[[], bytes | None]) -> None:
        self._ask, self._first = ask, b""

    def __call__(self) -> bool:
        found = self._ask()
        self._first = self._first or found or b""
        return found in (self._first, b"")


def wait_for_silence(
    answers: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once nothing has answered for SILENT_LIMIT_S."""
    heard = clock()
    while clock() - heard < SILENT_LIMIT_S:
        sleep(LOOK_EVERY_S)
        heard = clock() if answers() else heard


AGENT_ACTOR: Any = ray.remote(**ACTOR)(RayEngineHost)
CLIENT_ACTOR: Any = ray.remote(**ACTOR)(RayClientHost)


class RayHandle:
    """The driver's handle of an actor (``ClientHandle``)."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def begin(self, method: str, *args: object) -> Future[Any]:
        ours: Future[Any] = Future()

        def done(theirs: Future[Any]) -> None:
            error = theirs.exception()
            if error is None:
                ours.set_result(theirs.result())
            else:
                ours.set_exception(_ours(error, method))

        try:
            getattr(self._actor, method).remote(*args).future().add_done_callback(done)
        except RayError as error:
            ours.set_exception(_ours(error, method))
        return ours

    def kill(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)


def _ours(error: BaseException, method: str) -> Exception:
    """Our exception for one that Ray raised: the actor's own, or that the actor is gone."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return crossing(error.cause, method)
    return HostLost(f"its actor is gone: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The line of Ray's long message that says what happened; for an actor that did not start it is
    the last one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return f"it did not start: {lines[-1]}" if "creation task" in lines[0] else lines[0]


class _RayAgent:
    """An EngineHost on another node: each method is a remote call."""

    def __init__(self, handle: RayHandle, allocation: Allocation) -> None:
        self.allocation = allocation
        self._handle = handle

    def __getattr__(self, method: str) -> Any:
        return partial(call, self._handle, method)


def call(handle: RayHandle, method: str, *args: object) -> Any:
    """Call a method and wait for its answer. Raises HostLost."""
    return answer(handle.begin(method, *args), method, LIMITS_S.get(method, CALL_LIMIT_S))


def agent(handle: RayHandle) -> EngineHost:
    """The driver's view of an EngineHost on its node; waits until the actor has started."""
    return cast(EngineHost, _RayAgent(handle, call(handle, "describe")))

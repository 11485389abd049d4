"""Our hosts as Ray actors, and the driver's side of them: every method of a host is a call with a limit."""

from __future__ import annotations

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
from orchestrator.cluster.ray_private import drain, head_answers
from orchestrator.load.priority import lower_niceness

LIMITS_S = {"stop": 120.0}  # where CALL_LIMIT_S is too short
ACTOR = {"max_concurrency": 4, "max_restarts": 0}
SILENT_LIMIT_S = 60.0  # as long as a raylet waits for its head; what it does then takes two minutes more
LOOK_EVERY_S, LOOK_LIMIT_S = 10.0, 5.0
ORPHAN_S = 3.0  # for Ray to end a worker whose raylet died


def _settle_in() -> str:
    """From now on this actor ends with its raylet, and its node drains on notice. Returns the id of the node."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    node_id = str(ray.get_runtime_context().get_node_id())
    watch(lambda notice: drain(node_id, notice.left_s, notice.why))
    return node_id


def _end_with(raylet: int) -> None:
    """Ray ends the workers of a raylet that died, mostly: one that stayed kept the lease of its host for ever."""
    wait_for_orphanage(raylet)
    os._exit(1)


def wait_for_orphanage(
    parent: int, parent_now: Callable[[], int] = os.getppid, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Returns ORPHAN_S after this process has lost its parent."""
    while parent_now() == parent:
        sleep(1.0)
    sleep(ORPHAN_S)


class RayClientHost(ClientHost):
    """On its node, which may be taken back like that of an engine."""

    def __init__(self) -> None:
        _settle_in()
        super().__init__()


class RayEngineHost(EngineHost):
    """On its node: where that is and which GPUs were given is asked of Ray."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        lower_niceness(0)  # Ray starts workers at 15, where an engine would come last
        node_id, address = _settle_in(), ray.util.get_node_ip_address()
        super().__init__(launch_id, node_id, address, assigned_gpus() if gpus else ())
        threading.Thread(target=_end_when_cut_off, daemon=True).start()

    def describe(self) -> Allocation:
        """What this rank was given: attributes are not seen from outside."""
        return self.allocation


def _end_when_cut_off() -> None:
    """Ends this agent, and by its guard the engine, on a node that the head has not been heard from for a minute."""
    address = ray.get_runtime_context().gcs_address
    wait_for_silence(lambda: head_answers(address, LOOK_LIMIT_S))
    os._exit(1)


def wait_for_silence(
    answers: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once nothing has been answered for SILENT_LIMIT_S."""
    heard = clock()
    while clock() - heard < SILENT_LIMIT_S:
        sleep(LOOK_EVERY_S)
        heard = clock() if answers() else heard


AGENT_ACTOR: Any = ray.remote(**ACTOR)(RayEngineHost)
CLIENT_ACTOR: Any = ray.remote(**ACTOR)(RayClientHost)


class RayHandle:
    """An actor seen from the driver (``ClientHandle``)."""

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
    """What Ray raises, in our words: the exception of the other side, or that there is no other side any more."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return crossing(error.cause, method)
    return HostLost(f"its actor is gone: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Ray's own messages run over many lines; of an actor that did not start, the cause stands in the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"it did not start: {lines[-1]}" if "creation task" in lines[0] else lines[0]


class _RayAgent:
    """EngineHost's methods, each of them a call."""

    def __init__(self, handle: RayHandle, allocation: Allocation) -> None:
        self.allocation = allocation
        self._handle = handle

    def __getattr__(self, method: str) -> Any:
        return partial(call, self._handle, method)


def call(handle: RayHandle, method: str, *args: object) -> Any:
    """One call and its answer. Raises HostLost."""
    return answer(handle.begin(method, *args), method, LIMITS_S.get(method, CALL_LIMIT_S))


def agent(handle: RayHandle) -> EngineHost:
    """An EngineHost on its node, as its driver uses it. Waits for it to start."""
    return cast(EngineHost, _RayAgent(handle, call(handle, "describe")))

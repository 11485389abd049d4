"""Calls to an EngineHost or ClientHost in another process: each has a time limit and raises only
our own exceptions.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple

from orchestrator.base.errors import OrchestratorError
from orchestrator.cluster.base import HostLost

CALL_LIMIT_S = 60.0
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def crossing(error: Exception, method: str) -> Exception:
    """What the caller gets for an exception raised on the host: our own unchanged, HostLost for any
    other.
    """
    if isinstance(error, OrchestratorError | HostLost):
        return error
    return HostLost(f"{method} failed on its node: {type(error).__name__}: {error}")


def answer(future: Future[T], method: str, limit_s: float = CALL_LIMIT_S) -> T:
    """What the call returned or raised.

    Raises HostLost when there is no answer within ``limit_s``.
    """
    try:
        return future.result(max(0.0, limit_s))
    except TimeoutError as error:
        raise HostLost(f"no answer to {method} within {limit_s:g} s") from error


def answer_or_none(future: Future[T], method: str, limit_s: float = CALL_LIMIT_S) -> T | None:
    """What the call returned; None from a host that is lost, which its next call will notice."""
    try:
        return answer(future, method, limit_s)
    except HostLost:
        return None


def in_thread(call: Callable[[*Arguments], T], *arguments: *Arguments) -> Future[T]:
    """Call it in a daemon thread of its own."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future

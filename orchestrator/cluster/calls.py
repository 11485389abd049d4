"""Calls to an EngineHost or ClientHost in another process: each has a time limit and raises only
our own exceptions.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from orchestrator.base.errors import OrchestratorError
from orchestrator.cluster.base import HostLost

CALL_LIMIT_S = 60.0


def crossing(error: Exception, method: str) -> Exception:
    """What the caller gets for an exception raised on the host: our own unchanged, HostLost for any
    other.
    """
    if isinstance(error, OrchestratorError | HostLost):
        return error
    return HostLost(f"{method} failed on its node: {type(error).__name__}: {error}")


def answer(future: Future[Any], method: str, limit_s: float = CALL_LIMIT_S) -> Any:
    """What the call returned or raised. Raises HostLost when there is no answer within ``limit_s``."""
    try:
        return future.result(max(0.0, limit_s))
    except TimeoutError as error:
        raise HostLost(f"no answer to {method} within {limit_s:g} s") from error


def in_thread(call: Callable[..., Any], *args: object) -> Future[Any]:
    """Call it in a daemon thread of its own."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future

"""Calls to an EngineHost or ClientHost somewhere else: every one has a limit, and ours are the only exceptions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from orchestrator.cluster.base import HostLost
from orchestrator.errors import OrchestratorError

CALL_LIMIT_S = 60.0  # no call waits longer, whatever became of the other side


def crossing(error: Exception, method: str) -> Exception:
    """An exception as it passes from a host to its caller: ours as it is, anything else means that the host failed."""
    if isinstance(error, OrchestratorError | HostLost):
        return error
    return HostLost(f"{method} failed on its node: {type(error).__name__}: {error}")


def answer(future: Future[Any], method: str, limit_s: float = CALL_LIMIT_S) -> Any:
    """What a call returned or raised. Raises HostLost when nothing comes within ``limit_s``."""
    try:
        return future.result(max(0.0, limit_s))
    except TimeoutError as error:
        raise HostLost(f"no answer to {method} within {limit_s:g} s") from error


def in_thread(call: Callable[..., Any], *args: object) -> Future[Any]:
    """Call it in a thread of its own that does not keep the program from ending."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future

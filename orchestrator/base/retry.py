"""Calls that are tried again. A policy says how often and after which pauses; tenacity does it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.wait import wait_base

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried, and how long the pauses between its tries are.

    ``tries``: in all. ``limit_s``: after this long since the first try began, none follows.
    ``first_pause_s``: before the second try; each later pause is twice as long, up to
    ``longest_pause_s``. ``least_share``: chance makes each pause this share of that, or more, so
    that many callers do not come back at once.
    """

    first_pause_s: float
    longest_pause_s: float
    tries: float = math.inf
    limit_s: float = math.inf
    least_share: float = 1.0

    def pauses(self) -> "wait_base":
        """The pauses, for tenacity: a part that is fixed and a part that is chance."""
        from tenacity import wait_exponential, wait_random_exponential

        fixed = self.least_share
        random = 1.0 - self.least_share
        return wait_exponential(
            self.first_pause_s * fixed, max=self.longest_pause_s * fixed
        ) + wait_random_exponential(self.first_pause_s * random, max=self.longest_pause_s * random)


def retried(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    is_passing: Callable[[BaseException], bool] = lambda error: False,
    is_refused: Callable[[T], bool] = lambda result: False,
    is_patient: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Calls ``call`` until it succeeds or ``policy`` allows no further try, and returns or raises
    what the last try did.

    ``is_passing``: whether an exception is worth another try. ``is_refused``: whether a result is.
    ``is_patient``: whether tries go on although the policy allows no more.
    """
    # imported late: it imports asyncio, 50 ms that only programs with retries should take
    from tenacity import (
        Retrying,
        retry_if_exception,
        retry_if_result,
        stop_after_attempt,
        stop_after_delay,
    )

    most_tries = stop_after_attempt(policy.tries)  # type: ignore[arg-type]
    limits = most_tries | stop_after_delay(policy.limit_s)

    def is_over(state: "RetryCallState") -> bool:
        return limits(state) and not is_patient()

    retrying = Retrying(
        retry=retry_if_exception(is_passing) | retry_if_result(is_refused),
        stop=is_over,
        wait=policy.pauses(),
        sleep=sleep,
        retry_error_callback=_last_outcome,
    )
    return retrying(call)


def _last_outcome(state: "RetryCallState") -> object:
    """What the last try returned or raised."""
    assert state.outcome is not None
    return state.outcome.result()

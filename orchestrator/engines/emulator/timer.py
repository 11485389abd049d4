"""A one-shot timer that is right to about 0.1 ms. libuv's own timers count whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("it_interval", _Timespec), ("it_value", _Timespec)]


class Timer:
    """Calls ``callback`` once at each armed instant of ``time.monotonic()``; arming again replaces the instant.

    Linux: a timerfd watched by the loop. Elsewhere: the loop's own timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _timerfd() if sys.platform == "linux" else -1
        if self._fd >= 0:
            loop.add_reader(self._fd, self._readable)

    def arm(self, when_s: float) -> None:
        """Fire at ``when_s``; at once when that has passed."""
        if self._fd >= 0:
            _settime(self._fd, max(when_s, 1e-9))
            return
        if self._handle is not None:
            self._handle.cancel()
        delay_s = max(0.0, when_s - time.monotonic())
        self._handle = self._loop.call_later(delay_s, self._callback)

    def close(self) -> None:
        """Never fire again."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._handle is not None:
            self._handle.cancel()

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # armed again between the wake-up and this call
            return
        self._callback()


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _timerfd() -> int:
    assert _libc is not None
    return int(_libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))


def _settime(fd: int, when_s: float) -> None:
    assert _libc is not None
    seconds = int(when_s)
    spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, int((when_s - seconds) * 1e9)))
    _libc.timerfd_settime(fd, _TFD_ABSTIME, ctypes.byref(spec), None)

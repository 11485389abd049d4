"""Timers that are exact to about 0.1 ms. epoll and event loops only count whole milliseconds."""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_ABSOLUTE = 1


class Timer:
    """A Linux timerfd on the clock of ``time.monotonic_ns`` (os.timerfd_create needs Python 3.13).

    ``fd`` becomes readable at the instant, and stays readable until it is read or the timer is set
    again.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_long * 4)()  # interval s, ns; first expiry s, ns
        self._settime = self._libc.timerfd_settime

    def set(self, at_ns: int) -> None:
        """Sets the instant, in place of an earlier one. An instant that has passed makes ``fd``
        readable at once; 0 never does.
        """
        self._spec[2], self._spec[3] = divmod(at_ns, 1_000_000_000)
        self._settime(self.fd, _ABSOLUTE, self._spec, None)

    def close(self) -> None:
        os.close(self.fd)


class LoopTimer:
    """Makes an event loop call ``callback`` once at each instant for which it is armed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer = Timer()
        loop.add_reader(self._timer.fd, self._readable)

    def arm(self, at_ns: int) -> None:
        """Calls ``callback`` at an instant of ``time.monotonic_ns``, or at once when that has
        passed. An instant that was set before is forgotten.
        """
        self._timer.set(max(1, at_ns))

    def close(self) -> None:
        """Ends the timer; ``callback`` is never called again."""
        self._loop.remove_reader(self._timer.fd)
        self._timer.close()

    def _readable(self) -> None:
        try:
            os.read(self._timer.fd, 8)
        except BlockingIOError:  # armed again between the wake-up and this call
            return
        self._callback()

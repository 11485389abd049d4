"""Waiting for sockets, an instant and other threads, all in one place.

``epoll`` alone rounds its timeout up to a whole millisecond; a timerfd beside it wakes within about 0.1 ms and costs
nothing while it waits (spinning would cost the CPU that we report). Where these do not exist (macOS), ``poll`` with
the rounding down and a short spin does the same for more CPU.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import time

READ, WRITE = select.POLLIN, select.POLLOUT  # the same bits as EPOLLIN and EPOLLOUT
MAX_EVENTS = 32  # one batch; bounds how long a timer, a send or a first token waits behind reads

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_ABSOLUTE = 1


class _Timer:
    """A Linux timerfd on the clock of ``time.monotonic_ns`` (os.timerfd_create needs Python 3.13)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_long * 4)()  # interval s, ns; first expiry s, ns
        self._settime = self._libc.timerfd_settime

    def set(self, at_ns: int) -> None:
        """Wake at that instant. Setting it again takes back an expiry that nobody read."""
        self._spec[2], self._spec[3] = divmod(at_ns, 1_000_000_000)
        self._settime(self.fd, _ABSOLUTE, self._spec, None)


class Poller:
    """Level-triggered readiness. ``wait`` and the registrations belong to one thread, ``wake`` to any.

    Descriptors can be put first (where there is epoll): they stand in a set of their own, inside of the other one, and
    under more events than one batch holds they are not found behind all the rest. ``first_fd``, when it is ready or
    a batch is full, says to ask ``first``.
    """

    def __init__(self) -> None:
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._set_at = 0
        self._put_first: set[int] = set()
        self.first_fd = -1
        self._epoll: select.epoll | None = None
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            self._timer = _Timer()
            self._epoll.register(self._timer.fd, READ)
            self._first_epoll = select.epoll()
            self.first_fd = self._first_epoll.fileno()
            self._epoll.register(self.first_fd, READ)
            self._set: select.epoll | select.poll = self._epoll
        else:
            self._set = select.poll()
        self._set.register(self._wake_out.fileno(), READ)

    def register(self, fd: int, mask: int) -> None:
        self._set.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._set.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        self.put_back(fd)
        self._set.unregister(fd)

    def put_first(self, fd: int) -> None:
        """From now on what is to be read there is found by ``first``. For a registered descriptor."""
        if self._epoll is not None and fd not in self._put_first:
            self._epoll.unregister(fd)
            self._first_epoll.register(fd, READ)
            self._put_first.add(fd)

    def put_back(self, fd: int) -> None:
        """Undoes ``put_first``; nothing else if it was not called."""
        if fd in self._put_first:
            self._put_first.remove(fd)
            self._first_epoll.unregister(fd)
            self._set.register(fd, READ)

    def first(self) -> list[tuple[int, int]]:
        """Those put first that are ready. Does not wait."""
        return self._first_epoll.poll(0, MAX_EVENTS) if self._epoll is not None else []

    def wait(self, until_ns: int) -> list[tuple[int, int]]:
        """Descriptors that are ready, (fd, mask) each, or some that are ours and to be passed over.

        Returns at ``until_ns`` (``time.monotonic_ns``) at the latest; at once when that is 0.
        """
        if self._epoll is None:
            return self._wait_without_timer(until_ns)
        if until_ns == 0:
            return self._epoll.poll(0, MAX_EVENTS)
        if until_ns != self._set_at:
            self._timer.set(until_ns)
            self._set_at = until_ns
        return self._epoll.poll(None, MAX_EVENTS)

    def _wait_without_timer(self, until_ns: int) -> list[tuple[int, int]]:
        while True:
            left_ns = until_ns - time.monotonic_ns()
            ready = self._set.poll(max(0, left_ns // 1_000_000))
            if ready or (left_ns <= 1_000_000 and time.monotonic_ns() >= until_ns):
                return ready

    def wake(self) -> None:
        """Ends a ``wait`` now. From any thread."""
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            return  # full: it wakes anyway; closed: nobody waits

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._first_epoll.close()
            os.close(self._timer.fd)
        self._wake_in.close()
        self._wake_out.close()

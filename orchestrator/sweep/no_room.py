"""What a point does while a client's disk for temporary files is full, and that is told: it waits,
unless clients may run on another host; then that client is lost.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.base.errors import NoRoom
from orchestrator.cluster.base import ClientLost
from orchestrator.load.point import Progress
from orchestrator.results.events import Event, Listener
from orchestrator.results.patience import LONGEST_PAUSE_S
from orchestrator.results.spool import ROOM

LOAD_S = 60.0  # after a point's last request, where ROOM sets no limit or there are other hosts


@contextmanager
def waiting() -> Iterator[None]:
    """After the block this thread waits no more."""
    try:
        yield
    finally:
        ROOM.ended(passed=not ROOM.given_up)


@dataclass(slots=True)
class Waited:
    """How the rows of one point's clients wait for room.

    ``elsewhere``: whether clients may run on a host that has room. ``in_vain``: they may, or ROOM
    sets no limit, and LOAD_S have passed since the last request. ``tell``: hears of the wait then.
    """

    tell: Listener
    elsewhere: Callable[[], bool] = lambda: False
    in_vain: bool = False
    _seconds: float = 0.0
    _before_s: float = 0.0  # until there was room for the last time
    _loaded_s: float = 0.0  # when there was load, or room, for the last time
    _told: bool = False

    def look(self, progress: Progress, elapsed_s: float, sent: bool) -> float:
        """For how long they have waited in all, each time at most as long as they may.

        ``elapsed_s``: since the point began. ``sent``: no more requests will be due.
        """
        limit_s = ROOM.limit_s
        if progress.no_room:
            limit_s = 0.0 if self.elsewhere() else limit_s
            waits_s = _refused(says(progress), limit_s) if limit_s else self._kept(says(progress))
            self._seconds = self._before_s + min(waits_s, limit_s)
        else:
            ROOM.ended(passed=True)
            self._before_s, self._told = self._seconds, False
        if progress.in_flight or not sent or not progress.no_room:
            self._loaded_s = elapsed_s
        self.in_vain = not limit_s and elapsed_s - self._loaded_s >= LOAD_S
        return self._seconds

    def _kept(self, text: str) -> float:
        """Nobody else waits for it: ROOM would keep every launch from starting."""
        ROOM.ended(passed=False)
        if not self._told:
            self._told = True
            self.tell(
                Event("storage", f"{text}; they are kept until {LOAD_S:g} s after the last request")
            )
        return 0.0


def says(progress: Progress) -> str:
    """Where rows wait, in words; empty if none do."""
    return (
        f"there is no room for rows in {', '.join(sorted(set(progress.no_room)))}"
        if progress.no_room
        else ""
    )


@waiting()
def prepared(
    prepare: Callable[[], int | None],
    stopped: Callable[[], bool],
    elsewhere: Callable[[], bool] = lambda: False,
) -> int | None:
    """What ``prepare`` returns once every client has room; None when the user stopped the sweep
    meanwhile.

    Raises NoRoom when that took too long, ClientLost when clients may run elsewhere (see
    ``Waited``).
    """
    while True:
        try:
            return prepare()
        except NoRoom as error:
            if elsewhere():
                raise ClientLost(error.clients, f"there is no room for rows in {error}") from error
            if _refused(f"there is no room for rows in {error}", ROOM.limit_s) >= ROOM.limit_s:
                raise
            if stopped() or (ROOM.wait and ROOM.wait(LONGEST_PAUSE_S)):
                return None


def _refused(text: str, limit_s: float) -> float:
    """This thread waits for room, at most ``limit_s``; for how long it has. Told when it begins, if
    that is a limit.
    """
    caller = threading.get_ident()
    kept = f"; rows are kept and nothing new starts, for at most {limit_s:g} s"
    seconds = ROOM.refused(caller, "" if caller in ROOM.refusing or not limit_s else text + kept)
    if limit_s and seconds >= limit_s:
        ROOM.given_up = f"there was no room for {seconds:.0f} s: {text}"
    return seconds

"""What a point does while a client's disk for temporary files is full: it waits, and that is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.errors import NoRoom
from orchestrator.load.point import Progress
from orchestrator.results.patience import LONGEST_PAUSE_S
from orchestrator.results.spool import ROOM


@contextmanager
def waiting() -> Iterator[None]:
    """After the block this thread waits no more."""
    try:
        yield
    finally:
        ROOM.ended(passed=not ROOM.given_up)


def waited_s(progress: Progress) -> float:
    """For how long the rows of this thread's clients have waited for room, at most as long as they may."""
    if not progress.no_room:
        ROOM.ended(passed=True)
        return 0.0
    return min(_refused(says(progress)), ROOM.limit_s)


def says(progress: Progress) -> str:
    """Where rows wait, in words; empty if none do."""
    return f"there is no room for rows in {', '.join(sorted(set(progress.no_room)))}" if progress.no_room else ""


@waiting()
def prepared(prepare: Callable[[], int | None], stopped: Callable[[], bool]) -> int | None:
    """What ``prepare`` returns once every client has room; None when the user stopped the sweep meanwhile.

    Raises NoRoom when that took too long.
    """
    while True:
        try:
            return prepare()
        except NoRoom as error:
            if _refused(f"there is no room for rows in {error}") >= ROOM.limit_s:
                raise
            if stopped() or (ROOM.wait and ROOM.wait(LONGEST_PAUSE_S)):
                return None


def _refused(text: str) -> float:
    """This thread waits for room; for how long. Told when it begins."""
    caller = threading.get_ident()
    kept = f"; rows are kept and nothing new starts, for at most {ROOM.limit_s:g} s"
    seconds = ROOM.refused(caller, "" if caller in ROOM.refusing or not ROOM.limit_s else text + kept)
    if ROOM.limit_s and seconds >= ROOM.limit_s:
        ROOM.given_up = f"there was no room for {seconds:.0f} s: {text}"
    return seconds

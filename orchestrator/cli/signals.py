"""Ctrl-C and SIGTERM: the first asks to stop and keep what was measured, the second ends this process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit status
SHOW_CURSOR = b"\x1b[?25h\n"  # a live display hides it


@contextmanager
def stops(stop: threading.Event) -> Iterator[None]:
    """Within it the first signal sets ``stop``; the next one ends the process with status 130.

    What this process started ends with it: engines by their guards, clients by their pipe.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)
        asked = True
        threading.Thread(target=stop.set).start()  # the thread that is interrupted here may hold its lock

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

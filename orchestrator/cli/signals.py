"""Ctrl-C and SIGTERM: the first asks to stop and keep what was measured, the second ends this
process at once.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

INTERRUPTED = 130  # exit status
SHOW_CURSOR = b"\x1b[?25h\n"  # a live display hides it
# signals that come so soon are one: `timeout` sends it twice, and so do a terminal and a wrapper
TOGETHER_S = 0.2
STOPPING = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def stops(stop: threading.Event) -> Iterator[None]:
    """Within it the first signal sets ``stop``; the next one ends the process with status 130.

    What this process started ends with it: engines by their guards, clients by their pipe. A thread
    acts on the signals, because a handler would wait until the main thread is back from the call it
    is in, and a write to a store that does not answer takes minutes.
    """
    with ExitStack() as undo:
        reading_end, writing_end = os.pipe()
        undo.callback(os.close, reading_end)
        os.set_blocking(writing_end, False)
        watcher = threading.Thread(
            target=_act, args=(reading_end, stop), name="signals", daemon=True
        )
        watcher.start()
        undo.callback(watcher.join)
        undo.callback(os.close, writing_end)  # which ends the thread
        earlier_fd = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        undo.callback(signal.set_wakeup_fd, earlier_fd)
        for number in STOPPING:  # only a signal with a handler is written to the pipe
            earlier_handler = signal.signal(number, _ignore)
            undo.callback(signal.signal, number, earlier_handler)
        yield


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler: the thread that reads the pipe acts."""


def _act(reading_end: int, stop: threading.Event) -> None:
    """Reads the number of each signal as it comes, until the pipe is closed."""
    first_s: float | None = None  # when the first signal came
    while True:
        number = os.read(reading_end, 1)
        if not number:
            return
        if number[0] not in STOPPING:
            continue
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s
            stop.set()
        elif now_s - first_s >= TOGETHER_S:
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)

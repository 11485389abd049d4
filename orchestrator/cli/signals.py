"""Ctrl-C and SIGTERM: the first signal asks to stop and keep what was measured.

The second one ends this process at once.
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
SHOW_CURSOR = b"\x1b[?25h\n"  # a live display hides the cursor
# Signals that come within this time count as one: `timeout` sends its signal twice, and so do a
# terminal and a wrapper together.
TOGETHER_S = 0.2
STOPPING = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def stops(stop: threading.Event) -> Iterator[None]:
    """In this context, the first signal sets ``stop``; the next ends the process with status 130.

    What this process started ends with it: guards end the engines, and clients end when their pipe
    closes. A thread acts on the signals, because a handler would have to wait until the main thread
    returns from the call it is in, and a write to a store that does not answer takes minutes.
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
        undo.callback(os.close, writing_end)  # this ends the thread
        earlier_fd = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        undo.callback(signal.set_wakeup_fd, earlier_fd)
        for number in STOPPING:  # only a signal with a handler is written to the pipe
            earlier_handler = signal.signal(number, _ignore)
            undo.callback(signal.signal, number, earlier_handler)
        yield


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing: the thread that reads the pipe acts."""


def _act(reading_end: int, stop: threading.Event) -> None:
    """Acts on each signal, whose number comes through the pipe, until the pipe is closed."""
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

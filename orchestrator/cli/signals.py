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
        told, tell = os.pipe()
        undo.callback(os.close, told)
        os.set_blocking(tell, False)
        watcher = threading.Thread(target=_act, args=(told, stop), name="signals", daemon=True)
        watcher.start()
        undo.callback(watcher.join)
        undo.callback(os.close, tell)  # which ends the thread
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(tell, warn_on_full_buffer=False))
        for number in STOPPING:  # only a signal with a handler is written to the pipe
            undo.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        yield


def _act(told: int, stop: threading.Event) -> None:
    """Reads the number of each signal as it comes, until the pipe is closed."""
    asked_s: float | None = None
    while number := os.read(told, 1):
        if number[0] not in STOPPING:
            continue
        now_s = time.monotonic()
        if asked_s is not None and now_s - asked_s < TOGETHER_S:
            continue
        if asked_s is not None:
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)
        asked_s = now_s
        stop.set()

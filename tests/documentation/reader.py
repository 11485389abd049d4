"""Reads what ``watch`` serves, as somebody does who presses Ctrl-C afterwards."""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from collections.abc import Callable

from tests.harness import wait_for
from tests.in_this_process import Completed, run_here

READ_LIMIT_S = 30.0


def is_served(url: str) -> bool:
    """Whether there is a page at this address."""
    try:
        with urllib.request.urlopen(url) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def run_until_read(is_read: Callable[[], bool], *argv: str) -> Completed:
    """Runs a command of the program in this process, and interrupts it once ``is_read``.

    A command that ends by itself is returned at once: an interrupt would then end the tests. Fails
    if nothing was read within READ_LIMIT_S.
    """
    is_over = threading.Event()
    gave_up = threading.Event()

    def read_and_interrupt() -> None:
        try:
            wait_for(lambda: is_over.is_set() or is_read(), READ_LIMIT_S, "it is read")
        except AssertionError:  # told below
            gave_up.set()
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    reader = threading.Thread(target=read_and_interrupt)
    reader.start()
    try:
        done = run_here(*argv)
    finally:
        is_over.set()
        reader.join()
    assert not gave_up.is_set(), f"nothing was read: {argv}\n{done.stdout}{done.stderr}"
    return done

"""Runs the program in the process of the tests. Starting a process of its own for it costs seconds
of CPU time, almost all of them for imports.

Not for tests of signals, terminals, closed streams, CPU time or what is imported when.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import pyarrow as pa
import pytest

from orchestrator.cli.main import main
from orchestrator.load import validity
from orchestrator.sweep import driver_heap


@dataclass
class Completed:
    """The status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*argv: str, **env: str) -> Completed:
    """Runs a command of the program to its end. ``env``: variables that it has beside those of the
    tests.
    """
    stdout = stream()
    stderr = stream()
    with (
        unchanged_process(),
        patch.dict(os.environ, env),
        patch.object(sys, "argv", ["orchestrator", *argv]),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Completed(int(ended.value.code or 0), text_of(stdout), text_of(stderr))


def stream() -> io.TextIOWrapper:
    """A stream that takes text, and bytes as those of a process do."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def text_of(stream: io.TextIOWrapper) -> str:
    """What was written to a stream."""
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Restores what commands change for their whole process: handlers of signals, limits of the
    garbage collector, hooks of imports and Arrow's allocator.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thresholds = gc.get_threshold()
    finders = list(sys.meta_path)
    memory_pool = pa.default_memory_pool()
    gc.freeze()  # else each client would look through all that the tests have imported
    try:
        with main_module_of_its_own(), patch.object(driver_heap, "share_one_heap"):
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        sys.meta_path[:] = finders
        pa.set_memory_pool(memory_pool)


@contextmanager
def judged_as_if_idle() -> Iterator[None]:
    """Leaves out of every verdict what other programs on this machine, such as other tests, do to a
    client, to what it reads from its connections and to an engine.
    """
    with (
        patch.object(validity, "_client_bound", return_value=[]),
        patch.object(validity, "_disturbed", return_value=[]),
        patch.object(validity, "_buffered", return_value=[]),
        patch.object(validity, "NETWORK_BOUND", []),
    ):
        yield


@contextmanager
def main_module_of_its_own() -> Iterator[None]:
    """Keeps clients in processes of their own from importing pytest, as the main module of the
    process that starts them.
    """
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module

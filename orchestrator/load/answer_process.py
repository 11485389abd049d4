"""Checks constrained answers in a process of its own.

A regular expression of the user, or one in a schema, may need exponential time for an answer, and
Python runs no other thread of a process meanwhile. In a process of its own a timer ends such a
check: the standard library's matcher looks for signals, which only a main thread gets.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from orchestrator.load.answer_check import AnswerCheck, ConstrainedAnswer
from orchestrator.spec.constraint import Constraint

LIMIT_S = 1.0  # of CPU time for one answer; any other check takes milliseconds
MOST_TIMEOUTS = 10  # of all answers; afterwards nothing more is checked, so that a point ends
MOST_PROCESSES = 2  # that are tried for the same answers


class AnswerProcess:
    """The process that checks answers. It starts with the first answers and runs until ``close``."""

    def __init__(self, limit_s: float = LIMIT_S, python: str = sys.executable) -> None:
        self._limit_s = limit_s
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._sent_constraints = 0

    def check(
        self, constraints: Sequence[Constraint], answers: Sequence[ConstrainedAnswer]
    ) -> list[bool | None]:
        """For each answer, what ``AnswerCheck.met`` says of it. It is also None if its check took too
        long. All answers are None if the process cannot be started, or if it was ended twice.

        ``constraints``: those of the calls before, and perhaps more.
        """
        for _ in range(MOST_PROCESSES):
            with suppress(OSError, EOFError, pickle.UnpicklingError):
                return self._ask(constraints, answers)
            self.close()  # it was ended, as by a kernel that has run out of memory
        return [None] * len(answers)

    def _ask(
        self, constraints: Sequence[Constraint], answers: Sequence[ConstrainedAnswer]
    ) -> list[bool | None]:
        """The process's verdicts. Starts the process if it does not run. Raises OSError, EOFError or
        UnpicklingError if it ends meanwhile.
        """
        if self._process is None:
            self._process = self._start()
            self._sent_constraints = 0
        new_constraints = list(constraints[self._sent_constraints :])
        pickle.dump((new_constraints, list(answers)), _stream(self._process.stdin))
        self._sent_constraints = len(constraints)
        _stream(self._process.stdin).flush()
        verdicts: list[bool | None] = pickle.load(_stream(self._process.stdout))  # noqa: S301  our own process wrote it
        return verdicts

    def _start(self) -> subprocess.Popen[bytes]:
        # it imports from where this process does, because the program may not be installed
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [self._python, "-P", "-m", __name__, str(self._limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def close(self) -> None:
        """Ends the process. It is idle, or ends by itself when nobody takes its answer."""
        if self._process is None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                _stream(stream).close()
        self._process.wait()
        self._process = None


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both are pipes
    return stream


# -- in the process


class Checker:
    """Checks answers within a limit of CPU time each. Runs in a main thread alone."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeouts = 0
        self._checks: list[AnswerCheck] = []

    def verdicts(
        self, new_constraints: Sequence[Constraint], answers: Sequence[ConstrainedAnswer]
    ) -> list[bool | None]:
        """As ``AnswerProcess.check`` says. ``new_constraints``: their numbers go on from those of
        the calls before.
        """
        self._checks += map(AnswerCheck, new_constraints)
        return [self._verdict(answer) for answer in answers]

    def _verdict(self, answer: ConstrainedAnswer) -> bool | None:
        if self._timeouts >= MOST_TIMEOUTS:
            return None
        check = self._checks[answer.constraint]
        try:
            with _cpu_limit(self._limit_s):
                return check.met(answer.text, answer.finish_reason)
        except TimeoutError:
            self._timeouts += 1
            return None


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread after so much CPU time."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _time_is_up(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    """Reads constraints and answers from stdin and writes verdicts to stdout until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends with its client, whose rows it completes
    signal.signal(signal.SIGVTALRM, _time_is_up)
    checker = Checker(limit_s=float(sys.argv[1]))
    while True:
        try:
            new_constraints, answers = pickle.load(sys.stdin.buffer)  # noqa: S301  its client wrote it
        except EOFError:
            return
        pickle.dump(checker.verdicts(new_constraints, answers), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

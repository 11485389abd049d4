"""``python -m orchestrator.emulator``: the process that ``engines/emulator.py`` starts."""

import signal
import sys

from orchestrator.base.errors import InputError
from orchestrator.emulator.flags import options_of, parse
from orchestrator.emulator.server import log, main


def run(argv: list[str]) -> int:
    """Serve as ``argv`` says; the exit status. Errors are logged as vLLM logs them, because the
    reasons of a failed start are read from an engine's log.
    """
    # Processes started by Ray inherit a blocked SIGINT.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        options = options_of(parse(argv))
    except InputError as error:
        log(f"Value error, {error}", "ERROR")
        return 1
    return main(options)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

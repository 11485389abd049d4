"""Client processes of this machine."""

from __future__ import annotations

import os
import signal

from orchestrator.cluster.local import ClientProcess


def test_a_client_process_ignores_signals_from_its_very_beginning() -> None:
    """A terminal sends Ctrl-C to it too, and it may still be importing: it would end, or print where it was."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    client = ClientProcess()
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        assert client.process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin("wall_ns").result(30) > 0
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin("wall_ns").result(30) > 0
    finally:
        client.kill()

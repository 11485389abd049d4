"""Samples the host of ``orchestrator load`` while its clients load a server.

No agent of this program runs beside such a server, so this host is all that can be read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.telemetry.clock_offset import SAME_CLOCK

if TYPE_CHECKING:
    from orchestrator.telemetry.host import HostSample
    from orchestrator.telemetry.node_sampler import NodeSampler, NodeTelemetry


class OwnHost:
    """Samples this host, whose clock is the driver's."""

    def __init__(self) -> None:
        self._sampler: NodeSampler | None = None

    def begin(self, clients: Sequence[int]) -> None:
        """Samples from now on. ``clients``: pids of the clients. All processes but these and this
        one are foreign.
        """
        from orchestrator.telemetry.node_sampler import NodeSampler
        from orchestrator.telemetry.processes import SweepProcesses

        self.end()  # of a point that was cut short
        pids = [*clients, os.getpid()]
        self._sampler = NodeSampler(
            groups=(), find_processes=lambda: SweepProcesses((), pids), watches_host=True
        )
        self._sampler.start()

    def end(self) -> NodeTelemetry:
        """Ends ``begin`` and returns what was sampled since."""
        from orchestrator.telemetry.node_sampler import NodeTelemetry

        sampler = self._sampler
        self._sampler = None
        if sampler is None:
            return NodeTelemetry()
        samples = [_without_engine(sample) for sample in sampler.stop().host_samples]
        return NodeTelemetry(samples, host=socket.gethostname(), clock=SAME_CLOCK)


def _without_engine(sample: HostSample) -> HostSample:
    """The same sample without figures of an engine: none was started here."""
    values = {
        name: value for name, value in sample.values.items() if not name.startswith("engine_")
    }
    return replace(sample, values=values)

"""The host of ``load`` while its clients load a server."""

from __future__ import annotations

import socket

from orchestrator.sweep.own_host import OwnHost
from orchestrator.telemetry.clock_offset import SAME_CLOCK
from orchestrator.telemetry.node_sampler import NodeTelemetry


def test_it_is_read_without_an_engine_on_the_drivers_clock() -> None:
    own_host = OwnHost()
    own_host.begin(())
    sampled = own_host.end()
    assert (sampled.host, sampled.clock) == (socket.gethostname(), SAME_CLOCK)
    last = sampled.host_samples[-1].values
    assert last["free_bytes"] > 0
    assert "engine_cpu_s" not in last
    assert own_host.end() == NodeTelemetry()

"""Sweeps that share hosts take turns: nobody waits for two launches of one other sweep, whatever
dies, and no two launches wait for each other.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.leases import Lease, Owner, Wish
from orchestrator.sweep.host_leases import lease_all, stand_in_line

HOSTS = ("a", "b", "c")


class Agent:
    """An agent on a host, which has a folder of its own."""

    def __init__(self, root: Path, host: str, launch: str) -> None:
        folder = root / host
        folder.mkdir(exist_ok=True)
        self.allocation = SimpleNamespace(address=host)
        self.leased = Lease(launch, folder)
        self.lease = self.leased.take
        self.queue = self.leased.queue
        self.put_back = self.leased.put_back

    def die(self) -> None:
        """The kernel closes its files and removes none."""
        for file in (self.leased._lease_file, self.leased._ticket_file):
            if file._file is not None:
                os.close(file._file)
                file._file = None


@dataclass
class SimulatedSweep:
    """Launch after launch on the same hosts, with nothing between them."""

    root: Path
    name: str
    hosts: frozenset[str]
    launches: int = 0
    state: str = "idle"
    agents: list[Any] = field(default_factory=list)
    # launches of each other sweep that began on its hosts while it waited
    overtaken_by: Counter[str] = field(default_factory=Counter)

    def step(self) -> bool:
        """Do what comes next; whether a launch began."""
        if self.state == "running":
            for agent in self.agents:
                agent.leased.release()
            self.state = "idle"
            return False
        if self.state == "idle":
            launch = f"{self.name}{self.launches}"
            self.launches += 1
            self.agents = [Agent(self.root, host, launch) for host in sorted(self.hosts)]
        wishes = {id(agent): Wish(Owner(self.name), exclusive=True) for agent in self.agents}
        began = lease_all(self.agents, wishes).held is None
        if began:
            self.state = "running"
            self.overtaken_by.clear()
        elif self.state == "idle":
            stand_in_line(self.agents, wishes)
            self.state = "waiting"
        return began

    def die(self) -> None:
        for agent in self.agents:
            agent.die()
        self.state = "idle"
        self.overtaken_by.clear()


def count_overtaking(winner: SimulatedSweep, sweeps: list[SimulatedSweep]) -> None:
    for sweep in sweeps:
        if sweep.state == "waiting" and sweep.hosts & winner.hosts:
            sweep.overtaken_by[winner.name] += 1
            assert sweep.overtaken_by[winner.name] <= 1, f"{sweep.name} waits for {winner.name}"


@given(
    wanted=st.lists(st.sets(st.sampled_from(HOSTS), min_size=1), min_size=2, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_nobody_waits_for_more_than_one_launch_of_each_other_sweep(
    wanted: list[set[str]], steps: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        sweeps = [
            SimulatedSweep(Path(root), f"s{index}.", frozenset(hosts))
            for index, hosts in enumerate(wanted)
        ]
        for index, action in steps:
            sweep = sweeps[index % len(sweeps)]
            if action == 0:
                sweep.die()
            elif sweep.step():
                count_overtaking(sweep, sweeps)
        waiting = {sweep.name for sweep in sweeps if sweep.state == "waiting"}
        for _ in range(2 * len(sweeps) + 1):
            for sweep in sweeps:
                if sweep.step():
                    waiting.discard(sweep.name)
                    count_overtaking(sweep, sweeps)
        assert not waiting, "two wait for each other"
        for sweep in sweeps:
            sweep.die()

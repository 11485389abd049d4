"""The running replicas of one launch: the targets that clients load, and the agents that watch
their engines.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.base.errors import Failure, FailureKind, PlacementError
from orchestrator.cluster.base import ClientProcess, HostLost
from orchestrator.cluster.protocol import Placement
from orchestrator.engines.networks import NOT_SAID
from orchestrator.load.point import HostLoad, Target
from orchestrator.results.outcomes import CacheState
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import ROLES, ROUTER
from orchestrator.telemetry.clock_offset import ClockOffset, clock_offset

if TYPE_CHECKING:
    from orchestrator.cluster.protocol import Agent
    from orchestrator.sweep.endpoint_metrics import EndpointMetrics
    from orchestrator.sweep.own_host import OwnHost
    from orchestrator.telemetry.engine_metrics import Sample
    from orchestrator.telemetry.node_sampler import NodeTelemetry


class Replicas:
    """The targets of the load, and the agents behind them. An endpoint has no agents, so nothing is
    known about it but its answers, and its /metrics if it serves them.

    ``roles``: the role of each placement; a router is watched, but has no cache and no metrics.
    ``cache``: state of the prefix caches as long as nothing empties them. ``vocab_size``: the
    model's, if the servers report it. ``own_host``: is sampled beside an endpoint that this host
    loads. ``endpoint_metrics``: those of an endpoint.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        targets: Sequence[Target],
        cache: CacheState = "unknown",
        vocab_size: int | None = None,
        roles: Sequence[str] = (),
        own_host: OwnHost | None = None,
        endpoint_metrics: EndpointMetrics | None = None,
    ) -> None:
        self.targets = tuple(targets)
        self.vocab_size = vocab_size
        self._placements = placements
        self._cache = cache
        self._own_host = own_host
        self._endpoint_metrics = endpoint_metrics
        self._roles = tuple(roles) or ("",) * len(placements)
        self._hosts: dict[str, ReplicaHost] = {}  # by address, since ``begin_metrics``
        self._engines = []
        for placement, role in zip(placements, self._roles, strict=True):
            if role != ROUTER:
                self._engines.append(placement)

    @property
    def launched(self) -> bool:
        """Whether this program started them, and so can tell whether they live."""
        return bool(self._placements)

    def failure(self) -> Failure | None:
        """Why a rank ended or its agent is lost; None while all live."""
        for placement, role in zip(self._placements, self._roles, strict=True):
            for agent in placement.agents:
                try:
                    failure = agent.failure()
                except HostLost as error:
                    failure = agent_lost("was lost", error, [agent])
                if failure is not None:
                    return of_role(role, failure)
        return None

    def fresh_cache(self, dialect: Dialect) -> CacheState:
        """Keep an attempt from finding prompts of earlier attempts in the prefix caches. Returns
        how that was done; ``unknown`` if some engine's cache could not be emptied.
        """
        if self._cache != "unknown":
            return self._cache
        # each attempt has a salt of its own
        if dialect.cache_salt and "cache_salt" in dialect.extra_body:
            return "salted"
        emptied = []
        for placement in self._engines:
            with suppress(HostLost):
                emptied.append(placement.agents[0].empty_cache())
        all_answered = bool(emptied) and len(emptied) == len(self._engines)
        return "emptied" if all_answered and all(emptied) else "unknown"

    def have_work(self) -> bool:
        """Whether any replica still works on requests, as far as their /metrics tell."""
        if not self._placements:
            return any(map(_has_work, self.targets))
        with suppress(HostLost):
            return any(agent.has_work() for agent in agents_of(self._placements))
        return False

    def kv_transport(self) -> str | None:
        """What KV caches travel over from prefill to decode replicas; None without such roles. The
        replicas' logs say so once a cache has travelled.
        """
        transports: set[str] = set()  # each one word or several
        for placement, role in zip(self._placements, self._roles, strict=True):
            if role in ROLES:
                with suppress(HostLost):
                    transports.add(placement.agents[0].kv_transport())
        if not transports:
            return None
        words = " ".join(sorted(transports - {NOT_SAID})).split()
        return " ".join(dict.fromkeys(words)) or NOT_SAID

    def _agent_per_host(self) -> list[Agent]:
        """One agent of each host."""
        by_address = {agent.allocation.address: agent for agent in agents_of(self._placements)}
        return list(by_address.values())

    def end_hosts(self, clients: Sequence[ClientProcess]) -> list[HostLoad]:
        """What other programs did on the engines' hosts since ``begin_metrics``; hosts that do not
        answer are missing.

        ``clients``: those of this sweep.
        """
        loads: list[HostLoad] = []
        for agent in self._agent_per_host():
            with suppress(HostLost, PlacementError):
                loads.append(agent.end_host(_ours(agent, clients)))
        return loads

    def begin_metrics(
        self,
        clients: Sequence[ClientProcess] = (),
        own_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Begin to read every replica's /metrics, to sample GPUs and hosts, and to note who else
        uses the hosts. ``clients``: as in ``end_hosts``. ``own_clock``: the driver's, in Unix
        nanoseconds.
        """
        if self._own_host is not None:
            self._own_host.begin([client.pid for client in clients])
        host_agents = self._agent_per_host()
        self._hosts = {}
        for address, name in host_names(host_agents).items():
            self._hosts[address] = ReplicaHost(name)
        for agent in host_agents:
            with suppress(HostLost, PlacementError):
                agent.begin_host()
                offset = clock_offset(agent.wall_ns, own_clock=own_clock)
                self._hosts[agent.allocation.address] = ReplicaHost(
                    self._hosts[agent.allocation.address].name, offset
                )
        for agent in agents_of(self._placements):
            watches_host = any(agent is host_agent for host_agent in host_agents)
            if watches_host or agent.allocation.devices:
                with suppress(HostLost):
                    agent.begin_telemetry(_ours(agent, clients), watches_host)
        for placement in self._engines:
            with suppress(HostLost):
                first, *others = placement.agents
                urls = [agent.metrics_url() for agent in others]
                first.begin_metrics([url for url in urls if url is not None])
        if self._endpoint_metrics is not None:
            self._endpoint_metrics.begin()

    def end_metrics(self) -> dict[int, list[Sample]]:
        """The samples of /metrics since ``begin_metrics``, by replica; a lost replica has none, nor
        has an endpoint without metrics.
        """
        samples: dict[int, list[Sample]] = {}
        if self._endpoint_metrics is not None:
            samples[0] = self._endpoint_metrics.end()
        for index, placement in enumerate(self._engines):
            role = self._roles[index] or None
            agent = placement.agents[0]
            samples[index] = []
            with suppress(HostLost):
                host = self._hosts.get(agent.allocation.address, NO_HOST)
                for sample in agent.end_metrics():
                    samples[index].append(
                        replace(sample, role=role, host=host.name or None, clock=host.clock)
                    )
        return samples

    def end_telemetry(self) -> list[NodeTelemetry]:
        """What agents sampled of GPUs and hosts since ``begin_metrics``, and what was sampled of
        the own host; lost agents are missing.
        """
        sampled: list[NodeTelemetry] = []
        for agent in agents_of(self._placements):
            with suppress(HostLost):
                host = self._hosts.get(agent.allocation.address, NO_HOST)
                telemetry = agent.end_telemetry()
                sampled.append(replace(telemetry, host=host.name, clock=host.clock))
        if self._own_host is not None:
            sampled.append(self._own_host.end())
        return sampled


@dataclass(frozen=True, slots=True)
class ReplicaHost:
    """A host of the replicas. ``clock``: how far its wall clock is off; None if it did not answer."""

    name: str
    clock: ClockOffset | None = None


NO_HOST = ReplicaHost("")


def host_names(agents: Sequence[Agent]) -> dict[str, str]:
    """Address -> name of these agents' hosts. Hosts of one name have their address in it."""
    hostnames = {agent.allocation.address: agent.allocation.hostname for agent in agents}
    counts = Counter(hostnames.values())
    names: dict[str, str] = {}
    for address, hostname in hostnames.items():
        names[address] = hostname if counts[hostname] == 1 else f"{hostname} ({address})"
    return names


def _ours(agent: Agent, clients: Sequence[ClientProcess]) -> set[int]:
    """Pids of this sweep's driver and clients on the agent's host."""
    hostname = agent.allocation.hostname
    pids = {client.pid for client in clients if client.host == hostname}
    if socket.gethostname() == hostname:
        pids.add(os.getpid())
    return pids


def _has_work(target: Target) -> bool:
    """Whether the /metrics of an endpoint, whichever engine it is, tell of running or waiting
    requests.
    """
    # imported here, because measuring an endpoint needs these modules for nothing else
    from orchestrator.engines.registry import ENGINES
    from orchestrator.telemetry.engine_metrics import read

    names: dict[str, str] = {}
    for engine in ENGINES:
        for figure in ("running", "waiting"):
            metric = ENGINES[engine].metrics.get(figure)
            if metric is not None:
                names[f"{engine} {figure}"] = metric
    url = target.url.rstrip("/") + "/metrics"
    key = target.api_key or ""
    sample = read([url], names, key, more_headers=target.headers, verify_tls=target.verify_tls)
    return sample is not None and sum(sample.values.values()) > 0


def agents_of(placements: Sequence[Placement]) -> list[Agent]:
    """The agents of all replicas, rank 0 of each first."""
    agents: list[Agent] = []
    for placement in placements:
        agents += placement.agents
    return agents


def tell_first_of_downloads(placement: Placement) -> None:
    """Tell rank 0, which waits for the other ranks, how much of the model their nodes have."""
    first, *others = placement.agents
    with suppress(HostLost):  # a lost host is noticed where its agent is polled
        if others:
            first.hear_downloaded(sum(agent.downloaded() for agent in others))


def of_role(role: str, failure: Failure) -> Failure:
    """The failure with the role of the failed part in its sentence; the same one without a role."""
    return replace(failure, sentence=f"{role}: {failure.sentence}") if role else failure


def agent_lost(what: str, error: HostLost, agents: Sequence[Agent]) -> Failure:
    """The failure of lost agents. Its sentence says where their logs are. ``what``: what happened
    to the agent, for example ``was lost``.
    """
    allocations = [agent.allocation for agent in agents]
    logs = ", ".join(f"{place.hostname}:{place.log_path}" for place in allocations)
    text = (
        f"The node agent or its node {what}: {error}. The engine's log stayed on its node: {logs}."
    )
    return Failure(FailureKind.AGENT_LOST, text)

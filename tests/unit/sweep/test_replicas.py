"""The replicas of one launch: why they failed, the state of their caches, and what they report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.cluster.base import ClientProcess
from orchestrator.engines.networks import NOT_SAID
from orchestrator.load.point import Target
from orchestrator.spec.dialect import Dialect
from orchestrator.sweep.replicas import Replicas, host_names, of_role, tell_first_of_downloads
from orchestrator.telemetry.clock_offset import ClockOffset
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.host import HostSample
from orchestrator.telemetry.node_sampler import NodeTelemetry
from tests.unit.sweep.simulation import FakeAgent, Placed, World, node, world_of

TARGET = Target("http://127.0.0.1:1", "m")
PLAIN = Dialect("openai_chat", "/")
DIED = Failure(FailureKind.ENGINE_DEAD, "It died.")


def placed(world: World, *names: str) -> Placed:
    return Placed(world, "L", [FakeAgent(world, name) for name in names])


def replicas(placements: list[Placed], **given: Any) -> Replicas:
    return Replicas(placements, (TARGET,), **given)  # type: ignore[arg-type]


def test_a_dead_rank_is_the_failure_of_its_role() -> None:
    world = world_of()
    prefill, decode = placed(world, "a"), placed(world, "a")
    decode.agents[0].died = DIED
    failure = replicas([prefill, decode], roles=("prefill", "decode")).failure()
    assert failure is not None
    assert failure.sentence == "decode: It died."


def test_a_lost_agent_is_a_failure_that_says_where_its_log_is() -> None:
    world = world_of([node("a"), node("b")])
    both = replicas([placed(world, "a", "b")])
    assert both.failure() is None
    world.lose("b")
    failure = both.failure()
    assert failure is not None
    assert failure.kind is FailureKind.AGENT_LOST
    assert "b:/tmp/engine.log" in failure.sentence


def test_a_failure_without_a_role_keeps_its_sentence() -> None:
    assert of_role("", DIED) is DIED


@pytest.mark.parametrize(("keeps_cache", "state"), [(False, "emptied"), (True, "unknown")])
def test_caches_are_emptied_where_every_engine_does_so(keeps_cache: bool, state: str) -> None:
    world = world_of(keeps_cache=keeps_cache)
    assert replicas([placed(world, "a"), placed(world, "a")]).fresh_cache(PLAIN) == state


def test_a_cache_that_is_off_needs_no_emptying() -> None:
    assert replicas([placed(world_of(), "a")], cache="off").fresh_cache(PLAIN) == "off"


def test_a_new_salt_makes_a_fresh_cache_of_an_endpoint() -> None:
    salted = Dialect("openai_chat", "/", cache_salt=True).salted("y")
    assert Replicas((), ()).fresh_cache(salted) == "salted"


def test_a_salt_of_the_users_own_makes_no_fresh_cache() -> None:
    own_salt = Dialect("openai_chat", "/", extra_body={"cache_salt": "x"})
    assert Replicas((), ()).fresh_cache(own_salt) == "unknown"


def test_transport_of_kv_caches_is_that_of_all_roles() -> None:
    world = world_of(kv_transport="tcp")
    both = replicas([placed(world, "a"), placed(world, "a")], roles=("prefill", "decode"))
    assert both.kv_transport() == "tcp"


def test_transport_that_no_log_names_is_not_said() -> None:
    world = world_of(kv_transport=NOT_SAID)
    assert replicas([placed(world, "a")], roles=("decode",)).kv_transport() == NOT_SAID


def test_replicas_without_roles_transport_no_caches() -> None:
    assert replicas([placed(world_of(), "a")]).kv_transport() is None


def test_samples_carry_the_role_and_a_router_has_none() -> None:
    world = world_of()
    parts = [placed(world, "a"), placed(world, "a")]
    samples = replicas(parts, roles=("decode", "router")).end_metrics()
    assert {index: [sample.role for sample in taken] for index, taken in samples.items()} == {
        0: ["decode"]
    }


def test_the_first_rank_hears_what_the_nodes_of_the_others_have() -> None:
    world = world_of([node("a"), node("b"), node("c")])
    world.clock.sleep(2.0)
    tell_first_of_downloads(placed(world, "a", "b", "c"))  # type: ignore[arg-type]
    # two other nodes, each with 10**9 bytes per second of the clock
    assert world.heard == [("a", 2 * 2 * 10**9)]


# -- telemetry


class WatchedAgent(FakeAgent):
    """Notes what it is asked to watch; its clock is 5 ms ahead of the driver's."""

    def begin_telemetry(self, ours: object, watches_host: bool) -> None:
        self.world.log.append(f"{self.node} watches {'host' if watches_host else 'GPUs'}")

    def wall_ns(self) -> int:
        return self.world.clock.unix_ns() + 5_000_000


def watched(world: World, *nodes: str) -> Replicas:
    """Replicas of two ranks, one on each of these nodes."""
    placements = []
    for node_name in nodes:
        agents: list[FakeAgent] = [WatchedAgent(world, node_name), WatchedAgent(world, node_name)]
        placements.append(Placed(world, "L", agents))
    return replicas(placements)


def test_one_agent_of_each_host_watches_it_and_all_watch_their_gpus() -> None:
    world = world_of([node("a"), node("b")])
    watched(world, "a", "b").begin_metrics(own_clock=world.clock.unix_ns)
    # the host's watcher watches its GPUs, too
    assert world.log == [f"{name} watches {what}" for name in "ab" for what in ("GPUs", "host")]


def test_all_that_is_sampled_names_its_host_and_its_clock() -> None:
    world = world_of([node("a")], telemetry=NodeTelemetry([HostSample(7, {"cpu_share": 0.5})]))
    of_one = watched(world, "a")
    of_one.begin_metrics(own_clock=world.clock.unix_ns)
    (sample,) = of_one.end_metrics()[0]
    assert (sample.host, sample.clock) == ("a", ClockOffset(5_000_000, 0))
    first, _ = of_one.end_telemetry()
    assert (first.host, first.clock) == ("a", ClockOffset(5_000_000, 0))
    assert first.host_samples == [HostSample(7, {"cpu_share": 0.5})]


def test_the_first_rank_reads_the_metrics_of_the_other_ranks_that_have_some() -> None:
    url = "http://c:21000/metrics"
    world = world_of([node("a"), node("b"), node("c"), node("d")], metrics_urls={"c": url})
    both = replicas([placed(world, "a", "b", "c"), placed(world, "d")])
    both.begin_metrics(own_clock=world.clock.unix_ns)
    assert world.metrics_begun == [("a", url), ("d",)]


class BusyAgent(FakeAgent):
    """Says that it has work if it runs on the node ``b``."""

    def has_work(self) -> bool:
        return self.node == "b"


@pytest.mark.parametrize(("names", "works"), [(("a", "b"), True), (("a", "c"), False)])
def test_a_replica_has_work_while_any_of_its_ranks_has(names: tuple[str, ...], works: bool) -> None:
    world = world_of([node("a"), node("b"), node("c")])
    agents: list[FakeAgent] = [BusyAgent(world, name) for name in names]
    assert replicas([Placed(world, "L", agents)]).have_work() is works


def test_a_lost_host_has_no_telemetry_and_the_others_have() -> None:
    world = world_of([node("a"), node("b")])
    both = watched(world, "a", "b")
    both.begin_metrics(own_clock=world.clock.unix_ns)
    world.lose("b")
    assert [telemetry.host for telemetry in both.end_telemetry()] == ["a", "a"]


def test_hosts_of_one_name_are_told_apart_by_their_address() -> None:
    agents = [
        SimpleNamespace(allocation=SimpleNamespace(hostname=name, address=address))
        for name, address in (
            ("n", "10.0.0.1"),
            ("n", "10.0.0.2"),
            ("m", "10.0.0.3"),
            ("m", "10.0.0.3"),
        )
    ]
    assert host_names(agents) == {
        "10.0.0.1": "n (10.0.0.1)",
        "10.0.0.2": "n (10.0.0.2)",
        "10.0.0.3": "m",
    }


class FakeOwnHost:
    """Notes whose processes are its own."""

    def begin(self, clients: list[int]) -> None:
        self.clients = clients

    def end(self) -> NodeTelemetry:
        return NodeTelemetry(host="here")


def test_beside_an_endpoint_the_own_host_is_sampled() -> None:
    own_host = FakeOwnHost()
    endpoint = replicas([], own_host=own_host)
    endpoint.begin_metrics([ClientProcess("here", 7), ClientProcess("here", 8)])
    assert own_host.clients == [7, 8]
    assert [telemetry.host for telemetry in endpoint.end_telemetry()] == ["here"]


def test_an_endpoint_has_the_samples_of_its_own_metrics() -> None:
    sample = Sample(1, {"running": 1.0})
    begun: list[bool] = []
    metrics = SimpleNamespace(begin=lambda: begun.append(True), end=lambda: [sample])
    endpoint = replicas([], endpoint_metrics=metrics)
    endpoint.begin_metrics()
    assert begun == [True]
    assert endpoint.end_metrics() == {0: [sample]}
    assert replicas([]).end_metrics() == {}

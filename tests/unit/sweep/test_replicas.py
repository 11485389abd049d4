"""The replicas of one launch: why they failed, the state of their caches, and what they report."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.engines.networks import NOT_SAID
from orchestrator.load.point import Target
from orchestrator.spec.dialect import Dialect
from orchestrator.sweep.replicas import Replicas, of_role, tell_first_of_downloads
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
    assert world.heard == [("a", 2 * 2 * 10**9)]

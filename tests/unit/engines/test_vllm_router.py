"""vLLM's router takes the arguments of SGLang's, with a flag and a key of its own."""

from __future__ import annotations

from orchestrator.engines.command import Node, Worker
from orchestrator.engines.registry import ROUTERS
from tests.unit.engines.builders import H100, settings_of

ROUTER = ROUTERS["vllm_router"]
WORKERS = (Worker("prefill", "http://a:1", 8001), Worker("decode", "http://b:2", 8002))


def test_roles_have_a_flag_of_its_own_and_no_bootstrap_ports() -> None:
    node = Node(extra_ports=(21002,), workers=WORKERS)
    argv = ROUTER.command(settings_of("vllm_router"), H100, node, "k3y").argv
    expected = "--vllm-pd-disaggregation --prefill http://a:1 --decode http://b:2"
    assert " ".join(argv).endswith(expected)


def test_the_key_of_its_replicas_travels_in_a_variable() -> None:
    node = Node(extra_ports=(21002,), workers=WORKERS)
    command = ROUTER.command(settings_of("vllm_router"), H100, node, "k3y")
    assert command.secrets == {"OPENAI_API_KEY": "k3y"}
    assert "k3y" not in " ".join(command.argv)


def test_it_asks_its_clients_for_no_key() -> None:
    assert not ROUTER.guarded

"""SGLang's router: where it listens and what it routes to, also for vLLM's router."""

from __future__ import annotations

from orchestrator.engines.command import Node, Worker
from orchestrator.engines.sglang_router import arguments

PREFILL = Worker("prefill", "http://a:1", 8001)
DECODE = Worker("decode", "http://b:2", 8002)
EQUAL = (Worker("", "http://a:1"), Worker("", "http://b:2"))


def argv_of(*workers: Worker, bootstrap: bool = False) -> str:
    node = Node(bind="10.0.0.1", port=21001, extra_ports=(21002, 21003), workers=workers)
    return " ".join(arguments(node, "--pd-disaggregation", bootstrap))


def test_it_listens_at_the_ports_that_were_found_free() -> None:
    assert "--host 10.0.0.1 --port 21001 --prometheus-port 21002 " in argv_of(*EQUAL)


def test_a_failed_request_is_not_sent_again() -> None:
    assert "--disable-retries" in argv_of(*EQUAL)


def test_equal_replicas_are_one_list() -> None:
    assert argv_of(*EQUAL).endswith("--worker-urls http://a:1 http://b:2")


def test_replicas_with_roles_are_named_by_their_role() -> None:
    expected = "--pd-disaggregation --prefill http://a:1 --decode http://b:2"
    assert argv_of(PREFILL, DECODE).endswith(expected)


def test_only_prefill_replicas_have_a_bootstrap_port() -> None:
    expected = "--prefill http://a:1 8001 --decode http://b:2"
    assert argv_of(PREFILL, DECODE, bootstrap=True).endswith(expected)

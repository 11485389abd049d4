"""What every router of the registry promises: its own parser takes its command, and the API key is
not on the command line.

``orchestrator/engines/recorded`` has what their parsers take.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.engines.command import Worker
from orchestrator.engines.dialects import dialect_of, dialects_of
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES, ROUTERS, program_of
from orchestrator.spec.settings import ROLES, EngineSettings
from tests.contract import recorded
from tests.contract.test_engine_flags import complaints
from tests.contract.test_engines import CPU, GPU, KEY, NODE

WORKERS = (
    Worker("prefill", "http://a:1", 8001),
    Worker("prefill", "http://b:2", 8002),
    Worker("decode", "http://c:3", 8003),
)
EQUAL = tuple(replace(worker, role="") for worker in WORKERS)


def settings(name: str, **given: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": name, "model": "acme/tiny"} | given)


@pytest.mark.parametrize("workers", [WORKERS, EQUAL], ids=["roles", "equal replicas"])
@pytest.mark.parametrize("name", ROUTERS.shipped())
def test_it_is_told_of_every_replica_in_flags_that_it_has(
    name: str, workers: tuple[Worker, ...]
) -> None:
    flags = recorded.flags(name)["flags"]
    router = program_of(name).command(settings(name), GPU, replace(NODE, workers=workers), KEY)
    first = next(at for at, word in enumerate(router.argv) if word.startswith("--"))
    assert complaints(list(router.argv[first:]), flags) == []
    assert all(worker.url in router.argv for worker in workers)
    assert str(NODE.port) in router.argv
    assert KEY not in " ".join(router.argv)
    assert KEY in router.secrets.values()
    assert not router.env["CUDA_VISIBLE_DEVICES"], "it takes no GPU"


@pytest.mark.parametrize("name", ROUTERS.shipped())
def test_it_runs_anywhere_and_refuses_what_it_would_not_heed(name: str) -> None:
    router = program_of(name)
    assert (
        problems_of(router, settings(name), GPU) == problems_of(router, settings(name), CPU) == []
    )
    assert problems_of(router, settings(name, max_num_seqs=3), GPU)
    for flag in router.reserved:
        assert problems_of(router, settings(name, extra_args={flag: "x"}), GPU), flag


def test_a_name_that_is_neither_engine_nor_router_is_unknown() -> None:
    with pytest.raises(InputError, match="unknown engine 'nothing'"):
        program_of("nothing")


@pytest.mark.parametrize("name", [name for name in ENGINES.names() if ENGINES[name].routers])
def test_an_engine_that_has_roles_is_told_which_it_has(name: str) -> None:
    engine = ENGINES[name]
    assert set(engine.routers) <= set(ROUTERS.names())
    commands = [
        engine.command(settings(name), GPU, replace(NODE, role=role), KEY) for role in ("", *ROLES)
    ]
    assert len({command.argv for command in commands}) == 3
    assert ["UCX_PROTO_INFO" in command.env for command in commands] == [False, True, True], (
        "it says how KV caches travel"
    )


def test_the_kv_cache_of_vllm_goes_from_producer_to_consumer_over_a_port_of_its_own() -> None:
    command = ENGINES["vllm"].command(
        settings("vllm"), GPU, replace(NODE, role="prefill", host="10.0.0.7"), KEY
    )
    config = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    assert config == {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(NODE.extra_ports[1])
    given = settings("vllm", kv_transfer_config={"kv_connector": "Mine"})
    command_of_given = ENGINES["vllm"].command(given, GPU, replace(NODE, role="decode"), KEY)
    argv = command_of_given.argv
    assert argv.count("--kv-transfer-config") == 1, "what the file says stands"


def test_the_kv_cache_of_sglang_is_asked_for_where_its_router_says_that_it_prefills() -> None:
    node = replace(NODE, role="prefill", host="10.0.0.7", bind="10.0.0.7", rpc_port=8001)
    engine = ENGINES["sglang"].command(settings("sglang"), GPU, node, KEY)
    assert engine.argv[engine.argv.index("--disaggregation-bootstrap-port") + 1] == "8001"
    assert engine.env["SGLANG_HOST_IP"] == "10.0.0.7"
    router = ROUTERS["sglang_router"].command(
        settings("sglang_router"), GPU, replace(NODE, workers=WORKERS), KEY
    )
    command_line = " ".join(router.argv)
    assert "--prefill http://a:1 8001 --prefill http://b:2 8002 --decode http://c:3" in command_line


@pytest.mark.parametrize(
    ("router", "engine", "api", "passes"),
    [  # what each was seen to pass on, or its source says
        (
            "vllm_router",
            "vllm",
            "completions",
            {"prompt_token_ids", "return_token_ids", "cache_salt"},
        ),
        ("sglang_router", "sglang", "completions", {"return_token_ids", "cache_salt"}),
        ("sglang_router", "sglang", "chat", set()),
        ("sglang_router", "sglang", "native", {"prompt_token_ids"}),
    ],
)
def test_a_request_holds_nothing_that_the_router_refuses_or_drops(
    router: str, engine: str, api: str, passes: set[str]
) -> None:
    given = settings(engine, router={"engine": router, "model": "acme/tiny"})
    spoken = dialect_of(ENGINES[engine], given, api)
    names = {"prompt_token_ids", "continuous_usage", "return_token_ids", "cache_salt"}
    assert {name for name in names if getattr(spoken, name)} == passes
    assert "tgi" not in dialects_of(ENGINES["emulator"], settings("emulator", router=given.router))

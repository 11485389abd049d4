"""Readiness with a fake clock, a fake server and a fake process: what counts as ready, and as ours."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from orchestrator.base.errors import EngineFailure, Failure, FailureClass
from orchestrator.base.http import HttpResponse
from orchestrator.engines.command import Command, Node
from orchestrator.engines.endpoint import ENGINE as ENDPOINT
from orchestrator.engines.engine import Engine
from orchestrator.engines.llama_cpp import ENGINE as LLAMA_CPP
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.engines.sglang import ENGINE as SGLANG
from orchestrator.engines.tgi import ENGINE as TGI
from orchestrator.engines.transformers import ENGINE as TRANSFORMERS
from orchestrator.engines.vllm import ENGINE as VLLM
from orchestrator.node import readiness
from orchestrator.node.process import EngineProcess
from orchestrator.node.readiness import Expected, Ready, listeners, wait_ready
from orchestrator.spec.settings import EngineSettings

KEY = "k3y"
NODE = Node(port=21001, launch_id="01L")


class FakeProcess:
    """Ends with ``status`` after ``lives`` looks; its log grows for ``talks`` looks."""

    def __init__(
        self,
        keyed: bool = True,
        status: int = 1,
        lives: int = 10**9,
        log: str = "",
        talks: int = 10**9,
    ) -> None:
        self.command = Command((), secrets={"VLLM_API_KEY": KEY} if keyed else {})
        self.pid: int | None = 4242
        self.status, self.lives, self.log, self.talks = status, lives, log, talks

    def poll(self) -> int | None:
        self.lives -= 1
        self.talks -= 1
        return self.status if self.lives < 0 else None

    def new_lines(self) -> list[str]:
        return self.log.splitlines()

    def mark_ready(self) -> None:
        self.log += "\n# ready"

    def log_tail(self, lines: int = 200) -> str:
        return f"{self.log}\n{max(self.talks, 0)}"


class FakeServer:
    """``answers``: path -> answer with the key; ``open_to_all``: paths that are answered without
    the key too.
    """

    def __init__(
        self, answers: dict[str, HttpResponse], open_to_all: str = "-", after: int = 0
    ) -> None:
        self.answers, self.open_to_all, self.after = answers, open_to_all, after

    def __call__(self, url: str, method: str, api_key: str) -> HttpResponse:
        path = "/" + url.split("/", 3)[3]
        self.after -= 1
        if self.after >= 0:
            return HttpResponse(0)
        if path.startswith("/v1") and not path.startswith(self.open_to_all) and api_key != KEY:
            return HttpResponse(401)
        return self.answers.get(path, HttpResponse(404))


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def models(*names: str) -> HttpResponse:
    return HttpResponse(
        200, json.dumps({"data": [{"id": name, "max_model_len": 2048} for name in names]}).encode()
    )


def vllm_answers(**changes: HttpResponse) -> dict[str, HttpResponse]:
    usual = {
        "/health": HttpResponse(200),
        "/v1/models": models("tiny-01L"),
        "/version": HttpResponse(200, b'{"version": "0.32.0"}'),
    }
    return usual | {path.replace("_", "/"): answer for path, answer in changes.items()}


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Who listens on the port, and who belongs to us."""
    sockets = {"listeners": {4242}, "tree": {4242, 4243}}
    monkeypatch.setattr(readiness, "listeners", lambda port: sockets["listeners"])
    monkeypatch.setattr(readiness, "tree_of", lambda pid: sockets["tree"])
    return sockets


def wait(
    engine: Any,
    server: FakeServer,
    process: FakeProcess | None,
    timeout_s: float = 60.0,
    downloaded: Callable[[], int] = lambda: 0,
    **given: Any,
) -> Ready:
    time = Time()
    settings = EngineSettings(engine=engine.name, model="acme/tiny", **given)
    expected = Expected(
        engine, settings, NODE, "http://127.0.0.1:21001", KEY, cast(EngineProcess, process)
    )
    return wait_ready(
        expected,
        timeout_s,
        silence_s=20.0,
        clock=time,
        sleep=time.sleep,
        ask=server,
        downloaded=downloaded,
    )


def failed(engine: Any, server: FakeServer, process: FakeProcess | None, **given: Any) -> Failure:
    with pytest.raises(EngineFailure) as caught:
        wait(engine, server, process, **given)
    return caught.value.failure


def test_a_server_with_our_name_our_key_and_our_socket_is_ready() -> None:
    ready = wait(VLLM, FakeServer(vllm_answers(), after=8), FakeProcess())
    assert ready.reported["proofs"] == "socket key name"
    assert ready.reported["max_model_len"] == 2048
    assert ready.version == "0.32.0"


def test_an_unreadable_log_does_not_end_an_engine_that_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    misreading = replace(VLLM, reported=lambda log: {"kv_cache_bytes": int("1.5GB")})
    ready = wait(misreading, FakeServer(vllm_answers()), FakeProcess())
    assert {*ready.reported} == {"unreadable", "max_model_len", "proofs"}
    assert "1.5GB" in str(ready.reported["unreadable"])
    assert ready.version == "0.32.0"
    assert "what vllm says of itself could not be read" in caplog.text


LAUNCHED = [ENGINES[name] for name in ENGINES.names() if ENGINES[name].launches]
LAUNCHED += [ROUTERS[name] for name in ROUTERS.names()]
OLDER = [
    pytest.param(engine, lacking, id=f"{engine.name} without {' '.join(lacking)}")
    for engine in LAUNCHED
    for routes in [(engine.ready_path, *engine.ready_fallbacks)]
    for lacking in (routes[:count] for count in range(len(routes)))
]


def of_release(engine: Engine, lacking: tuple[str, ...], status: int) -> dict[str, HttpResponse]:
    """What a release answers that does not have the routes ``lacking``."""
    routes = (engine.ready_path, *engine.ready_fallbacks)
    settings = EngineSettings(engine=engine.name, model="acme/tiny")
    listed = models(engine.served_name(settings, NODE))
    served = dict.fromkeys(routes, HttpResponse(200)) | {"/v1/models": listed}
    return served | dict.fromkeys(lacking, HttpResponse(status))


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize(("engine", "lacking"), OLDER)
def test_next_route_is_asked_where_a_release_lacks_one(
    engine: Engine, lacking: tuple[str, ...], status: int
) -> None:
    keyed = FakeProcess(keyed=engine.guarded)
    ready = wait(engine, FakeServer(of_release(engine, lacking, status)), keyed)
    assert {"socket", "name"} <= set(str(ready.reported["proofs"]).split())


@pytest.mark.parametrize("engine", LAUNCHED, ids=lambda engine: engine.name)
def test_first_route_that_a_release_has_decides(engine: Engine) -> None:
    routes = (engine.ready_path, *engine.ready_fallbacks)
    for route in routes[:-1]:
        answers = of_release(engine, routes[: routes.index(route)], 404) | {
            route: HttpResponse(503)
        }
        failure = failed(engine, FakeServer(answers), FakeProcess(keyed=engine.guarded))
        assert failure.kind == "never_ready"
        assert failure.sentence.endswith(f"(startup_timeout_s); {route} answered HTTP 503")


@pytest.mark.parametrize("engine", LAUNCHED, ids=lambda engine: engine.name)
def test_stranger_on_the_port_is_refused_at_every_route(
    engine: Engine, ours: dict[str, set[int]]
) -> None:
    answers = of_release(engine, (engine.ready_path,), 404)
    ours["listeners"] = {1}
    strange = failed(engine, FakeServer(answers), FakeProcess(keyed=engine.guarded))
    assert strange.kind == "port_taken"
    ours["listeners"] = set()  # nobody whom we may see, and it serves another model
    answers["/v1/models"] = models("tiny-OTHER")
    other = failed(engine, FakeServer(answers), FakeProcess(keyed=engine.guarded))
    assert other.kind == "wrong_server"


class DyingServer(FakeServer):
    """Dies of a request to ``path`` without a key, or with it if ``keyed``."""

    def __init__(self, path: str, keyed: bool, process: FakeProcess) -> None:
        super().__init__(vllm_answers(_v1_completions=HttpResponse(401)))
        self.path, self.keyed, self.process = path, keyed, process

    def __call__(self, url: str, method: str, api_key: str) -> HttpResponse:
        if url.endswith(self.path) and bool(api_key) is self.keyed:
            self.process.lives = 0
        if self.process.lives <= 0:
            return HttpResponse(0, error="Connection reset by peer")
        return super().__call__(url, method, api_key)


@pytest.mark.parametrize(
    ("path", "keyed"),
    [("/v1/completions", False), ("/v1/models", True), ("/health", True), ("/version", True)],
)
def test_server_that_dies_while_it_is_asked_is_no_stranger(path: str, keyed: bool) -> None:
    process = FakeProcess(status=-11, lives=9)
    server = DyingServer(path, keyed, process)
    if path == "/version":  # it was ready: the launch sees the death as one while serving
        assert wait(VLLM, server, process).version is None
        return
    failure = failed(VLLM, server, process)
    assert (failure.kind, failure.failure_class) == ("died_at_start", FailureClass.ENGINE_CRASH)
    assert failure.sentence == "the engine did not start: it ended by SIGSEGV"


def test_death_wins_over_a_server_without_a_key() -> None:
    process = FakeProcess(status=-11, lives=1)  # alive when it is looked at first
    failure = failed(VLLM, FakeServer(vllm_answers(), open_to_all="/"), process)
    assert failure.sentence == "the engine did not start: it ended by SIGSEGV"


def test_an_engine_that_dies_is_classified_by_its_log() -> None:
    failure = failed(
        VLLM, FakeServer({}), FakeProcess(lives=3, log="vllm: error: unrecognized arguments: --x")
    )
    assert failure.kind == "bad_flag"
    assert failure.failure_class is FailureClass.BAD_CONFIG


def test_death_with_a_stranger_on_the_port_is_a_taken_port(
    ours: dict[str, set[int]],
) -> None:
    ours["listeners"] = {99999999}
    failure = failed(VLLM, FakeServer({}), FakeProcess(lives=3))
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)
    assert "port 21001 is taken by" in failure.sentence


def test_a_stranger_that_answers_first_ends_the_wait_at_once(ours: dict[str, set[int]]) -> None:
    ours["listeners"] = {1}
    failure = failed(VLLM, FakeServer({"/health": HttpResponse(404)}), FakeProcess())
    assert failure.kind == "port_taken"
    assert psutil.Process(1).name() in failure.sentence


def test_a_server_that_needs_no_key_is_not_ours(ours: dict[str, set[int]]) -> None:
    ours["listeners"] = set()  # whose socket it is cannot be seen
    failure = failed(VLLM, FakeServer(vllm_answers(), open_to_all="/"), FakeProcess())
    assert failure.kind == "wrong_server"
    assert "another server" in failure.sentence and "carry no key" in failure.sentence


def test_an_engine_that_listens_itself_and_needs_no_key_is_told_to_check_it() -> None:
    failure = failed(VLLM, FakeServer(vllm_answers(), open_to_all="/"), FakeProcess())
    assert (failure.kind, failure.kind.failure_class) == ("key_unchecked", "bad_config")
    assert "another server" not in failure.sentence
    assert "vLLM does not check the key in VLLM_API_KEY" in failure.sentence
    assert "answered with HTTP 404, not with 401 or 403" in failure.sentence


def loading(name: str = "Loading model") -> dict[str, HttpResponse]:
    """llama.cpp's answers to anyone while it loads, the key or not."""
    busy = HttpResponse(
        503,
        json.dumps({"error": {"message": name, "type": "unavailable_error", "code": 503}}).encode(),
    )
    return dict.fromkeys(("/health", "/v1/models", "/v1/completions"), busy)


def test_server_that_answers_503_while_it_loads_is_waited_for() -> None:
    process = FakeProcess(talks=0)  # its log is silent meanwhile, for longer than a hang is given
    assert failed(LLAMA_CPP, FakeServer(loading(), open_to_all="/"), process).kind == "never_ready"
    assert (
        failed(LLAMA_CPP, FakeServer(loading("out of order"), open_to_all="/"), process).kind
        == "silent"
    )


@pytest.mark.parametrize(
    ("engine", "path", "answer", "version"),
    [
        (VLLM, "/version", {"version": "0.32.0"}, "0.32.0"),
        (SGLANG, "/server_info", {"version": "0.5.23"}, "0.5.23"),
        (TGI, "/info", {"version": "3.3.6-dev0"}, "3.3.6-dev0"),
        (LLAMA_CPP, "/props", {"build_info": "b1-0c1e570"}, "b1-0c1e570"),
        (TRANSFORMERS, "/version", None, "5.19.0"),
        (VLLM, "/version", [], None),
    ],
)
def test_every_engine_is_asked_for_its_version(
    engine: Any, path: str, answer: object, version: str | None, tmp_path: Path
) -> None:
    (tmp_path / "lib/python3.11/site-packages/transformers-5.19.0.dist-info").mkdir(parents=True)
    version_answer = (
        {path: HttpResponse(200, json.dumps(answer).encode())} if answer is not None else {}
    )
    # as it is recorded
    card = {"id": "tiny-01L", "meta": {"n_vocab": 2048} if engine is LLAMA_CPP else None}
    served = {
        engine.ready_path: HttpResponse(200),
        "/v1/models": HttpResponse(200, json.dumps({"data": [card]}).encode()),
    }
    server = FakeServer(served | version_answer, open_to_all="/v1/models")
    executable = {"executable": str(tmp_path)} if version == "5.19.0" else {}
    ready = wait(engine, server, FakeProcess(), **executable)
    assert ready.version == version
    assert ready.reported.get("vocab_size") == (2048 if engine is LLAMA_CPP else None)


def test_server_that_lists_models_without_a_key_is_ready() -> None:
    assert (
        wait(VLLM, FakeServer(vllm_answers(), open_to_all="/v1/models"), FakeProcess())
        .reported["proofs"]
        .split()[1]
        == "key"
    )


def test_server_in_docker_needs_our_model_name(ours: dict[str, set[int]]) -> None:
    ours["listeners"] = {99999999}  # a process of docker's daemon
    other = FakeServer(vllm_answers(_v1_models=models("tiny-OTHER")))
    failure = failed(VLLM, other, FakeProcess(), image="vllm/vllm:1")
    assert failure.kind == "wrong_server"
    assert "tiny-OTHER" in failure.sentence
    assert (
        wait(VLLM, FakeServer(vllm_answers()), FakeProcess(), image="i").reported["proofs"]
        == "key name"
    )


def test_an_engine_without_keys_and_names_is_proven_by_its_socket() -> None:
    server = FakeServer(
        {"/health": HttpResponse(200), "/v1/models": HttpResponse(500)}, open_to_all="/"
    )
    assert wait(TRANSFORMERS, server, FakeProcess(keyed=False)).reported["proofs"] == "socket"


@pytest.mark.parametrize("listening", [set(), {99999999}])
def test_server_in_podman_needs_our_socket_or_model_name(
    listening: set[int], ours: dict[str, set[int]]
) -> None:
    podman = {"image": "i", "container_runtime": "podman"}
    assert (
        wait(VLLM, FakeServer(vllm_answers()), FakeProcess(), **podman).reported["proofs"]
        == "socket key name"
    )
    ours["listeners"] = listening
    assert (
        wait(VLLM, FakeServer(vllm_answers()), FakeProcess(), **podman).reported["proofs"]
        == "key name"
    )
    server = FakeServer({"/health": HttpResponse(200)}, open_to_all="/")
    assert failed(TRANSFORMERS, server, FakeProcess(keyed=False), **podman).kind == "wrong_server"


def test_health_that_is_not_200_yet_is_waited_for() -> None:
    failure = failed(VLLM, FakeServer(vllm_answers(_health=HttpResponse(503))), FakeProcess())
    assert (failure.kind, failure.failure_class) == ("never_ready", FailureClass.TIMEOUT)
    assert "60 s" in failure.sentence


def test_a_log_that_stays_silent_ends_the_wait_before_its_end() -> None:
    failure = failed(VLLM, FakeServer({}), FakeProcess(talks=4))
    assert (failure.kind, failure.failure_class) == ("silent", FailureClass.TIMEOUT)


def test_time_of_downloads_does_not_count() -> None:
    """The engine says nothing meanwhile; limits are 60 s, and 20 s of silence."""
    server, growing = FakeServer(vllm_answers(), after=4 * 300), itertools.count()
    assert wait(VLLM, server, FakeProcess(talks=0), downloaded=growing.__next__).version == "0.32.0"
    stuck = itertools.chain(range(10), itertools.repeat(9))  # after 90 s nothing more comes
    failure = failed(VLLM, FakeServer({}), FakeProcess(talks=0), downloaded=stuck.__next__)
    assert failure.kind == "silent"
    sizes = itertools.chain(range(10), itertools.repeat(9))
    failure = failed(VLLM, FakeServer({}), FakeProcess(), downloaded=sizes.__next__)
    assert (failure.kind, failure.sentence) == (
        "never_ready",
        "the engine was not ready after 60 s (startup_timeout_s); /v1/models answered HTTP 404",
    )


def test_engine_that_hangs_on_a_taken_port_is_not_waited_for(
    ours: dict[str, set[int]],
) -> None:
    ours["listeners"] = {1}  # it takes connections and never answers
    log = (
        "[2026-11-22 03:32:41] ERROR:    [Errno 98] error while attempting to bind: address "
        "already in use"
    )
    failure = failed(SGLANG, FakeServer({}), FakeProcess(log=log))
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)
    assert failure.sentence.startswith("port 21001 is taken by ")


def test_an_endpoint_is_ready_when_it_lists_the_model() -> None:
    ready = wait(ENDPOINT, FakeServer({"/v1/models": models("acme/tiny")}), None, url="http://h")
    assert ready.reported["proofs"] == "name"
    card = HttpResponse(
        200,
        b'{"data": [{"id": "other", "owned_by": "x"}, {"id": "acme/tiny", "owned_by": "vllm"}]}',
    )
    assert (
        wait(ENDPOINT, FakeServer({"/v1/models": card}), None, url="http://h").reported["owned_by"]
        == "vllm"
    )


def test_endpoint_that_lists_other_models_is_ready_with_a_note() -> None:
    server = FakeServer({"/v1/models": models("acme/tiny:latest")})
    ready = wait(ENDPOINT, server, None, url="http://h")
    assert ready.reported["note"] == "the endpoint lists acme/tiny:latest, not 'acme/tiny'"


@pytest.mark.parametrize(
    "answer", [HttpResponse(401), HttpResponse(403), HttpResponse(404), HttpResponse(500)]
)
def test_endpoint_that_lists_nothing_is_ready_with_a_note(answer: HttpResponse) -> None:
    server = FakeServer({"/v1/models": answer}, open_to_all="/")
    ready = wait(ENDPOINT, server, None, url="http://h")
    assert ready.reported["note"].endswith(f"list its models (HTTP {answer.status})")


def test_endpoint_that_refuses_connections_is_given_up_within_seconds() -> None:
    refused = HttpResponse(0, error="[Errno 111] Connection refused")
    server = FakeServer({"/v1/models": refused}, open_to_all="/")
    time, settings = Time(), EngineSettings(engine="endpoint", model="acme/tiny", url="http://h")
    expected = Expected(ENDPOINT, settings, NODE, "http://h")
    with pytest.raises(EngineFailure, match="no server answers at http://h: ") as caught:
        wait_ready(expected, 60.0, clock=time, sleep=time.sleep, ask=server)
    assert caught.value.failure.kind == "never_ready"
    assert time.now <= 5.0


@pytest.mark.parametrize("body", ["", "[]", "{", '{"data": 3}', '{"data": [1]}'])
def test_an_answer_that_is_no_list_of_models_is_no_proof(body: str) -> None:
    process = FakeProcess()
    server = FakeServer(vllm_answers(_v1_models=HttpResponse(200, body.encode())))
    assert wait(VLLM, server, process).reported["proofs"] == "socket key"


REAL_LISTENERS = listeners


def test_listeners_are_found_by_their_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert REAL_LISTENERS(port) == {psutil.Process().pid}
    assert REAL_LISTENERS(port) == set()


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("node1:812:1301 [0] NCCL INFO Using network IB", "IB"),
        ("node1:812:1301 [0] NCCL INFO Using network Socket", "Socket"),
        ("node1:812:1301 [0] NCCL INFO Assigned NET plugin Socket to comm", "Socket"),
        ("nothing of it", "not said"),
    ],
)
def test_replica_on_several_nodes_reports_its_network(line: str, network: str) -> None:
    process = FakeProcess(log=line)
    ready = wait(VLLM, FakeServer(vllm_answers()), process, nnodes=2, pipeline_parallel_size=2)
    assert ready.reported["network"] == network
    assert "network" not in wait(VLLM, FakeServer(vllm_answers()), process).reported

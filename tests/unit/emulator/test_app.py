"""Routes, faults, and the requests of every rank, replica and role on their way through the batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.emulator.api import OpenAICompletion, Serving, parse_completion
from orchestrator.emulator.app import App, Fault, fault_of
from orchestrator.emulator.http import ClientConnection, HttpRequest
from orchestrator.emulator.profile import Faults, Profile
from tests.unit.emulator.builders import (
    IDEAL,
    OPTIONS,
    SERVING,
    HttpAnswer,
    a_replica,
    body,
    http_answer,
    recorded_tgi,
    settings,
)


class Recorder(ClientConnection):
    """A connection that keeps what it would send."""

    def __init__(self) -> None:
        super().__init__(lambda request, connection: None)
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def answer(self) -> HttpAnswer:
        return http_answer(self.sent)


@contextmanager
def running(serving: Serving) -> Iterator[App]:
    """An app whose tokens never become due."""
    loop = asyncio.new_event_loop()
    app = App(serving, loop, lambda text, level: None)
    try:
        yield app
    finally:
        app.close()
        loop.close()


def answer_to(method: str, path: str, serving: Serving = SERVING, **headers: str) -> HttpAnswer:
    connection = Recorder()
    with running(serving) as app:
        app.handle(HttpRequest(method, path, headers), connection)
    return connection.answer()


def test_a_path_that_no_route_has_is_404() -> None:
    assert answer_to("GET", "/nothing").status == 404


def test_a_path_with_another_method_is_405() -> None:
    assert answer_to("GET", "/v1/completions").status == 405


def test_the_models_are_listed_with_their_longest_sequence() -> None:
    (card,) = json.loads(answer_to("GET", "/v1/models").body)["data"]
    assert card["id"] == "m"
    assert card["max_model_len"] == SERVING.replica.limits.max_model_len


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 401), ("/metrics", 200), ("/health", 200)]
)
def test_a_key_guards_v1_alone_of_what_can_be_read(path: str, status: int) -> None:
    guarded = replace(SERVING, options=replace(OPTIONS, api_key="k3y"))
    assert answer_to("GET", path, guarded).status == status


def test_a_key_guards_everything_that_generates() -> None:
    guarded = replace(SERVING, options=replace(OPTIONS, api_key="k3y"))
    assert answer_to("POST", "/generate", guarded).status == 401
    assert answer_to("POST", "/generate", guarded, authorization="Bearer k3y").status != 401


def test_beyond_its_queue_vllms_api_refuses_with_503() -> None:
    options = replace(OPTIONS, settings=settings(max_num_queued_reqs=1))
    request = HttpRequest("POST", "/v1/completions", {}, body(prompt=[1] * 100))
    connection = Recorder()
    with running(replace(SERVING, options=options)) as app:
        app.handle(request, Recorder())
        app.handle(request, connection)
    assert connection.answer().status == 503


def test_a_request_whose_client_is_gone_leaves_the_batch() -> None:
    connection = Recorder()
    with running(SERVING) as app:
        request = HttpRequest("POST", "/v1/completions", {}, body(prompt=[1] * 100))
        app.handle(request, connection)
        connection.connection_lost(None)
        assert not app.active
        assert app.pacers[0].batch.idle


def test_single_faults_come_before_periodic_ones() -> None:
    faults = Faults(die_at_request=6, error_every=3, cut_every=2)
    assert [fault_of(number, faults) for number in range(1, 7)] == [
        None,
        Fault.CUT,
        Fault.ERROR,
        Fault.CUT,
        None,
        Fault.DIE,
    ]


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 500), ("/generate", 424)])
def test_a_scripted_error_has_the_status_of_its_api(path: str, status: int) -> None:
    profile = Profile(faults=Faults(error_every=1))
    connection = Recorder()
    with running(replace(SERVING, options=replace(OPTIONS, profile=profile))) as app:
        app.handle(HttpRequest("POST", path, {}, body(prompt=[1], inputs="x")), connection)
    assert connection.answer().status == status


@pytest.mark.parametrize(
    ("name", "path", "limit", "fields", "wording"),
    [
        ("overloaded_generate", "/generate_stream", 0, {"inputs": "x"}, "Model is overloaded"),
        ("overloaded_whole", "/generate", 0, {"inputs": "x"}, "Model is overloaded"),
        (
            "too_long_generate",
            "/generate_stream",
            9,
            {"inputs": "x " * 9999},
            "Input validation error: ",
        ),
        (
            "zero_new_tokens",
            "/generate",
            9,
            {"inputs": "x", "parameters": {"max_new_tokens": 0}},
            "Input validation",
        ),
        ("bad_json", "/generate_stream", 9, None, "Failed to parse the request body as JSON: "),
    ],
)
def test_refusals_are_answered_as_the_real_tgi_answers_them(
    name: str, path: str, limit: int, fields: dict[str, Any] | None, wording: str
) -> None:
    serving = replace(SERVING, options=replace(OPTIONS, max_concurrent_requests=limit))
    connection = Recorder()
    raw = b'{"inputs":' if fields is None else body(**fields)
    with running(serving) as app:
        app.handle(HttpRequest("POST", path, {}, raw), connection)
    answer = connection.answer()
    recorded = recorded_tgi(name)
    assert answer.status == recorded.status
    assert answer.content_type == recorded.content_type
    assert wording in answer.body
    assert wording in recorded.body
    assert answer.body.startswith("data: ") == recorded.body.startswith("data: ")
    if recorded.body.endswith("}"):
        error = json.loads(answer.body.removeprefix("data: "))
        recorded_error = json.loads(recorded.body.removeprefix("data: "))
        assert error.keys() == recorded_error.keys()
        assert error["error_type"] == recorded_error["error_type"]


def computed_tokens(serving: Serving, transfer: dict[str, Any] | None) -> int:
    """Tokens of a prompt of 100 that this replica computes itself."""
    fields = body(prompt=[1] * 100, kv_transfer_params=transfer)
    with running(serving) as app:
        app.handle(HttpRequest("POST", "/v1/completions", {}, fields), Recorder())
        (generation,) = app.active
        assert generation.sequence is not None
        return 100 - generation.sequence.cached_tokens


def prefilled() -> OpenAICompletion:
    """A request as a prefill replica gets it from the router."""
    prefill = replace(SERVING, options=replace(OPTIONS, role="prefill"))
    fields = body(prompt=[1] * 100, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    return parse_completion(fields, prefill)


def test_a_decode_replica_computes_the_last_token_of_a_received_prompt() -> None:
    decode = replace(SERVING, options=replace(OPTIONS, role="decode"))
    handed_over: Any = prefilled().document()
    assert computed_tokens(decode, handed_over["kv_transfer_params"]) == 1
    assert computed_tokens(decode, None) == 100


def test_a_replica_without_a_role_computes_received_prompts_again() -> None:
    handed_over: Any = prefilled().document()
    assert computed_tokens(SERVING, handed_over["kv_transfer_params"]) == 100


def test_an_answer_whose_kv_cache_stays_names_no_transfer() -> None:
    document: Any = replace(prefilled(), hands_kv_over=False).document()
    assert "kv_transfer_params" not in document


def step_seconds(serving: Serving) -> list[float]:
    """How long the same step takes on each rank."""
    seconds = []
    with running(serving) as app:
        for pacer in app.pacers:
            pacer.batch.submit(0, 100, 1)
            pacer.batch.advance()
            seconds.append(pacer.batch.clock)
    return seconds


def test_steps_of_ranks_replicas_and_launches_vary_independently_and_reproducibly() -> None:
    jittery = a_replica(IDEAL.model_copy(update={"jitter": 0.5}))
    options = replace(OPTIONS, settings=settings(data_parallel_size=2), model="m-launch1")
    server = replace(SERVING, options=options, replica=jittery)
    other_replica = replace(server, options=replace(options, port=8001))
    other_launch = replace(server, options=replace(options, model="m-launch2"))
    seconds = [
        *step_seconds(server),
        *step_seconds(other_replica),
        *step_seconds(other_launch),
    ]
    assert len(set(seconds)) == 6
    assert step_seconds(server) == seconds[:2]


def test_every_data_parallel_rank_has_a_prefix_cache_of_its_own() -> None:
    options = replace(OPTIONS, settings=settings(data_parallel_size=2))
    fields = body(prompt=list(range(320)), max_tokens=1000)
    with running(replace(SERVING, options=options)) as app:
        for _ in range(6):  # waiting requests go to the ranks in turn
            app.handle(HttpRequest("POST", "/v1/completions", {}, fields), Recorder())
        cached_tokens: dict[Any, list[int]] = {pacer: [] for pacer in app.pacers}
        for generation, pacer in app.active.items():
            cached_tokens[pacer].append(generation.completion.cached_tokens)
    # the last block is computed for its last token
    assert list(cached_tokens.values()) == [[0, 304, 304], [0, 304, 304]]


def test_a_request_goes_to_the_rank_with_the_fewest_even_while_one_is_in_its_prefill() -> None:
    """A long prompt takes several steps, and during these it neither decodes nor waits."""
    options = replace(OPTIONS, settings=settings(data_parallel_size=2))
    small_steps = a_replica(max_num_batched_tokens=64)
    serving = replace(SERVING, options=options, replica=small_steps)
    request = HttpRequest("POST", "/v1/completions", {}, body(prompt=[1] * 200))
    with running(serving) as app:
        app.handle(request, Recorder())
        app.handle(request, Recorder())
        assert list(app.active.values()) == app.pacers

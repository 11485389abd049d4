"""What the emulator answers: routes, requests on their way through the batch, faults."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson

from orchestrator.emulator.api import (
    Answer,
    Refused,
    Serving,
    parse_chat,
    parse_completion,
    parse_tgi,
    sse,
)
from orchestrator.emulator.batch import Batch, Sequence
from orchestrator.emulator.http import STREAM_END, STREAM_HEAD, ClientConnection, HttpRequest, chunk
from orchestrator.emulator.metrics import Histograms, exposition
from orchestrator.emulator.pacer import Pacer
from orchestrator.emulator.prefix import Held, PrefixCache
from orchestrator.emulator.profile import Faults
from orchestrator.emulator.version import VERSION

GARBAGE = b'data: {"id":"\xff\xfe", "choices": [{"ind\n\n'


class Generation:
    """One request while it is in the batch: builds its tokens' bytes, carries out its scripted
    fault, ends itself.
    """

    __slots__ = (
        "_app",
        "_connection",
        "_fault",
        "_index",
        "_last",
        "answer",
        "held",
        "sequence",
        "write",
    )

    def __init__(
        self, app: App, connection: ClientConnection, answer: Answer, fault: str | None
    ) -> None:
        self._app, self._connection, self.answer, self._fault = app, connection, answer, fault
        self.held: Held | None = None  # of its rank's prefix cache
        self.write = connection.write
        self.sequence: Sequence | None = None
        self._index = 0
        self._last = False
        connection.on_lost = partial(app.lost, self)

    def prepare(self, last: bool) -> tuple[bytes, bool]:
        """Bytes of the next token; whole answers and faults are dealt with in ``sent``."""
        index, self._last = self._index, last
        self._index = index + 1
        self._app.counters.generation_tokens += 1
        if not self.answer.stream:
            return b"", last or self._fault is not None
        payload = self.answer.event(index, last) if self._fault != "garbage" else GARBAGE
        payload = chunk(payload + self.answer.close()) + STREAM_END if last else chunk(payload)
        return (STREAM_HEAD + payload if index == 0 else payload), last or self._fault is not None

    def sent(self) -> None:
        """After a last token, or any token of a request with a fault."""
        if self._connection.open and not (self._fault is not None and self._act()) and self._last:
            self._finish()

    def _act(self) -> bool:
        """Carry out the scripted fault; True when this request is over by it."""
        if self._fault == "die":
            self._app.log(
                "EngineDeadError: EngineCore encountered an issue (emulated fault die_at_request)",
                "ERROR",
            )
            os._exit(0)  # vLLM's exit status when it dies at run time
        if self._fault == "stall":
            self._app.active[self].stall(self._app.serving.options.profile.faults.stall_s)
            self._fault = None
        elif self._fault == "cut" and self._index >= max(1, self.answer.output_tokens // 2):
            self._connection.abort()
            return True
        return False

    def _finish(self) -> None:
        self._app.finished(self)
        if self.answer.stream:
            self._connection.end()
        else:
            self._connection.respond(
                200, GARBAGE if self._fault == "garbage" else self.answer.whole()
            )


# vLLM's (v1/engine/__init__.py: FinishReason); requests that their clients gave up are in none of
# them, there as here.
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


@dataclass(slots=True)
class Counters:
    """What the server counts over its life."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0  # of prompts
    # requests that were answered whole, by vLLM's reasons
    finished: Counter[str] = field(default_factory=Counter)


class App:
    """The server's state. One event loop, no locks."""

    def __init__(
        self, serving: Serving, loop: asyncio.AbstractEventLoop, log: Callable[[str, str], None]
    ) -> None:
        self.serving, self.log = serving, log
        self.counters = Counters()
        self.requests = 0
        self.active: dict[Generation, Pacer] = {}
        self._tgi_active: set[Generation] = set()
        self.histograms = Histograms(serving.replica.limits.max_model_len)
        options = serving.options
        ranks = range(options.settings.data_parallel_size)
        # a launch's own model name, a replica's own address
        server = f"{options.model} {options.host}:{options.port}"
        self.pacers = [
            Pacer(Batch(serving.replica, f"{server} {rank}"), loop, self._stepped) for rank in ranks
        ]
        self.prefixes = {
            pacer: PrefixCache(serving.replica.limits.kv_tokens) for pacer in self.pacers
        }
        pages: dict[str, object] = {"/health": b"", "/ping": b"", **_pages(serving)}
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, ClientConnection], None]] = {
            **{("GET", path): partial(_answer_with, content) for path, content in pages.items()},
            ("GET", "/metrics"): self._metrics,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/v1/completions"): partial(self._generate, parse_completion),
            ("POST", "/v1/chat/completions"): partial(self._generate, parse_chat),
            ("POST", "/generate"): partial(
                self._generate, partial(parse_tgi, stream=False), tgi=True
            ),
            ("POST", "/generate_stream"): partial(
                self._generate, partial(parse_tgi, stream=True), tgi=True
            ),
            ("POST", "/"): partial(self._generate, partial(parse_tgi, stream=None), tgi=True),
        }

    def accept(self) -> ClientConnection:
        """A new client. The loop accepts all that wait in one go, so tokens that are due go in
        between.
        """
        self._catch_up()
        return ClientConnection(self.handle)

    def _catch_up(self) -> None:
        for pacer in self.pacers:
            pacer.catch_up()

    def handle(self, request: HttpRequest, connection: ClientConnection) -> None:
        """Answer one request, now or by the batch. Tokens that are due go first."""
        self._catch_up()
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self._routes)
            status, what = (405, "Method Not Allowed") if known else (404, "Not Found")
            connection.respond(status, {"detail": what})
        elif not self._authorized(request):
            connection.respond(401, {"error": "Unauthorized"})
        else:
            route(request, connection)

    def _authorized(self, request: HttpRequest) -> bool:
        """As vLLM: the key guards /v1; here also what else generates."""
        key = self.serving.options.api_key
        if key is None or (request.method == "GET" and not request.path.startswith("/v1")):
            return True
        return hmac.compare_digest(
            request.headers.get("authorization", "").encode(), f"Bearer {key}".encode()
        )

    # --- endpoints that generate
    # -------------------------------------------------------------------------------------

    def _generate(
        self,
        parse: Callable[[bytes, Serving], Answer],
        request: HttpRequest,
        connection: ClientConnection,
        tgi: bool = False,
    ) -> None:
        try:
            self._admit(tgi)
            answer = parse(request.body, self.serving)
            self.requests += 1
            fault = _fault_of(self.requests, self.serving.options.profile.faults)
            if fault == "error":
                said = "Request failed during generation: emulated fault error_every"
                raise Refused(said, *((424, "generation") if tgi else (500, "InternalServerError")))
        except Refused as refused:
            (_refuse_as_tgi if tgi else _refuse)(refused, request, connection)
            return
        generation = Generation(self, connection, answer, fault)
        pacer = min(self.pacers, key=lambda one: len(one.batch.decoding) + len(one.batch.waiting))
        if answer.received:
            answer.cached_tokens = answer.prompt_tokens
        elif self.serving.options.settings.enable_prefix_caching is not False:
            generation.held = self.prefixes[pacer].take(
                answer.prompt, answer.cache_salt, pacer.batch.kv_used
            )
            answer.cached_tokens = generation.held.hit_tokens
        self.active[generation] = pacer
        if tgi:
            self._tgi_active.add(generation)
        self.counters.prompt_tokens += answer.prompt_tokens
        self.counters.cached_tokens += answer.cached_tokens
        generation.sequence = pacer.submit(
            answer.prompt_tokens, answer.output_tokens, answer.cached_tokens, generation
        )

    def _admit(self, tgi: bool) -> None:
        """Raises Refused when as many requests are here as the API's limit allows."""
        queued = self.serving.options.settings.max_num_queued_reqs
        if tgi and len(self._tgi_active) >= self.serving.options.max_concurrent_requests:
            raise Refused("Model is overloaded", 429, "overloaded")
        if not tgi and queued is not None and len(self.active) >= queued:
            raise Refused("The server's request queue is full", 503, "ServiceUnavailableError")

    # --- ends
    # --------------------------------------------------------------------------------------------------------

    def finished(self, generation: Generation) -> None:
        """Every token of a request has left."""
        pacer = self.active.pop(generation)
        self._tgi_active.discard(generation)
        answer, sequence = generation.answer, generation.sequence
        assert sequence is not None
        sequence.owner = None
        if generation.held is not None:
            self.prefixes[pacer].give_back(generation.held, answer.said(), pacer.batch.kv_used)
        arrival_s = sequence.ready_s - self.serving.replica.request_overhead_s
        decode_s = sequence.last_token_s - sequence.first_token_s
        prefill_s = sequence.first_token_s - sequence.scheduled_s
        for name, value in {
            "time_to_first_token_seconds": sequence.first_token_s - arrival_s,
            "e2e_request_latency_seconds": sequence.last_token_s - arrival_s,
            "request_queue_time_seconds": max(0.0, sequence.scheduled_s - sequence.ready_s),
            "request_prefill_time_seconds": prefill_s,
            "request_decode_time_seconds": decode_s,
            "request_inference_time_seconds": prefill_s + decode_s,
            "request_time_per_output_token_seconds": decode_s / max(1, answer.output_tokens - 1),
            "request_prompt_tokens": answer.prompt_tokens,
            "request_generation_tokens": answer.output_tokens,
            # of n completions, which are one here
            "request_max_num_generation_tokens": answer.output_tokens,
        }.items():
            self.histograms.observe(name, value)
        self.counters.finished[answer.finish_reason] += 1

    def lost(self, generation: Generation) -> None:
        """A request whose client is gone before its end."""
        pacer = self.active.pop(generation, None)
        self._tgi_active.discard(generation)
        if pacer is not None and generation.sequence is not None:
            pacer.batch.cancel(generation.sequence)
            if generation.held is not None:
                self.prefixes[pacer].give_back(
                    generation.held, generation.held.tail[:0], pacer.batch.kv_used
                )

    def _stepped(self, seconds: float, computed: int, decodes: int) -> None:
        """A step of a rank is known."""
        self.histograms.observe("iteration_tokens_total", computed)
        if decodes:
            self.histograms.observe("inter_token_latency_seconds", seconds, decodes)

    def close(self) -> None:
        for pacer in self.pacers:
            pacer.close()

    # --- everything else
    # -----------------------------------------------------------------------------------------

    def _reset(self, _request: HttpRequest, connection: ClientConnection) -> None:
        for prefix in self.prefixes.values():
            prefix.clear()
        connection.respond(200)

    def _metrics(self, _request: HttpRequest, connection: ClientConnection) -> None:
        """In vLLM's names, so that they are read as vLLM's are."""
        batches, lags = [pacer.batch for pacer in self.pacers], [pacer.lag for pacer in self.pacers]
        counters, capacity = self.counters, self.serving.replica.limits.kv_tokens * len(batches)
        waiting = sum(len(batch.waiting) for batch in batches)
        values: dict[str, float | Mapping[str, float]] = {
            "vllm:num_requests_running": sum(
                len(batch.decoding) + len(batch.prefilling) for batch in batches
            ),
            "vllm:num_requests_waiting": waiting,
            "vllm:num_requests_waiting_by_reason": {
                'reason="capacity"': waiting,
                'reason="deferred"': 0,
            },
            "vllm:engine_sleep_state": {
                f'sleep_state="{state}"': float(state == "awake") for state in SLEEP_STATES
            },
            "vllm:kv_cache_usage_perc": sum(batch.kv_used for batch in batches) / capacity,
            "vllm:num_preemptions_total": sum(batch.preemptions for batch in batches),
            "vllm:request_success_total": {
                f'finished_reason="{reason}"': counters.finished[reason]
                for reason in FINISH_REASONS
            },
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:generation_tokens_total": counters.generation_tokens,
            "vllm:prompt_tokens_cached_total": counters.cached_tokens,
            "vllm:prefix_cache_queries_total": sum(
                prefix.queried_tokens for prefix in self.prefixes.values()
            ),
            "vllm:prefix_cache_hits_total": sum(
                prefix.hit_tokens for prefix in self.prefixes.values()
            ),
            "emulator:streamed_tokens_total": sum(lag.tokens for lag in lags),
            "emulator:timing_error_seconds_total": sum(lag.sum_s for lag in lags),
            "emulator:timing_error_seconds_max": max(lag.worst_s for lag in lags),
        }
        text = exposition(self.serving.options.model, values, self.histograms)
        connection.respond(200, text.encode(), "text/plain; version=0.0.4")


def _refuse(refused: Refused, _request: HttpRequest, connection: ClientConnection) -> None:
    said = {"message": str(refused), "type": refused.kind, "param": None, "code": refused.status}
    connection.respond(refused.status, {"error": said})


def _refuse_as_tgi(refused: Refused, request: HttpRequest, connection: ClientConnection) -> None:
    """TGI has said 200 before it looks at what a stream asks for: the refusal is an event in it."""
    said = orjson.dumps({"error": str(refused), "error_type": refused.kind})
    asked = b'"stream":true' in request.body.replace(b" ", b"") and request.path == "/"
    if not refused.kind:
        connection.respond(refused.status, str(refused).encode(), "text/plain; charset=utf-8")
    elif asked or request.path == "/generate_stream":
        connection.write(STREAM_HEAD + chunk(sse(said)) + STREAM_END)
        connection.end()
    else:
        connection.respond(refused.status, said)


def _answer_with(content: object, _request: HttpRequest, connection: ClientConnection) -> None:
    connection.respond(200, content)


def _pages(serving: Serving) -> dict[str, object]:
    """What the server says of itself, by path: vLLM's version and models, TGI's info."""
    limits = serving.replica.limits
    card = {
        "id": serving.options.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "emulator",
        "root": serving.options.model,
        "max_model_len": limits.max_model_len,
    }
    info = {
        "model_id": serving.options.model,
        "max_concurrent_requests": serving.options.max_concurrent_requests,
        "max_input_tokens": limits.max_model_len - 1,
        "max_total_tokens": limits.max_model_len,
        "router": "emulator",
        "version": VERSION,
    }
    models = {"object": "list", "data": [card]}
    return {"/version": {"version": VERSION, "emulator": True}, "/v1/models": models, "/info": info}


def _fault_of(number: int, faults: Faults) -> str | None:
    """The fault of the ``number``-th request; single ones before periodic ones, errors before cuts."""
    once = {
        "die": faults.die_at_request,
        "stall": faults.stall_at_request,
        "garbage": faults.garbage_at_request,
    }
    every = {"error": faults.error_every, "cut": faults.cut_every}
    for name, at in once.items():
        if number == at:
            return name
    return next((name for name, period in every.items() if period and number % period == 0), None)

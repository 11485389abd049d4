"""What the emulator answers: its routes, requests on their way through the batch, and faults."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import orjson

from orchestrator.emulator.api import (
    Completion,
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
from orchestrator.emulator.pacer import Pacer, PreparedToken
from orchestrator.emulator.prefix import HeldBlocks, PrefixCache
from orchestrator.emulator.profile import Faults
from orchestrator.emulator.version import VERSION

GARBAGE = b'data: {"id":"\xff\xfe", "choices": [{"ind\n\n'


class Fault(Enum):
    """What goes wrong with one request, by the profile's fault script."""

    DIE = "die"  # the process ends
    STALL = "stall"  # the whole engine stands still
    GARBAGE = "garbage"  # the answer cannot be read
    ERROR = "error"  # HTTP 500
    CUT = "cut"  # the connection closes in the middle of the stream


class Generation:
    """One request while it is in the batch. Makes the bytes of its tokens, carries out its scripted
    fault, and ends its answer.
    """

    __slots__ = (
        "_app",
        "_connection",
        "_fault",
        "_last_is_prepared",
        "_prepared_tokens",
        "completion",
        "held",
        "sequence",
        "write",
    )

    def __init__(
        self, app: App, connection: ClientConnection, completion: Completion, fault: Fault | None
    ) -> None:
        self._app = app
        self._connection = connection
        self._fault = fault
        self._prepared_tokens = 0
        self._last_is_prepared = False  # the last token of the answer
        self.completion = completion
        self.held: HeldBlocks | None = None  # of its rank's prefix cache
        self.sequence: Sequence | None = None
        self.write = connection.write
        connection.on_lost = partial(app.lost, self)

    def prepare(self, is_last: bool) -> PreparedToken:
        """Builds the bytes of the next token. After a last token, and where a fault is scripted,
        ``sent`` is called: it writes answers that are not streamed, ends streams, and carries out
        faults.
        """
        index = self._prepared_tokens
        self._prepared_tokens += 1
        self._last_is_prepared = is_last
        self._app.counters.generation_tokens += 1
        report_sent = is_last or self._fault is not None
        if not self.completion.stream:
            return PreparedToken(b"", report_sent)
        if self._fault is Fault.GARBAGE:
            event = GARBAGE
        else:
            event = self.completion.event(index, is_last)
        if is_last:
            payload = chunk(event + self.completion.closing_events()) + STREAM_END
        else:
            payload = chunk(event)
        if index == 0:
            payload = STREAM_HEAD + payload
        return PreparedToken(payload, report_sent)

    def sent(self) -> None:
        """Called after the last token, and after every token of a request with a fault."""
        if not self._connection.open:
            return
        if self._fault is not None and self._ends_by_fault():
            return
        if self._last_is_prepared:
            self._finish()

    def _ends_by_fault(self) -> bool:
        """Carries out the scripted fault. Returns whether it ended this request."""
        if self._fault is Fault.DIE:
            self._app.log(
                "EngineDeadError: EngineCore encountered an issue (emulated fault die_at_request)",
                "ERROR",
            )
            os._exit(0)  # vLLM's exit status when it dies at run time
        if self._fault is Fault.STALL:
            stall_s = self._app.serving.options.profile.faults.stall_s
            self._app.active[self].stall(stall_s)
            self._fault = None
        if self._fault is Fault.CUT:
            middle = max(1, self.completion.output_tokens // 2)
            if self._prepared_tokens >= middle:
                self._connection.abort()
                return True
        return False

    def _finish(self) -> None:
        self._app.finished(self)
        if self.completion.stream:
            self._connection.end()
        elif self._fault is Fault.GARBAGE:
            self._connection.respond(200, GARBAGE)
        else:
            self._connection.respond(200, self.completion.document())


# As in vLLM (v1/engine/__init__.py: FinishReason). Neither vLLM nor the emulator counts a
# request that its client gave up.
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


class Api(Enum):
    """Whose limits and error documents an endpoint has."""

    OPENAI = "openai"
    TGI = "tgi"


Parse = Callable[[bytes, Serving], Completion]


class App:
    """The server's state. One event loop, no locks."""

    def __init__(
        self, serving: Serving, loop: asyncio.AbstractEventLoop, log: Callable[[str, str], None]
    ) -> None:
        self.serving = serving
        self.log = log
        self.counters = Counters()
        self.requests = 0
        self.active: dict[Generation, Pacer] = {}
        self._tgi_active: set[Generation] = set()
        self.histograms = Histograms(serving.replica.limits.max_model_len)
        options = serving.options
        # The jitter differs by the launch's own model name and the replica's own address.
        server = f"{options.model} {options.host}:{options.port}"
        self.pacers: list[Pacer] = []
        self.prefixes: dict[Pacer, PrefixCache] = {}
        for rank in range(options.settings.data_parallel_size):
            pacer = Pacer(Batch(serving.replica, f"{server} {rank}"), loop, self._stepped)
            self.pacers.append(pacer)
            self.prefixes[pacer] = PrefixCache(serving.replica.limits.kv_tokens)
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, ClientConnection], None]] = {}
        pages: dict[str, object] = {"/health": b"", "/ping": b"", **_pages(serving)}
        for path, content in pages.items():
            self._routes["GET", path] = partial(_answer_with, content)
        self._routes["GET", "/metrics"] = self._metrics
        self._routes["POST", "/reset_prefix_cache"] = self._reset
        self._add_generating("/v1/completions", Api.OPENAI, parse_completion)
        self._add_generating("/v1/chat/completions", Api.OPENAI, parse_chat)
        self._add_generating("/generate", Api.TGI, partial(parse_tgi, stream=False))
        self._add_generating("/generate_stream", Api.TGI, partial(parse_tgi, stream=True))
        self._add_generating("/", Api.TGI, partial(parse_tgi, stream=None))

    def _add_generating(self, path: str, api: Api, parse: Parse) -> None:
        self._routes["POST", path] = partial(self._generate, api, parse)

    def accept(self) -> ClientConnection:
        """Makes the connection of a new client. The event loop accepts all waiting clients in one
        go, so tokens that are due are written before each of them.
        """
        self._catch_up()
        return ClientConnection(self.handle)

    def _catch_up(self) -> None:
        for pacer in self.pacers:
            pacer.catch_up()

    def handle(self, request: HttpRequest, connection: ClientConnection) -> None:
        """Answers one request, now or through the batch. Tokens that are due go first."""
        self._catch_up()
        route = self._routes.get((request.method, request.path))
        if route is None:
            paths = {path for _, path in self._routes}
            if request.path in paths:
                connection.respond(405, {"detail": "Method Not Allowed"})
            else:
                connection.respond(404, {"detail": "Not Found"})
        elif not self._authorized(request):
            connection.respond(401, {"error": "Unauthorized"})
        else:
            route(request, connection)

    def _authorized(self, request: HttpRequest) -> bool:
        """Whether a request may be answered. As in vLLM, the key guards /v1; here it guards
        everything else that is asked for by POST, too.
        """
        key = self.serving.options.api_key
        if key is None or (request.method == "GET" and not request.path.startswith("/v1")):
            return True
        authorization = request.headers.get("authorization", "")
        return hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode())

    # --- endpoints that generate

    def _generate(
        self, api: Api, parse: Parse, request: HttpRequest, connection: ClientConnection
    ) -> None:
        try:
            self._check_queue(api)
            completion = parse(request.body, self.serving)
            self.requests += 1
            fault = fault_of(self.requests, self.serving.options.profile.faults)
            if fault is Fault.ERROR:
                raise _scripted_error(api)
        except Refused as refused:
            if api is Api.TGI:
                _refuse_as_tgi(refused, request, connection)
            else:
                _refuse(refused, connection)
            return
        generation = Generation(self, connection, completion, fault)
        pacer = min(self.pacers, key=_requests_of)
        if completion.kv_received:
            completion.cached_tokens = completion.prompt_tokens
        elif self.serving.options.settings.enable_prefix_caching is not False:
            generation.held = self.prefixes[pacer].take(
                completion.prompt, completion.cache_key, pacer.batch.kv_used
            )
            completion.cached_tokens = generation.held.hit_tokens
        self.active[generation] = pacer
        if api is Api.TGI:
            self._tgi_active.add(generation)
        self.counters.prompt_tokens += completion.prompt_tokens
        self.counters.cached_tokens += completion.cached_tokens
        generation.sequence = pacer.submit(
            completion.prompt_tokens,
            completion.output_tokens,
            completion.cached_tokens,
            generation,
        )

    def _check_queue(self, api: Api) -> None:
        """Raises Refused when as many requests are here as the API's limit allows."""
        if api is Api.TGI:
            if len(self._tgi_active) >= self.serving.options.max_concurrent_requests:
                raise Refused("Model is overloaded", 429, "overloaded")
            return
        most_requests = self.serving.options.settings.max_num_queued_reqs
        if most_requests is not None and len(self.active) >= most_requests:
            raise Refused("The server's request queue is full", 503, "ServiceUnavailableError")

    # --- ends

    def finished(self, generation: Generation) -> None:
        """Counts a request whose tokens have all left, and gives back its blocks."""
        pacer = self.active.pop(generation)
        self._tgi_active.discard(generation)
        completion = generation.completion
        sequence = generation.sequence
        assert sequence is not None
        sequence.owner = None
        if generation.held is not None:
            self.prefixes[pacer].give_back(
                generation.held, completion.continuation(), pacer.batch.kv_used
            )
        arrival_s = sequence.ready_s - self.serving.replica.request_overhead_s
        queue_s = max(0.0, sequence.scheduled_s - sequence.ready_s)
        prefill_s = sequence.first_token_s - sequence.scheduled_s
        decode_s = sequence.last_token_s - sequence.first_token_s
        further_tokens = max(1, completion.output_tokens - 1)
        observe = self.histograms.observe
        observe("time_to_first_token_seconds", sequence.first_token_s - arrival_s)
        observe("e2e_request_latency_seconds", sequence.last_token_s - arrival_s)
        observe("request_queue_time_seconds", queue_s)
        observe("request_prefill_time_seconds", prefill_s)
        observe("request_decode_time_seconds", decode_s)
        observe("request_inference_time_seconds", prefill_s + decode_s)
        observe("request_time_per_output_token_seconds", decode_s / further_tokens)
        observe("request_prompt_tokens", completion.prompt_tokens)
        observe("request_generation_tokens", completion.output_tokens)
        # vLLM's maximum over the n completions of a request; here a request has one
        observe("request_max_num_generation_tokens", completion.output_tokens)
        self.counters.finished[completion.finish_reason] += 1

    def lost(self, generation: Generation) -> None:
        """Forgets a request whose client left before its end."""
        pacer = self.active.pop(generation, None)
        self._tgi_active.discard(generation)
        if pacer is None or generation.sequence is None:
            return
        pacer.batch.cancel(generation.sequence)
        if generation.held is not None:
            no_answer = generation.held.tail[:0]
            self.prefixes[pacer].give_back(generation.held, no_answer, pacer.batch.kv_used)

    def _stepped(self, seconds: float, computed_tokens: int, decodes: int) -> None:
        """Counts a step of a rank."""
        self.histograms.observe("iteration_tokens_total", computed_tokens)
        if decodes:
            self.histograms.observe("inter_token_latency_seconds", seconds, decodes)

    def close(self) -> None:
        for pacer in self.pacers:
            pacer.close()

    # --- everything else

    def _reset(self, _request: HttpRequest, connection: ClientConnection) -> None:
        for prefix in self.prefixes.values():
            prefix.clear()
        connection.respond(200)

    def _metrics(self, _request: HttpRequest, connection: ClientConnection) -> None:
        """Answers with figures under vLLM's names, so that they are read as those of vLLM are."""
        batches = [pacer.batch for pacer in self.pacers]
        prefixes = self.prefixes.values()
        lags = [pacer.lag for pacer in self.pacers]
        counters = self.counters
        capacity_tokens = self.serving.replica.limits.kv_tokens * len(batches)
        running = sum(len(batch.decoding) + len(batch.prefilling) for batch in batches)
        waiting = sum(len(batch.waiting) for batch in batches)
        sleep_states = {f'sleep_state="{state}"': float(state == "awake") for state in SLEEP_STATES}
        finished = {
            f'finished_reason="{reason}"': counters.finished[reason] for reason in FINISH_REASONS
        }
        values: dict[str, float | Mapping[str, float]] = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:num_requests_waiting_by_reason": {
                'reason="capacity"': waiting,
                'reason="deferred"': 0,
            },
            "vllm:engine_sleep_state": sleep_states,
            "vllm:kv_cache_usage_perc": sum(batch.kv_used for batch in batches) / capacity_tokens,
            "vllm:num_preemptions_total": sum(batch.preemptions for batch in batches),
            "vllm:request_success_total": finished,
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:generation_tokens_total": counters.generation_tokens,
            "vllm:prompt_tokens_cached_total": counters.cached_tokens,
            "vllm:prefix_cache_queries_total": sum(prefix.queried_tokens for prefix in prefixes),
            "vllm:prefix_cache_hits_total": sum(prefix.hit_tokens for prefix in prefixes),
            "emulator:streamed_tokens_total": sum(lag.tokens for lag in lags),
            "emulator:timing_error_seconds_total": sum(lag.sum_s for lag in lags),
            "emulator:timing_error_seconds_max": max(lag.worst_s for lag in lags),
        }
        text = exposition(self.serving.options.model, values, self.histograms)
        connection.respond(200, text.encode(), "text/plain; version=0.0.4")


def _requests_of(pacer: Pacer) -> int:
    """The unfinished requests of a rank; a new request goes to the rank with the fewest."""
    batch = pacer.batch
    return len(batch.decoding) + len(batch.prefilling) + len(batch.waiting)


def _scripted_error(api: Api) -> Refused:
    """The refusal that the fault script asks for."""
    message = "Request failed during generation: emulated fault error_every"
    if api is Api.TGI:
        return Refused(message, 424, "generation")
    return Refused(message, 500, "InternalServerError")


def _refuse(refused: Refused, connection: ClientConnection) -> None:
    error = {"message": str(refused), "type": refused.kind, "param": None, "code": refused.status}
    connection.respond(refused.status, {"error": error})


def _refuse_as_tgi(refused: Refused, request: HttpRequest, connection: ClientConnection) -> None:
    """TGI answers 200 before it looks at what a stream asks for: the refusal is an event in it."""
    error = orjson.dumps({"error": str(refused), "error_type": refused.kind})
    body = request.body.replace(b" ", b"")
    wants_stream = request.path == "/" and b'"stream":true' in body
    if not refused.kind:
        connection.respond(refused.status, str(refused).encode(), "text/plain; charset=utf-8")
    elif wants_stream or request.path == "/generate_stream":
        connection.write(STREAM_HEAD + chunk(sse(error)) + STREAM_END)
        connection.end()
    else:
        connection.respond(refused.status, error)


def _answer_with(content: object, _request: HttpRequest, connection: ClientConnection) -> None:
    connection.respond(200, content)


def _pages(serving: Serving) -> dict[str, object]:
    """Pages that describe the server, by path: vLLM's version and models, TGI's info."""
    limits = serving.replica.limits
    card = {
        "id": serving.options.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "emulator",
        "root": serving.options.model,
        "max_model_len": limits.max_model_len,
    }
    adapters = [
        {**card, "id": adapter, "root": adapter, "parent": serving.options.model}
        for adapter in serving.options.adapters
    ]
    info = {
        "model_id": serving.options.model,
        "max_concurrent_requests": serving.options.max_concurrent_requests,
        "max_input_tokens": limits.max_model_len - 1,
        "max_total_tokens": limits.max_model_len,
        "router": "emulator",
        "version": VERSION,
    }
    return {
        "/version": {"version": VERSION, "emulator": True},
        "/v1/models": {"object": "list", "data": [card, *adapters]},
        "/info": info,
    }


def fault_of(number: int, faults: Faults) -> Fault | None:
    """The fault of the ``number``-th request. Faults of one request come before periodic ones, and
    errors before cuts.
    """
    single = {
        Fault.DIE: faults.die_at_request,
        Fault.STALL: faults.stall_at_request,
        Fault.GARBAGE: faults.garbage_at_request,
    }
    for fault, at_request in single.items():
        if number == at_request:
            return fault
    periodic = {Fault.ERROR: faults.error_every, Fault.CUT: faults.cut_every}
    for fault, period in periodic.items():
        if period and number % period == 0:
            return fault
    return None

"""What the emulator answers: routes, requests on their way through the batch, faults."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import __version__
from orchestrator.engines.emulator import answers
from orchestrator.engines.emulator.answers import Answer, Asked
from orchestrator.engines.emulator.batch import Batch, Sequence
from orchestrator.engines.emulator.http import STREAM_END, STREAM_HEAD, Connection, Request, chunk, dumps
from orchestrator.engines.emulator.metrics import Counters, exposition
from orchestrator.engines.emulator.pacer import Pacer
from orchestrator.engines.emulator.prefix import PrefixCache
from orchestrator.engines.emulator.profile import Faults
from orchestrator.engines.emulator.requests import Refused, parse_chat, parse_completion, parse_tgi
from orchestrator.engines.emulator.serving import Serving

GARBAGE = b'data: {"id":"\xff\xfe", "choices": [{"ind\n\n'


class Generation:
    """One request while it is in the batch: builds its tokens' bytes, carries out its scripted fault, ends itself."""

    __slots__ = ("_answer", "_app", "_fault", "_index", "_last", "_tgi", "sequence", "stream")

    def __init__(self, app: App, connection: Connection, answer: Answer, fault: str | None, tgi: bool) -> None:
        self._app, self._answer, self._fault, self._tgi = app, answer, fault, tgi
        self.stream = connection
        self.sequence: Sequence | None = None
        self._index = 0
        self._last = False
        connection.on_lost = self._lost

    def prepare(self, last: bool) -> tuple[bytes, bool]:
        """Bytes of the next token; whole answers and faults are dealt with in ``sent``."""
        index, self._last = self._index, last
        self._index = index + 1
        self._app.counters.generation_tokens += 1
        if not self._answer.asked.stream:
            return b"", last or self._fault is not None
        payload = self._answer.event(index, last) if self._fault != "garbage" else GARBAGE
        payload = chunk(payload + self._answer.close()) + STREAM_END if last else chunk(payload)
        return (STREAM_HEAD + payload if index == 0 else payload), last or self._fault is not None

    def sent(self) -> None:
        """After a last token, or any token of a request with a fault."""
        if self.stream.open and not (self._fault is not None and self._act()) and self._last:
            self._finish()

    def _act(self) -> bool:
        """Carry out the scripted fault; True when this request is over by it."""
        if self._fault == "die":
            self._app.log("EngineDeadError: EngineCore encountered an issue (emulated fault die_at_request)")
            os._exit(0)  # vLLM's exit status when it dies at run time
        if self._fault == "stall":
            self._app.active[self].stall(self._app.serving.faults.stall_s)
            self._fault = None
        elif self._fault == "cut" and self._index >= max(1, self._answer.asked.output_tokens // 2):
            self.stream.abort()
            return True
        return False

    def _finish(self) -> None:
        asked, connection = self._answer.asked, self.stream
        self._app.finished(self, asked)
        connection.on_lost = None
        if asked.stream:
            connection.end_stream()
        else:
            body = GARBAGE if self._fault == "garbage" else self._answer.whole()
            connection.respond_json(200, body, self._app.timing_headers(asked) if self._tgi else None)

    def _lost(self) -> None:
        """The client went away: its place in the batch is free again."""
        self._app.lost(self)


class App:
    """The server's state. One event loop, no locks."""

    def __init__(self, serving: Serving, loop: asyncio.AbstractEventLoop, log: Callable[[str], None]) -> None:
        self.serving, self.log = serving, log
        self.counters = Counters()
        self.requests = 0
        self.active: dict[Generation, Pacer] = {}
        self._tgi_active: set[Generation] = set()
        self.pacers = [Pacer(Batch(serving.replica), loop) for _ in range(serving.ranks)]
        self.prefix = PrefixCache(serving.replica.limits.kv_tokens)
        self._started = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[Request, Connection], None]] = {
            ("GET", "/health"): lambda _, connection: connection.respond(200, b"", "text/plain"),
            ("GET", "/ping"): lambda _, connection: connection.respond(200, b"", "text/plain"),
            ("GET", "/version"): lambda _, connection: connection.respond_json(200, dumps(self._version())),
            ("GET", "/v1/models"): lambda _, connection: connection.respond_json(200, dumps(self._models())),
            ("GET", "/info"): lambda _, connection: connection.respond_json(200, dumps(self._info())),
            ("GET", "/metrics"): self._metrics,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/generate"): self._generate,
            ("POST", "/generate_stream"): self._generate_stream,
            ("POST", "/"): self._compat_generate,
        }

    def accept(self) -> Connection:
        """A new client. The loop accepts all that wait in one go, so tokens that are due go in between."""
        self._catch_up()
        return Connection(self.handle)

    def _catch_up(self) -> None:
        for pacer in self.pacers:
            pacer.catch_up()

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request, now or by the batch. Tokens that are due go first."""
        self._catch_up()
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self._routes)
            status, what = (405, "Method Not Allowed") if known else (404, "Not Found")
            connection.respond_json(status, dumps({"detail": what}))
        elif not self._authorized(request):
            connection.respond_json(401, dumps({"error": "Unauthorized"}))
        else:
            route(request, connection)

    def _authorized(self, request: Request) -> bool:
        """As vLLM: the key guards /v1; here also what else generates."""
        key = self.serving.api_key
        if key is None or (request.method == "GET" and not request.path.startswith("/v1")):
            return True
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {key}".encode())

    # --- endpoints that generate -------------------------------------------------------------------------------------

    def _completions(self, request: Request, connection: Connection) -> None:
        self._openai(request, connection, chat=False)

    def _chat(self, request: Request, connection: Connection) -> None:
        self._openai(request, connection, chat=True)

    def _openai(self, request: Request, connection: Connection, chat: bool) -> None:
        queued = self.serving.max_num_queued_reqs
        if queued is not None and len(self.active) >= queued:
            self.counters.rejected += 1
            self._refuse(connection, 503, "The server's request queue is full", "ServiceUnavailableError")
            return
        try:
            asked, prompt = (parse_chat if chat else parse_completion)(request.body, self.serving)
        except Refused as refused:
            self._refuse(connection, refused.status, str(refused), refused.kind)
            return
        self._start(connection, asked, prompt, lambda ready: answers.OpenAI(ready, chat))

    def _refuse(self, connection: Connection, status: int, message: str, kind: str) -> None:
        body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
        connection.respond_json(status, dumps(body))

    def _generate(self, request: Request, connection: Connection) -> None:
        self._tgi(request, connection, stream=False)

    def _generate_stream(self, request: Request, connection: Connection) -> None:
        self._tgi(request, connection, stream=True)

    def _compat_generate(self, request: Request, connection: Connection) -> None:
        """TGI's ``POST /``: streams when the body says so, else answers with a list of one."""
        self._tgi(request, connection, stream=None)

    def _tgi(self, request: Request, connection: Connection, stream: bool | None) -> None:
        if len(self._tgi_active) >= self.serving.max_concurrent_requests:
            self.counters.rejected += 1
            connection.respond_json(429, dumps({"error": "Model is overloaded", "error_type": "overloaded"}))
            return
        try:
            asked, prompt = parse_tgi(request.body, self.serving, stream)
        except Refused as refused:
            connection.respond_json(422, dumps({"error": str(refused), "error_type": "validation"}))
            return
        in_list = stream is None
        self._start(connection, asked, prompt, lambda ready: answers.Tgi(ready, in_list), tgi=True)

    def _start(
        self,
        connection: Connection,
        asked: Asked,
        prompt: list[int] | bytes,
        answer: Callable[[Asked], Answer],
        tgi: bool = False,
    ) -> None:
        self.requests += 1
        fault = _fault_of(self.requests, self.serving.faults)
        if fault == "error":
            self._refuse(connection, 500, "emulated fault error_every", "InternalServerError")
            return
        cached = self.prefix.lookup(prompt) if self.serving.prefix_caching else 0
        generation = Generation(self, connection, answer(replace(asked, cached_tokens=cached)), fault, tgi)
        pacer = min(self.pacers, key=lambda one: len(one.batch.decoding) + len(one.batch.waiting))
        self.active[generation] = pacer
        if tgi:
            self._tgi_active.add(generation)
        self.counters.prompt_tokens += asked.prompt_tokens
        generation.sequence = pacer.submit(asked.prompt_tokens, asked.output_tokens, cached, generation)

    # --- ends --------------------------------------------------------------------------------------------------------

    def finished(self, generation: Generation, asked: Asked) -> None:
        """Every token of a request has left."""
        self.active.pop(generation)
        self._tgi_active.discard(generation)
        counters, sequence = self.counters, generation.sequence
        assert sequence is not None
        sequence.owner = None
        arrival_s = sequence.ready_s - self.serving.replica.request_overhead_s
        counters.succeeded += 1
        counters.e2e.add(sequence.last_token_s - arrival_s)
        counters.ttft.add(sequence.first_token_s - arrival_s)
        counters.queue.add(max(0.0, sequence.scheduled_s - sequence.ready_s))
        if asked.output_tokens > 1:
            counters.tpot.add((sequence.last_token_s - sequence.first_token_s) / (asked.output_tokens - 1))

    def lost(self, generation: Generation) -> None:
        """A request whose client is gone before its end."""
        pacer = self.active.pop(generation, None)
        self._tgi_active.discard(generation)
        if pacer is not None and generation.sequence is not None:
            pacer.batch.cancel(generation.sequence)
            self.counters.aborted += 1

    def close(self) -> None:
        for pacer in self.pacers:
            pacer.close()

    def timing_headers(self, asked: Asked) -> dict[str, str]:
        """TGI's own headers on an answer that is not streamed."""
        return {"x-prompt-tokens": str(asked.prompt_tokens), "x-generated-tokens": str(asked.output_tokens)}

    # --- everything else -----------------------------------------------------------------------------------------

    def _version(self) -> dict[str, Any]:
        return {"version": f"{__version__}+emulator", "emulator": True}

    def _models(self) -> dict[str, Any]:
        limits = self.serving.replica.limits
        card = {
            "id": self.serving.model,
            "object": "model",
            "created": self._started,
            "owned_by": "emulator",
            "root": self.serving.model,
            "max_model_len": limits.max_model_len,
        }
        return {"object": "list", "data": [card]}

    def _info(self) -> dict[str, Any]:
        limits = self.serving.replica.limits
        return {
            "model_id": self.serving.model,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": self.serving.max_concurrent_requests,
            "max_best_of": 1,
            "max_stop_sequences": 4,
            "max_input_tokens": limits.max_model_len - 1,
            "max_total_tokens": limits.max_model_len,
            "max_batch_total_tokens": limits.kv_tokens,
            "validation_workers": 1,
            "max_client_batch_size": 1,
            "router": "emulator",
            "version": f"{__version__}+emulator",
        }

    def _reset(self, _request: Request, connection: Connection) -> None:
        self.prefix.clear()
        connection.respond(200, b"", "text/plain")

    def _metrics(self, _request: Request, connection: Connection) -> None:
        batches, counters, limits = [pacer.batch for pacer in self.pacers], self.counters, self.serving.replica.limits
        capacity = limits.kv_tokens * len(batches)
        lags = [pacer.lag for pacer in self.pacers]
        gauges: dict[str, float] = {
            "vllm:num_requests_running": sum(len(batch.decoding) + len(batch.prefilling) for batch in batches),
            "vllm:num_requests_waiting": sum(len(batch.waiting) for batch in batches),
            "vllm:kv_cache_usage_perc": sum(batch.kv_used for batch in batches) / capacity,
            "emulator:timing_error_seconds_max": max(lag.worst_s for lag in lags),
        }
        totals: dict[str, float] = {
            "vllm:num_preemptions_total": sum(batch.preemptions for batch in batches),
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:generation_tokens_total": counters.generation_tokens,
            "vllm:prefix_cache_queries_total": self.prefix.queried_tokens,
            "vllm:prefix_cache_hits_total": self.prefix.hit_tokens,
            "vllm:admission_rejections_total": counters.rejected,
            "emulator:streamed_tokens_total": sum(lag.tokens for lag in lags),
            "emulator:timing_error_seconds_total": sum(lag.sum_s for lag in lags),
        }
        info = {
            "block_size": "16",
            "kv_cache_size_tokens": str(limits.kv_tokens),
            "kv_cache_max_concurrency": f"{limits.kv_tokens / limits.max_model_len:.2f}",
        }
        text = exposition(self.serving.model, counters, gauges, totals, info)
        connection.respond(200, text.encode(), "text/plain; version=0.0.4")


def _fault_of(number: int, faults: Faults) -> str | None:
    """The fault of the ``number``-th request; single ones before periodic ones, errors before cuts."""
    once = {"die": faults.die_at_request, "stall": faults.stall_at_request, "garbage": faults.garbage_at_request}
    every = {"error": faults.error_every, "cut": faults.cut_every}
    for name, at in once.items():
        if number == at:
            return name
    return next((name for name, period in every.items() if period and number % period == 0), None)

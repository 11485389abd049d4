"""The /metrics of a server that nobody here started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.base.http import HttpResponse
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import Target
from orchestrator.sweep import endpoint_metrics
from orchestrator.sweep.endpoint_metrics import EndpointMetrics, lines_of, metrics_of
from orchestrator.telemetry import engine_metrics
from orchestrator.telemetry.clock_offset import SAME_CLOCK

VLLM = (
    "# HELP vllm:num_requests_running Number of requests.\n"
    'vllm:num_requests_running{{engine="0"}} 2\n'
    'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
    'vllm:generation_tokens_total{{engine="1"}} 5\n'
    'vllm:generation_tokens_created{{engine="0"}} 77\n'
    "python_gc_objects_total 9\n"
)
TRTLLM = 'trtllm_generation_tokens_total{{model_name="m"}} {tokens}\n'
SGLANG = (
    'sglang:generation_tokens_total{{model_name="m"}} {tokens}\n'
    'sglang:prompt_tokens_total{{model_name="m"}} 9\n'
    'sglang:spec_accept_length{{tp_rank="0"}} 2.5\n'
    'sglang:spec_accept_rate{{tp_rank="0"}} 0.5\n'
)


class Server(HTTPServer):
    """Answers ``path`` with the next of its pages, and the last one for ever."""

    pages: list[str]
    keys: list[str | None]
    asked: list[str]  # paths
    path = "/v2/metrics"
    status = 200


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.keys.append(self.headers.get("Authorization"))
        if self.path != self.server.path:
            self.send_error(404)
            return
        pages = self.server.pages
        page = pages.pop(0) if len(pages) > 1 else pages[0]
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.keys = []
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def metrics_at(server: Server) -> EndpointMetrics:
    return EndpointMetrics(
        Target(f"http://127.0.0.1:{server.server_port}/v2", "m", api_key="secret")
    )


def test_the_counters_of_an_endpoint_are_read_before_and_after_the_load(server: Server) -> None:
    # the first page is read twice: to know the engine, and as the first sample
    server.pages = [VLLM.format(tokens=tokens) for tokens in (10, 10, 250)]
    metrics = metrics_at(server)
    metrics.begin()
    samples = metrics.end()
    assert [sample.values["generation_tokens_total"] for sample in samples] == [15.0, 255.0]
    assert samples[0].values["running"] == 2.0
    assert samples[0].clock == SAME_CLOCK
    assert set(server.keys) == {"Bearer secret"}
    assert metrics.end() == []


def test_averages_of_earlier_drafts_are_not_those_of_the_load(server: Server) -> None:
    server.pages = [SGLANG.format(tokens=tokens) for tokens in (10, 10, 250)]
    metrics = metrics_at(server)
    metrics.begin()
    first, last = metrics.end()
    assert "spec_accept_length" not in first.values
    assert (last.values["spec_accept_length"], last.values["spec_accept_share"]) == (2.5, 0.5)


@pytest.mark.parametrize(("status", "page"), [(404, VLLM), (200, "<html>no</html>"), (200, "a 1")])
def test_a_server_without_metrics_of_an_engine_is_not_asked_again(
    server: Server, status: int, page: str
) -> None:
    server.status, server.pages = status, [page]
    metrics = metrics_at(server)
    metrics.begin()
    assert metrics.end() == []
    assert server.asked == ["/v2/metrics", "/v2/prometheus/metrics"]


def test_metrics_are_found_at_every_path_of_an_engine(server: Server) -> None:
    server.path = "/v2/prometheus/metrics"
    server.pages = [TRTLLM.format(tokens=tokens) for tokens in (10, 10, 250, 250, 300)]
    metrics = metrics_at(server)
    metrics.begin()
    counted = [sample.values["generation_tokens_total"] for sample in metrics.end()]
    assert counted == [10.0, 250.0]
    server.asked.clear()
    metrics.begin()
    metrics.end()
    assert set(server.asked) == {"/v2/prometheus/metrics"}, "the path is known from now on"


def test_a_server_that_is_gone_has_no_metrics() -> None:
    metrics = EndpointMetrics(Target("http://127.0.0.1:9", "m"))
    metrics.begin()
    assert metrics.end() == []


def test_a_server_that_lets_the_first_reading_wait_delays_no_further_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_metrics, "READ_LIMIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # nobody accepts its connections
        silent.setblocking(False)
        metrics = EndpointMetrics(Target(f"http://127.0.0.1:{silent.getsockname()[1]}", "m"))
        metrics.begin()
        silent.accept()[0].close()
        metrics.begin()
        assert metrics.end() == []
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_server_that_answered_once_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages = [VLLM.format(tokens=10)]
    metrics = metrics_at(server)
    metrics.begin()
    assert metrics.end()
    with monkeypatch.context() as busy:
        busy.setattr(endpoint_metrics, "ask", lambda *_, **__: HttpResponse(0, error="too long"))
        metrics.begin()
        assert metrics.end() == []
    metrics.begin()
    assert metrics.end()


@pytest.mark.parametrize(
    "engine", ["vllm", "sglang", "tgi", "tensorrt_llm", "lmdeploy", "lightllm", "llama_cpp"]
)
def test_the_names_of_its_metrics_tell_which_engine_it_is(engine: str) -> None:
    metrics = ENGINES[engine].metrics
    page = "".join(f"{name} 1\n" for text in metrics.values() for name in text.split(" + "))
    assert metrics_of(page.encode()) == metrics


def test_only_lines_with_a_value_that_matters_are_kept() -> None:
    lines = lines_of(ENGINES["vllm"].metrics).findall(VLLM.format(tokens=1).encode())
    assert [line.split(b"{")[0] for line in lines] == [
        b"vllm:num_requests_running",
        *[b"vllm:generation_tokens_total"] * 2,
    ]

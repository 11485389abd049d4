"""Engine metrics: text becomes columns, one reading at each end, nothing invented."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.load.point import Target
from orchestrator.sweep.replicas import Replicas
from orchestrator.telemetry.engine_metrics import normalize, read

NAMES = {
    "running": "vllm:num_requests_running",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "ttft_count": "vllm:ttft_count",
}
TEXT = """\
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:ttft histogram
vllm:ttft_bucket{le="0.1"} 5
vllm:ttft_bucket{le="+Inf"} 9
vllm:ttft_count 9
vllm:ttft_sum 0.5
# TYPE other gauge
other 1
"""


def test_series_add_up_and_shares_are_averaged():
    assert normalize(TEXT, NAMES) == {"running": 7.0, "kv_usage": 0.5, "ttft_count": 9.0}


def test_what_is_not_told_is_left_out():
    assert normalize(TEXT, {"waiting": "vllm:num_requests_waiting"}) == {}


def test_a_label_chooses_a_series_and_an_absent_label_is_empty():
    text = (
        'n{pp_rank="0",priority=""} 2\nn{pp_rank="0",priority="7"} '
        '1\nn{pp_rank="1",priority=""} 2\n'
    )
    assert normalize(text, {"running": 'n{pp_rank="0",priority=""}'}) == {"running": 2.0}
    assert normalize("n 3\n", {"running": 'n{priority=""}'}) == {"running": 3.0}
    assert normalize(text, {"running": 'n{pp_rank="9"}'}) == {}


def test_one_name_may_fill_two_columns_and_two_names_one():
    text = "computed_total 5\ncached_total 3\n"
    names = {
        "prompt": "computed_total",
        "query": "computed_total + cached_total",
        "hit": "cached_total",
    }
    assert normalize(text, names) == {"prompt": 5.0, "query": 8.0, "hit": 3.0}
    assert normalize("computed_total 5\n", names) == {"prompt": 5.0}, "a part is not the whole"


def test_text_that_is_no_metrics_is_refused():
    with pytest.raises(ValueError):
        normalize("<html>not found</html>", NAMES)


@pytest.fixture
def engine():
    """A server whose answer a test chooses, and the Authorization headers it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.keys.append(self.headers.get("Authorization"))
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(self.server.text.encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.text, server.keys = 200, TEXT, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reading_of_a_server_has_its_values_and_our_key(engine):
    sample = read([f"http://127.0.0.1:{engine.server_port}/metrics"], NAMES, "secret")
    assert sample.values["running"] == 7.0
    assert engine.keys == ["Bearer secret"]


def test_pages_of_several_ranks_are_one_reading_and_a_part_of_them_is_none(engine):
    url = f"http://127.0.0.1:{engine.server_port}/metrics"
    sample = read([url, url], NAMES)
    assert sample.values == {"running": 14.0, "kv_usage": 0.5, "ttft_count": 18.0}
    assert read([url, "http://127.0.0.1:9/metrics"], NAMES) is None


def test_metrics_tell_whether_an_endpoint_of_any_engine_has_work(engine):
    replicas = Replicas(
        (), (Target(f"http://127.0.0.1:{engine.server_port}", "m", api_key="secret"),)
    )
    assert replicas.have_work()
    assert engine.keys == ["Bearer secret"]
    engine.text = "llamacpp:requests_processing 1\n"
    assert replicas.have_work()
    engine.text = (
        'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    )
    assert not replicas.have_work()
    engine.status = 404
    assert not replicas.have_work()


@pytest.mark.parametrize(
    ("status", "text"), [(404, TEXT), (200, "<html>"), (200, ""), (200, "other 1\n")]
)
def test_no_metrics_are_no_reading(engine, status, text):
    engine.status, engine.text = status, text
    assert read([f"http://127.0.0.1:{engine.server_port}/metrics"], NAMES) is None


def test_a_server_that_is_gone_is_no_reading():
    assert read(["http://127.0.0.1:9/metrics"], NAMES) is None


def test_estimates_of_work_are_of_one_gpu_and_null_when_the_engine_does_not_estimate():
    names = {"estimated_flops_per_gpu_total": "vllm:estimated_flops_per_gpu_total"}
    ranks = 'vllm:estimated_flops_per_gpu_total{engine="%d"} %s\n'
    assert normalize(ranks % (0, "3e12") + ranks % (1, "5e12"), names) == {
        "estimated_flops_per_gpu_total": 4e12
    }
    assert normalize(ranks % (0, "0.0") + ranks % (1, "0.0"), names) == {}

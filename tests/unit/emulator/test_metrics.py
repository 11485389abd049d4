"""The emulator's metrics text: types, labels, buckets, and that what reads it finds everything."""

from __future__ import annotations

import pytest

from orchestrator.emulator.metrics import Histograms, exposition
from orchestrator.engines.registry import ENGINES
from orchestrator.telemetry.engine_metrics import normalize


def test_metrics_have_types_and_labels_that_stay_text() -> None:
    lines = exposition(
        'a"b', {"vllm:num_requests_running": 3, "vllm:prompt_tokens_total": 9}
    ).splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="a\\"b"} 3' in lines
    assert "# TYPE vllm:num_requests_running gauge" in lines
    assert "# TYPE vllm:prompt_tokens_total counter" in lines


def test_histograms_are_cumulative_and_end_with_everything() -> None:
    histograms = Histograms(max_model_len=1000)
    for value in (0.01, 0.02, 0.3):
        histograms.observe("inter_token_latency_seconds", value, times=2)
    lines = exposition("m", {}, histograms).splitlines()
    values = {
        line.partition(" ")[0]: float(line.split()[-1])
        for line in lines
        if "inter_token" in line and "{" in line
    }
    at = 'vllm:inter_token_latency_seconds_bucket{engine="0",model_name="m",le="%s"}'
    assert [values[at % bound] for bound in (0.01, 0.025, 0.2, 0.3, "+Inf")] == [2, 4, 4, 6, 6]
    assert values[
        'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"}'
    ] == pytest.approx(0.66)
    assert 'vllm:request_prompt_tokens_bucket{engine="0",model_name="m",le="1000.0"} 0' in lines
    assert not any('le="2000.0"' in line for line in lines if "prompt_tokens" in line)


def test_every_metric_that_is_read_of_it_can_be_read() -> None:
    names = ENGINES["emulator"].metrics
    assert normalize(exposition("m", dict.fromkeys(names.values(), 1.5)), names) == dict.fromkeys(
        names, 1.5
    )

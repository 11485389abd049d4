"""Whether the counters of an endpoint grew by this load alone."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.outcomes import TokenCounts
from orchestrator.sweep.endpoint_use import EndpointUse, figures_of_endpoint, use_of_endpoint
from orchestrator.telemetry.engine_metrics import Sample
from tests.unit.results.builders import failed_request, request, requests

# 10 answers of 20 tokens to prompts of 10
LOAD = requests(*[request(index, tokens=20, token_count_source="usage") for index in range(10)])


def samples(output: float, prompt: float = 100.0, **more: float) -> list[Sample]:
    before = {"running": 0.0, "generation_tokens_total": 7.0, "prompt_tokens_total": 3.0}
    after = {
        "running": 1.0,
        "generation_tokens_total": 7.0 + output,
        "prompt_tokens_total": 3.0 + prompt,
        **more,
    }
    return [Sample(1, before), Sample(2, after)]


@pytest.mark.parametrize(
    ("output", "prompt", "use"),
    [
        (200, 100, EndpointUse.OWN),
        (209, 100, EndpointUse.OWN),  # an end token of nearly every answer
        (230, 100, EndpointUse.OTHERS),
        (200, 130, EndpointUse.OTHERS),  # with short answers to long prompts
        (150, 100, EndpointUse.PART),
        (200, 20, EndpointUse.OWN),  # llama.cpp counts the computed tokens alone
        (-5, 0, EndpointUse.UNKNOWN),  # it was started again
    ],
)
def test_counters_that_grew_by_other_tokens_are_not_this_loads(
    output: float, prompt: float, use: EndpointUse
) -> None:
    assert use_of_endpoint(samples(output, prompt), LOAD).use is use


def test_requests_without_an_end_may_have_added_what_they_asked_for() -> None:
    cut = requests(
        *[request(index, tokens=20) for index in range(9)],
        failed_request(9, output_tokens_asked=50, prompt=40),
    )
    assert use_of_endpoint(samples(180, 90), cut).use is EndpointUse.OWN
    assert use_of_endpoint(samples(225, 125), cut).use is EndpointUse.OWN
    assert use_of_endpoint(samples(250, 90), cut).use is EndpointUse.OTHERS
    assert use_of_endpoint(samples(250, 90), LOAD).use is EndpointUse.OTHERS
    assert use_of_endpoint(samples(250, 105), LOAD, left_out=3).use is EndpointUse.OWN


@pytest.mark.parametrize(
    "given", [{"token_count_source": TokenCounts.CHUNKS}, {"input_tokens": None}]
)
def test_answers_without_counts_do_not_tell_who_used_it(given: dict[str, Any]) -> None:
    rows = requests(*[request(index, tokens=20, **given) for index in range(3)])
    assert use_of_endpoint(samples(60, 30), rows).use is EndpointUse.UNKNOWN
    assert figures_of_endpoint(samples(60, 30), rows).note is None
    note = figures_of_endpoint(samples(60, 30, spec_accepted_tokens_total=3), rows).note
    assert note is not None and "unknown" in note


def test_what_other_clients_added_to_is_left_out_with_a_reason() -> None:
    shared = figures_of_endpoint(samples(1000, prefix_hit_tokens_total=3.0), LOAD)
    assert shared.note is not None
    assert "other clients used the endpoint meanwhile" in shared.note
    assert "(1,000 tokens counted, 200 of this load)" in shared.note
    assert [sample.values for sample in shared.samples] == [{"running": 0.0}, {"running": 1.0}]
    own = figures_of_endpoint(samples(200, prefix_hit_tokens_total=3.0), LOAD)
    assert own.note is None
    assert own.samples[-1].values["prefix_hit_tokens_total"] == 3.0

"""What a deployment's tokens need, as it is stored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.catalog.accelerators import Accelerator, find
from orchestrator.catalog.memory import ExpertRouting
from orchestrator.catalog.models import ModelFacts, model_facts
from orchestrator.catalog.work import MissingWork, StepWork, step_work
from orchestrator.spec.settings import EngineSettings

MODEL = "openai/gpt-oss-120b"


def facts(model: str = MODEL) -> ModelFacts:
    of_model = model_facts(model, online=False)
    assert of_model is not None
    return of_model


def device(name: str = "H100") -> Accelerator:
    accelerator = find(name)
    assert accelerator is not None
    return accelerator


def settings(**changes: object) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": MODEL, **changes})


def as_work(work: StepWork | MissingWork) -> StepWork:
    assert isinstance(work, StepWork)
    return work


def test_work_comes_back_from_json_as_it_was() -> None:
    work = step_work(facts(), settings(tensor_parallel_size=2), device())
    assert isinstance(work, StepWork)
    assert StepWork.from_json(json.loads(json.dumps(work.as_json()))) == work


@pytest.mark.parametrize("lacking", ["step", "peaks", "data_ranks"])
def test_a_record_of_another_version_is_refused(lacking: str) -> None:
    work = step_work(facts(), settings(), device())
    assert isinstance(work, StepWork)
    document = work.as_json()
    del document[lacking]
    with pytest.raises(KeyError):
        StepWork.from_json(document)


def test_cores_have_no_peak() -> None:
    assert step_work(facts(), settings(), device("cpu")) is MissingWork.CPU


def test_a_model_without_a_formula_has_no_work() -> None:
    uncovered = replace(facts().shape, index_n_heads=64)
    assert step_work(replace(facts(), shape=uncovered), settings(), device()) is MissingWork.TERM


def test_weights_on_the_host_are_not_read_from_the_device() -> None:
    assert step_work(facts(), settings(cpu_offload_gb=8), device()) is MissingWork.OFFLOAD


def test_w4a16_is_measured_by_the_peak_of_16_bits() -> None:
    # MXFP4 experts are widened: gpt-oss computes in bfloat16
    work = step_work(facts(), settings(), device())
    assert isinstance(work, StepWork)
    assert work.peaks.compute_type == "bfloat16"
    assert work.peaks.flops_s == 989.4e12
    assert work.peaks.as_of == "2026-11-21"


def test_a_tree_of_drafts_counts_the_tokens_that_are_verified() -> None:
    tree = {"method": "eagle", "num_speculative_tokens": 3, "num_draft_tokens": 16}
    chain = {"method": "ngram", "num_speculative_tokens": 3}
    drafts = []
    for speculative in (tree, chain):
        work = step_work(facts(), settings(speculative=speculative), device())
        assert isinstance(work, StepWork)
        drafts.append(work.draft_tokens)
    assert drafts == [16, 3]


@pytest.mark.parametrize(
    ("method", "vary"),
    [("ngram", True), ("NGRAM", True), ("suffix", True), ("mtp", False), ("eagle", False)],
)
def test_drafts_that_are_looked_up_vary_in_number(method: str, vary: bool) -> None:
    speculative = {"method": method, "num_speculative_tokens": 3}
    work = as_work(step_work(facts(), settings(speculative=speculative), device()))
    assert work.drafts_vary is vary
    assert StepWork.from_json(json.loads(json.dumps(work.as_json()))) == work


def test_without_speculation_no_drafts_vary_and_older_records_do_not_say() -> None:
    work = as_work(step_work(facts(), settings(), device()))
    assert not work.drafts_vary
    document = work.as_json()
    del document["drafts_vary"]
    assert StepWork.from_json(document) == work


@pytest.mark.parametrize(
    ("engine", "expert_parallel", "ranks_with_experts"),
    [("vllm", False, 4), ("vllm", True, 4), ("sglang", False, 1), ("sglang", True, 4)],
)
def test_data_parallel_ranks_divide_experts_unless_each_is_a_whole_replica(
    engine: str, expert_parallel: bool, ranks_with_experts: int
) -> None:
    of_one = as_work(step_work(facts(), settings(), device()))
    described = settings(
        engine=engine, data_parallel_size=4, enable_expert_parallel=expert_parallel
    )
    work = as_work(step_work(facts(), described, device()))
    assert work.step.experts == pytest.approx(of_one.step.experts / ranks_with_experts)
    assert work.step.routing.sharers == ranks_with_experts
    assert work.step.weights == of_one.step.weights
    assert work.data_ranks == 4


def test_the_shares_of_experts_are_ordered_and_full_with_many_tokens() -> None:
    routing = ExpertRouting(num_experts=128, experts_per_token=4)
    assert routing.least_share == 4 / 128
    assert routing.expected_share(1) == pytest.approx(4 / 128)
    assert routing.most_share(16) == pytest.approx(64 / 128)
    assert routing.expected_share(10_000) == pytest.approx(1)
    assert routing.most_share(10_000) == 1
    assert ExpertRouting(0, 0).expected_share(8) == ExpertRouting(0, 0).most_share(8) == 0

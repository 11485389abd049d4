"""MBU and MFU against figures that were worked out by hand, in the comments."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.efficiency import (
    CountedShares,
    Efficiency,
    EfficiencyNote,
    MissingFigures,
    Served,
    efficiency,
    efficiency_of,
)
from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import model_facts
from orchestrator.catalog.work import StepWork, step_work
from orchestrator.results.records import Distribution, EngineSide, Figures
from orchestrator.spec.settings import EngineSettings

PERCENT = 0.01
NO_PROMPTS = 1e-9  # prompt tokens/s: a window of decodes alone


def work(model: str, accelerator: str, **settings: object) -> StepWork:
    facts = model_facts(model, online=False)
    device = find(accelerator)
    assert facts is not None
    assert device is not None
    described = EngineSettings.model_validate({"engine": "vllm", "model": model, **settings})
    made = step_work(facts, described, device)
    assert isinstance(made, StepWork)
    return made


def decodes(running: float, context: float, token_ms: float, **changes: float) -> Served:
    """A window in which so many requests decode, and none prefills."""
    served = Served(
        output_tokens_s=running / token_ms * 1e3,
        input_tokens_s=NO_PROMPTS,
        token_s=token_ms / 1e3,
        context=context,
        prompt_context=0.0,
    )
    return replace(served, **changes)


def test_llama_70b_in_fp8_on_four_gpus() -> None:
    # Layers have 80 x (attention 150,994,944 + MLP 704,643,072) = 68,451,041,280 parameters of a
    # byte, and lm_head 128,256 x 8,192 = 1,050,673,152 of two: a step reads 70.55 GB.
    # The cache has 2 x 80 x 8 x 128 x 2 B = 327,680 B a token; 64 x 2,000 tokens are 41.94 GB.
    # 112.50 GB in 15 ms are 7.50 TB/s, of 4 x 3.35 TB/s: 0.560.
    # FLOPs: 2 x 69.50 G + 4 x 80 x 64 x 128 x 2,000 = 144.25 G a token, of 64 / 15 ms = 4,267
    # tokens/s: 615.5 TFLOP/s, of 4 x 1,978.9 (FP8): 0.0778.
    on_h100 = work(
        "meta-llama/Llama-3.3-70B-Instruct", "H100", tensor_parallel_size=4, quantization="fp8"
    )
    result = efficiency(on_h100, decodes(64, 2000, 15))
    assert result.running == pytest.approx(64)
    assert result.mbu.estimate == pytest.approx(0.560, rel=PERCENT)
    assert result.mbu.lower == result.mbu.estimate == result.mbu.upper
    assert result.mfu == pytest.approx(0.0778, rel=PERCENT)
    assert result.bytes_s.estimate == pytest.approx(7.50e12 / 4, rel=PERCENT)
    assert result.peaks.compute_type == "fp8"
    assert result.peaks.bandwidth_bytes_s == 3.35e12
    assert result.peaks.source.startswith("https://")
    assert result.peaks.as_of is not None


def test_llama_8b_on_one_gpu() -> None:
    # 32 x 218,112,000 + 128,256 x 4,096 = 7,504.9 M parameters of 2 B: 15.01 GB.
    # 32 x 1,000 tokens of 2 x 32 x 8 x 128 x 2 B = 131,072 B: 4.19 GB.
    # 19.20 GB in 8 ms are 2.400 TB/s, of 3.35: 0.7166.
    # 2 x 7.505 G + 4 x 32 x 32 x 128 x 1,000 = 15.53 G FLOPs, of 4,000 tokens/s: 62.1 T of 989.4.
    result = efficiency(work("meta-llama/Llama-3.1-8B-Instruct", "H100"), decodes(32, 1000, 8))
    assert result.mbu.estimate == pytest.approx(0.7166, rel=PERCENT)
    assert result.mfu == pytest.approx(0.0628, rel=PERCENT)
    # 2.400 TB/s and 62.1 TFLOP/s
    assert result.flops_per_byte == pytest.approx(25.9, rel=PERCENT)


def test_the_latent_cache_of_deepseek_v3_is_on_every_rank() -> None:
    # A token's cache: 61 layers x (512 + 64) x 2 B = 70,272 B on each of 8 ranks.
    # A rank reads of each step (bytes, FP8 with a float32 scale for 128 x 128 weights, 1.00024):
    #   attention without latents 10.49 G + dense and shared MLPs 3.74 G, an eighth:    1.780 GB
    #   lm_head 1.853 GB, an eighth: 0.232; latents 0.924, routers 0.213, norms 0.002:  1.371 GB
    #   experts 654.07 GB, an eighth, of which 1 - (1 - 8/256)^64 = 0.8689 are read:   71.041 GB
    #   64 x 2,000 tokens of cache: 8.995 GB
    # 83.19 GB in 30 ms are 2.773 TB/s, of 4.8: 0.5777.
    on_h200 = work("deepseek-ai/DeepSeek-V3", "H200", tensor_parallel_size=8)
    result = efficiency(on_h200, decodes(64, 2000, 30))
    assert result.mbu.estimate == pytest.approx(0.5777, rel=PERCENT)
    # 8 of 256 experts: 2.555 GB in place of 71.041; all of 64 x 8: 81.76 GB
    assert result.mbu.lower == pytest.approx((83.19 - 71.041 + 2.555) / 0.03 / 4800, rel=PERCENT)
    assert result.mbu.upper == pytest.approx((83.19 - 71.041 + 81.76) / 0.03 / 4800, rel=PERCENT)
    # FLOPs of a token: 2 x 36.63 G, and absorbed attention 61 x 128 x 2 x (2 x 512 + 64) x 2,000
    # = 33.98 G; 2,133 tokens/s: 228.8 TFLOP/s, of 8 x 1,978.9.
    assert result.mfu == pytest.approx(0.01445, rel=PERCENT)


def test_gpt_oss_reads_some_experts_and_half_of_its_layers_look_back_128_tokens() -> None:
    # A rank of two reads: layers without experts 1.699 GB and lm_head 1.158 GB, half: 1.429;
    # KV projections 0.212, half: 0.106; norms and routers 0.027;
    # experts 60.94 GB, half, of which 1 - (1 - 4/128)^16 = 0.3983 are read: 12.135 GB.
    # The cache has 2 x 4 heads x 64 x 2 B = 1,024 B a layer: 16 requests x 18 layers x
    # (1,000 + 128) tokens: 0.333 GB. 14.03 GB in 6 ms are 2.338 TB/s, of 3.35: 0.698.
    # (With 1,000 tokens in all layers it would be 0.71.)
    on_h100 = work("openai/gpt-oss-120b", "H100", tensor_parallel_size=2)
    result = efficiency(on_h100, decodes(16, 1000, 6))
    assert result.mbu.estimate == pytest.approx(0.698, rel=PERCENT)
    assert on_h100.window == 128


def test_every_micro_batch_of_a_pipeline_reads_all_weights() -> None:
    # Llama-8B on two stages, 32 requests: two micro-batches are under way, and each reads 15.01 GB
    # while a token takes 16 ms. With 4.19 GB of context: 34.21 GB in 16 ms, of 2 x 3.35 TB/s.
    model = "meta-llama/Llama-3.1-8B-Instruct"
    staged = work(model, "H100", pipeline_parallel_size=2)
    result = efficiency(staged, decodes(32, 1000, 16))
    assert result.mbu.estimate == pytest.approx(34.21 / 16e-3 / 6700, rel=PERCENT)
    # a single request is in one stage at a time: 15.01 GB + 0.13 GB
    alone = efficiency(staged, decodes(1, 1000, 16))
    assert alone.mbu.estimate == pytest.approx(15.14 / 16e-3 / 6700, rel=PERCENT)


def test_a_step_of_speculation_gives_several_tokens_for_one_reading() -> None:
    # 3 drafts, 60 % of them accepted: 1 + 3 x 0.6 = 2.8 tokens a step, so a step takes 8 ms x 2.8 =
    # 22.4 ms. It reads 15.01 GB of weights and 4.19 GB of context: 0.857 TB/s, of 3.35.
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    drafting = work("meta-llama/Llama-3.1-8B-Instruct", "H100", speculative=speculative)
    result = efficiency(drafting, decodes(32, 1000, 8, accepted_share=0.6))
    assert result.tokens_per_step == pytest.approx(2.8)
    assert result.step_s == pytest.approx(22.4e-3)
    assert result.mbu.estimate == pytest.approx(19.20 / 22.4e-3 / 3350, rel=PERCENT)
    # useful FLOPs are those of tokens that were given out, however they were found
    plain = efficiency(work("meta-llama/Llama-3.1-8B-Instruct", "H100"), decodes(32, 1000, 8))
    assert result.mfu == plain.mfu


def test_a_prefill_needs_the_flops_of_its_prompt_and_its_attention() -> None:
    # 10,000 prompt tokens/s of 2,000 each, 100 output tokens/s. A prompt token needs 2 x 6.9796 G,
    # and attends to 1,000 others: 4 x 32 x 32 x 128 x 1,000 = 0.524 G. Output tokens need lm_head
    # too and 2,050 tokens of context: 15.01 + 1.07 G.
    # 10,000 x 14.483 + 100 x 16.08 = 146.4 TFLOP/s, of 989.4: 0.1480.
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    served = Served(
        output_tokens_s=100, input_tokens_s=10_000, token_s=0.01, context=2050, prompt_context=1000
    )
    result = efficiency(on_h100, served)
    assert result.mfu == pytest.approx(0.1480, rel=PERCENT)
    # Half of each prompt is in the cache: 5,000 tokens, which attend to 1,500 others:
    # 5,000 x 14.745 + 1.608 = 75.3 TFLOP/s.
    cached = efficiency(on_h100, replace(served, hit_share=0.5))
    assert cached.mfu == pytest.approx(75.3 / 989.4, rel=PERCENT)


def test_replicas_and_data_parallel_ranks_each_read_all_weights() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    alone = efficiency(work(model, "H100"), decodes(8, 1000, 8))
    four = work(model, "H100", data_parallel_size=2, replicas=2)
    assert efficiency(four, decodes(32, 1000, 8)).mbu.estimate == pytest.approx(alone.mbu.estimate)


def test_kv_heads_fewer_than_ranks_are_read_by_several_ranks() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"  # 8 KV heads
    eight = efficiency(work(model, "H100", tensor_parallel_size=8), decodes(64, 100_000, 20))
    sixteen = efficiency(work(model, "H100", tensor_parallel_size=16), decodes(64, 100_000, 20))
    # the cache is nearly all that is read: each of 16 ranks reads as much of it as each of 8
    assert sixteen.mbu.estimate == pytest.approx(eight.mbu.estimate, rel=0.01)


def test_a_server_that_idles_between_requests_reads_in_proportion_to_its_requests() -> None:
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    busy = efficiency(on_h100, decodes(1, 1000, 6))
    half_idle = efficiency(on_h100, decodes(0.5, 1000, 6))
    assert half_idle.mbu.estimate == pytest.approx(busy.mbu.estimate / 2)


def test_a_figure_above_the_peak_is_noted() -> None:
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    result = efficiency(on_h100, decodes(32, 1000, 4))
    assert result.mbu.estimate > 1
    assert EfficiencyNote.ABOVE_PEAK in result.notes
    assert EfficiencyNote.ABOVE_PEAK not in efficiency(on_h100, decodes(32, 1000, 8)).notes


@given(
    running=st.floats(0.01, 2000),
    context=st.floats(1, 100_000),
    token_ms=st.floats(1, 1000),
    input_tokens_s=st.floats(0.001, 1e6),
    hit_share=st.floats(0, 0.99),
)
def test_the_estimate_lies_within_its_bounds_and_hits_never_add(
    running: float, context: float, token_ms: float, input_tokens_s: float, hit_share: float
) -> None:
    on_h100 = work("openai/gpt-oss-120b", "H100", tensor_parallel_size=2)
    served = decodes(running, context, token_ms, input_tokens_s=input_tokens_s)
    result = efficiency(on_h100, replace(served, prompt_context=context / 2))
    assert 0 < result.mbu.lower <= result.mbu.estimate * (1 + 1e-9)
    assert result.mbu.estimate <= result.mbu.upper * (1 + 1e-9)
    hits = efficiency(on_h100, replace(served, prompt_context=context / 2, hit_share=hit_share))
    assert hits.mfu <= result.mfu * (1 + 1e-9)
    assert hits.mbu.estimate <= result.mbu.estimate * (1 + 1e-9)


def served_figures(**changes: object) -> Figures:
    """What a point of 32 requests at 8 ms a token shows; a prompt and an answer have 500 and 1,000
    tokens.
    """
    shape = {"min": 0.0, "max": 0.0, "p50": 0.0, "p90": 0.0, "p95": 0.0, "p99": 0.0}
    given = {
        "output_token_throughput": 4000.0,
        "input_token_throughput": 2000.0,
        "itl_ms": Distribution(mean=8.0, std=0.0, **shape),
        "tpot_ms": None,
        "input_tokens": Distribution(mean=500.0, std=0.0, **shape),
        "decode_context": 1000.0,
    }
    return cast(Figures, SimpleNamespace(**(given | changes)))


def reported(**changes: float | None) -> EngineSide:
    names = [field.name for field in fields(EngineSide)]
    return EngineSide(**(dict.fromkeys(names) | {"prefix_hit_share": 0.0} | changes))


def as_efficiency(result: object) -> Efficiency:
    assert isinstance(result, Efficiency)
    return result


def test_figures_of_a_point_give_what_was_served() -> None:
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    result = as_efficiency(efficiency_of(on_h100, served_figures(), [reported()]))
    by_hand = Served(
        output_tokens_s=4000,
        input_tokens_s=2000,
        token_s=0.008,
        context=1000,
        prompt_context=250,
    )
    assert result == efficiency(on_h100, by_hand)
    assert result.notes == ()


def test_prompts_of_several_lengths_attend_to_more_than_half_of_their_mean() -> None:
    # of 200 and 800 tokens: 200 x 100 + 800 x 400 pairs for 1,000 tokens: 340 on average, not 250
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    equal = served_figures().input_tokens
    assert equal is not None
    mixed = replace(equal, std=300.0)
    result = as_efficiency(efficiency_of(on_h100, served_figures(input_tokens=mixed), [reported()]))
    alike = as_efficiency(efficiency_of(on_h100, served_figures(), [reported()]))
    more_pairs = 2000 * (340 - 250) * on_h100.flops.prefill_pair
    assert result.flops_s - alike.flops_s == pytest.approx(more_pairs)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"output_token_throughput": None}, MissingFigures.NOTHING_SERVED),
        ({"input_token_throughput": None}, MissingFigures.PROMPTS),
        ({"decode_context": None}, MissingFigures.PROMPTS),
        ({"itl_ms": None}, MissingFigures.TIMES),
    ],
)
def test_a_figure_that_is_missing_is_named(
    changes: dict[str, object], missing: MissingFigures
) -> None:
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    assert efficiency_of(on_h100, served_figures(**changes), [reported()]) is missing


def test_speculation_without_accepted_tokens_has_no_steps() -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    drafting = work("meta-llama/Llama-3.1-8B-Instruct", "H100", speculative=speculative)
    assert efficiency_of(drafting, served_figures(), [reported()]) is MissingFigures.ACCEPTANCE
    reports_of_engine = [reported(spec_accepted_share=0.6)]
    assert (
        as_efficiency(efficiency_of(drafting, served_figures(), reports_of_engine)).tokens_per_step
        == 2.8
    )


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_drafts_that_are_looked_up_are_noted(method: str) -> None:
    speculative = {"method": method, "num_speculative_tokens": 3}
    drafting = work("meta-llama/Llama-3.1-8B-Instruct", "H100", speculative=speculative)
    sides = [reported(spec_accepted_share=0.6)]
    notes = as_efficiency(efficiency_of(drafting, served_figures(), sides)).notes
    assert notes == ((EfficiencyNote.DRAFTS_VARY,) if method == "ngram" else ())


def test_what_the_engines_of_some_repeats_report_is_not_taken_for_all() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    report = reported(
        prefix_hit_share=0.5,
        spec_accepted_share=0.6,
        estimated_flops_s=1.0,
        estimated_bytes_s=1.0,
    )
    result = as_efficiency(efficiency_of(work(model, "H100"), served_figures(), [report, None]))
    assert (result.engine_flops_s, result.engine_bytes_s) == (None, None)
    assert result.notes == (EfficiencyNote.HITS_UNKNOWN,)
    unknown = as_efficiency(efficiency_of(work(model, "H100"), served_figures(), []))
    assert result == unknown
    speculative = {"method": "eagle3", "num_speculative_tokens": 3}
    drafting = work(model, "H100", speculative=speculative)
    assert efficiency_of(drafting, served_figures(), [report, None]) is MissingFigures.ACCEPTANCE


def test_an_engine_that_does_not_report_hits_is_noted() -> None:
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    for sides in ([], [None], [reported(prefix_hit_share=None)]):
        notes = as_efficiency(efficiency_of(on_h100, served_figures(), sides)).notes
        assert notes == (EfficiencyNote.HITS_UNKNOWN,)


@pytest.mark.parametrize(
    ("reports", "counted", "notes"),
    [
        ({"estimated_flops_s": 1.1, "estimated_bytes_s": 0.9}, (1.3, 1.3), []),
        ({"estimated_flops_s": 1.3}, (None, None), [EfficiencyNote.ENGINE_FLOPS_DIFFER]),
        ({"estimated_bytes_s": 0.7}, (None, None), [EfficiencyNote.ENGINE_BYTES_DIFFER]),
        ({}, (0.9, None), [EfficiencyNote.ABOVE_DRAM_SHARE]),
        ({}, (0.97, 0.97), []),
        ({}, (None, 0.9), [EfficiencyNote.ABOVE_TENSOR_SHARE]),
    ],
)
def test_counters_that_say_something_else_are_noted(
    reports: dict[str, float],
    counted: tuple[float | None, float | None],
    notes: list[EfficiencyNote],
) -> None:
    # every number is a multiple of what the formulas say
    on_h100 = work("meta-llama/Llama-3.1-8B-Instruct", "H100")
    plain = as_efficiency(efficiency_of(on_h100, served_figures(), [reported()]))
    of_formula = {
        "estimated_flops_s": plain.flops_s,
        "estimated_bytes_s": plain.bytes_s.estimate,
    }
    values = {name: factor * of_formula[name] for name, factor in reports.items()}
    dram, tensor = counted
    shares = CountedShares(
        dram=None if dram is None else dram * plain.mbu.estimate,
        tensor=None if tensor is None else tensor * plain.mfu,
    )
    result = as_efficiency(efficiency_of(on_h100, served_figures(), [reported(**values)], shares))
    assert list(result.notes) == notes


def test_an_estimate_of_all_experts_is_no_disagreement() -> None:
    # vLLM counts experts as if no two tokens chose the same
    moe = work("openai/gpt-oss-120b", "H100", tensor_parallel_size=2)
    plain = as_efficiency(efficiency_of(moe, served_figures(), [reported()]))
    reports_of_engine = [reported(estimated_bytes_s=plain.bytes_s.upper)]
    assert as_efficiency(efficiency_of(moe, served_figures(), reports_of_engine)).notes == ()

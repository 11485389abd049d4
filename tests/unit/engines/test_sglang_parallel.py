"""SGLang's own share of memory, and its data parallelism of attention in the words of its releases."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.models import facts_from_config, known_configs
from orchestrator.engines.command import Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.sglang import ENGINE as SGLANG
from orchestrator.engines.sglang import memory_fraction
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.engine_metrics import normalize

H200 = Hardware(name="h200", accelerator="H200", gpus_per_node=8)
DP_EP = {"data_parallel_size": 8, "enable_expert_parallel": True}


def settings(**given: Any) -> EngineSettings:
    return EngineSettings(engine="sglang", model="org/m", **given)


def words(**given: Any) -> str:
    return " ".join(SGLANG.command(settings(**given), H200, Node(), "key").argv)


# Memory in MiB, settings, and what 0.5.23's own handle_gpu_memory_settings made of the same flags
# and a config.json of Llama-3.1-8B, with graphs on as on CUDA.
SHARES: list[tuple[int, dict[str, Any], float, str]] = [
    (15360, {"max_num_batched_tokens": 2048}, 0.735, ""),
    (23034, {}, 0.684, ""),
    (23034, {"max_num_batched_tokens": 4096, "max_num_seqs": 1024}, 0.684, ""),
    (46068, {"max_num_batched_tokens": 4096, "tensor_parallel_size": 4}, 0.829, ""),
    (81559, {"max_num_batched_tokens": 8192}, 0.83, ""),
    (81559, {"max_num_batched_tokens": 8192, "tensor_parallel_size": 8}, 0.812, ""),
    (
        81559,
        {"max_num_batched_tokens": 8192, "tensor_parallel_size": 8, "pipeline_parallel_size": 2},
        0.805,
        "",
    ),
    (81559, {"max_num_batched_tokens": 2048, "max_num_seqs": 16}, 0.874, ""),
    (143771, {"max_num_batched_tokens": 8192, **DP_EP}, 0.765, ""),
    (183359, {"max_num_batched_tokens": 16384, "tensor_parallel_size": 8}, 0.849, ""),
    (23034, {}, 0.688, "prefill"),
    (23034, {}, 0.835, "decode"),
    (81559, {"max_num_batched_tokens": 8192}, 0.836, "prefill"),
    (81559, {"max_num_batched_tokens": 8192}, 0.874, "decode"),
    (143771, {"max_num_batched_tokens": 8192, **DP_EP}, 0.901, "prefill"),
    (143771, {"max_num_batched_tokens": 8192, **DP_EP}, 0.833, "decode"),
]


@pytest.mark.parametrize(("memory_mib", "given", "share", "role"), SHARES)
def test_the_share_of_memory_is_the_one_that_sglang_computes(
    memory_mib: int, given: dict[str, Any], share: float, role: str
) -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    facts = facts_from_config(name, known_configs()[name])
    assert facts is not None
    assert memory_fraction(settings(**given), facts, memory_mib * 2**20, role) == pytest.approx(
        share, abs=0.0011
    )


@pytest.mark.parametrize(
    ("accelerator", "tokens"),
    [("T4", 2048), ("L4", 4096), ("A100-40GB", 4096), ("H200", 8192), ("B200", 16384)],
)
def test_a_prefill_is_pinned_as_sglang_would_choose_it_for_the_gpu(
    accelerator: str, tokens: int
) -> None:
    pins = SGLANG.open_pins(settings(), Hardware(name="x", accelerator=accelerator))
    assert pins["max_num_batched_tokens"] == tokens


@pytest.mark.parametrize(
    ("given", "wanted", "absent"),
    [
        (DP_EP, "--attn-dp-size 8 --tp-size 8 --ep-size 8", "--dp-size"),
        (
            DP_EP | {"tensor_parallel_size": 2},
            "--attn-dp-size 8 --tp-size 16 --ep-size 16",
            "--dp-size",
        ),
        (DP_EP | {"engine_version": "0.5.23"}, "--attn-dp-size 8", "--enable-dp-attention"),
        (
            DP_EP | {"engine_version": "v0.5.9"},
            "--dp-size 8 --enable-dp-attention --tp-size 8",
            "--attn-dp-size",
        ),
        (
            DP_EP | {"image": "lmsysorg/sglang:v0.5.9-cu126"},
            "--dp-size 8 --enable-dp-attention",
            "--attn-dp-size",
        ),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 4},
            "--dp-size 2 --tp-size 4",
            "--ep-size",
        ),
        (
            {"tensor_parallel_size": 8, "enable_expert_parallel": True},
            "--dp-size 1 --tp-size 8 --ep-size 8",
            "--attn",
        ),
    ],
)
def test_data_and_expert_parallelism_together_are_attention_ranks_in_one_group(
    given: dict[str, Any], wanted: str, absent: str
) -> None:
    made = words(**given)
    assert [word for word in wanted.split() if word not in made.split()] == []
    for flag, value in zip(wanted.split(), wanted.split()[1:], strict=False):
        if flag.startswith("--") and value.isdigit():
            assert f"{flag} {value}" in made
    assert absent not in made
    assert problems_of(SGLANG, settings(**given), H200) == []


@pytest.mark.parametrize(
    ("image", "noted"), [("lmsysorg/sglang:latest", True), ("lmsysorg/sglang:v0.5.23-cu129", False)]
)
def test_an_assumed_release_is_noted(image: str, noted: bool) -> None:
    notes = SGLANG.command(settings(image=image, **DP_EP), H200, Node(), "key").notes
    assert any("its release is not known" in note for note in notes) is noted


def test_a_replica_has_all_ranks_and_notes_what_they_share() -> None:
    wanted = settings(tensor_parallel_size=2, **DP_EP)
    assert wanted.world_size == 16
    assert "of all attention ranks together" in " ".join(
        SGLANG.command(wanted, H200, Node(), "key").notes
    )


def test_attention_ranks_cannot_be_set_twice() -> None:
    twice = settings(extra_args={"--attn-dp-size": 8}, **DP_EP)
    assert "enable_expert_parallel gives both" in " ".join(problems_of(SGLANG, twice, H200))
    assert (
        problems_of(
            SGLANG, settings(tensor_parallel_size=8, extra_args={"--attn-dp-size": 8}), H200
        )
        == []
    )
    flag = settings(data_parallel_size=8, extra_args={"--enable-dp-attention": True})
    assert "is set by this program" in " ".join(problems_of(SGLANG, flag, H200))


@pytest.mark.parametrize(
    ("given", "is_on_every_rank"),
    [
        (DP_EP, True),
        ({"tensor_parallel_size": 16}, False),
        ({"tensor_parallel_size": 16, "enable_expert_parallel": True}, False),
    ],
)
def test_only_attention_ranks_have_metrics_that_node_0_does_not_have(
    given: dict[str, Any], is_on_every_rank: bool
) -> None:
    assert SGLANG.metrics_on_every_rank(settings(nnodes=2, **given)) is is_on_every_rank


PAGE_OF_A_NODE = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{dp_rank="{0}",pp_rank="0",tp_rank="{0}"}} {1}
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{dp_rank="{0}",pp_rank="0",tp_rank="{0}"}} {2}
# TYPE sglang:token_usage gauge
sglang:token_usage{{dp_rank="{0}",pp_rank="0",tp_rank="{0}"}} {3}
"""


def test_attention_ranks_of_all_nodes_add_up_and_their_caches_are_averaged() -> None:
    pages = PAGE_OF_A_NODE.format(0, 3, 1, 0.25) + PAGE_OF_A_NODE.format(8, 4, 2, 0.75)
    of_all = {"running": 7.0, "waiting": 3.0, "kv_usage": 0.5}
    assert normalize(pages, SGLANG.metrics) == of_all

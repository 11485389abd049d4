"""What is read from a config.json: shapes, lengths, windows, quantization; where it is looked for."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import memory, models
from orchestrator.catalog.gguf import parts_of
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_config, model_facts
from orchestrator.catalog.parameters import Shape
from orchestrator.catalog.quantization import EXPERTS, Quantization, quantization_from_config
from orchestrator.plan.feasibility import assess
from orchestrator.spec.settings import EngineSettings, Hardware

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 12,
    "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 512,
}  # fmt: skip
NAMES = [
    *Shape.__dataclass_fields__,
    *models._ALIASES["num_experts"],
    *(
        "model_type",
        "text_config",
        "dtype",
        "multi_query",
        "n_shared_experts",
        "model_max_length",
        "layer_types",
    ),
    *(
        "quantization_config",
        "quant_method",
        "bits",
        "group_size",
        "weight_block_size",
        "config_groups",
        "weights",
    ),
    *("mlp_only_layers", "moe_layer_freq", "decoder_sparse_step", "first_k_dense_replace"),
    *("sliding_window", "sliding_window_pattern", "rope_scaling", "factor", "rope_type"),
]


def facts(**changes: Any) -> ModelFacts:
    found = facts_from_config(
        "m", {key: value for key, value in (BASE | changes).items() if value is not ...}
    )
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _fresh() -> None:
    models._facts_cached.cache_clear()


def test_what_is_left_out_follows_from_the_rest() -> None:
    shape = facts().shape
    assert (shape.num_key_value_heads, shape.head_dim, shape.tie_word_embeddings) == (8, 32, False)
    assert facts(model_type="gemma2").shape.tie_word_embeddings


def test_older_names_of_the_same_figures_are_understood() -> None:
    shape = facts(
        hidden_size=...,
        n_embd=512,
        num_hidden_layers=...,
        n_layer=3,
        max_position_embeddings=...,
        n_positions=99,
    ).shape
    assert (shape.hidden_size, shape.num_hidden_layers, shape.max_position_embeddings) == (
        512,
        3,
        99,
    )


def test_figures_an_author_left_to_the_class_come_from_transformers() -> None:
    gemma = facts(model_type="gemma3_text", num_attention_heads=..., vocab_size=...)
    assert gemma.shape.num_attention_heads == 8
    assert gemma.shape.vocab_size > 200_000


def test_the_text_part_of_a_multimodal_model_is_read_and_marked_as_inexact() -> None:
    found = facts_from_config(
        "m", {"model_type": "llava", "text_config": BASE, "vision_config": {}}
    )
    assert found is not None
    assert (found.shape.hidden_size, found.counted, found.exact) == (256, True, False)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "resnet"}, {"hidden_size": 4, "num_hidden_layers": 2}]
)
def test_what_is_no_decoder_has_no_facts(config: dict[str, Any]) -> None:
    assert facts_from_config("m", config) is None


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 4096),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 16384),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 1024,
                }
            },
            4096,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        ({"max_position_embeddings": ...}, None),
        ({"max_sequence_length": 2048}, 2048),
        ({"model_max_length": 9000}, 9000),
    ],
)
def test_the_longest_context_is_vllms(changes: dict[str, Any], length: int | None) -> None:
    assert facts(**changes).max_model_len == length


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, (None, 0)),
        ({"model_type": "mistral", "sliding_window": 1024}, (1024, 12)),
        ({"model_type": "mistral", "sliding_window": None}, (None, 0)),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, (None, 0)),
        ({"model_type": "gemma2", "sliding_window": 4096}, (4096, 6)),
        ({"model_type": "gemma3_text", "sliding_window": 512}, (512, 10)),
        ({"model_type": "gpt_oss", "sliding_window": 128}, (128, 6)),
        (
            {
                "sliding_window": 64,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 9,
            },
            (64, 3),
        ),
    ],
)
def test_sliding_windows_and_the_layers_that_have_them(
    changes: dict[str, Any], window: tuple[int | None, int]
) -> None:
    found = facts(**changes)
    assert (found.sliding_window, found.num_sliding_layers) == window


def test_layers_without_attention_hold_no_cache() -> None:
    kinds = ["linear_attention"] * 9 + ["full_attention"] * 3
    assert facts(layer_types=kinds).shape.num_attention_layers == 3


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, 12),
        ({"first_k_dense_replace": 3}, 9),
        ({"decoder_sparse_step": 2}, 6),
        ({"mlp_only_layers": [0, 5]}, 10),
        ({"moe_layer_freq": [0, 0] + [1] * 10}, 10),
        ({"moe_layer_freq": [0] + [1] * 20, "first_k_dense_replace": None}, 11),
        ({"moe_layer_freq": 3}, 4),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers: int) -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    assert facts(**moe, **changes).shape.num_moe_layers == layers


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            Quantization("awq", 4 + 20 / 128, group_size=128, scheme="int4 weights"),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            Quantization("gptq", 8, scheme="int8 weights"),
        ),
        ({"quant_method": "fp8"}, Quantization("fp8", 8, scheme="fp8 per tensor")),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            Quantization("fp8", 8 + 32 / 16384, block=(128, 128), scheme="fp8 per block"),
        ),
        (
            {"quant_method": "mxfp4"},
            Quantization("mxfp4", 4.25, group_size=32, scheme="mxfp4", shares=EXPERTS),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4", kv_cache_dtype="fp8"),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            Quantization("bitsandbytes", 4.13),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}
                },
            },
            Quantization("compressed-tensors", 4 + 20 / 128, group_size=128, scheme="int4 weights"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": ["LlamaAttention"],
                        "weights": None,
                        "input_activations": {"num_bits": 8},
                    },
                    "group_1": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel"}},
                },
            },
            Quantization("compressed-tensors", 4, scheme="int4 weights"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            Quantization("compressed-tensors", 16, kv_cache_dtype="fp8"),
        ),
        ({"quant_method": "something_new"}, Quantization("something_new", 8)),
        ({"quant_method": "fbgemm_fp8"}, Quantization("fbgemm_fp8", 8, scheme="fp8 per channel")),
        # as ModelOpt writes it
        ({"quant_algo": "FP8"}, Quantization("modelopt", 8, scheme="fp8 per tensor")),
        (
            {"quant_method": "modelopt_fp4"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4"),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
            Quantization("modelopt_fp4", 4.5, group_size=16, scheme="fp4 weights"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                    "input_tensors": {"a": 1},
                },
            },
            Quantization("quark", 8, scheme="fp8 per tensor"),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
                },
            },
            Quantization("quark", 4.25, group_size=32, scheme="mxfp4"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {
                            "num_bits": 4,
                            "type": "float",
                            "strategy": "tensor_group",
                            "group_size": 16,
                        },
                        "input_activations": {"num_bits": 4},
                    }
                },
            },
            Quantization("compressed-tensors", 4.5, group_size=16, scheme="fp4"),
        ),
    ],
)
def test_every_kind_of_quantized_checkpoint(
    config: dict[str, Any] | None, expected: Quantization | None
) -> None:
    assert quantization_from_config(config) == expected


@pytest.mark.parametrize(
    ("named", "shares"),
    [
        ({"modules_to_not_convert": ["lm_head"]}, {"attention": 1, "mlp": 1}),
        ({"modules_to_not_convert": ["self_attn"]}, {"attention": 0, "mlp": 1}),
        (
            {"ignore": ["re:.*self_attn.*", "re:.*mlp\\.(gate|up)_proj"]},
            {"attention": 0, "mlp": 1 / 3},
        ),
        (
            {"exclude_modules": ["model.layers.0*", "model.layers.1.*"]},
            {"attention": 10 / 12, "mlp": 10 / 12},
        ),
        ({"ignore": ["model.language_model.layers.3.mlp*"]}, {"attention": 1, "mlp": 11 / 12}),
        (
            {"modules_to_not_convert": ["gate", "model.layers.{}.input_layernorm"]},
            {"attention": 1, "mlp": 1},
        ),
        ({"ignore": ["re:*("]}, {"attention": 1, "mlp": 1}),  # no pattern at all
    ],
)
def test_what_a_checkpoint_left_alone_is_not_counted_as_quantized(
    named: dict[str, Any], shares: dict[str, float]
) -> None:
    found = facts_from_config("m", BASE | {"quantization_config": {"quant_method": "fp8", **named}})
    assert found is not None
    assert found.quantization is not None
    assert {part: found.quantization.share(part) for part in shares} == pytest.approx(shares)


def test_a_mixed_checkpoint_has_the_bits_of_each_part() -> None:
    layers = {f"model.layers.{layer}.self_attn": {"quant_algo": "FP8"} for layer in range(12)}
    layers |= {f"model.layers.{layer}.mlp": {"quant_algo": "NVFP4"} for layer in range(6)}
    mixed = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    found = facts_from_config("m", BASE | {"quantization_config": mixed})
    assert found is not None
    assert found.quantization is not None
    assert found.quantization.bytes_of("attention", 2) == 1
    assert found.quantization.bytes_of("mlp", 2) == pytest.approx((4.5 / 8 + 2) / 2)
    assert found.quantization.bytes_of("lm_head", 2) == 2


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("a1", max_size=3)
    | st.just("linear_attention"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(NAMES), ODD, max_size=6),
    st.sampled_from(["llama", "gpt_oss", "deepseek_v3"]),
)
def test_odd_values_of_a_config_are_facts_and_a_verdict_or_nothing(
    changes: dict[str, Any], model_type: str
) -> None:
    """Lists, nulls, texts, zeros and nested configs where nobody expects them: never a traceback."""
    for config in (
        BASE | {"model_type": model_type} | changes,
        {"text_config": BASE | changes},
        changes,
    ):
        found = facts_from_config("m", config)
        if found is not None:
            for hardware in (Hardware(name="h100", accelerator="H100-80GB"), Hardware(name="cpu")):
                settings = EngineSettings(
                    engine="vllm", model="m", tensor_parallel_size=2, pipeline_parallel_size=2
                )
                assess(settings, found, hardware)


def test_a_folder_gives_its_config_and_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"dtype": "float32"}))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 123456}}')
    found = model_facts(str(tmp_path))
    assert found is not None
    assert (found.checkpoint_bytes, found.dtype, found.model_type) == (123456, "float32", "llama")


def test_without_an_index_the_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(b"x" * 1000)
    found = model_facts(str(tmp_path))
    assert found is not None
    assert found.checkpoint_bytes == 2000


def test_overrides_change_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    found = model_facts(str(tmp_path), overrides={"max_position_embeddings": 77})
    assert found is not None
    assert found.max_model_len == 77


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_broken_config_is_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert model_facts(str(tmp_path)) is None


def test_a_config_that_is_nested_without_end_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    assert model_facts(str(tmp_path)) is None


def test_a_config_that_is_too_large_to_be_one_is_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BASE))
    assert model_facts(str(tmp_path)) is not None
    models._facts_cached.cache_clear()
    monkeypatch.setattr(models, "MOST_BYTES", config.stat().st_size - 1)
    assert model_facts(str(tmp_path)) is None


def test_offline_nothing_is_asked_and_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_facts("nobody/never-existed") is None
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert model_facts("nobody/never-existed-either", online=False) is None
    assert model_facts(str(tmp_path / "missing")) is None


def test_a_hub_that_does_not_answer_costs_the_limit_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as silent:  # accepts, never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(models, "HUB_TIMEOUT_S", 0.2)
        monkeypatch.setattr(
            models, "_from_hub", lambda *_, local_only: None if local_only else time.sleep(2)
        )
        started_s = time.monotonic()
        assert model_facts("nobody/silent") is None
        assert time.monotonic() - started_s < 1


def test_well_known_models_have_facts_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = model_facts("meta-llama/Llama-3.1-8B-Instruct")
    assert found is not None
    assert found.parameters.total == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Llama-3.1-8B", 32),
        ("Meta-Llama-3.1-70B-Instruct", 80),
        ("qwen2.5-0.5b", 24),
        ("mistralai/Mixtral-8x7B-v0.1", 32),
    ],
)
def test_short_names_of_well_known_models(name: str, layers: int) -> None:
    config = known_config(name)
    assert config is not None
    assert config["num_hidden_layers"] == layers


def test_names_nobody_knows_are_not_guessed() -> None:
    assert known_config("Llama-3.1") is None


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_file(path: Path, weights: int, version: int = 3, **more: Any) -> bytes:
    """A GGUF file of a Llama: its header by the format's description, then so many bytes of
    weights.
    """
    keys: dict[str, Any] = {
        "general.architecture": "llama", "llama.embedding_length": 256, "llama.block_count": 12,
        "llama.attention.head_count": 8, "llama.attention.head_count_kv": [4, 2], "llama.context_length": 4096,
        "llama.feed_forward_length": 512, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": ["a", "\u20ac", ""], "tokenizer.ggml.scores": [0.5, 1.5, 2.5],
    } | more  # fmt: skip
    kinds: dict[type, tuple[int, str]] = {int: (4, "<I"), float: (6, "<f")}

    def value(one: Any) -> tuple[int, bytes]:
        if isinstance(one, str):
            return 8, gguf_text(one)
        if isinstance(one, list):
            kind = value(one[0])[0]
            return 9, struct.pack("<IQ", kind, len(one)) + b"".join(value(each)[1] for each in one)
        kind, code = kinds[type(one)]
        return kind, struct.pack(code, one)

    header = struct.pack("<4sIQQ", b"GGUF", version, 1, len(keys))
    for name, one in keys.items():
        kind, data = value(one)
        header += gguf_text(name) + struct.pack("<I", kind) + data
    header += gguf_text("token_embd.weight") + struct.pack("<IQQIQ", 2, 256, 3, 8, 0)
    path.write_bytes(header + bytes(weights))
    return header


def test_a_gguf_files_header_has_all_that_a_config_has(tmp_path: Path) -> None:
    gguf_file(tmp_path / "x.gguf", weights=4_000_000)
    found = model_facts(str(tmp_path / "x.gguf"))
    assert found is not None
    assert (found.model_type, found.exact, found.max_model_len) == ("llama", True, 4096)
    shape = found.shape
    assert (
        shape.hidden_size,
        shape.num_hidden_layers,
        shape.num_key_value_heads,
        shape.vocab_size,
    ) == (256, 12, 4, 3)
    assert shape.tie_word_embeddings, "it has no output.weight"
    assert memory.weights(found).total == pytest.approx(4_000_000)
    settings = EngineSettings(
        engine="llama_cpp", model="x", max_model_len=1000, kv_cache_dtype="q4_0"
    )
    assert memory.kv_bytes_per_token(found, settings, 1) == 12 * 2 * 4 * 32 * 18 / 32


def test_the_weights_of_a_gguf_model_in_parts_are_those_of_all_parts(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        gguf_file(tmp_path / f"x-{number:05}-of-00003.gguf", weights=1_000_000)
    found = model_facts(str(tmp_path / "x-00001-of-00003.gguf"))
    assert found is not None
    assert found.checkpoint_bytes == pytest.approx(3_000_000, rel=0.01)


@pytest.mark.parametrize("stem", ["x", "x[1]", "x*", "x-00001-of-00002"])
def test_the_parts_of_a_model_are_its_own(tmp_path: Path, stem: str) -> None:
    own = [tmp_path / f"{stem}-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in (
        *(part.name for part in own),
        "x-large-00001-of-00002.gguf",
        "x1-00001-of-00002.gguf",
        "x-1-of-00002.gguf",
    ):
        (tmp_path / name).touch()
    assert [parts_of(part) for part in own] == [own, own]
    assert parts_of(tmp_path / "no-00001-of-00002.gguf") == [tmp_path / "no-00001-of-00002.gguf"]


def test_of_a_long_array_no_number_is_kept_and_of_a_huge_file_no_more_is_read_than_a_header_takes(
    tmp_path: Path,
) -> None:
    path, scores = tmp_path / "x.gguf", [0.5] * 20_000
    gguf_file(
        path,
        weights=4_000_000,
        **{"tokenizer.ggml.scores": scores, "tokenizer.ggml.tokens": ["a"] * 20_000},
    )
    found = model_facts(str(path))
    assert found is not None
    assert (found.shape.vocab_size, found.shape.hidden_size) == (20_000, 256)
    # bytes, and empty texts, all in the file, which is sparse
    for kind, count in ((0, 30 << 30), (8, 3 << 30)):
        huge = tmp_path / f"huge-{kind}.gguf"
        huge.write_bytes(
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
            + gguf_text("a")
            + struct.pack("<IIQ", 9, kind, count)
        )
        os.truncate(huge, 40 << 30)
        assert model_facts(str(huge)) is None


@given(st.data())
def test_whatever_else_a_file_is_its_facts_are_none_or_facts(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    """Cut off anywhere, and any few bytes of its header changed: never a traceback, never a long
    wait.
    """
    path = tmp_path_factory.getbasetemp() / "odd.gguf"
    header = bytearray(gguf_file(path, weights=64))
    for at in data.draw(st.lists(st.integers(0, len(header) - 1), max_size=4)):
        header[at] = data.draw(st.integers(0, 255))
    path.write_bytes(header[: data.draw(st.integers(0, len(header)))])
    models._facts_cached.cache_clear()
    model_facts(str(path))
    assert model_facts("/nowhere/x.gguf") is None


@pytest.mark.parametrize("version", [1, 4])
def test_other_versions_of_the_format_are_not_guessed_at(tmp_path: Path, version: int) -> None:
    gguf_file(tmp_path / "x.gguf", 64, version=version)
    assert model_facts(str(tmp_path / "x.gguf")) is None


def test_a_folder_is_read_with_its_index_and_with_what_modelopt_wrote_beside_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps(
            {
                "quantization": {
                    "quant_algo": "FP8",
                    "kv_cache_quant_algo": "FP8",
                    "exclude_modules": ["lm_head"],
                }
            }
        )
    )
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 9_000_000}})
    )
    found = model_facts(str(tmp_path))
    assert found is not None
    assert found.quantization is not None
    assert (found.quantization.method, found.quantization.bits) == ("modelopt", 8)
    assert found.quantization.kv_cache_dtype == "fp8"
    assert found.checkpoint_bytes == 9_000_000
    assert memory.weights(found).total == pytest.approx(9_000_000)


def test_the_hub_is_asked_for_what_says_the_size_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """config.json, the index and what ModelOpt wrote; what there is not is remembered."""
    import huggingface_hub
    from huggingface_hub import _CACHED_NO_EXIST

    asked: list[tuple[str, bool]] = []
    remembered: dict[str, Any] = {}

    def download(model: str, name: str, local_files_only: bool, **_: Any) -> str:
        asked.append((name, local_files_only))
        if local_files_only and not (tmp_path / name).exists():
            raise FileNotFoundError(name)
        if name not in ("config.json", models.INDEX):
            remembered[name] = _CACHED_NO_EXIST
            raise FileNotFoundError(name)
        content = BASE if name == "config.json" else {"metadata": {"total_size": 9_000_000}}
        (tmp_path / name).write_text(json.dumps(content))
        remembered[name] = str(tmp_path / name)
        return str(tmp_path / name)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda model, name, revision: remembered.get(name),
    )
    monkeypatch.setattr(models, "getproxies", lambda: {"https": "there is one"})
    for asked_before in (False, True):
        models._facts_cached.cache_clear()
        asked.clear()
        found = model_facts("org/model")
        assert found is not None
        assert found.checkpoint_bytes == 9_000_000
        online = [name for name, local in asked if not local]
        assert online == ([] if asked_before else ["config.json", models.MODELOPT, models.INDEX])
    models._facts_cached.cache_clear()

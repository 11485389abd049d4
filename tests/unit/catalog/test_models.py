"""What is read from a config.json: shapes, lengths, windows, quantization; where it is looked for."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import memory, models
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_config, model_facts
from orchestrator.catalog.parameters import Shape
from orchestrator.plan.feasibility import assess
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.catalog.configs import SMALL_LLAMA

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
    model = facts_from_config(
        "m", {key: value for key, value in (SMALL_LLAMA | changes).items() if value is not ...}
    )
    assert model is not None
    return model


@pytest.fixture(autouse=True)
def _fresh() -> None:
    models._facts_cached.cache_clear()


def test_missing_figures_follow_from_the_others() -> None:
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


def test_the_text_part_of_a_multimodal_model_is_inexact() -> None:
    model = facts_from_config(
        "m", {"model_type": "llava", "text_config": SMALL_LLAMA, "vision_config": {}}
    )
    assert model is not None
    assert (
        model.shape.hidden_size,
        model.language_model_counted,
        model.all_parameters_counted,
    ) == (256, True, False)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "resnet"}, {"hidden_size": 4, "num_hidden_layers": 2}]
)
def test_configs_without_a_decoder_have_no_facts(config: dict[str, Any]) -> None:
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
    model = facts(**changes)
    assert (model.sliding_window, model.num_sliding_layers) == window


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
        SMALL_LLAMA | {"model_type": model_type} | changes,
        {"text_config": SMALL_LLAMA | changes},
        changes,
    ):
        model = facts_from_config("m", config)
        if model is not None:
            for hardware in (Hardware(name="h100", accelerator="H100-80GB"), Hardware(name="cpu")):
                settings = EngineSettings(
                    engine="vllm", model="m", tensor_parallel_size=2, pipeline_parallel_size=2
                )
                assess(settings, model, hardware)


def test_a_folder_gives_its_config_and_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA | {"dtype": "float32"}))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 123456}}')
    model = model_facts(str(tmp_path))
    assert model is not None
    assert (model.checkpoint_bytes, model.dtype, model.model_type) == (123456, "float32", "llama")


def test_without_an_index_the_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(b"x" * 1000)
    model = model_facts(str(tmp_path))
    assert model is not None
    assert model.checkpoint_bytes == 2000


def test_hf_overrides_change_the_facts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    model = model_facts(str(tmp_path), overrides={"max_position_embeddings": 77})
    assert model is not None
    assert model.max_model_len == 77


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
    config.write_text(json.dumps(SMALL_LLAMA))
    assert model_facts(str(tmp_path)) is not None
    models._facts_cached.cache_clear()
    monkeypatch.setattr(models, "MOST_BYTES", config.stat().st_size - 1)
    assert model_facts(str(tmp_path)) is None


def test_offline_the_hub_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            models, "_hub_folder", lambda *_, local_only: None if local_only else time.sleep(2)
        )
        started_s = time.monotonic()
        assert model_facts("nobody/silent") is None
        assert time.monotonic() - started_s < 1


def test_well_known_models_have_facts_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = model_facts("meta-llama/Llama-3.1-8B-Instruct")
    assert model is not None
    assert model.parameters.total == 8_030_261_248


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


def test_facts_say_for_which_well_known_model_another_was_taken() -> None:
    misspelled = model_facts("metta-llama/Llama-3.1-8B-Instruct", online=False)
    assert misspelled is not None
    assert misspelled.known_as == "meta-llama/Llama-3.1-8B-Instruct"


def test_facts_of_a_config_are_taken_for_no_other_model(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B-Instruct"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(known_config("Llama-3.1-8B")))
    facts = model_facts(str(folder), online=False)
    assert facts is not None
    assert facts.known_as is None


def test_unknown_names_are_not_guessed() -> None:
    assert known_config("Llama-3.1") is None


def test_a_folder_is_read_with_its_index_and_modelopts_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
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
    model = model_facts(str(tmp_path))
    assert model is not None
    assert model.quantization is not None
    assert (model.quantization.method, model.quantization.bits) == ("modelopt", 8)
    assert model.quantization.kv_cache_dtype == "fp8"
    assert model.checkpoint_bytes == 9_000_000
    assert memory.weights(model).total == pytest.approx(9_000_000)


def test_the_hub_is_asked_once_for_an_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """config.json, the index and what ModelOpt wrote; what there is not is remembered."""
    import huggingface_hub
    from huggingface_hub import _CACHED_NO_EXIST

    requests: list[tuple[str, bool]] = []
    remembered: dict[str, Any] = {}

    def download(model: str, name: str, local_files_only: bool, **_: Any) -> str:
        requests.append((name, local_files_only))
        if local_files_only and not (tmp_path / name).exists():
            raise FileNotFoundError(name)
        if name not in ("config.json", models.INDEX):
            remembered[name] = _CACHED_NO_EXIST
            raise FileNotFoundError(name)
        content = SMALL_LLAMA if name == "config.json" else {"metadata": {"total_size": 9_000_000}}
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
        requests.clear()
        model = model_facts("org/model")
        assert model is not None
        assert model.checkpoint_bytes == 9_000_000
        online = [name for name, local in requests if not local]
        assert online == ([] if asked_before else ["config.json", models.MODELOPT, models.INDEX])
    models._facts_cached.cache_clear()

"""The lists of models that engines have code for, as plan reads them."""

from __future__ import annotations

from orchestrator.engines.architectures import support


def test_vllm_chooses_its_code_by_the_class_of_the_model() -> None:
    recorded = support("vllm")
    assert recorded is not None
    assert recorded.by_class
    assert "LlamaForCausalLM" in recorded.names
    assert recorded.turbomind is None


def test_lightllm_chooses_its_code_by_the_type_of_the_model() -> None:
    recorded = support("lightllm")
    assert recorded is not None
    assert not recorded.by_class
    assert "llama" in recorded.names


def test_lmdeploy_has_a_list_of_its_own_for_turbomind() -> None:
    recorded = support("lmdeploy")
    assert recorded is not None
    assert recorded.turbomind
    assert recorded.turbomind != recorded.names


def test_an_engine_without_a_list_has_no_support_to_judge() -> None:
    assert support("endpoint") is None

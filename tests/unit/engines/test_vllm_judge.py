"""What vLLM raises becomes a verdict: its own words, and whether this machine can tell at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from orchestrator.engines.vllm_judge import LONGEST, of_device, of_environment, sentence_of


class Config(BaseModel):
    """Raises inside pydantic, as vLLM's own configuration does."""

    size: int

    @field_validator("size")
    @classmethod
    def _check(cls, value: int) -> int:
        texts = [
            "Size must be 1.",
            "Not supported on CUDA devices.",
            "Too long. This may cause CUDA errors.",
        ]
        raise ValueError(texts[value])


def refusal(make: Callable[[], object]) -> Exception:
    with pytest.raises(ValidationError) as caught:
        make()
    return caught.value


def test_sentences_are_vllms_own_without_pydantics_words() -> None:
    assert sentence_of(refusal(lambda: Config(size=0))) == "Size must be 1."
    assert sentence_of(AssertionError()) == "AssertionError"
    cut = sentence_of(ValueError("word " * 200))
    assert len(cut) <= LONGEST + 2
    assert cut.endswith("word …")


@pytest.mark.parametrize(("size", "about"), [(0, False), (1, True), (2, False)])
def test_a_refusal_that_opens_with_a_device_is_about_it(size: int, about: bool) -> None:
    assert of_device(refusal(lambda: Config(size=size))) is about


def test_a_refusal_that_a_platform_raised_is_about_the_device() -> None:
    code = compile(
        "def check(): raise ValueError('not here')",
        "/x/site-packages/vllm/platforms/cpu.py",
        "exec",
    )
    space: dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(ValueError) as caught:
        space["check"]()
    assert of_device(caught.value)


@pytest.mark.parametrize(
    ("error", "about"),
    [
        (ModuleNotFoundError("No module named 'torchvision'"), True),
        (
            ValueError(
                "Model architectures ['Gemma3ForConditionalGeneration'] failed to be inspected."
            ),
            True,
        ),
        (ValueError("Model architectures ['Nope'] are not supported for now."), False),
    ],
)
def test_a_module_that_is_not_installed_is_no_refusal(error: Exception, about: bool) -> None:
    assert of_environment(error) is about


def test_an_operator_that_a_build_lacks_is_no_refusal() -> None:
    error = AttributeError(
        "'_OpNamespace' '_C' object has no attribute 'rms_norm_static_fp8_quant'"
    )
    assert of_environment(error)
    assert not of_environment(AttributeError("'LlamaConfig' object has no attribute 'x'"))

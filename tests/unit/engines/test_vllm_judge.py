"""What vLLM raises becomes a verdict: its own words, and whether this machine can tell at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from orchestrator.engines import vllm_judge
from orchestrator.engines.vllm_judge import (
    LONGEST,
    judge,
    of_device,
    of_environment,
    sentence_of,
    without_config,
)


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


def verdict_on(
    error: BaseException | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu: bool = True,
    stderr: str = "",
) -> dict[str, str]:
    """The verdict of a CPU build of vLLM that raises ``error`` for a command line."""

    def build(argv: list[str]) -> None:
        assert os.environ["VLLM_JUDGED"] == "1"
        print(stderr, file=sys.stderr)
        if error is not None:
            raise error

    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(vllm_judge, "build", build)
    models = [(str(folder), None)]
    return judge({"argv": [], "env": {"VLLM_JUDGED": "1"}, "models": models, "cpu": cpu}, "cpu")


def test_a_configuration_that_can_be_built_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict_on(None, tmp_path, monkeypatch) == {}
    assert "VLLM_JUDGED" not in os.environ


def test_a_flag_that_the_parser_refuses_is_refused_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = "usage: vllm serve\nvllm: error: unrecognized arguments: --x"
    verdict = verdict_on(SystemExit(2), tmp_path, monkeypatch, stderr=stderr)
    assert verdict == {"refused": "unrecognized arguments: --x"}


def test_a_file_that_is_not_at_hand_leaves_the_verdict_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verdict_on(FileNotFoundError("no tokenizer.json"), tmp_path, monkeypatch)
    assert verdict == {"unknown": "no tokenizer.json"}


@pytest.mark.parametrize(("cpu", "ruling"), [(True, "refused"), (False, "unknown")])
def test_a_refusal_about_the_device_counts_only_on_a_build_for_that_device(
    cpu: bool, ruling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("fp8 is not supported on this device.")
    assert verdict_on(error, tmp_path, monkeypatch, cpu=cpu).keys() == {ruling}


def test_a_model_whose_config_is_not_at_hand_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = str(tmp_path / "missing")
    assert without_config(missing, None) == f"no config.json of {missing} at hand"
    models = [(missing, None)]
    verdict = judge({"argv": [], "env": {}, "models": models, "cpu": True}, "cpu")
    assert verdict == {"unknown": f"no config.json of {missing} at hand"}

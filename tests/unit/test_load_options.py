"""The options of ``orchestrator load``, as the experiment that they mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.cli.load import load
from orchestrator.cli.load_options import dialects_of, experiment_of, target_of
from orchestrator.errors import Problem
from orchestrator.load.workloads.content import draw, stream
from orchestrator.spec.load import MOST_TOKENS, Lengths

URL = "https://host"
LENGTHS = ("--input-tokens", "8", "--output-tokens", "4")


def parsed(*args: str) -> dict[str, Any]:
    """What click makes of these arguments."""
    return load.make_context("load", [URL, *args]).params


def experiment(*args: str) -> tuple[dict[str, Any], list[str]]:
    """The experiment, and what is wrong with the options."""
    problems: list[Problem] = []
    made = experiment_of(URL, parsed("--rate", "1", "--requests", "9", *args), problems)
    return made, [problem.message for problem in problems]


def content(*args: str) -> dict[str, Any]:
    """The workload, but for what all have."""
    made, problems = experiment(*args)
    assert problems == []
    (workload,) = made["workloads"]
    return {name: value for name, value in workload.items() if name not in ("name", "api")}


def test_lengths_may_be_fixed_uniform_or_spread() -> None:
    found = content("--input-tokens", "100:300", "--output-tokens", "200+-50")
    assert found["input_tokens"] == {"uniform": {"min": 100, "max": 300}}
    lengths = draw(Lengths.model_validate(found["output_tokens"]), (50_000,), stream(1))
    assert lengths.mean() == pytest.approx(200, rel=0.01)
    assert lengths.std() == pytest.approx(50, rel=0.03)
    assert content(*LENGTHS)["input_tokens"] == 8
    assert content("--input-tokens", "200±50", "--output-tokens", "1")["input_tokens"] == found["output_tokens"]


@given(st.one_of(st.text(), st.from_regex(r"[0-9]{0,12}(:|\\+-|±|\\+|-)?[0-9]{0,12}", fullmatch=True)))
@example("3000000000")
@example("300:100")
@example("0+-5")
@example("10%")
def test_what_is_no_length_is_said_with_its_option_and_nothing_else_is_let_through(text: str) -> None:
    made, problems = experiment(f"--input-tokens={text}", "--output-tokens", "1")
    if made["workloads"]:
        low, high = Lengths.model_validate(made["workloads"][0]["input_tokens"]).bounds
        assert 1 <= low <= (high or MOST_TOKENS) <= MOST_TOKENS
        assert problems == []
    else:
        assert len(problems) == 1
        assert problems[0].startswith(f"--input-tokens {text!r}: give 200, 100:300 (uniform) or")


def test_prefixes_and_turns_are_the_kinds_of_an_experiment_file() -> None:
    shared = content(*LENGTHS, "--prefix-tokens", "30", "--prefix-count", "4")
    assert shared == {
        "kind": "random", "input_tokens": 8, "output_tokens": 4, "shared_prefix_tokens": 30, "shared_prefix_count": 4
    }  # fmt: skip
    spoken = content(*LENGTHS, "--turns", "3", "--think-time", "500ms")
    assert spoken == {"kind": "conversations", "input_tokens": 8, "output_tokens": 4, "turns": 3, "think_time": "0.5s"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*LENGTHS, "--prefix-count", "2"), "--prefix-count is for --prefix-tokens"),
        ((*LENGTHS, "--think-time", "2s"), "--think-time is for --turns"),
        (("--output-tokens", "4", "--prompt-file", "x", "--turns", "2"), "--turns is for --input-tokens"),
        (("--output-tokens", "4"), "give one of --input-tokens"),
    ],
)
def test_options_that_would_change_nothing_are_refused(args: tuple[str, ...], said: str) -> None:
    assert any(problem.startswith(said) for problem in experiment(*args)[1])


def test_a_path_of_its_own_is_that_of_every_dialect_and_trust_is_the_targets() -> None:
    problems: list[Problem] = []
    options = parsed(*LENGTHS, "--endpoint", "/v2/complete?version=1", "--insecure")
    assert {dialect.path for dialect in dialects_of(options, problems)} == {"/v2/complete?version=1"}
    assert not target_of(URL, options, problems).verify_tls
    assert target_of(URL, parsed(*LENGTHS), problems).verify_tls
    assert problems == []
    target_of("http://host", parsed(*LENGTHS, "--endpoint", "v2", "--insecure"), problems)
    assert ["--endpoint 'v2'" in problems[0].message, "is for https" in problems[1].message] == [True, True]


@given(st.floats(1e-9, 1e9))
def test_times_are_not_rounded(seconds: float) -> None:
    made, _ = experiment(*LENGTHS, "--warmup", f"{seconds!r}s")
    assert math.isclose(float(made["load"]["warmup"].removesuffix("s")), seconds)

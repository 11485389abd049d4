"""Arguments for a container runtime: whole options that it knows and that users may set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.spec import container_options
from orchestrator.spec.container_options import RUNTIMES, option_problem


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("docker", ("--shm-size", "8g", "--privileged")),
        ("docker", ("-v/data:/data", "-eA=b")),
        ("docker", ("--memory-swap", "-1")),
        ("docker", ("--a-newer-one=3",)),
        ("podman", ("--tls-verify=false", "--no-hosts", "-m", "8g")),
        ("apptainer", ("-B", "/a:/b", "--env", "A=b")),
    ],
)
def test_whole_options_are_taken(runtime: str, words: tuple[str, ...]) -> None:
    assert option_problem(words, runtime) is None


@pytest.mark.parametrize(
    ("runtime", "words", "problem"),
    [
        ("docker", ("image",), "'image' would be read as the image"),
        ("docker", ("--",), "'--' would be read as the image"),
        ("docker", ("--no-hosts",), "--no-hosts: docker is not known to have it"),
        ("docker", ("--name", "x"), "--name: this program sets that itself"),
        ("docker", ("-it",), "-it: this program sets that itself"),
        ("docker", ("--shm-size",), "--shm-size needs a value"),
        ("docker", ("-v",), "-v needs a value"),
        ("docker", ("--shm-size", "--privileged"), "--shm-size needs a value"),
        ("apptainer", ("--nv",), "--nv: this program sets that itself"),
    ],
)
def test_other_words_are_refused_with_the_reason(
    runtime: str, words: tuple[str, ...], problem: str
) -> None:
    reason = option_problem(words, runtime)
    assert reason is not None
    assert reason.startswith(problem)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_recorded_options_take_a_value_or_none(runtime: str) -> None:
    file = Path(container_options.__file__).with_suffix(".json")
    recorded = json.loads(file.read_text())[runtime]
    assert set(recorded["value"]).isdisjoint(recorded["bare"])
    assert set(recorded["short"].values()) <= {*recorded["value"], *recorded["bare"]}
    assert len(recorded["value"]) > 30

"""A small valid experiment file that tests change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.experiment import Experiment, parse_experiment

GOOD: dict[str, Any] = {
    "version": 1,
    "name": "small",
    "model": {"id": "org/model"},
    "deployments": {"engine": "vllm"},
    "workloads": [{"name": "chat", "input_tokens": 100, "output_tokens": 20}],
    "load": {"levels": {"concurrency": [1, 2]}},
}


def parsed(**changes: Any) -> Experiment:
    """The good file with keys replaced; one that is None is left out. JSON is YAML too."""
    content = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return parse_experiment(json.dumps(content), "x.yaml")


def problems(**changes: Any) -> list[Problem]:
    with pytest.raises(ProblemsError) as caught:
        parsed(**changes)
    return caught.value.problems


def problem(**changes: Any) -> str:
    """The message and hint of the only problem."""
    (reported,) = problems(**changes)
    return reported.message + (f" ({reported.hint})" if reported.hint else "")


def problems_in(text: str) -> list[tuple[int | None, str]]:
    """Line and message of every problem of a text."""
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(text, "x.yaml")
    return [(reported.line, reported.message) for reported in caught.value.problems]

"""The options of a stored search, from its plan."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.base.errors import Problem
from orchestrator.cli.load import load
from orchestrator.cli.load_again import search_options
from orchestrator.cli.load_options import LoadOptions, options_digest, parse_load
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import store_sweep

URL = "http://127.0.0.1:8000"
SEARCH = ("--find-capacity", "--slo", "ttft<=500ms,attainment>=0.95", "--output-tokens", "128")


def stored(*words: str) -> tuple[Plan, str]:
    """The plan that ``load`` stores for these options, and their digest."""
    params = load.make_context("load", [URL, *words]).params
    names = {field.name for field in fields(LoadOptions)}
    options = LoadOptions(**{name: value for name, value in params.items() if name in names})
    problems: list[Problem] = []
    parsed = parse_load(URL, options, problems)
    assert problems == []
    digest = options_digest(parsed, options)
    plan = make_plan(parsed.experiment("some-org/m"))
    return plan.model_copy(update={"load_options": digest}), digest


@pytest.mark.parametrize(
    "words",
    [
        ("--input-tokens", "512"),
        ("--input-tokens", "100:300", "--duration", "30s", "--seed", "7"),
        ("--input-tokens", "512", "--concurrency", "8", "--warmup", "5s"),
        ("--input-tokens", "512", "--api", "chat", "--model", "some-org/m", "--budget", "5m"),
    ],
)
def test_the_options_of_a_search_are_found_again(words: tuple[str, ...]) -> None:
    plan, digest = stored(*SEARCH, *words)
    found = search_options(plan)
    assert found is not None
    assert stored(*found)[1] == digest


@pytest.mark.parametrize(
    "words", [("--header", "a:b"), ("--shared-prefix", "500"), ("--extra-body", '{"top_k": 1}')]
)
def test_options_that_a_plan_does_not_tell_are_not_made_up(words: tuple[str, ...]) -> None:
    plan, _ = stored(*SEARCH, "--input-tokens", "512", *words)
    assert search_options(plan) is None


def test_best_ends_with_the_whole_command_of_a_search_that_may_go_on(tmp_path: Path) -> None:
    plan, digest = stored(*SEARCH, "--input-tokens", "512", "--budget", "5m")
    plan = plan.model_copy(update={"name": f"capacity-{digest[:12]}"})
    store = Store.open(str(tmp_path), plan.name)
    store_sweep(store, plan)
    lines = invoke("best", store.uri).stderr.splitlines()
    (proposed,) = [line for line in lines if line.startswith("next: ")]
    _, command, url, *words = shlex.split(proposed.removeprefix("next: "))
    assert (command, url) == ("load", URL)
    assert words[-4:] == ["--budget", "300s", "--results", store.uri]
    assert stored(*words[:-2])[1] == digest

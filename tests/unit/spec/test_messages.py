"""What an experiment file says wrongly is told in the words of its author, with what to write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.document import OTHER_NAMES, parse_document
from orchestrator.spec.experiment import examined, parse_experiment
from tests.unit.spec.files import GOOD

WORKLOAD = {"name": "a", "input_tokens": 10, "output_tokens": 10}
LENGTHS = "a whole number, {uniform: {min: 10, max: 20}} or {lognormal: {mean: 150, sigma: 0.6}}"


def only_problem(**changes: Any) -> tuple[str, str | None]:
    """Message and hint of the only problem of the good file with these changes."""
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps({**GOOD, **changes}))
    (problem,) = caught.value.problems
    return problem.message, problem.hint


def of_workload(**keys: Any) -> tuple[str, str | None]:
    return only_problem(workloads=[{**WORKLOAD, **keys}])


def of_load(**keys: Any) -> tuple[str, str | None]:
    return only_problem(load={"levels": {"concurrency": [1]}, **keys})


def test_lengths_say_all_their_forms() -> None:
    assert of_workload(output_tokens="many") == (
        f"'output_tokens' must be {LENGTHS}, not 'many'",
        None,
    )
    _, hint = of_workload(output_tokens="20")
    assert hint == "write it without quotes: 20"


def test_lengths_of_answers_may_also_come_from_the_file_of_prompts() -> None:
    workload = {"name": "a", "kind": "file", "prompts": "p.txt", "output_tokens": "many"}
    message, _ = only_problem(workloads=[workload])
    assert "must be a whole number, file, {uniform" in message


def test_an_unknown_distribution_comes_with_the_known_ones() -> None:
    assert of_workload(output_tokens={"zipf": {"a": 2}}) == (
        "unknown key 'zipf'",
        "known: fixed, histogram, lognormal, normal, uniform",
    )
    assert of_workload(output_tokens={"unifrom": {}})[1] == "did you mean 'uniform'?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "output_tokens"),
        ("osl", "output_tokens"),
        ("isl", "input_tokens"),
        ("prefix_len", "shared_prefix_tokens"),
    ],
)
def test_a_name_of_other_programs_leads_to_ours(name: str, meant: str) -> None:
    assert of_workload(**{name: 9}) == (f"unknown key {name!r}", f"did you mean {meant!r}?")


def test_names_of_loads_lead_to_ours() -> None:
    assert of_load(num_prompts=9)[1] == "did you mean 'requests'?"
    assert of_load(rate=[1])[1] == "did you mean 'levels'?"
    assert of_load(levels={"qps": [1]})[1] == "did you mean 'request_rate'?"


def test_no_name_of_other_programs_leads_to_itself_alone() -> None:
    for name, our_names in OTHER_NAMES.items():
        assert our_names != (name,)


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"seed": "8192"},
            "'seed' must be a whole number, not '8192'",
            "write it without quotes: 8192",
        ),
        ({"seed": "many"}, "'seed' must be a whole number, not 'many'", None),
        ({"version": "1"}, "'version' must be 1, not '1'", "write it without quotes: 1"),
        ({"workloads": []}, "'workloads' is empty", "give at least 1"),
        (
            {"workloads": ["chat"]},
            "entry 1 of 'workloads' must be a mapping (name: value), not 'chat'",
            None,
        ),
        (
            {"slos": {"s": {"ttft": "1s", "attainment": 95}}},
            "'attainment' must be at most 1, not 95",
            "it is a share: 0.95 for 95 %",
        ),
        ({"slos": {"s": {"p99_ttft": "1s"}}}, "unknown key 'p99_ttft'", "did you mean 'ttft_p99'?"),
        (
            {"load": {"levels": {"concurrency": "8"}}},
            "'concurrency' must be a list, not '8'",
            "write concurrency: [8]",
        ),
        (
            {"workloads": [{**GOOD["workloads"][0], "adapters": {"names": "sql"}}]},
            "'names' must be a list, not 'sql'",
            "write names: ['sql']",
        ),
        ({"workloads": None}, "'workloads' must be a list, not nothing", None),
        (
            {"name": "my experiment"},
            "'name' cannot be 'my experiment'",
            "up to 100 letters and digits of ASCII, also . _ - after the first",
        ),
    ],
)
def test_a_wrong_value_says_what_to_write(
    changes: dict[str, Any], message: str, hint: str | None
) -> None:
    assert only_problem(**changes) == (message, hint)


def test_a_share_may_be_written_in_percent() -> None:
    slo = {"ttft": "1s", "attainment": "99.5%"}
    spec = parse_experiment(json.dumps({**GOOD, "slos": {"s": slo}})).spec
    assert spec.slos["s"].attainment == 0.995
    assert only_problem(load={"search": "capacity", "precision": "10%"})[1] == "write 0.1"


def test_another_file_is_no_experiment_and_says_so_once() -> None:
    text = json.dumps({"name": "x", "version": "1.2", **{f"key{at}": at for at in range(50)}})
    with pytest.raises(ProblemsError) as caught:
        examined(parse_document(text, "package.json"))
    (problem,) = caught.value.problems
    assert str(problem) == (
        "package.json:1: this is no experiment file: it has none of 'deployments', 'workloads', "
        "'load' (docs/reference/experiment-file.md shows one)"
    )


def test_a_list_of_all_keys_is_shown_once() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps({**GOOD, "zzz1": 1, "zzz2": 2}))
    first, second = caught.value.problems
    assert (first.hint or "").startswith("known: budget, ")
    assert second.hint is None

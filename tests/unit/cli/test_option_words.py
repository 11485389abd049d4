"""Problems of an experiment in the words of ``orchestrator load``."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import Problem
from orchestrator.cli.load import load
from orchestrator.cli.option_words import OPTIONS, in_options


def test_every_option_that_problems_name_exists() -> None:
    options = {name for option in load.params for name in option.opts}
    named = {word for text in OPTIONS.values() for word in text.split() if word.startswith("--")}
    assert named <= options


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("'requests' must be at most 5", "--requests must be at most 5"),
        ("'wall' must be above 0", "--budget must be above 0"),
        ("give 'shared_prefix_tokens'", "give --shared-prefix"),
        ("'nothing' is no key", "'nothing' is no key"),
        ("trace 'requests' is empty", "--trace 'requests' is empty"),
    ],
)
def test_keys_become_options(message: str, translated: str) -> None:
    assert in_options(Problem(message)).message == translated


def test_the_name_of_a_file_stays_as_it_is() -> None:
    problem = Problem(
        "prompts 'turns' lacks lengths: give 'output_tokens'", hint="'api' or 'nothing'"
    )
    assert in_options(problem) == Problem(
        "--prompts 'turns' lacks lengths: give --output-tokens", hint="--api or 'nothing'"
    )


@pytest.mark.parametrize(
    "reason",
    [
        ", line 1: 'model' is not sent: every request goes to the model that is measured",
        ', row 2 and 3 more: message 1 of "messages": "role" is \'model\'; give one of user',
        ", entry 1: 'turns' is not sent",
        " has several columns 'model': leave one of them",
        " is one JSON object: give an array of objects; 'requests' in it may be that array",
    ],
)
def test_a_key_of_a_file_is_no_option(reason: str) -> None:
    assert in_options(Problem(f"prompts 'a'{reason}")).message == f"--prompts 'a'{reason}"


def test_a_file_of_times_and_prompts_has_the_option_that_named_it() -> None:
    problem = Problem("prompts 'a.jsonl' is empty")
    assert in_options(problem, "--trace").message == "--trace 'a.jsonl' is empty"

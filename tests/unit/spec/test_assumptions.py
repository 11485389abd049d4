"""What ``simulate --assume`` takes, and what it refuses."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.assumptions import (
    ADAPTER_COSTS,
    ANSWER_LENGTHS,
    NOTHING_ASSUMED,
    TOOL_TOKENS,
    parse_assumptions,
    with_option,
)


def test_assumptions_are_read_from_options() -> None:
    options = [
        *("drafts_accepted=0.6", "constrained_answers=asked", "adapters=free"),
        "image_patch=28",
    ]
    assert parse_assumptions(options).stated() == {
        "drafts_accepted": 0.6,
        "constrained_answers": "asked",
        "adapters": "free",
        "image_patch": 28,
    }
    assert parse_assumptions([]) == NOTHING_ASSUMED


def test_all_problems_of_assumptions_are_found_at_once() -> None:
    options = ["adapter=free", "constrained_answers=short", "adapters=free", "adapters=free"]
    with pytest.raises(ProblemsError) as raised:
        parse_assumptions([*options, "drafts_accepted=60", "image_patch=28x28"])
    assert [str(problem) for problem in raised.value.problems] == [
        "--assume 'adapter=free': unknown name (did you mean 'adapters'?)",
        "--assume adapters=free: adapters is given twice",
        "--assume drafts_accepted=60: the value of drafts_accepted must be a share from 0 to 1, as 0.6",
        "--assume constrained_answers=short: the value of constrained_answers must be asked",
        "--assume image_patch=28x28: the value of image_patch must be a whole number of pixels "
        "from 1 to 1024, as 28",
    ]


def test_a_name_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(ProblemsError, match="known: adapters, constrained_answers, drafts"):
        parse_assumptions(["x"])


def test_only_what_stands_for_a_fact_is_needed() -> None:
    assumptions = parse_assumptions(["constrained_answers=asked", "adapters=free"])
    needed = assumptions.needed_for([TOOL_TOKENS, ADAPTER_COSTS])
    assert needed.stated() == {"adapters": "free"}
    assert assumptions.covers(ANSWER_LENGTHS)
    assert not needed.covers(ANSWER_LENGTHS)
    assert not needed.covers(TOOL_TOKENS)


def test_a_reason_ends_with_the_option_that_removes_it() -> None:
    text = with_option("nobody knows", ADAPTER_COSTS)
    assert text == "nobody knows, unless --assume adapters=free"
    assert with_option("nobody knows", TOOL_TOKENS) == with_option("nobody knows", None)

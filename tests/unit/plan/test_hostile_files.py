"""Small files that name more than a machine holds: each is refused, or planned, within moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.load.workloads import ConversationsWorkload, RandomWorkload, SessionLengths
from orchestrator.spec.load import MOST_TURNS, MOST_TURNS_OF_ALL, Lengths
from tests.unit.plan.files import planned
from tests.unit.spec.files import problem

LOGNORMAL = {"lognormal": {"mean": 30, "sigma": 1}}


def conversations(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "conversations", "input_tokens": LOGNORMAL, "output_tokens": 20, **keys}


@pytest.mark.parametrize(("turns", "prefix"), [(1, 0), (2, 17), (7, 5)])
def test_the_share_of_longer_prompts_is_that_of_a_thousand_sessions_counted_one_by_one(turns: int, prefix: int) -> None:
    asked, answered = Lengths.model_validate(LOGNORMAL), Lengths(fixed=20)
    one = ConversationsWorkload.model_validate(conversations("w", turns=turns, shared_prefix_tokens=prefix))
    drawn = SessionLengths(asked, answered, turns, seed=0)
    prompts = []
    for session in range(1000):
        said = prefix
        for turn in range(turns):
            prompts.append(said + drawn.input_tokens(session, turn))
            assert one.requests(None, 0).input_tokens(session, turn) == prompts[-1]  # type: ignore[arg-type]
            said += drawn.input_tokens(session, turn) + drawn.output_tokens(session, turn)
    for tokens in (30, 50, 51, 100, 2**31 - 1):
        least = 1 / len(prompts)
        assert one.longer_prompts(tokens) == np.clip(np.mean(np.array(prompts) > tokens), least, 1 - least)


def test_lengths_of_a_workload_are_drawn_once_for_all_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def sample(lengths: SessionLengths) -> Any:
        drawn.append(lengths)
        return np.array([5, 10_000])

    monkeypatch.setattr(SessionLengths, "sample", sample)
    grid = {"max_input_len": [4096, 8192], "max_model_len": [16_384, 32_768]}
    engine = {"engine": "tgi", "vary": [{"grid": grid}]}
    plan = planned(deployments=engine, workloads=[conversations("w", turns=MOST_TURNS, output_tokens=21)])
    assert len(plan.deployments) == 4
    assert all("about 50% of the prompts" in " ".join(one.reasons) for one in plan.deployments)
    assert len(drawn) == 1


def test_turns_of_all_workloads_are_added_before_any_length_is_drawn() -> None:
    count = MOST_TURNS_OF_ALL // MOST_TURNS + 1
    said = problem(workloads=[conversations(f"w{index}", turns=MOST_TURNS) for index in range(count)])
    assert said == "sessions of all workloads have 21,000 turns; at most 20,000 are allowed"


def test_a_single_turn_is_a_request_alone() -> None:
    alone = RandomWorkload.model_validate({"name": "w", "input_tokens": LOGNORMAL, "output_tokens": 20})
    assert alone.longer_prompts(40) == ConversationsWorkload.model_validate(conversations("w")).longer_prompts(40)

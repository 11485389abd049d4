"""Ready workloads: each can be planned, and keys given beside it win."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.load import PRESETS, Workload
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.drawn import ConversationsWorkload, Drawn, RandomWorkload
from orchestrator.workloads.kind import IdRange
from tests.unit.spec.files import parsed

IDS = RandomIds(IdRange(1000, 2000))


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_is_a_workload_of_a_file(name: str) -> None:
    experiment = parsed(workloads=[{"name": "w", "preset": name}])
    [workload] = experiment.parts["workloads"]
    assert isinstance(workload, Drawn)
    requests = workload.requests(IDS, 3)
    prompt = requests.prompt(0, 0, "measure", ())
    assert prompt.tokens == len(prompt.flat()) == requests.input_tokens(0, 0)
    assert PRESETS[name].source


def test_a_preset_is_stored_written_out_and_own_keys_win() -> None:
    workload = Workload.model_validate({"name": "w", "preset": "chat", "turns": 3})
    assert isinstance(workload, ConversationsWorkload)
    assert workload.turns.fixed == 3
    assert '"preset"' not in workload.model_dump_json()
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


def test_lengths_beside_a_preset_win_and_another_kind_is_refused_by_the_presets_name() -> None:
    pairs = [{"input": 512, "output": 128}]
    workload = Workload.model_validate({"name": "w", "preset": "rag", "lengths": pairs})
    assert isinstance(workload, RandomWorkload)
    assert (workload.input_tokens, workload.output_tokens) == (None, None)
    with pytest.raises(
        ProblemsError, match="preset 'chat' is of kind 'conversations', not 'random'"
    ):
        parsed(workloads=[{"name": "w", "preset": "chat", "kind": "random"}])


def test_an_unknown_preset_and_an_unknown_key_are_refused_by_name() -> None:
    with pytest.raises(ProblemsError, match="unknown preset 'chta'.*did you mean 'chat'"):
        parsed(workloads=[{"name": "w", "preset": "chta"}])
    with pytest.raises(ProblemsError, match="unknown key 'trns'.*did you mean 'turns'"):
        parsed(workloads=[{"name": "w", "preset": "chat", "trns": 3}])
    with pytest.raises(ValidationError):
        Workload.model_validate({"name": "w", "preset": ["chat"]})


def test_rag_prompts_have_popular_documents_first_and_share_them() -> None:
    rag = Workload.model_validate({"name": "w", "preset": "rag"})
    assert isinstance(rag, RandomWorkload)
    requests = rag.requests(IDS, 3)
    first_parts = []
    for session in range(300):
        prompt = requests.prompt(session, 0, "measure", ())
        system, user = prompt.messages
        assert system.tokens == 150
        assert 2 <= len(user.content) <= 11
        assert all(500 <= len(part) <= 1000 for part in user.content[:-1])
        assert 20 <= len(user.content[-1]) <= 199
        first_parts.append(np.asarray(user.content[0]).tobytes())
    assert len(set(first_parts)) < 270, "documents come again"


def test_the_means_of_deep_research_are_those_of_its_source() -> None:
    research = Workload.model_validate({"name": "w", "preset": "deep_research"})
    requests = research.requests(IDS, 3)
    turns = [requests.turns(session) for session in range(3000)]
    outputs = [requests.output_tokens(session, 0) for session in range(3000)]
    assert np.mean(turns) == pytest.approx(15, rel=0.1)
    assert np.mean(outputs) == pytest.approx(300, rel=0.1)

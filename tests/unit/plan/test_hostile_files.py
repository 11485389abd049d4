"""Small files that name more than a machine holds: each is refused, or planned, within moments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.base.registry import MOST_COMPARED, did_you_mean
from orchestrator.catalog.models import model_facts
from orchestrator.plan.identity import file_digest, sampled_digest
from orchestrator.plan.make import make_plan
from orchestrator.results.ids import content_digest
from orchestrator.spec.document import MOST_FILE_BYTES, MOST_PROBLEMS, parse_document
from orchestrator.spec.experiment import examined
from orchestrator.spec.expressions import parse_expression
from orchestrator.spec.load import MOST_TURNS, MOST_TURNS_OF_ALL, Arrivals, Lengths
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from orchestrator.workloads.file_reading import first_line
from orchestrator.workloads.lengths import SessionLengths, SessionShape
from tests.unit.plan.files import planned
from tests.unit.spec.files import GOOD, problem

LOGNORMAL = {"lognormal": {"mean": 30, "sigma": 1}}


def conversations(name: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "conversations",
        "input_tokens": LOGNORMAL,
        "output_tokens": 20,
        **keys,
    }


@pytest.mark.parametrize(("turns", "prefix"), [(1, 0), (2, 17), (7, 5)])
def test_the_share_of_longer_prompts_equals_a_count_over_sessions(turns: int, prefix: int) -> None:
    asked, answered = Lengths.model_validate(LOGNORMAL), Lengths(fixed=20)
    one = ConversationsWorkload.model_validate(
        conversations("w", turns=turns, shared_prefix_tokens=prefix)
    )
    drawn = SessionLengths(SessionShape.of(asked, answered, turns), seed=0)
    prompts = []
    for session in range(1000):
        said = prefix
        for turn in range(turns):
            prompts.append(said + drawn.input_tokens(session, turn))
            assert one.requests(None, 0).input_tokens(session, turn) == prompts[-1]  # type: ignore[arg-type]
            said += drawn.input_tokens(session, turn) + drawn.output_tokens(session, turn)
    for tokens in (30, 50, 51, 100, 2**31 - 1):
        least = 1 / len(prompts)
        assert one.longer_prompts(tokens) == np.clip(
            np.mean(np.array(prompts) > tokens), least, 1 - least
        )


def test_lengths_of_a_workload_are_drawn_once_for_all_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []

    def sample(lengths: SessionLengths) -> Any:
        drawn.append(lengths)
        return np.array([5, 10_000])

    monkeypatch.setattr(SessionLengths, "sample", sample)
    grid = {"max_input_len": [4096, 8192], "max_model_len": [16_384, 32_768]}
    engine = {"engine": "tgi", "vary": [{"grid": grid}]}
    plan = planned(
        deployments=engine, workloads=[conversations("w", turns=MOST_TURNS, output_tokens=21)]
    )
    assert len(plan.deployments) == 4
    assert all(
        "about 50% of the prompts" in " ".join(deployment.reasons)
        for deployment in plan.deployments
    )
    assert len(drawn) == 1


def test_turns_of_all_workloads_are_added_before_any_length_is_drawn() -> None:
    count = MOST_TURNS_OF_ALL // MOST_TURNS + 1
    said = problem(
        workloads=[conversations(f"w{index}", turns=MOST_TURNS) for index in range(count)]
    )
    assert said == "sessions of all workloads have 21,000 turns; at most 20,000 are allowed"


def test_a_single_turn_is_a_request_alone() -> None:
    alone = RandomWorkload.model_validate(
        {"name": "w", "input_tokens": LOGNORMAL, "output_tokens": 20}
    )
    assert alone.longer_prompts(40) == ConversationsWorkload.model_validate(
        conversations("w")
    ).longer_prompts(40)


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def refused(**changes: Any) -> str:
    """The message of the only problem, which is on line 1: the file has no other."""
    with pytest.raises(ProblemsError) as caught:
        make_plan(examined(parse_document(json.dumps({**GOOD, **changes}), "x.yaml")))
    (found,) = caught.value.problems
    assert (found.file, found.line) == ("x.yaml", 1)
    return found.message


@pytest.mark.timeout(20)
def test_traces_that_may_be_endless_are_not_read(pipe: str) -> None:
    for place in ("/dev/zero", pipe):
        load = {"levels": {"request_rate": [1]}, "arrivals": {"process": "trace", "trace": place}}
        assert refused(load=load) == f"trace {place!r} is not a regular file"


@pytest.mark.timeout(20)
def test_profiles_and_configs_that_may_be_endless_are_not_read(
    tmp_path: Path,
) -> None:
    for name in ("profile.yaml", "config.json"):
        os.mkfifo(tmp_path / name)
    said = refused(predictions={"profile": str(tmp_path / "profile.yaml")})
    assert "it is not a regular file" in said
    assert model_facts(str(tmp_path)) is None


@pytest.mark.timeout(20)
def test_only_regular_files_have_a_digest(pipe: str, tmp_path: Path) -> None:
    for place in ("/dev/zero", pipe, str(tmp_path)):
        assert file_digest(place) is sampled_digest(Path(place)) is None
    assert planned(deployments={"engine": "emulator", "profile": pipe}).deployments
    (tmp_path / "some.txt").write_text("x")
    assert file_digest(str(tmp_path / "some.txt")) == content_digest(b"x")


@pytest.fixture
def sparse(tmp_path: Path) -> str:
    """A file that says to be large and takes no room."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)
    return str(tmp_path / "sparse")


@pytest.mark.timeout(20)
def test_files_that_are_too_large_are_not_read(
    sparse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workloads.file_reading.read_at_most", None)
    load = {"levels": {"request_rate": [1]}, "arrivals": {"process": "trace", "trace": sparse}}
    assert refused(load=load) == f"trace {sparse!r} is larger than 2 GiB"
    prompts = {"name": "w", "kind": "file", "prompts": sparse, "output_tokens": 1}
    assert refused(workloads=[prompts]) == f"prompts {sparse!r} is larger than 2 GiB"
    with pytest.raises(ProblemsError, match="larger than 2 GiB"):
        first_line("trace", sparse)
    assert file_digest(sparse) is None
    assert "it is larger than 1,000,000 bytes" in refused(predictions={"profile": f"{sparse}"})


def test_a_file_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 5
    (tmp_path / "some.txt").write_bytes(data)
    monkeypatch.setattr("orchestrator.plan.identity.PIECE_BYTES", 100)
    assert file_digest(str(tmp_path / "some.txt")) == content_digest(data)
    monkeypatch.setattr("orchestrator.plan.identity.MOST_FILE_BYTES", len(data))
    assert file_digest(str(tmp_path / "some.txt")) == content_digest(data)
    monkeypatch.setattr("orchestrator.plan.identity.MOST_FILE_BYTES", len(data) - 1)
    assert file_digest(str(tmp_path / "some.txt")) is None


def test_a_level_expression_is_parsed_once_for_equal_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def parse(text: str, known: frozenset[str]) -> Any:
        read.append(text)
        return parse_expression(text, known)

    monkeypatch.setattr("orchestrator.plan.levels.parse_expression", parse)
    deployments = {"engine": "vllm", "vary": [{"grid": {"max_num_seqs": list(range(1, 101))}}]}
    plan = planned(
        deployments=deployments, load={"levels": {"concurrency": ["max_num_seqs * 2", 7]}}
    )
    assert [deployment.levels[0].value for deployment in plan.deployments] == [
        2.0 * seqs for seqs in range(1, 101)
    ]
    assert read == ["max_num_seqs * 2"]


def test_steps_are_added_once_for_all_levels_of_all_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[int] = []

    class Steps(list[Any]):
        def __iter__(self) -> Any:
            added.append(len(self))
            return super().__iter__()

    arrivals = Arrivals.model_validate({"process": "steps", "steps": [[1.0, 2.0], [3.0, 4.0]]})
    object.__setattr__(arrivals, "steps", Steps(arrivals.steps or ()))
    said = {arrivals.too_much(rate / 10, 60.0, None) for rate in range(1, 1000)}
    assert said == {None}
    assert len(added) <= 3  # lengths, requests, the busiest
    assert (
        arrivals.too_much(1e6, 60.0, None)
        == "2.33333e+06 requests/s for 60 s are 1.4e+08 requests; a point may have 5,000,000"
    )
    fresh = Arrivals.model_validate({"process": "steps", "steps": [[1.0, 2.0], [3.0, 4.0]]})
    assert (fresh, fresh.model_dump()) == (arrivals, arrivals.model_dump())


def test_workloads_are_compared_by_a_digest_and_not_each_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def identity(one: RandomWorkload) -> dict[str, Any]:
        asked.append(one.name)
        return {"tokens": one.name[:3]}

    monkeypatch.setattr(RandomWorkload, "identity", identity)
    some = [{"name": f"w{index}", "input_tokens": 4, "output_tokens": 2} for index in range(10, 60)]
    with pytest.raises(ProblemsError) as caught:
        planned(workloads=[*some, some[3] | {"name": "w13 again"}])
    assert [problem.message for problem in caught.value.problems] == [
        "'w13 again' asks for the same as 'w13'"
    ]
    assert len(asked) == 51


def test_the_nearest_name_is_not_looked_for_after_enough_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def compare(name: str, known: Any, n: int) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr("difflib.get_close_matches", compare)
    hardware = {f"g{index}": {"accelerator": "H100-80GB"} for index in range(900)}
    wanted = [f"h{index}" for index in range(1000)]
    deployments = {"engine": "vllm", "vary": [{"grid": {"hardware": wanted}}]}
    text = json.dumps({**GOOD, "hardware": hardware, "deployments": deployments}, indent=1)
    with pytest.raises(ProblemsError) as caught:
        make_plan(examined(parse_document(text, "x.yaml")))
    assert len(caught.value.problems) == MOST_PROBLEMS + 1
    assert compared == wanted[:MOST_PROBLEMS]


def test_a_mistake_in_every_line_is_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def compare(name: str, known: Any, n: int) -> list[str]:
        compared.append(name)
        return ["near"]

    monkeypatch.setattr("difflib.get_close_matches", compare)
    known = [f"word{index}" for index in range(MOST_COMPARED)]
    assert {did_you_mean("wrod", known) for _ in range(10)} == {"did you mean 'near'?"}
    assert did_you_mean("wrod", [*known, "one more"]) == ""
    assert compared == ["wrod"]

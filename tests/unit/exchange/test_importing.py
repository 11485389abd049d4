"""Files are found by content, read all or none, and stored under the definitions of their tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.exchange.importing import ImportNames, check_place, read_files, store_points
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.unit.exchange.recorded import (
    AIPERF,
    AIPERF_RECORDS,
    GUIDELLM,
    NAMES,
    VLLM,
    VLLM_DETAILED,
    changed,
    copied,
    document,
    imported,
    points_of,
    queried,
)
from tests.unit.plan.stored_sweeps import planned, store_sweep

ALL = (VLLM, VLLM_DETAILED, GUIDELLM, AIPERF, AIPERF_RECORDS)


def problems(*paths: Path) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        read_files(paths)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_is_found_by_its_content(tmp_path: Path) -> None:
    read = read_files(copied(tmp_path, *ALL))
    sources = {Path(file.file.name).name: file.format_title for file in read}
    assert sources == {
        "file0": "vllm bench serve JSON",
        "file1": "vllm bench serve JSON",
        "file2": "GuideLLM 0.8 JSON",
        "file3": "AIPerf 0.13 JSON and JSONL",
        "file4": "AIPerf 0.13 JSON and JSONL",
    }


def test_the_problems_of_all_files_are_said_at_once_and_nothing_is_read(tmp_path: Path) -> None:
    no_json = tmp_path / "a.json"
    no_json.write_text("a: 1\n")
    other = tmp_path / "b.json"
    other.write_text('{"results": {}, "version": 3}')
    empty = tmp_path / "c.json"
    empty.write_text(" \n")
    old = changed(GUIDELLM, tmp_path, metadata={"version": 1, "guidellm_version": "0.3.0"})
    refusals = problems(no_json, other, empty, old, VLLM)
    assert refusals[0].startswith(f"{no_json}: it is no JSON from line 1 on")
    assert refusals[1].startswith(f"{other}: it is none of ")
    assert refusals[1].endswith("it has the keys results, version")
    assert refusals[2] == f"{empty}: it is empty"
    assert refusals[3].startswith(f"{old}: it is report version 1 of GuideLLM '0.3.0'")
    assert len(refusals) == 4


def test_the_same_content_twice_is_one_problem(tmp_path: Path) -> None:
    (copy,) = copied(tmp_path, VLLM)
    assert problems(VLLM, copy) == [f"{copy}: it has the same content as {VLLM}"]


def test_a_file_imported_twice_counts_once(tmp_path: Path) -> None:
    store = imported(tmp_path, VLLM)
    (again,) = store_points(store, read_files([VLLM]), NAMES)
    assert again.already_stored == 1
    for other in (ImportNames("tp2", "prompts"), ImportNames(None, "chat")):
        with pytest.raises(ProblemsError) as caught:
            store_points(store, read_files([GUIDELLM, VLLM]), other)
        (problem,) = caught.value.problems
        assert str(problem).startswith(f"{VLLM}: it was imported before under another --deployment")
    assert len(points_of(store)) == 1


def test_a_sweep_is_one_workload_whatever_lengths_were_measured(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "aiperf.json"
    lengths = {**document(AIPERF)["input_sequence_length"], "avg": 20.0}
    changed(AIPERF, tmp_path, input_sequence_length=lengths).rename(other)
    longer = changed(VLLM, tmp_path, total_input_tokens=9_000)
    experiment = StoredExperiment(imported(tmp_path / "store", VLLM, longer, AIPERF, other))
    groups = experiment.by_content(experiment.points().current)
    assert [len(points) for points in groups.values()] == [2, 2]
    vllm, aiperf = map(json.loads, groups)
    assert vllm == {"tool": "vllm bench serve", "workload": "prompts", "stated": {}}
    assert aiperf["stated"] == {
        "0.type": "synthetic",
        "0.prompts.isl.mean": 64,
        "0.prompts.osl.mean": 16,
    }


def test_no_schedule_is_made_up(tmp_path: Path) -> None:
    store = imported(tmp_path, VLLM_DETAILED, GUIDELLM)
    assert queried(store, "SELECT count(scheduled_ns), count(sent_ns) > 0 FROM {requests}") == [
        (0, True)
    ]


def test_every_point_says_whose_it_is_and_that_nobody_checked_it(tmp_path: Path) -> None:
    points = points_of(imported(tmp_path, VLLM, GUIDELLM, AIPERF))
    assert {point.source for point in points} == {
        "vllm bench serve",
        "GuideLLM 0.8.1",
        "AIPerf 0.13.0",
    }
    assert {point.validity for point in points} == {"unchecked"}
    for point in points:
        assert point.source in point.reasons[0]


def test_what_no_table_has_is_counted(tmp_path: Path) -> None:
    store = imported(tmp_path, VLLM_DETAILED)
    ((left_out,),) = queried(store, "SELECT left_out FROM {imported}")
    assert left_out == {"generated_texts": 20, "queue_times": 20}


def test_definitions_and_the_files_own_figures_are_stored(tmp_path: Path) -> None:
    store = imported(tmp_path, GUIDELLM)
    rows = queried(store, "SELECT definitions, aggregates_json, file FROM {imported}")
    for definitions, aggregates, name in rows:
        assert definitions["tpot_ms"].startswith("inter_token_latency_ms: ")
        assert json.loads(aggregates)["time_per_output_token_ms"]["mean"] > 0
        assert name == "benchmarks.json"


def test_limits_are_judged_from_the_requests(tmp_path: Path) -> None:
    slo = Slo.model_validate({"name": "s", "ttft": "10s", "attainment": 0.9})
    strict = Slo.model_validate({"name": "t", "ttft": "1ms", "attainment": 0.9})
    detailed, only_figures = (
        points_of(imported(tmp_path / name, path), slo, strict)[0]
        for name, path in (("a", VLLM_DETAILED), ("b", VLLM))
    )
    assert [tests[0].share.estimate for tests in detailed.attained_by_slo] == [1.0, 0.0]
    assert list(only_figures.attained_by_slo) == [(), ()]


def test_an_experiment_of_this_program_takes_no_imported_points(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    with pytest.raises(InputError, match="give another --name"):
        check_place(store)


def test_halves_of_characters_become_question_marks(tmp_path: Path) -> None:
    path = changed(VLLM, tmp_path, model_id="m\ud800 \ud83d\ude00")
    (point,) = points_of(imported(tmp_path / "store", path))
    assert point.deployment.model == "m? \U0001f600"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), path=st.sampled_from(ALL))
def test_a_mangled_file_is_read_or_refused_and_never_crashes(
    data: st.DataObject, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mangled")
    text = path.read_text()
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(mangled(json.loads(lines[number]), data))
        text = "\n".join(lines)
    else:
        text = json.dumps(mangled(json.loads(text), data))
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    copy = folder / "mangled"
    copy.write_text(text)
    paths = [copy, AIPERF] if path == AIPERF_RECORDS else [copy]
    try:
        files = read_files(paths)
    except ProblemsError as error:
        unsaid = [problem for problem in error.problems if not (problem.message and problem.file)]
        if unsaid:
            pytest.fail(f"problems without a file or a reason: {unsaid}")
        return
    store = Store.open(str(folder), "imported")
    store_points(store, files, NAMES)
    for point in points_of(store):
        assert point.figures.requests.scheduled >= 0


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800"),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)


def mangled(content: object, data: st.DataObject) -> object:
    """The JSON value with one value in it, at any depth, removed or replaced."""
    place = content
    while True:
        if isinstance(place, dict) and place:
            key = data.draw(st.sampled_from(sorted(place)))
        elif isinstance(place, list) and place:
            key = data.draw(st.integers(0, len(place) - 1))
        else:
            return content
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 9)):
            place = inner
            continue
        if data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(HOSTILE)
        return content

"""What cannot be simulated is said before anything starts, all of it at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.simulation.refusals import check
from tests.unit.results.builders import commit_measurement
from tests.unit.simulation.builders import EXPERIMENT, planned, simulated
from tests.unit.simulation.test_search import SEARCH


def problems(text: str, tmp_path: Path) -> list[str]:
    with pytest.raises(ProblemsError) as raised:
        check(planned(text), Store.open(str(tmp_path), "x"))
    return [str(problem) for problem in raised.value.problems]


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Why is the sky blue?\n")
    text = EXPERIMENT.replace(
        "workloads: [",
        f"workloads: [{{kind: file, name: texts, prompts: {tmp_path}/prompts.txt, output_tokens: 8}}, ",
    )
    text = text.replace("tpot: 50ms", "agreement: 0.9")
    text = text.replace("engine: vllm", "engine: emulator").replace(
        "8192", "8192\n  extra_args: {--fault: start=oom}"
    )
    found = problems(text, tmp_path)
    assert [
        any(word in problem for problem in found) for word in ("'texts'", "agreement", "fault")
    ] == [True] * 3
    assert len([problem for problem in found if "fault" in problem]) == 2  # deployments


def test_a_plan_without_problems_is_not_refused(tmp_path: Path) -> None:
    check(planned(), Store.open(str(tmp_path), "x"))


def test_simulated_and_measured_results_are_kept_apart(tmp_path: Path) -> None:
    measured = Store.open(str(tmp_path / "measured"), "x")
    commit_measurement(measured, "m0")
    assert measured.simulated() is False
    with pytest.raises(ProblemsError, match="has measurements of 'x'.*another --results URI"):
        check(planned(), measured)
    measured.check_not_simulated()
    store, _ = simulated(planned(), tmp_path / "simulated")
    check(planned(), store)
    with pytest.raises(InputError, match="has simulated results of 'x'.*another --results URI"):
        store.check_not_simulated()
    Store.open(str(tmp_path / "new"), "x").check_not_simulated()


def test_another_model_is_not_taken_for_the_same(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    fitted = "fitted: {error: {ttft_p50: 0.1, tpot_p50: 0.05}}\n"
    plain = f"accelerator: H100-80GB\n{fitted}"
    predictions = f"predictions: {{profile: {profile}}}"
    profile.write_text(plain)
    store, _ = simulated(planned(predictions=predictions), tmp_path / "results")
    check(planned(predictions=predictions), store)
    profile.write_text(f"{plain}constants: {{step_overhead_s: 0.01}}\n")
    with pytest.raises(ProblemsError, match=r"other models of 2 deployments.*another --results"):
        check(planned(predictions=predictions), Store.open(str(tmp_path / "results"), "x"))


def ended_after_one_measurement(plan: Plan, folder: Path) -> Store:
    stop = threading.Event()

    def listen(item: Event | Phase) -> None:
        if isinstance(item, Event) and item.kind == "measured":
            stop.set()

    store, report = simulated(plan, folder, listen, stop)
    assert report.interrupted
    assert store.manifests("launch") == []
    return store


def test_a_launch_that_was_ended_halfway_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    plain = "accelerator: H100-80GB\nfitted: {error: {ttft_p50: 0.1, tpot_p50: 0.05}}\n"
    predictions = f"predictions: {{profile: {profile}}}"
    profile.write_text(plain)
    store = ended_after_one_measurement(planned(predictions=predictions), tmp_path / "results")
    check(planned(predictions=predictions), store)
    profile.write_text(f"{plain}constants: {{step_overhead_s: 0.01}}\n")
    with pytest.raises(ProblemsError, match=r"was ended while it simulated .*another --results"):
        check(planned(predictions=predictions), store)
    profile.write_text(plain)
    _, report = simulated(planned(predictions=predictions), tmp_path / "results")
    assert report.left_by_stop == 0


def test_a_search_that_was_ended_halfway_does_not_go_on_with_other_limits(tmp_path: Path) -> None:
    store = ended_after_one_measurement(planned(SEARCH), tmp_path)
    check(planned(SEARCH), store)
    with pytest.raises(ProblemsError, match="the limits, a profile or this program has changed"):
        check(planned(SEARCH.replace("ttft: 300ms", "ttft: 200ms")), store)

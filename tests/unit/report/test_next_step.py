"""Where to look next after an answer that is not certain."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.capacity.answers import SearchedClaim
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.doubts import DeploymentClaims, Doubt, DoubtKind, Remedy
from orchestrator.capacity.first_change import FirstChange, LongerProbes, WiderPrecision
from orchestrator.cli.run import run as run_command
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report import next_step
from orchestrator.report.answer_table import next_commands
from orchestrator.report.next_step import NextStep, next_step_text, next_steps
from orchestrator.report.selection import answers, ranking_limits
from orchestrator.results.runs import RunRecord, Runs
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Arrivals
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_attempt, store_sweep
from tests.unit.report.stores import commit_shortlist_of_two

DIGEST = "0123456789abcdef" * 2
# as `load --find-capacity` plans it
LOAD_SEARCH = """
version: 1
name: {name}
model: m
deployments: {{engine: endpoint, url: "http://127.0.0.1:8000"}}
workloads: [{{name: load, input_tokens: 16, output_tokens: 8}}]
load: {{search: capacity, control: request_rate, duration: 10s, warmup: 0s}}
slos: {{interactive: {{ttft: 150ms, attainment: 0.9}}}}
budget: {{wall: 10m}}
"""

SEARCH_RATE = """
version: 1
name: exp
model: m
deployments: {{engine: emulator, hardware: cpu, vary: [{{grid: {{max_num_seqs: [8, 16]}}}}]}}
workloads: [{{name: chat, input_tokens: 16, output_tokens: 8}}]
load: {{search: capacity, control: request_rate, precision: {precision}}}
slos: {{interactive: {{ttft: 150ms, attainment: 0.9}}}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def test_the_command_can_be_pasted(store: Store) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    store_attempt(store, plan, plan.points[0])  # the other points are not measured
    lines = invoke("best", store.uri, "--slo", "interactive").stderr.splitlines()
    (command,) = [line for line in lines if line.startswith("next: ")]
    _, name, *argv = shlex.split(command.removeprefix("next: "))
    assert name == "run"
    context = run_command.make_context(name, argv)
    assert context.params["until"] == "decided"
    assert context.params["experiment"].exists()
    assert "it measures what can still change who is best" in "\n".join(lines)


def test_the_command_runs_where_the_latest_run_did(store: Store) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    store_attempt(store, plan, plan.points[0])
    runs = Runs(store.uri, "exp")
    for options in ((), ("--address", "local", "--max-nodes", "2")):
        record = RunRecord.of_this_process(options)
        runs.put(record.run_id, record.to_json())
    lines = invoke("best", store.uri, "--slo", "interactive").stderr.splitlines()
    (command,) = [line for line in lines if line.startswith("next: ")]
    _, name, *argv = shlex.split(command.removeprefix("next: "))
    context = run_command.make_context(name, argv)
    assert context.params["address"] == "local"
    assert context.params["max_nodes"] == 2


def test_limits_that_repeat_those_of_the_file_have_the_same_next_step(store: Store) -> None:
    store_sweep(store, planned())
    named = invoke("best", store.uri, "--slo", "interactive").stderr
    assert "next: " in named
    assert invoke("best", store.uri, "--slo", "ttft<=150ms,attainment>=0.9").stderr == named
    assert "next: " not in invoke("best", store.uri, "--slo", "ttft<=151ms").stderr


def test_a_simulation_ends_with_the_command_that_measures_its_shortlist(store: Store) -> None:
    commit_shortlist_of_two(store, planned(max_num_seqs=[8, 16, 32]))
    lines = invoke("best", store.uri).stderr.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("next: ")]
    proposed = lines[place].partition("  # ")[0]
    assert proposed == next_command_after_run(store)
    _, name, *argv = shlex.split(proposed.removeprefix("next: "))
    context = run_command.make_context(name, argv)
    assert context.params["shortlist_size"] == 2
    assert context.params["simulated"] == store.uri
    assert "of 2 deployments" in lines[place + 1]


def test_the_rankings_of_a_simulation_are_computed_again_only_under_other_limits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(max_num_seqs=[8, 16, 32])
    commit_shortlist_of_two(store, plan)
    experiment = StoredExperiment(store)
    ranked = answers(ranking_limits(None, [experiment]))
    of_file = list(next_steps(ranked, no_options))
    assert of_file

    def fail(*_: object) -> None:
        raise AssertionError("ranked again")

    monkeypatch.setattr(next_step, "answers", fail)
    assert list(next_steps(ranked, no_options)) == of_file
    comparisons = [replace(comparison, per="usd") for comparison in ranked.comparisons]
    with pytest.raises(AssertionError, match="ranked again"):
        next_step._ranked_by_file(experiment, plan, replace(ranked, comparisons=tuple(comparisons)))


def no_options(_plan: Plan) -> None:
    """No options of a stored search are known."""


def test_a_simulation_of_one_deployment_ends_with_the_command_that_measures_it(
    store: Store,
) -> None:
    store_sweep(store, planned(max_num_seqs=[8]), simulated=True)
    lines = invoke("best", store.uri, "--slo", "interactive").stderr.splitlines()
    (command,) = [line for line in lines if line.startswith("next: ")]
    assert command == next_command_after_run(store)
    _, name, *argv = shlex.split(command.removeprefix("next: "))
    context = run_command.make_context(name, argv)
    assert context.params["shortlist_size"] is None


def next_command_after_run(store: Store) -> str:
    """The measuring command that ``simulate`` itself ends with, without its comment."""
    experiment = StoredExperiment(store)
    rankings = answers(ranking_limits(None, [experiment]))
    *_, line = next_commands(experiment, experiment.points(), rankings)
    return f"next: {line.strip().partition('  # ')[0]}"


def test_what_was_simulated_in_part_is_simulated_on_before_anything_is_measured(
    store: Store,
) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    store_attempt(store, plan, plan.points[0], simulated=True)
    answer = invoke("best", store.uri, "--slo", "interactive")
    assert "not measured yet" in answer.stdout
    assert "next: " not in answer.stderr


def test_where_everything_is_measured_the_file_is_changed(store: Store) -> None:
    store_sweep(store, planned())
    lines = invoke("best", store.uri, "--slo", "interactive").stderr.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("next: ")]
    assert lines[place] == "next: set starts: 2 and repeats: 2 in the file, then"
    assert lines[place + 1].strip() == f"orchestrator run FILE --results {shlex.quote(store.uri)}"


@pytest.mark.parametrize("name", ["before", f"capacity-{DIGEST[:12]}"])
def test_a_search_of_load_that_ended_with_its_budget_is_gone_on_with(
    name: str, tmp_path: Path
) -> None:
    store = Store.open(str(tmp_path), name)
    plan = make_plan(parse_experiment(LOAD_SEARCH.format(name=name)))
    plan = plan.model_copy(update={"load_options": DIGEST})
    store_sweep(store, plan)
    lines = invoke("best", store.uri).stderr.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("next: ")]
    command = "next: orchestrator load http://127.0.0.1:8000 --find-capacity … --results "
    by_name = " --name before" if name == "before" else ""
    assert lines[place] == f"{command}{shlex.quote(store.uri)}{by_name}"
    assert "up to about 10 min" in lines[place + 1]


def test_a_step_that_settles_as_much_for_less_is_worth_more() -> None:
    dear = NextStep("run", None, deployments=2, most_gpu_s=7200.0, most_s=900.0)
    cheap = NextStep("run", "set starts: 2", deployments=2, most_gpu_s=3600.0, most_s=900.0)
    assert cheap.settled_per_s == 2 * dear.settled_per_s


def test_without_gpus_time_counts() -> None:
    step = NextStep("run", None, deployments=3, most_gpu_s=0.0, most_s=60.0)
    assert step.settled_per_s == 0.05


@pytest.mark.parametrize(
    ("gpu_s", "cost"),
    [
        (3600.0, "up to about 1 h of GPU time"),
        (583920.0, "up to about 162 h of GPU time"),
        (0.0, "up to about 2 min"),
    ],
)
def test_what_it_costs_is_said(gpu_s: float, cost: str) -> None:
    step = NextStep("orchestrator run x", None, 3, gpu_s, 120.0)
    assert next_step_text(step) == (
        "next: orchestrator run x\n"
        f"      ({cost}: it measures what can still change who is best, of 3 deployments)"
    )
    alone = next_step_text(replace(step, deployments=1))
    assert alone.endswith("who is best)")


def step_of(store: Store, plan: Plan, *doubts: Doubt) -> NextStep | None:
    """The step that is proposed where these are the doubts."""
    store.write_plan(plan.to_json())
    comparison = SimpleNamespace(experiment=plan.name, certain=False, doubts=doubts)
    answered = SimpleNamespace(experiment=StoredExperiment(store))
    ranked: Any = SimpleNamespace(comparisons=(comparison,), experiments=(answered,))
    return next(next_steps(ranked, lambda _: None), None)


def change_of(store: Store, plan: Plan, *doubts: Doubt) -> str | None:
    step = step_of(store, plan, *doubts)
    return None if step is None else step.change


def searching(precision: float = 0.05) -> Plan:
    return make_plan(parse_experiment(SEARCH_RATE.format(precision=precision)))


def first_label(plan: Plan) -> str:
    return plan.deployments[0].label


def not_settled(plan: Plan, remedy: Remedy, *changes: FirstChange | None) -> Doubt:
    """Searches of the first deployment that are not settled, one per change."""
    label = first_label(plan)
    claim = Claim(None, 0, 12, "unresolved", ())
    claims = tuple(
        DeploymentClaims(label, (SearchedClaim("request_rate", claim, change),))
        for change in changes
    )
    return Doubt(DoubtKind.NOT_SETTLED, (label,), remedy, claims=claims)


def test_longer_probes_are_proposed_with_the_length_that_the_doubt_knows(store: Store) -> None:
    plan = searching()
    longer = [LongerProbes(8, 700), LongerProbes(4, 1490)]
    step = step_of(store, plan, not_settled(plan, Remedy.LONGER_PROBES, *longer))
    assert step is not None
    first, second, last = next_step_text(step).splitlines()
    assert first == "next: set duration: 25m in the file, then"
    assert second.strip() == f"orchestrator run FILE --results {shlex.quote(store.uri)}"
    assert "up to about" in last
    # all deployments are measured anew, each for longer
    shorter = step_of(store, plan, not_settled(plan, Remedy.LONGER_PROBES, LongerProbes(4, 700)))
    assert shorter is not None
    assert shorter.most_s < step.most_s
    assert step.most_s > 2 * 1490


def test_a_length_that_is_not_known_is_not_made_up(store: Store) -> None:
    plan = searching()
    step = step_of(store, plan, not_settled(plan, Remedy.LONGER_PROBES, LongerProbes(8, 700), None))
    assert step is not None
    assert step.change == "set a longer duration"
    assert "(more than about " in next_step_text(step)


def test_levels_that_were_never_steady_are_measured_longer(store: Store) -> None:
    plan = planned()
    doubt = Doubt(DoubtKind.NOT_STEADY, (first_label(plan),), Remedy.LONGER)
    assert change_of(store, plan, doubt) == "set a longer duration"


def test_overlapping_bounds_are_searched_to_a_smaller_precision(store: Store) -> None:
    plan = searching()
    label = first_label(plan)
    doubt = Doubt(
        DoubtKind.BOUNDS_OVERLAP, ("other",), Remedy.SMALLER_PRECISION, to_remedy=(label,)
    )
    step = step_of(store, plan, doubt)
    assert step is not None
    assert (step.change, step.deployments) == ("set a precision below 0.05", 1)
    assert step_of(store, searching(precision=0.01), doubt) is None  # its grid is no finer


@pytest.mark.parametrize(("starts", "repeats"), [(1, 3), (2, 4)])
def test_each_start_gets_one_more_repeat(store: Store, starts: int, repeats: int) -> None:
    plan = planned().model_copy(update={"starts": starts, "repeats": 2})
    doubt = Doubt(DoubtKind.ONE_VALID_START, (first_label(plan),), Remedy.MORE_REPEATS)
    assert change_of(store, plan, doubt) == f"set repeats: {repeats}"


def test_clients_that_are_too_slow_may_become_more(store: Store) -> None:
    plan = searching()
    doubt = not_settled(plan, Remedy.MORE_CLIENTS, None)
    assert change_of(store, plan, doubt) == "set a larger max_clients"


@pytest.mark.parametrize(("scale", "change"), [("thin", "set scale: stretch"), ("stretch", None)])
def test_a_trace_is_stretched_where_a_thinned_one_sends_no_more(
    store: Store, scale: str, change: str | None
) -> None:
    plan = searching()
    (load,) = plan.loads
    arrivals = Arrivals.model_validate({"process": "trace", "scale": scale})
    plan = plan.model_copy(update={"loads": (load.model_copy(update={"arrivals": arrivals}),)})
    doubt = Doubt(DoubtKind.CAPACITY_NOT_REACHED, (first_label(plan),), Remedy.STRETCH)
    assert change_of(store, plan, doubt) == change


def test_a_claim_is_taken_as_it_is_only_where_nothing_is_measured(store: Store) -> None:
    plan = searching()
    wider = not_settled(plan, Remedy.WIDER_PRECISION, WiderPrecision(0.2))
    step = step_of(store, plan, wider)
    assert step is not None
    first, *_, last = next_step_text(step).splitlines()
    assert first == "next: set precision: 0.2 in the file, then"
    assert last.strip() == "(no load: it takes the claim as the answer)"
    longer = not_settled(plan, Remedy.LONGER_PROBES, LongerProbes(4, 700))
    assert change_of(store, plan, wider, longer) == "set duration: 12m"


def test_no_step_is_proposed_where_no_measurement_settles_the_doubt(store: Store) -> None:
    assert step_of(store, planned(), Doubt(DoubtKind.INCOMPARABLE, ("a",))) is None

"""Where to look next after an answer that is not certain."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.run import run as run_command
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.report.answer_table import next_commands
from orchestrator.report.next_step import NextStep, next_step_text
from orchestrator.report.selection import answers, ranking_limits
from orchestrator.results.runs import RunRecord, Runs
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
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

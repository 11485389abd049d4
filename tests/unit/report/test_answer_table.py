"""The answer for people: what ``best`` shows, and what a sweep ends with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from orchestrator.plan.current import StoredExperiment
from orchestrator.report.answer_table import answer_text, best_text
from orchestrator.report.documents.answer import answer_document
from orchestrator.report.selection import answers, limits
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.test_current import planned, run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def best_of(store: Store, slo: str) -> str:
    answer = answer_document(answers(limits(slo, [StoredExperiment(store)])).comparisons)
    return click.unstyle("\n".join(best_text(answer)))


def end_of_sweep(store: Store) -> str:
    return click.unstyle("\n".join(answer_text(StoredExperiment(store))))


def test_best_has_a_title_the_winner_the_ranking_and_a_verdict(store: Store) -> None:
    run(store, planned())
    title, headline, *rows = best_of(store, "interactive").splitlines()
    assert title == (
        "chat of exp: some-org/m on cpu under interactive (ttft<=150ms,attainment>=0.9)"
    )
    assert headline.startswith("best: emulator seqs=")
    assert headline.endswith(" output tokens/s per core")
    ranked = [row.split()[1] for row in rows if row.startswith(" emulator ")]
    assert sorted(ranked) == ["seqs=16", "seqs=8"]
    (verdict,) = [row for row in rows if row.startswith("not certain: ")]
    assert "one start: spread unknown" in verdict
    assert any(row.startswith("to decide: start emulator") for row in rows)


def test_a_note_stands_once_with_all_deployments_it_is_about(store: Store) -> None:
    run(store, planned())
    note = "no higher level was seen to fail: its capacity may be higher"
    (line,) = [line for line in best_of(store, "interactive").splitlines() if note in line]
    assert "seqs=8" in line
    assert "seqs=16" in line


def test_where_nothing_holds_the_limits_there_is_no_ranking(store: Store) -> None:
    run(store, planned())
    title, verdict, *lines = best_of(store, "ttft<=1ms").splitlines()
    assert title.endswith("under ttft<=1ms,attainment>=0.95")
    assert verdict.startswith("no deployment holds ttft<=1ms")
    left_out = [line for line in lines if line.startswith("left out: emulator seqs=")]
    assert len(left_out) == 2


def test_an_emulated_winner_says_that_it_is(store: Store) -> None:
    run(store, planned(), emulated=True)
    text = best_of(store, "interactive")
    assert "best: emulator seqs=8 (emulated) at " in text or (
        "best: emulator seqs=16 (emulated) at " in text
    )
    assert text.splitlines()[-1].startswith("emulated: an emulator answered")


def test_a_sweep_ends_with_the_best_of_each_named_limit_and_the_next_commands(store: Store) -> None:
    run(store, planned())
    text = end_of_sweep(store)
    assert "under interactive (ttft<=150ms,attainment>=0.9)" in text
    assert "best: emulator seqs=" in text
    assert "runner-up: emulator seqs=" in text
    assert "not certain: " in text
    assert "under tight (ttft<=1ms,attainment>=0.9)" in text
    assert "ttft p90 there: 100 ms, limit 1ms" in text
    assert f"orchestrator best '{store.uri}' --experiment exp --slo interactive" in text


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_sweep_in_which_a_launch_failed_names_the_command_for_logs(
    status: str, store: Store
) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    row = replace(launch_row(plan.deployments[0], plan.name, 1), status=status)
    commit_launch(store, plan.deployments[0], row)
    command = f"orchestrator logs '{store.uri}' --experiment exp"
    assert (command in end_of_sweep(store)) is (status == "failed")


def test_where_nothing_was_measured_no_command_asks_for_the_ranking(store: Store) -> None:
    run(store, planned(), status="failed", reason="It died.", failure_class="engine_crash")
    text = end_of_sweep(store)
    assert "orchestrator best" not in text
    assert f"next: orchestrator results '{store.uri}' --experiment exp" in text

"""The answer for people: what ``best`` shows, and what a sweep ends with."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest

from orchestrator.base.errors import InputError
from orchestrator.capacity.best import Shortlisted
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.plan.shortlist import shortlisted
from orchestrator.plan.simulated import with_simulation
from orchestrator.report.answer_table import (
    BAR,
    KEPT_UP,
    AnswerView,
    answer_text,
    bar,
    best_text,
    next_commands,
    rows_to_show,
)
from orchestrator.report.as_json import comparison_fields
from orchestrator.report.documents.answer import AnswerDocument, answer_document
from orchestrator.report.selection import answers, limits, ranking_limits
from orchestrator.report.text import SIMULATED
from orchestrator.report.written_form import MarkdownForm, TextForm
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, planned, store_attempt, store_sweep
from tests.unit.report.stores import (
    SOURCE,
    commit_answers,
    commit_shortlist_of_two,
    commit_simulation,
)
from tests.unit.results.builders import (
    commit_launch as commit_launch_row,
)
from tests.unit.results.builders import (
    commit_measurement,
    deployment_row,
    gpu_readings,
    request,
)

SLOS = "interactive: {ttft: 150ms, attainment: 0.9}, tight: {ttft: 1ms, attainment: 0.9}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def planned_with(slos: str = SLOS, seqs: str = "[8, 16]") -> Plan:
    """The plan of the experiment with other SLOs, or with a deployment for each of ``seqs``."""
    text = EXPERIMENT.format(**VALUES | {"max_num_seqs": seqs})
    assert SLOS in text
    return make_plan(parse_experiment(text.replace(SLOS, slos)))


def answer_of(store: Store, slo: str | None) -> AnswerDocument:
    return answer_document(answers(limits(slo, [StoredExperiment(store)])).comparisons)


def text_of(answer: AnswerDocument, width: int = 110, top: int | None = None) -> str:
    """What ``best`` prints of an answer, without colours."""
    view = AnswerView(TextForm("--format json", width), width, top or rows_to_show(answer))
    return click.unstyle("\n".join(best_text(answer, view)))


def best_of(store: Store, slo: str | None, width: int = 110, top: int | None = None) -> str:
    return text_of(answer_of(store, slo), width, top)


def squeezed(line: str) -> str:
    """A line of a table with single spaces between its words."""
    return " ".join(line.split())


def end_of_sweep(store: Store, width: int = 110) -> str:
    view = AnswerView(TextForm("best", width), width, 5)
    rankings = answers(ranking_limits(None, [StoredExperiment(store)]))
    return click.unstyle("\n".join(answer_text(rankings, view)))


def next_of(store: Store) -> list[str]:
    experiment = StoredExperiment(store)
    rankings = answers(ranking_limits(None, [experiment]))
    return list(next_commands(experiment, experiment.points(), rankings))


def measure_unequal(store: Store, plan: Plan) -> None:
    """Stores answers of 64 tokens of the first deployment, and half as many of each later one."""
    store.write_plan(plan.to_json())
    tokens = 64
    for point in plan.points:
        store_attempt(store, plan, point, tokens=tokens)
        tokens //= 2


def test_best_is_the_winner_with_its_interval_then_the_ranking(store: Store) -> None:
    measure_unequal(store, planned())
    title, headline, titles, first, second, *rest = best_of(store, "interactive").splitlines()
    assert title == (
        "chat of exp: some-org/m on cpu under interactive (ttft<=150ms,attainment>=0.9)"
    )
    assert headline == (
        "best: emulator seqs=8 at 2 in flight (not the limit):"
        " 634 output tokens/s per core (95 %: 619-648)"
    )
    assert squeezed(titles).startswith("deployment load tokens/s interval of best ")
    whole_bar = "█" * BAR
    half_bar = "█" * (BAR // 2)
    assert squeezed(first).startswith(
        f"emulator seqs=8 2 in flight not the limit 634 619-648 {whole_bar} "
    )
    assert squeezed(second).startswith(
        f"emulator seqs=16 2 in flight not the limit 317 310-324 {half_bar} "
    )
    assert rest[:2] == [
        "not certain: limit not reached (both); to decide: measure above 2 in flight",
        "not certain: one start, spread unknown (both); to decide: starts: 2",
    ]
    assert rest[0] in best_of(store, "interactive", 60).splitlines()  # `echo` wraps it


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "████"), (0.5, "██"), (0.53, "██▏"), (0.97, "███▉"), (0.001, "▏"), (0.0, "▏")],
)
def test_a_bar_is_as_long_as_the_share_to_an_eighth(share: float, text: str) -> None:
    assert bar(share, 4) == text


def test_a_lower_bound_is_shown_as_its_number_and_not_the_limit(store: Store) -> None:
    store_sweep(store, planned())
    text = best_of(store, "interactive")
    assert "≥" not in text
    assert "at least" not in text
    assert text.count("not the limit") == 3  # the winner's line, and a row each


@pytest.mark.parametrize("width", [80, 110, 160])
def test_each_deployment_is_one_line_that_fits(width: int, store: Store) -> None:
    store_sweep(store, planned())
    text = best_of(store, "interactive", width)
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith(" emulator seqs=")]
    assert len(rows) == 2
    assert max(map(len, lines[2:])) <= width
    assert ("TPOT p99 ms" in lines[2]) is (width == 160)
    assert ("not shown: " in text) is (width < 160)


def test_a_long_ranking_is_cut_and_says_how_to_see_it_all(store: Store) -> None:
    store_sweep(store, planned_with(seqs="[1, 2, 3, 4, 5, 6, 7, 8]"))
    text = best_of(store, "interactive")
    assert sum(line.startswith(" emulator seqs=") for line in text.splitlines()) == 5
    assert " and 3 more: --top 8" in text.splitlines()
    assert "(all 8)" in text
    every = best_of(store, "interactive", top=8)
    assert sum(line.startswith(" emulator seqs=") for line in every.splitlines()) == 8
    assert "--top" not in every


def test_one_row_more_is_shown_in_place_of_a_line_that_says_so(store: Store) -> None:
    store_sweep(store, planned_with(seqs="[1, 2, 3, 4, 5, 6]"))
    text = best_of(store, "interactive")
    assert sum(line.startswith(" emulator seqs=") for line in text.splitlines()) == 6
    assert "--top" not in text


def test_what_is_in_doubt_of_several_rankings_is_said_once(store: Store) -> None:
    slos = ", ".join(f"slo{ms}: {{ttft: {ms}ms, attainment: 0.9}}" for ms in (150, 200, 300))
    store_sweep(store, planned_with(slos, seqs="[1, 2, 3, 4, 5, 6, 7]"))
    lines = best_of(store, None).splitlines()
    assert len(lines) <= 25
    assert lines[0] == "chat of exp: some-org/m on cpu, output tokens/s per core"
    assert "under slo200 (ttft<=200ms,attainment>=0.9), 3 of 7 (--top 7)" in lines
    assert [line for line in lines if line.startswith("not certain")] == [
        "not certain, in every ranking: limit not reached (all 7); to decide: measure above 2 in"
        " flight",
        "not certain, in every ranking: one start, spread unknown (all 7); to decide: starts: 2",
    ]


def test_a_doubt_about_one_of_several_rankings_stands_with_it(store: Store) -> None:
    slos = "a: {ttft: 150ms, attainment: 0.9}, b: {ttft: 150ms, attainment: 0.99}"
    store_sweep(store, planned_with(slos))
    lines = best_of(store, None).splitlines()
    (doubt_of_b,) = [at for at, line in enumerate(lines) if "attainment may be 0." in line]
    begin_of_b = lines.index("under b (ttft<=150ms,attainment>=0.99)")
    assert doubt_of_b > begin_of_b
    assert lines[doubt_of_b + 1] == ""


@pytest.mark.parametrize(
    ("limit_ms", "text"),
    [
        (150, "(9 in 10: 0.00-98.6), a tie with 1 more; if slower than simulated, no load holds"),
        (250, "63.1-98.6), a tie with 1 more; if slower than simulated, only 2 in flight hold"),
        (300, "), a tie with 1 more"),
    ],
)
def test_a_simulated_winner_says_what_holds_where_the_model_is_too_fast(
    store: Store, limit_ms: int, text: str
) -> None:
    commit_simulation(store)  # its TTFT is 100 ms at 2 in flight, 140 ms at 4, within a factor of 2
    headline = best_of(store, f"ttft<={limit_ms}ms,attainment>=0.9").splitlines()[1]
    assert headline.endswith(text)


def test_efficiency_stands_in_the_ranking_where_it_is_known_and_has_room(store: Store) -> None:
    settings = '{"engine": "vllm", "model": "meta-llama/Llama-3.1-8B-Instruct"}'
    commit_launch_row(store, "L0", deployment_row(settings_json=settings))
    rows = [request(index, index * 1000, last_ms=index * 1000 + 1100) for index in range(10)]
    commit_measurement(store, "m0", rows, telemetry=gpu_readings(500, 12))
    answer = answer_of(store, "ttft<=10s")
    titles = squeezed(text_of(answer, width=240).splitlines()[2])
    assert titles.endswith("starts J/output token USD/M output")
    assert "J/output" not in text_of(answer, width=80)


def test_where_nothing_holds_the_limits_the_nearest_is_shown(store: Store) -> None:
    store_sweep(store, planned())
    title, verdict, left_out, nearest, *rest = best_of(store, "ttft<=1ms").splitlines()
    assert title.endswith("under ttft<=1ms,attainment>=0.95")
    assert verdict.startswith("no deployment holds ttft<=1ms")
    assert left_out.startswith("left out: 2 deployments, no level holds: emulator seqs=")
    assert nearest == (
        "  nearest: emulator seqs=16: attainment is at most 0.000 (at 2 in flight), not 0.95;"
        " ttft p95 there: 100 ms, limit 1ms"
    )
    assert rest == ["to decide: measure below 2 in flight (emulator seqs=16)"]


def test_why_nothing_can_be_ranked_is_said_once(store: Store) -> None:
    store_sweep(store, planned())
    by_price = answers(limits("interactive", [StoredExperiment(store)]), "usd")
    answer = answer_document(by_price.comparisons)
    _, verdict, left_out, *rest = text_of(answer).splitlines()
    assert verdict.startswith("what holds ttft<=150ms,attainment>=0.9 cannot be ranked: its price")
    assert left_out.startswith("left out: 2 deployments of unknown price (--price HARDWARE=USD): ")
    assert rest == []


def test_what_was_emulated_is_said_once(store: Store) -> None:
    store_sweep(store, planned(), emulated=True)
    text = best_of(store, None)
    assert text.splitlines()[0].startswith("chat of exp: some-org/m on cpu (emulated)")
    assert text.count("emulated") == 2
    assert "\nemulated: an emulator answered" in text


def test_what_was_simulated_has_the_model_error_as_its_intervals_and_is_measured_next(
    store: Store,
) -> None:
    commit_simulation(store)
    for text in (best_of(store, "interactive", 80), end_of_sweep(store, 80)):
        assert "chat of exp: some-org/m on cpu (simulated)" in text
        assert "0.00-98.6)" in text  # 78.9 times the 1.25 below; slower engines hold no load
        doubt = "too close to call (emulator seqs=8); to decide: measure all"
        assert f"\nnot certain: {doubt}\n" in text
        assert "one start" not in text
        lines = text.splitlines()
        begin = lines.index(SIMULATED)
        assert lines[begin + 1 : begin + 3] == [
            "intervals: 9 in 10 measurements within 2.00x (TTFT), 1.25x (all else)",
            f"  model's error by {SOURCE}",
        ]


def test_an_interval_without_width_is_explained_where_it_is_shown(store: Store) -> None:
    commit_simulation(store)
    unchanged = answer_of(store, "interactive")
    (document,) = unchanged.comparisons
    first, second = document.comparison.ranking
    value = second.throughput.estimate
    without_width = replace(second.throughput, lower=value, upper=value)
    ranking = (first, replace(second, throughput=without_width))
    answer = answer_document([replace(document.comparison, ranking=ranking)])
    explanation = f"  {KEPT_UP}"
    assert explanation in text_of(answer, 80, top=2).splitlines()
    assert explanation not in text_of(answer, 80, top=1).splitlines()
    assert explanation not in text_of(unchanged, 80, top=2).splitlines()


def test_an_experiment_that_would_go_on_names_its_command_once(store: Store) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    measured, missing = plan.points
    store_attempt(store, plan, measured, emulated=True)
    label = plan.deployment(missing.deployment_id).label
    lines = best_of(store, "interactive").splitlines()
    assert f"not certain: not measured yet ({label}); to decide: run again" in lines
    (command,) = [line for line in lines if "orchestrator run" in line]
    assert command.startswith("run again: orchestrator run ")


def test_a_footnote_on_several_rankings_stands_once_below_them(store: Store) -> None:
    slos = "a: {ttft: 150ms, attainment: 0.9}, b: {ttft: 200ms, attainment: 0.9}"
    store_sweep(store, planned_with(slos))
    commit_answers(store, (1, 2, 3, 4), (1, 2, 9, 4))  # the same up to the second of four tokens
    lines = best_of(store, None, 160).splitlines()
    rows = [at for at, line in enumerate(lines) if "0.500 n=4" in line]
    assert len(rows) == 2
    (note,) = [at for at, line in enumerate(lines) if line.startswith("agreement: share of ")]
    assert note > max(rows)
    assert "agreement: " not in best_of(store, None, 80)


def test_markdown_escapes_what_is_foreign_and_shows_all_columns(store: Store) -> None:
    store_sweep(store, planned(model="<img>|a_b_"))
    answer = answer_of(store, "interactive")
    text = "\n".join(best_text(answer, AnswerView(MarkdownForm(), 160, 5)))
    assert "<img>" not in text
    assert r"&lt;img&gt;\|a_b\_" in text
    (titles,) = [line for line in text.splitlines() if line.startswith("| deployment |")]
    assert "TPOT p99 ms" in titles
    assert "- not certain: one start, spread unknown (both); to decide: starts: 2" in text


def test_a_sweep_ends_with_the_answer_and_the_runner_up(store: Store) -> None:
    measure_unequal(store, planned_with("interactive: {ttft: 150ms, attainment: 0.9}"))
    assert end_of_sweep(store).splitlines() == [
        "chat of exp: some-org/m on cpu under interactive (ttft<=150ms,attainment>=0.9)",
        "best: emulator seqs=8 at 2 in flight (not the limit): 634 output tokens/s per core"
        " (95 %: 619-648)",
        "  runner-up: emulator seqs=16 at 2 in flight (not the limit): 317 (310-324)",
        "not certain: limit not reached (both); to decide: measure above 2 in flight",
        "not certain: one start, spread unknown (both); to decide: starts: 2",
    ]


def test_a_sweep_with_several_limits_ends_with_a_line_for_each(store: Store) -> None:
    measure_unequal(store, planned())
    lines = end_of_sweep(store).splitlines()
    assert lines[0] == "chat of exp: some-org/m on cpu, output tokens/s per core"
    assert lines[1] == (
        "  best under interactive: emulator seqs=8 at 2 in flight (not the limit): 634 (619-648)"
    )
    assert lines[2].startswith("  tight: no deployment holds ttft<=1ms")
    assert lines[3].startswith("    nearest: emulator seqs=")
    assert lines[3].endswith("ttft p90 there: 100 ms, limit 1ms")
    assert lines[-1] == "to decide: measure below 2 in flight (emulator seqs=16)"
    assert sum("one start" in line for line in lines) == 1


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_sweep_in_which_a_launch_failed_names_the_command_for_logs(
    status: str, store: Store
) -> None:
    plan = planned()
    store.write_plan(plan.to_json())
    row = replace(launch_row(plan.deployments[0], plan.name, 1), status=status)
    commit_launch(store, plan.deployments[0], row)
    command = f"orchestrator logs {shlex.quote(store.uri)} --experiment exp"
    assert (command in next_of(store)[0]) is (status == "failed")


def test_at_most_two_commands_are_next(store: Store) -> None:
    plan = planned()
    store_sweep(store, plan)
    options = f"{shlex.quote(store.uri)} --experiment exp"
    assert next_of(store) == [
        f"next: orchestrator best {options}",
        f"      orchestrator results {options}",
    ]
    row = replace(launch_row(plan.deployments[0], plan.name, 1), status="failed")
    commit_launch(store, plan.deployments[0], row)
    assert next_of(store) == [
        f"next: orchestrator best {options}",
        f"      orchestrator logs {options}",
    ]


@pytest.mark.parametrize("name", ["simulated", "results"])
def test_what_was_simulated_is_measured_into_another_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulated = Store.open(name, "exp")
    commit_simulation(simulated)
    command = next_of(simulated)[1]
    words = shlex.split(command)
    assert words[:2] == ["orchestrator", "run"]
    folder = words[words.index("--results") + 1]
    Store.open(folder, "exp").check_not_simulated()
    with pytest.raises(InputError, match="has simulated results"):
        simulated.check_not_simulated()


def test_where_the_error_of_the_model_is_unknown_a_run_without_a_shortlist_is_proposed(
    tmp_path: Path,
) -> None:
    """``run`` refuses the shortlist: which deployments may be the best is not known."""
    text = EXPERIMENT.format(**VALUES).replace("engine: emulator", "engine: vllm")
    plan = make_plan(parse_experiment(text))
    simulated = Store.open(str(tmp_path / "simulated"), "exp")
    store_sweep(simulated, plan, simulated=True)
    with pytest.raises(InputError, match="no shortlist"):
        shortlisted(with_simulation(plan, simulated.uri), 1)
    words = shlex.split(next_of(simulated)[1])
    assert words == [
        "orchestrator",
        "run",
        f"{simulated.uri}/exp/plan.json",
        "--results",
        "results/",
    ]


def test_what_to_type_next_names_a_folder_with_a_quote_as_a_shell_reads_it(tmp_path: Path) -> None:
    simulated = Store.open(str(tmp_path / "bob's runs"), "exp")
    commit_shortlist_of_two(simulated, planned_with(seqs="[8, 16, 32]"))
    ranking, measuring = next_of(simulated)
    assert shlex.split(ranking)[1:4] == ["orchestrator", "best", simulated.uri]
    words = shlex.split(measuring, comments=True)
    assert words[:3] == ["orchestrator", "run", f"{simulated.uri}/exp/plan.json"]
    assert words[-2:] == ["--simulated", simulated.uri]


def test_where_nothing_was_measured_no_command_asks_for_the_ranking(store: Store) -> None:
    store_sweep(store, planned(), status="failed", reason="It died.", failure_class="engine_crash")
    assert next_of(store) == [
        f"next: orchestrator results {shlex.quote(store.uri)} --experiment exp"
    ]


def test_where_everything_was_spoilt_it_is_measured_again_next(store: Store) -> None:
    store_sweep(store, planned(), validity="disturbed")
    again = StoredExperiment(store).run_command(MOST_AGAIN)
    assert next_of(store)[0] == f"next: {again}"


def test_a_shortlist_is_part_of_the_answer(store: Store) -> None:
    plan = planned()
    store_sweep(store, plan)
    answer = answer_of(store, "interactive")
    comparisons = [
        replace(document.comparison, shortlisted=Shortlisted(8, 96))
        for document in answer.comparisons
    ]
    shortlisted = answer_document(comparisons)
    assert "best among 8 of 96: emulator seqs=" in text_of(shortlisted)
    (document,) = shortlisted.comparisons
    assert comparison_fields(document)["shortlisted"] == {"listed": 8, "of": 96}
    assert "shortlisted" not in comparison_fields(answer.comparisons[0])


def test_after_a_simulation_a_shortlist_of_it_is_measured_next(store: Store) -> None:
    commit_shortlist_of_two(store, planned_with(seqs="[8, 16, 32]"))
    commands = next_of(store)
    assert len(commands) == 2
    plan = shlex.quote(f"{store.uri}/exp/plan.json")
    options = f"--results results/ --shortlist 2 --simulated {shlex.quote(store.uri)}"
    command = f"orchestrator run {plan} {options}  # for all 2 questions"
    assert commands[1].strip() == command


def test_a_shortlist_for_one_question_has_no_comment(store: Store) -> None:
    plan = planned_with("interactive: {ttft: 150ms, attainment: 0.9}", "[8, 16, 32]")
    commit_shortlist_of_two(store, plan)
    assert next_of(store)[1].endswith(f"--simulated {shlex.quote(store.uri)}")


def test_where_all_may_be_the_best_all_are_measured_next(store: Store) -> None:
    store_sweep(store, planned(), simulated=True)
    plan = shlex.quote(f"{store.uri}/exp/plan.json")
    assert next_of(store)[1].strip() == f"orchestrator run {plan} --results results/"

"""``orchestrator compare``: two small stores, its forms and its exit statuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from orchestrator.base.errors import InputError
from orchestrator.cli.main import cli
from orchestrator.cli.numbers import parse_share
from orchestrator.results import location, root
from orchestrator.results.store import Store
from tests.harness import ROOT
from tests.unit.cli.commands import Done, invoke
from tests.unit.plan.stored_sweeps import planned, store_attempt
from tests.unit.report.stores import commit_starts


@pytest.fixture
def base(tmp_path: Path) -> str:
    return sweep(tmp_path / "base", 100, 101)


def sweep(folder: Path, *ttft_ms: float) -> str:
    store = Store.open(str(folder), "exp")
    commit_starts(store, ttft_ms)
    return store.uri


def at_80(monkeypatch: pytest.MonkeyPatch, *argv: str) -> Done:
    monkeypatch.setenv("COLUMNS", "80")
    return invoke("compare", *argv)


def test_a_slower_sweep_fails_and_the_worst_comes_first(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = at_80(monkeypatch, base, sweep(tmp_path / "new", 110, 111))
    lines = done.stdout.splitlines()
    assert done.status == 4
    assert lines[2].split("  ")[-1] == "worse"
    assert "TTFT p99" in lines[2]
    assert "6 figures of 2 pairs: 2 worse, 4 same" in lines
    assert max(map(len, lines)) <= 80


def test_a_sweep_with_itself_is_the_same(base: str, tmp_path: Path) -> None:
    done = invoke("compare", base, base)
    assert done.status == 0
    assert "6 figures of 2 pairs: 6 same" in done.stdout
    note = "BASE and NEW are the same results, so nothing can differ"
    assert done.stdout.count(note) == 1
    assert note not in invoke("compare", base, sweep(tmp_path / "again", 100, 101)).stdout


def test_an_improvement_fails_nothing(base: str, tmp_path: Path) -> None:
    done = invoke("compare", base, sweep(tmp_path / "new", 80, 81))
    assert done.status == 0
    assert "2 better" in done.stdout


def test_one_start_fails_nothing_however_slow_it_is(base: str, tmp_path: Path) -> None:
    done = invoke("compare", base, sweep(tmp_path / "new", 145))
    assert done.status == 0
    assert done.stdout.count("undecided: 1 more start") == 6
    assert done.stdout.count("one start decides nothing") == 1


def test_what_is_undecided_fails_a_strict_gate_alone(base: str, tmp_path: Path) -> None:
    single = sweep(tmp_path / "single", 100)
    assert invoke("compare", base, single, "--strict").status == 5
    assert invoke("compare", base, base, "--strict").status == 0
    slower = sweep(tmp_path / "slower", 110, 111)
    assert invoke("compare", base, slower, "--strict").status == 4
    other = Store.open(str(tmp_path / "other"), "exp")
    commit_starts(other, (100,), levels=[4])
    assert invoke("compare", base, other.uri, "--strict").status == 3


def test_what_is_tolerated_and_what_is_gated_can_be_said(base: str, tmp_path: Path) -> None:
    slower = sweep(tmp_path / "new", 110, 111)
    assert invoke("compare", base, slower, "--within", "15%").status == 0
    assert invoke("compare", base, slower, "--fail-on", "output_token_throughput").status == 0
    assert invoke("compare", base, slower, "--fail-on", "ttft_ms.p50").status == 4


def test_json_has_every_figure_with_its_interval(base: str, tmp_path: Path) -> None:
    new = sweep(tmp_path / "new", 110, 111)
    document = json.loads(invoke("compare", base, new, "--format", "json").stdout)
    assert document["regression"] is True
    assert document["counts"] == {"worse": 2, "better": 0, "same": 4, "undecided": 0}
    first = document["changes"][0]
    assert (first["metric"], first["verdict"]) == ("ttft_ms.p99", "worse")
    assert first["change.lower"] < first["change"] < first["change.upper"]
    assert first["change"] == pytest.approx(0.0995, abs=1e-3)
    assert (first["base_starts"], first["new_starts"]) == (2, 2)
    assert document["slo"] == "ttft<=150ms,attainment>=0.9"


def test_markdown_is_a_table_for_a_pull_request(base: str) -> None:
    done = invoke("compare", base, base, "--format", "md")
    assert "| deployment | load | figure | base | new | change (95 %) | verdict |" in done.stdout
    assert "- 6 figures of 2 pairs: 6 same" in done.stdout


def test_a_page_is_written_beside_the_text(base: str, tmp_path: Path) -> None:
    output = tmp_path / "compare.html"
    new = sweep(tmp_path / "new", 110, 111)
    done = invoke("compare", base, new, "--format", "json", "--output", str(output))
    assert done.status == 4
    assert json.loads(done.stdout)["regression"] is True
    assert done.stderr == f"page: {output}\n"
    assert "2 of 6 figures are worse" in output.read_text()
    with pytest.raises(InputError, match="there is no folder"):
        invoke("compare", base, new, "--output", str(tmp_path / "nowhere" / "compare.html"))


def test_a_slower_part_of_a_mix_is_named_in_every_form(tmp_path: Path) -> None:
    uris = []
    for name, chat_ms in (("base", 100), ("new", 120)):
        store = Store.open(str(tmp_path / name), "exp")
        starts = [{"chat": chat_ms + 2 * start, "rag": 400 + start} for start in range(2)]
        commit_starts(store, starts, max_num_seqs=[8])
        uris.append(store.uri)
    output = tmp_path / "compare.html"
    gate = ["compare", *uris, "--fail-on", "chat:ttft_ms.p99"]
    done = invoke(*gate, "--format", "md", "--output", str(output))
    assert done.status == 4
    assert "| chat: TTFT p99 | 101 | 121 |" in done.stdout
    assert '<td class="text">chat: TTFT p99</td><td>101</td><td>121</td>' in output.read_text()
    (change,) = json.loads(invoke(*gate, "--format", "json").stdout)["changes"]
    assert (change["metric"], change["part"]) == ("chat:ttft_ms.p99", "chat")
    assert invoke("compare", *uris, "--fail-on", "rag:ttft_ms.p99").status == 0


def test_a_percentile_of_too_few_requests_is_marked(tmp_path: Path) -> None:
    uris = []
    for name in ("base", "new"):
        store = Store.open(str(tmp_path / name), "exp")
        commit_starts(store, (100,), max_num_seqs=[8], failed=1)  # of 100
        uris.append(store.uri)
    output = tmp_path / "compare.html"
    text = invoke("compare", *uris, "--output", str(output)).stdout
    assert " TTFT p99* " in text
    assert "* fewer requests than this percentile needs\n" in text
    assert "TTFT p99*" in output.read_text()
    assert "TPOT p50*" not in text


def test_other_levels_have_no_partner_and_are_listed(base: str, tmp_path: Path) -> None:
    other = Store.open(str(tmp_path / "other"), "exp")
    commit_starts(other, (100, 101), levels=[4])
    done = invoke("compare", base, other.uri)
    assert done.status == 3
    assert done.stdout.startswith("nothing could be compared\n")
    assert "BASE only: emulator seqs=8, chat 2 in flight" in done.stdout


def test_points_of_a_deployment_without_partners_stand_in_one_line(
    base: str, tmp_path: Path
) -> None:
    other = Store.open(str(tmp_path / "other"), "exp")
    commit_starts(other, (100, 101), levels=[4, 16, 32], max_num_seqs=[8])
    lines = invoke("compare", base, other.uri).stdout.splitlines()
    alone = [line for line in lines if line.startswith("NEW only")]
    assert alone == ["NEW only: emulator (chat 4 in flight, chat 16 in flight, chat 32 in flight)"]


def test_a_setting_that_both_sweeps_leave_open_may_be_named(base: str) -> None:
    done = invoke("compare", base, base, "--across", "kv_cache_dtype")
    assert done.status == 0
    assert "same" in done.stdout


def test_another_setting_is_named_and_may_be_compared_across(base: str, tmp_path: Path) -> None:
    other = Store.open(str(tmp_path / "other"), "exp")
    commit_starts(other, (100, 101), max_num_seqs=[32])
    alone = invoke("compare", base, other.uri)
    assert (
        "NEW only: emulator, chat 2 in flight: the nearest differs in max_num_seqs" in alone.stdout
    )
    ambiguous = invoke("compare", base, other.uri, "--across", "max_num_seqs")
    assert "several points are alike apart from the settings of --across" in ambiguous.stdout
    smaller = Store.open(str(tmp_path / "smaller"), "exp")
    commit_starts(smaller, (100, 101), max_num_seqs=[8])
    assert invoke("compare", smaller.uri, other.uri, "--across", "max_num_seqs").status == 0
    without_pairs = invoke("compare", smaller.uri, other.uri).stdout
    (option,) = (line for line in without_pairs.splitlines() if "--across" in line)
    names = option.removeprefix("to compare all the same: --across ")
    assert "max_num_seqs" in names.split(",")
    assert invoke("compare", smaller.uri, other.uri, "--across", names).status == 0


def test_an_invalid_point_is_no_regression(base: str, tmp_path: Path) -> None:
    spoilt = Store.open(str(tmp_path / "new"), "exp")
    commit_starts(
        spoilt, (140, 141), validity="client_bound", validity_reasons=["its core was full"]
    )
    done = invoke("compare", base, spoilt.uri)
    assert done.status == 3
    assert "NEW is client_bound: its core was full" in done.stdout


CRASH = {
    "status": "failed",
    "validity": "valid",
    "reason": "the engine died",
    "failure_class": "engine_crash",
    "failure_kind": "engine_crash",
}
BROKEN = {"validity": "broken_output", "validity_reasons": ["all answers are one token"]}


def partly_failed(folder: Path, **columns: Any) -> str:
    """Two deployments of two starts, of which the one with 8 sequences has these columns."""
    store = Store.open(str(folder), "exp")
    plan = planned()
    store.write_plan(plan.to_json())
    for point, of_point in zip(plan.points, (columns, {}), strict=True):
        for start, ttft_ms in enumerate((100, 101)):
            store_attempt(
                store, plan, point, repeat=start, start=start, ttft_ms=ttft_ms, **of_point
            )
    return store.uri


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (CRASH, "the engine died (engine_crash)"),
        (BROKEN, "broken_output: all answers are one token"),
    ],
)
def test_an_engine_that_fails_where_base_holds_is_a_regression_in_every_form(
    base: str, tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    new = partly_failed(tmp_path / "new", **columns)
    output = tmp_path / "compare.html"
    sentence = f"failed where BASE holds: emulator seqs=8, chat 2 in flight: {reason}"
    counts = "3 figures of 1 pair: 3 same; 1 pair failed in NEW"
    done = invoke("compare", base, new, "--format", "md", "--output", str(output))
    assert done.status == 4
    assert f"- {counts}" in done.stdout
    assert sentence in done.stdout
    page = output.read_text()
    assert '<h1 class="doubted">1 pair failed in NEW</h1>' in page
    assert f"<li>{sentence}</li>" in page
    assert counts in invoke("compare", base, new).stdout
    document = json.loads(invoke("compare", base, new, "--format", "json").stdout)
    assert document["regression"] is True
    assert [failed["why"] for failed in document["failed"]] == [reason]
    assert document["invalid"] == []


def test_more_failed_requests_are_listed_and_fail_a_strict_gate_alone(
    base: str, tmp_path: Path
) -> None:
    new = partly_failed(tmp_path / "new", failed=20)
    listed = "more requests failed: emulator seqs=8, chat 2 in flight: 40 of 200 requests failed"
    gate = ("compare", base, new, "--fail-on", "tpot_ms.p50")
    done = invoke(*gate)
    assert done.status == 0
    assert listed in done.stdout
    assert invoke(*gate, "--strict").status == 5


def test_an_engine_that_failed_before_is_no_regression(base: str, tmp_path: Path) -> None:
    before = partly_failed(tmp_path / "before", **CRASH)
    after = partly_failed(tmp_path / "after", **BROKEN)
    done = invoke("compare", before, after)
    assert done.status == 0
    assert "BASE failed: the engine died (engine_crash)" in done.stdout
    assert invoke("compare", before, base).status == 0
    by_the_cluster = CRASH | {"failure_class": "infra", "failure_kind": "hub"}
    assert invoke("compare", base, partly_failed(tmp_path / "hub", **by_the_cluster)).status == 0


def test_requests_that_failed_at_one_start_are_listed(base: str, tmp_path: Path) -> None:
    single = Store.open(str(tmp_path / "new"), "exp")
    commit_starts(single, (100,), failed=20)
    output = tmp_path / "compare.html"
    done = invoke("compare", base, single.uri, "--format", "md", "--output", str(output))
    reason = "20 of 100 requests failed (http_5xx 20)"
    sentence = f"more requests failed: emulator seqs=8, chat 2 in flight: {reason}"
    assert done.status == 0
    assert sentence in done.stdout
    assert sentence in output.read_text()


def test_a_side_that_an_emulator_answered_is_said(base: str, tmp_path: Path) -> None:
    emulated = Store.open(str(tmp_path / "new"), "exp")
    commit_starts(emulated, (100, 101), emulated=True)
    assert "NEW is emulated: " in invoke("compare", base, emulated.uri).stdout


def test_what_was_simulated_is_not_paired_with_what_was_measured(base: str, tmp_path: Path) -> None:
    simulated = Store.open(str(tmp_path / "new"), "exp")
    commit_starts(simulated, (100, 101), simulated=True)
    assert invoke("compare", base, simulated.uri).status == 3
    assert "simulated: " in invoke("compare", simulated.uri, simulated.uri).stdout


def test_two_experiments_of_one_store_are_compared_by_their_folders(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        commit_starts(Store.open(str(tmp_path), name), (100, 101))
    monday, tuesday = str(tmp_path / "monday"), str(tmp_path / "tuesday")
    assert invoke("compare", monday, tuesday).status == 0
    with pytest.raises(click.UsageError, match="BASE holds several experiments"):
        invoke("compare", str(tmp_path), tuesday)


def test_a_folder_in_a_bucket_is_proposed_with_the_options_of_its_uri(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = "s3://bucket/sweeps?scheme=http"
    in_bucket = root.Results(uri, ("monday", "tuesday"))
    monkeypatch.setattr(location, "check_answers", lambda uri: None)
    monkeypatch.setattr(root, "open_results", lambda uri: in_bucket)
    folder = re.escape("like s3://bucket/sweeps/monday?scheme=http, or")
    with pytest.raises(click.UsageError, match=folder):
        invoke("compare", uri, uri)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--fail-on", "ttft_ms.p98", "did you mean 'ttft_ms.p9"),
        ("--across", "max_seqs", "did you mean 'max_num_seqs'"),
    ],
)
def test_a_wrong_name_is_refused(base: str, option: str, value: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        invoke("compare", base, base, option, value)


def test_a_gate_of_nothing_is_refused(base: str) -> None:
    with pytest.raises(click.UsageError, match="--fail-on names no figure"):
        invoke("compare", base, base, "--fail-on", " , ")


def test_shares_are_percentages_or_numbers() -> None:
    assert parse_share("3%") == parse_share("0.03") == 0.03
    for text in ("3", "-1%", "much", "nan", "100%"):
        with pytest.raises(click.UsageError, match="write it like 3%"):
            parse_share(text)


def test_the_workflow_calls_commands_and_options_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "compare.github.yaml").read_text())
    called = []
    for step in workflow["jobs"]["compare"]["steps"]:
        program, *argv = shlex.split(step.get("run", "").split(" > ")[0]) or [""]
        if program != "orchestrator":
            continue
        command = import_command(argv[0])
        command.make_parser(click.Context(command)).parse_args(
            argv[1:]
        )  # raises for an unknown one
        called.append(argv[0])
    assert called == ["plan", "run", "compare"]


def import_command(name: str) -> click.Command:
    assert isinstance(cli, click.Group)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command

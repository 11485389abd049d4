"""``orchestrator run``: what becomes of a sweep that is over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.cli.run import sweep_summary
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.state import LeftUnmeasured, MeasurementCounts, SweepReport
from tests.unit.cli.commands import Done, invoke

DECIDED_10 = ["--until", "decided", "--within", "10%"]
RUNS = "{engine: emulator, max_num_seqs: 8}"
IMPOSSIBLE = "{engine: emulator, extra_args: {--no: true}}"
FILE = """
version: 1
name: x
model: some-org/some-model
deployments: DEPLOYMENTS
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, duration: 5s}
"""


def write_file(folder: Path, *deployments: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(FILE.replace("DEPLOYMENTS", f"[{', '.join(deployments)}]"))
    return path


def swept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, report: SweepReport, *deployments: str
) -> Done:
    """``run`` of these deployments, with a sweep that does nothing and reports this."""
    cluster = SimpleNamespace(note="", close=lambda: None)
    monkeypatch.setattr("orchestrator.cluster.open_cluster.open_cluster", lambda *_: cluster)
    sweep = SimpleNamespace(run=lambda: report)
    monkeypatch.setattr("orchestrator.sweep.sweep.Sweep", lambda _: sweep)
    file = write_file(folder, *deployments)
    return invoke("run", str(file), "--results", str(folder / "results"))


def test_an_answer_that_cannot_be_given_costs_a_sweep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise TypeError("damaged rows")

    monkeypatch.setattr("orchestrator.report.answer_table.answer_text", fail)
    report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
    done = swept(tmp_path, monkeypatch, report, RUNS)
    assert done.status == 0
    assert "no answer yet: damaged rows" in done.stderr
    assert "1 measured" in done.stderr


def test_deployments_that_are_impossible_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
    done = swept(tmp_path, monkeypatch, report, RUNS, IMPOSSIBLE)
    assert "1 impossible" in done.stderr
    assert f"why they are impossible: orchestrator plan {tmp_path}/x.yaml" in done.stderr


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        (MeasurementCounts(measured=1), 0),
        (MeasurementCounts(skipped=1), 0),
        (MeasurementCounts(), 3),
        (MeasurementCounts(measured=1, failed=1), 3),
        (MeasurementCounts(measured=1, over_budget=1), 3),
        (MeasurementCounts(measured=1, without_row=1), 3),
        (MeasurementCounts(skipped=1, refused=1), 3),
        (MeasurementCounts(skipped=1, kept=1), 3),
    ],
)
def test_the_exit_status_says_whether_all_was_measured(
    counts: MeasurementCounts, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cli.run.print_end", lambda store, with_page: True)
    report = SweepReport(counts, wall_s=1.0, overhead=0.0)
    assert swept(tmp_path, monkeypatch, report, RUNS).status == status


def test_a_measurement_without_a_valid_attempt_is_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.report.answer_table.answer_text", lambda *_: [])
    monkeypatch.setattr("orchestrator.report.unmeasured.unmeasured", lambda *_: ["2 disturbed"])
    report = SweepReport(MeasurementCounts(measured=2), wall_s=1.0, overhead=0.0)
    done = swept(tmp_path, monkeypatch, report, RUNS)
    assert done.status == 3
    assert "no valid measurement: 2 disturbed" in done.stderr


def test_a_run_ends_with_the_answer_then_the_page_then_the_next_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.report.answer_table.answer_text", lambda *_: ["best: a"])
    monkeypatch.setattr("orchestrator.report.unmeasured.unmeasured", lambda *_: ["2 disturbed"])
    page = SimpleNamespace(html=b"<!DOCTYPE html>", requests=1)
    monkeypatch.setattr("orchestrator.report.page.html.page_of", lambda *_: page)
    report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
    lines = swept(tmp_path, monkeypatch, report, RUNS).stderr.splitlines()
    answer, unmeasured, page_line, command = lines[lines.index("best: a") :]
    assert (answer, unmeasured) == ("best: a", "no valid measurement: 2 disturbed")
    assert page_line == f"page: {tmp_path}/results/x/report.html"
    assert command.startswith("next: orchestrator results ")


def test_where_nothing_can_run_nothing_is_started(tmp_path: Path) -> None:
    done = invoke("run", str(write_file(tmp_path, IMPOSSIBLE)), "--results", str(tmp_path / "to"))
    assert done.status == 3
    assert "nothing can run: every deployment is impossible or excluded" in done.stderr
    assert not (tmp_path / "to").exists()


def test_the_key_of_an_endpoint_must_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    endpoint = "{engine: endpoint, url: 'http://127.0.0.1:1', api_key_env: NOT_SET}"
    with pytest.raises(InputError, match="set the environment variables .* NOT_SET"):
        invoke("run", str(write_file(tmp_path, endpoint)), "--results", str(tmp_path / "to"))


def summary(report: SweepReport) -> str:
    return sweep_summary(report, cast(Store, SimpleNamespace(uri="results")))


def test_a_run_that_had_nothing_to_do_has_no_overhead() -> None:
    report = SweepReport(MeasurementCounts(skipped=1), wall_s=1.0, overhead=1.0)
    assert summary(report) == ("0 measured, 1 already done, 0 failed\n1 s in all\nresults: results")
    for counts in (MeasurementCounts(measured=1), MeasurementCounts(failed=1)):
        assert "overhead" in summary(SweepReport(counts, wall_s=1.0, overhead=1.0))


def test_the_summary_names_what_is_left_and_how_to_go_on() -> None:
    spoilt = Counter({"disturbed": 2, "client_bound": 1})
    counts = MeasurementCounts(measured=3, spoilt=spoilt, over_budget=2, refused=4, kept=5)
    (counts_line, *_) = summary(SweepReport(counts, 1.0, 0.0, left_by_stop=6)).splitlines()
    assert counts_line == (
        "3 measured (of them 2 disturbed, 1 client_bound), 0 already done, 0 failed, 2 left out by the budget,"
        " 4 failed before (--retry-failed tries them again), 5 stay spoilt (--again N),"
        " interrupted with 6 left: run the same command again to continue"
    )


def test_the_summary_says_which_failures_no_row_explains() -> None:
    report = SweepReport(MeasurementCounts(measured=3, without_row=2), 1.0, 0.0)
    assert "0 failed, 2 failed without a row that says why\n" in summary(report)


def test_the_summary_says_what_need_not_be_measured() -> None:
    report = SweepReport(
        MeasurementCounts(measured=3), 1.0, 0.0, left_unmeasured=LeftUnmeasured(2, 7, True)
    )
    assert "2 deployments not measured to the end, which cannot be best" in summary(report)


@pytest.mark.parametrize(
    ("slos", "options", "reason"),
    [
        ("", ["--until", "decided"], "needs limits to rank by"),
        ("slos: {fast: {ttft: 1s}}", ["--within", "5%"], "give both"),
        ("slos: {fast: {ttft: 1s, agreement: 0.9}}", ["--until", "decided"], "agreement"),
        ("slos: {fast: {ttft: 1s}}", ["--until", "decided", "--within", "5 percent"], "a share"),
        ("slos: {fast: {ttft: 1s}}", ["--until", "decided", "--within", "-1%"], "a share"),
        ("slos: {fast: {ttft: 1s}}", ["--until", "done"], "decided"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    tmp_path: Path, slos: str, options: list[str], reason: str
) -> None:
    file = write_file(tmp_path, RUNS)
    file.write_text(file.read_text() + slos)
    with pytest.raises(click.UsageError, match=reason):
        invoke("run", str(file), "--results", str(tmp_path / "to"), *options)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("options", "within"), [([], None), (["--until", "decided"], 0.05), (DECIDED_10, 0.1)]
)
def test_the_precision_of_a_decision_is_five_percent_or_as_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], within: float | None
) -> None:
    asked: list[float | None] = []

    def sweep(context: SweepContext) -> SimpleNamespace:
        asked.append(context.settings.decided_within)
        report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
        return SimpleNamespace(run=lambda: report)

    cluster = SimpleNamespace(note="", close=lambda: None)
    monkeypatch.setattr("orchestrator.cluster.open_cluster.open_cluster", lambda *_: cluster)
    monkeypatch.setattr("orchestrator.sweep.sweep.Sweep", sweep)
    file = write_file(tmp_path, RUNS)
    file.write_text(file.read_text() + "slos: {fast: {ttft: 1s}}")
    invoke("run", str(file), "--results", str(tmp_path / "to"), *options)
    assert asked == [within]


def test_limits_on_waiting_and_on_clients_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def opened(_store: Store, _address: str | None, client_limit: int | None) -> SimpleNamespace:
        asked.append(client_limit)
        return SimpleNamespace(note="", close=lambda: None)

    def sweep(context: SweepContext) -> SimpleNamespace:
        asked.extend([context.settings.placement_timeout_s, context.settings.storage_timeout_s])
        report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
        return SimpleNamespace(run=lambda: report)

    monkeypatch.setattr("orchestrator.cluster.open_cluster.open_cluster", opened)
    monkeypatch.setattr("orchestrator.sweep.sweep.Sweep", sweep)
    file = write_file(tmp_path, RUNS)
    invoke("run", str(file), "--results", str(tmp_path / "one"))
    file.write_text(file.read_text() + "max_clients: 3\nplacement_timeout: 1h\nstorage_timeout: 9s")
    invoke("run", str(file), "--results", str(tmp_path / "two"))
    assert asked == [None, 900.0, 900.0, 3, 3600.0, 9.0]


def test_a_model_that_is_not_there_is_refused_before_an_engine_starts_on_this_machine(
    tmp_path: Path,
) -> None:
    file = write_file(tmp_path, "{engine: vllm, model: ./nomodel}")
    argv = ("run", str(file), "--results", str(tmp_path / "results"), "--address", "local")
    with pytest.raises(ProblemsError, match="nomodel is not there"):
        invoke(*argv)
    assert not (tmp_path / "results").exists()


PREDICTED = """
version: 1
name: x
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, vary: [{grid: {max_num_seqs: [1, 2, 64, 65]}}]}
workloads: [{name: chat, input_tokens: 600, output_tokens: 200}]
load: {levels: {request_rate: [1, 4]}, duration: 5s}
slos: {fast: {ttft: 2s, tpot: 100ms}}
"""


class TestShortlist:
    @pytest.fixture(autouse=True)
    def sweeps_that_store_their_plan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path
        self.events: list[Event] = []
        cluster = SimpleNamespace(note="", close=lambda: None)
        monkeypatch.setattr("orchestrator.sweep.sweep.Sweep", self._sweep)
        monkeypatch.setattr("orchestrator.cluster.open_cluster.open_cluster", lambda *_: cluster)
        monkeypatch.setattr("orchestrator.sweep.context.ClusterWithEvents", lambda *_: cluster)
        (tmp_path / "x.yaml").write_text(PREDICTED)

    def _sweep(self, context: SweepContext) -> SimpleNamespace:
        context.store.write_plan(context.plan.to_json())
        self.events += context.news.take_events()
        report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
        return SimpleNamespace(run=lambda: report)

    def run(self, *options: str, file: str = "x.yaml") -> str:
        results = str(self.folder / "results")
        argv = ["run", str(self.folder / file), "--results", results, "--no-report", *options]
        return invoke(*argv).stderr

    def stored(self) -> Plan:
        text = Store.open(str(self.folder / "results"), "x").plan()
        assert text is not None
        return Plan.from_json(text)

    def test_a_run_says_what_its_shortlist_leaves_out_and_stores_each_reason(self) -> None:
        said = self.run("--shortlist", "1")
        assert "shortlist: 1 of 4 deployments by plan --predict; left out: 2 predicted" in said
        assert len(self.stored().runnable()) == 1
        (event,) = [event for event in self.events if event.kind == "shortlist"]
        reasons = event.data["left_out"]
        assert len(reasons) == 3
        assert sum("predicted to hold at most" in reason for reason in reasons.values()) == 2

    def test_the_same_command_continues_with_its_shortlist_and_another_one_is_said(self) -> None:
        self.run("--shortlist", "1")
        first = self.stored()
        assert "the last run" not in self.run("--shortlist", "1")
        assert self.stored() == first
        assert "the last run" not in self.run(file="results/x/plan.json")
        assert self.stored() == first
        said = self.run("--shortlist", "2")
        assert "note: the last run was limited to 1 of 4 deployments by plan --predict" in said
        assert "this one has another shortlist" in said
        assert "this one has all that can run" in self.run()
        assert len(self.stored().runnable()) == 4

"""The answer: which deployment, how sure, and why the others are not it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.best import best
from orchestrator.analysis.measured import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.best import best_document
from orchestrator.report.documents import json_text
from orchestrator.report.points import point_document
from orchestrator.results.root import open_results
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_launch, commit_measurement, deployment_row, failed_request, request

SLO = parse_slo("ttft<=500ms,attainment>=0.9")
SECONDS = 20


class Sweep:
    """A store that is filled level by level. Each answer has 10 tokens, all at once, 100 ms after its request."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder)
        self.store = Store.open(self.uri, "exp")
        self.count = 0

    def deployment(self, name: str, **given: Any) -> None:
        commit_launch(self.store, f"L{name}", deployment_row(name, **given))

    def level(self, deployment: str, level: float, good: float = 1.0, **given: Any) -> None:
        """``level`` requests per second for 20 s, the share ``good`` within the limit, evenly spread."""
        self.count += 1
        rows = []
        for index in range(round(level * SECONDS)):
            at = index * 1000 / level
            late = int(round((index + 1) * (1 - good), 9)) > int(round(index * (1 - good), 9))
            rows.append(request(index, at, first_ms=at + (900 if late else 100), tokens=10))
        workload = given.get("workload", "chat")
        point = {"deployment_id": deployment, "level": level, "point_id": f"{deployment}-{workload}-{level}"}
        window = {"window_end_ns": SECONDS * 10**9}
        commit_measurement(self.store, f"m{self.count}", rows, **point | window | given)

    def best(self, per: str = "gpu", slo: str | None = None) -> dict[str, Any]:
        limits = parse_slo(slo) if slo else SLO
        answers = best(load_points(open_results(self.uri), limits), limits, per)  # type: ignore[arg-type]
        return json.loads(json_text(best_document(answers, limits, per)))  # type: ignore[arg-type, no-any-return]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_the_highest_level_that_holds_the_limits_decides(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((5, 1.0), (10, 0.95), (20, 0.5)):
        sweep.level("d0", level, good)
    answer = sweep.best()
    winner = answer["winner"]
    assert (winner["label"], winner["control"], winner["level"]) == ("label-d0", "request_rate", 10)
    assert winner["throughput"]["estimate"] == pytest.approx(100, rel=0.02)
    assert winner["attainment"]["estimate"] == 0.95
    assert winner["settings"]["engine"] == "vllm"
    assert answer["unit"] == "output tokens/s per GPU"
    assert answer["certain"]
    assert answer["why"] == "the only deployment that holds the limits"


def test_per_gpu_dollar_and_deployment_may_differ(sweep: Sweep) -> None:
    sweep.deployment("big", devices=4, usd_per_hour=3.6)
    sweep.deployment("small", devices=1, usd_per_hour=7.2)
    sweep.level("big", 20)
    sweep.level("small", 10)
    found = {per: sweep.best(per) for per in ("gpu", "usd", "deployment")}
    assert {per: answer["winner"]["label"] for per, answer in found.items()} == {
        "gpu": "label-small",
        "usd": "label-big",
        "deployment": "label-big",
    }
    assert found["gpu"]["winner"]["throughput"]["estimate"] == pytest.approx(100, rel=0.02)
    assert found["gpu"]["runner_up"]["throughput"]["estimate"] == pytest.approx(50, rel=0.02)
    assert found["usd"]["winner"]["throughput"]["estimate"] == pytest.approx(200 * 3600 / 3.6, rel=0.02)
    assert found["usd"]["unit"] == "output tokens/USD"


def test_a_winner_is_certain_when_the_intervals_do_not_overlap(sweep: Sweep) -> None:
    for name, level in (("d0", 20), ("d1", 10)):
        sweep.deployment(name)
        sweep.level(name, level)
    answer = sweep.best()
    assert (answer["winner"]["label"], answer["runner_up"]["label"], answer["certain"]) == (
        "label-d0",
        "label-d1",
        True,
    )
    assert answer["winner"]["throughput"]["lower"] > answer["runner_up"]["throughput"]["upper"]


def test_a_winner_is_not_certain_when_the_intervals_overlap(sweep: Sweep) -> None:
    for name in ("d0", "d1"):
        sweep.deployment(name)
        for repeat, level in enumerate((19.5, 20.5) if name == "d0" else (19.0, 20.0)):
            sweep.level(name, level, repeat=repeat, point_id=name)
    answer = sweep.best()
    assert answer["winner"]["label"] == "label-d0"
    assert not answer["certain"]
    assert "overlap" in answer["why"]


def test_a_winner_whose_attainment_may_be_below_the_target_is_not_certain(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, good=0.91)
    answer = sweep.best()
    assert answer["winner"]["attainment"]["lower"] < 0.9
    assert not answer["certain"]
    assert any("not certain to be at least 0.9" in note for note in answer["winner"]["notes"])


@pytest.mark.parametrize("validity", ["client_bound", "invalid", "engine_bound_backlog", "unmeasured"])
def test_a_point_that_is_not_valid_never_wins_and_says_why(sweep: Sweep, validity: str) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5)
    sweep.level("d0", 10, validity=validity, validity_reasons=["the client was at 99 % CPU"])
    answer = sweep.best()
    assert answer["winner"]["level"] == 5
    (left,) = answer["left_out"]
    assert (left["level"], left["label"]) == (10, "label-d0")
    assert left["reason"] == f"not a valid measurement: {validity} (the client was at 99 % CPU)"


def test_a_failed_point_never_wins_and_gives_its_sentence(sweep: Sweep) -> None:
    sweep.deployment("d0")
    row = {
        "deployment_id": "d0",
        "status": "failed",
        "reason": "The engine ran out of memory.",
        "failure_class": "bad_config",
    }
    commit_measurement(sweep.store, "m0", [failed_request(0)], **row)
    answer = sweep.best()
    assert answer["winner"] is answer["runner_up"] is None
    assert "no deployment holds ttft<=500ms,attainment>=0.9" in answer["why"]
    assert [left["reason"] for left in answer["left_out"]] == ["failed: The engine ran out of memory."]


def test_a_deployment_that_holds_the_limits_nowhere_is_left_out_with_its_best_attainment(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, good=0.5)
    sweep.level("d0", 10, good=0.25)
    (left,) = sweep.best()["left_out"]
    assert left["reason"] == "no level holds the limits: attainment is at most 0.500 (at request_rate 5), not 0.9"


def test_what_cannot_be_divided_is_left_out_with_the_reason(sweep: Sweep) -> None:
    sweep.deployment("endpoint", devices=0, usd_per_hour=None)
    sweep.level("endpoint", 5)
    assert "--per deployment" in sweep.best("gpu")["left_out"][0]["reason"]
    assert "price is not known" in sweep.best("usd")["left_out"][0]["reason"]
    assert sweep.best("deployment")["winner"]["label"] == "label-endpoint"


def test_the_top_of_what_was_measured_and_a_dip_below_are_noted(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((2, 1.0), (5, 0.5), (10, 1.0)):
        sweep.level("d0", level, good)
    notes = " ".join(sweep.best()["winner"]["notes"])
    assert "capacity may be higher" in notes
    assert "not monotonic" in notes


def test_each_workload_has_its_own_answer(sweep: Sweep) -> None:
    for name, chat, code in (("d0", 20, 5), ("d1", 10, 10)):
        sweep.deployment(name)
        sweep.level(name, chat)
        sweep.level(name, code, workload="code")
    answer = sweep.best()
    assert "winner" not in answer
    found = {one["workload"]: one["winner"]["label"] for one in answer["answers"]}
    assert found == {"chat": "label-d0", "code": "label-d1"}


def test_a_limit_nobody_thought_of_when_measuring_changes_the_answer(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5)
    sweep.level("d0", 10, good=0.5)
    assert sweep.best(slo="ttft<=500ms,attainment>=0.9")["winner"]["level"] == 5
    assert sweep.best(slo="ttft<=1s,attainment>=0.9")["winner"]["level"] == 10


def test_an_emulators_answer_is_marked(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, emulated=True)
    answer = sweep.best()
    assert answer["emulated"]
    assert answer["winner"]["emulated"]


def test_repeats_are_pooled_and_the_bad_ones_left_out(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, repeat=0, point_id="p")
    sweep.level("d0", 5, repeat=1, point_id="p", good=0.9)
    sweep.level("d0", 5, repeat=2, point_id="p", validity="client_bound")
    winner = sweep.best()["winner"]
    assert winner["attainment"]["estimate"] == pytest.approx(0.95)
    assert winner["repeats"] == 2
    assert any("1 of 3 repeats are left out" in note for note in winner["notes"])


def test_a_point_lists_its_repeats_and_what_was_merged(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, repeat=1, point_id="p", good=0.5)
    sweep.level("d0", 5, repeat=0, point_id="p")
    sweep.level("d0", 5, repeat=2, point_id="p", status="failed", reason="it died", failure_class="engine_crash")
    (point,) = load_points(open_results(sweep.uri), SLO)
    found = json.loads(json_text(point_document(point, SLO)))
    assert found["merged"] == {"of": 3, "used": 2, "failed": 1}
    assert (found["status"], found["reason"]) == ("ok", "it died")
    assert [one["repeat"] for one in found["repeats"]] == [0, 1, 2]
    assert found["requests"] == {"scheduled": 200, "ok": 200, "failed": 0}
    assert found["slo"]["attainment"]["estimate"] == 0.75
    assert [one["slo"]["attainment"] and one["slo"]["attainment"]["estimate"] for one in found["repeats"]] == [
        1,
        0.5,
        None,
    ]
    assert found["slo"]["goodput"] == pytest.approx(0.75 * 5)
    assert found["slo"]["by_limit"] == {"ttft": 0.75}


def test_a_measurement_is_its_winning_attempt_or_its_last_failed_one(sweep: Sweep) -> None:
    sweep.deployment("d0")
    failed = {"status": "failed", "reason": "first", "deployment_id": "d0"}
    commit_measurement(sweep.store, "x", attempt_id="a0", created_unix_ns=1, point_id="x", **failed)
    commit_measurement(
        sweep.store, "x", attempt_id="a1", created_unix_ns=2, point_id="x", **failed | {"reason": "last"}
    )
    (point,) = load_points(open_results(sweep.uri))
    assert (point.head.reason, point.repeats[0].attempts, point.used) == ("last", 2, ())
    commit_measurement(
        sweep.store, "x", [request(0)], attempt_id="a2", created_unix_ns=3, point_id="x", deployment_id="d0"
    )
    (point,) = load_points(open_results(sweep.uri))
    assert (point.head.attempt_id, point.repeats[0].attempts) == ("a2", 3)


def test_points_of_a_deployment_nobody_described_are_still_listed(sweep: Sweep) -> None:
    sweep.level("ghost", 5)
    (point,) = load_points(open_results(sweep.uri))
    assert point_document(point)["label"] == "ghost"
    assert point_document(point)["settings"] == {}

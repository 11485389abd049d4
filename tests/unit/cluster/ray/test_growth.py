"""Which placement groups wait for nodes: as many as are desired, and none in the way of a launch.
Groups are fakes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from orchestrator.cluster.base import Bundle, Footprint, Growth, NodeType, RefusedNodes
from orchestrator.cluster.ray import growth as ray_growth
from orchestrator.cluster.ray.growth import Autoscaler, DesiredNodes
from orchestrator.cluster.ray.private import AutoscalerReport, LastRefusal

ONE = Footprint((Bundle(8, 4.0),), (("pool", "a"),))
GANG = Footprint((Bundle(8, 4.0),) * 2)


@dataclass
class Groups:
    """Placement groups, in the order in which they were made."""

    there: list[tuple[str, str, tuple[dict[str, str], ...]]] = field(default_factory=list)
    count: int = 0  # of all groups that were ever made

    def make(
        self,
        bundles: list[dict[str, float]],
        strategy: str,
        bundle_label_selector: list[dict[str, str]],
    ) -> str:
        assert all(bundle == {"GPU": 8, "CPU": 4.0} for bundle in bundles)
        self.count += 1
        name = f"group {self.count}"
        self.there.append((name, strategy, tuple(bundle_label_selector)))
        return name

    def remove(self, name: str) -> None:
        self.there = [group for group in self.there if group[0] != name]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups()
    monkeypatch.setattr(ray_growth, "placement_group", groups.make)
    monkeypatch.setattr(ray_growth, "remove_placement_group", groups.remove)
    return groups


def test_every_footprint_has_a_group_with_its_labels_and_gangs_come_first(groups: Groups) -> None:
    DesiredNodes().desire([ONE, GANG])
    assert [(strategy, selectors) for _, strategy, selectors in groups.there] == [
        ("STRICT_SPREAD", ({}, {})), ("STRICT_PACK", ({"pool": "a"},)),
    ]  # fmt: skip


def test_a_desire_replaces_the_last_one_and_what_stays_desired_stays(groups: Groups) -> None:
    desired = DesiredNodes()
    desired.desire([ONE, ONE, GANG])
    names = [name for name, _, _ in groups.there]
    desired.desire([ONE, ONE])
    assert [name for name, _, _ in groups.there] == names[1:]
    desired.desire([ONE, GANG])
    assert groups.count == 4
    desired.desire([])
    assert groups.there == []


def test_no_group_is_on_a_node_that_a_launch_takes(groups: Groups) -> None:
    desired = DesiredNodes()
    desired.desire([ONE])
    desired.hold(["n2", "n1"])
    assert groups.there == [
        ("group 2", "STRICT_PACK", ({"pool": "a", "ray.io/node-id": "!in(n1,n2)"},))
    ]
    desired.desire([ONE])
    assert groups.count == 2
    desired.give_back(["n2"])
    desired.desire([ONE, ONE])
    assert [selectors for _, _, selectors in groups.there] == [
        ({"pool": "a", "ray.io/node-id": "!in(n1)"},)
    ] * 2


def test_no_group_is_on_a_node_given_to_a_launch(groups: Groups) -> None:
    desired = DesiredNodes()
    desired.hold(["n1"])
    desired.desire([ONE], taken=["n1", "n2"])
    names = [name for name, _, _ in groups.there]
    desired.hold(["n2"])  # the launch that was given n2 asks for it: nothing has to go
    assert [name for name, _, _ in groups.there] == names
    assert groups.there[0][2][0]["ray.io/node-id"] == "!in(n1,n2)"


def test_two_launches_on_one_node_hold_it_until_both_have_left(groups: Groups) -> None:
    desired = DesiredNodes()
    desired.hold(["n1"])
    desired.hold(["n1"])
    desired.give_back(["n1"])
    desired.desire([ONE])
    assert groups.there[0][2][0]["ray.io/node-id"] == "!in(n1)"


def test_there_are_never_more_groups_than_ray_can_look_at(groups: Groups) -> None:
    DesiredNodes().desire([ONE] * 500)
    assert len(groups.there) == ray_growth.MOST_GROUPS


class Saying:
    """An autoscaler's reports, one a look; the last one stays."""

    def __init__(self, *reports: AutoscalerReport | None) -> None:
        self.reports, self.now_s = list(reports), 0.0
        self.autoscaler = Autoscaler(self.report, lambda: self.now_s)

    def report(self) -> AutoscalerReport | None:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]

    def after(self, seconds: float, **groups: Footprint) -> Growth:
        self.now_s += seconds
        return self.autoscaler.growth(lambda: groups)


HEAD = ("head",)
BIG = Footprint((Bundle(16, 1.0),))


def test_without_an_answer_nodes_may_come_and_without_types_none_do() -> None:
    assert Saying(None).after(5.0) == Growth(may_grow=True)
    assert not Saying(AutoscalerReport(("node_ab12",), 1)).after(5.0).may_grow
    unanswered = AutoscalerReport(("node_ab12",), 1, monitor_configured=None)
    assert Saying(unanswered).after(5.0) == Growth(may_grow=True)
    assert Saying(AutoscalerReport(("node_ab12",), 1, monitor_configured=True)).after(5.0).may_grow


def test_an_autoscaler_that_is_configured_and_does_not_report_is_named() -> None:
    never = Saying(AutoscalerReport(HEAD))
    assert never.after(5.0) == Growth(reports=0)
    assert "configured and has not reported" in never.after(60.0).why_no_nodes()
    stopped = Saying(AutoscalerReport(HEAD, 1), AutoscalerReport(HEAD, 2))
    stopped.after(5.0)
    assert stopped.after(59.0).why_no_nodes() == ""
    assert stopped.after(59.0).why_no_nodes() == ""
    assert "has not reported" in stopped.after(5.0).why_no_nodes()
    assert (
        Saying(AutoscalerReport(HEAD, 1, "KeyError")).after(5.0).why_no_nodes()
        == "the autoscaler ended: KeyError"
    )


def test_new_reports_are_counted_and_node_types_read_until_known() -> None:
    types = list[NodeType]()
    reports = [AutoscalerReport(HEAD, stamp) for stamp in (1, 1, 2, 3)]
    now_s = iter(range(0, 100, 5))
    autoscaler = Autoscaler(lambda: reports.pop(0), lambda: float(next(now_s)), types=lambda: types)
    assert (first := autoscaler.growth(dict)).reports == 1 and first.types == ()
    assert autoscaler.growth(dict).reports == 1, (
        "it may be the last one of an autoscaler that is dead"
    )
    types.append(NodeType("h8", 8, 96.0, 4))
    assert (later := autoscaler.growth(dict)).reports == 2 and later.types == tuple(types)


def test_a_report_that_is_expensive_to_read_is_not_taken_for_silence() -> None:
    now_s = used_s = 0.0

    def report() -> AutoscalerReport:
        nonlocal used_s
        used_s += 0.2
        return AutoscalerReport(HEAD, now_s // 5.0 + 1)

    autoscaler, texts = Autoscaler(report, lambda: now_s, lambda: used_s), set[str]()
    while now_s < 200.0:
        texts.add(autoscaler.growth(dict).why_no_nodes())
        now_s += 1.0
    assert texts == {""}


def test_launches_refused_since_the_first_look_are_named() -> None:
    before = {"spot": RefusedNodes(7, "no capacity")}
    later = {"spot": RefusedNodes(9, "quota"), "h8": RefusedNodes(1, "")}
    reports = Saying(
        AutoscalerReport(HEAD, 1, refused=before), AutoscalerReport(HEAD, 2, refused=later)
    )
    assert reports.after(5.0).why_no_nodes() == ""
    assert (
        reports.after(5.0).why_no_nodes()
        == "launches of nodes were refused: 2 x spot (quota), 1 x h8"
    )


def test_a_last_launch_of_version_1_counts_as_one() -> None:
    before = {"spot": LastRefusal(100.0, "no capacity")}
    later = {"spot": LastRefusal(160.0, "quota"), "h8": LastRefusal(150.0, "it is full")}
    reports = Saying(
        AutoscalerReport(HEAD, 1, last_refused=before),
        AutoscalerReport(HEAD, 2, last_refused=before),
        AutoscalerReport(HEAD, 3, last_refused=later),
    )
    assert reports.after(5.0).refused == {}
    assert reports.after(5.0).refused == {}
    assert reports.after(5.0).refused == {
        "spot": RefusedNodes(1, "quota"),
        "h8": RefusedNodes(1, "it is full"),
    }


def test_an_impossible_footprint_is_believed_after_two_reports() -> None:
    def reports(*types: str) -> list[AutoscalerReport]:
        return [AutoscalerReport(types, stamp, infeasible=frozenset({"ab"})) for stamp in (1, 2)]

    autoscaler = Saying(*reports("head"))
    assert autoscaler.after(5.0, ab=BIG).impossible == frozenset()
    assert autoscaler.after(1.0, ab=BIG).impossible == frozenset()  # not asked again so soon
    assert autoscaler.after(5.0, ab=BIG).impossible == {BIG}
    full = Saying(*reports("head", "h8"))  # perhaps it has as many nodes as it may have
    full.after(5.0, ab=BIG)
    assert full.after(5.0, ab=BIG).impossible == frozenset()

"""Which placement groups wait for nodes: as many as are desired, and none in the way of a launch. Groups are fakes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from orchestrator.cluster import ray_growth
from orchestrator.cluster.base import Bundle, Footprint
from orchestrator.cluster.ray_growth import DesiredNodes

ONE = Footprint((Bundle(8, 4.0),), (("pool", "a"),))
GANG = Footprint((Bundle(8, 4.0),) * 2)


@dataclass
class Groups:
    """The groups that are there, in the order in which they were made."""

    there: list[tuple[str, str, tuple[dict[str, str], ...]]] = field(default_factory=list)
    made: int = 0

    def make(self, bundles: list[dict[str, float]], strategy: str, bundle_label_selector: list[dict[str, str]]) -> str:
        assert all(bundle == {"GPU": 8, "CPU": 4.0} for bundle in bundles)
        self.made += 1
        name = f"group {self.made}"
        self.there.append((name, strategy, tuple(bundle_label_selector)))
        return name

    def remove(self, name: str) -> None:
        self.there = [one for one in self.there if one[0] != name]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    made = Groups()
    monkeypatch.setattr(ray_growth, "placement_group", made.make)
    monkeypatch.setattr(ray_growth, "remove_placement_group", made.remove)
    return made


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
    assert groups.made == 4
    desired.desire([])
    assert groups.there == []


def test_no_group_is_on_a_node_that_a_launch_takes(groups: Groups) -> None:
    desired = DesiredNodes()
    desired.desire([ONE])
    desired.hold(["n2", "n1"])
    assert groups.there == [("group 2", "STRICT_PACK", ({"pool": "a", "ray.io/node-id": "!in(n1,n2)"},))]
    desired.desire([ONE])
    assert groups.made == 2
    desired.give_back(["n2"])
    desired.desire([ONE, ONE])
    assert [selectors for _, _, selectors in groups.there] == [({"pool": "a", "ray.io/node-id": "!in(n1)"},)] * 2


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

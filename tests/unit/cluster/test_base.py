"""What crosses between the sweep and a cluster, in words, and how long a placement is waited for."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import Occupied, PlacementError
from orchestrator.cluster.base import (
    Bundle,
    ClientLost,
    Footprint,
    Growth,
    NoAnswer,
    PlacementDeadline,
    RefusedNodes,
)

ONE_GPU = Footprint((Bundle(1, 4.0),))


@pytest.mark.parametrize(
    ("bundles", "text"),
    [
        ((Bundle(1, 4.0),), "one node with 1 GPU"),
        ((Bundle(0, 4.0),), "one node with 4 CPUs"),
        ((Bundle(8, 4.0),) * 2, "2 nodes with 8 GPUs each"),
        ((Bundle(0, 0.0),), "one node for a router"),
    ],
)
def test_a_footprint_in_words_names_nodes_and_devices(
    bundles: tuple[Bundle, ...], text: str
) -> None:
    assert str(Footprint(bundles)) == text


def test_an_autoscaler_that_works_says_nothing() -> None:
    assert Growth(coming={"h8": 2}).why_no_nodes() == ""


def test_why_nodes_do_not_come_names_silence_and_refused_launches() -> None:
    refused = {"spot": RefusedNodes(2, "quota"), "h8": RefusedNodes(1, "")}
    growth = Growth(silent="it has not reported", refused=refused)
    assert growth.why_no_nodes() == (
        "it has not reported; launches of nodes were refused: 2 x spot (quota), 1 x h8"
    )


def test_a_placement_that_takes_too_long_is_occupied() -> None:
    deadline = PlacementDeadline(60.0)
    deadline.check(59.9, ONE_GPU)
    with pytest.raises(
        Occupied, match="one node with 1 GPU did not become free within 60 s"
    ) as end:
        deadline.check(60.0, ONE_GPU, lambda: {"a"})
    assert end.value.nodes == {"a"}


def test_a_placement_ends_at_once_when_the_sweep_is_stopped() -> None:
    deadline = PlacementDeadline(60.0, stopped=lambda: True)
    with pytest.raises(PlacementError, match="the sweep was stopped"):
        deadline.check(0.0, ONE_GPU)


def test_lost_clients_are_named_with_the_reason() -> None:
    error = ClientLost([0, 3], "killed")
    assert (error.clients, str(error)) == ((0, 3), "client 0, 3: killed")


def test_a_check_that_raised_means_that_the_node_cannot_run_this_program() -> None:
    answer = NoAnswer.of(ImportError("no module named orchestrator"))
    assert answer.cannot_run
    assert answer.why == "cannot run this program: ImportError: no module named orchestrator"

"""Which deployments a race starts where it may not start all."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from orchestrator.capacity import proposing
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.capacity.proposing import Shortlist, propose
from orchestrator.capacity.race import Entrant, Race
from orchestrator.capacity.sequential_test import LevelVerdict

AXES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16), "pipeline_parallel_size": (1, 2), "quantization": (None, "fp8"),
    "max_num_seqs": (64, 128, 256, 512, 1024), "kv_cache_dtype": ("auto", "fp8"),
}  # fmt: skip
GRID = {
    str(at): dict(zip(AXES, values, strict=True))
    for at, values in enumerate(product(*AXES.values()))
}
STARTS = len(GRID) // 5
TARGETS = {"fast": 0.95}


def surface(rng: np.random.Generator) -> dict[str, float]:
    """Each value of a setting has a gain of its own, and each deployment 10 % more or less."""
    gains = {
        axis: dict(zip(values, rng.lognormal(0, 0.25, len(values)), strict=True))
        for axis, values in AXES.items()
    }
    return {
        name: math.prod(gains[axis][value] for axis, value in cell.items()) * rng.lognormal(0, 0.1)
        for name, cell in GRID.items()
    }


def test_proposals_find_a_good_deployment_more_often_than_order() -> None:
    pytest.importorskip(
        "optuna", reason="Optuna is not installed: nothing is known of what it proposes"
    )
    found = {"proposed": 0, "in order": 0}
    for repetition in range(6):
        truth = surface(np.random.default_rng(repetition))
        known: dict[str, float | None] = {}
        while len(known) < STARTS:
            name = propose(GRID, known, 1000 * repetition + len(known))
            known[name] = truth[name]
        for how, some in (("proposed", [*known]), ("in order", [*GRID][:STARTS])):
            found[how] += max(truth[name] for name in some) >= 0.95 * max(truth.values())
    assert len(GRID) >= 200
    assert found["proposed"] >= found["in order"] + 2


def test_the_same_results_lead_to_the_same_proposal() -> None:
    pytest.importorskip(
        "optuna", reason="Optuna is not installed: nothing is known of what it proposes"
    )
    some = {name: GRID[name] for name in ("0", "50", "100", "150")}
    known: dict[str, float | None] = {"50": 1.0, "150": None}
    assert propose(some, known, 7) == propose(some, known, 7)
    for _ in range(2):
        known[propose(some, known, 7)] = 0.0
    assert known.keys() == some.keys()


def test_settings_that_vary_are_axes_and_numbers_stand_in_order() -> None:
    cells = [
        {"a": 8, "b": None, "c": 1, "twice": 16},
        {"a": 2, "b": "x", "c": 1, "twice": 4},
        {"a": 8, "b": "x"},
    ]
    assert proposing._axes(cells) == {
        "a": [2, 8],
        "b": [None, "x"],
        "c": [1, None],
        "twice": [16, 4, None],
    }
    assert proposing._axes(cells[:2]) == {"a": [2, 8]}  # the others say the same


def at(level: float, verdict: LevelVerdict | None, share: float) -> LevelEvidence:
    return LevelEvidence(level, 1, verdict, False, share, 1000, (), 1, False, False, False, 20.0)


def race() -> Race:
    return Race(
        {
            name: Entrant("a" if name < "n" else "b", 2.0, {"max_num_seqs": ord(name)})
            for name in "abcdxyz"
        }
    )


def test_those_predicted_best_are_chosen_and_groups_take_turns() -> None:
    chooser = Shortlist(race(), TARGETS, 3, {"c": 0.9, "a": 0.5, "z": 0.1})
    names = [*"abcdxyz"]
    assert not any(map(chooser.has, names))
    assert list(chooser.expected(dict.fromkeys(names, 0))) == [0, 0, 0]
    order = []
    while chooser.left:
        order.append(chooser.choose(chooser.others(names), ()))
    assert order == ["c", "z", "a"]
    assert chooser.chosen == {*order}
    everybody = Shortlist(race(), {}, None)
    assert everybody.has("q")
    assert everybody.others(names) == []


def test_the_proposer_hears_what_each_holds_what_failed_and_what_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = list[dict[str, float | None]]()

    def proposed(settings: object, known: dict[str, float | None], seed: int) -> str:
        heard.append(dict(known))
        return "d"

    monkeypatch.setattr(proposing, "propose", proposed)
    some = race()
    some.tell("a", "w", "fast", Claim(8.0, 8.0, 8.0, "converged", (at(8.0, "holds", 0.97),)), 0.0)
    some.tell(
        "x", "w", "fast", Claim(90.0, 90.0, 90.0, "converged", (at(90.0, "holds", 0.97),)), 0.0
    )
    some.tell("b", "w", "fast", Claim(None, 4.0, 4.0, "outraced", (at(4.0, "fails", 0.9),)), 0.0)
    chooser = Shortlist(some, TARGETS, 9, {}, "optuna")
    chooser.chosen |= {*"abcxyz"} - {"z"}
    assert chooser.choose(["d"], {"c"}) == "d"
    assert heard == [{"a": 1.0, "b": 0.5, "c": None}]
    chooser.chosen.discard("d")
    chooser.choose(["d"], ())
    assert heard[-1]["c"] == 0.0
    predicted = Shortlist(some, TARGETS, 9, {"c": 1.0}, "optuna")
    assert predicted.choose([*"abcd"], ()) == "c"  # the first ones are those predicted best
    assert len(heard) == 2

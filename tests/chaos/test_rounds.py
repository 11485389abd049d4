"""Whichever process is killed or stopped, and whenever: each measurement is there once, and nothing
is left. The engine is emulated.

Five seeds in `make test`, the last of them by `make chaos` (``test_make_chaos.py``), which runs a
hundred (one of them alone: ``-m 'chaos or long' -k 'round[17]'``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.marked_cluster import MarkedCluster
from tests.chaos.rounds import (
    Strike,
    Undisturbed,
    check,
    prepared,
    run_round,
    run_undisturbed,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SHORT = range(4)
RUN_BY_MAKE = 4  # in `make test`
LONG = range(RUN_BY_MAKE, 100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MarkedCluster]:
    marked = MarkedCluster()
    try:
        yield marked
    finally:
        marked.close()


@pytest.fixture(scope="module")
def reference(cluster: MarkedCluster, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return run_undisturbed(cluster, prepared(tmp_path_factory.mktemp("reference")))


@pytest.mark.parametrize(
    "seed",
    [
        *SHORT,
        *(pytest.param(seed, marks=[pytest.mark.long, pytest.mark.timeout(3600)]) for seed in LONG),
    ],
)
def test_round(
    cluster: MarkedCluster,
    reference: Undisturbed,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment = prepared(tmp_path)
    strike = Strike.of(seed)
    outcome = run_round(cluster, experiment, strike, reference)
    if not outcome.struck:
        experiment = prepared(tmp_path / "sooner")
        strike = strike.sooner()
        outcome = run_round(cluster, experiment, strike, reference)
        assert outcome.struck, f"{strike}: {outcome}"
    with capsys.disabled():
        print(f"\n{strike}: {outcome}", end=" ", flush=True)
    check(cluster, experiment, strike, outcome, reference)

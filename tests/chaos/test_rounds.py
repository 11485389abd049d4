"""Whoever is killed or stopped, whenever: each measurement is there once and nothing is left. The
engine is emulated.

Ten seeds in `make test`, a hundred in `make chaos` (one of them alone: ``-m 'chaos or long' -k
'round[17]'``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.ground import Ground
from tests.chaos.rounds import Peace, Strike, check, fight, prepared, undisturbed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SHORT = range(10)
LONG = range(10, 100)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    made = Ground()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def peace(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Peace:
    return undisturbed(ground, prepared(tmp_path_factory.mktemp("peace")))


@pytest.mark.parametrize(
    "seed",
    [
        *SHORT,
        *(pytest.param(seed, marks=[pytest.mark.long, pytest.mark.timeout(3600)]) for seed in LONG),
    ],
)
def test_round(
    ground: Ground, peace: Peace, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, strike = prepared(tmp_path), Strike.of(seed)
    told = fight(ground, experiment, strike, peace)
    if not told.hit:
        experiment, strike = prepared(tmp_path / "sooner"), strike.sooner()
        told = fight(ground, experiment, strike, peace)
        assert told.hit, f"{strike}: {told}"
    with capsys.disabled():
        print(f"\n{strike}: {told}", end=" ", flush=True)
    check(ground, experiment, strike, told, peace)

"""A round: a sweep, somebody of it struck at a moment that the seed decides, run again until all is
measured, counted.

The seed is all that is needed to fight a round again:
``pytest -m 'chaos or long' 'tests/chaos/test_rounds.py::test_round[17]'``.
"""

from __future__ import annotations

import collections
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.ground import Ground, kill
from tests.harness import (
    MODEL,
    assert_rows_equal_schedule,
    manifests,
    orchestrator,
    rows,
    start,
    wait_for,
    write_experiment,
)

VICTIMS = ("driver", "engine", "agent", "client", "guard", "raylet", "gcs")
RUN_LIMIT_S = 900.0
TRIES = 4

EXPERIMENT = f"""
version: 1
name: chaos
model: {{id: {MODEL}}}
deployments:
  engine: emulator
  profile: orphan.yaml
  vary: [{{cases: [{{tensor_parallel_size: 1}}, {{tensor_parallel_size: 2, nnodes: 2}}]}}]
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2]}}, requests: 80, warmup: 0s}}
"""
# each engine starts a child in a session of its own that ignores SIGTERM
FILES = {"orphan.yaml": "faults: {orphan: true}\n"}


@dataclass(frozen=True)
class Strike:
    """Who, how, and when: a share of what an undisturbed sweep takes. A SIGSTOP is taken back after
    ``stopped_s``.
    """

    seed: int
    victims: tuple[str, ...]
    stop: bool
    moment: float
    stopped_s: float
    pick: float

    @staticmethod
    def of(seed: int) -> Strike:
        """Seven seeds in a row hit every kind of victim once; in every third seven they are
        stopped, not killed.
        """
        rng = random.Random(seed)
        victims = [VICTIMS[seed % len(VICTIMS)]]
        if rng.random() < 0.2:
            victims.append(rng.choice([one for one in VICTIMS if one not in (*victims, "gcs")]))
        stop = seed // len(VICTIMS) % 3 == 1
        return Strike(
            seed,
            tuple(victims),
            stop,
            rng.uniform(0.02, 0.98),
            rng.choice([0.5, 2, 6, 12, 25]),
            rng.random(),
        )

    @property
    def signal(self) -> int:
        return signal.SIGSTOP if self.stop else signal.SIGKILL

    def sooner(self) -> Strike:
        """For one that came when nobody was there any more: so early that the sweep cannot be over."""
        return replace(self, moment=self.moment / 4)

    def __str__(self) -> str:
        what = f"SIGSTOP for {self.stopped_s:g} s" if self.stop else "SIGKILL"
        return f"CHAOS={self.seed}: {what} to {' and '.join(self.victims)} at {self.moment:.0%}"


@dataclass
class Told:
    """What became of a round."""

    hit: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    commits_then: int = 0
    logs: list[str] = field(default_factory=list)
    folders: int = 0  # work folders of the dead

    def __str__(self) -> str:
        return (
            f"{self.commits_then} committed then, hit: {' and '.join(self.hit) or 'nobody'}, "
            f"statuses {self.statuses}"
        )

    def launches(self) -> set[str]:
        return set(re.findall(r"launch ([0-9A-Z]{26})", "".join(self.logs)))


@dataclass(frozen=True)
class Peace:
    """An undisturbed sweep: when it committed what, in s since its start, when it ended, and what
    it left.
    """

    commits_s: list[float]
    took_s: float
    picture: dict[str, Any]

    def moment(self, share: float) -> tuple[int, float]:
        """A share of its time as commits until then, and seconds since the last of them: a busier
        machine makes a sweep longer, and most of all its starts.
        """
        at_s = share * self.took_s
        before = [one for one in self.commits_s if one <= at_s]
        return len(before), at_s - max([0.0, *before])


def sweep(experiment: Path) -> tuple[str, ...]:
    return ("run", str(experiment), "--results", str(experiment.parent / "results"))


def prepared(folder: Path, text: str = EXPERIMENT) -> Path:
    """An experiment file, and what it needs beside it."""
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return write_experiment(folder, text)


def undisturbed(ground: Ground, experiment: Path) -> Peace:
    """The sweep with nobody struck."""
    ground.stand()
    began_s = time.time()
    done = orchestrator(
        *sweep(experiment), "--address", ground.address, timeout_s=RUN_LIMIT_S, **ground.environment
    )
    took_s = time.time() - began_s
    assert done.returncode == 0, done.stderr
    results = experiment.parent / "results"
    commits_s = sorted(one["created_unix_ns"] / 1e9 - began_s for one in manifests(results))
    return Peace(commits_s, took_s, picture(results))


def picture(results: Path | str) -> dict[str, Any]:
    """Identity and counts of all tables: what two sweeps of one experiment have in common."""
    winners = {
        one["measurement_id"]: one["attempt_id"]
        for one in manifests(results)
        if one["status"] == "ok"
    }
    points = [row for row in rows(results, "points") if row["attempt_id"] in winners.values()]
    requests = [row for row in rows(results, "requests") if row["attempt_id"] in winners.values()]
    head = (
        "measurement_id",
        "point_id",
        "deployment_id",
        "workload",
        "level",
        "repeat",
        "requests_scheduled",
        "emulated",
    )
    return {
        "ok": dict(
            collections.Counter(
                one["measurement_id"] for one in manifests(results) if one["status"] == "ok"
            )
        ),
        "deployments": sorted(row["deployment_id"] for row in rows(results, "deployments")),
        "points": sorted(tuple(str(row[name]) for name in head) for row in points),
        "requests": dict(
            collections.Counter((row["measurement_id"], row["status"]) for row in requests)
        ),
    }


def fight(ground: Ground, experiment: Path, strike: Strike, peace: Peace) -> Told:
    """The sweep, the strike, and the same command until it says that all is measured."""
    ground.stand()
    told, results = Told(), experiment.parent / "results"
    log = experiment.parent / "driver.log"
    driver = start(*sweep(experiment), "--address", ground.address, log=log, **ground.environment)
    try:
        commits, then_s = peace.moment(strike.moment)
        wait_for(
            lambda: len(manifests(results)) >= commits or driver.poll() is not None,
            RUN_LIMIT_S,
            f"{commits}",
        )
        time.sleep(then_s)
        told.commits_then = len(manifests(results))
        told.hit = _hit(ground, strike, lambda: driver.poll() is not None)
        if "raylet" in told.hit and strike.pick < 0.5:
            ground.mend()  # a node that is lost and comes back
        driver.wait(RUN_LIMIT_S)
    finally:
        driver.kill()
        driver.wait(10)
    told.statuses.append(driver.returncode)
    told.logs.append(log.read_text())
    while told.statuses[-1] != 0 and len(told.statuses) <= TRIES:
        ground.stand()
        command = (*sweep(experiment), "--address", ground.address)
        again = orchestrator(*command, timeout_s=RUN_LIMIT_S, **ground.environment)
        told.statuses.append(again.returncode)
        told.logs.append(again.stderr)
    ground.stand()
    return told


def _hit(ground: Ground, strike: Strike, over: Callable[[], bool]) -> list[str]:
    """Who was hit. Whoever is not there yet is waited for: the moment of its birth is as good as
    any.
    """
    hit = []
    for what in strike.victims:
        there = wait_for(partial(_there, ground, what, over), RUN_LIMIT_S, what)
        if there is not True and kill(
            victim := there[int(strike.pick * len(there))], strike.signal
        ):
            hit.append((what, victim))
    if strike.stop and hit:
        time.sleep(strike.stopped_s)
        for _, victim in hit:
            kill(victim, signal.SIGCONT)
    return [what for what, _ in hit]


def _there(ground: Ground, what: str, over: Callable[[], bool]) -> Any:
    return ground.victims(what) or over()


def check(ground: Ground, experiment: Path, strike: Strike, told: Told, peace: Peace) -> None:
    """Each measurement once, tables as those of an undisturbed sweep, a row per request, nothing
    left.
    """
    results = experiment.parent / "results"
    said = (
        f"{strike}; {told.commits_then} committed then; {told.hit} hit; {told.statuses}\n"
        + "\n---\n".join(told.logs)
    )
    print(said)
    assert told.statuses[-1] == 0
    # struck before the driver came
    not_joined = "gcs" in told.hit and "error: no Ray cluster answers" in told.logs[0]
    assert told.statuses[0] in ({2} if not_joined else {0, 1, 3, -signal.SIGKILL})
    assert set(told.statuses[1:-1]) <= {1, 3}
    assert "Traceback" not in "".join(told.logs)
    assert picture(results) == peace.picture
    assert_rows_equal_schedule(results)
    failed = [
        (one["failure_class"], one["reason"])
        for one in manifests(results)
        if one["status"] == "failed"
    ]
    assert all(reason and why != "bad_config" for why, reason in failed), failed
    ground.assert_nothing_left(told.launches())
    folders = ground.folders(told.launches())
    told.folders = len(folders)
    for folder in folders:
        shutil.rmtree(folder)
    # a dead owner's is kept for its log until the next launch of the sweep on that node takes it
    assert not folders or {"driver", "agent", "raylet", "gcs"} & set(told.hit), folders

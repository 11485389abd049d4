"""A round: a sweep of which a process is killed or stopped, run again until all is measured.

The seed decides which process is struck, how and when, so a round is repeated by its seed alone:
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

from tests.chaos.marked_cluster import MarkedCluster, kill
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

ROLES = ("driver", "engine", "agent", "client", "guard", "raylet", "gcs")
RUN_LIMIT_S = 900.0
MOST_RERUNS = 4

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
    """Which processes of a sweep get a signal, and when."""

    seed: int
    roles: tuple[str, ...]  # one process of each is struck
    stop: bool  # SIGSTOP, which ends after ``stopped_s``; else SIGKILL
    moment: float  # as a share of the time that an undisturbed sweep takes
    stopped_s: float
    pick: float  # which of a role's processes, as a share of their number

    @staticmethod
    def of(seed: int) -> Strike:
        """The strike of a seed. Seeds that follow one another strike one role after the other. In
        every third cycle through all roles the processes are stopped, not killed.
        """
        rng = random.Random(seed)
        cycle, role_index = divmod(seed, len(ROLES))
        roles = [ROLES[role_index]]
        if rng.random() < 0.2:
            roles.append(rng.choice([role for role in ROLES if role not in (*roles, "gcs")]))
        return Strike(
            seed=seed,
            roles=tuple(roles),
            stop=cycle % 3 == 1,
            moment=rng.uniform(0.02, 0.98),
            stopped_s=rng.choice([0.5, 2, 6, 12, 25]),
            pick=rng.random(),
        )

    @property
    def signal(self) -> int:
        return signal.SIGSTOP if self.stop else signal.SIGKILL

    def sooner(self) -> Strike:
        """The same strike so early that the sweep cannot be over: for one that came too late."""
        return replace(self, moment=self.moment / 4)

    def __str__(self) -> str:
        what = f"SIGSTOP for {self.stopped_s:g} s" if self.stop else "SIGKILL"
        return f"CHAOS={self.seed}: {what} to {' and '.join(self.roles)} at {self.moment:.0%}"


@dataclass
class Outcome:
    """What happened in a round."""

    struck: list[str] = field(default_factory=list)  # roles whose process was there
    statuses: list[int] = field(default_factory=list)  # of each run of the sweep
    commits_before: int = 0  # measurements that were committed before the strike
    logs: list[str] = field(default_factory=list)  # of each run of the sweep

    def __str__(self) -> str:
        return (
            f"{self.commits_before} committed before, struck: "
            f"{' and '.join(self.struck) or 'nobody'}, statuses {self.statuses}"
        )

    def launches(self) -> set[str]:
        return set(re.findall(r"launch ([0-9A-Z]{26})", "".join(self.logs)))


@dataclass(frozen=True)
class Undisturbed:
    """A sweep of which no process was struck, for comparison."""

    commits_s: list[float]  # times of its commits since its start
    took_s: float
    tables: dict[str, Any]  # see ``comparable_tables``

    def moment(self, share: float) -> tuple[int, float]:
        """A share of its time, as a number of commits and the seconds since the last of them.

        On a busier machine a sweep takes longer, most of all to start; after a commit it is where
        the undisturbed one was.
        """
        at_s = share * self.took_s
        commits_before_s = [commit_s for commit_s in self.commits_s if commit_s <= at_s]
        return len(commits_before_s), at_s - max([0.0, *commits_before_s])


def sweep_arguments(experiment: Path) -> tuple[str, ...]:
    """The command that runs an experiment, without the cluster's address."""
    return ("run", str(experiment), "--results", str(experiment.parent / "results"))


def prepared(folder: Path, text: str = EXPERIMENT) -> Path:
    """An experiment file in a folder, with the files that it names beside it."""
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return write_experiment(folder, text)


def run_undisturbed(cluster: MarkedCluster, experiment: Path) -> Undisturbed:
    """Run the sweep, with no process struck."""
    cluster.ensure_complete()
    began_s = time.time()
    completed = orchestrator(
        *sweep_arguments(experiment),
        *("--address", cluster.address),
        timeout_s=RUN_LIMIT_S,
        **cluster.environment,
    )
    took_s = time.time() - began_s
    assert completed.returncode == 0, completed.stderr
    results = experiment.parent / "results"
    commits_s = sorted(
        manifest["created_unix_ns"] / 1e9 - began_s for manifest in manifests(results)
    )
    return Undisturbed(commits_s, took_s, comparable_tables(results))


def comparable_tables(results: Path | str) -> dict[str, Any]:
    """What the tables of any two sweeps of one experiment have in common: identities and counts."""
    succeeded = [manifest for manifest in manifests(results) if manifest["status"] == "ok"]
    attempts = {manifest["attempt_id"] for manifest in succeeded}
    points = [row for row in rows(results, "points") if row["attempt_id"] in attempts]
    requests = [row for row in rows(results, "requests") if row["attempt_id"] in attempts]
    identity = (
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
        "ok": dict(collections.Counter(manifest["measurement_id"] for manifest in succeeded)),
        "deployments": sorted(row["deployment_id"] for row in rows(results, "deployments")),
        "points": sorted(tuple(str(row[name]) for name in identity) for row in points),
        "requests": dict(
            collections.Counter((row["measurement_id"], row["status"]) for row in requests)
        ),
    }


def run_round(
    cluster: MarkedCluster, experiment: Path, strike: Strike, reference: Undisturbed
) -> Outcome:
    """Run the sweep, strike, and run the same command until it reports that all is measured."""
    cluster.ensure_complete()
    outcome = Outcome()
    results = experiment.parent / "results"
    log = experiment.parent / "driver.log"
    arguments = (*sweep_arguments(experiment), "--address", cluster.address)
    driver = start(*arguments, log=log, **cluster.environment)
    try:
        commits, since_commit_s = reference.moment(strike.moment)
        wait_for(
            lambda: len(manifests(results)) >= commits or driver.poll() is not None,
            RUN_LIMIT_S,
            f"{commits} commits",
        )
        time.sleep(since_commit_s)
        outcome.commits_before = len(manifests(results))
        outcome.struck = _strike(cluster, strike, lambda: driver.poll() is not None)
        if "raylet" in outcome.struck and strike.pick < 0.5:
            cluster.replace_dead_nodes()  # else the node stays away until the next run
        driver.wait(RUN_LIMIT_S)
    finally:
        driver.kill()
        driver.wait(10)
    outcome.statuses.append(driver.returncode)
    outcome.logs.append(log.read_text())
    while outcome.statuses[-1] != 0 and len(outcome.statuses) <= MOST_RERUNS:
        cluster.ensure_complete()
        arguments = (*sweep_arguments(experiment), "--address", cluster.address)
        again = orchestrator(*arguments, timeout_s=RUN_LIMIT_S, **cluster.environment)
        outcome.statuses.append(again.returncode)
        outcome.logs.append(again.stderr)
    cluster.ensure_complete()
    return outcome


def _strike(cluster: MarkedCluster, strike: Strike, is_over: Callable[[], bool]) -> list[str]:
    """Strike a process of each role. Returns the roles whose process was there.

    If a role has no process yet, its first one is waited for, and struck as it starts.
    """
    struck = {}
    for role in strike.roles:
        wait_for(partial(_exists_or_over, cluster, role, is_over), RUN_LIMIT_S, role)
        processes = cluster.processes_of(role)
        if not processes:
            continue
        process = processes[int(strike.pick * len(processes))]
        if kill(process, strike.signal):
            struck[role] = process
    if strike.stop and struck:
        time.sleep(strike.stopped_s)
        for process in struck.values():
            kill(process, signal.SIGCONT)
    return list(struck)


def _exists_or_over(cluster: MarkedCluster, role: str, is_over: Callable[[], bool]) -> bool:
    return bool(cluster.processes_of(role)) or is_over()


def check(
    cluster: MarkedCluster,
    experiment: Path,
    strike: Strike,
    outcome: Outcome,
    reference: Undisturbed,
) -> None:
    """Every measurement is there once, tables are those of an undisturbed sweep, every request has
    a row, and nothing is left.
    """
    results = experiment.parent / "results"
    print(f"{strike}; {outcome}\n" + "\n---\n".join(outcome.logs))
    assert outcome.statuses[-1] == 0
    first_statuses = {0, 1, 3, -signal.SIGKILL}
    if "gcs" in outcome.struck and "error: no Ray cluster answers" in outcome.logs[0]:
        first_statuses = {2}  # the GCS was struck before the driver had joined the cluster
    assert outcome.statuses[0] in first_statuses
    assert set(outcome.statuses[1:-1]) <= {1, 3}
    assert "Traceback" not in "".join(outcome.logs)
    assert comparable_tables(results) == reference.tables
    assert_rows_equal_schedule(results)
    failures = [
        (manifest["failure_class"], manifest["reason"])
        for manifest in manifests(results)
        if manifest["status"] == "failed"
    ]
    assert all(reason and kind != "bad_config" for kind, reason in failures), failures
    cluster.assert_nothing_left(outcome.launches())
    folders = cluster.work_folders(outcome.launches())
    for folder in folders:
        shutil.rmtree(folder)
    # the folder of a dead owner is kept for its log until the sweep's next launch on the node
    assert not folders or {"driver", "agent", "raylet", "gcs"} & set(outcome.struck), folders

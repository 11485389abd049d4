"""clusters/slurm.sbatch on a Slurm of two nodes on this machine: Debian's own daemons, with devices
that are files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import (
    MODEL,
    ROOT,
    assert_rows_equal_schedule,
    environment,
    free_port,
    manifests,
    only_disturbed,
    rows,
    wait_for,
    write_experiment,
)

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
MISSING = [
    name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        bool(MISSING) or os.geteuid() != 0, reason=f"NOT RUN: Slurm needs root and {MISSING}"
    ),
]
SBATCH = ROOT / "clusters" / "slurm.sbatch"
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
GresTypes=gpu
MinJobAge=300
NodeName=DEFAULT CPUs={cpus} RealMemory=2000 Gres=gpu:h100:8
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}]
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SWEEP = f"""
version: 1
name: small
model: {{id: {MODEL}}}
deployments:
  engine: emulator
  hardware: cpu
  vary: [{{cases: [{{tensor_parallel_size: 1}}, {{tensor_parallel_size: 2, nnodes: 2}}]}}]
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: LEVELS}}, duration: DURATION, warmup: 0s}}
"""


class Slurm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ray_port = free_port()
        self.env = environment(
            SLURM_CONF=str(folder / "slurm.conf"), PYTHON=sys.executable, RAY_PORT=str(self.ray_port),
            RAY_TMPDIR=str(folder), PATH=f"{os.environ['PATH']}:/usr/sbin", HF_HUB_OFFLINE="1",
        )  # fmt: skip
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}.log").open("ab") as log:
            self.daemons.append(
                subprocess.Popen(argv, env=self.env, stdout=log, stderr=log, cwd=self.folder)
            )

    def ask(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def state(self, job: str) -> str:
        said = self.ask("scontrol", "show", "job", job).stdout
        return next(
            (word.partition("=")[2] for word in said.split() if word.startswith("JobState=")), said
        )

    def wait(self, job: str, state: str, limit_s: float) -> None:
        """Until the job is in it; a job that failed for nothing but a busy machine has completed."""
        end = time.monotonic() + limit_s
        while (now := self.state(job)) != state:
            if now == "FAILED" and only_disturbed(self.logs()):
                return
            assert time.monotonic() < end and now not in {"FAILED", "TIMEOUT"} - {state}, (
                f"{now}\n{self.logs()}"
            )
            time.sleep(0.5)

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}:\n{path.read_text()[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(
        prefix="orch-sl-", dir="/tmp", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        made = Slurm(folder)
        (folder / "state").mkdir()
        ports = [free_port(), first := free_port(2), first + 1]
        host = socket.gethostname().partition(".")[0]
        conf = CONF.format(host=host, ports=ports, folder=folder, cpus=os.cpu_count())
        (folder / "slurm.conf").write_text(conf)
        for number in range(8):
            (folder / f"g{number}").touch()
        (folder / "gres.conf").write_text(
            f"NodeName=n[1-2] Name=gpu Type=h100 File={folder}/g[0-7]\n"
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {
            "socket": "munge.socket",
            "key-file": "munge.key",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
        }
        made.start(
            "munged",
            "--foreground",
            "--force",
            "--log-file=/dev/stdout",
            *(f"--{k}={folder}/{v}" for k, v in files.items()),
        )
        try:
            wait_for(lambda: (folder / "munge.socket").exists(), 20, f"munged is up: {made.logs()}")
            made.start("slurmctld", "-D")
            for node in ("n1", "n2"):
                made.start("slurmd", "-D", "-N", node)

            def idle() -> bool:
                states = made.ask("sinfo", "-h", "-N", "-o", "%T").stdout.split()
                return states == ["idle", "idle"]

            try:
                wait_for(idle, 60, "two nodes are idle")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{made.logs()}") from None
            yield made
        finally:
            # a job of a test that failed would outlive its daemons
            made.ask("scancel", "--user=root")
            with suppress(AssertionError):
                wait_for(lambda: not made.ask("squeue", "-h").stdout.strip(), 40, "no job is left")
            for daemon in reversed(made.daemons):
                daemon.terminate()
            for daemon in made.daemons:
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


def submit(slurm: Slurm, duration: str, levels: list[int], results: Path) -> str:
    text = SWEEP.replace("DURATION", duration).replace("LEVELS", str(levels))
    experiment = write_experiment(slurm.folder, text)
    done = slurm.ask("sbatch", "--parsable", str(SBATCH), str(experiment), str(results))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_slurm_takes_the_file_and_refuses_broken_ones(slurm: Slurm) -> None:
    ask = ("sbatch", "--test-only")
    assert slurm.ask(*ask, str(SBATCH), "sweep.yaml", "results").returncode == 0
    assert (
        slurm.ask(*ask, "--gres=gpu:h200:8", str(SBATCH), "sweep.yaml", "results").returncode != 0
    )
    assert slurm.ask(*ask, "--nodes=20", str(SBATCH), "sweep.yaml", "results").returncode != 0
    broken = slurm.folder / "broken.sbatch"
    broken.write_text(SBATCH.read_text().replace("--requeue", "--requeeu"))
    assert slurm.ask(*ask, str(broken), "sweep.yaml", "results").returncode != 0


def test_a_job_over_two_slurm_nodes_measures_a_sweep(slurm: Slurm) -> None:
    results = slurm.folder / "results"
    job = submit(slurm, "1s", [2], results)
    slurm.wait(job, "COMPLETED", 240)
    assert len({one["measurement_id"] for one in manifests(results) if one["status"] == "ok"}) == 2
    assert_rows_equal_schedule(results)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_job_that_is_told_of_its_end_goes_back_to_the_queue_and_continues(slurm: Slurm) -> None:
    results = slurm.folder / "cut"
    job = submit(slurm, "10s", [2, 3, 4], results)
    wait_for(lambda: manifests(results), 120, f"the first measurement: {slurm.logs()}")
    time.sleep(2)
    slurm.ask("scancel", "--signal=TERM", "--batch", job)
    slurm.wait(job, "PENDING", 60)
    before = [one["status"] for one in manifests(results)]
    assert before == ["ok"] * 2, "the point under way was not left to end"
    # within the second in which it was queued again its credential counts as revoked, and the job
    # fails
    time.sleep(5)
    # a job that was queued again waits two minutes
    slurm.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    slurm.wait(job, "COMPLETED", 200)
    ok = [one["measurement_id"] for one in manifests(results) if one["status"] == "ok"]
    assert len(ok) == len(set(ok)) == 6
    assert "all nodes are being taken back" in (slurm.folder / f"sweep-{job}.log").read_text(), (
        slurm.logs()
    )
    assert "preempted" in {row["failure_kind"] for row in rows(results, "launches")}

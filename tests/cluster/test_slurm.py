"""clusters/slurm.sbatch on a Slurm of two nodes on this machine, with Debian's daemons and with files
in place of GPUs.
"""

from __future__ import annotations

import os
import shlex
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

from tests.documentation.blocks import blocks_run_by
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
from tests.in_this_process import run_here

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
    """Slurm's daemons with their files in one folder."""

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

    def shell(self, line: str) -> str:
        """What a line of a shell prints, which must succeed."""
        completed = self.ask("bash", "-c", line)
        assert completed.returncode == 0, f"{line}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def state(self, job: str) -> str:
        """The state of a job; all that ``scontrol`` prints if it names none."""
        text = self.ask("scontrol", "show", "job", job).stdout
        states = [word.partition("=")[2] for word in text.split() if word.startswith("JobState=")]
        return states[0] if states else text

    def wait(self, job: str, state: str, limit_s: float) -> None:
        """Waits until a job is in a state. A job that failed only because this machine was busy counts
        as completed.
        """
        end_s = time.monotonic() + limit_s
        while (current := self.state(job)) != state:
            if current == "FAILED" and only_disturbed(self.logs()):
                return
            is_over = current in {"FAILED", "TIMEOUT"} - {state}
            assert time.monotonic() < end_s and not is_over, f"{current}\n{self.logs()}"
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
        new_slurm = Slurm(folder)
        (folder / "state").mkdir()
        controller_port = free_port()
        node_port = free_port(2)
        ports = [controller_port, node_port, node_port + 1]
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
        new_slurm.start(
            "munged",
            "--foreground",
            "--force",
            "--log-file=/dev/stdout",
            *(f"--{option}={folder}/{name}" for option, name in files.items()),
        )
        try:
            wait_for(
                lambda: (folder / "munge.socket").exists(), 20, f"munged is up: {new_slurm.logs()}"
            )
            new_slurm.start("slurmctld", "-D")
            for node in ("n1", "n2"):
                new_slurm.start("slurmd", "-D", "-N", node)

            def idle() -> bool:
                states = new_slurm.ask("sinfo", "-h", "-N", "-o", "%T").stdout.split()
                return states == ["idle", "idle"]

            try:
                wait_for(idle, 60, "two nodes are idle")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{new_slurm.logs()}") from None
            yield new_slurm
        finally:
            # else the job of a test that failed would outlive its daemons
            new_slurm.ask("scancel", "--user=root")
            with suppress(AssertionError):
                wait_for(
                    lambda: not new_slurm.ask("squeue", "-h").stdout.strip(), 40, "no job is left"
                )
            for daemon in reversed(new_slurm.daemons):
                daemon.terminate()
            for daemon in new_slurm.daemons:
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


def sweep(duration: str, levels: list[int]) -> str:
    return SWEEP.replace("DURATION", duration).replace("LEVELS", str(levels))


def program(line: str) -> str:
    """What a line of the page prints that is a command of this program, which must succeed."""
    _, *argv = shlex.split(line, comments=True)
    done = run_here(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(slurm: Slurm, duration: str, levels: list[int], results: Path) -> str:
    """The id of a new job that runs the sweep."""
    experiment = write_experiment(slurm.folder, sweep(duration, levels))
    completed = slurm.ask("sbatch", "--parsable", str(SBATCH), str(experiment), str(results))
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def measured(results: Path) -> list[str]:
    """The ids of successful measurements, in the order of their manifests."""
    return [
        manifest["measurement_id"] for manifest in manifests(results) if manifest["status"] == "ok"
    ]


def test_slurm_takes_the_file_and_refuses_broken_ones(slurm: Slurm) -> None:
    broken = slurm.folder / "broken.sbatch"
    broken.write_text(SBATCH.read_text().replace("--requeue", "--requeeu"))

    def accepts(*words: str) -> bool:
        completed = slurm.ask("sbatch", "--test-only", *words, "sweep.yaml", "results")
        return completed.returncode == 0

    assert accepts(str(SBATCH))
    assert not accepts("--gres=gpu:h200:8", str(SBATCH))
    assert not accepts("--nodes=20", str(SBATCH))
    assert not accepts(str(broken))


def test_the_job_of_the_page_measures_over_two_nodes_until_it_is_stopped(slurm: Slurm) -> None:
    results = slurm.folder / "results"
    text = sweep("1s", list(range(2, 60))).replace("{tensor_parallel_size: 1}, ", "")
    write_experiment(slurm.folder, text, name="sweep.yaml")
    (slurm.folder / "clusters").symlink_to(SBATCH.parent)
    (block,) = blocks_run_by(__file__, "docs/guides/slurm.md")
    here = block.text.replace("/shared/orchestrator/bin/python", sys.executable)
    lines = here.replace("/shared/sweeps", str(results)).splitlines()
    submit_line, queue_line, status_line, _, stop_line = lines
    job = slurm.shell(submit_line).removeprefix("Submitted batch job ").strip()
    wait_for(lambda: measured(results), 240, "a point over both nodes is measured")
    assert job in slurm.shell(queue_line)
    assert "running" in program(status_line)
    program(stop_line)
    slurm.wait(job, "FAILED", 60)  # it is not queued again
    assert_rows_equal_schedule(results)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_job_with_notice_of_its_end_goes_back_to_the_queue_and_continues(slurm: Slurm) -> None:
    results = slurm.folder / "cut"
    job = submit(slurm, "10s", [2, 3, 4], results)
    wait_for(lambda: manifests(results), 120, f"the first measurement: {slurm.logs()}")
    time.sleep(2)
    slurm.ask("scancel", "--signal=TERM", "--batch", job)
    slurm.wait(job, "PENDING", 60)
    statuses = [manifest["status"] for manifest in manifests(results)]
    assert statuses == ["ok"] * 2, "the running point was not measured to its end"
    # If a job starts within the second in which it was queued again, its credential counts as
    # revoked, and it fails.
    time.sleep(5)
    # by default a job that was queued again waits two minutes
    slurm.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    slurm.wait(job, "COMPLETED", 200)
    assert len(measured(results)) == len(set(measured(results))) == 6
    assert "all nodes are being taken back" in (slurm.folder / f"sweep-{job}.log").read_text(), (
        slurm.logs()
    )
    assert "preempted" in {row["failure_kind"] for row in rows(results, "launches")}

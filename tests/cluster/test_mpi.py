"""TensorRT-LLM's ranks on two hosts of their own, started by the real mpirun; stand-ins serve."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, Hosts, why_not
from tests.harness import wait_for

WHY_NOT = why_not() or (None if shutil.which("mpirun") else "no mpirun here: install Open MPI")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(WHY_NOT), reason=f"NOT RUN: {WHY_NOT}")]
DAEMON = "orted|prted"
KEY, PORT, LIMIT_S = "k3y-of-this-launch", 21077, 20.0
# Its own variables, as the launcher of the ranks sees them; all but the first wait for ever.
LAUNCHER = """#!/bin/sh
echo "rank $OMPI_COMM_WORLD_RANK has $CUDA_VISIBLE_DEVICES on $(hostname), TMPDIR=$TMPDIR."
[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec "$@"
exec tail -f /dev/null
"""
SERVER = f"""#!{sys.executable}
import http.server, sys
http.server.ThreadingHTTPServer((sys.argv[3], int(sys.argv[5])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
OWNER = """
import os, sys, tempfile
from pathlib import Path
from orchestrator.engines import ENGINES
from orchestrator.engines.command import Node
from orchestrator.node.process import EngineProcess
from orchestrator.spec.settings import EngineSettings, Hardware

rank, host, first, folder, port = sys.argv[1:]
where = tempfile.mkdtemp(prefix="work-")
settings = EngineSettings(engine="tensorrt_llm", model="m", tensor_parallel_size=4, nnodes=2, executable=folder)
places = {"port": int(port), "master_host": first, "master_port": int(port) + 1, "workdir": where}
devices = ("0", "1") if rank == "0" else ("4", "5")
given = {"launch_id": "01TEST", "replica_key": input()}
node = Node(rank=int(rank), host=host, bind=host, devices=devices, **places, **given)
os.environ["TMPDIR"] = f"/tmp/own-{rank}"
made = ENGINES["tensorrt_llm"].command(settings, Hardware(name="h", accelerator="H100-80GB"), node, "")
process = EngineProcess(made, Path(where), "01TEST", grace_s=8.0)
process.start()
print(os.getpid(), process.log_path, flush=True)
input()
print(process.stop().left_over, flush=True)
"""


class Rank:
    """The owner of a rank's process, and where its log lies on its host."""

    def __init__(self, hosts: Hosts, rank: int) -> None:
        host, first = hosts.hosts[rank], hosts.hosts[0].address
        words = (str(rank), host.address, first, str(hosts.shared / "venv"), str(PORT))
        argv, pipe = host.argv(sys.executable, "-c", OWNER, *words), subprocess.PIPE
        self.host, self.process = host, subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self.say(KEY)
        self.pid, self._log = self.process.stdout.readline().split()

    def say(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def log(self) -> str:
        return self.host.run("cat", self._log).stdout

    def kill(self, name: str) -> None:
        """SIGKILL to what has this name on its host, or to the owner."""
        pids = (
            [self.pid]
            if name == "owner"
            else self.host.run("pgrep", "--exact", name).stdout.split()
        )
        assert pids, f"no {name}"
        self.host.run("kill", "-9", *pids)

    def traces(self) -> str:
        """Processes, and files in /tmp and /dev/shm, that are not those of every host or in the
        launch's folder.
        """
        known = r"/tmp/orchestrator-|^/tmp/?$|^/dev/shm/?$|" + str(Path(self._log).parent)
        files = self.host.run("sh", "-c", 'find /tmp /dev/shm | grep -vE "$0"', known).stdout
        return files + " ".join(self.host.processes())


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    """Both ranks' processes, once all four ranks said what they have and the first serves."""
    with Hosts(2, ray=False) as hosts:
        (programs := hosts.shared / "venv" / "bin").mkdir(parents=True)
        (programs / "python3").symlink_to(Path(sys.executable).resolve())
        for name, text in (("trtllm-llmapi-launch", LAUNCHER), ("trtllm-serve", SERVER)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        made = [Rank(hosts, rank) for rank in (0, 1)]
        wait_for(lambda: made[0].log().count(", TMPDIR=") == 4, LIMIT_S, "all ranks run")
        yield made
        for one in made:
            one.process.kill()
            one.process.communicate()


def answers(host: Host, address: str) -> bool:
    code = f"from orchestrator.base.http import ask; exit(ask('http://{address}:{PORT}').status != 200)"
    return not host.run(sys.executable, "-c", code).returncode


def test_its_ranks_have_their_own_nodes_devices_serve_and_end_without_a_trace(
    ranks: list[Rank],
) -> None:
    first, second = ranks
    said = first.log()
    for rank, (devices, host) in enumerate([("0,1", first.host)] * 2 + [("4,5", second.host)] * 2):
        assert f"rank {rank} has {devices} on {host.name}, TMPDIR=/tmp/own-{rank // 2}." in said
    wait_for(lambda: answers(second.host, first.host.address), LIMIT_S, "it serves")
    lines = [one.host.run("sh", "-c", "cat /proc/[0-9]*/cmdline").stdout for one in ranks]
    assert "trtllm-serve" in lines[0] and "mpi_ranks.py" in lines[1]
    assert KEY not in "".join(lines)
    for one in ranks:
        one.say("stop")
        assert one.process.stdout.readline() == "()\n"
        assert one.traces() == ""


@pytest.mark.parametrize(
    ("rank", "name"), [(1, "tail"), (0, "mpirun|prterun"), (1, DAEMON), (0, "owner"), (1, "owner")]
)
def test_whatever_is_killed_all_ranks_end_on_both_hosts_without_a_trace(
    ranks: list[Rank], rank: int, name: str
) -> None:
    ranks[rank].kill(name)
    wait_for(lambda: ranks[0].traces() == "", LIMIT_S, "nothing is left of rank 0")
    # then the driver stops the others; these ranks make no call of MPI that would fail
    if name == DAEMON:
        ranks[1].say("stop")
    wait_for(lambda: ranks[1].traces() == "", LIMIT_S, "nothing is left of the others")

"""Ranks of an MPI program on several nodes: who gets which command. With a stand-in for mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psutil import Process

from orchestrator.engines import mpi_ranks
from tests.harness import environment, wait_for
from tests.integration.test_engine_process import LIMIT_S

FIRST = "127.0.0.1"
# It asks for its daemons as Open MPI does, the last one first. Each leaves a process behind and ends with a status.
MPIRUN = f"""#!{sys.executable}
import os, subprocess, sys
shell = os.environ["OMPI_MCA_plm_rsh_agent"].split()
assert shell == os.environ["PRTE_MCA_plm_ssh_agent"].split()
for host, slots in reversed([word.split(":") for word in sys.argv[sys.argv.index("--host") + 1].split(",")[1:]]):
    words = ["export SLOTS=" + slots, ";", 'echo "$WHERE $SLOTS $SLURM_PROCID" >> "$SAID";']
    subprocess.run([*shell, host, *words, "(sleep 0.5; echo over >> $SAID) & exit 3"], check=True)
print(*sys.argv[1:])
"""


class Nodes:
    """Nodes that differ in their address, each with a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 21000 + os.getpid() % 9000
        self.started: list[subprocess.Popen[str]] = []
        (folder / "mpirun").write_text(MPIRUN)
        (folder / "mpirun").chmod(0o755)

    def start(self, rank: int, address: str, nodes: int, key: str = "k3y") -> subprocess.Popen[str]:
        (where := self.folder / f"{rank}-{address}").mkdir()
        env = environment(
            PATH=f"{self.folder}:{os.environ['PATH']}", WHERE=address, SAID=str(where / "said"), SLURM_PROCID="7",
            **{mpi_ranks.KEY_VARIABLE: key},
        )  # fmt: skip
        words = [str(rank), address, FIRST, str(self.port), str(nodes), "8", "serve", "a model"]
        argv = [sys.executable, mpi_ranks.__file__, *words]
        out = subprocess.PIPE
        self.started.append(subprocess.Popen(argv, env=env, cwd=where, stdout=out, stderr=out, text=True))
        return self.started[-1]

    def said(self, rank: int, address: str) -> str:
        return (self.folder / f"{rank}-{address}" / "said").read_text()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for one in made.started:
        one.kill()
        one.communicate()


def test_every_node_runs_what_mpirun_has_for_it_and_ends_with_the_last_process_of_that(nodes: Nodes) -> None:
    last, first = nodes.start(2, "127.0.0.3", 3), nodes.start(0, FIRST, 3)  # the one begins before the other listens
    wait_for(lambda: [one for one in Process(last.pid).net_connections() if one.status == "ESTABLISHED"], LIMIT_S, "")
    second = nodes.start(1, "127.0.0.2", 3)  # after the last one
    said, _ = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0
    assert said.startswith("-n 24 ")
    assert "--host 127.0.0.1:8,127.0.0.2:8,127.0.0.3:8 env " in said
    assert said.endswith(" serve a model\n")
    for rank, node in ((1, second), (2, last)):
        assert node.wait(LIMIT_S) == 3
        address = f"127.0.0.{rank + 1}"
        assert nodes.said(rank, address) == f"{address} 8 \nover\n", "its own environment, and none of a batch job"


def test_whoever_does_not_know_the_key_is_told_nothing(nodes: Nodes) -> None:
    first, stranger = nodes.start(0, FIRST, 2), nodes.start(1, "127.0.0.9", 2, key="other")
    assert "AuthenticationError" in stranger.communicate(timeout=LIMIT_S)[1]
    assert first.poll() is None, "it still waits for its own"
    nodes.start(1, "127.0.0.2", 2)
    assert "127.0.0.9" not in first.communicate(timeout=LIMIT_S)[0]


def test_two_nodes_with_one_address_are_refused_with_the_reason_and_the_other_node_ends(nodes: Nodes) -> None:
    first, second = nodes.start(0, FIRST, 2), nodes.start(1, FIRST, 2)
    assert "these are 127.0.0.1, 127.0.0.1" in first.communicate(timeout=LIMIT_S)[1]
    assert "ended before it started the ranks here" in second.communicate(timeout=LIMIT_S)[1]

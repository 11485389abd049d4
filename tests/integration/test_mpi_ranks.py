"""Ranks of an MPI program on several nodes: who gets which command. With a stand-in for mpirun."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from psutil import Process

from orchestrator.engines import mpi_ranks
from tests.harness import environment, wait_for

FIRST, LIMIT_S = "127.0.0.1", 60.0
# It asks for its daemons as Open MPI does, the last one first. Each leaves a rank behind and ends
# in its own way.
MPIRUN = f"""#!{sys.executable}
import os, shlex, subprocess, sys
shell = os.environ["OMPI_MCA_plm_rsh_agent"].split()
assert shell == os.environ["PRTE_MCA_plm_ssh_agent"].split()
at = sys.argv.index("--host") + 2
for host, slots in reversed([word.split(":") for word in sys.argv[at - 1].split(",")[1:]]):
    words = ["export SLOTS=" + slots, ";", "(sleep 0.5;", shlex.join(sys.argv[at:]) + ")", '& eval "$END"']
    subprocess.run([*shell, host, *words], check=True)
print(*sys.argv[1:at], flush=True)
os.execvp(sys.argv[at], sys.argv[at:])
"""
SERVE = f"""#!/bin/sh
echo "$@, $WHERE $SLOTS $SLURM_PROCID ${mpi_ranks.KEY_VARIABLE} ${{TMPDIR-none}}." >> "$SAID"
"""


class Nodes:
    """Nodes that differ in their address, each with a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 21000 + os.getpid() % 9000
        self.started: list[subprocess.Popen[str]] = []
        for name, text in (("mpirun", MPIRUN), ("serve", SERVE)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(
        self, rank: int, address: str, nodes: int, *, port: int = 0, **env: str
    ) -> subprocess.Popen[str]:
        (where := self.folder / f"{rank}-{address}").mkdir()
        env = environment(
            WHERE=address, SAID=str(where / "said"), SLURM_PROCID="7",
            **({"PATH": f"{self.folder}:{os.environ['PATH']}", "TMPDIR": "", "END": "exit 3",
                mpi_ranks.KEY_VARIABLE: "k3y"} | env),
        )  # fmt: skip
        words = [
            str(rank),
            address,
            FIRST,
            str(port or self.port),
            str(nodes),
            "8",
            "serve",
            "a model",
        ]
        argv = [sys.executable, mpi_ranks.__file__, *words]
        out = subprocess.PIPE
        self.started.append(
            subprocess.Popen(argv, env=env, cwd=where, stdout=out, stderr=out, text=True)
        )
        return self.started[-1]

    def lead(self, nodes: int, **env: str) -> subprocess.Popen[str]:
        """Rank 0's node, once it listens."""
        first = self.start(0, FIRST, nodes, **env)
        wait_for(self.connected, LIMIT_S, "it listens").close()
        return first

    def connected(self) -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((FIRST, self.port), LIMIT_S)
        return None

    def said(self, rank: int, address: str) -> str:
        said = self.folder / f"{rank}-{address}" / "said"
        return said.read_text() if said.exists() else ""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for one in made.started:
        one.kill()
        one.communicate()


def test_every_node_runs_what_mpirun_has_for_it_and_ends_with_the_last_process_of_that(
    nodes: Nodes,
) -> None:
    # the one begins before the other listens
    last, first = nodes.start(2, "127.0.0.3", 3), nodes.start(0, FIRST, 3)
    wait_for(
        lambda: [one for one in Process(last.pid).net_connections() if one.status == "ESTABLISHED"],
        LIMIT_S,
        "",
    )
    second = nodes.start(1, "127.0.0.2", 3)  # after the last one
    said, _ = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0
    assert (
        said
        == "-n 24 --allow-run-as-root --bind-to none --map-by slot --host 127.0.0.1:8,127.0.0.2:8,127.0.0.3:8\n"
    )
    for rank, node in ((1, second), (2, last)):
        assert node.wait(LIMIT_S) == 3
        address = f"127.0.0.{rank + 1}"
        assert nodes.said(rank, address) == f"a model, {address} 8   none.\n", (
            "its own environment, and no batch job's"
        )


def test_ranks_have_their_own_nodes_folder_for_temporary_files(nodes: Nodes) -> None:
    folders = ("/a", "/b", "")
    for one in [
        nodes.start(rank, f"127.0.0.{rank + 1}", 3, TMPDIR=folder)
        for rank, folder in enumerate(folders)
    ]:
        one.communicate(timeout=LIMIT_S)
    said = [nodes.said(rank, f"127.0.0.{rank + 1}").split()[-1] for rank in range(3)]
    assert said == ["/a.", "/b.", "none."]


def test_a_killed_daemon_ends_its_node_as_a_shell_says_it(nodes: Nodes) -> None:
    nodes.start(0, FIRST, 2)
    assert nodes.start(1, "127.0.0.2", 2, END="kill -9 $$").wait(LIMIT_S) == 128 + 9


def test_without_mpirun_it_says_so_at_once(nodes: Nodes) -> None:
    assert nodes.start(0, FIRST, 2, PATH="/nowhere").communicate(timeout=LIMIT_S)[1] == (
        "no mpirun in PATH: install Open MPI on every node\n"
    )


def test_who_does_not_know_the_key_is_told_nothing(nodes: Nodes) -> None:
    first = nodes.lead(2)
    with pytest.raises(PermissionError, match="no proof of the key"):
        asyncio.run(mpi_ranks.ask(b"other", FIRST, nodes.port, "1", "127.0.0.9"))
    with nodes.connected() as stranger:  # does not ask for a proof, and has none
        stranger.sendall(32 * b"n" + 64 * b"0" + b'["1", "127.0.0.9"]\n')
        said = b"".join(iter(lambda: stranger.recv(4096), b""))
        assert len(said) == 32 + 64 + len("[]\n"), "its nonce and that it is the leader"
    nodes.start(1, "127.0.0.2", 2)
    assert "--host 127.0.0.1:8,127.0.0.2:8" in first.communicate(timeout=LIMIT_S)[0]


def test_connections_that_say_nothing_or_too_much_hold_nobody_up(nodes: Nodes) -> None:
    first = nodes.lead(2)
    silent = [nodes.connected() for _ in range(20)]
    silent[0].sendall(b"n")
    silent[1].sendall(32 * b"n" + 100_000 * b"x")
    nodes.start(1, "127.0.0.2", 2)
    first.communicate(timeout=LIMIT_S)
    nodes.started[-1].communicate(timeout=LIMIT_S)
    assert nodes.said(1, "127.0.0.2").startswith("a model")
    for one in silent:
        one.close()


def test_a_leader_ends_a_silent_connection(nodes: Nodes) -> None:
    code = "import sys; sys.path.append(sys.argv.pop(1)); import mpi_ranks as m; m.LIMIT_S = 0.1; m.main(sys.argv[1:])"
    words = [
        str(Path(mpi_ranks.__file__).parent),
        "0",
        FIRST,
        FIRST,
        str(nodes.port),
        "2",
        "8",
        "serve",
    ]
    env = environment(
        PATH=f"{nodes.folder}:{os.environ['PATH']}", **{mpi_ranks.KEY_VARIABLE: "k3y"}
    )
    nodes.started.append(
        subprocess.Popen([sys.executable, "-c", code, *words], env=env, stderr=subprocess.PIPE)
    )
    with wait_for(nodes.connected, LIMIT_S, "it listens") as silent:
        assert len(b"".join(iter(lambda: silent.recv(4096), b""))) == 32, "a nonce, then the end"


def test_a_node_does_not_wait_for_a_silent_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_ranks, "LIMIT_S", 0.1)

    async def ended() -> BaseException | None:
        call = asyncio.create_task(mpi_ranks.ask(b"k", *silent.getsockname(), "1", "h"))
        done, _ = await asyncio.wait([call], timeout=LIMIT_S / 4)
        return call.exception() if done else None

    with socket.create_server((FIRST, 0)) as silent:
        assert isinstance(asyncio.run(ended()), TimeoutError)


# what the node said, what the leader answered -> what the node gets
Answer = Callable[[bytes, bytes], bytes]
ATTACKS: dict[str, Answer] = {
    "another command": lambda said, answer: (
        answer[:64] + json.dumps(["echo stolen >> $SAID"]).encode() + b"\n"
    ),
    "its own words": lambda said, answer: said,
    "none": lambda said, answer: answer,
}


def between(listener: socket.socket, port: int, attack: Answer) -> None:
    """Pass everything on between a node and the leader, except for the leader's answer."""
    node, leader = listener.accept()[0], socket.create_connection((FIRST, port))
    with node, leader, node.makefile("rb") as of_node, leader.makefile("rb") as of_leader:
        leader.sendall(of_node.read(32))
        node.sendall(of_leader.read(32) + of_leader.readline())
        leader.sendall(said := of_node.readline())
        node.sendall(attack(said, of_leader.readline()))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_node_runs_nothing_but_what_the_leader_says_to_it_whoever_stands_between(
    nodes: Nodes, attack: str
) -> None:
    nodes.lead(2)
    with socket.create_server((FIRST, 0)) as listener:
        threading.Thread(
            target=between, args=(listener, nodes.port, ATTACKS[attack]), daemon=True
        ).start()
        node = nodes.start(1, "127.0.0.2", 2, port=listener.getsockname()[1])
        _, errors = node.communicate(timeout=LIMIT_S)
    if attack == "none":
        assert nodes.said(1, "127.0.0.2").startswith("a model")
    else:
        assert nodes.said(1, "127.0.0.2") == "" and "no proof of the key" in errors


class Said(bytearray):
    """Stands for a connection's writer."""

    write = bytearray.extend


@pytest.mark.parametrize(
    ("key", "nonces", "step", "forged"),
    [
        (b"k3y", b"one", "answer", False),
        (b"k3y", b"one", "caller", True),
        (b"k3y", b"two", "answer", True),
        (b"other", b"one", "answer", True),
    ],
)
def test_a_proof_is_for_one_connection_and_one_step(
    key: bytes, nonces: bytes, step: str, forged: bool
) -> None:
    async def heard() -> list[str]:
        speaker = mpi_ranks.Peer(key, asyncio.StreamReader(), said := Said())
        listener = mpi_ranks.Peer(b"k3y", reader := asyncio.StreamReader(), Said())
        speaker._nonces, listener._nonces = nonces, b"one"
        speaker.say(step, "word")
        reader.feed_data(bytes(said))
        return await listener.hear("answer")

    if forged:
        with pytest.raises(PermissionError):
            asyncio.run(heard())
    else:
        assert asyncio.run(heard()) == ["word"]


def test_two_nodes_with_one_address_are_refused_with_the_reason_and_the_other_node_ends(
    nodes: Nodes,
) -> None:
    first, second = nodes.start(0, FIRST, 2), nodes.start(1, FIRST, 2)
    assert "these are 127.0.0.1, 127.0.0.1" in first.communicate(timeout=LIMIT_S)[1]
    assert "ended before it started the ranks here" in second.communicate(timeout=LIMIT_S)[1]

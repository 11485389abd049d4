"""Starts the ranks of an MPI program on several nodes with Open MPI 4.1 or 5, without ssh.

Every node of the replica runs this file, by itself and maybe in a container: it imports nothing of
this program. Rank 0's node becomes mpirun. Where mpirun would call ssh to start its daemon on
another node, it calls this file, which hands the daemon's command to that node over a connection
that the node has opened. All that is said there carries a proof (HMAC) that who says it knows the
replica's key, which stays in the environment. The proof is for one connection, one direction and
one step: it is worth nothing to whoever passes it on or sends it back.
"""

import asyncio
import ctypes
import hmac
import json
import os
import shutil
import signal
import sys
import time
from contextlib import closing, suppress
from typing import Any

KEY_VARIABLE = "MPI_RANKS_KEY"
# Variables of a batch job in which the node's agent may run: ranks would take themselves for ranks
# of that job.
FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE_")
# Becomes a rank, with its own node's TMPDIR.
RANK = f'TMPDIR=$RANKS_TMPDIR; [ "$TMPDIR" ] || unset TMPDIR; unset RANKS_TMPDIR {KEY_VARIABLE}; exec "$0" "$@"'
# LIMIT_S: for a peer to prove itself; MOST_BYTES: of a message
PAUSE_S, LIMIT_S, MOST_BYTES = 0.2, 10.0, 2**16
GONE = (OSError, EOFError, asyncio.TimeoutError)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Peer:
    """The other end of a connection. Steps: ``leader`` proves itself, then the ``caller``, who gets
    an ``answer``.
    """

    def __init__(
        self, key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._key, self._reader, self._writer, self._nonces = key, reader, writer, b""

    async def exchange_nonces(self, calls: bool) -> None:
        self._writer.write(mine := os.urandom(32))
        theirs = await self._reader.readexactly(32)
        self._nonces = mine + theirs if calls else theirs + mine

    def say(self, step: str, *words: str) -> None:
        self._writer.write(self._proven(step, json.dumps(words).encode()))

    async def hear(self, step: str) -> Any:
        """The words of this step. Raises OSError, EOFError."""
        try:
            line = await self._reader.readuntil()
        except asyncio.LimitOverrunError:
            line = b""
        if not hmac.compare_digest(line, self._proven(step, body := line[64:-1])):
            raise PermissionError("no proof of the key")
        return json.loads(body)

    def _proven(self, step: str, body: bytes) -> bytes:
        return (
            hmac.new(self._key, step.encode() + self._nonces + body, "sha256").hexdigest().encode()
            + body
            + b"\n"
        )

    async def answer(self, word: str) -> None:
        self.say("answer", word)
        self._writer.close()
        await self._writer.wait_closed()


async def switchboard(key: bytes, address: str, port: int, nodes: int, tell: int) -> None:
    """Wait for the other nodes, ``tell`` all addresses, and hand each node the command that mpirun
    has for it.
    """
    calls: asyncio.Queue[Any] = asyncio.Queue()

    async def greet(peer: Peer) -> Any:
        await peer.exchange_nonces(calls=False)
        peer.say("leader")
        return await peer.hear("caller")

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(key, reader, writer)
        try:
            calls.put_nowait((peer, await asyncio.wait_for(greet(peer), LIMIT_S)))
        except GONE:
            writer.close()

    server = await asyncio.start_server(meet, address, port, limit=MOST_BYTES)
    joined: dict[int, tuple[str, Peer]] = {}
    while len(joined) < nodes - 1:
        node, (rank, host) = await calls.get()
        joined[int(rank)] = host, node
    hosts = [address, *(host for _, (host, _) in sorted(joined.items()))]
    if len(set(hosts)) < nodes:
        sys.exit(
            f"Open MPI needs an address of its own for every node; these are {', '.join(hosts)}"
        )
    with open(tell, "w") as told:
        told.write(" ".join(hosts))
    waiting = dict(joined.values())
    while waiting:
        shell, (host, command) = await calls.get()
        await waiting.pop(host).answer(command)
        await shell.answer("handed over")
    server.close()


def lead(
    key: bytes, address: str, port: int, nodes: int, per_node: int, program: list[str]
) -> None:
    """Become mpirun once the other nodes are there, so that signals and the exit status are its
    own.
    """
    if shutil.which("mpirun") is None:
        sys.exit("no mpirun in PATH: install Open MPI on every node")
    heard, tell = os.pipe()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        asyncio.run(switchboard(key, address, port, nodes, tell))
        sys.exit()
    os.close(tell)
    with open(heard) as told:
        hosts = told.read().split()
    if not hosts:
        sys.exit(1)  # the switchboard said why
    # Open MPI 4.1 reads the first two, 5 the others. Each daemon would start others in a tree.
    shell = f"{sys.executable} {os.path.abspath(__file__)} shell {address} {port}"
    os.environ.update(OMPI_MCA_plm_rsh_agent=shell, OMPI_MCA_plm_rsh_no_tree_spawn="1")
    os.environ.update(PRTE_MCA_plm_ssh_agent=shell, PRTE_MCA_plm_ssh_no_tree_spawn="1")
    slots = ",".join(f"{host}:{per_node}" for host in hosts)
    options = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--host", slots]
    argv = ["mpirun", "-n", str(nodes * per_node), *options, "sh", "-c", RANK, *program]
    os.execvp("mpirun", argv)  # noqa: S606, S607 - from PATH


async def ask(key: bytes, address: str, port: int, *words: str) -> str:
    """The answer of rank 0's node, however late. Raises GONE when whoever is there does not prove
    to be that.
    """
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(address, port, limit=MOST_BYTES), LIMIT_S
    )
    with closing(writer):
        peer = Peer(key, reader, writer)
        await asyncio.wait_for(peer.exchange_nonces(calls=True), LIMIT_S)
        await asyncio.wait_for(peer.hear("leader"), LIMIT_S)
        peer.say("caller", *words)
        try:
            (answer,) = await peer.hear("answer")
        except GONE as error:
            sys.exit(f"the node of rank 0 ended before it started the ranks here: {error!r}")
        return str(answer)


def follow(key: bytes, address: str, port: int, rank: str, host: str) -> None:
    """Start this node's daemon when rank 0's node says how, and end with it and the ranks that it
    starts.
    """
    while True:
        with suppress(*GONE):  # it does not listen yet, or something else did
            command = asyncio.run(ask(key, address, port, rank, host))
            break
        time.sleep(PAUSE_S)
    del os.environ[KEY_VARIABLE]
    # the daemon leaves its session and parent
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.posix_spawnp("sh", ["sh", "-c", command], os.environ)
    status = 0
    with suppress(ChildProcessError):
        while True:
            code = os.waitstatus_to_exitcode(os.wait()[1])
            status = max(status, code if code >= 0 else 128 - code)
    sys.exit(status)


def main(words: list[str]) -> None:
    """``RANK HOST ADDRESS PORT NODES PER_NODE PROGRAM…``: rank 0's ADDRESS; or as mpirun calls it
    for ``ssh``.
    """
    key = os.environ[KEY_VARIABLE].encode()
    if words[0] == "shell":
        _, address, port, host, *command = words
        asyncio.run(ask(key, address, int(port), host, " ".join(command)))
        return
    rank, host, address, port, nodes, per_node, *program = words
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    # For the daemons alone: what a killed one leaves there goes with the launch. Their sockets'
    # paths must be short.
    os.environ.update(RANKS_TMPDIR=os.environ.get("TMPDIR", ""), TMPDIR=os.getcwd())
    if rank == "0":
        lead(key, address, int(port), int(nodes), int(per_node), program)
    follow(key, address, int(port), rank, host)


if __name__ == "__main__":
    main(sys.argv[1:])

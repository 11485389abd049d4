"""Starts the ranks of an MPI program on several nodes with Open MPI 4.1 or 5, without ssh.

Every node of the replica runs this file, by itself and maybe in a container: it imports nothing of this program. Rank
0's node becomes mpirun. Where mpirun would call ssh to start its daemon on another node, it calls this file, which
hands the daemon's command to that node over a connection that the node has opened. Both sides prove that they know
the launch's key, which stays in the environment.
"""

import ctypes
import os
import sys
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

KEY_VARIABLE = "ENGINE_API_KEY"
# Variables of a batch job in which the node's agent may run: ranks would take themselves for ranks of that job.
FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE_")
PAUSE_S = 0.2
_PR_SET_CHILD_SUBREAPER = 36


def lead(key: bytes, address: str, port: int, nodes: int, per_node: int, program: list[str]) -> None:
    """Wait for the other nodes, then become mpirun, so that signals and the exit status are its own."""
    joined: dict[int, tuple[str, Connection]] = {}
    with Listener((address, port), backlog=nodes, authkey=key) as listener:
        while len(joined) < nodes - 1:
            with suppress(AuthenticationError, EOFError, OSError):
                one = listener.accept()
                rank, host = one.recv_bytes().decode().split()
                joined[int(rank)] = (host, one)
    hosts = [address, *(host for _, (host, _) in sorted(joined.items()))]
    if len(set(hosts)) < nodes:
        sys.exit(f"Open MPI needs an address of its own for every node; these are {', '.join(hosts)}")
    with Listener(_socket(port), backlog=nodes, authkey=key) as asked:
        if os.fork() == 0:
            pass_on(asked, dict(joined.values()))
            os._exit(0)
    # Open MPI 4.1 reads the first two, 5 the others. Each daemon would start others in a tree.
    shell = f"{sys.executable} {os.path.abspath(__file__)} shell {port}"
    os.environ.update(OMPI_MCA_plm_rsh_agent=shell, OMPI_MCA_plm_rsh_no_tree_spawn="1")
    os.environ.update(PRTE_MCA_plm_ssh_agent=shell, PRTE_MCA_plm_ssh_no_tree_spawn="1")
    slots = ",".join(f"{host}:{per_node}" for host in hosts)
    options = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--host", slots]
    os.execvp("mpirun", ["mpirun", "-n", str(nodes * per_node), *options, *program])  # noqa: S606, S607 - from PATH


def pass_on(asked: Listener, joined: dict[str, Connection]) -> None:
    """Hand the command that mpirun has for each node to that node."""
    for _ in joined:
        with asked.accept() as shell:
            host, _, command = shell.recv_bytes().decode().partition(" ")
            joined[host].send_bytes(command.encode())
            shell.send_bytes(b"handed over")


def shell(key: bytes, port: int, host: str, command: list[str]) -> None:
    """What mpirun calls as its ``ssh``."""
    with Client(_socket(port), authkey=key) as asked:
        asked.send_bytes(" ".join([host, *command]).encode())
        asked.recv_bytes()


def follow(key: bytes, address: str, port: int, rank: int, host: str) -> None:
    """Start this node's daemon when rank 0's node says how, and end with it and the ranks that it starts."""
    while True:
        with suppress(ConnectionRefusedError):
            leader = Client((address, port), authkey=key)
            break
        time.sleep(PAUSE_S)
    leader.send_bytes(f"{rank} {host}".encode())
    try:
        command = leader.recv_bytes().decode()
    except EOFError:
        sys.exit("the node of rank 0 ended before it started the ranks here")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the daemon leaves its session and parent
    os.posix_spawnp("sh", ["sh", "-c", command], os.environ)
    status = 0
    with suppress(ChildProcessError):
        while True:
            status = max(status, os.waitstatus_to_exitcode(os.wait()[1]))
    sys.exit(status)


def _socket(port: int) -> str:
    """A name that the kernel keeps, unique on the host because the port is this launch's."""
    return f"\0mpi-ranks-{port}"


def main(words: list[str]) -> None:
    """``RANK HOST ADDRESS PORT NODES PER_NODE PROGRAM…``: rank 0's ADDRESS; or as mpirun calls it."""
    key = os.environ[KEY_VARIABLE].encode()
    if words[0] == "shell":
        shell(key, int(words[1]), words[2], words[3:])
        return
    rank, host, address, port, nodes, per_node, *program = words
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    had = f"TMPDIR={os.environ['TMPDIR']}" if "TMPDIR" in os.environ else "--unset=TMPDIR"
    os.environ["TMPDIR"] = os.getcwd()  # for the daemons alone: what a killed one leaves there goes with the launch
    if rank == "0":
        program = ["env", had, *program]  # their sockets' paths must be short
        lead(key, address, int(port), int(nodes), int(per_node), program)
    follow(key, address, int(port), int(rank), host)


if __name__ == "__main__":
    main(sys.argv[1:])

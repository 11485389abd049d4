"""Several hosts on one machine: namespaces with addresses, processes, /tmp and /dev/shm of their
own.

Needs root and iproute2. Nothing of the machine's own network is touched: the hosts share a bridge
in a namespace too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import ROOT, environment, wait_for

NETWORK = "10.231.7"  # seen by nobody but the hosts
PORT = 6379
# the address of no interface: what is sent there goes nowhere, without an error
LOST = "02:00:00:00:00:01"
OBJECT_STORE_BYTES = 80 * 2**20
NAMES = ("--net", "--mount", "--pid", "--uts")
# Its first process reaps: a dead raylet that stays a zombie is taken for alive by Ray's workers.
FIRST_PROCESS = """hostname "$0"; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /tmp /dev/shm
trap "" CHLD; while :; do sleep 1; done"""


def why_not() -> str | None:
    """Why there can be no such hosts here, or None."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return "hosts of their own need root and iproute2"
    if ROOT.is_relative_to("/tmp"):
        return "the hosts have a /tmp of their own, and this checkout lies in /tmp"
    name = f"orch-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


@dataclass
class Host:
    name: str
    address: str
    pid: int  # of its first process, seen from outside
    shared: Path  # the same folder on every host
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def argv(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *NAMES, "env", "-C", str(ROOT), *command]

    def run(
        self, *command: str, timeout_s: float = 240.0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """One command on this host, to its end."""
        return subprocess.run(
            self.argv(*command),
            env=ours(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *command: str, log: str, **env: str) -> subprocess.Popen[bytes]:
        """One command on this host, in the background; its log lies in the shared folder."""
        with (self.shared / log).open("ab") as out:
            self.running.append(
                subprocess.Popen(self.argv(*command), env=ours(env), stdout=out, stderr=out)
            )
        return self.running[-1]

    def processes(self, mark: str = "ORCHESTRATOR_LAUNCH=") -> list[str]:
        """Pids on this host, as it sees them, of processes whose environment has ``mark``."""
        found = self.run("sh", "-c", 'grep -lsa "$0" /proc/[0-9]*/environ', mark).stdout.split()
        return [path.split("/")[2] for path in found]

    def links(self, state: str) -> None:
        """``down`` cuts it off from everybody, ``up`` takes it back."""
        ip("-n", self.name, "link", "set", "eth0", state)


class Hosts:
    """``count`` hosts with Ray, the first with the head node; all others have the label ``role:
    engine``.
    """

    def __init__(self, count: int, cpus: int = 2, ray: bool = True, **env: str) -> None:
        self._undo = ExitStack()
        self._prefix = f"orch{os.getpid()}"
        self.hosts: list[Host] = []
        with ExitStack() as undo:
            self.shared = Path(tempfile.mkdtemp(prefix="orch-hosts-", dir="/var/tmp"))
            undo.callback(shutil.rmtree, self.shared, ignore_errors=True)
            switch = f"{self._prefix}sw"
            self._namespace(switch, undo)
            ip(
                "-n",
                switch,
                "link",
                "add",
                "name",
                "bridge0",
                "type",
                "bridge",
                "forward_delay",
                "0",
            )
            ip("-n", switch, "link", "set", "bridge0", "up")
            for number in range(1, count + 1):
                self.hosts.append(self._host(number, switch, undo))
            self._cpus, self._env = cpus, env
            for host in self.hosts if ray else ():
                self.node(host)
            self._undo = undo.pop_all()

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def _namespace(self, name: str, undo: ExitStack) -> None:
        ip("netns", "add", name)
        undo.callback(ip, "netns", "del", name)

    def _host(self, number: int, switch: str, undo: ExitStack) -> Host:
        name, address = f"{self._prefix}h{number}", f"{NETWORK}.{number}"
        self._namespace(name, undo)
        ip(
            "-n",
            name,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            f"v{number}",
            "netns",
            switch,
        )
        ip("-n", switch, "link", "set", f"v{number}", "master", "bridge0", "up")
        ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", name, "link", "set", link, "up")
        unshare = (
            "unshare",
            "-m",
            "-p",
            "-u",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            FIRST_PROCESS,
        )
        outer = subprocess.Popen(
            ["ip", "netns", "exec", name, *unshare, name], env=ours({}), stderr=subprocess.DEVNULL
        )
        undo.callback(_end, outer)
        # ip became unshare, whose child it is
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        pid = int(
            wait_for(lambda: children.read_text().split(), 10, f"{name} has a first process")[0]
        )
        host = Host(name, address, pid, self.shared)
        undo.callback(_end_all, host)
        wait_for(lambda: host.run("hostname").stdout.strip() == name, 10, f"{name} is there")
        wait_for(
            lambda: "/dev/shm" in host.run("cat", "/proc/mounts").stdout,
            10,
            f"{name} has its folders",
        )
        return host

    def node(self, host: Host) -> None:
        """Start Ray on it."""
        head = host is self.hosts[0]
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if head
            else [f"--address={self.address}", "--labels=role=engine"]
        )
        host.start(
            str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats", *where,
            f"--node-ip-address={host.address}", f"--num-cpus={self._cpus}", "--num-gpus=0",
            f"--object-store-memory={OBJECT_STORE_BYTES}", log=f"{host.name}.log", **self._env,
        )  # fmt: skip
        if head:
            ask = (
                "from orchestrator.cluster.ray.private import head_answers as a; exit(not "
                f"a('{self.address}', 1.0))"
            )
            wait_for(
                lambda: not host.run(sys.executable, "-c", ask).returncode,
                60,
                "the head node is up",
            )

    def alive(self) -> int:
        """How many nodes the head knows."""
        count = (
            "import ray; ray.init('auto', log_to_driver=False); print(sum(n['Alive'] for n in "
            "ray.nodes()))"
        )
        return int((self.hosts[0].run(sys.executable, "-c", count).stdout.split() or ["0"])[0])

    def part(self, one: Host, other: Host) -> None:
        """Between these two nothing arrives any more, silently; both reach everybody else."""
        for here, there in ((one, other), (other, one)):
            ip(
                "-n",
                here.name,
                "neigh",
                "replace",
                there.address,
                "lladdr",
                LOST,
                "dev",
                "eth0",
                "nud",
                "permanent",
            )

    def join(self, one: Host, other: Host) -> None:
        for here, there in ((one, other), (other, one)):
            ip("-n", here.name, "neigh", "del", there.address, "dev", "eth0")

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ours(env: Mapping[str, str]) -> dict[str, str]:
    """For a process there: the folder of leases that this test run has in /tmp is not seen on the
    hosts.
    """
    made = environment(RAY_AUTH_MODE="disabled", HF_HUB_OFFLINE="1", **env)
    made.pop("ORCHESTRATOR_LEASES", None)
    return made


def ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True, text=True)


def _end(outer: subprocess.Popen[bytes]) -> None:
    outer.kill()
    outer.wait(10)


def _end_all(host: Host) -> None:
    with suppress(ProcessLookupError):
        os.kill(host.pid, 9)  # the first process of a process namespace: all others end with it
    for one in host.running:
        with suppress(subprocess.TimeoutExpired):
            one.wait(10)
    time.sleep(0.1)

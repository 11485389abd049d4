"""A Ray cluster of several nodes on this machine: for the demo, for tests, and for multi-node
launches on a laptop.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from typing import Any

from ray.cluster_utils import Cluster

# the smallest Ray accepts is 75 MB; rows travel through files, not through Ray
OBJECT_STORE_BYTES = 80 * 2**20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(node: Callable[[], Any], tries: int = 3) -> Any:
    """Ray gives a raylet 30 s to register, which a busy machine may not keep; it says so with a
    bare Exception.
    """
    for left in reversed(range(tries)):
        try:
            return node()
        except Exception as error:
            if "timed out during startup" not in str(error) or not left:
                raise
    raise AssertionError("unreachable")


class RayOnThisMachine:
    """``nodes`` raylets of ``cpus`` logical CPUs each, on ports of their own; nothing else on the
    machine is touched.

    Use as a context manager; ``address`` is what ``--address`` and ``ray.init`` take, ``dashboard``
    what ``ray job submit --address`` takes (None without a dashboard). ``token``: what it asks for;
    empty: nothing.
    """

    def __init__(
        self,
        nodes: int = 2,
        cpus: int = 4,
        gpus: int = 0,
        dashboard_port: int | None = None,
        token: str = "",
    ) -> None:
        # short: socket paths below it are limited to 107 bytes
        self._folder = tempfile.mkdtemp(prefix="orch-ray-")
        # RAY_TMPDIR keeps Cluster() from redirecting address="auto" of others; without
        # RAY_AUTH_MODE, whether a cluster asks for a token depends on a file that the last one of
        # this user left; workers that start at Ray's niceness, 15, wait for whatever else runs here
        ours = {"RAY_TMPDIR": self._folder, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
        if token:
            ours |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        self._saved = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        os.makedirs(f"{self._folder}/ray", exist_ok=True)
        self.dashboard = (
            f"http://127.0.0.1:{dashboard_port}" if dashboard_port is not None else None
        )
        self.cluster: Any = None
        try:
            self._begin(nodes, cpus, gpus, dashboard_port)
        except BaseException:
            self.close()
            raise

    def _begin(self, nodes: int, cpus: int, gpus: int, dashboard_port: int | None) -> None:
        head: dict[str, Any] = self._node_args(cpus, gpus) | {
            "include_dashboard": dashboard_port is not None
        }
        if dashboard_port is not None:
            head |= {"dashboard_port": dashboard_port, "dashboard_host": "127.0.0.1"}
        self.cluster = _start(lambda: Cluster(initialize_head=True, head_node_args=head))
        for _ in range(nodes - 1):
            self.add_node(cpus, gpus)

    @staticmethod
    def _node_args(cpus: int, gpus: int) -> dict[str, Any]:
        # every raylet's agent listens for jobs on one default port: a second cluster on this
        # machine would go without
        return {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "dashboard_agent_listen_port": _free_port(),
        }

    @property
    def address(self) -> str:
        """GCS address, host:port."""
        return str(self.cluster.address)

    def add_node(self, cpus: int = 4, gpus: int = 0) -> Any:
        """One more node; ``cluster.remove_node`` kills it."""
        # a folder of its own: raylets that share one unpack a job's working_dir over each other
        folder = tempfile.mkdtemp(prefix="n", dir=self._folder)
        return _start(lambda: self.cluster.add_node(temp_dir=folder, **self._node_args(cpus, gpus)))

    def close(self) -> None:
        """End every process of the cluster and remove its files."""
        try:
            if self.cluster is not None:
                self.cluster.shutdown()
        finally:
            for name, value in self._saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RayOnThisMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""A Ray cluster on this machine whose autoscaler starts fake nodes, one raylet each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from orchestrator.cluster.ray.private import head_answers
from tests.cluster.refusing_provider import REFUSED_TYPE, RefusingProvider
from tests.harness import ROOT, environment, free_port, wait_for

HEAD_NODE_ID = "f" * 51 + "00000"  # what Ray's fake provider takes for the head's
HEAD_TYPE = "ray.head.default"  # and for its type
OBJECT_STORE_BYTES = 78_643_200  # the least that Ray accepts
COMMANDS = (
    "initialization",
    "setup",
    "head_setup",
    "worker_setup",
    "head_start_ray",
    "worker_start_ray",
)


def configuration(port: int, most_nodes: int) -> dict[str, Any]:
    """Up to ``most_nodes`` nodes of 8 GPUs that leave when they were idle for 6 s, and a type of
    node that never comes.

    The head has 2 CPUs and no GPU.
    """
    node = {
        "resources": {"CPU": 4, "GPU": 8, "object_store_memory": OBJECT_STORE_BYTES},
        "node_config": {},
    }
    return {
        "cluster_name": "fake",
        "max_workers": most_nodes,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 100,
        "provider": {
            "type": "external",
            "module": f"{RefusingProvider.__module__}.{RefusingProvider.__name__}",
            "gcs_address": f"127.0.0.1:{port}",
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "gpus": node
            | {"min_workers": 0, "max_workers": most_nodes, "labels": {"pool": "grown"}},
            REFUSED_TYPE: node
            | {"min_workers": 0, "max_workers": most_nodes, "labels": {"pool": "refused"}},
        },
        "head_node_type": HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in COMMANDS},
    }


@contextmanager
def autoscaling_ray(
    most_nodes: int = 3, by_hand: bool = False, configured: bool = True
) -> Iterator[str]:
    """The address of a cluster that grows. Nothing of it is left afterwards, and no other cluster
    of this machine is touched. ``by_hand``: the head has no type of node, as one that
    somebody starts with ``ray start --head --autoscaling-config``. Not ``configured``: without that option.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(
        prefix="orch-as-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        os.mkdir(f"{folder}/ray")
        Path(folder, "cluster.yaml").write_text(yaml.safe_dump(configuration(port, most_nodes)))
        argv = [
            str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}",
            f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}",
            f"--temp-dir={folder}", "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false",
            f"--object-store-memory={OBJECT_STORE_BYTES}", "--node-ip-address=127.0.0.1",
            *([f"--autoscaling-config={folder}/cluster.yaml"] if configured else []),
        ]  # fmt: skip
        settings = environment(
            RAY_FAKE_CLUSTER="1",
            AUTOSCALER_UPDATE_INTERVAL_S="1",
            RAY_enable_autoscaler_v2="1",
            # as `ray up`, KubeRay and Spark set it
            **({} if by_hand else {"RAY_NODE_TYPE_NAME": HEAD_TYPE}),
            RAY_OVERRIDE_NODE_ID_FOR_TESTING=HEAD_NODE_ID,
            RAY_CLOUD_INSTANCE_ID=HEAD_NODE_ID,
            RAY_AUTH_MODE="disabled",
            RAY_TMPDIR=folder,
            RAY_worker_niceness="0",
            PYTHONPATH=str(ROOT),  # its autoscaler takes the provider from here
        )
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                argv, env=settings, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_for(lambda: head_answers(f"127.0.0.1:{port}", 1.0), 60.0, "the head node is up")
            yield f"127.0.0.1:{port}"
        finally:
            end(process, folder)


@contextmanager
def another_node(address: str, ip: str) -> Iterator[None]:
    """A node at an address of its own on this machine that somebody adds to a cluster by hand."""
    with tempfile.TemporaryDirectory(
        prefix="orch-an-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        argv = [
            str(Path(sys.executable).parent / "ray"), "start", "--block", f"--address={address}",
            f"--dashboard-agent-listen-port={free_port()}", f"--temp-dir={folder}", "--num-cpus=1",
            "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--node-ip-address={ip}",
        ]  # fmt: skip
        settings = environment(
            RAY_AUTH_MODE="disabled",
            RAY_worker_niceness="0",
            RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",
        )
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                argv, env=settings, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            end(process, folder)


def end(process: subprocess.Popen[bytes], folder: str) -> None:
    """``ray start --block`` and all that it left in this folder."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = processes_of(folder)  # the log monitor of a fake node outlives its cluster
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, 10)


def processes_of(folder: str) -> list[psutil.Process]:
    """The processes that name a folder on their command line."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            found += [one] if any(folder in word for word in one.cmdline()) else []
    return found

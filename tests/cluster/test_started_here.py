"""A Ray that a sweep starts by itself, because none runs: nobody from outside reaches it, and it is
not slowed down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

import pytest

from tests.cluster.autoscaling import processes_of
from tests.harness import environment

pytestmark = pytest.mark.cluster

STARTS = """
import json, time, psutil
from orchestrator.cluster.open_cluster import open_cluster
cluster = open_cluster(None)
probes = cluster.probes()
probes.ask(time.time)  # a worker is there
me = psutil.Process()
all_of_it = me, *me.children(recursive=True)
sockets = [(one.name(), at.laddr) for one in all_of_it for at in one.net_connections("inet")
           if at.status == psutil.CONN_LISTEN]
slower = [one.cmdline() for one in all_of_it if one.nice() > me.nice()]
probes.close()
cluster.close()
print(json.dumps([sockets, slower]))
"""


def test_a_cluster_started_here_listens_on_loopback_at_normal_priority() -> None:
    with tempfile.TemporaryDirectory(
        prefix="orch-st-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        settings = environment(RAY_TMPDIR=folder, RAY_AUTH_MODE="disabled")
        done = subprocess.run(
            [sys.executable, "-c", STARTS],
            env=settings,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert processes_of(folder) == []
    sockets, slower = json.loads(done.stdout)
    assert {"gcs_server", "raylet"} <= {name for name, _ in sockets}
    assert {address.removeprefix("::ffff:") for _, (address, _) in sockets} == {"127.0.0.1"}, (
        sockets
    )
    assert slower == []

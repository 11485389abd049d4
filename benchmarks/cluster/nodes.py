"""What looking at the nodes costs the driver: Ray's own GCS, with nodes of which it has only been
told.

    python benchmarks/cluster/nodes.py [--nodes 1000] [--seconds 60]

Asks once a second what a sweep asks: which nodes are there, which are leaving, what the autoscaler
says. Prints one JSON document; exit status 1 when that takes more than 1 % of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
# nobody answers for them
os.environ |= {"RAY_health_check_initial_delay_ms": "3600000", "RAY_AUTH_MODE": "disabled"}

from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.core.generated.gcs_service_pb2 import RegisterNodeRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

from orchestrator.cluster.ray.cluster import RayCluster
from scripts.ray_on_this_machine import RayOnThisMachine


def node(at: int) -> GcsNodeInfo:
    """An H100 node as Ray describes one."""
    made = GcsNodeInfo(
        node_id=os.urandom(28), node_manager_address=f"10.0.{at // 250}.{at % 250}", node_manager_hostname=f"h{at}",
        node_manager_port=1, object_manager_port=2, state=GcsNodeInfo.ALIVE,
    )  # fmt: skip
    made.resources_total.update({"CPU": 96, "GPU": 8, "memory": 1e12, "object_store_memory": 1e11})
    made.labels.update({"ray.io/accelerator-type": "H100", "market": "spot"})
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    with RayOnThisMachine(nodes=1, cpus=1) as ray:
        gcs = NodeInfoGcsServiceStub(init_grpc_channel(ray.address))
        for at in range(given.nodes):
            gcs.RegisterNode(RegisterNodeRequest(node_info=node(at)), timeout=60)
        cluster = RayCluster(None, ray.address)
        seen, began_s, before_s = 0, time.monotonic(), time.process_time()
        for second in range(given.seconds):
            seen = len(cluster.machines())
            cluster.growth()
            time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
        share = (time.process_time() - before_s) / (time.monotonic() - began_s)
        cluster.close()
    print(json.dumps({"nodes": seen, "share_of_a_core": round(share, 4)}))
    return int(share > 0.01)


if __name__ == "__main__":
    sys.exit(main())

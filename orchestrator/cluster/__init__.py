"""Where engines and clients run: one protocol (base.py), two clusters. The only code that imports ray.

A third kind of cluster is a class like LocalCluster, a line here, and a module like tests/cluster/test_contract.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.cluster.base import Cluster
    from orchestrator.results.store import Store

LOCAL = "local"  # the address of this machine without Ray


def open_cluster(store: Store | None, address: str | None = None, client_limit: int | None = None) -> Cluster:
    """This machine for the address ``local``, else Ray: the cluster there, the running one, or a new one here.

    Raises InputError when the cluster that is named does not answer.
    """
    if address == LOCAL:
        from orchestrator.cluster.local import LocalCluster

        return LocalCluster(store, client_limit)
    from orchestrator.cluster.ray_cluster import RayCluster

    return RayCluster(store, address, client_limit)

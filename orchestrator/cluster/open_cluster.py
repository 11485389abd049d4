"""Opens the cluster that an address names: this machine, or Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.cluster.protocol import Cluster
    from orchestrator.results.store import Store

LOCAL = "local"  # the address that means: this machine, without Ray


def open_cluster(
    store: Store | None, address: str | None = None, client_limit: int | None = None
) -> Cluster:
    """This machine if ``address`` is ``local``; otherwise Ray: the cluster at the address, a
    running one, or a new one.

    Raises InputError when the named cluster does not answer.
    """
    if address == LOCAL:
        from orchestrator.cluster.local import LocalCluster

        return LocalCluster(store, client_limit)
    from orchestrator.cluster.ray.cluster import RayCluster

    return RayCluster(store, address, client_limit)

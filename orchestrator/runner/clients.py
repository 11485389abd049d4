"""Clients for launches: how many, away from whose engines, and only on hosts whose self-check is known."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping

from orchestrator.cluster.base import Clients, Cluster
from orchestrator.runner.admission import Nodes
from orchestrator.runner.events import Event, Journal
from orchestrator.runner.hosts import HostBook


class ClientDesk:
    """Lends the cluster's clients to the launches of a sweep. ``where``: deployment id -> nodes of its launch, now."""

    def __init__(
        self, cluster: Cluster, hosts: HostBook, journal: Journal, where: Callable[[], Mapping[str, Nodes]], first: int
    ) -> None:
        self._cluster, self._hosts, self._journal, self._where = cluster, hosts, journal, where
        self._first = first

    def borrow(self, deployment_id: str, count: int | None = None, *, starting: bool = False) -> Clients:
        """``count`` clients (None: as many as a point begins with). ``starting``: the deployment's engine is, now.

        Raises PlacementError.
        """
        where = self._where()
        wanted = min(self._first, self._cluster.most_clients()) if count is None else count
        clients = self._cluster.clients(wanted, _avoid(deployment_id, where))
        try:
            self._hosts.check(clients, self._ranks(where.get(deployment_id, ())) if starting else {})
        except BaseException:
            clients.release()
            raise
        return clients

    def begin_check(self, deployment_id: str) -> threading.Thread:
        """Check the hosts that the deployment's clients will have while its engine starts: it then costs least."""

        def check() -> None:
            try:
                self.borrow(deployment_id, starting=True).release()
            except Exception as error:  # whoever measures meets the same, and there it is a failure
                self._journal.tell(Event("selfcheck", f"no self-check while the engine starts: {error}"))

        thread = threading.Thread(target=check, name="selfcheck", daemon=True)
        thread.start()
        return thread

    def _ranks(self, nodes: Nodes) -> dict[str, int]:
        """Engine ranks by address."""
        addresses = {machine.node_id: machine.address for machine in self._cluster.machines()}
        ranks: dict[str, int] = {}
        for node in itertools.chain(*nodes):
            address = addresses.get(node, "")
            ranks[address] = ranks.get(address, 0) + 1
        return ranks


def _avoid(deployment_id: str, where: Mapping[str, Nodes]) -> dict[str, int]:
    """Nodes that clients keep off: those of other launches more than this one's own."""
    avoid: dict[str, int] = {}
    for owner, nodes in where.items():
        for node in itertools.chain(*nodes):
            avoid[node] = max(avoid.get(node, 0), 1 if owner == deployment_id else 2)
    return avoid

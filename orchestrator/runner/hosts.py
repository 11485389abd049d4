"""What the client hosts of a sweep can do: checked once each, stored beside the points, held against their load."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator import __version__
from orchestrator.cluster.base import Clients
from orchestrator.errors import ResultsError
from orchestrator.load.point import ClientStats
from orchestrator.load.validity import Verdict
from orchestrator.results.ids import new_ulid
from orchestrator.results.schemas import SELFCHECKS
from orchestrator.results.store import Store
from orchestrator.runner.events import Event, Journal
from orchestrator.runner.rows import commit_selfcheck

LIMIT_S = 2.5  # with the start of its process it is over in three seconds


class HostBook:
    """Self-checks by address, each host once per sweep. Shared by the launches of a sweep; thread-safe.

    Nobody measures with a host that is not in it yet, so a check never disturbs a point of the host's own clients.
    """

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store, self._journal = store, journal
        self._lock = threading.Lock()  # held during a check: who wants the same host waits for it
        self._rows: dict[str, dict[str, Any]] = {}

    def check(self, clients: Clients, starting: Mapping[str, int]) -> None:
        """Check those of the clients' hosts that were not yet, all at once. ``starting``: engine ranks by address.

        A host that cannot be checked is a row too, and an event: it is told, and does not stop the sweep.
        """
        if all(address in self._rows for address in clients.addresses):
            return  # without waiting for a check of other hosts
        with self._lock:
            new: dict[str, int] = {}
            for index, address in enumerate(clients.addresses):
                if address not in self._rows:
                    new.setdefault(address, index)
            if not new:
                return
            began, began_unix_ns = time.monotonic(), time.time_ns()
            found = clients.selfcheck(list(new.values()), LIMIT_S)
            took_s = time.monotonic() - began
            for address, result in zip(new, found, strict=True):
                self._keep(selfcheck_row(self._store.experiment, address, result, starting, began_unix_ns, took_s))

    def rows(self) -> list[dict[str, Any]]:
        """Of this sweep, in the columns of ``selfchecks``."""
        return list(self._rows.values())

    def by_address(self) -> dict[str, dict[str, Any]]:
        return dict(self._rows)

    def _keep(self, row: dict[str, Any]) -> None:
        self._rows[row["address"]] = row
        if row["status"] == "failed":
            self._tell(f"the self-check of {row['address']} failed: {row['reason']}")
        try:
            commit_selfcheck(self._store, row)
        except ResultsError as error:
            self._tell(f"the self-check of {row['address']} could not be stored: {error}")

    def _tell(self, text: str) -> None:
        self._journal.tell(Event("selfcheck", text))


def selfcheck_row(
    experiment: str,
    address: str,
    found: Mapping[str, Any],
    starting: Mapping[str, int],
    started_unix_ns: int,
    took_s: float,
) -> dict[str, Any]:
    """The row of what load/selfcheck.py found, or of its ``error``. ``took_s``: with the start of its process."""
    flat = {name: found[name] for name in SELFCHECKS.names if name in found}
    for error in ("ttft_error", "itl_error"):
        for statistic, value in found.get(f"{error}_ms", {}).items():
            flat[f"{error}_{statistic}_ms"] = value
    return flat | {
        "selfcheck_id": new_ulid(),
        "experiment": experiment,
        "address": address,
        "status": "failed" if "error" in found else "ok",
        "reason": found.get("error"),
        "engines_starting": starting.get(address, 0),
        "took_s": took_s,
        "started_unix_ns": started_unix_ns,
        "client_version": __version__,
    }


def held_against(
    verdict: Verdict,
    requests: pa.Table,
    stats: Sequence[ClientStats],
    addresses: Sequence[str],
    hosts: Mapping[str, Mapping[str, Any]],
) -> Verdict:
    """The verdict with each client's load beside what one client of its host kept up with in the self-check.

    ``evidence["selfcheck_share"]``: the highest share of that rate any client had, on average over its run. A client
    that had more than its host is known to carry is named; that alone changes no verdict, its own lags do.
    """
    events = np.asarray(requests.column("chunks").to_numpy(zero_copy_only=False), np.float64)
    of_client = requests.column("client").to_numpy(zero_copy_only=False)
    share, reasons = 0.0, []
    for one in stats:
        host = hosts.get(addresses[one.client])
        if host is None or not host.get("events_per_s") or one.wall_s <= 0:
            continue
        rate = float(events[of_client == one.client].sum()) / one.wall_s
        share = max(share, rate / host["events_per_s"])
        if rate > host["events_per_s"] and host["limited_by"] == "client":
            reasons.append(
                f"client {one.client} read {rate:,.0f} events/s on average; one client of its host {one.host} kept up "
                f"with {host['events_per_s']:,.0f} in the self-check"
            )
    if not share:
        return verdict
    return replace(
        verdict, reasons=[*verdict.reasons, *reasons], evidence=verdict.evidence | {"selfcheck_share": share}
    )

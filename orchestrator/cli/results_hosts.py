"""What client hosts can do, by their self-check: ``orchestrator results --hosts``, and a line each after ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.results.root import Results


def load_hosts(results: Results) -> list[dict[str, Any]]:
    """Rows of ``selfchecks`` as objects, by experiment and time."""
    found: list[dict[str, Any]] = results.read("selfchecks").to_pylist()
    return sorted(found, key=lambda row: (row["experiment"], row["started_unix_ns"], row["address"]))


def host_sentence(row: Mapping[str, Any]) -> str:
    """One line on one host."""
    if row["status"] != "ok":
        return f"client host {row['address']}: the self-check failed: {row['reason']}"
    more = "" if row["limited_by"] == "client" else "at least "
    beside = f", {row['engines_starting']} engine rank(s) starting beside it" if row["engines_starting"] else ""
    rate = f"keeps up with {more}{row['events_per_s']:,.0f} events/s"
    if not row["events_per_s"]:
        rate = "kept up with no rate that was tried"
    return (
        f"client host {row['host']} ({row['address']}): one client {rate}; it adds {row['ttft_error_mean_ms']:+.2f} ms "
        f"to the mean TTFT and sends within {row['send_lag_p99_ms']:.2f} ms (p99); "
        f"self-check of {row['took_s']:.1f} s{beside}"
    )

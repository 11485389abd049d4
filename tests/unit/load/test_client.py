"""What a client leaves of a run that is ended before it began: nothing is sent, so that no server is needed."""

from __future__ import annotations

import time

from orchestrator.load.client import LoadClient
from orchestrator.load.point import ClientResult
from tests.unit.load.test_schedule import point


def ended(rows: bool) -> tuple[ClientResult, LoadClient]:
    client = LoadClient(priority="normal")
    client.prepare(point(requests=500, duration_s=None))
    client.abort(rows)
    return client.run(time.monotonic_ns() + 60_000_000_000), client


def test_what_was_to_come_is_aborted_where_rows_are_wanted() -> None:
    result, client = ended(rows=True)
    assert result.requests["status"].to_pylist() == ["aborted"] * 500
    assert client.progress().failed == 500


def test_who_has_enough_waits_for_no_row_of_what_was_to_come() -> None:
    """Of a million requests these would be made for half a minute, and thrown away."""
    result, client = ended(rows=False)
    assert (result.requests.num_rows, result.token_events.num_rows) == (0, 0)
    assert client.progress().failed == 0

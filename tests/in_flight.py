"""Requests in flight for tests of what becomes of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.in_flight import InFlight
from orchestrator.load.request_record import RequestRecord
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.dialect import Dialect


def sent_request(
    *, index: int = 0, due_ns: int = 0, target: int = 0, output_tokens: int = 1
) -> InFlight:
    """The request of a session of its own, before anything came back."""
    record = RequestRecord(
        request_index=index,
        client=0,
        replica=0,
        phase="measure",
        session=None,
        turn=None,
        scheduled_ns=due_ns,
        input_tokens_asked=8,
        output_tokens_asked=output_tokens,
    )
    return InFlight(PlannedRequest(index, index, 0, due_ns), record, target, b"x")


def finish(
    request: InFlight,
    wire: str,
    dialect: Dialect,
    *,
    start_ns: int = 0,
    with_fast_path: bool = True,
) -> RequestRecord:
    """Reads a response that is over."""
    event_counter = fast_path_of(wire) if with_fast_path else None
    for _ in ResponseReader(WIRES[wire], dialect, event_counter, start_ns).finish(request):
        pass
    return request.record


def gaps_us(request: InFlight) -> array[int] | None:
    """The gaps between its chunks; None where no content came."""
    return None if request.gaps is None else request.gaps.gaps_us


def tokens_per_chunk(request: InFlight) -> array[int] | None:
    """The tokens of its chunks; None where each held one, or where they are unknown."""
    return None if request.gaps is None else request.gaps.tokens_per_chunk


def record_of(row: Mapping[str, Any]) -> RequestRecord:
    """The record of a row of ``requests``."""
    names = {field.name for field in fields(RequestRecord)}
    return RequestRecord(**{name: row.get(name) for name in names})

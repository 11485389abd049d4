"""A point of a mix, measured twice, and limits on its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.analysis.slo import parse_slo
from orchestrator.results.store import Store
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import commit_measurement, failed_request, request

SLO_TEXT = "chat:ttft<=150ms,rag:ttft<=1s,rag:attainment>=0.5,attainment>=0.9"
SLO = parse_slo(SLO_TEXT)
WINDOW = MeasuredWindow(0, 10**9)


def rows_of(repeat: int) -> list[dict[str, Any]]:
    """Eight chats of 100 ms to the first token (110 ms in the second repeat), four longer requests
    of another part, one of which failed.
    """
    first_ms = 100 + 10 * repeat
    chats = [
        request(n, 50 * n, first_ms=50 * n + first_ms, last_ms=50 * n + 200, tokens=5, part="chat")
        for n in range(8)
    ]
    rags = [
        request(8 + n, 60 * n, first_ms=60 * n + 400, last_ms=60 * n + 700, tokens=9, part="rag")
        for n in range(3)
    ]
    return [*chats, *rags, failed_request(11, 300, part="rag")]


def store_of_mix(folder: Path) -> Store:
    """A store with both repeats of the point."""
    store = Store.open(str(folder), "exp")
    for repeat in range(2):
        commit_measurement(
            store,
            f"m{repeat}",
            rows_of(repeat),
            attempt_id=f"a{repeat}",
            repeat=repeat,
            window_end_ns=WINDOW.end_ns,
        )
    return store

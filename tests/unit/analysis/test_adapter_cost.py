"""The latencies of adapters beside those of the model itself, of one attempt."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from orchestrator.analysis.adapter_cost import adapter_cost_of
from orchestrator.results.lazy_rows import LazyRows
from orchestrator.results.row_writer import RowWriter
from orchestrator.results.schemas import REQUESTS
from orchestrator.results.window import MeasuredWindow

MS = 1_000_000
WINDOW = MeasuredWindow(0, 10**12)


def row(index: int, adapter: str | None, ttft_ms: int, tpot_ms: int, **more: Any) -> dict[str, Any]:
    first_ns = index * MS + ttft_ms * MS
    return {
        "measurement_id": "m",
        "attempt_id": "a",
        "request_index": index,
        "client": 0,
        "replica": 0,
        "phase": "measure",
        "adapter": adapter,
        "scheduled_ns": index * MS,
        "sent_ns": index * MS,
        "first_token_ns": first_ns,
        "last_token_ns": first_ns + 10 * tpot_ms * MS,
        "done_ns": first_ns + 10 * tpot_ms * MS,
        "input_tokens_asked": 5,
        "output_tokens_asked": 11,
        "output_tokens": 11,
        "output_tokens_counted": 11,
        "chunks": 11,
        "coalesced_chunks": 0,
        "itl_kind": "token",
        "status": "ok",
        **more,
    }


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([*rows], schema=REQUESTS)


def test_medians_of_adapters_stand_beside_those_of_the_model_itself() -> None:
    adapters = [row(index, "ab"[index % 2], 40 + index, 12) for index in range(7)]
    base = [row(10 + index, None, 20 + index, 10) for index in range(5)]
    failed = row(20, "c", 900, 900, status="error")
    warm_up = row(21, "d", 900, 900, phase="warmup")
    cost = adapter_cost_of(table(*adapters, *base, failed, warm_up), WINDOW)
    assert cost is not None
    assert cost.adapter_share == pytest.approx(7 / 12)
    assert cost.adapters_asked == 2
    assert (cost.adapter_ttft_ms, cost.adapter_tpot_ms) == (43, 12)
    assert (cost.base_ttft_ms, cost.base_tpot_ms) == (22, 10)


def test_too_few_requests_have_no_median() -> None:
    few = [row(index, "a", 40, 12) for index in range(4)]
    cost = adapter_cost_of(
        table(*few, *(row(9 + index, None, 20, 9) for index in range(6))), WINDOW
    )
    assert cost is not None
    assert (cost.adapter_ttft_ms, cost.adapter_tpot_ms) == (None, None)
    assert (cost.base_ttft_ms, cost.base_tpot_ms) == (20, 9)


def test_without_adapters_there_is_no_cost() -> None:
    assert adapter_cost_of(table(row(0, None, 1, 1)), WINDOW) is None
    assert adapter_cost_of(REQUESTS.empty_table(), WINDOW) is None


def test_rows_of_several_clients_have_the_same_cost() -> None:
    asked = [row(index, "ab"[index % 2] if index < 7 else None, 40, 12) for index in range(14)]
    whole = adapter_cost_of(table(*asked), WINDOW)
    parts = []
    for client in range(2):
        part = table(*asked[client::2])
        writer = RowWriter("requests")
        writer.write("requests", part)
        parts += writer.finish()
        writer.close()
    assert adapter_cost_of(LazyRows.of("requests", parts), WINDOW) == whole


def test_in_a_mix_only_requests_of_the_same_part_are_compared() -> None:
    asked = [row(index, "sql", 400, 12, part="rag") for index in range(9)]
    base_of_rag = [row(10 + index, None, 300, 10, part="rag") for index in range(9)]
    chat = [row(20 + index, None, 20, 5, part="chat") for index in range(50)]
    cost = adapter_cost_of(table(*asked, *base_of_rag, *chat), WINDOW)
    assert cost is not None
    assert (cost.adapter_ttft_ms, cost.base_ttft_ms) == (400, 300)
    assert (cost.adapter_tpot_ms, cost.base_tpot_ms) == (12, 10)
    without = adapter_cost_of(table(*asked, *chat), WINDOW)
    assert without is not None
    assert (without.adapter_ttft_ms, without.base_ttft_ms) == (None, None)
    assert without.adapter_share == pytest.approx(9 / 59)

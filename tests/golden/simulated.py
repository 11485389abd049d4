"""The rows that a sweep in virtual time stores: every table, every column.

Each run makes its own ids of launches and attempts, and events carry the wall clock. They are masked,
and rows are put in the order of what is left.
"""

from __future__ import annotations

import json
import re
import tempfile

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.results.schemas import RECORDS
from orchestrator.results.store import Store
from tests.unit.sweep.simulation import node, plan_of, reply, sweep, world_of

CASES = "{tensor_parallel_size: 1}, {tensor_parallel_size: 2}, {tensor_parallel_size: 4}"
DIED = Failure(FailureKind.ENGINE_DEAD, "It died.")
ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
WALL_CLOCK = {"events": ("unix_ns",)}


def simulated_tables() -> str:
    """All rows as JSON, table by table.

    Three deployments are measured on two nodes. One launch dies, one point is slowed down by its
    clients, and the requests of one are refused.
    """
    replies = [tuple(reply(index, 1, 2, 3) for index in range(4)) for _ in range(8)]
    fails = {"load": [None, None, "slow", None, "refused", None], "ready": [None, DIED, None]}
    plan = plan_of(CASES, levels="8, 16", more="repeats: 2\n")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder, "x")
        sweep(world_of([node("a"), node("b")], fails=fails, replies=replies), plan, store)
        return json.dumps({table: masked_rows(store, table) for table in RECORDS}, indent=1) + "\n"


def masked_rows(store: Store, table: str) -> list[object]:
    rows: list[str] = []
    for row in store.read(table, include_failed=True).to_pylist():
        for column in WALL_CLOCK.get(table, ()):
            row[column] = "masked"
        rows.append(ID.sub("masked", json.dumps(row)))
    return [json.loads(row) for row in sorted(rows)]

"""Stores the events of a sweep that happened after its last launch was committed."""

import time
from collections.abc import Sequence

from orchestrator import __version__
from orchestrator.results.events import Event
from orchestrator.results.ids import new_ulid
from orchestrator.results.manifest import Manifest
from orchestrator.results.records import EventRow
from orchestrator.results.schemas import table_of
from orchestrator.results.store import Store


def commit_events(store: Store, events: Sequence[Event]) -> None:
    """Write the events and a manifest for the end of the sweep. Write nothing if the sweep had
    nothing to do.
    """
    if all(event.kind == "sweep" for event in events):
        return
    sweep_id = new_ulid()
    rows = table_of([event.row() for event in events], EventRow)
    part = store.write_part(
        "events", rows, measurement_id=sweep_id, attempt_id=sweep_id, writer="driver"
    )
    manifest = Manifest(
        kind="sweep",
        measurement_id=sweep_id,
        attempt_id=sweep_id,
        status="ok",
        created_unix_ns=time.time_ns(),
        files=(part,),
        client_version=__version__,
    )
    store.commit(manifest)

"""``orchestrator load --find-capacity``: searches, with progress on stderr, answer on stdout."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from orchestrator.cli.signals import INTERRUPTED, stops
from orchestrator.report.as_json import search_json
from orchestrator.report.documents.search import PlannedProbe, SearchedEndpoint, search_document
from orchestrator.report.formats import json_text
from orchestrator.report.live import live_load
from orchestrator.report.load_runs import stored_csv
from orchestrator.report.search_progress import search_text
from orchestrator.report.text import echo
from orchestrator.results.store import Store
from orchestrator.sweep.find_capacity import CapacityResult, CapacitySearch

if TYPE_CHECKING:
    from orchestrator.load.point import Target
    from orchestrator.plan.model import Plan
    from orchestrator.sweep.detect_dialect import EndpointDialect


def show_capacity(
    plan: Plan,
    target: Target,
    detected: EndpointDialect,
    notes: Sequence[str],
    results: str | None,
    form: str,
    clients: int,
) -> int:
    """Searches, and prints what is known at the end, even if the search was interrupted.

    Returns the exit status.
    """
    stop = threading.Event()
    with ExitStack() as at_end:
        uri = results or at_end.enter_context(tempfile.TemporaryDirectory(prefix="capacity-"))
        store = Store.open(uri, plan.name)
        store.check_writable()
        store.check_not_simulated()
        store.write_plan(plan.to_json())
        for note in notes:
            echo(f"note: {note}", err=True)
        at_end.enter_context(stops(stop))
        with live_load() as shown:
            search = CapacitySearch(
                plan=plan,
                target=target,
                detected=detected,
                store=store,
                clients=clients,
                tell=shown,
                stopped=stop.is_set,
            )
            result = search.run()
        endpoint = SearchedEndpoint(
            url=target.url,
            model=target.model,
            clients=clients,
            emulated=detected.emulated,
            results=results,
            name=None if results is None else plan.name,
        )
        next_probe = None
        if result.next is not None:
            next_probe = PlannedProbe(result.next.level.value, result.next.seconds)
        document = search_document(endpoint, plan, result.claim, result.probes, next_probe, notes)
        if form == "csv":  # here, while a temporary folder still exists
            click.echo(stored_csv(store), nl=False)
    if result.failure is not None:
        echo(f"note: the search ended: {result.failure.sentence}", err=True)
    if form == "json":
        click.echo(json_text(search_json(document)))
    elif form == "table":
        echo("\n".join(search_text(document)))
    return exit_status(result)


def exit_status(result: CapacityResult) -> int:
    """0 if the search has an answer: a claim, an estimate, or that nothing holds.

    130 if it was interrupted; 3 if nothing is known, or if a failure ended the search.
    """
    if result.interrupted:
        return INTERRUPTED
    claim = result.claim
    is_known = claim.claim is not None or claim.estimate is not None
    has_answer = is_known or claim.status == "nothing_holds"
    return 0 if has_answer and result.failure is None else 3

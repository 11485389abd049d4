"""How far ``load`` is: a line on a terminal's stderr that is renewed while clients load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from orchestrator.results.events import Event, Listener, Phase


@contextmanager
def progress_line(requests: int | None) -> Iterator[Listener | None]:
    """Who draws it; None elsewhere than on a terminal, so that clients stay undisturbed. ``requests``: if known."""
    if not sys.stderr.isatty():
        yield None
        return
    total = f"/{requests}" if requests else ""

    def show(item: Event | Phase) -> None:
        if isinstance(item, Event) or item.requests is None:
            return
        counts = item.requests
        failed = f"  {counts.failed} failed" if counts.failed else ""
        click.echo(
            f"\r\x1b[K{max(0.0, item.elapsed_s):5.0f} s  sent {counts.done + counts.in_flight}{total}  "
            f"done {counts.done}  in flight {counts.in_flight}{failed}",
            err=True,
            nl=False,
        )

    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)

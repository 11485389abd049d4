"""``orchestrator results --launches`` as a table: what was predicted of every start and what the engine reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.spec.environments import is_version

if TYPE_CHECKING:
    from rich.table import Table


def launches_table(launches: Sequence[dict[str, Any]]) -> Table:
    """``launches``: those that served, as analysis/launches.py gives them."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("deployment", overflow="fold", ratio=1)
    table.add_column("engine version", overflow="fold")
    for name in ("ready\nafter s", *(f"{title}\npredicted\nreported" for title, _, _ in COLUMNS)):
        table.add_column(name, justify="right", no_wrap=True)
    for one in launches:
        badge = "\n[yellow]emulated[/]" if one["emulated"] else ""
        ready = "-" if one["ready_s"] is None else f"{one['ready_s']:.1f}"
        cells = [_cell(one["figures"][name], form) for _, name, form in COLUMNS]
        table.add_row(escape(one["label"]) + badge, escape(_version(one["engine_version"])), ready, *cells)
    return table


def _version(version: dict[str, str | None]) -> str:
    """The reported one; what was asked for too, where that says something else."""
    asked, reported = version["asked"], version["reported"] or "not said"
    return reported if asked is None or is_version(asked, reported) else f"{reported}\n(asked {asked})"


def _cell(figure: dict[str, Any], form: Callable[[float], str]) -> str:
    """Predicted, reported, and how far off the prediction was."""
    values = [figure["predicted"], figure["reported"]]
    if values == [None, None]:
        return "-"
    lines = ["-" if value is None else form(value) for value in values]
    difference = figure["difference_percent"]
    return "\n".join([*lines, *([] if difference is None else [f"[dim]{difference:+.1f} %[/]"])])


def size(count: float) -> str:
    """Bytes in the unit that leaves three digits or so: ``13.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:,.1f} GiB"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("weights", "weight_bytes", size),
    ("KV cache", "kv_cache_bytes", size),
    ("KV tokens", "kv_cache_tokens", lambda value: f"{value:,.0f}"),
    ("concurrency", "max_concurrency", lambda value: f"{value:,.1f}"),
)

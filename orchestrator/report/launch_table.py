"""Starts of engines, predicted beside reported: ``orchestrator results --launches``; their logs:
``logs``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.analysis.launches import Predicted, StoredLaunch, load_launches
from orchestrator.report.point_table import failure_text
from orchestrator.report.text import Column, plain, say, size_text, table
from orchestrator.results.store import Store
from orchestrator.spec.settings import is_version

_EMULATED = (
    "emulated: an emulator computes its figures by the plan's own rules; that they agree "
    "proves nothing"
)
_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("weights", "weight_bytes", size_text),
    ("KV cache", "kv_cache_bytes", size_text),
    ("KV tokens", "kv_cache_tokens", lambda value: f"{value:,.0f}"),
    ("concurrency", "max_concurrency", lambda value: f"{value:,.1f}"),
)
# Columns of what is never predicted, shown where an engine reported it.
_SAID: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("checkpoint\nread", "checkpoint_bytes", size_text),  # of all ranks, as it lies on the disk
    (
        "kernel of\nweights",
        "quantization_kernel",
        lambda name: name.removesuffix("Kernel").removesuffix("Linear"),
    ),
    ("network", "network", lambda name: "TCP" if name == "Socket" else str(name)),
    ("KV caches\nover", "kv_transport", str),
)


def launches_text(launches: Sequence[StoredLaunch]) -> Iterator[str]:
    """A table of the launches that served; below it the failed ones, and where their logs are."""
    served = [one for one in launches if one.row.status == "ok"]
    failed = [one for one in launches if one.row.status != "ok"]
    if served:
        titles = ["ready\nafter s", *(f"{title}\npredicted\nreported" for title, _, _ in _FIGURES)]
        said = [one for one in _SAID if any(launch.reported.get(one[1]) for launch in served)]
        columns = [
            Column("deployment", fold=True),
            Column("engine version", fold=True),
            *map(Column, titles),
        ]
        columns += [Column(title) for title, _, _ in said]
        yield from table(
            columns,
            [[*_cells(one), *(_said(one, name, form) for _, name, form in said)] for one in served],
        )
        yield ""
    if any(one.row.emulated for one in launches):
        yield say(_EMULATED, "yellow")
    for one in failed:
        yield say(f"failed: {one.label}: {failure_text(one.row)}", "red")
        if one.row.log_uri:
            yield say(f"  log: {one.row.log_uri}")
    yield say(f"launches: {len(served)} served, {len(failed)} failed", "dim")


def log_text(store: Store, deployment: str | None, lines: int) -> Iterator[str]:
    """The last lines of the logs of failed launches, or of all launches of one deployment.
    ``lines`` 0: whole logs.
    """
    for launch in load_launches(store):
        row = launch.row
        wanted = row.status != "ok" if deployment is None else _is(launch, deployment)
        if not wanted:
            continue
        state = "served" if row.status == "ok" else f"failed: {failure_text(row)}"
        yield say(f"{launch.label}, launch {row.launch_id}: {state}", "bold")
        stored = store.read_log(row.log_uri) if row.log_uri else None
        text = (
            stored.decode(errors="replace")
            if stored is not None
            else row.log_tail or "no log was stored"
        )
        yield from (plain(line) for line in text.splitlines()[-lines:])
        yield say(f"  log: {row.log_uri}" if row.log_uri else "", "dim")


def _is(launch: StoredLaunch, name: str) -> bool:
    ids = (launch.row.deployment_id, launch.row.launch_id)
    return name in launch.label or any(one.startswith(name) for one in ids)


def _cells(launch: StoredLaunch) -> list[str]:
    badge = "\nemulated" if launch.row.emulated else ""
    ready = "-" if launch.row.ready_s is None else f"{launch.row.ready_s:.1f}"
    return [
        launch.label + badge,
        _version(launch),
        ready,
        *(_cell(launch.figures[n], f) for _, n, f in _FIGURES),
    ]


def _said(launch: StoredLaunch, name: str, form: Callable[[Any], str]) -> str:
    return form(value) if (value := launch.reported.get(name)) else "-"


def _version(launch: StoredLaunch) -> str:
    """The version that was reported; also the one that was asked for, where they differ."""
    asked = launch.deployment.engine_version if launch.deployment else None
    reported = launch.row.engine_version or "not said"
    known = launch.reported.get("flags_known_as_of")
    said = f"{reported}\n(flags as of {known})" if known else str(reported)
    return said if asked is None or is_version(asked, reported) else f"{said}\n(asked {asked})"


def _cell(one: Predicted, form: Callable[[float], str]) -> str:
    """Predicted, reported, and how far off the prediction was."""
    if one.predicted is None and one.reported is None:
        return "-"
    lines = ["-" if value is None else form(value) for value in (one.predicted, one.reported)]
    return "\n".join(
        [*lines, *([] if one.difference_percent is None else [f"{one.difference_percent:+.1f} %"])]
    )

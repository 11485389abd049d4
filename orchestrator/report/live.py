"""What ``run`` shows on stderr while it works: bars on a terminal, one line per event elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.results.events import Event, Phase
from orchestrator.spec.load import format_duration

QUIET_KINDS = frozenset({"launch"})
STYLES = {
    "failed": "red",
    "gave_up": "red",
    "engine_died": "red",
    "retry": "yellow",
    "budget": "yellow",
    "measured": "green",
}


class LiveSweep:
    """Context manager and listener of a sweep."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._phases: dict[str, tuple[Phase, float]] = {}
        self._total = self._ended = self._failed = 0
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> LiveSweep:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, item: Event | Phase) -> None:
        with self._lock:
            line = self._phase(item) if isinstance(item, Phase) else self._event(item)
        if line is not None:  # printed outside: rich holds a lock of its own while it asks _render for the state
            self._console.print(line, highlight=False, soft_wrap=True)

    def _phase(self, phase: Phase) -> Text | None:
        before = self._phases.get(phase.deployment)
        if phase.name == "ended":
            self._phases.pop(phase.deployment, None)
            return None
        same = before is not None and (before[0].name, before[0].detail) == (phase.name, phase.detail)
        since = before[1] if same and before else time.monotonic()
        self._phases[phase.deployment] = (phase, since)
        if same or self._console.is_terminal:
            return None
        return Text(f"{self._clock()} {phase.deployment}: {phase.name} {phase.detail}".rstrip())

    def _event(self, event: Event) -> Text | None:
        if event.kind == "sweep":
            self._total = int(event.data.get("total", 0))
        if event.kind in ("measured", "failed"):
            self._ended += 1
            self._failed += event.kind == "failed"
        if event.kind in QUIET_KINDS:
            return None
        line = Text(f"{self._clock()} ")
        line.append(f"{event.deployment}: " if event.deployment else "", style="bold")
        line.append(event.text, style=STYLES.get(event.kind, ""))
        if self._total and event.kind in ("measured", "failed"):
            line.append(f"  [{self._ended}/{self._total}]")
        return line

    def _clock(self) -> str:
        return time.strftime("%H:%M:%S")

    def _render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        with self._lock:
            phases = list(self._phases.items())
        for label, (phase, since) in phases:
            elapsed = phase.elapsed_s or time.monotonic() - since
            bar = ProgressBar(total=phase.total_s or None, completed=elapsed, width=24, pulse=not phase.total_s)
            clock = f"{elapsed:.0f}/{phase.total_s:.0f} s" if phase.total_s else f"{elapsed:.0f} s"
            counts = ""
            if phase.requests:
                now = phase.requests
                counts = f"{now.done} done, {now.in_flight} in flight" + (
                    f", {now.failed} failed" if now.failed else ""
                )
            grid.add_row(Text(label, style="bold"), phase.name, phase.detail, bar, clock, counts)
        rate = (time.monotonic() - self._began) / self._ended if self._ended else 0.0
        left = f", about {format_duration(round(rate * (self._total - self._ended)))} left" if rate else ""
        failed = f", {self._failed} failed" if self._failed else ""
        head = Text(f"{self._ended} of {self._total} measurements{failed}{left}")
        return Group(head, ProgressBar(total=max(1, self._total), completed=self._ended, width=60), grid)

"""What ``run`` and ``load`` show on stderr while they work: bars on a terminal, one line per event
elsewhere.
"""

from __future__ import annotations

import textwrap
import threading
import time
from dataclasses import dataclass
from types import TracebackType

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.results.events import Event, LaunchState, Phase, PhaseName
from orchestrator.spec.load import counted, hours

QUIET_KINDS = frozenset({"launch", "nodes_wanted", "waiting"})  # events that a phase shows already
# logged as they begin; others only once they take long
LOGGED_PHASES = frozenset({PhaseName.WAIT_FOR_NODES, PhaseName.START})
# nothing is measured while all launches are in one of these: the time that is left does not pass
IDLE_STATES = frozenset({LaunchState.QUEUED, LaunchState.PLACING, LaunchState.OCCUPIED})
STYLES = {
    "failed": "red",
    "gave_up": "red",
    "engine_died": "red",
    "retry": "yellow",
    "stopping": "yellow",
    "budget": "yellow",
    "measured": "green",
}
BAR = 24  # columns
# without a terminal: how often a phase that goes on is logged again
STILL_S, LOAD_STILL_S = 60.0, 10.0
MOST_LINES = 4  # of the terminal, for one sentence
MOST_DETAIL = 100  # characters of what an engine says


@dataclass(slots=True)
class _Shown:
    """A phase, when it began, and when it was last printed (``time.monotonic``)."""

    phase: Phase
    since_s: float
    said_s: float


class LiveSweep:
    """Shows a sweep's events and phases, from ``__enter__`` to ``__exit__``. Call it with each of
    them.
    """

    def __init__(self, console: Console, still_s: float | None = None) -> None:
        self._console, self._still_s = console, still_s or STILL_S
        self._lock = threading.Lock()
        self._phases: dict[str, _Shown] = {}
        self._total = self._ended = self._failed = 0
        self._end_s: float | None = None  # when the sweep is expected to end
        self._idle_since_s: float | None = None  # since when all launches only wait
        self._over = threading.Event()
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> LiveSweep:
        if self._console.is_terminal:
            self._live.start()
        else:
            threading.Thread(target=self._keep_saying, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._console.is_terminal:
            self._live.stop()

    @property
    def drawn(self) -> bool:
        """Whether it redraws all the time, which takes CPU time from the rest of this process."""
        return self._console.is_terminal

    def __call__(self, item: Event | Phase) -> None:
        with self._lock:
            line = self._phase(item) if isinstance(item, Phase) else self._event(item)
        # printed outside: rich holds a lock of its own while it asks _render for the state
        if line is not None:
            self.say(line)

    def say(self, text: Text | str) -> None:
        """Print a line above the live display; on a terminal it is wrapped between words."""
        self._console.print(
            text, highlight=False, markup=False, soft_wrap=not self._console.is_terminal
        )

    def _phase(self, phase: Phase) -> Text | None:
        now_s, before = time.monotonic(), self._phases.get(phase.deployment)
        if phase.is_over:
            self._phases.pop(phase.deployment, None)
            self._stop_or_start_countdown(now_s)
            return None
        if before is not None and (before.phase.name, before.phase.detail) == (
            phase.name,
            phase.detail,
        ):
            before.phase = phase
            return None
        self._phases[phase.deployment] = _Shown(phase, now_s, now_s)
        self._stop_or_start_countdown(now_s)
        if self._console.is_terminal or phase.name not in LOGGED_PHASES:
            return None
        return Text(f"{_clock()} {_named(phase)}")

    def _stop_or_start_countdown(self, now_s: float) -> None:
        """The time that is left does not pass while nothing but waiting is done."""
        states = {shown.phase.state for shown in self._phases.values()}
        is_idle = bool(states) and states <= IDLE_STATES
        if is_idle and self._idle_since_s is None:
            self._idle_since_s = now_s
        elif not is_idle and self._idle_since_s is not None:
            if self._end_s is not None:
                self._end_s += now_s - self._idle_since_s
            self._idle_since_s = None

    def _event(self, event: Event) -> Text | None:
        if event.kind == "sweep":
            self._total = int(event.data.get("total", 0))
        if event.kind in ("measured", "failed"):
            self._ended += 1
            self._failed += event.kind == "failed"
            # a search asks for more
            self._total = max(self._total, self._ended + int(event.data.get("left", 0)))
        if "left_s" in event.data:
            self._end_s = time.monotonic() + float(event.data["left_s"])
        if event.kind in QUIET_KINDS or "told" in event.data:
            return None
        line = Text(f"{_clock()} ")
        line.append(f"{event.deployment}: " if event.deployment else "", style="bold")
        line.append(event.text, style=STYLES.get(event.kind, ""))
        if self._total and event.kind in ("measured", "failed"):
            line.append(f"  [{self._ended}/{self._total}{self._left()}]")
        return line

    def _left(self) -> str:
        """The time that is left, where it is known and something is left to do."""
        if self._end_s is None or self._ended >= self._total:
            return ""
        if self._idle_since_s is None:
            return f", ~{hours(max(0.0, self._end_s - time.monotonic()))} left"
        return f", ~{hours(max(0.0, self._end_s - self._idle_since_s))} left after the wait"

    def _keep_saying(self) -> None:
        """A log never stands still for minutes: phases that go on are printed again, with their
        progress.
        """
        while not self._over.wait(min(1.0, self._still_s)):
            now_s, lines = time.monotonic(), []
            with self._lock:
                for shown in self._phases.values():
                    if now_s - shown.said_s >= self._still_s:
                        shown.said_s = now_s
                        lines.append(f"{_clock()} {_still(shown, now_s)}")
            for line in lines:
                self.say(line)

    def _render(self) -> RenderableType:
        now_s, width = time.monotonic(), self._console.width
        with self._lock:
            shown = list(self._phases.values())
            lines = (
                [self._head(), Text(_bar(self._ended / self._total, min(60, width)))]
                if self._total
                else []
            )
        waits = [one for one in shown if one.phase.state is LaunchState.OCCUPIED]
        shown = [one for one in shown if one.phase.state is not LaunchState.OCCUPIED]
        for one in waits:
            lines += _wrapped(_still(one, now_s), len(one.phase.deployment), width)
        firsts = [Text(_named(one.phase)) for one in shown]
        longest = max((one.cell_len for one in firsts), default=0)
        for first, one in zip(firsts, shown, strict=True):
            first.stylize("bold", 0, len(one.phase.deployment))
            second = Text(f"{_bar(_share(one, now_s), BAR)} {_progress(one, now_s)}")
            if longest + 2 + second.cell_len <= width:
                first.pad_right(longest - first.cell_len + 2)
                lines.append(first + second)
            else:
                lines += [first, Text("  ") + second]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Group(*lines)

    def _head(self) -> Text:
        failed = f", {self._failed} failed" if self._failed else ""
        return Text(f"{self._ended} of {counted(self._total, 'measurement')}{failed}{self._left()}")


def live_load() -> LiveSweep:
    """The live display of ``load``."""
    return LiveSweep(Console(stderr=True), LOAD_STILL_S)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _named(phase: Phase) -> str:
    name = f"{phase.name} {phase.detail}".rstrip()
    return f"{phase.deployment}: {name}" if phase.deployment else name


def _still(shown: _Shown, now_s: float) -> str:
    """A phase that goes on, and how far it is."""
    if shown.phase.state is LaunchState.OCCUPIED:
        waited = hours(_elapsed_s(shown, now_s))
        who = f"{shown.phase.deployment}: " if shown.phase.deployment else ""
        return f"{who}waiting {waited}: {shown.phase.says}"
    return f"{_named(shown.phase)}: {_progress(shown, now_s)}"


def _wrapped(text: str, bold: int, width: int) -> list[Text]:
    """A sentence that is too important to be cut off; ``bold``: how much of it."""
    lines = [
        Text(line)
        for line in textwrap.wrap(
            text, width, subsequent_indent="  ", break_on_hyphens=False, max_lines=MOST_LINES
        )
    ]
    lines[0].stylize("bold", 0, bold)
    return lines


def _elapsed_s(shown: _Shown, now_s: float) -> float:
    return max(0.0, shown.phase.elapsed_s or now_s - shown.since_s)


def _share(shown: _Shown, now_s: float) -> float | None:
    """How much of a phase is over, 0 to 1; None where that is not known."""
    phase, counts = shown.phase, shown.phase.requests
    if phase.total_s:
        return _elapsed_s(shown, now_s) / phase.total_s
    return counts.done / counts.total if counts and counts.total else None


def _progress(shown: _Shown, now_s: float) -> str:
    """Seconds, requests, and what the phase says of itself."""
    phase, counts, elapsed_s = shown.phase, shown.phase.requests, _elapsed_s(shown, now_s)
    parts = [f"{elapsed_s:.0f}/{phase.total_s:.0f} s" if phase.total_s else f"{elapsed_s:.0f} s"]
    if counts:
        of = f"/{counts.total}" if counts.total else ""
        parts.append(f"{counts.done}{of} done, {counts.in_flight} in flight")
        parts += [f"{counts.failed} failed"] if counts.failed else []
    says = "".join(filter(str.isprintable, click.unstyle(phase.says)))
    parts += [says[:MOST_DETAIL]] if says else []
    return ", ".join(parts)


def _bar(share: float | None, width: int) -> str:
    """A bar; dotted where the share is not known."""
    if share is None:
        return "┄" * width
    full = round(min(1.0, max(0.0, share)) * width)
    return "━" * full + "╌" * (width - full)

"""Shows on stderr what ``run`` and ``load`` do: bars on a terminal, elsewhere a line per event."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.base.text import counted, hours
from orchestrator.results.events import Event, measurements_left, standing_key, total_after
from orchestrator.results.phases import LaunchState, Phase, PhaseName

# kinds of events that a phase shows already, or that are printed before the sweep begins
QUIET_KINDS = frozenset({"host_facts", "launch", "nodes_wanted", "waiting", "shortlist"})
# phases that are logged as they begin; others are logged only once they take long
LOGGED_PHASES = frozenset({PhaseName.WAIT_FOR_NODES, PhaseName.START})
# While all launches are in one of these states, nothing is measured, so the time left stands still.
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
BAR = 24  # width in characters of a phase's bar
WIDEST_BAR = 60  # width in characters of the bar over all measurements
DRAWINGS_PER_S = 2.0  # on a terminal
REPEAT_LINE_S = 60.0  # without a terminal: how often a phase that goes on is logged again
LOAD_REPEAT_LINE_S = 10.0  # the same in ``load``
MOST_LINES = 4  # of a terminal, for one sentence
MOST_STANDINGS = 4  # shown on a terminal
MOST_DETAIL = 100  # characters of an engine's log line


@dataclass(slots=True)
class _Shown:
    """A phase, and when it began and was last printed (``time.monotonic``)."""

    phase: Phase
    since_s: float
    printed_s: float

    def is_same_as(self, phase: Phase) -> bool:
        """Whether ``phase`` is this one again, perhaps further on."""
        return (self.phase.name, self.phase.detail) == (phase.name, phase.detail)

    @property
    def is_occupied(self) -> bool:
        """Whether the launch waits because others hold its host."""
        return self.phase.state is LaunchState.OCCUPIED

    def elapsed_s(self, now_s: float) -> float:
        return max(0.0, self.phase.elapsed_s or now_s - self.since_s)


class LiveSweep:
    """Shows a sweep on a console from ``__enter__`` to ``__exit__``.

    It is called with each event and each phase of the sweep.
    """

    def __init__(
        self,
        console: Console,
        repeat_line_s: float | None = None,
        drawings_per_s: float = DRAWINGS_PER_S,
    ) -> None:
        self._console = console
        self._repeat_line_s = repeat_line_s or REPEAT_LINE_S
        self._drawing_s = 1 / drawings_per_s
        self._lock = threading.Lock()
        # One thread at a time: rich works out where the cursor is, and writes later. Reentrant, because
        # a signal's handler prints in whatever its thread was doing.
        self._screen = threading.RLock()
        self._phases: dict[str, _Shown] = {}  # by the deployment's label
        self._total = 0  # measurements that the sweep asks for
        self._ended = 0
        self._failed = 0
        self._left_by_label: dict[str, int] = {}  # measurements left of a deployment
        self._end_s: float | None = None  # when the sweep is expected to end
        self._idle_since_s: float | None = None  # since when all launches have only waited
        # the latest event on who leads each comparison, by ``standing_key``
        self._standings: dict[str, Event] = {}
        self._over = threading.Event()
        self._live = Live(
            get_renderable=self._render, console=console, auto_refresh=False, transient=True
        )
        keep_on = self._keep_drawing if console.is_terminal else self._keep_printing
        self._thread = threading.Thread(target=keep_on, daemon=True)

    def __enter__(self) -> LiveSweep:
        if self._console.is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._console.is_terminal:
            self._thread.join()
            self._live.stop()

    @property
    def drawn(self) -> bool:
        """Whether it redraws all the time, which takes CPU time from the rest of this process."""
        return self._console.is_terminal

    def __call__(self, item: Event | Phase) -> None:
        with self._lock:
            line = self._phase(item) if isinstance(item, Phase) else self._event(item)
        # printed outside this lock, which _render takes while the screen is locked
        if line is not None:
            self.print_line(line)

    def print_line(self, text: Text | str) -> None:
        """Prints a line above the live display; on a terminal it is wrapped between words."""
        with self._screen:
            self._console.print(
                text, highlight=False, markup=False, soft_wrap=not self._console.is_terminal
            )

    def _phase(self, phase: Phase) -> Text | None:
        now_s = time.monotonic()
        if phase.is_over:
            self._phases.pop(phase.deployment, None)
            self._stop_or_start_countdown(now_s)
            return None
        shown = self._phases.get(phase.deployment)
        if shown is not None and shown.is_same_as(phase):
            shown.phase = phase
            return None
        self._phases[phase.deployment] = _Shown(phase, now_s, now_s)
        self._stop_or_start_countdown(now_s)
        if self._console.is_terminal or phase.name not in LOGGED_PHASES:
            return None
        return Text(f"{_clock()} {_named(phase)}")

    def _stop_or_start_countdown(self, now_s: float) -> None:
        """Stops the countdown while all launches only wait, and starts it again afterwards."""
        states = {shown.phase.state for shown in self._phases.values()}
        is_idle = bool(states) and states <= IDLE_STATES
        if is_idle and self._idle_since_s is None:
            self._idle_since_s = now_s
        elif not is_idle and self._idle_since_s is not None:
            if self._end_s is not None:
                self._end_s += now_s - self._idle_since_s
            self._idle_since_s = None

    def _event(self, event: Event) -> Text | None:
        if event.kind == "standing":
            return self._standing(event)
        is_outcome = event.kind in ("measured", "failed")
        if event.kind == "sweep":
            self._total = int(event.data.get("total", 0))
        self._count(event)
        if "left_s" in event.data:
            self._end_s = time.monotonic() + float(event.data["left_s"])
        # "told": the measurement was given up with its deployment, and the reason was shown before
        # (sweep/launch_lifecycle.py: close)
        if event.kind in QUIET_KINDS or "told" in event.data:
            return None
        line = Text(f"{_clock()} ")
        if event.deployment:
            line.append(f"{event.deployment}: ", style="bold")
        line.append(event.text, style=STYLES.get(event.kind, ""))
        if self._total and is_outcome:
            line.append(f"  [{self._ended}/{self._total}{self._left()}]")
        return line

    def _standing(self, event: Event) -> Text | None:
        """Notes who leads; the line to print, if any.

        A terminal always shows the latest state. Elsewhere a line is printed when the leader
        changes, or the number of deployments that can still beat it.
        """
        key = standing_key(event)
        before = self._standings.get(key)
        self._standings[key] = event
        if self._console.is_terminal:
            return None
        if before is not None and _who_leads(before) == _who_leads(event):
            return None
        return Text(f"{_clock()} {event.text}")

    def _count(self, event: Event) -> None:
        if event.kind in ("measured", "failed"):
            self._ended += 1
        if event.kind == "failed":
            self._failed += 1
        left_before = self._left_by_label.get(event.deployment)
        self._total = total_after(event, self._total, self._ended, left_before)
        left = measurements_left(event)
        if left is not None:
            self._left_by_label[event.deployment] = left

    def _left(self) -> str:
        """The time left, to end a sentence; empty where it is unknown or nothing is left to do."""
        if self._end_s is None or self._ended >= self._total:
            return ""
        if self._idle_since_s is None:
            left_s = max(0.0, self._end_s - time.monotonic())
            return f", ~{hours(left_s)} left"
        left_s = max(0.0, self._end_s - self._idle_since_s)
        return f", ~{hours(left_s)} left after the wait"

    def _keep_drawing(self) -> None:
        while not self._over.wait(self._drawing_s):
            with self._screen:
                self._live.refresh()

    def _keep_printing(self) -> None:
        """Prints phases that go on again, so that a log never stands still for minutes."""
        while not self._over.wait(min(1.0, self._repeat_line_s)):
            now_s = time.monotonic()
            lines = []
            with self._lock:
                for shown in self._phases.values():
                    if now_s - shown.printed_s >= self._repeat_line_s:
                        shown.printed_s = now_s
                        lines.append(f"{_clock()} {_progress_line(shown, now_s)}")
            for line in lines:
                self.print_line(line)

    def _render(self) -> RenderableType:
        now_s = time.monotonic()
        width = self._console.width
        lines: list[Text] = []
        with self._lock:
            phases = list(self._phases.values())
            if self._total:
                share = self._ended / self._total
                lines += [self._head(), Text(_bar(share, min(WIDEST_BAR, width)))]
            standings = list(self._standings.values())
        for event in standings[:MOST_STANDINGS]:
            lines += _wrapped(event.text, 0, width)
        for shown in phases:
            if shown.is_occupied:
                lines += _wrapped(_progress_line(shown, now_s), len(shown.phase.deployment), width)
        working = [shown for shown in phases if not shown.is_occupied]
        lines += _phase_lines(working, now_s, width)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Group(*lines)

    def _head(self) -> Text:
        failed = f", {self._failed} failed" if self._failed else ""
        return Text(f"{self._ended} of {counted(self._total, 'measurement')}{failed}{self._left()}")


def live_load() -> LiveSweep:
    """The live display of ``load``."""
    return LiveSweep(Console(stderr=True), LOAD_REPEAT_LINE_S)


def _who_leads(event: Event) -> tuple[object, object]:
    """What an event of kind ``standing`` says apart from its figures."""
    return event.data.get("leader"), event.data.get("rivals")


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _named(phase: Phase) -> str:
    name = f"{phase.name} {phase.detail}".rstrip()
    return f"{phase.deployment}: {name}" if phase.deployment else name


def _phase_lines(phases: Sequence[_Shown], now_s: float, width: int) -> list[Text]:
    """Each phase with its bar beside it, or below it where a line has no room for both."""
    lines: list[Text] = []
    names = [Text(_named(shown.phase)) for shown in phases]
    longest = max((name.cell_len for name in names), default=0)
    for name, shown in zip(names, phases, strict=True):
        name.stylize("bold", 0, len(shown.phase.deployment))
        progress = Text(f"{_bar(_share(shown, now_s), BAR)} {_progress(shown, now_s)}")
        if longest + 2 + progress.cell_len <= width:
            name.pad_right(longest - name.cell_len + 2)
            lines.append(name + progress)
        else:
            lines += [name, Text("  ") + progress]
    return lines


def _progress_line(shown: _Shown, now_s: float) -> str:
    """The line of a phase that goes on: how far it is, or for how long it has been waiting."""
    phase = shown.phase
    if not shown.is_occupied:
        return f"{_named(phase)}: {_progress(shown, now_s)}"
    deployment = f"{phase.deployment}: " if phase.deployment else ""
    return f"{deployment}waiting {hours(shown.elapsed_s(now_s))}: {phase.says}"


def _wrapped(text: str, bold: int, width: int) -> list[Text]:
    """Wraps a sentence that is too important to be cut off at the first line.

    ``bold``: how many characters at its beginning are bold.
    """
    parts = textwrap.wrap(
        text, width, subsequent_indent="  ", break_on_hyphens=False, max_lines=MOST_LINES
    )
    lines = [Text(part) for part in parts]
    lines[0].stylize("bold", 0, bold)
    return lines


def _share(shown: _Shown, now_s: float) -> float | None:
    """How much of a phase is over, 0 to 1; None where that is not known."""
    phase = shown.phase
    if phase.total_s:
        return shown.elapsed_s(now_s) / phase.total_s
    if phase.requests is None or not phase.requests.total:
        return None
    return phase.requests.done / phase.requests.total


def _progress(shown: _Shown, now_s: float) -> str:
    """The seconds and requests of a phase, and the engine's last log line."""
    phase = shown.phase
    requests = shown.phase.requests
    elapsed = f"{shown.elapsed_s(now_s):.0f}"
    parts = [f"{elapsed}/{phase.total_s:.0f} s" if phase.total_s else f"{elapsed} s"]
    if requests is not None:
        done = f"{requests.done}/{requests.total}" if requests.total else f"{requests.done}"
        parts.append(f"{done} done, {requests.in_flight} in flight")
        if requests.failed:
            parts.append(f"{requests.failed} failed")
    log_line = "".join(filter(str.isprintable, click.unstyle(phase.says)))
    if log_line:
        parts.append(log_line[:MOST_DETAIL])
    return ", ".join(parts)


def _bar(share: float | None, width: int) -> str:
    """A bar; dotted where the share is unknown."""
    if share is None:
        return "┄" * width
    full = round(min(1.0, max(0.0, share)) * width)
    return "━" * full + "╌" * (width - full)

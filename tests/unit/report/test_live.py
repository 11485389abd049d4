"""What ``run`` shows while it works."""

from __future__ import annotations

import io
import sys
import threading
import time
from typing import Any

import pytest
from rich.console import Console

from orchestrator.report.live import LiveSweep, live_load
from orchestrator.results.events import Event
from orchestrator.results.phases import SWEEP, Phase, PhaseName, RequestProgress, SweepStep
from tests.harness import wait_for

LONG = "vllm tp=8 pp=2 quantization=fp8_per_tensor max_num_seqs=512"


def log_lines(text: str) -> list[str]:
    """The lines of a job's log, without the times at their beginnings."""
    return [line[len("12:34:56 ") :] for line in text.splitlines()]


def logged(*items: Event | Phase) -> list[str]:
    """What a job's log says of these events and phases."""
    out = io.StringIO()
    with LiveSweep(Console(file=out, width=80)) as live:
        for item in items:
            live(item)
    return log_lines(out.getvalue())


def shown(width: int, *items: Event | Phase) -> list[str]:
    """What is drawn after these events and phases on a terminal of so many columns."""
    live = LiveSweep(Console(file=io.StringIO(), force_terminal=True, width=width, height=40))
    for item in items:
        live(item)
    return drawn_lines(live, width)


def drawn_lines(live: LiveSweep, width: int) -> list[str]:
    """The lines that the live view redraws, below those that were printed."""
    out = io.StringIO()
    Console(file=out, width=width).print(live._render())
    return out.getvalue().splitlines()


def test_without_a_terminal_each_change_is_one_line() -> None:
    assert logged(
        Event("sweep", "2 measurements to do", data={"total": 2}),
        Phase(LONG, PhaseName.START),
        Phase(LONG, PhaseName.START, elapsed_s=1.0),
        Phase(LONG, PhaseName.MEASURE, "chat 4 req/s"),
        Phase(LONG, PhaseName.STORE, "chat 4 req/s"),
        Event(
            "measured",
            "measured chat 4 req/s: 402 tok/s, TTFT p99 151 ms",
            LONG,
            data={"left_s": 720},
        ),
        Event(
            "measured",
            "measured chat 8 req/s: 640 tok/s, TTFT p99 260 ms",
            LONG,
            data={"left_s": 0},
        ),
        Phase(LONG, PhaseName.ENDED),
    ) == [
        "2 measurements to do",
        f"{LONG}: start",
        f"{LONG}: measured chat 4 req/s: 402 tok/s, TTFT p99 151 ms  [1/2, ~12 min left]",
        f"{LONG}: measured chat 8 req/s: 640 tok/s, TTFT p99 260 ms  [2/2]",
    ]


def test_why_a_launch_failed_is_said_once_and_all_its_measurements_are_counted() -> None:
    why = "No room: the cluster's 1 node cannot hold it."
    assert logged(
        Event("sweep", "3 measurements to do", data={"total": 3}),
        Event("gave_up", why, "one"),
        Event("failed", f"failed chat 4 req/s: {why}", "one", data={"told": True}),
        Event("failed", f"failed chat 8 req/s: {why}", "one", data={"told": True}),
        Event("measured", "measured chat 4 req/s", "two"),
    ) == ["3 measurements to do", f"one: {why}", "two: measured chat 4 req/s  [3/3]"]


def test_what_goes_on_for_long_is_said_again_with_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.report.live.REPEAT_LINE_S", 0.05)
    out = io.StringIO()
    with LiveSweep(Console(file=out, width=80)) as live:
        live(
            Phase(
                "vllm",
                PhaseName.START,
                elapsed_s=125.0,
                total_s=1800.0,
                says="\x1b[32mLoading shards 3/15\x1b[0m\x07",
            )
        )
        live(Phase(SWEEP, SweepStep.STORE_PLAN))
        wait_for(lambda: out.getvalue().count("\n") >= 6, 10.0, "lines")
    lines = log_lines(out.getvalue())
    assert "vllm: start: 125/1800 s, Loading shards 3/15" in lines
    assert "sweep: store the plan: 0 s" in lines


@pytest.mark.parametrize("width", [40, 80, 160])
def test_on_a_terminal_every_launch_is_shown_in_whole_lines(width: int) -> None:
    lines = shown(
        width,
        Event("sweep", "36 measurements to do", data={"total": 36}),
        Event("failed", "failed chat 1 req/s: it died", "vllm tp=2", data={"left_s": 7200}),
        Phase(
            "vllm tp=2",
            PhaseName.MEASURE,
            "chat 6 in flight",
            elapsed_s=8.0,
            total_s=15.0,
            requests=RequestProgress(done=41, in_flight=6, failed=2),
        ),
        Phase(
            LONG,
            PhaseName.START,
            elapsed_s=125.0,
            total_s=1800.0,
            says="Loading shards " + "3/15 " * 40,
        ),
    )
    head = "1 of 36 measurements, 1 failed, ~120 min left"
    assert lines[0] == head or lines[0] == head[: width - 1] + "…"
    assert set(lines[1]) <= {"━", "╌"}
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    if width < 160:  # each phase has a line that names it, and one that says how far it is
        assert len(lines) == 6
        assert lines[2] == "vllm tp=2: measure chat 6 in flight"
        assert lines[3].startswith("  ━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌ 8/15 s")
    if width >= 80:
        assert "8/15 s, 41 done, 6 in flight, 2 failed" in text
        assert "125/1800 s, Loading shards 3/15" in text


def test_a_point_of_so_many_requests_shows_how_many_of_them_are_done() -> None:
    requests = RequestProgress(done=30, in_flight=4, failed=0, total=40)
    phase = Phase("", PhaseName.MEASURE, "load 4 in flight", elapsed_s=3.0, requests=requests)
    bar = "━" * 18 + "╌" * 6
    assert shown(80, phase) == [f"measure load 4 in flight  {bar} 3 s, 30/40 done, 4 in flight"]


def test_elsewhere_than_on_a_terminal_load_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.report.live.LOAD_REPEAT_LINE_S", 0.05)
    phase = Phase(
        "",
        PhaseName.MEASURE,
        "load 4 req/s",
        elapsed_s=12.0,
        total_s=60.0,
        requests=RequestProgress(done=48, in_flight=3, failed=1),
    )
    log = ""

    def has_line() -> bool:
        nonlocal log
        log += capsys.readouterr().err
        return "\n" in log

    with live_load() as live:
        live(phase)
        wait_for(has_line, 20.0, "a line")
    assert not live.drawn
    line = "measure load 4 req/s: 12/60 s, 48 done, 3 in flight, 1 failed"
    assert log_lines(log)[0] == line


def test_launches_and_the_refreshing_terminal_never_wait_for_each_other() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        console = Console(file=io.StringIO(), force_terminal=True, width=120)
        with LiveSweep(console, drawings_per_s=1000) as live:

            def tell() -> None:
                for index in range(300):
                    live(Phase("d", PhaseName.MEASURE, str(index)))
                    live(Event("retry", "again", "d"))

            threads = [threading.Thread(target=tell, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            assert not any(thread.is_alive() for thread in threads)
    finally:
        sys.setswitchinterval(interval)


class SharedConsole(Console):
    """A terminal that knows whether two threads ever drew on it together."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), force_terminal=True, width=120)
        self.drawing: set[int] = set()
        self.drew_together = False

    def print(self, *objects: Any, **options: Any) -> None:
        thread = threading.get_ident()
        self.drawing.add(thread)
        self.drew_together |= len(self.drawing) > 1
        super().print(*objects, **options)
        self.drawing.discard(thread)


def test_lines_and_drawings_of_a_terminal_come_one_after_the_other() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    console = SharedConsole()
    try:
        with LiveSweep(console, drawings_per_s=1000) as live:
            for index in range(300):
                live.print_line(f"line {index}")
    finally:
        sys.setswitchinterval(interval)
    assert not console.drew_together


HELD = "host vm is held by experiment qwen3 (user ann, pid 4711, results in /data/sweeps/of-ann)"


def test_while_all_launches_wait_the_time_left_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("orchestrator.report.live.time.monotonic", lambda: now_s)
    live = LiveSweep(Console(file=io.StringIO(), force_terminal=True, width=80, height=40))

    def head() -> str:
        return drawn_lines(live, 80)[0]

    live(Event("sweep", "14 measurements to do", data={"total": 14}))
    live(Event("measured", "measured", "vllm", data={"left_s": 360}))
    live(Phase("vllm", PhaseName.WAIT_FOR_HOST, says=HELD))
    now_s += 1380.0
    assert head() == "1 of 14 measurements, ~6 min left after the wait"
    live(Phase("vllm", PhaseName.START))
    assert head() == "1 of 14 measurements, ~6 min left"
    now_s += 60.0
    assert head() == "1 of 14 measurements, ~5 min left"
    live(Phase("sglang", PhaseName.WAIT_FOR_HOST, says=HELD))
    now_s += 60.0
    assert head() == "1 of 14 measurements, ~4 min left", "vllm still works"


def test_who_is_waited_for_is_shown_whole_on_a_narrow_terminal() -> None:
    assert shown(80, Phase("vllm tp=2", PhaseName.WAIT_FOR_HOST, elapsed_s=840.0, says=HELD)) == [
        "vllm tp=2: waiting 14 min: host vm is held by experiment qwen3 (user ann, pid",
        "  4711, results in /data/sweeps/of-ann)",
    ]


def test_a_log_says_each_minute_who_is_waited_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.report.live.REPEAT_LINE_S", 0.05)
    out = io.StringIO()
    with LiveSweep(Console(file=out, width=80)) as live:
        live(Phase("vllm", PhaseName.WAIT_FOR_HOST, elapsed_s=61.0, says="host vm is held by x"))
        wait_for(lambda: "by x" in out.getvalue(), 10.0, "a line")
        live(Phase("vllm", PhaseName.WAIT_FOR_HOST, elapsed_s=180.0, says="host vm is held by y"))
        wait_for(lambda: "by y" in out.getvalue(), 10.0, "a line of the next holder")
    distinct_lines = list(dict.fromkeys(log_lines(out.getvalue())))
    assert distinct_lines == [
        "vllm: waiting 61 s: host vm is held by x",
        "vllm: waiting 3 min: host vm is held by y",
    ]


def standing(leader: str, rivals: int, tokens: int, workload: str = "chat") -> Event:
    text = f"{leader} leads: {tokens} tok/s; {rivals} of 3 can still beat it"
    data = {"workload": workload, "slo": "fast", "leader": leader, "rivals": rivals}
    return Event("standing", text, data=data)


def test_a_log_says_when_another_one_leads_or_fewer_can_beat_it() -> None:
    assert logged(
        standing("a", 2, 400),
        standing("a", 2, 410),
        standing("a", 1, 410),
        standing("b", 1, 500),
    ) == [
        "a leads: 400 tok/s; 2 of 3 can still beat it",
        "a leads: 410 tok/s; 1 of 3 can still beat it",
        "b leads: 500 tok/s; 1 of 3 can still beat it",
    ]


def test_a_terminal_shows_who_leads_now() -> None:
    assert shown(
        80, standing("a", 2, 400), standing("b", 1, 500), standing("a", 2, 9, "batch")
    ) == [
        "b leads: 500 tok/s; 1 of 3 can still beat it",
        "a leads: 9 tok/s; 2 of 3 can still beat it",
    ]

"""What ``run`` shows while it works."""

from __future__ import annotations

import io
import sys
import threading
import time

from rich.console import Console

from orchestrator.report.live import LiveSweep
from orchestrator.results.events import Event, Phase, RequestCounts


def test_without_a_terminal_each_change_is_one_line() -> None:
    out = io.StringIO()
    with LiveSweep(Console(file=out, width=200)) as live:
        live(Event("sweep", "2 measurements to do", data={"total": 2}))
        live(Phase("vllm tp=2", "start"))
        live(Phase("vllm tp=2", "start", elapsed_s=1.0))
        live(Event("measured", "measured", "vllm tp=2"))
        live(Phase("vllm tp=2", "ended"))
    lines = out.getvalue().splitlines()
    assert [line[9:] for line in lines] == ["2 measurements to do", "vllm tp=2: start", "vllm tp=2: measured  [1/2]"]


def test_on_a_terminal_the_phase_of_every_launch_is_shown() -> None:
    out = io.StringIO()
    live = LiveSweep(Console(file=out, force_terminal=True, width=160))
    live(Event("sweep", "2 measurements to do", data={"total": 2}))
    live(Phase("vllm tp=2", "measure", "chat 6 in flight", 8.0, 15.0, RequestCounts(done=41, in_flight=6, failed=2)))
    console = Console(file=io.StringIO(), width=160)
    console.print(live._render())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 2 measurements" in shown
    assert "8/15 s" in shown
    assert "41 done, 6 in flight, 2 failed" in shown


def test_launches_and_the_refreshing_terminal_never_wait_for_each_other() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with LiveSweep(Console(file=io.StringIO(), force_terminal=True, width=120)) as live:
            live._live.refresh_per_second = 1000

            def tell() -> None:
                for index in range(300):
                    live(Phase("d", "measure", str(index)))
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

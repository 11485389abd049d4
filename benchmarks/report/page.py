"""How large the page of a large sweep is, how long it takes to make, and how fast it answers.

    python benchmarks/results/make_store.py FOLDER --points 2000 --requests 2000 --repeats 1
    python benchmarks/report/page.py FOLDER [--moves 60]

Needs Chromium (apt-get install chromium). Times are of this machine as it is now: run it with
nothing else. A move is a step of the TTFT slider; it is over for the table when the ranking stands
in the document, and for the charts when the last of them is drawn, one in each animation frame.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

MOVES = """
async (moves) => {
  const slider = document.getElementById("limit-ttft");
  const stops = Number(slider.max);
  const drawn = () => Number(document.body.dataset.drawn);
  const times = [];
  for (let move = 0; move < moves; move++) {
    slider.value = String(1 + (move * 37) % (stops - 1));
    const before = drawn();
    const began = performance.now();
    slider.dispatchEvent(new Event("input"));
    const table = performance.now() - began;
    while (drawn() === before) await new Promise(requestAnimationFrame);
    times.push([table, performance.now() - began]);
  }
  return times;
}
"""


def made(uri: str, output: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "orchestrator", "report", uri, "--output", str(output)]
    subprocess.run(command, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"made: {output.stat().st_size / 1e6:.1f} MB, {cpu_s:.1f} s of CPU,", end=" ")
    print(f"{used.ru_maxrss / 1e3:.0f} MB of memory")


def opened(page: Page, output: Path) -> None:
    began = time.monotonic()
    page.goto(output.as_uri(), wait_until="commit")
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    ready_s = time.monotonic() - began
    page.wait_for_selector("body[data-drawn]", timeout=60_000)
    print(f"opened: answer after {ready_s:.2f} s, charts after {time.monotonic() - began:.2f} s")


def moved(page: Page, moves: int) -> None:
    times = page.evaluate(MOVES, moves)
    for name, place in (("winner and table", 0), ("all charts", 1)):
        taken_ms = sorted(each[place] for each in times)
        p95 = taken_ms[int(0.95 * (len(taken_ms) - 1))]
        print(f"slider to {name}: {statistics.median(taken_ms):.0f} ms median, {p95:.0f} ms p95")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri")
    parser.add_argument("--moves", type=int, default=60)
    chosen = parser.parse_args()
    chromium = shutil.which("chromium") or sys.exit("this needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        output = Path(folder, "report.html")
        made(chosen.uri, output)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        opened(page, output)
        moved(page, chosen.moves)
        browser.close()


if __name__ == "__main__":
    main()

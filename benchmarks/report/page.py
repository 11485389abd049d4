"""How large the page of a large sweep is, how long it takes to make, and how fast it answers.

    python benchmarks/results/make_store.py FOLDER --points 2000 --requests 2000 --repeats 1 \
        --spread 0.4 --experiment benchmarks/report/large.yaml
    python benchmarks/report/page.py FOLDER [--moves 60] [--rounds 3] [--beside OTHER.html]

Needs Chromium (apt-get install chromium). Times are of this machine as it is now: run it with
nothing else. ``--beside`` names another page of the same store, such as that of an earlier version;
both are opened in turn, so that they meet the same machine.

The answer is on screen after the first frame with the winner, judged in the page, and the ranking. A
move is a step of the TTFT slider; it is over for the table when the ranking stands in the document,
and for the charts when the last of them is drawn, one in each animation frame: those in sight on a
screen of 1280 x 900, and in a window as high as the page all of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SCREEN = 900
WHOLE_PAGE = 3500
OBSERVED = """
window.times = {};
new MutationObserver(() => {
  const shown = document.body?.dataset ?? {};
  if (shown.drawn && !times.drawn) times.drawn = performance.now();
  if (!shown.ready || times.judged) return;
  times.judged = performance.now();
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { times.answer = performance.now(); };
    channel.port2.postMessage(0);  // its turn comes after the frame
  });
}).observe(document, { subtree: true, attributeFilter: ["data-ready", "data-drawn"] });
"""
TIMES = """
async () => {
  while (!window.times?.drawn) await new Promise((resolve) => setTimeout(resolve, 200));
  return times;
}
"""
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


@dataclass
class PageTimes:
    """Milliseconds of every round. ``paint``: the first text, which is the answer of Python."""

    paint: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    table: list[float] = field(default_factory=list)
    charts_in_sight: list[float] = field(default_factory=list)
    all_charts: list[float] = field(default_factory=list)


def made(uri: str, output: Path) -> None:
    """Writes the page and prints what that took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "orchestrator", "report", uri, "--output", str(output)]
    subprocess.run(command, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"made: {output.stat().st_size / 1e6:.1f} MB, {cpu_s:.1f} s of CPU,", end=" ")
    print(f"{used.ru_maxrss / 1e3:.0f} MB of memory")


def measure(browser: Browser, path: Path, height: int, moves: int, times: PageTimes) -> None:
    """Opens a page and moves its slider."""
    page = browser.new_page(viewport={"width": 1280, "height": height})
    page.add_init_script(OBSERVED)
    page.goto(path.as_uri(), wait_until="commit")
    seen = page.evaluate(TIMES)
    moved = page.evaluate(MOVES, moves)
    if height == SCREEN:
        entries = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times.paint.append(page.evaluate(entries))
        times.answer.append(seen["answer"])
        times.drawn.append(seen["drawn"])
        times.table += [each[0] for each in moved]
        times.charts_in_sight += [each[1] for each in moved]
    else:
        times.all_charts += [each[1] for each in moved]
    page.close()


def printed(name: str, times: PageTimes) -> None:
    print(f"{name}:")
    for title, values in (
        ("first text on screen", times.paint),
        ("answer on screen", times.answer),
        ("charts in sight drawn", times.drawn),
        ("slider to winner and table", times.table),
        ("slider to charts in sight", times.charts_in_sight),
        ("slider to all charts", times.all_charts),
    ):
        ordered = sorted(values)
        p95 = ordered[round(0.95 * (len(ordered) - 1))]
        middle = statistics.median(ordered)
        print(f"  {title}: {middle:.0f} ms median, {p95:.0f} ms p95, {ordered[0]:.0f} ms least")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri")
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="PAGE")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium") or sys.exit("this needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        output = Path(folder, "report.html")
        made(chosen.uri, output)
        pages = {"this version": output}
        if chosen.beside is not None:
            pages[chosen.beside.name] = chosen.beside.resolve()
        times = {name: PageTimes() for name in pages}
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(chosen.rounds):
            for name, path in pages.items():
                for height in (SCREEN, WHOLE_PAGE):
                    measure(browser, path, height, chosen.moves, times[name])
        browser.close()
        for name, found in times.items():
            printed(name, found)
        print(f"load of the machine, {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

"""make pictures: the first screen of the report's page, light and dark, of real results.

    python scripts/pictures.py RESULTS [--into docs/pictures]

Needs Chromium. Writes ``report-light.png`` and ``report-dark.png``; README.md shows them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

WINDOW = ViewportSize(width=1280, height=800)
SCHEMES = ("light", "dark")
DRAWN = "body[data-drawn]"  # the page says so when its first charts stand
MOST_SECONDS = 30


def write_page(results: str, page: Path) -> None:
    """Writes the report of ``results``. Raises CalledProcessError if it has none."""
    argv = [sys.executable, "-m", "orchestrator", "report", results, "--output", str(page)]
    status = subprocess.run(argv, check=False).returncode
    if status not in (0, 3):  # 3: not everything has a valid measurement
        raise subprocess.CalledProcessError(status, argv)


def take_pictures(page: Path, folder: Path) -> None:
    """Takes one picture per colour scheme of what a reader sees before scrolling."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for scheme in SCHEMES:
            tab = browser.new_page(
                viewport=WINDOW, color_scheme="dark" if scheme == "dark" else "light"
            )
            tab.goto(page.as_uri())
            tab.wait_for_selector(DRAWN, timeout=MOST_SECONDS * 1000)
            picture = folder / f"report-{scheme}.png"
            tab.screenshot(path=picture)
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", help="a results folder, as `make demo` writes it")
    parser.add_argument("--into", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_page(arguments.results, page)
        take_pictures(page, arguments.into)


if __name__ == "__main__":
    main()

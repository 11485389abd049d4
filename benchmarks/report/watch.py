"""How many bytes a page that is watched gets when one more point is measured.

    python benchmarks/results/make_store.py FOLDER --points 200 --requests 200 --repeats 1
    python benchmarks/report/watch.py FOLDER [--changes 5]

The newest measurements are taken away (moved beside the folder) and put back one by one, as a sweep
commits them. What the server sends is made as it makes it; nothing goes over a network.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from orchestrator.web.page import Seen, change_since, live_page
from orchestrator.web.texts import KeptTexts
from orchestrator.web.watched import WatchedResults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--changes", type=int, default=5)
    chosen = parser.parse_args()
    commits = sorted(chosen.folder.glob("*/commits/*/*.json"), key=lambda path: path.name)
    newest = commits[-chosen.changes :]
    with tempfile.TemporaryDirectory(dir=chosen.folder.parent) as aside:
        for commit in newest:
            commit.rename(Path(aside, commit.name))
        watched, texts = WatchedResults(str(chosen.folder)), KeptTexts()
        watched.look()
        print(f"page: {len(live_page(watched.now, texts)) / 1e3:.0f} kB")
        for commit in newest:
            before = watched.now
            Path(aside, commit.name).rename(commit)
            began_s = time.process_time()
            watched.look()
            read_s = time.process_time() - began_s
            seen = Seen(before.edition, before.serial, before.attempts)
            began_s = time.process_time()
            change = change_since(watched.now, texts, seen)
            made_s = time.process_time() - began_s
            event = json.dumps(asdict(change))
            whole = change_since(watched.now, KeptTexts(), seen)
            print(
                f"change: {len(event) / 1e3:.1f} kB (texts {len(change.texts) / 1e3:.1f},"
                f" requests {len(change.bins) / 1e3:.1f}), with all texts"
                f" {len(whole.texts) / 1e3:.0f} kB; read in {read_s:.2f} s of CPU,"
                f" made in {made_s:.2f} s"
            )


if __name__ == "__main__":
    main()

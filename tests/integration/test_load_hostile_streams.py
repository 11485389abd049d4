"""Servers whose streams mislead, through the command: figures are right, or the verdict says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import AGAINST_THE_CLOCK
from tests.integration.hostile_server import answer_badly, path_of
from tests.integration.load_server import serving

pytestmark = AGAINST_THE_CLOCK


def load(name: str, results: Path) -> tuple[int, dict[str, Any]]:
    """The exit status and the printed JSON of six requests for 16 tokens."""
    with serving(answer_badly) as server:
        url = f"http://127.0.0.1:{server.port}/{path_of(name)}"
        options = "--api chat --model m --concurrency 2 --requests 6 --natural-lengths"
        lengths = "--input-tokens 16 --output-tokens 16 --format json --results"
        command = [sys.executable, "-m", "orchestrator", "load", url]
        ended = subprocess.run(
            [*command, *options.split(), *lengths.split(), str(results)],
            capture_output=True,
            text=True,
            check=False,
        )
    return ended.returncode, json.loads(ended.stdout)


def find(within: Any, name: str) -> Any:
    """The first value of a name, at any depth."""
    if isinstance(within, dict):
        if name in within:
            return within[name]
        within = list(within.values())
    if isinstance(within, list):
        for value in within:
            found = find(value, name)
            if found is not None:
                return found
    return None


@pytest.mark.parametrize("name", ["usage repeated", "usage zero", "usage lagging", "pings"])
def test_a_misleading_stream_has_right_figures(name: str, tmp_path: Path) -> None:
    status, said = load(name, tmp_path)
    assert status == 0
    assert 12 <= find(said, "ttft_ms")["p50"] < 22
    assert find(said, "tpot_ms")["p50"] == pytest.approx(10, rel=0.1)
    assert 160 <= find(said, "e2e_ms")["p50"] < 185
    assert find(said, "output_tokens")["p50"] == 16


def test_an_answer_in_one_event_has_no_tpot_and_the_verdict_says_why(tmp_path: Path) -> None:
    _, said = load("in one event", tmp_path)
    assert find(said, "validity") == "stream_buffered"
    assert find(said, "tpot_ms") is None
    assert "in one event" in find(said, "validity_reasons")[0]


def test_an_error_beside_choices_is_no_success(tmp_path: Path) -> None:
    status, said = load("error beside choices", tmp_path)
    assert status == 3
    assert find(said, "errors") == {"stream_error": 6}

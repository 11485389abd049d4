"""``orchestrator predict fit``: the profile that it writes, and what it prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml

from orchestrator.cli.predict import LARGE_ERROR, fit_lines
from orchestrator.emulator.profile import load_profile
from orchestrator.predict.fit import FIGURES
from tests.unit.cli.commands import invoke
from tests.unit.predict.test_fit import measured


def test_a_fit_writes_a_profile_that_the_emulator_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = tmp_path / "profile.yaml"
    results = measured(tmp_path / "results", (1,))
    done = invoke("predict", "fit", results, "--output", str(output))
    assert done.status == 0
    assert "before, with typical constants" in done.stderr
    assert max(map(len, done.stderr.splitlines()[:-1])) <= 80
    assert done.stderr.endswith(
        f"next: predictions: {{profile: {output}}} in the experiment file\n"
    )
    assert "samples held out of the fit" in done.stderr
    fitted = yaml.safe_load(output.read_text())["fitted"]
    assert f"so as typical: {', '.join(fitted['held'])}" in " ".join(done.stderr.split())
    assert set(fitted["error"]) == set(FIGURES)
    assert load_profile(str(output)).accelerator == "H100-80GB"


def lines_of(error: float, held_out_error: float | None) -> list[str]:
    """What is printed of a fit with these errors."""
    held_out = None if held_out_error is None else {"ttft_p50": held_out_error}
    fitted: Any = SimpleNamespace(
        profile=SimpleNamespace(constants=SimpleNamespace(step=0.002)),
        calibration=SimpleNamespace(spread={"step": 0.1}, undetermined=("overlap",)),
        error_before={"ttft_p50": 0.5},
        error={"ttft_p50": error},
        held_out_error=held_out,
        by_sample={"tp=1 4 req/s": {"ttft_p50": error}},
        by_field={"workload": {"chat": {"ttft_p50": error}}},
    )
    return [click.unstyle(line) for line in fit_lines(fitted, 80)]


def test_errors_are_printed_by_sample_and_by_field() -> None:
    assert lines_of(0.125, None) == [
        "error of the fitted model, beside what was measured:",
        " sample                          ttft p50",
        " ────────────────────────────────────────",
        " tp=1 4 req/s                       12.5%",
        " workload chat, median              12.5%",
        " 1 sample, median                   12.5%",
        " before, with typical constants     50.0%",
        "of samples held out of the fit: too few samples",
        "fitted: step 0.002 ± 10%",
        "not told by these measurements, so as typical: overlap",
    ]


def test_the_errors_of_what_was_held_out_have_a_row() -> None:
    assert " of samples held out of the fit     20.0%" in lines_of(0.125, 0.2)


@pytest.mark.parametrize(
    ("error", "held_out_error", "warns"),
    [
        (0.1, LARGE_ERROR + 0.01, True),
        (LARGE_ERROR + 0.01, 0.1, False),
        (LARGE_ERROR + 0.01, None, True),
    ],
)
def test_a_large_error_of_what_was_held_out_is_warned_of(
    error: float, held_out_error: float | None, warns: bool
) -> None:
    assert lines_of(error, held_out_error)[-1].startswith("warning: ") is warns

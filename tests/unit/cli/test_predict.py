"""``orchestrator predict fit``: the profile that it writes, and what it prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from orchestrator.cli.predict import LARGE_ERROR, fit_lines
from orchestrator.emulator.profile import load_profile
from orchestrator.predict.fit import FIGURES
from tests.unit.cli.commands import invoke
from tests.unit.predict.test_fit import measured


def test_a_fit_writes_a_profile_that_the_emulator_takes(tmp_path: Path) -> None:
    output = tmp_path / "profile.yaml"
    results = measured(tmp_path / "results", (1,))
    done = invoke("predict", "fit", results, "--output", str(output))
    assert done.status == 0
    assert "median error before, with typical constants: ttft_p50" in done.stderr
    assert done.stderr.endswith(
        f"next: predictions: {{profile: {output}}} in the experiment file\n"
    )
    assert "samples held out of the fit" in done.stderr
    fitted = yaml.safe_load(output.read_text())["fitted"]
    assert f"so as typical: {', '.join(fitted['held'])}" in done.stderr
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
    return list(fit_lines(fitted))


def test_errors_are_printed_by_sample_and_by_field() -> None:
    assert lines_of(0.125, None) == [
        "tp=1 4 req/s: ttft_p50 12.5%",
        "workload chat: ttft_p50 12.5%",
        "fitted: step 0.002 ± 10%",
        "not told by these measurements, so as typical: overlap",
        "median error before, with typical constants: ttft_p50 50.0%",
        "median error over 1 samples: ttft_p50 12.5%",
        "of samples held out of the fit: too few samples",
    ]


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

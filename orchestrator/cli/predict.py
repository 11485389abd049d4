"""``orchestrator predict``: calibrates what predictions and simulations are made from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.text import counted

if TYPE_CHECKING:
    from orchestrator.predict.fit import Fit

# a warning is printed if samples that were held out of a fit have a larger median error
LARGE_ERROR = 0.25


@click.group(short_help="Calibrate what predictions and simulations are made from.")
def predict() -> None:
    """Calibrate what `plan --predict`, `simulate` and the emulator predict from."""


@predict.command()
@click.argument("results_uri", metavar="URI")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the calibrated profile here. Default: stdout.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="What to imitate, if not what the sweep measured: a file, or accelerator/model.",
)
@click.option(
    "--engine",
    metavar="NAME",
    help="Use this engine's deployments alone; needed if several engines were measured.",
)
@click.option(
    "--emulated",
    is_flag=True,
    help="Also use what emulators answered, to try this without an engine.",
)
def fit(
    results_uri: str,
    output: Path | None,
    profile: str | None,
    engine: str | None,
    emulated: bool,
) -> int:
    """Calibrate the step model on what was measured at URI, so that it predicts this cluster.

    Every measured point is simulated with its real requests; the constants that come closest are
    written as a profile. Name it in the experiment file (predictions: {profile: FILE}), and the
    next `plan --predict` and `simulate` use it, with the error that it has left.

    \b
    Examples:
      orchestrator predict fit results/ --output my-h100.yaml
      orchestrator predict fit results/ --engine vllm --output my-h100.yaml
      orchestrator predict fit results/ --profile cpu --output my-cpu.yaml
    """
    import yaml

    from orchestrator.emulator.profile import load_profile
    from orchestrator.predict.fit import fit as fit_model
    from orchestrator.report.text import echo, output_width

    fitted = fit_model(results_uri, load_profile(profile), engine, with_emulated=emulated)
    content = fitted.profile.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(content, sort_keys=False)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    for line in fit_lines(fitted, output_width(err=True)):
        echo(line, err=True)
    if output is not None:
        place = shlex.quote(str(output.absolute()))
        click.echo(f"next: predictions: {{profile: {place}}} in the experiment file", err=True)
    return 0


def fit_lines(fitted: Fit, width: int) -> Iterator[str]:
    """The lines on a fit.

    A table of this width has the errors by sample and by field, those before and after the fit, and
    those of samples that were held out of it. The constants follow.
    """
    from orchestrator.report.text import Column, table

    samples = counted(len(fitted.by_sample), "sample")
    errors_by_row = dict(fitted.by_sample)
    for field, groups in fitted.by_field.items():
        errors_by_row |= {f"{field} {value}, median": errors for value, errors in groups.items()}
    errors_by_row[f"{samples}, median"] = fitted.error
    errors_by_row["before, with typical constants"] = fitted.error_before
    if fitted.held_out_error is not None:
        errors_by_row["of samples held out of the fit"] = fitted.held_out_error
    yield "error of the fitted model, beside what was measured:"
    figures = list(fitted.error)
    columns = [Column("sample", fold=True), *(Column(name.replace("_", " ")) for name in figures)]
    rows = [
        [name, *(f"{errors[figure]:.1%}" for figure in figures)]
        for name, errors in errors_by_row.items()
    ]
    yield from table(columns, rows, width)
    if fitted.held_out_error is None:
        yield "of samples held out of the fit: too few samples"
    constants = fitted.profile.constants
    fitted_constants = [
        f"{name} {getattr(constants, name):.3g} ± {spread:.0%}"
        for name, spread in fitted.calibration.spread.items()
        if name not in fitted.calibration.undetermined
    ]
    yield f"fitted: {', '.join(fitted_constants) or 'none'}"
    undetermined = ", ".join(fitted.calibration.undetermined)
    if undetermined:
        yield f"not told by these measurements, so as typical: {undetermined}"
    if max((fitted.held_out_error or fitted.error).values()) > LARGE_ERROR:
        problem = "this profile does not predict what it was not fitted on"
        advice = "look for the field above whose values differ, and fit those on their own"
        yield f"warning: {problem}: {advice}"

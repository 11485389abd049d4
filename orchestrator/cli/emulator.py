"""``orchestrator emulator``: a server with OpenAI and TGI streams whose timing comes from a stated
model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from orchestrator.predict.fit import Fit

# median error of samples that were held out of a fit: above it there is a warning
LARGE_ERROR = 0.25
# The flags are those of the emulator's own process (emulator/flags.py), which a sweep starts with
# them as an engine.
_ALL = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@click.command(
    context_settings=_ALL,
    short_help="Imitate an engine: OpenAI and TGI streams with modelled timing.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def emulator(argv: tuple[str, ...]) -> int:
    """Serve OpenAI and TGI streams with the timing of a stated model."""
    from orchestrator.emulator.flags import options_of, parser

    try:
        arguments = parser().parse_args(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    if arguments.command == "fit":
        return _fit(arguments)
    from orchestrator.emulator.server import main

    return main(options_of(arguments))


def _fit(arguments: argparse.Namespace) -> int:
    """Writes the fitted profile, and how well it predicts on stderr."""
    import yaml

    from orchestrator.emulator.profile import load_profile
    from orchestrator.predict.fit import fit

    fitted = fit(arguments.results, load_profile(arguments.profile), arguments.engine)
    profile = fitted.profile.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(profile, sort_keys=False)
    if arguments.output is None:
        click.echo(text, nl=False)
    else:
        arguments.output.write_text(text, encoding="utf-8")
    for line in _fit_text(fitted):
        click.echo(line, err=True)
    return 0


def _fit_text(fitted: Fit) -> Iterator[str]:
    """Errors by sample and by field, the constants, and the error of what was held out."""
    for name, errors in fitted.by_sample.items():
        yield f"{name}: {_percentages(errors)}"
    for field, groups in fitted.by_field.items():
        for value, errors in groups.items():
            yield f"{field} {value}: {_percentages(errors)}"
    constants = fitted.profile.constants
    fitted_constants = [
        f"{name} {getattr(constants, name):.3g} ± {spread:.0%}"
        for name, spread in fitted.calibration.spread.items()
    ]
    yield f"fitted: {', '.join(fitted_constants)}"
    undetermined = ", ".join(fitted.calibration.undetermined)
    if undetermined:
        yield f"not told by these measurements, so as typical: {undetermined}"
    yield f"median error over {len(fitted.by_sample)} samples: {_percentages(fitted.error)}"
    held_out_error = fitted.held_out_error
    held_out = "too few samples" if held_out_error is None else _percentages(held_out_error)
    yield f"of samples held out of the fit: {held_out}"
    if max((held_out_error or fitted.error).values()) > LARGE_ERROR:
        problem = "this profile does not predict what it was not fitted on"
        advice = "look for the field above whose values differ, and fit those on their own"
        yield f"warning: {problem}: {advice}"


def _percentages(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in errors.items())

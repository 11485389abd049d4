"""``orchestrator emulator``: a server with OpenAI and TGI streams whose timing comes from a stated
model.
"""

import argparse

import click

LARGE_ERROR = 0.25  # held out of a fit: beyond it a profile is warned of
# Its flags are those of the emulator's own process (emulator/flags.py), which is started with them
# as an engine too.
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
    import yaml

    from orchestrator.emulator.profile import load_profile
    from orchestrator.predict.fit import fit

    found = fit(arguments.results, load_profile(arguments.profile), arguments.engine)
    text = yaml.safe_dump(
        found.profile.model_dump(mode="json", exclude_defaults=True), sort_keys=False
    )
    if arguments.output is None:
        click.echo(text, nl=False)
    else:
        arguments.output.write_text(text, encoding="utf-8")
    for name, errors in found.by_sample.items():
        click.echo(f"{name}: {_percentages(errors)}", err=True)
    for field, groups in found.by_field.items():
        for value, errors in groups.items():
            click.echo(f"{field} {value}: {_percentages(errors)}", err=True)
    constants = found.profile.constants
    known = (
        f"{name} {getattr(constants, name):.3g} ± {spread:.0%}"
        for name, spread in found.calibration.spread.items()
    )
    click.echo(f"fitted: {', '.join(known)}", err=True)
    undetermined = ", ".join(found.calibration.undetermined)
    if undetermined:
        click.echo(f"not told by these measurements, so as typical: {undetermined}", err=True)
    click.echo(
        f"median error over {len(found.by_sample)} samples: {_percentages(found.error)}", err=True
    )
    held_out = (
        "too few samples" if found.held_out_error is None else _percentages(found.held_out_error)
    )
    click.echo(f"of samples held out of the fit: {held_out}", err=True)
    if max((found.held_out_error or found.error).values()) > LARGE_ERROR:
        said = "this profile does not predict what it was not fitted on"
        advice = "look for the field above whose values differ, and fit those on their own"
        click.echo(f"warning: {said}: {advice}", err=True)
    return 0


def _percentages(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in errors.items())

"""``orchestrator emulator``: serves OpenAI and TGI streams with the timing of a stated model."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

# All flags are passed on to emulator/flags.py, which also reads those of an emulator that a sweep
# starts as an engine.
_FLAGS_PASSED_ON = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


class EmulatorCommand(click.Command):
    """A command that lets shells complete the emulator's own flags."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The flags that begin so; files and other values are left to the shell."""
        from orchestrator.emulator.flags import flags_with_help

        if not incomplete.startswith("-"):
            return []
        return [
            CompletionItem(flag, help=text)
            for flag, text in flags_with_help().items()
            if flag.startswith(incomplete)
        ]


@click.command(
    cls=EmulatorCommand,
    context_settings=_FLAGS_PASSED_ON,
    short_help="Imitate an engine: OpenAI and TGI streams with modelled timing.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def emulator(argv: tuple[str, ...]) -> int:
    """Serve OpenAI and TGI streams with the timing of a stated model."""
    if argv[:1] == ("fit",):
        return _fit(argv[1:])
    from orchestrator.emulator.flags import options_of, parse

    try:
        arguments = parse(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    from orchestrator.emulator.server import main

    return main(options_of(arguments))


def _fit(argv: tuple[str, ...]) -> int:
    """The former spelling of ``orchestrator predict fit``."""
    from orchestrator.cli.predict import fit

    click.echo("note: 'emulator fit' is now: orchestrator predict fit", err=True)
    status: int = fit.main(argv, "orchestrator predict fit", standalone_mode=False)
    return status

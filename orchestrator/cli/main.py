"""The command line. The file of a command is loaded only for that command, so each starts fast."""

import gc
import os
import signal
import sys
from importlib import import_module

import click

from orchestrator import __version__
from orchestrator.base.errors import InputError, OrchestratorError, ProblemsError
from orchestrator.cli.command import CHECK_OF_THE_CLIENT

FOLDER_IS_GONE = (
    "error: the folder that this program runs in or from is gone: start it again to continue"
)
# Help lists the commands under these titles, and those that none of them has at the end.
SECTIONS = {
    "Experiment files": ("init", "plan", "schema"),
    "Sweeps": ("simulate", "run", "watch", "status", "stop", "doctor"),
    "Servers that run already": ("load", "workload"),
    "Results": ("best", "results", "report", "compare", "logs", "verify", "import", "export"),
    "Models of engines": ("predict", "emulator"),
}
COMMANDS = {
    "plan": "orchestrator.cli.plan:plan",
    "simulate": "orchestrator.cli.simulate:simulate",
    "run": "orchestrator.cli.run:run",
    "results": "orchestrator.cli.results:results",
    "best": "orchestrator.cli.best:best",
    "compare": "orchestrator.cli.compare:compare",
    "report": "orchestrator.cli.report:report",
    "watch": "orchestrator.cli.watch:watch",
    "status": "orchestrator.cli.status:status",
    "stop": "orchestrator.cli.stop:stop",
    "doctor": "orchestrator.cli.doctor:doctor",
    "logs": "orchestrator.cli.logs:logs",
    "verify": "orchestrator.cli.verify:verify",
    "load": "orchestrator.cli.load:load",
    "import": "orchestrator.cli.import_results:import_results",
    "export": "orchestrator.cli.export:export",
    "emulator": "orchestrator.cli.emulator:emulator",
    "predict": "orchestrator.cli.predict:predict",
    "workload": "orchestrator.cli.workload:workload",
    "init": "orchestrator.cli.init:init",
    "schema": "orchestrator.cli.schema:schema",
}
_LOAD = "load URL, which measures a server that already runs"
_HELP = "orchestrator --help, or orchestrator COMMAND --help"
# by commands of other programs and of earlier versions, what to write instead
OTHER_NAMES = {
    "bench": _LOAD,
    "benchmark": _LOAD,
    "serve": _LOAD,
    "help": _HELP,
    "selfcheck": CHECK_OF_THE_CLIENT,
}


class LazyGroup(click.Group):
    """Commands are imported when named, not when the program starts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by what somebody wants to do."""
        titles = {name: title for title, names in SECTIONS.items() for name in names}
        others = [name for name in COMMANDS if name not in titles]
        for title, names in (*SECTIONS.items(), ("Others", tuple(others))):
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name, command.get_short_help_str(limit=80)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command as click does; for an unknown name, suggests the nearest command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from orchestrator.base.registry import unknown_name

            name_here = OTHER_NAMES.get(args[0])
            if name_here is not None:
                ctx.fail(f"unknown command {args[0]!r}: write {name_here}")
            ctx.fail(unknown_name("command", args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="orchestrator")
def cli() -> None:
    """Find the engine, parallelism, quantization and batching with the most throughput per GPU and
    per dollar under your latency limits. `orchestrator COMMAND --help` has examples.
    """


def _print_error(error: object) -> None:
    """Prints an error, which may repeat what a server sent or what was typed.

    Control characters in it are removed, and passwords in URLs are hidden.
    """
    from orchestrator.base.redaction import redact

    click.echo(f"error: {redact(str(error))}", err=True)


def main() -> None:
    """Runs the command line and ends the process with the command's exit status.

    0: done; 3: done, with failed points; 4: a certain regression; 2: bad input, and nothing was
    started; 1: an error of this program; 130: interrupted.
    """
    # answers are a million records without cycles; the search for cycles took a third of the time
    gc.set_threshold(100_000, 50, 100)
    # `ray job stop`, Slurm and others send SIGTERM
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = cli.main(prog_name="orchestrator", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except ProblemsError as error:
        from orchestrator.base.text import counted

        for problem in error.problems:
            _print_error(problem)
        click.echo(f"{counted(len(error.problems), 'problem')}; nothing was started", err=True)
        sys.exit(2)
    except InputError as error:
        _print_error(error)
        sys.exit(2)
    except OrchestratorError as error:
        _print_error(error)
        sys.exit(1)
    except (KeyboardInterrupt, click.exceptions.Abort):  # click may turn the first into the second
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (ImportError, OSError):
        if os.path.exists(__file__) and os.path.exists(os.readlink("/proc/self/cwd")):
            raise
        # a job whose working_dir was removed while it ran can load no more modules
        click.echo(FOLDER_IS_GONE, err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)

"""Commands whose help fits a screen, and which know the words of other programs and of files.

``--help`` shows what most people need, ``--help-all`` everything. An option that the short help
shows is named in ``common``; one that is added without being named there is shown by ``--help-all``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

_SHOWS_ALL = "orchestrator.cli.command: shows all"  # a key of click's Context.meta
HELP_ALL = "--help-all"
# for those who try `orchestrator selfcheck` or `doctor --selfcheck`, which earlier versions had
CHECK_OF_THE_CLIENT = (
    "python benchmarks/client/run.py in a clone of the repository, which measures the client "
    "against a server of known timing"
)


class CliCommand(click.Command):
    """A command with a short help, and with ``--help-all`` where that leaves something out.

    ``common``: names of the options that the short help shows; None: it shows all of them.
    ``sections``: by the name of the first option of a section, the title of the section.
    ``examples``: shown by both helps. ``details``: shown by ``--help-all`` alone.
    ``other_names``: by an option that somebody may try, because it is a key of experiment files, an
    option of another program or one that this program had, what to write instead.
    """

    def __init__(
        self,
        *,
        common: Collection[str] | None = None,
        sections: Mapping[str, str] | None = None,
        examples: str = "",
        details: str = "",
        other_names: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(epilog=f"{examples}\n{details}", **kwargs)
        if common is not None or details:
            self.params.append(_help_all_option())
        self.examples = examples
        self.details = details
        self.other_names = dict(other_names or {})
        self._common = None if common is None else frozenset(common)
        self._sections = dict(sections or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does; of an option that has another name here, the error says which."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name_here = self.other_names.get(error.option_name)
            if name_here is None:
                raise
            text = f"No such option '{error.option_name}': write {name_here}"
            raise click.UsageError(text, error.ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options by section: all of them, or those that most people need."""
        records_by_title: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option) or option.name is None:
                continue
            title = self._sections.get(option.name, title)
            record = option.get_help_record(ctx)
            if record is not None and (_shows_all(ctx) or self._is_common(option.name)):
                records_by_title.setdefault(title, []).append(record)
        for title, records in records_by_title.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, and everything else where all is to be shown."""
        texts = [self.examples]
        if _shows_all(ctx):
            texts.append(self.details)
        for text in texts:
            if text:
                formatter.write_paragraph()
                formatter.write_text(text.strip("\n"))

    def _is_common(self, name: str) -> bool:
        return self._common is None or name in self._common or name == "help_all"


def _shows_all(ctx: click.Context) -> bool:
    return _SHOWS_ALL in ctx.meta


def _help_all_option() -> click.Option:
    def show_help(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
        if not is_given or ctx.resilient_parsing:
            return
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()

    return click.Option(
        [HELP_ALL],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show_help,
        help="Show all options and details and exit.",
    )

"""The argument URI of commands that read results."""

from __future__ import annotations

import os

import click


def checked_uri(context: click.Context, parameter: click.Parameter, uri: str) -> str:
    """Returns the URI that was given, once it is known that results may be there.

    Raises BadParameter for a file of this machine, which a storage would list as a folder and try
    again for long, and InputError where the storage does not answer.
    """
    from orchestrator.results.location import check_answers, parse_location

    location = parse_location(uri)
    if location.is_local and os.path.isfile(location.path):
        raise click.BadParameter(
            f"{uri} is a file, and results are in a folder, the one that '--results' named"
        )
    check_answers(uri)
    return uri

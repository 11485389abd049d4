"""The argument URI of commands that look at results."""

from __future__ import annotations

import os

import click


def no_file(context: click.Context, parameter: click.Parameter, uri: str) -> str:
    """Refuses a file here: a storage that cannot list a folder would be asked again and again."""
    from orchestrator.results.location import check_answers, parse_location

    place = parse_location(uri)
    if place.is_local and os.path.isfile(place.path):
        raise click.BadParameter(
            f"{uri} is a file, and results are in a folder, the one that '--results' named"
        )
    check_answers(uri)
    return uri

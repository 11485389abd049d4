"""The argument URI of commands that read results."""

from __future__ import annotations

import os

import click


def no_file(context: click.Context, parameter: click.Parameter, uri: str) -> str:
    """Returns a URI that is no local file. Listing a file like a folder would be retried for long.

    Raises BadParameter for a file, and InputError where the storage does not answer.
    """
    from orchestrator.results.location import check_answers, parse_location

    place = parse_location(uri)
    if place.is_local and os.path.isfile(place.path):
        raise click.BadParameter(
            f"{uri} is a file, and results are in a folder, the one that '--results' named"
        )
    check_answers(uri)
    return uri

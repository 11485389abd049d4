"""Options that are numbers say what to give."""

from __future__ import annotations

import click
import pytest

from orchestrator.cli.load import load
from orchestrator.cli.run import run


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seed", "-1"], "'-1': give a whole number from 0 to 9223372036854775807"),
        (["--seed", "x"], "'x': give a whole number from 0 to 9223372036854775807"),
        (["--requests", "0"], "'0': give a whole number of at least 1"),
        (["--requests", "1.5"], "'1.5': give a whole number of at least 1"),
        (["--clients", "5000"], "'5000': give a whole number from 1 to 1000"),
        (["--precision", "5"], "'5': give a number from 0.01 to 1"),
        (["--precision", "nan"], "'nan': give a number from 0.01 to 1"),
        (["--speed-up", "fast"], "'fast': give a number from 1e-09 to 1e+09"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_bounds(args: list[str], message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        load.make_context("load", ["http://host", *args])
    assert caught.value.message == message


def test_numbers_within_bounds_are_taken() -> None:
    context = load.make_context("load", ["http://host", "--seed", "0", "--precision", "0.01"])
    assert (context.params["seed"], context.params["precision"]) == (0, 0.01)


def test_run_says_its_bounds_in_the_same_words() -> None:
    with pytest.raises(click.BadParameter, match="give a whole number"):
        run.make_context("run", [__file__, "--max-nodes", "0"])

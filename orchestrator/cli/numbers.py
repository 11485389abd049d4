"""Types of options that are numbers, whose errors say what to give."""

from __future__ import annotations

import math
from typing import Any

import click


class WholeNumber(click.IntRange):
    """A whole number from ``min`` to ``max``; either may be left out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}: give a whole number{_bounds(self)}", param, ctx)


class Number(click.FloatRange):
    """A number from ``min`` to ``max``; either may be left out. NaN is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r}: give a number{_bounds(self)}", param, ctx)
        return number


def _bounds(numbers: click.IntRange | click.FloatRange) -> str:
    """`` from 1 to 1000``, `` of at least 1`` or nothing."""
    if numbers.min is not None and numbers.max is not None:
        return f" from {_text(numbers.min)} to {_text(numbers.max)}"
    if numbers.min is not None:
        return f" of at least {_text(numbers.min)}"
    if numbers.max is not None:
        return f" of at most {_text(numbers.max)}"
    return ""


def _text(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def parse_share(text: str) -> float:
    """Reads ``3%`` or ``0.03``. Raises BadParameter unless it is a share from 0 to below 1."""
    number = text.strip()
    try:
        share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise click.BadParameter(f"{text!r} is not a share: write it like 3%")
    return share

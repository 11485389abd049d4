"""Lazy registries: a name stands for ``"module:attribute"``, which is loaded when first used.

Third parties add entries through entry points of the group ``orchestrator.<kind>``
(docs/extending.md).
"""

import difflib
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Generic, TypeVar, cast

from orchestrator.base.errors import InputError

MOST_COMPARED = 1000  # names; among more, finding the nearest would take long
T = TypeVar("T")


class Registry(Generic[T]):
    """The parts of one kind by name. ``registry["vllm"]`` loads and returns the attribute it stands
    for.
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._group = f"orchestrator.{kind}"
        self._builtin = entries

    @cached_property
    def _entries(self) -> dict[str, str]:
        # looked up late, because it takes 40 ms that most commands can save
        from importlib import metadata

        points = metadata.entry_points(group=self._group)
        of_third_parties = {point.name: f"{point.module}:{point.attr}" for point in points}
        return of_third_parties | self._builtin  # a third party cannot replace what we ship

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._entries)

    def shipped(self) -> list[str]:
        """The names that this repository registers, sorted: without those of third parties."""
        return sorted(self._builtin)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._entries

    def __getitem__(self, name: str) -> T:
        # built-in names first: looking for entry points reads many files
        place = self._builtin.get(name) or self._entries.get(name)
        if place is None:
            singular = "search" if self.kind == "searches" else self.kind.rstrip("s")
            raise InputError(unknown_name(singular, name, self._entries))
        module, _, attribute = place.partition(":")
        try:
            return cast(T, getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            if name in self._builtin:
                raise
            text = (
                f"{name!r} of the entry points {self._group!r} ({place}) cannot be loaded: {error}"
            )
            raise InputError(text) from error


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence that the name is unknown, with the most similar known name and a list of all."""
    guess = did_you_mean(name, known)
    end = f"; {guess}" if guess else "."
    return f"unknown {what} {name!r}{end} Known: {', '.join(sorted(known)) or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` with the most similar known name, "" if none is similar."""
    return _nearest(name[:100], tuple(sorted(known)))  # a name may be as long as a file


@lru_cache(256)  # one mistake can be repeated in every line
def _nearest(name: str, known: tuple[str, ...]) -> str:
    if len(known) > MOST_COMPARED:
        return ""
    folded = name.lower()
    for known_name in known:
        if known_name.lower() == folded:  # only upper and lower case differ
            return f"did you mean {known_name!r}?"
    matches = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""

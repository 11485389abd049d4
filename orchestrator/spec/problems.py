"""What pydantic found, as problems with their line, in the words of someone who writes the file."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.errors import Problem

if TYPE_CHECKING:
    from orchestrator.spec.document import Document, Place

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (name: value)",
    "model_type": "a mapping (name: value)",
    "model_attributes_type": "a mapping (name: value)",
}
_LIMITS = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "needs at least {min_length} entry",
    "string_too_short": "must not be empty",
}
Locate: TypeAlias = "Callable[[Place], Place]"


def wrong(key: str | int | Place, message: str, hint: str | None = None) -> PydanticCustomError:
    """For validators of a whole value: a problem that stands at one of its keys, or deeper."""
    place = key if isinstance(key, tuple) else (key,)
    return PydanticCustomError("wrong", "{text}", {"text": message, "place": place, "hint": hint})


def problems_of(
    error: ValidationError, model: type[BaseModel], document: Document, locate: Locate = lambda place: place
) -> list[Problem]:
    """Every problem of a failed validation of ``model``; ``locate`` turns pydantic's place into the file's."""
    seen: dict[tuple[Place, str], Problem] = {}
    for detail in error.errors():
        place = locate(tuple(detail["loc"]))
        hint: str | None
        if detail["type"] == "wrong":
            place, message, hint = (*place, *detail["ctx"]["place"]), detail["ctx"]["text"], detail["ctx"]["hint"]
        elif detail["type"] == "missing":
            message, hint = f"{str(detail['loc'][-1])!r} is missing", None
        elif detail["type"] == "extra_forbidden":
            known = _keys_at(model, tuple(detail["loc"][:-1]), document.value)
            message, hint = unknown_key(str(detail["loc"][-1]), known)
        else:
            place = _known(place, document)
            message, hint = _about_value(detail, place, len(place) < len(locate(tuple(detail["loc"]))))
        seen.setdefault((place, message), document.problem(place, message, hint))
    return list(seen.values())


def unknown_key(key: str, known: Collection[str]) -> tuple[str, str]:
    """Message and hint for a key that is not one of ``known``."""
    return f"unknown key {key!r}", nearest(key, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is none of ``known``."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if len(names) <= 20 else "docs/experiment-file.md lists every key"


def _about_value(detail: ErrorDetails, place: Place, inside_union: bool) -> tuple[str, str | None]:
    name, value, kind = _name(place), detail["input"], detail["type"]
    quote = "put it in quotes" if kind == "string_type" and isinstance(value, int | float) else None
    if inside_union and kind in _WANTED:
        return f"{name} has a value of the wrong type", None  # once, not for every type it could have had
    if kind == "value_error":
        return f"{name}: {detail['ctx']['error']}", None
    if kind == "literal_error":
        expected = detail["ctx"]["expected"]
        names = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
        close = difflib.get_close_matches(str(value), names, n=1)
        return f"{name} must be {expected}, not {_show(value)}", f"did you mean {close[0]!r}?" if close else None
    if kind in _LIMITS:
        return f"{name} {_LIMITS[kind].format(**detail['ctx'])}, not {_show(value)}", None
    if kind in _WANTED:
        return f"{name} must be {_WANTED[kind]}, not {_show(value)}", quote
    return f"{name}: {detail['msg']}", None


def _name(place: Place) -> str:
    words = [str(part) for part in place if isinstance(part, str)]
    return repr(words[-1]) if words else "the file"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known(place: Place, document: Document) -> Place:
    """Without what pydantic adds for members of unions."""
    while place and place not in document.lines:
        place = place[:-1]
    return place


def _keys_at(model: Any, loc: Place, value: Any) -> list[str]:
    """Keys of the model found at a place below ``model``; empty when there is none. ``value``: what the file holds."""
    named_by_key = False
    for part in loc:
        named_by_key = get_origin(model) is dict
        model = _child(model, part)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    if hasattr(model, "model_for"):  # what it holds depends on what it is
        model = model.model_for(value)
    return [name for name in model.model_fields if not (named_by_key and name == "name")]


def _child(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found = annotation.model_fields.get(str(part))
        return _plain(found.annotation) if found else None
    arguments = get_args(annotation)
    return _plain(arguments[-1] if get_origin(annotation) is dict else arguments[0]) if arguments else None


def _plain(annotation: Any) -> Any:
    """``X`` of ``X | None`` and of ``Annotated[X, …]``."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    return _plain(get_args(annotation)[0]) if hasattr(annotation, "__metadata__") else annotation

"""What pydantic found, as problems with their line, in the words of someone who writes the file."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.redaction import redacted

if TYPE_CHECKING:
    from orchestrator.spec.document import Document, Place, Problems

_MAPPING = "a mapping (name: value)"
_WANTED = {"dict_type": _MAPPING, "model_type": _MAPPING, "model_attributes_type": _MAPPING, "string_type": "text"}
LONGEST = 100  # characters of a name that are compared with those that are known
Locate: TypeAlias = "Callable[[Place], Place]"


def wrong(key: str | int | Place, message: str, hint: str | None = None) -> PydanticCustomError:
    """For validators of a whole value: a problem that stands at one of its keys, or deeper."""
    place = key if isinstance(key, tuple) else (key,)
    return PydanticCustomError("wrong", "{text}", {"text": message, "place": place, "hint": hint})


def add_errors(error: ValidationError, model: Any, problems: Problems, locate: Locate = lambda place: place) -> None:
    """Every problem of a failed validation of ``model``; ``locate`` turns pydantic's place into the file's."""
    document = problems.document
    for detail in error.errors():
        if problems.enough:
            break
        place = locate(tuple(detail["loc"]))
        if detail["type"] == "wrong":
            context = detail["ctx"]
            problems.add((*place, *context["place"]), context["text"], context["hint"])
        elif detail["type"] == "missing":
            problems.add(place, f"{str(detail['loc'][-1])!r} is missing")
        elif detail["type"] == "extra_forbidden":
            known = _keys_at(model, tuple(detail["loc"][:-1]), document.value)
            problems.add(place, *unknown_key(str(detail["loc"][-1]), known))
        else:
            found = _known(place, document)
            problems.add(found, *_about_value(detail, found, inside_union=len(found) < len(place)))


def unknown_key(key: str, known: Collection[str]) -> tuple[str, str]:
    """Message and hint for a key that is not one of ``known``."""
    return f"unknown key {key!r}", nearest(key, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is none of ``known``."""
    names = sorted(known)
    close = difflib.get_close_matches(name[:LONGEST], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if len(names) <= 20 else "docs/experiment-file.md lists every key"


def _about_value(detail: ErrorDetails, place: Place, inside_union: bool) -> tuple[str, str | None]:
    """Message and hint, in pydantic's words but for a few."""
    words = [str(part) for part in place if isinstance(part, str)] or ["the file"]
    name, value, kind = repr(words[-1]), detail["input"], detail["type"]
    if inside_union and kind.endswith("_type"):
        return f"{name} has a value of the wrong type", None  # once, not for every type it could have had
    if kind == "value_error":
        return f"{name}: {detail['ctx']['error']}", None
    if kind == "string_pattern_mismatch":
        return f"{name} cannot be {_show(value)}", f"it must match {detail['ctx']['pattern']}"
    wanted = _WANTED.get(kind) or detail["msg"].removeprefix("Input should be ")
    if wanted == detail["msg"]:
        return f"{name}: {wanted}", None
    hint = None
    if kind == "literal_error":
        expected = [part.strip(" '") for part in detail["ctx"]["expected"].replace(" or ", ", ").split(",")]
        close = difflib.get_close_matches(str(value)[:LONGEST], expected, n=1)
        hint = f"did you mean {close[0]!r}?" if close else None
    elif kind == "string_type" and isinstance(value, int | float):
        hint = "put it in quotes"
    elif kind == "list_type" and not isinstance(value, dict):
        hint = f"write {words[-1]}: [{_show(value)}]"
    return f"{name} must be {wanted}, not {_show(value)}", hint


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    text = redacted(text)  # before it is cut: half a secret is not found any more
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
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [name for name in names if not (named_by_key and name == "name")]


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

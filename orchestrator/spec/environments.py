"""``environments`` of an experiment file: where each version of an engine lives, which makes the version an axis.

``environments: {vllm: {"0.31": {executable: /opt/vllm-0.31}, "0.32": {image: "vllm/vllm-openai:v0.32.0"}}}``. A
deployment whose ``engine_version`` is one of these gets its executable or image from here when the file is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from orchestrator.spec.problems import nearest, wrong
from orchestrator.spec.settings import EngineSettings, Strict

LOCATION = ("executable", "image", "container_runtime")  # settings that an environment decides
Text = Annotated[str, Field(min_length=1)]
Report = Callable[[str, str, str | None], None]  # (setting it stands at, message, hint)
_NUMBERED = re.compile(r"v?(\d[^-_/ ]*)")


class Environment(Strict):
    """One place where one version of an engine is installed on the nodes: a virtual environment or an image."""

    executable: Text | None = None
    image: Text | None = None
    container_runtime: Literal["docker", "podman", "apptainer"] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Environment:
        if (self.executable is None) == (self.image is None):
            raise wrong((), "an environment is either an executable or an image", "give one of them")
        if self.container_runtime is not None and self.image is None:
            raise wrong("container_runtime", "'container_runtime' is for images", "give 'image', or leave it out")
        return self


Versions = Annotated[dict[str, Environment], Field(min_length=1)]
Environments = Mapping[str, Mapping[str, Mapping[str, str]]]  # engine -> version -> settings it gives


def declared(raw: Any) -> Environments:
    """The settings that every version gives. What is wrong in ``raw`` gives none; it is reported where it stands."""
    engines = raw.items() if isinstance(raw, dict) else ()
    return {
        engine: {version: _settings(entry) for version, entry in versions.items()}
        for engine, versions in engines
        if isinstance(versions, dict)
    }


def _settings(entry: Any) -> dict[str, str]:
    try:
        return Environment.model_validate(entry, strict=True).model_dump(exclude_none=True)
    except ValidationError:
        return {}


def location(values: Mapping[str, Any], environments: Environments, report: Report) -> Mapping[str, str] | None:
    """The settings that a deployment with ``values`` gets from ``environments``; empty when its engine is not there.

    An unknown version and a place that ``values`` give as well are reported; None then.
    """
    engine, version = values.get("engine"), values.get("engine_version")
    versions = environments.get(engine) if isinstance(engine, str) else None
    if not versions or not isinstance(version, str):
        return {}
    if version not in versions:
        report("engine_version", f"'environments' has no {version!r} of {engine}", nearest(version, versions))
        return None
    twice = [name for name in LOCATION if values.get(name) is not None]
    for name in twice:
        message = f"{name!r} is given here, and 'environments' say where {version!r} of {engine} lives"
        report(name, message, "leave one of them out")
    return None if twice else versions[version]


def same_place(deployments: Iterable[EngineSettings]) -> list[tuple[int, str]]:
    """Index and sentence of the first deployment of every version that lives where another version of it lives."""
    first: dict[tuple[str | None, ...], str] = {}
    said: dict[tuple[str | None, ...], int] = {}
    found = []
    for index, one in enumerate(deployments):
        place = (one.engine, one.executable, one.image, one.url)
        version = one.engine_version
        if version is None or first.setdefault(place, version) == version:
            continue
        if said.setdefault((*place, version), index) == index:
            where = one.image or one.executable or one.url or "on the nodes' PATH"
            found.append((index, f"{one.engine} {first[place]!r} and {version!r} are the same: both are {where}"))
    return found


def is_version(asked: str, found: str) -> bool:
    """Whether an installed version is the one asked for: ``0.32`` is ``0.32.1+cpu`` too; a name that is no number, any.

    >>> is_version("0.3", "0.32.0"), is_version("v0.32", "0.32.0+cpu"), is_version("nightly", "0.32.0")
    (False, True, True)
    """
    number = _NUMBERED.fullmatch(asked)
    if number is None:
        return True
    rest = found.removeprefix(number[1])
    return found.startswith(number[1]) and not rest[:1].isdigit()

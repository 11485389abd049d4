"""Paths of an experiment file: relative ones start at the file, ``~`` is the home, ``${NAME}`` the environment."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from orchestrator.spec.settings import EngineSettings

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_PATH_STARTS = (".", "/", "~", "${")


class Paths:
    """Resolves the paths of one experiment file; looks at each of them once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = cache(self._path)
        self.model = cache(self._model)

    def resolved(self, settings: EngineSettings) -> EngineSettings:
        """The same settings with absolute paths. Raises ValueError for an environment variable that is not set."""
        changed: dict[str, object] = {"model": self.model(settings.model)}
        if settings.executable is not None:
            changed["executable"] = self.command(settings.executable)
        if settings.image is not None and (settings.image.startswith(_PATH_STARTS) or settings.image.endswith(".sif")):
            changed["image"] = self.path(settings.image)
        if settings.tokenizer is not None:
            changed["tokenizer"] = self.model(settings.tokenizer)
        if settings.profile is not None and _is_file_name(settings.profile):
            changed["profile"] = self.path(settings.profile)
        if settings.speculative is not None and settings.speculative.model is not None:
            draft = self.model(settings.speculative.model)
            changed["speculative"] = settings.speculative.model_copy(update={"model": draft})
        if settings.lora_modules is not None:
            changed["lora_modules"] = {name: self.model(place) for name, place in settings.lora_modules.items()}
        return settings.model_copy(update=changed)

    def command(self, text: str) -> str:
        """A path, or the bare name of a command to be found on the node's PATH."""
        return self.path(text) if "/" in text or text.startswith("~") else text

    def _path(self, text: str) -> str:
        """An absolute path, links not followed: a virtual environment is known by its own name."""
        filled = _VARIABLE.sub(_from_environment, text)
        return os.path.normpath(self._folder / Path(filled).expanduser())

    def _model(self, text: str) -> str:
        """A folder when it is written like a path or lies beside the file, else a name on the hub."""
        if text.startswith(_PATH_STARTS) or (self._folder / text).is_dir():
            return self.path(text)
        return text


def _is_file_name(profile: str) -> bool:
    """A profile is a file or a name of the catalogue, and those hold slashes and dots too."""
    return profile.startswith(_PATH_STARTS) or Path(profile).suffix in (".yaml", ".yml", ".json")


def _from_environment(found: re.Match[str]) -> str:
    value = os.environ.get(found.group(1))
    if value is None:
        raise ValueError(f"environment variable {found.group(1)!r} is not set")
    return value

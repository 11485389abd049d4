"""Resolves the paths of an experiment file.

Relative paths start at the file, ``~`` is the home folder and ``${NAME}`` an environment variable.
"""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from orchestrator.base.errors import InputError
from orchestrator.spec.document import from_home
from orchestrator.spec.settings import EngineSettings

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_PATH_STARTS = (".", "/", "~", "${")


class Paths:
    """Resolves the paths of one experiment file, each path once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = cache(self._path)
        self.model = cache(self._model)

    def absolute(self, settings: EngineSettings) -> EngineSettings:
        """The settings of one part with absolute paths.

        Raises ValueError for an environment variable that is not set, and for the home folder of an
        unknown user.
        """
        resolvers: dict[str, Callable[[str], str]] = {
            "model": self.model,
            "tokenizer": self.model,
            "executable": self.command,
            "image": self.image,
            "profile": self.profile,
        }
        changed: dict[str, object] = {}
        for name, resolve in resolvers.items():
            written = getattr(settings, name)
            if written is None:
                continue
            absolute = resolve(written)
            if absolute != written:
                changed[name] = absolute
        speculative = settings.speculative
        if speculative is not None and speculative.model is not None:
            draft = self.model(speculative.model)
            if draft != speculative.model:
                changed["speculative"] = speculative.model_copy(update={"model": draft})
        if settings.lora_modules is not None:
            adapters = {name: self.model(place) for name, place in settings.lora_modules.items()}
            if adapters != settings.lora_modules:
                changed["lora_modules"] = adapters
        # settings that stay the same are shared: a file may have 100,000 of them
        return settings.model_copy(update=changed) if changed else settings

    def command(self, text: str) -> str:
        """An absolute path, or the bare name of a command on the node's PATH."""
        return self.path(text) if "/" in text or text.startswith("~") else text

    def image(self, text: str) -> str:
        """An absolute path if ``text`` looks like a path, else a reference to a registry."""
        return self.path(text) if text.startswith(_PATH_STARTS) or text.endswith(".sif") else text

    def profile(self, text: str) -> str:
        """The absolute path of a file, or a name of the catalogue, which may contain slashes and
        dots too.
        """
        is_file = text.startswith(_PATH_STARTS) or Path(text).suffix in (".yaml", ".yml", ".json")
        return self.path(text) if is_file else text

    def _path(self, text: str) -> str:
        """An absolute path. Links are not resolved: a virtual environment's own path matters."""
        try:
            filled = from_home(_VARIABLE.sub(_from_environment, text))
        except InputError as error:
            raise ValueError(str(error)) from None
        return os.path.normpath(self._folder / filled)

    def _model(self, text: str) -> str:
        """An absolute path if ``text`` looks like a path or exists beside the experiment, else a
        name on the hub.
        """
        if text.startswith(_PATH_STARTS) or (self._folder / text).exists():
            return self.path(text)
        return text


def _from_environment(reference: re.Match[str]) -> str:
    name = reference.group(1)
    value = os.environ.get(name)
    if value is None:
        raise ValueError(f"environment variable {name!r} is not set")
    return value

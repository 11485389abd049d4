"""Checks a user's arguments for a container runtime: complete options that it knows and that users
may set.

container_options.json lists the options of each runtime, recorded from its own help.
"""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.base.data_files import data_beside

RUNTIMES = ("docker", "podman", "apptainer")
# Options that this program sets itself, and those that would separate it from the engine's process
# or log.
_OF_DAEMONS = frozenset(
    {
        *("name", "rm", "rmi", "init", "network", "net", "entrypoint", "workdir", "detach"),
        *("interactive", "tty", "attach", "gpus", "restart", "cidfile", "pid", "cpuset-cpus"),
        *("rootfs", "pod", "pod-id-file", "help"),
    }
)
_OURS = {
    "docker": _OF_DAEMONS,
    "podman": _OF_DAEMONS,
    "apptainer": frozenset({"pwd", "cwd", "nv", "rocm", "pid", "net", "network", "help"}),
}


def option_problem(words: Sequence[str], runtime: str) -> str | None:
    """Why ``runtime`` would not take these arguments as options, or why users may not set them."""
    queue = iter(words)
    for word in queue:
        if not word.startswith("-") or not word.strip("-"):
            return f"{word!r} would be read as the image: only options may be given"
        options = _options_in(word, runtime)
        if options is None:
            return (
                f"{word}: {runtime} is not known to have it; if yours has, write it as one "
                "word, --option=VALUE"
            )
        if not _OURS[runtime].isdisjoint(options.names):
            return f"{word}: this program sets that itself; leave it out"
        if options.lack_value:
            value = next(queue, None)
            if value is None or (value.startswith("-") and not value[1:2].isdigit()):
                return f"{word} needs a value"
    return None


class _Options(NamedTuple):
    """The options in one argument."""

    names: list[str]  # long names
    lack_value: bool  # whether the next argument is the value of the last option


def _options_in(word: str, runtime: str) -> _Options | None:
    """The options in one argument. None if one of them is not a known option of the runtime."""
    known_options = data_beside(__file__, "container_options.json")[runtime]
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        takes_value = name in known_options["value"]
        if not takes_value and name not in known_options["bare"] and not equals:
            return None
        return _Options([name], lack_value=takes_value and not equals)
    names: list[str] = []
    letters = word[1:]
    for index, letter in enumerate(letters):  # as in -it, and -v/data:/data
        if letter not in known_options["short"]:
            return None
        names.append(known_options["short"][letter])
        letters_after = letters[index + 1 :]
        if names[-1] in known_options["value"]:
            return _Options(names, lack_value=not letters_after)
        if letters_after.startswith("="):  # -t=true
            break
    return _Options(names, lack_value=False)

"""Checks a user's arguments for a container runtime: complete options that it knows and that users
may set.

container_options.json lists the options of each runtime, recorded from its own help.
"""

from collections.abc import Sequence

from orchestrator.base.registry import data_beside

RUNTIMES = ("docker", "podman", "apptainer")
# Options that this program sets itself, and those that would separate it from the engine's process
# or log.
_OF_DAEMONS = frozenset(
    {
        *(
            "name",
            "rm",
            "rmi",
            "init",
            "network",
            "net",
            "entrypoint",
            "workdir",
            "detach",
            "interactive",
            "tty",
        ),
        *(
            "attach",
            "gpus",
            "restart",
            "cidfile",
            "pid",
            "cpuset-cpus",
            "rootfs",
            "pod",
            "pod-id-file",
            "help",
        ),
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
        names, lacks_value = _options_in(word, runtime)
        if names is None:
            return (
                f"{word}: {runtime} is not known to have it; if yours has, write it as one "
                "word, --option=VALUE"
            )
        if not _OURS[runtime].isdisjoint(names):
            return f"{word}: this program sets that itself; leave it out"
        if lacks_value:
            value = next(queue, None)
            if value is None or (value.startswith("-") and not value[1:2].isdigit()):
                return f"{word} needs a value"
    return None


def _options_in(word: str, runtime: str) -> tuple[list[str] | None, bool]:
    """Long names of the options in one argument, and whether the next argument is a value; None:
    not known.
    """
    known = data_beside(__file__, "container_options.json")[runtime]
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        if name not in known["value"] and name not in known["bare"] and not equals:
            return None, False
        return [name], name in known["value"] and not equals
    names = []
    for index, letter in enumerate(word[1:], 2):  # as in -it, and -v/data:/data
        if letter not in known["short"]:
            return None, False
        names.append(known["short"][letter])
        if names[-1] in known["value"]:
            return names, index == len(word)
        if word[index : index + 1] == "=":  # -t=true
            break
    return names, False

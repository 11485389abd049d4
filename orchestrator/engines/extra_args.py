"""``extra_args``: arguments that a user passes on to an engine unchanged, and their conflicts with
what the fields and this program set.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache

from orchestrator.spec.settings import EngineSettings


def extra_arguments(settings: EngineSettings) -> list[str]:
    """Arguments for the flags of ``extra_args``: true gives a bare flag, a list several values,
    false and null nothing. A key within a JSON flag (``-cc.pass_config.x``) takes true and false as
    its values.
    """
    arguments: list[str] = []
    for name, value in settings.extra_args.items():
        if not name.startswith("-"):
            continue  # a key of the engine's own configuration file
        is_json_key = "." in name and "=" not in name
        if isinstance(value, bool) and is_json_key:
            arguments += [name, json.dumps(value)]
            continue
        if value is None or value is False:
            continue
        arguments.append(name)
        if isinstance(value, list):
            arguments += map(str, value)
        elif value is not True:
            arguments.append(str(value))
    return arguments


def present_flags(settings: EngineSettings, flags: Iterable[str]) -> list[str]:
    """Names in ``extra_args`` that mean one of ``flags`` in any spelling, unless their value is
    false, 0 or null.
    """
    plain_flags = {_plain(flag) for flag in flags}
    return [
        name for name, value in settings.extra_args.items() if value and _plain(name) in plain_flags
    ]


def conflicts(
    engine: str,
    settings: EngineSettings,
    owners: Mapping[str, str],
    key_owners: Mapping[str, str] | None = None,
) -> list[str]:
    """Sentences about ``extra_args`` that are not flags, or that a field or this program sets.

    ``engine``: its title. ``owners``: flag -> who sets it ("the field tensor_parallel_size", "this
    program"). ``key_owners``: the same for keys of the engine's own configuration file, None if it
    has none.
    """
    flag_owners = {_plain(flag): owner for flag, owner in owners.items()}
    sentences = []
    for name in settings.extra_args:
        if not name.startswith("-") and key_owners is None:
            sentences.append(f"extra_args: {name!r} is not a flag; write {'--' + name!r}")
            continue
        owner = _owner_of(name, flag_owners, key_owners or {})
        if owner:
            sentences.append(f"extra_args: {name} is set by {owner}; {engine} would get it twice")
    return sentences


def _owner_of(
    name: str, flag_owners: Mapping[str, str], key_owners: Mapping[str, str]
) -> str | None:
    """Who sets the flag or the key of a file that ``name`` means; None: only ``extra_args`` do."""
    plain = _plain(name)
    if plain in flag_owners:
        return flag_owners[plain]
    for key, owner in key_owners.items():
        is_inside = name.startswith(f"{key}.")
        contains = key.startswith(f"{name}.")
        if name == key or is_inside or contains:
            return owner
    return _owner_of_abbreviation(plain, flag_owners)


def _owner_of_abbreviation(name: str, flag_owners: Mapping[str, str]) -> str | None:
    """Who sets the flag that ``name`` abbreviates: Python's argparse accepts prefixes of flags."""
    if not name.startswith("--") or name == "--":
        return None
    for flag, owner in flag_owners.items():
        if flag.startswith(name):
            return owner
    return None


@cache
def _plain(flag: str) -> str:
    """A flag without its variants: ``--max_num_seqs=3``, ``--no-x``, vLLM's ``--json-flag.key``."""
    name = flag.split("=")[0].replace("_", "-")
    if not name.startswith("-"):
        return name
    name = name.split(".")[0]
    if name.startswith("--no-"):
        return "--" + name.removeprefix("--no-")
    return name

"""The emulator's command line, for ``orchestrator emulator`` and for the process that an engine
starts.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.base.errors import InputError
from orchestrator.base.registry import did_you_mean
from orchestrator.emulator.profile import (
    DEFAULT_ACCELERATOR,
    DEFAULT_MODEL,
    Faults,
    Profile,
    load_profile,
    problems_of,
)
from orchestrator.spec.settings import ROLES, EngineSettings, Hardware

API_KEY_VARIABLE = "EMULATOR_API_KEY"


@dataclass(frozen=True, slots=True)
class Options:
    """How the process was started."""

    settings: EngineSettings
    hardware: Hardware
    profile: Profile
    model: str  # the name that requests carry
    api_key: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    role: str = ""  # prefill: hands KV caches of prompts over; decode: receives them
    # whether this is a rank above 0 of a replica on several nodes, which serves nothing
    headless: bool = False
    max_concurrent_requests: int = 128  # TGI's limit: it refuses at once
    adapters: tuple[str, ...] = ()  # names of the LoRA adapters that it answers for


def parser() -> argparse.ArgumentParser:
    """The parser of all flags."""
    result = argparse.ArgumentParser(
        prog="orchestrator emulator",
        allow_abbrev=False,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Imitate an engine: serve OpenAI and TGI streams with modelled timing.\n"
        "Nothing is computed.\n\n"
        "  orchestrator emulator --port 8000 --profile H100-80GB/Llama-3.1-8B\n\n"
        "`orchestrator predict fit` calibrates a profile on what was measured.",
    )
    add = result.add_argument
    add("-h", "--help", "--help-all", action="help", help="show this message and exit")
    add("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    add("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
    add("--profile", help="a profile file, or a name such as H100-80GB/Llama-3.1-8B")
    add(
        "--model",
        default=DEFAULT_MODEL,
        help=f"model to imitate and serve; default {DEFAULT_MODEL}",
    )
    add("--served-model-name", default="", help="model name in requests; default: the model's own")
    add(
        "--accelerator",
        default=DEFAULT_ACCELERATOR,
        help=f"device to imitate; default {DEFAULT_ACCELERATOR}",
    )
    add(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help="any engine setting",
    )
    add(
        "--lora-modules",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="LoRA adapters to answer for, in the time of the model itself",
    )
    add(
        "--fault",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="see docs/reference/emulator.md",
    )
    add(
        "--max-concurrent-requests",
        type=int,
        default=128,
        help="TGI's limit, refused above it; default 128",
    )
    # for the processes that a sweep starts: settings and hardware as JSON, the role of a replica
    # behind vLLM's router, and a rank above 0, which holds its place and serves nothing
    add("--config", type=Path, help=argparse.SUPPRESS)
    add("--role", choices=ROLES, default="", help=argparse.SUPPRESS)
    add("--headless", action="store_true", help=argparse.SUPPRESS)
    return result


def flags_with_help() -> dict[str, str]:
    """The flags that the help shows, with what it says of each."""
    shown = [action for action in parser()._actions if action.help != argparse.SUPPRESS]
    return {flag: action.help or "" for action in shown for flag in action.option_strings}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the flags. Raises SystemExit after it printed the help, or what is wrong, with the most
    similar flag for one that does not exist.
    """
    flags = parser()
    arguments, unknown = flags.parse_known_args(argv)
    if unknown:
        name = unknown[0].partition("=")[0]
        guess = did_you_mean(name, list(flags_with_help()))
        end = f"; {guess}" if guess else ""
        flags.error(f"unknown argument {name!r}{end}")
    return arguments


def with_faults(profile: Profile, entries: list[str]) -> Profile:
    """The profile with the faults of the command line (``NAME=VALUE``, or ``NAME`` alone) put over
    its fault script. Raises pydantic's ValidationError.
    """
    faults = profile.faults.model_dump()
    for name, value in _pairs(entries).items():
        faults[name] = value or True
    return profile.model_copy(update={"faults": Faults.model_validate(faults)})


def _pairs(entries: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` entries as a dictionary; the value is "" without an equals sign."""
    pairs = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        pairs[name] = value
    return pairs


def _read_config(path: Path) -> dict[str, Any]:
    """The settings and the hardware of a file of ``--config``. Raises InputError."""
    problem = f"cannot read the emulator config {path}"
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{problem}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{problem}: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{problem}: it is no JSON object")
    return config


def options_of(arguments: argparse.Namespace) -> Options:
    """Everything the server needs, from the flags and the config file they name. Raises
    InputError.
    """
    config = _read_config(arguments.config) if arguments.config else {}
    fields = {"engine": "emulator", "model": arguments.model, "profile": arguments.profile}
    fields |= _pairs(arguments.set)
    hardware = {"name": "emulated", "accelerator": arguments.accelerator}
    try:
        settings = EngineSettings.model_validate(config.get("settings", fields))
        return Options(
            settings=settings,
            hardware=Hardware.model_validate(config.get("hardware", hardware)),
            profile=with_faults(load_profile(settings.profile), arguments.fault),
            model=arguments.served_model_name or settings.served_model_name or settings.model,
            api_key=os.environ.get(API_KEY_VARIABLE) or None,
            host=arguments.host,
            port=arguments.port,
            role=arguments.role,
            headless=arguments.headless,
            max_concurrent_requests=arguments.max_concurrent_requests,
            adapters=(*(settings.lora_modules or {}), *arguments.lora_modules),
        )
    except ValidationError as error:
        raise problems_of(error) from error

"""Command line of the emulator's process: its flags, and what they make of a config file and a profile."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any

from orchestrator.engines.emulator.profile import Faults, Profile, load_profile
from orchestrator.engines.emulator.server import Options, log, main
from orchestrator.errors import InputError
from orchestrator.spec.settings import EngineSettings, Hardware


def parser() -> argparse.ArgumentParser:
    """Flags of the process."""
    result = argparse.ArgumentParser(prog="python -m orchestrator.engines.emulator", allow_abbrev=False)
    result.add_argument("--config", type=Path, help="JSON with settings and hardware, as the orchestrator writes it")
    result.add_argument("--host", default="127.0.0.1")
    result.add_argument("--port", type=int, default=8000)
    result.add_argument("--served-model-name", default="")
    result.add_argument("--headless", action="store_true", help="hold the place of a rank above 0, serve nothing")
    result.add_argument("--max-concurrent-requests", type=int, default=128, help="TGI's limit: 429 above it")
    result.add_argument(
        "--fault", action="append", default=[], metavar="NAME=VALUE", help="see docs/emulator.md; may repeat"
    )
    return result


def with_faults(profile: Profile, given: list[str]) -> Profile:
    """The profile's fault script with those of the command line put over it. Raises pydantic's ValidationError."""
    pairs = dict(entry.partition("=")[::2] for entry in given)
    faults = profile.faults.model_dump() | {name: value or True for name, value in pairs.items()}
    return profile.model_copy(update={"faults": Faults.model_validate(faults)})


def options_of(arguments: argparse.Namespace) -> Options:
    """Everything the server needs, from the flags and the config file they name."""
    config: dict[str, Any] = json.loads(arguments.config.read_text()) if arguments.config else {}
    settings = EngineSettings.model_validate(config.get("settings") or {"engine": "emulator", "model": "emulated"})
    return Options(
        settings=settings,
        hardware=Hardware.model_validate(config.get("hardware") or {"name": "emulated", "accelerator": "H100-80GB"}),
        profile=with_faults(load_profile(settings.profile), arguments.fault),
        host=arguments.host,
        port=arguments.port,
        served_name=arguments.served_model_name,
        headless=arguments.headless,
        max_concurrent_requests=arguments.max_concurrent_requests,
    )


def run(argv: list[str]) -> int:
    """Parse, run, and the exit status."""
    # Processes started by Ray inherit a blocked SIGINT.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        options = options_of(parser().parse_args(argv))
    except (InputError, ValueError, OSError) as error:
        log(f"Value error, {error}")
        return 1
    return main(options)

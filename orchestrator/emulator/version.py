"""The version that an emulator reports, by which it is distinguished from an engine."""

from orchestrator import __version__

VERSION = f"{__version__}+emulator"


def is_emulator(version: str | None) -> bool:
    """Whether the server that reports this version is an emulator, of whatever release."""
    return version is not None and version.endswith("+emulator")

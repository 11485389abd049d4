"""How an emulator is told from an engine: by the version that it reports."""

from orchestrator import __version__

VERSION = f"{__version__}+emulator"  # as it reports it


def is_emulator(version: str | None) -> bool:
    """Whether the server that reports this version is one, of whatever version of this program."""
    return version is not None and version.endswith("+emulator")

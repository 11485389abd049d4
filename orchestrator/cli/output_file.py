"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import InputError


def check_folder(output: Path, option: str = "--output") -> None:
    """Raises InputError if the folder of an ``--output``, or of another option, does not exist."""
    if not output.absolute().parent.is_dir():
        raise InputError(f"{option}: there is no folder {output.absolute().parent}")


def write_whole(output: Path, content: bytes) -> None:
    """Writes a file; an earlier one stays until this one is complete."""
    partial = output.with_name(f"{output.name}.partial")
    partial.write_bytes(content)
    partial.replace(output)

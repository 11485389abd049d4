"""What Ray says when something is gone, as one line."""

from __future__ import annotations

from ray.exceptions import RayTaskError

CALL_LIMIT_S = 60.0  # no call waits longer, whatever became of the other side


def cause(error: RayTaskError) -> str:
    """What was raised on the other side."""
    return f"{type(error.cause).__name__}: {error.cause}"


def first_line(error: BaseException) -> str:
    """Ray's own messages run over many lines."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

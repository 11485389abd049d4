"""How an engine's log tells why it failed, as data; node/failures.py reads logs by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.base.errors import FailureKind


@dataclass(frozen=True, slots=True)
class LogWords:
    """What the log of one engine says, as regular expressions; node/signatures.py has what the
    engines share.
    """

    failures: Mapping[FailureKind, str] = field(default_factory=dict)
    # Start of lines that are never a cause though they name no level; levels are read in the
    # formats of all engines (node/log_lines.py).
    passing: str = ""
    causes_at_any_level: str = ""  # lines that are a cause though their level says otherwise
    consequences: str = ""  # lines that follow from a cause elsewhere in the log
    # whether a traceback directly below a warning belongs to it, whatever the warning says
    warns_with_tracebacks: bool = False

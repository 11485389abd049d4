"""How an engine's log shows why it failed, as data; node/failures.py reads logs by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.base.errors import FailureKind


@dataclass(frozen=True, slots=True)
class LogWords:
    """What lines of one engine's log mean, as regular expressions; node/signatures.py has those
    that engines share.
    """

    failures: Mapping[FailureKind, str] = field(default_factory=dict)
    # Start of lines that are never a cause though they name no level; levels are read in the
    # formats of all engines (node/log_lines.py).
    passing: str = ""
    causes_at_any_level: str = ""  # lines that are a cause whatever their level
    consequences: str = ""  # lines that follow from a cause elsewhere in the log
    # whether any traceback directly below a warning belongs to the warning
    warns_with_tracebacks: bool = False

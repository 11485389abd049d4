"""Why an answer ended: which finish reasons mean a whole answer, and which a failure."""

import re

from orchestrator.results.outcomes import CUT_ENDS

# ends that every answer may have; others are counted and shown (load/request_counts.py)
GOOD_ENDS = frozenset(
    [
        "stop",
        "eos",
        "eos_token",
        "eot_token",
        "end_turn",
        "end_of_text",
        "stop_token",
        "stop_token_id",
        "stop_sequence",
        "stop_string",
        "done",
        "finished",
        "complete",
        "completed",
        *CUT_ENDS,
        "tool_call",
        "tool_calls",
        "tool_use",
        "function_call",
    ]
)
_FAILED_END = re.compile(
    "abort|error|fail|cancel|insufficient|unavailable|time_?d?_?out|overload|exhaust|resource|"
    "interrupt|kill|crash|exception|disconnect|evict|preempt|out_of_memory|oom|shutdown",
    re.IGNORECASE,
)


def is_good_end(reason: str) -> bool:
    """Whether a finish reason is one of a whole answer."""
    return reason.lower() in GOOD_ENDS


def is_failed_end(reason: str) -> bool:
    """Whether a finish reason says that the server did not finish the answer."""
    return not is_good_end(reason) and _FAILED_END.search(reason) is not None

"""The verdicts on a point, and what follows from each: whether the next run measures the point
again, and whether a search for a capacity goes on.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class EndsSearch(Enum):
    """Whether such a verdict ends a search, because a probe of no other load would differ."""

    NO = "no"
    PARTLY = "if it has limits on TPOT or ITL"
    YES = "yes"


class _Meaning(NamedTuple):
    """See ``Validity``."""

    spoilt: bool
    ends_search: EndsSearch
    remedy: str


_FINE = _Meaning(False, EndsSearch.NO, "")
_SPOILT = _Meaning(True, EndsSearch.NO, "")


class Validity(StrEnum):
    """How honestly a point was measured, as ``validity`` stores it (docs/metrics.md#validity).

    ``spoilt``: something beside the engine spoilt it, and another try may be fine. ``remedy``: of
    verdicts that end a search, what to do; ``{}`` is what was measured.
    """

    spoilt: bool
    ends_search: EndsSearch
    remedy: str
    _value_: str

    def __new__(cls, value: str, meaning: _Meaning = _FINE) -> Validity:
        member = str.__new__(cls, value)
        member._value_ = value
        member.spoilt, member.ends_search, member.remedy = meaning
        return member

    VALID = "valid", _FINE
    BROKEN_OUTPUT = (
        "broken_output",
        _Meaning(
            False,
            EndsSearch.YES,
            "change {}: no load makes output of such answers (docs/metrics.md#broken_output)",
        ),
    )
    INVALID = (
        "invalid",
        _Meaning(
            False,
            EndsSearch.YES,
            "mend what {} is asked or answers: under another load it is the same "
            "(docs/metrics.md#validity)",
        ),
    )
    NETWORK_BOUND = "network_bound", _SPOILT
    DISTURBED = "disturbed", _SPOILT
    CLIENT_BOUND = "client_bound", _SPOILT
    STREAM_BUFFERED = (
        "stream_buffered",
        _Meaning(
            False,
            EndsSearch.PARTLY,
            "take away what gathers the events of {}: whatever the load, they do not show its TPOT "
            "and ITL",
        ),
    )
    ENGINE_BOUND_BACKLOG = "engine_bound_backlog", _FINE
    INTERRUPTED = "interrupted", _SPOILT
    UNMEASURED = "unmeasured", _FINE  # its attempt failed, and failures say what is tried again


# an engine that falls behind is measured: that is what was to be found out
MEASURED = frozenset({Validity.VALID, Validity.ENGINE_BOUND_BACKLOG})
# verdicts that neither another load nor a repeat changes, in the order in which they are told
LASTING_VERDICTS = tuple(validity for validity in Validity if validity.remedy)
SPOILT = frozenset(validity for validity in Validity if validity.spoilt)
# how often what is spoilt is measured again, each time by another run
MOST_AGAIN = 2

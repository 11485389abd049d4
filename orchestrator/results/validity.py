"""The verdicts on a point, and what follows from each: whether the next run measures the point
again, and whether a search for a capacity goes on.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class EndsSearch(Enum):
    """Whether such a verdict ends a search, because a probe of no other load would differ."""

    NO = "no"
    PARTLY = "if it has limits on TPOT or ITL"
    YES = "yes"


class Validity(StrEnum):
    """How honestly a point was measured, as ``validity`` stores it (docs/explained/validity.md)."""

    VALID = "valid"
    BROKEN_OUTPUT = "broken_output"
    INVALID = "invalid"
    NETWORK_BOUND = "network_bound"
    DISTURBED = "disturbed"
    CLIENT_BOUND = "client_bound"
    STREAM_BUFFERED = "stream_buffered"
    ENGINE_BOUND_BACKLOG = "engine_bound_backlog"
    INTERRUPTED = "interrupted"
    UNMEASURED = "unmeasured"  # its attempt failed, and failures say what is tried again
    UNCHECKED = "unchecked"  # another tool measured it, and nothing is known of its client

    @property
    def spoilt(self) -> bool:
        """Whether something beside the engine spoilt the point, so that another try may be fine."""
        return self in SPOILT

    @property
    def ends_search(self) -> EndsSearch:
        """Whether such a verdict ends a search."""
        return _ENDS_SEARCH.get(self, EndsSearch.NO)


# an engine that falls behind is measured: that is what was to be found out
MEASURED = frozenset({Validity.VALID, Validity.ENGINE_BOUND_BACKLOG})
SPOILT = frozenset(
    {
        Validity.NETWORK_BOUND,
        Validity.DISTURBED,
        Validity.CLIENT_BOUND,
        Validity.INTERRUPTED,
    }
)
# how often what is spoilt is measured again, each time by another run
MOST_AGAIN = 2
_ENDS_SEARCH = {
    Validity.BROKEN_OUTPUT: EndsSearch.YES,
    Validity.INVALID: EndsSearch.YES,
    Validity.STREAM_BUFFERED: EndsSearch.PARTLY,
}
# verdicts that neither another load nor a repeat changes, in the order in which they are reported
LASTING_VERDICTS = tuple(_ENDS_SEARCH)

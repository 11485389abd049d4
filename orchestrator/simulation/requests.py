"""One request of a simulated point, and how it can end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Protocol

from orchestrator.emulator.batch import Sequence
from orchestrator.load.request_record import TokenGaps
from orchestrator.load.schedule import PlannedRequest
from orchestrator.simulation.contents import HeldSegments
from orchestrator.workloads.segments import Segment


class RequestEnd(IntEnum):
    """How a virtual request ended."""

    OPEN = auto()  # it has not ended
    OK = auto()
    REFUSED = auto()  # the engine cannot serve one of its length
    QUEUE_FULL = auto()  # the engine has as many requests as it takes
    TIMEOUT = auto()  # no end within the timeout of a request
    NOT_DRAINED = auto()  # still open when the time to drain was over
    NEVER_SENT = auto()  # max_in_flight requests were in flight until the end
    ABORTED = auto()  # the probe was ended


class ServingRank(Protocol):
    """The data-parallel rank that a request was given to."""

    def over(self, request: VirtualRequest, answer: Segment | None) -> None:
        """Give back the segments of a request that is over."""

    def cancel(self, request: VirtualRequest) -> None:
        """Forget a request whose client has gone."""


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request of a simulated point. Times are seconds since the point's start; NaN if the
    request did not get that far.
    """

    planned: PlannedRequest
    replica: int
    input_tokens: int
    output_tokens: int
    part: str | None = None  # of a mix
    sent_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    done_s: float = math.nan
    cached_tokens: int = 0
    expected_cached_tokens: int = 0  # that a prefix cache of unlimited size would have held
    end: RequestEnd = RequestEnd.OPEN
    refusal: str = ""  # what the engine said
    rank: ServingRank | None = None
    sequence: Sequence | None = None
    held: HeldSegments | None = None
    gaps: TokenGaps | None = None  # between its tokens, if they are wanted
    chunks: int | None = None  # in which its tokens came; None: each came by itself

    def finish(self, end: RequestEnd, done_s: float) -> None:
        """Note how and when the request ended.

        An engine computes whole steps, so a step may end after a client gave up. The tokens of such
        a step never reached the client, and are forgotten.
        """
        self.end = end
        self.done_s = done_s
        if self.first_token_s > done_s:
            self.first_token_s = math.nan
        if self.last_token_s > done_s:
            self.last_token_s = math.nan
            self.gaps = None

"""One request of a simulated point, and what of it reached the client."""

from __future__ import annotations

import math
from array import array

from orchestrator.load.request_record import TokenGaps
from orchestrator.load.schedule import PlannedRequest
from orchestrator.simulation.requests import RequestEnd, VirtualRequest


def request(last_token_s: float) -> VirtualRequest:
    """A request whose first token came after 1 s."""
    return VirtualRequest(
        PlannedRequest(index=0, session=0, turn=0, due_ns=0),
        replica=0,
        input_tokens=8,
        output_tokens=5,
        first_token_s=1.0,
        last_token_s=last_token_s,
        gaps=TokenGaps(0, array("i", [500]), None),
    )


def test_a_request_is_open_until_it_ends() -> None:
    answered = request(last_token_s=2.0)
    assert answered.end is RequestEnd.OPEN
    answered.finish(RequestEnd.OK, 2.0)
    assert answered.end is RequestEnd.OK
    assert answered.done_s == 2


def test_tokens_until_the_end_were_received() -> None:
    answered = request(last_token_s=2.0)
    answered.finish(RequestEnd.OK, 2.0)
    assert (answered.first_token_s, answered.last_token_s) == (1, 2)
    assert answered.gaps is not None


def test_a_last_token_after_the_end_never_came() -> None:
    given_up = request(last_token_s=2.0)
    given_up.finish(RequestEnd.TIMEOUT, 1.5)
    assert given_up.first_token_s == 1
    assert math.isnan(given_up.last_token_s)
    assert given_up.gaps is None


def test_an_answer_after_the_end_never_began() -> None:
    given_up = request(last_token_s=2.0)
    given_up.finish(RequestEnd.TIMEOUT, 0.5)
    assert math.isnan(given_up.first_token_s)

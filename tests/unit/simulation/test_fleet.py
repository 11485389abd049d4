"""Engines in virtual time: who gets a request, and how far a rank may run."""

from __future__ import annotations

import math
from typing import Any

from orchestrator.load.schedule import PlannedRequest
from orchestrator.simulation.fleet import Fleet, FleetNeeds
from orchestrator.simulation.requests import RequestEnd, VirtualRequest
from tests.unit.emulator.builders import a_replica


def fleet(replicas: int = 1, ranks: int = 1, coupled: bool = True, **settings: Any) -> Fleet:
    return Fleet(a_replica(**settings), replicas, ranks, 0, FleetNeeds(coupled=coupled))


def sent(
    to: Fleet, index: int, at_s: float = 0.0, output: int = 50, replica: int = 0
) -> VirtualRequest:
    request = VirtualRequest(PlannedRequest(index, index, 0, 0), replica, 100, output, sent_s=at_s)
    to.send(request, ())
    return request


def test_a_request_ends_with_its_last_token() -> None:
    engines = fleet()
    request = sent(engines, 0)
    assert engines.advance(math.inf) == [request]
    assert request.end is RequestEnd.OK
    assert 0 < request.first_token_s < request.last_token_s == request.done_s
    assert engines.advance(math.inf) == []


def test_nothing_runs_further_than_it_is_told_to_but_for_one_step() -> None:
    engines = fleet()
    sent(engines, 0, output=500)
    assert engines.advance(1.0) == []
    clock_s = engines.replicas[0][0].batch.clock
    assert 1.0 <= clock_s < 1.2


def test_ends_come_in_order_where_requests_depend_on_one_another() -> None:
    engines = fleet(replicas=3)
    lengths = [70, 20, 45]
    for replica, output in enumerate(lengths):
        sent(engines, replica, output=output, replica=replica)
    ended = [engines.advance(math.inf)[0] for _ in lengths]
    assert [request.output_tokens for request in ended] == [20, 45, 70]
    # when the first one ended, no rank had come to a time at which another request could come
    assert ended[0].done_s < ended[1].done_s < ended[2].done_s


def test_a_request_goes_to_the_rank_with_the_fewest() -> None:
    engines = fleet(ranks=2)
    first, second, third = (sent(engines, index) for index in range(3))
    assert first.rank is third.rank
    assert second.rank is not first.rank


def test_a_full_queue_and_a_prompt_that_is_too_long_are_refused() -> None:
    engines = fleet(max_num_queued_reqs=1)
    sent(engines, 0)
    refused = sent(engines, 1)
    assert refused.end is RequestEnd.QUEUE_FULL
    assert "full" in refused.refusal
    long = VirtualRequest(PlannedRequest(2, 2, 0, 0), 0, 9000, 9, sent_s=0.0)
    assert not fleet().send(long, ())
    assert long.end is RequestEnd.REFUSED


def test_a_cancelled_request_makes_room() -> None:
    engines = fleet(max_num_seqs=1)
    first, second = sent(engines, 0, output=900), sent(engines, 1)
    engines.advance(1.0)
    assert first.rank is not None
    first.rank.cancel(first)
    assert engines.advance(math.inf) == [second]

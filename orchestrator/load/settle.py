"""Counts the plain reads of a stream and drops their bytes, also while it still runs.

So a token in flight costs a few bytes instead of a few hundred, and the end of a long answer is no long stop.
"""

from __future__ import annotations

from itertools import compress

from orchestrator.load.exchange import Exchange
from orchestrator.load.wire import Wire
from orchestrator.load.wire.uniform import MIN_READS, uniform_reads

WINDOW = 256  # reads looked at in one step: about 0.3 ms


def can_settle(exchange: Exchange, wire: Wire, least: int = MIN_READS) -> bool:
    """Whether at least so many reads may be plain. Replies that are needed as text stay whole."""
    enough = len(exchange.parts) - exchange.odd >= least
    return enough and wire.read_choices is not None and exchange.mark != b"" and exchange.parsed.texts is None


def settle(exchange: Exchange, wire: Wire) -> None:
    """One window of reads: plain ones go into ``settled`` and ``parsed``, the others stay. Needs ``can_settle``."""
    assert wire.read_choices is not None
    at = exchange.odd
    parts, times = exchange.parts[at : at + WINDOW], exchange.times[at : at + WINDOW]
    found = uniform_reads(parts)
    if found is None:
        exchange.odd += len(parts)
        return
    exchange.parsed.tokens += found.tokens
    wire.read_choices(found.choices, exchange.parsed)
    exchange.settled.extend(compress(times, found.matches))
    stays = [not match for match in found.matches]
    exchange.parts[at : at + WINDOW] = compress(parts, stays)
    exchange.times[at : at + WINDOW] = compress(times, stays)
    exchange.odd += sum(stays)

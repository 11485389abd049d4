"""Completions as they come in: reads with the instant of each."""

from __future__ import annotations

from orchestrator.load.http import END_MARK
from orchestrator.load.in_flight import InFlight
from orchestrator.load.request_record import RequestRecord
from orchestrator.spec.dialect import Dialect
from tests.in_flight import finish, sent_request
from tests.integration.load_server import DONE, END, HEAD, chunk, token, usage

WIRE = "openai_completions"
DIALECT = Dialect(WIRE, "/v1/completions")


def with_reads(*reads: tuple[int, bytes], asked: int = 3) -> InFlight:
    """A request whose response came in these reads, each with its instant in ns."""
    request = sent_request(output_tokens=asked)
    for at_ns, data in reads:
        request.times.append(at_ns)
        request.parts.append(data)
        if request.head is None:
            request.read_head()
    request.end_marker = END_MARK
    return request


def with_tokens_at(*instants_ns: int) -> InFlight:
    """A token at each instant, then usage and the end a microsecond after the last."""
    reads = [(0, HEAD)]
    for at_ns in instants_ns:
        finish_reason = "length" if at_ns == instants_ns[-1] else None
        reads.append((at_ns, chunk(token(finish=finish_reason))))
    reads.append((instants_ns[-1] + 1000, ending(len(instants_ns))))
    return with_reads(*reads, asked=len(instants_ns))


def ending(output_tokens: int) -> bytes:
    """Usage, [DONE] and the end of the body."""
    return chunk(usage(8, output_tokens)) + chunk(DONE) + END


def done(request: InFlight, dialect: Dialect = DIALECT) -> RequestRecord:
    """The record of a request whose response is over."""
    return finish(request, WIRE, dialect)

"""The record of one request: made when it is sent, filled while its answer comes and is read, and
at last a row of ``requests``. load/in_flight.py tells who does what.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from orchestrator.results.outcomes import ErrorClass, RequestStatus, TokenCounts

# kept of an error's text. Rows shorten it after secrets are removed, so that none is cut in two
ERROR_CHARACTERS = 2_000


@dataclass(slots=True)
class TokenGaps:
    """The row of ``token_events`` of one request. ``tokens_per_chunk``: None where each chunk held
    one token, or where the stream does not say how many each held.
    """

    request_index: int
    gaps_us: array[int]  # int32
    tokens_per_chunk: array[int] | None  # int16


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. Each field is the column of ``requests`` with the same name, which
    results/records.py describes; instants are nanoseconds since the point's start.
    """

    request_index: int
    client: int
    replica: int
    phase: str
    session: int | None
    turn: int | None
    part: str | None = None
    adapter: str | None = None
    scheduled_ns: int
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    done_ns: int = 0
    input_tokens_asked: int
    input_tokens: int | None = None
    output_tokens_asked: int
    images: int | None = None
    body_bytes: int | None = None
    output_tokens: int | None = None
    hidden_tokens: int | None = None
    first_chunk_tokens: int | None = None
    output_tokens_counted: int | None = None
    token_count_source: str | None = None
    cached_tokens: int | None = None
    expected_cached_tokens: int | None = None
    chunks: int = 0
    coalesced_chunks: int = 0
    itl_kind: str | None = None
    finish_reason: str | None = None
    constraint: str | None = None
    constraint_met: bool | None = None
    status: RequestStatus = RequestStatus.OK
    error_class: ErrorClass | None = None
    error: str | None = None
    http_status: int | None = None

    def fail(self, error_class: ErrorClass, error: str) -> None:
        """Records a failure; the first one counts."""
        if self.error_class is not None:
            return
        self.status = error_class.status
        self.error_class = error_class
        self.error = error[:ERROR_CHARACTERS]

    def set_tokenizer_count(self, tokens: int, gaps: TokenGaps | None) -> None:
        """Sets the count of a tokenizer, for a reply that came without token counts."""
        self.output_tokens = tokens
        self.output_tokens_counted = tokens
        self.token_count_source = TokenCounts.TOKENIZER
        self.first_chunk_tokens = None
        self.set_itl_kind(gaps)

    def set_itl_kind(self, gaps: TokenGaps | None) -> None:
        """Decides whether the gaps are those between tokens, once chunks and tokens are counted."""
        if not self.chunks or gaps is None:
            return
        streamed_tokens = (self.output_tokens or 0) - (self.hidden_tokens or 0)
        is_one_token_each = gaps.tokens_per_chunk is None and streamed_tokens == self.chunks
        self.itl_kind = "token" if is_one_token_each else "chunk"


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """What becomes the rows of one request, as a client reports it while it runs. ``gaps``: None
    where no content came.
    """

    record: RequestRecord
    gaps: TokenGaps | None

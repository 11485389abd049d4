"""Says whether the counters of an endpoint grew by this load alone.

A server that somebody else started may have other clients, and behind its address there may be
several servers. Shares of its counters are those of this load only where the server counted the
tokens that this load's answers hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.load.request_counts import RequestColumns
from orchestrator.results.columns import or_zero
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import RequestStatus, TokenCounts

if TYPE_CHECKING:
    from orchestrator.telemetry.engine_metrics import Sample

TOLERANCE = 0.01  # of the tokens: so much another client may add to a figure
# tokens by which engines count a request differently: its end token, an empty prompt
PER_REQUEST = 1
OF_NOW = frozenset({"running", "waiting", "kv_usage"})  # true of the server, whoever uses it
# what the shares of accepted drafts and of prefix hits are made of
OF_SHARES = frozenset(
    {
        *("prefix_hit_tokens_total", "spec_accepted_tokens_total"),
        *("spec_accept_length", "spec_accept_share"),
    }
)


class EndpointUse(StrEnum):
    """Whose tokens the counters of an endpoint counted while it was loaded."""

    OWN = "own"  # those of this load
    OTHERS = "others"  # those of other clients, too
    PART = "part"  # a part: the address has several servers, or another one in front of them
    UNKNOWN = "unknown"  # answers or metrics do not say how many tokens there were


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """How many tokens a load has caused: those of its answered requests, and what requests that
    were not answered to their end may have added.
    """

    least: float
    most: float

    def use(self, counted: float | None, requests: int) -> EndpointUse:
        """``counted``: the growth of the server's counter; None: it has none."""
        if counted is None or not self.least:
            return EndpointUse.UNKNOWN
        slack = PER_REQUEST * requests
        if counted > (1 + TOLERANCE) * self.most + slack:
            return EndpointUse.OTHERS
        if counted < (1 - TOLERANCE) * self.least - slack:
            return EndpointUse.PART
        return EndpointUse.OWN


@dataclass(frozen=True, slots=True)
class CountedUse:
    """The use of an endpoint, with the tokens by which that shows: ``counted`` by the server and
    ``own`` of this load. Prompts and answers count alike.
    """

    use: EndpointUse
    counted: float = 0.0
    own: float = 0.0


def use_of_endpoint(samples: Sequence[Sample], requests: Rows, left_out: int = 0) -> CountedUse:
    """Whose tokens the server's counters counted between the first sample and the last.

    ``requests``: all rows of the load. ``left_out``: requests that were open when the load was
    ended, and have no rows. A prompt counter is judged only by what is too much: llama.cpp leaves
    cached tokens out of it.
    """
    load = _LoadTokens()
    for part in slices(requests):
        load.add(part)
    if load.has_uncounted:
        return CountedUse(EndpointUse.UNKNOWN)
    output = load.output_bounds(left_out)
    counted_output = _growth(samples, "generation_tokens_total")
    use = output.use(counted_output, load.requests + left_out)
    if use is not EndpointUse.OWN:
        return CountedUse(use, counted_output or 0.0, output.least)
    prompts = load.prompt_bounds(left_out)
    counted_prompts = _growth(samples, "prompt_tokens_total")
    if prompts.use(counted_prompts, load.requests + left_out) is EndpointUse.OTHERS:
        return CountedUse(EndpointUse.OTHERS, counted_prompts or 0.0, prompts.least)
    return CountedUse(EndpointUse.OWN, counted_output or 0.0, output.least)


class _LoadTokens:
    """The tokens of a load's requests, as the server's answers count them."""

    def __init__(self) -> None:
        self.requests = 0
        self.has_uncounted = False
        self._prompt_tokens = 0.0
        self._output_tokens = 0.0
        self._unanswered = 0
        self._most_prompt = 0.0
        self._most_output = 0.0

    def add(self, rows: Rows) -> None:
        columns = RequestColumns.of(rows)
        is_ok = columns.has_text("status", RequestStatus.OK)
        is_by_events = columns.has_text("token_count_source", TokenCounts.CHUNKS)
        prompt = columns["input_tokens"]
        output = columns["output_tokens"]
        is_uncounted = is_ok & (np.isnan(prompt) | np.isnan(output) | is_by_events)
        self.has_uncounted = self.has_uncounted or bool(is_uncounted.any())
        self.requests += len(is_ok)
        self._unanswered += int(np.count_nonzero(~is_ok))
        self._prompt_tokens += or_zero(prompt)[is_ok].sum()
        self._output_tokens += or_zero(output)[is_ok].sum()
        asked_prompt = or_zero(columns["input_tokens_asked"])
        asked_output = or_zero(columns["output_tokens_asked"])
        most_prompt = max(asked_prompt.max(initial=0), or_zero(prompt).max(initial=0))
        most_output = max(asked_output.max(initial=0), or_zero(output).max(initial=0))
        self._most_prompt = max(self._most_prompt, most_prompt)
        self._most_output = max(self._most_output, most_output)

    def prompt_bounds(self, left_out: int) -> TokenBounds:
        open_tokens = (self._unanswered + left_out) * self._most_prompt
        return TokenBounds(self._prompt_tokens, self._prompt_tokens + open_tokens)

    def output_bounds(self, left_out: int) -> TokenBounds:
        open_tokens = (self._unanswered + left_out) * self._most_output
        return TokenBounds(self._output_tokens, self._output_tokens + open_tokens)


def _growth(samples: Sequence[Sample], counter: str) -> float | None:
    """The growth of a counter; None where the samples lack it, or the server began anew."""
    values = [sample.values[counter] for sample in samples if counter in sample.values]
    if len(values) < 2 or values[-1] < values[0]:
        return None
    return values[-1] - values[0]


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """The samples of an endpoint without what is not of this load. ``note``: what a reader of the
    point has to know of them; None: nothing.
    """

    samples: Sequence[Sample]
    note: str | None = None


def figures_of_endpoint(
    samples: Sequence[Sample], requests: Rows, left_out: int = 0
) -> EndpointFigures:
    """As ``use_of_endpoint``."""
    counted = use_of_endpoint(samples, requests, left_out)
    if counted.use is EndpointUse.OWN:
        return EndpointFigures(samples)
    note: str | None = use_words(counted)
    has_shares = any(sample.values.keys() & OF_SHARES for sample in samples)
    if counted.use is EndpointUse.UNKNOWN and not has_shares:
        note = None
    kept: list[Sample] = []
    for sample in samples:
        values = {name: value for name, value in sample.values.items() if name in OF_NOW}
        kept.append(replace(sample, values=values))
    return EndpointFigures(kept, note)


def use_words(counted: CountedUse) -> str:
    """Whose tokens the metrics of an endpoint counted, where these are not those of the load."""
    unknown = "so they do not say how many drafts were accepted and prompt tokens cached"
    figures = f"({counted.counted:,.0f} tokens counted, {counted.own:,.0f} of this load)"
    match counted.use:
        case EndpointUse.OTHERS:
            return (
                f"other clients used the endpoint meanwhile: its metrics count more than this load "
                f"{figures}, {unknown}"
            )
        case EndpointUse.PART:
            return f"the endpoint's metrics count only a part of this load {figures}, {unknown}"
        case _:
            return (
                "the endpoint's metrics or its answers do not say how many tokens there were, so "
                "whether other clients used it is unknown, and its metrics say neither how many "
                "drafts were accepted nor how many prompt tokens it cached"
            )

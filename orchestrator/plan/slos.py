"""Turns limits for human readers into limits on the time per output token (TPOT).

A limit for a reader names a kind of reader, whose speed in words per minute is known. Answers must
come at least as fast.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.spec.load import READERS, TOKENS_PER_WORD, Slo
from orchestrator.spec.settings import EngineSettings

MINUTE_MS = 60e3
LONGEST_TPOT_S = 2.0  # nobody waits longer for a token: such a limit was meant in another unit


@dataclass(frozen=True, slots=True)
class ResolvedSlos:
    """SLOs with a time per output token in place of each human reader, and notes on these readers
    and on limits that look wrong.
    """

    slos: list[Slo]
    notes: list[str]


def resolved_slos(slos: Sequence[Slo], settings: Sequence[EngineSettings]) -> ResolvedSlos:
    """Resolves the readers among the limits.

    ``settings``: of all deployments. They share one limit, which follows from the tokenizer with
    the most tokens per word.
    """
    notes = list(_too_long(slos))
    if not any(slo.readers for slo in slos):
        return ResolvedSlos(list(slos), notes)
    density = _densest(settings)
    tokens_per_word = density.tokens_per_word
    resolved: list[Slo] = []
    for slo in slos:
        resolved.append(slo.resolved(tokens_per_word))
        for name, reader in slo.readers.items():
            words_per_minute = READERS[reader]
            tpot_ms = MINUTE_MS / (words_per_minute * tokens_per_word)
            notes.append(
                f"{name}: a reader, {reader}, is tpot<={tpot_ms:.3g}ms: {words_per_minute:g} words "
                f"per minute, {tokens_per_word:.2f} tokens per word ({density.source})"
            )
    return ResolvedSlos(resolved, notes)


def _too_long(slos: Sequence[Slo]) -> Iterator[str]:
    """A note on each time per token that nobody would ask for."""
    for slo in slos:
        for limit in slo.limits:
            if limit.of == "tpot" and limit.seconds >= LONGEST_TPOT_S:
                yield (
                    f"{slo.name}: a time per token (tpot) of {limit.seconds:g} s limits nothing; did "
                    f"you mean {limit.seconds:g} ms?"
                )


@dataclass(frozen=True, slots=True)
class _TokenDensity:
    """Tokens per word of a text. ``source``: the tokenizer that makes them, or what is assumed
    because there is none.
    """

    tokens_per_word: float
    source: str


def _densest(settings: Sequence[EngineSettings]) -> _TokenDensity:
    """The most tokens per word of all tokenizers at hand."""
    # imported here, because only limits for readers need a tokenizer
    from orchestrator.workloads.content import tokens_per_word

    counts: dict[str, float] = {}
    tokenizers = {
        engine_settings.tokenizer or engine_settings.model for engine_settings in settings
    }
    for tokenizer in sorted(tokenizers):
        count = tokens_per_word(tokenizer)
        if count is not None:
            counts[tokenizer] = count
    if not counts:
        return _TokenDensity(TOKENS_PER_WORD, "no tokenizer at hand: English")
    densest = max(counts, key=lambda tokenizer: counts[tokenizer])
    return _TokenDensity(counts[densest], densest)

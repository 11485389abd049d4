"""Turns limits for human readers into limits on the time per output token (TPOT).

Such a limit says how fast somebody reads, in words per minute: answers must come at least as fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.spec.load import READERS, TOKENS_PER_WORD, Slo
from orchestrator.spec.settings import EngineSettings

MINUTE_MS = 60e3


def resolved_slos(
    slos: Sequence[Slo], settings: Sequence[EngineSettings]
) -> tuple[list[Slo], list[str]]:
    """SLOs with a time per output token in place of each human reader, and a note on each of these.

    All deployments share one limit, which follows from the tokenizer with the most tokens per word.
    """
    if not any(slo.readers for slo in slos):
        return list(slos), []
    density = _densest(settings)
    tokens_per_word = density.tokens_per_word
    resolved: list[Slo] = []
    notes: list[str] = []
    for slo in slos:
        resolved.append(slo.resolved(tokens_per_word))
        for name, reader in slo.readers.items():
            words_per_minute = READERS[reader]
            tpot_ms = MINUTE_MS / (words_per_minute * tokens_per_word)
            notes.append(
                f"{name}: a reader, {reader}, is tpot<={tpot_ms:.3g}ms: {words_per_minute:g} words "
                f"per minute, {tokens_per_word:.2f} tokens per word ({density.source})"
            )
    return resolved, notes


@dataclass(frozen=True, slots=True)
class _TokenDensity:
    """``source``: the tokenizer, or why none was asked."""

    tokens_per_word: float
    source: str


def _densest(settings: Sequence[EngineSettings]) -> _TokenDensity:
    """The most tokens per word of all tokenizers at hand."""
    # imported here, because only limits for readers need a tokenizer
    from orchestrator.workloads.content import tokens_per_word

    counts: dict[str, float] = {}
    for name in sorted({part.tokenizer or part.model for part in settings}):
        count = tokens_per_word(name)
        if count is not None:
            counts[name] = count
    if not counts:
        return _TokenDensity(TOKENS_PER_WORD, "no tokenizer at hand: English")
    name = max(counts, key=lambda tokenizer: counts[tokenizer])
    return _TokenDensity(counts[name], name)

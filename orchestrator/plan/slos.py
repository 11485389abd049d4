"""Turns limits of readers into limits on the time per output token."""

from collections.abc import Sequence

from orchestrator.spec.load import READERS, TOKENS_PER_WORD, Slo
from orchestrator.spec.settings import EngineSettings


def resolved_slos(
    slos: Sequence[Slo], settings: Sequence[EngineSettings]
) -> tuple[list[Slo], list[str]]:
    """SLOs with a time per output token in place of each reader, and a note on each reader.

    All deployments share one limit, which follows from the tokenizer with the most tokens per word.
    """
    if not any(slo.readers for slo in slos):
        return list(slos), []
    tokens, source = _most_tokens_per_word(settings)
    resolved: list[Slo] = []
    notes: list[str] = []
    for slo in slos:
        resolved.append(slo.resolved(tokens))
        for name, reader in slo.readers.items():
            tpot_ms = 60e3 / READERS[reader] / tokens
            notes.append(
                f"{name}: a reader, {reader}, is tpot<={tpot_ms:.3g}ms: "
                f"{READERS[reader]:g} words per minute, {tokens:.2f} tokens per word ({source})"
            )
    return resolved, notes


def _most_tokens_per_word(settings: Sequence[EngineSettings]) -> tuple[float, str]:
    """The most tokens per word of all tokenizers at hand, and which one that is."""
    from orchestrator.workloads.content import tokens_per_word  # only readers need it

    counts: dict[str, float] = {}
    for name in sorted({part.tokenizer or part.model for part in settings}):
        count = tokens_per_word(name)
        if count is not None:
            counts[name] = count
    if not counts:
        return TOKENS_PER_WORD, "no tokenizer at hand: English"
    name = max(counts, key=lambda tokenizer: counts[tokenizer])
    return counts[name], name

"""Words about verdicts on points that a running sweep and its results both say."""

from __future__ import annotations

from orchestrator.results.validity import Validity

# of verdicts that end a search; ``{}`` is what was measured
_REMEDIES = {
    Validity.BROKEN_OUTPUT: (
        "change {}: no load makes output of such answers (docs/explained/validity.md#broken_output)"
    ),
    Validity.INVALID: (
        "mend what {} is asked or answers: under another load it is the same "
        "(docs/explained/validity.md)"
    ),
    Validity.STREAM_BUFFERED: (
        "take away what gathers the events of {}: whatever the load, they do not show its TPOT and "
        "ITL"
    ),
}


def remedy_text(validity: str, measured: str) -> str:
    """What to do about a verdict that ends a search; empty for other verdicts.

    ``measured``: what was measured, such as "the server".
    """
    return _REMEDIES.get(Validity(validity), "").format(measured)

"""What a kind of requests costs beside the plain ones of the same point."""

from __future__ import annotations


def latency_costs_text(
    ttft_ms: float | None,
    plain_ttft_ms: float | None,
    tpot_ms: float | None,
    plain_tpot_ms: float | None,
) -> str:
    """``TTFT +20.0%, TPOT -10.0%``; a latency that either kind lacks is left out. All in ms."""
    costs: list[str] = []
    for name, latency_ms, plain_ms in (
        ("TTFT", ttft_ms, plain_ttft_ms),
        ("TPOT", tpot_ms, plain_tpot_ms),
    ):
        if latency_ms is not None and plain_ms:
            costs.append(f"{name} {latency_ms / plain_ms - 1:+.1%}")
    return ", ".join(costs)

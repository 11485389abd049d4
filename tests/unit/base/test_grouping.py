"""Groups of values that have the same key."""

from __future__ import annotations

from orchestrator.base.grouping import values_by_key


def test_keys_and_their_values_keep_their_order() -> None:
    words = ("beta", "alpha", "bravo")
    by_letter = values_by_key((word[0], word) for word in words)
    assert list(by_letter.items()) == [("b", ["beta", "bravo"]), ("a", ["alpha"])]

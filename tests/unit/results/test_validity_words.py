"""What is said of verdicts."""

from __future__ import annotations

import pytest

from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.results.validity_words import remedy_text


@pytest.mark.parametrize("validity", list(Validity))
def test_a_verdict_that_ends_a_search_says_what_to_do_and_no_other_does(
    validity: Validity,
) -> None:
    text = remedy_text(validity, "the server")
    if validity.ends_search is EndsSearch.NO:
        assert text == ""
    else:
        assert "the server" in text

import pytest

from orchestrator.capacity.answers import Exclusion
from orchestrator.report.page.experiment_tables import LeftOutCount
from orchestrator.report.page.texts import VERDICTS, explained_columns, left_out_text
from orchestrator.results.validity import Validity


@pytest.mark.parametrize("reason", list(Exclusion))
def test_every_reason_has_a_sentence(reason):
    text = left_out_text(LeftOutCount(reason, "disturbed", 2))
    assert text.startswith(("2 levels: ", "2 deployments: "))


def test_levels_that_are_not_valid_say_their_verdict():
    text = left_out_text(LeftOutCount(Exclusion.NOT_VALID, "disturbed", 1))
    assert text == "1 level: not valid (disturbed)"


def test_every_verdict_is_explained():
    assert {str(verdict) for verdict in Validity} <= VERDICTS.keys()


def test_columns_stand_under_the_titles_of_the_page():
    titles = {each.column.name: each.title for each in explained_columns()}
    assert titles["ttft_ms.p99"] == "TTFT p99"
    assert titles["per_user"] == "tokens/s a user sees"
    assert not any(name.startswith("settings.") for name in titles)

"""What a kind of requests costs beside the plain ones of the same point."""

from orchestrator.report.latency_costs import latency_costs_text


def test_a_latency_that_either_kind_lacks_is_left_out() -> None:
    assert latency_costs_text(None, 100.0, 11.0, 10.0) == "TPOT +10.0%"
    assert latency_costs_text(110.0, None, None, 10.0) == ""

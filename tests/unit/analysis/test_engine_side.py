"""What engines said of themselves becomes a few figures; what they did not say stays null."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.counters import TimeWindow
from orchestrator.analysis.engine_side import engine_side
from orchestrator.results.schemas import ENGINE_METRICS


def table(*rows: dict) -> pa.Table:
    keys = {"measurement_id": "m", "attempt_id": "a", "replica": 0}
    return pa.Table.from_pylist([keys | row for row in rows], schema=ENGINE_METRICS)


def test_counters_are_growth_and_gauges_the_highest_reading():
    names = (
        "unix_ns",
        "waiting",
        "kv_usage",
        "preemptions_total",
        "queue_time_s_sum",
        "queue_time_count",
    )
    readings = [(3, 1, 0.2, 9, 5, 30), (1, 0, 0.1, 4, 1, 10), (2, 7, 0.9, 5, 2, 15)]
    side = engine_side(table(*(dict(zip(names, reading, strict=True)) for reading in readings)))
    assert (side.waiting_max, side.kv_usage_max, side.preemptions) == (7, 0.9, 5)
    assert side.queue_time_mean_ms == 200.0


def test_replicas_add_up():
    side = engine_side(
        table(
            {"unix_ns": 1, "generation_tokens_total": 100, "waiting": 3},
            {"unix_ns": 2, "generation_tokens_total": 160, "waiting": 0},
            {"unix_ns": 1, "generation_tokens_total": 1_000, "waiting": 5, "replica": 1},
            {"unix_ns": 2, "generation_tokens_total": 1_040, "waiting": 0, "replica": 1},
        )
    )
    assert (side.generation_tokens, side.waiting_max) == (100, 5)


def test_what_one_replica_did_not_tell_is_null_for_all():
    side = engine_side(
        table(
            {"unix_ns": 1, "generation_tokens_total": 100},
            {"unix_ns": 2, "generation_tokens_total": 160},
            {"unix_ns": 1, "replica": 1},
            {"unix_ns": 2, "replica": 1},
        )
    )
    assert side.generation_tokens is None


def test_without_growth_there_is_no_figure_of_a_counter():
    assert engine_side(table()) is None
    assert engine_side(table({"unix_ns": 1, "preemptions_total": 7})).preemptions is None
    fell = [{"unix_ns": 1, "preemptions_total": 7}, {"unix_ns": 2, "preemptions_total": 0}]
    assert engine_side(table(*fell)).preemptions is None


def test_no_lookups_make_no_hit_share():
    rows = [
        {"unix_ns": at, "prefix_hit_tokens_total": 0, "prefix_query_tokens_total": 0}
        for at in (1, 2)
    ]
    assert engine_side(table(*rows)).prefix_hit_share is None


@given(st.lists(st.integers(0, 1_000), min_size=2, max_size=20), st.integers(0, 10_000))
def test_growth_is_the_sum_of_the_steps_wherever_the_counter_began(steps, began):
    total, rows = began, []
    for at, step in enumerate(steps):
        total += step
        rows.append({"unix_ns": at, "prompt_tokens_total": total})
    assert engine_side(table(*rows)).prompt_tokens == sum(steps[1:])


def test_estimates_of_work_are_those_of_the_window_on_the_clock_of_the_driver():
    # the host's clock is 5 s ahead; the counter grows by 3e12 a second, twice as fast after 10 s
    rows = [
        {
            "unix_ns": (at_s + 5) * 1_000_000_000,
            "clock_offset_ns": 5_000_000_000,
            "estimated_flops_per_gpu_total": 3e12 * (at_s + max(at_s - 10, 0)),
            "estimated_read_bytes_per_gpu_total": 2e12 * at_s,
            "estimated_write_bytes_per_gpu_total": 1e9 * at_s,
        }
        for at_s in (0, 5, 10, 15)
    ]
    side = engine_side(table(*rows), TimeWindow(2.0, 10.0))
    assert side.estimated_flops_s == pytest.approx(3e12)
    assert side.estimated_bytes_s == pytest.approx(2.001e12)
    later = engine_side(table(*rows), TimeWindow(10.0, 14.0))
    assert later.estimated_flops_s == pytest.approx(6e12)


def test_estimates_that_do_not_cover_the_window_are_null():
    rows = [
        {"unix_ns": at_s * 1_000_000_000, "estimated_flops_per_gpu_total": 1.0} for at_s in (0, 5)
    ]
    assert engine_side(table(*rows), TimeWindow(2.0, 10.0)).estimated_flops_s is None
    assert engine_side(table(*rows)).estimated_flops_s is None


def test_drafts_by_counters():
    names = (
        "unix_ns",
        "spec_drafts_total",
        "spec_draft_tokens_total",
        "spec_accepted_tokens_total",
    )
    side = engine_side(
        table(
            dict(zip(names, (1, 10, 40, 5), strict=True)),
            dict(zip(names, (2, 30, 120, 45), strict=True)),
        )
    )
    assert side.spec_accepted_share == 0.5  # 40 of 80
    assert side.spec_accepted_length == 3.0  # 2 of each of 20 drafts, and the model's own token


def test_drafts_as_an_engine_averages_them():
    side = engine_side(
        table(
            {"unix_ns": 1, "spec_accept_length": 2.0, "spec_accept_share": 0.4},
            {"unix_ns": 2, "spec_accept_length": 3.0, "spec_accept_share": 0.6},
        )
    )
    assert (side.spec_accepted_share, side.spec_accepted_length) == (0.5, 2.5)
    assert engine_side(table({"unix_ns": 1})).spec_accepted_length is None

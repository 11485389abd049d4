from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.analysis.intervals import batches_of
from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import LimitValues, parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.page.payload import (
    CENTRED,
    LATENCIES,
    Payload,
    RequestBins,
    differences_within_batches,
    order_within_batches,
    payload_of,
)
from orchestrator.report.page.stops import bins_of
from orchestrator.report.selection import JudgedExperiment, answers, limits, with_limits
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.mixes import rows_of
from tests.unit.report.stores import commit_answers
from tests.unit.results.builders import commit_measurement

planes = arrays(np.uint8, st.integers(0, 60))
NO_PARTS = np.zeros(60, np.int64)


def sizes_of(bins):
    return batches_of(np.zeros(bins.size, np.bool_)).sizes.astype(int)


@given(planes)
def test_the_requests_of_each_batch_stay_in_it(bins):
    ordered = bins[order_within_batches(bins, NO_PARTS[: bins.size])]
    ends = np.cumsum(sizes_of(bins))[:-1]
    for batch, before in zip(np.split(ordered, ends), np.split(bins, ends), strict=True):
        assert sorted(batch) == sorted(before)


@given(planes)
def test_differences_add_up_to_the_bins(bins):
    ordered = bins[order_within_batches(bins, NO_PARTS[: bins.size])]
    differences = differences_within_batches(ordered)
    first = 0
    for size in sizes_of(bins):
        batch = slice(first, first + size)
        assert (np.cumsum(differences[batch], dtype=np.uint8) == ordered[batch]).all()
        first += size


@given(st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40))
def test_bins_are_written_less_their_centre(answers):
    seconds = np.array([each[0] for each in answers])
    is_ok = np.array([each[1] for each in answers])
    stops = np.linspace(0.1, 0.9, 9)
    bins = RequestBins(dict.fromkeys(LATENCIES, stops))
    bins.add(("m", "a"), LimitValues(is_ok, dict.fromkeys(LATENCIES, seconds)))
    planes = np.split(np.frombuffer(bins.encoded(), np.uint8), len(LATENCIES))
    expected = bins_of(seconds, is_ok, stops)
    for name, plane in zip(LATENCIES[1:], planes[1:], strict=True):
        centre = np.uint8(bins["m", "a"].centres[name])
        assert sorted(plane + centre) == sorted(expected)
    assert set(bins["m", "a"].centres) == set(CENTRED)


# Parts of a mix


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 9)), max_size=60))
def test_requests_of_a_part_are_found_by_their_number_in_each_batch(drawn):
    """As judge.js finds them: those of no part come first, and each part keeps its batches."""
    codes = np.array([part for part, _ in drawn], np.int64)
    seconds = np.array([tenths / 10 for _, tenths in drawn], np.float64)
    parts = RequestParts(("chat", "agent", "rag"), codes)
    values = LimitValues(np.ones(codes.size, np.bool_), dict.fromkeys(LATENCIES, seconds), parts)
    bins = RequestBins(dict.fromkeys(LATENCIES, np.linspace(0.1, 0.9, 9)))
    bins.add(("m", "a"), values)
    attempt = bins["m", "a"]
    assert list(attempt.parts) == sorted(name for name in parts.names if parts.of(name).any())
    tpot = np.split(np.frombuffer(bins.encoded(), np.uint8), 3)[1] + np.uint8(
        attempt.centres["tpot"]
    )
    found = {name: [] for name in attempt.parts}
    end = 0
    for batch, size in enumerate(sizes_of(codes)):
        end += size
        first = end - sum(counts[batch] for counts in attempt.parts.values())
        for name, counts in attempt.parts.items():
            found[name] += tpot[first : first + counts[batch]].tolist()
            first += counts[batch]
    expected = bins_of(seconds, values.ok, bins.stops["tpot"])
    for name, of_part in found.items():
        in_schedule = expected[parts.of(name)]
        ends = np.cumsum(sizes_of(in_schedule))[:-1]
        for own, due in zip(np.split(of_part, ends), np.split(in_schedule, ends), strict=True):
            assert sorted(own) == sorted(due)


def mixed_payload(store: Store, slo_text: str) -> Payload:
    """The payload of one point of two repeats with eight chats and four longer requests each."""
    slo = parse_slo(slo_text)
    for repeat in range(2):
        commit_measurement(
            store, f"m{repeat}", rows_of(repeat), attempt_id=f"a{repeat}", repeat=repeat
        )
    experiment = StoredExperiment(store)
    return payload_of([JudgedExperiment(experiment, (slo,), experiment.points(slo))])


def test_limits_on_parts_are_among_the_stops_of_their_latency(store: Store) -> None:
    payload = mixed_payload(store, "chat:ttft<=151ms,rag:ttft<=1s,rag:attainment>=0.5")
    (group,) = payload.groups
    (limits,) = group.slos
    stops = payload.stops["ttft"]
    assert group.parts == ["chat", "rag"]
    assert {name: stops[part.stops["ttft"]] for name, part in limits.parts.items()} == {
        "chat": 0.151,
        "rag": 1.0,
    }
    assert [part.attainment for part in limits.parts.values()] == [0.95, 0.5]
    assert limits.stops == {}
    assert limits.fixed == []


def test_a_repeat_says_how_many_requests_of_each_part_its_batches_have(store: Store) -> None:
    (group,) = mixed_payload(store, "chat:ttft<=151ms").groups
    (point,) = group.points
    for repeat in point.repeats:
        assert [sum(counts) for counts in repeat.parts] == [8, 4]
    assert point.part_figures.keys() == {"chat", "rag"}
    assert point.part_figures["chat"]["ttft_p50_ms"] == pytest.approx(105, abs=5)


def test_limits_that_cannot_be_moved_are_named_with_their_part(store: Store) -> None:
    (group,) = mixed_payload(store, "chat:ttft<=151ms,chat:ttft_p90<=1s,agent:ttft<=1s").groups
    (limits,) = group.slos
    assert list(limits.parts) == ["chat"]
    assert limits.fixed == ["chat:ttft_p90", "agent:ttft"]


# What is ranked together


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def payload_of_store(store: Store) -> Payload:
    stored = [StoredExperiment(store)]
    judged = list(with_limits(None, stored))
    return payload_of(judged, answers(limits(None, stored), read=judged).comparisons)


def test_what_was_asked_otherwise_stands_in_a_group_of_its_own(store: Store) -> None:
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
    Path(store.uri, "exp", "plan.json").unlink()
    groups = payload_of_store(Store.open(store.uri, "exp")).groups
    assert [len(group.points) for group in groups] == [2, 2]
    assert len({group.content for group in groups}) == 2


def test_planned_levels_that_nobody_measured_are_named(store: Store) -> None:
    store_sweep(store, planned(levels=[2]))
    store.write_plan(planned(levels=[2, 4]).to_json())
    missing = payload_of_store(store).missing
    assert [(each.level, each.load) for each in missing] == [(4, "4 in flight")] * 2
    assert {each.experiment for each in missing} == {"exp"}


def test_each_slo_says_which_outputs_disagree(store: Store) -> None:
    plan = planned()
    loose, tight = plan.slos
    strict = tight.model_copy(update={"agreement": 0.9})
    store_sweep(store, plan.model_copy(update={"slos": (loose, strict)}))
    commit_answers(store, (1, 2, 3, 4), (1, 9, 9, 9))
    (group,) = payload_of_store(store).groups
    assert [len(slo.disagreeing) for slo in group.slos] == [0, 1]


def test_lines_hold_the_records_of_the_groups(store: Store) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    payload = payload_of_store(store)
    head, group, *records = map(json.loads, payload.lines())
    assert head["head"]["stops"] == payload.stops
    (expected,) = payload.groups
    read = group["group"] | {
        "deployments": [each["deployment"] for each in records if "deployment" in each],
        "points": [each["point"] for each in records if "point" in each],
    }
    assert read == orjson.loads(orjson.dumps(expected))

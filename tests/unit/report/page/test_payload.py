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
from orchestrator.analysis.slo import LimitValues
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.page.payload import (
    CENTRED,
    LATENCIES,
    Payload,
    RequestBins,
    _differences,
    _order_within_batches,
    payload_of,
)
from orchestrator.report.page.stops import bins_of
from orchestrator.report.selection import answers, limits, with_limits
from orchestrator.results.store import Store
from tests.unit.plan.test_current import planned, run
from tests.unit.report.stores import commit_answers

planes = arrays(np.uint8, st.integers(0, 60))


def sizes_of(bins):
    return batches_of(np.zeros(bins.size, np.bool_)).sizes.astype(int)


@given(planes)
def test_the_requests_of_each_batch_stay_in_it(bins):
    ordered = bins[_order_within_batches(bins)]
    ends = np.cumsum(sizes_of(bins))[:-1]
    for batch, before in zip(np.split(ordered, ends), np.split(bins, ends), strict=True):
        assert sorted(batch) == sorted(before)


@given(planes)
def test_differences_add_up_to_the_bins(bins):
    ordered = bins[_order_within_batches(bins)]
    differences = _differences(ordered)
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


# What is ranked together


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def payload_of_store(store: Store) -> Payload:
    stored = [StoredExperiment(store)]
    judged = list(with_limits(None, stored))
    return payload_of(judged, answers(limits(None, stored), read=judged).comparisons)


def test_what_was_asked_otherwise_stands_in_a_group_of_its_own(store: Store) -> None:
    run(store, planned(tokens=64), tokens=64)
    run(store, planned(tokens=8), tokens=8)
    Path(store.uri, "exp", "plan.json").unlink()
    groups = payload_of_store(Store.open(store.uri, "exp")).groups
    assert [len(group.points) for group in groups] == [2, 2]
    assert len({group.content for group in groups}) == 2


def test_planned_levels_that_nobody_measured_are_named(store: Store) -> None:
    run(store, planned(levels=[2]))
    store.write_plan(planned(levels=[2, 4]).to_json())
    missing = payload_of_store(store).missing
    assert [(each.level, each.load) for each in missing] == [(4, "4 in flight")] * 2
    assert {each.experiment for each in missing} == {"exp"}


def test_each_slo_says_which_outputs_disagree(store: Store) -> None:
    plan = planned()
    loose, tight = plan.slos
    strict = tight.model_copy(update={"agreement": 0.9})
    run(store, plan.model_copy(update={"slos": (loose, strict)}))
    commit_answers(store, (1, 2, 3, 4), (1, 9, 9, 9))
    (group,) = payload_of_store(store).groups
    assert [len(slo.disagreeing) for slo in group.slos] == [0, 1]


def test_lines_hold_the_records_of_the_groups(store: Store) -> None:
    run(store, planned(levels=[2, 4]))
    payload = payload_of_store(store)
    head, group, *records = map(json.loads, payload.lines())
    assert head["head"]["stops"] == payload.stops
    (expected,) = payload.groups
    read = group["group"] | {
        "deployments": [each["deployment"] for each in records if "deployment" in each],
        "points": [each["point"] for each in records if "point" in each],
    }
    assert read == orjson.loads(orjson.dumps(expected))

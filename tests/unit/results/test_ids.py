"""Digests and ULIDs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.results.ids import digest, new_ulid
from orchestrator.spec.load import Slo

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@dataclass
class Thing:
    name: str
    sizes: tuple[int, ...]


def test_a_digest_is_16_hex_digits_of_the_canonical_json() -> None:
    canonical = '{"a":[true,null,"é"],"b":1}'
    assert (
        digest({"b": 1, "a": [True, None, "é"]})
        == hashlib.sha256(canonical.encode()).hexdigest()[:16]
    )


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws nested values slowly
@given(st.dictionaries(st.text(), JSON))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


@given(JSON, JSON)
def test_different_values_have_different_digests(left: object, right: object) -> None:
    assert (digest(left) == digest(right)) == (repr(left) == repr(right) or left is right)


def test_models_dataclasses_sets_and_paths_have_digests() -> None:
    assert digest(Slo(ttft=0.5)) == digest(Slo(ttft=0.5).model_dump())
    assert digest(Thing("a", (1, 2))) == digest({"name": "a", "sizes": [1, 2]})
    assert digest({"set": {"b", "a"}, "path": PurePosixPath("x/y")}) == digest(
        {"set": ["a", "b"], "path": "x/y"}
    )


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "from orchestrator.results.ids import digest; print(digest({'set': {'x', 'y', 'z'}, "
        "'f': 0.1}))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == digest({"f": 0.1, "set": {"x", "y", "z"}})


def test_what_json_cannot_say_has_no_digest() -> None:
    with pytest.raises(ValueError):
        digest(float("nan"))
    with pytest.raises(TypeError, match="object has no canonical JSON form"):
        digest(object())


def test_ulids_are_fresh_and_sort_by_time() -> None:
    ulids = [new_ulid() for _ in range(200)]
    assert len(set(ulids)) == 200
    assert [one[:10] for one in ulids] == sorted(one[:10] for one in ulids)

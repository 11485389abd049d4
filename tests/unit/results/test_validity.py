"""Every verdict is classified: whether it is measured again, and whether it ends a search."""

from __future__ import annotations

import ast
import inspect
from typing import get_args

from orchestrator.capacity.claim import POINTLESS, ClaimStatus
from orchestrator.load import validity as judging
from orchestrator.results.records import PointHead
from orchestrator.results.validity import EndsSearch, Validity

CLASSIFIED = {
    "valid": "fine",
    "broken_output": "ends",
    "invalid": "ends",
    "network_bound": "again",
    "disturbed": "again",
    "client_bound": "again",
    "stream_buffered": "partly",
    "engine_bound_backlog": "fine",
    "interrupted": "again",
    "unmeasured": "fine",
    "unchecked": "fine",
}


def kind(verdict: Validity) -> str:
    ends = {EndsSearch.YES: "ends", EndsSearch.PARTLY: "partly", EndsSearch.NO: ""}
    return ("again" if verdict.spoilt else "") + ends[verdict.ends_search] or "fine"


def test_every_verdict_is_measured_again_or_ends_a_search_or_is_fine() -> None:
    assert {str(one): kind(one) for one in Validity} == CLASSIFIED


def test_every_verdict_that_a_point_is_judged_by_is_one_of_them() -> None:
    tree = ast.parse(inspect.getsource(judging.judge))
    found = {one.attr.lower() for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
    judged = {one for one in found if one in CLASSIFIED}
    assert judged == set(CLASSIFIED) - {"interrupted", "unmeasured", "unchecked"}
    said = get_args(PointHead.__annotations__["validity"]) or (
        PointHead.__annotations__["validity"],
    )
    assert all(name in str(said) for name in CLASSIFIED)


def test_verdicts_that_end_a_search_have_a_status() -> None:
    ends = [one for one in Validity if one.ends_search is not EndsSearch.NO]
    assert set(POINTLESS) == set(ends) and set(POINTLESS) <= set(get_args(ClaimStatus))

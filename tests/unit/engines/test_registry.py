"""Engines and routers are found by name."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import InputError
from orchestrator.engines.registry import ENGINES, ROUTERS, program_of


def test_a_program_is_an_engine_or_a_router() -> None:
    assert program_of("vllm") is ENGINES["vllm"]
    assert program_of("vllm_router") is ROUTERS["vllm_router"]


def test_no_router_has_the_name_of_an_engine() -> None:
    assert not set(ENGINES.names()) & set(ROUTERS.names())


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="unknown engine 'vlm'.*'vllm'"):
        program_of("vlm")

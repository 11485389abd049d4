"""What ``extra_args`` become, and what of them clashes with fields."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.extra_args import conflicts, extra_arguments, present_flags
from tests.unit.engines.builders import acme, command_of


@pytest.mark.parametrize(
    ("extra_args", "arguments"),
    [
        ({"--on": True, "--off": False, "--none": None}, ["--on"]),
        ({"--levels": [1, 2]}, ["--levels", "1", "2"]),
        ({"--number": 0}, ["--number", "0"]),
        ({"key.of.a.file": 3}, []),
        ({"-cc.inner": False, "--json.inner=x": True}, ["-cc.inner", "false", "--json.inner=x"]),
    ],
)
def test_flags_become_arguments(extra_args: dict[str, Any], arguments: list[str]) -> None:
    assert extra_arguments(acme(extra_args=extra_args)) == arguments


def test_a_key_of_a_json_flag_gets_true_and_false_as_values() -> None:
    extra = {"-cc.pass_config.fuse_norm_quant": False, "--eplb-config.log_balancedness": True}
    argv = command_of("vllm", extra_args=extra).argv
    assert argv[-4:] == (
        *("-cc.pass_config.fuse_norm_quant", "false"),
        *("--eplb-config.log_balancedness", "true"),
    )


def test_flags_are_present_in_any_spelling_unless_switched_off() -> None:
    settings = acme(extra_args={"--max_seqs=3": True, "--no-cache": True, "--other": 0})
    assert present_flags(settings, ("--max-seqs", "--cache", "--other")) == [
        "--max_seqs=3",
        "--no-cache",
    ]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("--max_seqs", "the field max_num_seqs"),
        ("--max-s", "the field max_num_seqs"),  # argparse takes it for --max-seqs
        ("--m", "the field max_num_seqs"),
        ("cache", "the field kv_cache_dtype"),
        ("cache.dtype.inner", "the field kv_cache_dtype"),
    ],
)
def test_a_conflict_names_the_owner_of_the_flag_or_key(name: str, owner: str) -> None:
    owners = {"--max-seqs": "the field max_num_seqs"}
    key_owners = {"cache.dtype": "the field kv_cache_dtype"}
    assert conflicts("Acme", acme(extra_args={name: 1}), owners, key_owners) == [
        f"extra_args: {name} is set by {owner}; Acme would get it twice"
    ]


def test_flags_and_keys_that_nobody_sets_are_no_conflict() -> None:
    extra_args = {"--free": 1, "free.key": 2}
    assert conflicts("Acme", acme(extra_args=extra_args), {"--used": "x"}, {"used": "x"}) == []

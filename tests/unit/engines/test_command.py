"""Building blocks of command lines and readers of logs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.command import (
    Flag,
    LogFigure,
    Node,
    bytes_of_gib,
    core_groups,
    fill_placeholders,
    flag_arguments,
    log_reader,
    nonce_name,
    random_key,
    release,
)
from tests.unit.engines.builders import acme


def test_no_random_key_looks_like_a_flag() -> None:
    keys = {random_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert not [key for key in keys if not key[0].isalnum() or len(key) < 32]


@pytest.mark.parametrize(
    ("flag", "value", "arguments"),
    [
        (Flag("--x"), 3, ["--x", "3"]),
        (Flag("--x", "switch"), True, ["--x"]),
        (Flag("--x", "switch"), False, ["--no-x"]),
        (Flag("--x", "bare"), True, ["--x"]),
        (Flag("--x", "bare"), False, []),
        (Flag("--x", "bare", "--y"), False, ["--y"]),
        (Flag("--x", "off"), True, []),
        (Flag("--x", "off"), False, ["--x"]),
        (Flag("--x", "json"), {"b": 1, "a": 2}, ["--x", '{"a":2,"b":1}']),
        (Flag("--x", value_from=lambda value, settings: value * 2), 3, ["--x", "6"]),
        (Flag("--x", value_from=lambda value, settings: None), 3, []),
    ],
)
def test_a_fields_value_becomes_arguments(flag: Flag, value: Any, arguments: list[str]) -> None:
    assert flag.arguments(value, acme()) == arguments


def test_open_fields_have_no_arguments() -> None:
    flags = {"max_num_seqs": Flag("--seqs"), "block_size": (Flag("--block"), Flag("--page"))}
    assert flag_arguments(acme(block_size=16), flags) == ["--block", "16", "--page", "16"]


def test_placeholders_are_filled_and_other_braces_stay() -> None:
    node = Node(rank=3, host="10.0.0.4", workdir="/w")
    text = "{workdir}/{host}-{rank} {devices} {0,1}"
    assert fill_placeholders(text, node) == "/w/10.0.0.4-3 {devices} {0,1}"


@pytest.mark.parametrize(
    ("ranks", "cores", "groups"),
    [(2, (0, 1, 2, 3), "0,1|2,3"), (2, (4, 5, 6), "4|5"), (2, (7,), "7|7"), (2, (), "")],
)
def test_cores_are_divided_among_the_ranks_of_a_node(
    ranks: int, cores: tuple[int, ...], groups: str
) -> None:
    assert core_groups(acme(tensor_parallel_size=ranks), Node(cores=cores)) == groups


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"engine_version": "v1.3.0rc2", "image": "x:1.2.0"}, (1, 3)),
        ({"image": "registry:5000/x:v1.2.0-cu130@sha256:1c3"}, (1, 2)),
        ({"image": "x:25.04"}, None),  # a year and a month
        ({}, None),
    ],
)
def test_release_is_the_stated_one_or_that_of_the_images_tag(
    fields: dict[str, Any], numbers: tuple[int, ...] | None
) -> None:
    assert release(acme(**fields), "acme", 2) == numbers


def test_of_several_ranks_the_largest_number_and_the_first_text_count() -> None:
    read = log_reader(
        {
            "tokens": LogFigure(r"room for ([\d,]+)", int),
            "kind": LogFigure(r"kind (\w+)", str),
        }
    )
    assert read("room for 1,000\nroom for 999\nkind a\nkind b") == {"tokens": 1000, "kind": "a"}
    assert read("nothing") == {}


def test_gib_are_bytes() -> None:
    assert bytes_of_gib("1.5") == 3 * 2**29


def test_the_name_of_a_served_model_ends_with_the_launch() -> None:
    assert nonce_name(acme(), Node(launch_id="01L")) == "tiny-01L"
    assert nonce_name(acme(served_model_name="mine"), Node(launch_id="01L")) == "mine-01L"

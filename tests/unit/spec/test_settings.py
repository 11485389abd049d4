"""Settings of one deployment: devices and nodes, dotted names, versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spec.settings import (
    EngineSettings,
    Hardware,
    installed,
    installed_version,
    is_version,
    merged,
    nested,
    problems_of_parts,
)


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", **fields})


ROLES = {
    "roles": {
        "prefill": {"engine": "vllm", "model": "m", "replicas": 2},
        "decode": {"engine": "vllm", "model": "m", "tensor_parallel_size": 4},
    },
    "router": {"engine": "vllm_router", "model": "m"},
}


def test_devices_are_those_of_all_replicas() -> None:
    parallel = settings(tensor_parallel_size=4, pipeline_parallel_size=2, replicas=3, nnodes=2)
    assert parallel.world_size == 8
    assert parallel.devices_per_node == 4
    assert parallel.devices == 24


def test_a_router_has_no_devices_and_an_endpoint_what_it_says() -> None:
    assert settings(**ROLES).devices == 6
    assert settings(engine="endpoint", url="http://h", endpoint_gpus=8).devices == 8
    assert settings(engine="endpoint", url="http://h").devices == 0


@pytest.mark.parametrize(
    ("extra_args", "ranks"),
    [
        ({"--prefill-context-parallel-size": 2}, 4),
        ({"--pcp=2": True}, 4),
        ({"--prefill_context_parallel_size": "2"}, 4),
        ({"--pcp": "many"}, 2),
        ({"--other": 2}, 2),
    ],
)
def test_a_flag_of_context_parallelism_multiplies_ranks(
    extra_args: dict[str, Any], ranks: int
) -> None:
    assert settings(tensor_parallel_size=2, extra_args=extra_args).world_size == ranks


def test_replicas_may_share_nodes_of_known_size() -> None:
    assert settings(tensor_parallel_size=2, replicas=4).least_nodes(8) == 1
    assert settings(tensor_parallel_size=3, replicas=4).least_nodes(8) == 2
    assert settings(tensor_parallel_size=8, nnodes=2).least_nodes(None) == 2
    assert settings(tensor_parallel_size=16).least_nodes(8) == 1, "larger than a node"
    assert settings(engine="endpoint", url="http://h").least_nodes(8) == 0


def test_parts_are_the_roles_and_their_router() -> None:
    assert list(settings(**ROLES).parts) == ["prefill", "decode", "router"]
    assert list(settings(**ROLES).engines) == ["prefill", "decode"]
    assert list(settings().parts) == [""]


def test_a_change_reaches_every_part() -> None:
    changed = settings(**ROLES).each(lambda part: part.model_copy(update={"dtype": "bfloat16"}))
    assert {part.dtype for part in changed.parts.values()} == {"bfloat16"}
    assert changed.dtype == "bfloat16"


def test_dotted_names_become_roles_that_inherit() -> None:
    values = {
        "engine": "vllm",
        "model": "m",
        "env": {"A": "1"},
        "roles.prefill.replicas": 2,
        "roles.decode.env": {"B": "2"},
        "router.engine": "vllm_router",
    }
    made = nested(values)
    assert made["roles"]["prefill"] == {
        "engine": "vllm",
        "model": "m",
        "env": {"A": "1"},
        "replicas": 2,
    }
    assert made["roles"]["decode"]["env"] == {"A": "1", "B": "2"}
    assert made["router"] == {"model": "m", "engine": "vllm_router"}


def test_later_settings_replace_earlier_ones_and_add_to_env() -> None:
    before = {"dtype": "a", "env": {"A": "1"}, "roles.prefill.env": {"C": "3"}}
    own = {"dtype": "b", "env": {"B": "2"}, "roles.prefill.env": {"D": "4"}}
    assert merged(before, own) == {
        "dtype": "b",
        "env": {"A": "1", "B": "2"},
        "roles.prefill.env": {"C": "3", "D": "4"},
    }


def test_a_role_that_is_null_is_removed_with_its_settings() -> None:
    before = {"dtype": "a", "roles.prefill.replicas": 2, "roles.decode.replicas": 1}
    assert merged(before, {"roles.prefill": None}) == {
        "dtype": "a",
        "roles.prefill": None,
        "roles.decode.replicas": 1,
    }
    assert merged(before, {"roles": None}) == {"dtype": "a", "roles": None}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, []),
        ({"roles.prefill.replicas": 1, "router.engine": "r"}, ["roles.prefill"]),
        ({"roles.prefill.replicas": 1, "roles.decode.replicas": 1}, ["roles"]),
        ({"router.env": {}}, ["router"]),
        ({"roles": 3}, ["roles"]),
        (
            {
                "replicas": 2,
                "roles.prefill.replicas": 1,
                "roles.decode.replicas": 1,
                "router.engine": "r",
            },
            ["replicas"],
        ),
    ],
)
def test_what_is_wrong_with_parts_names_its_setting(
    values: dict[str, Any], names: list[str]
) -> None:
    assert [problem.setting for problem in problems_of_parts(values)] == names


@pytest.mark.parametrize(
    ("accelerator", "is_amd"),
    [("MI300X", True), ("AMD Instinct MI210", True), ("Radeon", True), ("H100", False)],
)
def test_accelerators_of_amd_are_known_by_name(accelerator: str, is_amd: bool) -> None:
    assert Hardware(name="x", accelerator=accelerator).is_amd is is_amd


def test_a_version_is_found_beside_its_executable(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm-0.31.0.dist-info"
    folder.mkdir(parents=True)
    for place in (tmp_path, tmp_path / "bin" / "vllm"):
        assert installed(str(place), "vllm") == folder
        assert installed_version(str(place), "vllm") == "0.31.0"
    assert installed_version(str(tmp_path), "sglang") is None


@pytest.mark.parametrize(
    ("wanted", "actual", "same"),
    [
        ("0.32", "0.32.0+cpu", True), ("0.32.0", "0.32.0", True), ("v0.32", "0.32.1", True), ("0.3", "0.32.0", False),
        ("0.31", "0.32.0", False), ("0.32.0", "0.32", False), ("nightly", "0.32", True), ("0.32-fp8", "0.31", True),
    ],
)  # fmt: skip
def test_an_installed_version_is_compared_by_what_was_asked(
    wanted: str, actual: str, same: bool
) -> None:
    assert is_version(wanted, actual) is same


@given(st.lists(st.integers(0, 99), min_size=1, max_size=3), st.integers(0, 99))
def test_a_version_is_itself_and_a_start_of_its_patches(parts: list[int], patch: int) -> None:
    text = ".".join(map(str, parts))
    assert is_version(text, text)
    assert is_version(text, f"{text}.{patch}")
    assert not is_version(f"{text}.{patch}", text)

"""The JSON texts of stored columns."""

from __future__ import annotations

from orchestrator.results.stored_json import (
    HostEnvironment,
    PlacedRank,
    host_environment,
    parsed_environment,
    parsed_load,
    parsed_settings,
    placed_ranks,
)


def test_what_an_early_version_did_not_store_is_empty() -> None:
    assert parsed_load(None) == {}
    assert parsed_environment(None) == {}
    assert placed_ranks(None) == []
    assert placed_ranks('[{"node_id": "a"}]') == [PlacedRank(None, (), ())]


def test_settings_keep_names_that_this_version_does_not_know() -> None:
    assert parsed_settings('{"engine": "vllm", "new_flag": [1]}') == {
        "engine": "vllm",
        "new_flag": [1],
    }


def test_a_host_without_gpus_has_no_driver() -> None:
    found = parsed_environment('{"node-1": {"kernel": "6.1", "system": null, "cpu": "EPYC"}}')
    assert host_environment(found["node-1"]) == HostEnvironment(
        cpu="EPYC",
        cores=None,
        kernel="6.1",
        system=None,
        driver=None,
        cuda=None,
        image=None,
        gpus=(),
        power_limits_w=(),
    )


def test_what_gpus_do_not_say_is_left_out() -> None:
    gpus = [
        {"name": "H100", "power_limit_w": 700.0},
        {"name": None, "power_limit_w": None},
        {"name": "H100"},
    ]
    found = host_environment({"gpus": gpus})
    assert found.power_limits_w == (700.0,)
    assert found.gpus == ("H100",)

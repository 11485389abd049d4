"""Planned settings: time to start, with a download of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.analysis.prediction import PredictedStart
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.cost import START_S
from orchestrator.plan.planned_settings import DOWNLOAD_BYTES_S, planned
from orchestrator.spec.settings import EngineSettings
from orchestrator.spec.stages import PlannedSettings, ResolvedSettings

LARGE = {"": PredictedStart(weight_bytes=84e9)}  # on each device
SMALL = {"": PredictedStart(weight_bytes=2e9)}


def planned_settings(starts: Mapping[str, PredictedStart], **fields: Any) -> PlannedSettings:
    written = {"engine": "vllm", "model": "m", "tensor_parallel_size": 8, **fields}
    settings = EngineSettings.model_validate(written)
    return planned(ResolvedSettings(settings), ENGINES[settings.engine], starts)


def test_an_engine_has_time_to_download_the_weights_of_all_devices() -> None:
    limit_s = planned_settings(LARGE).startup_timeout_s
    assert limit_s == START_S + 8 * 84e9 / DOWNLOAD_BYTES_S


def test_a_limit_of_the_file_stays() -> None:
    assert planned_settings(LARGE, startup_timeout_s=600).startup_timeout_s == 600


@pytest.mark.parametrize("starts", [SMALL, {}])
def test_small_or_unknown_weights_leave_the_default_limit(
    starts: Mapping[str, PredictedStart],
) -> None:
    assert planned_settings(starts).startup_timeout_s == 1800


def test_every_role_gets_the_limit_of_the_largest_download() -> None:
    part = {"engine": "vllm", "model": "m"}
    roles = {"prefill": part | {"tensor_parallel_size": 4}, "decode": part | {"replicas": 4}}
    router = {"engine": "vllm_router", "model": "m", "executable": "/router"}
    starts = {"prefill": LARGE[""], "decode": LARGE[""]}
    settings = planned_settings(starts, roles=roles, router=router)
    limit_s = START_S + 4 * 84e9 / DOWNLOAD_BYTES_S
    assert {part.startup_timeout_s for part in settings.engines.values()} == {limit_s}


def test_an_endpoint_is_not_started() -> None:
    settings = planned_settings(LARGE, engine="endpoint", url="http://h:1", served_model_name="m")
    assert settings.startup_timeout_s == 1800

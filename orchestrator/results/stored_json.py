"""The JSON texts of stored columns, parsed. No other file parses one.

Records stand for what this program alone writes. Settings and what an engine reported stay mappings,
because each engine has names of its own and new versions bring new ones: a row of any version can
be read and shown whole. Workloads and loads stay mappings, because they are compared by all keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """What a host was found to be when an engine started on it. None: not known.

    ``gpus``: the names of its GPUs, each once. ``power_limits_w``: those of its GPUs that are known.
    """

    cpu: str | None
    cores: int | None
    kernel: str | None
    system: str | None
    driver: str | None
    cuda: str | None
    image: str | None
    gpus: tuple[str, ...]
    power_limits_w: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """Where one rank of a launch ran. ``hostname``: None in rows of early versions."""

    hostname: str | None
    gpus: tuple[str, ...]
    cores: tuple[int, ...]


def parsed_settings(settings_json: str) -> dict[str, Any]:
    return _mapping(settings_json)


def parsed_prediction(predicted_json: str | None) -> dict[str, Any]:
    """The document of ``analysis/prediction.py: Prediction``; empty if nothing was predicted."""
    return _mapping(predicted_json)


def parsed_work(work_json: str) -> dict[str, Any]:
    """The document of ``catalog/work.py: StepWork``, or why the work is not known."""
    return _mapping(work_json)


def parsed_report(engine_reported_json: str | None) -> dict[str, Any]:
    """What an engine reported at its start, by the names of ``Engine.reported``."""
    return _mapping(engine_reported_json)


def parsed_workload(workload_json: str | None) -> dict[str, Any]:
    return _mapping(workload_json)


def parsed_load(load_json: str | None) -> dict[str, Any]:
    """How a point was loaded; empty in rows of early versions."""
    return _mapping(load_json)


def parsed_environment(environment_json: str | None) -> dict[str, dict[str, Any]]:
    """Host -> what it was found to be, as it is stored; empty in rows of early versions."""
    return _mapping(environment_json)


def host_environment(stored: Mapping[str, Any]) -> HostEnvironment:
    """The environment of one host. ``stored``: its entry in ``parsed_environment``, in which a host
    without GPUs has no keys of theirs.
    """
    gpus = stored.get("gpus", ())
    names = {gpu.get("name") for gpu in gpus}
    limits_w = [gpu.get("power_limit_w") for gpu in gpus]
    return HostEnvironment(
        cpu=stored.get("cpu"),
        cores=stored.get("cores"),
        kernel=stored.get("kernel"),
        system=stored.get("system"),
        driver=stored.get("driver"),
        cuda=stored.get("cuda"),
        image=stored.get("image"),
        gpus=tuple(sorted(name for name in names if name is not None)),
        power_limits_w=tuple(limit_w for limit_w in limits_w if limit_w is not None),
    )


def placed_ranks(placement_json: str | None) -> list[PlacedRank]:
    """Where the ranks of a launch ran; empty if it was never placed."""
    places: list[dict[str, Any]] = json.loads(placement_json or "[]")
    return [
        PlacedRank(
            hostname=place.get("hostname"),
            gpus=tuple(place.get("gpus", ())),
            cores=tuple(place.get("cores", ())),
        )
        for place in places
    ]


def _mapping(text: str | None) -> dict[str, Any]:
    mapping: dict[str, Any] = json.loads(text or "{}")
    return mapping

"""Short names of deployments: the engine, and what tells it from its siblings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from orchestrator.spec.environments import LOCATION
from orchestrator.spec.settings import EngineSettings

SHORT = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "enable_expert_parallel": "ep",
    "nnodes": "nodes",
    "engine_version": "version",
    "kv_cache_dtype": "kv",
    "quantization": "quant",
    "max_model_len": "len",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "batched",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "gpu_memory_utilization": "memory",
    "speculative": "spec",
    "served_model_name": "serves",
}
LONGEST = 100
_HIDDEN = {"engine", "startup_timeout_s", "api_key_env"}


def labels(deployments: Sequence[tuple[EngineSettings, str]], ids: Sequence[str]) -> list[str]:
    """One label per (settings, hardware name), in order; unique as long as ``ids`` are.

    A setting is shown where deployments of the same engine differ in it.
    """
    flat = [_flat(settings, hardware) for settings, hardware in deployments]
    engines = {row["engine"] for row in flat}
    differing = {engine: _differing([row for row in flat if row["engine"] == engine]) for engine in engines}
    texts = [_label(row, differing[row["engine"]]) for row in flat]
    seen = Counter(texts)
    return [
        text if seen[text] == 1 and len(text) <= LONGEST else f"{text[:LONGEST]} #{name[:6]}"
        for text, name in zip(texts, ids, strict=True)
    ]


def _flat(settings: EngineSettings, hardware: str) -> dict[str, Any]:
    """Settings by name; mappings of flags and variables become one entry each."""
    out: dict[str, Any] = {"engine": settings.engine, "hardware": hardware}
    for name, value in settings:
        if name in ("env", "extra_args"):
            out |= {str(key): entry for key, entry in value.items()}
        elif name not in _HIDDEN:
            out[name] = value
    return out


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]
    return [name for name in found if name not in LOCATION or not _told_by_version(name, rows)]


def _told_by_version(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Where an engine lives says nothing more when every version has one place."""
    versions = {row.get("engine_version") for row in rows}
    return len({(row.get("engine_version"), row.get(name)) for row in rows}) == len(versions)


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = [(name, row[name]) for name in names if row.get(name) is not None]
    return " ".join([row["engine"], *(_part(name, value) for name, value in shown)])


def _part(name: str, value: Any) -> str:
    if name == "hardware":
        return str(value)
    if name == "url":
        return str(value).partition("://")[2] or str(value)
    if name in ("model", "executable", "profile", "served_model_name"):
        return f"{SHORT.get(name, name)}={PurePath(str(value)).name}"
    if hasattr(value, "method"):  # speculative decoding
        return f"spec={value.method}:{value.num_speculative_tokens}"
    if isinstance(value, bool):
        return f"{SHORT.get(name, name)}={'on' if value else 'off'}"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
    return f"{SHORT.get(name, name)}={text}"

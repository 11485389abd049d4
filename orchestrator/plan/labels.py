"""Labels deployments: short names that show the settings in which deployments of one engine differ."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from orchestrator.spec.settings import LOCATION, EngineSettings, Speculative

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
_PLACES = ("model", "executable", "profile", "served_model_name")  # shown by the end of their path
_SIZES = ("replicas", "tensor_parallel_size")
_HIDDEN = {"engine", "startup_timeout_s", "api_key_env", "roles", "router"}


def labels(deployments: Sequence[tuple[EngineSettings, str]], ids: Sequence[str]) -> list[str]:
    """One label per (settings, hardware name), in order; unique if ``ids`` are.

    A label shows the settings in which deployments of the same engine differ.
    """
    flat = _telling(deployments)
    engines = {row["engine"] for row in flat}
    differing = {
        engine: _differing([row for row in flat if row["engine"] == engine]) for engine in engines
    }
    _shorten(flat)
    texts = [_label(row, differing[row["engine"]]) for row in flat]
    seen = Counter(texts)
    return [
        text if seen[text] == 1 and len(text) <= LONGEST else f"{text[:LONGEST]} #{name[:6]}"
        for text, name in zip(texts, ids, strict=True)
    ]


def _telling(deployments: Sequence[tuple[EngineSettings, str]]) -> list[dict[str, Any]]:
    """``_flat`` of each, without what tells none from another of its engine: most of what there is,
    many times.
    """
    first: dict[str, dict[str, Any]] = {}
    telling = {"engine", "engine_version", *LOCATION, *_PLACES}
    for row in (_flat(settings, hardware) for settings, hardware in deployments):
        other = first.setdefault(row["engine"], row)
        telling |= {name for name in row.keys() | other.keys() if row.get(name) != other.get(name)}
    rows = (_flat(settings, hardware) for settings, hardware in deployments)
    return [{name: value for name, value in row.items() if name in telling} for row in rows]


def _flat(settings: EngineSettings, hardware: str) -> dict[str, Any]:
    """Settings by name, with one entry for each flag and environment variable."""
    out: dict[str, Any] = {"engine": settings.engine, "hardware": hardware}
    for name, value in settings:
        if name in ("env", "extra_args"):
            out |= {str(key): entry for key, entry in value.items()}
        elif name not in _HIDDEN:
            out[name] = None if settings.roles and name in _SIZES else value  # roles have their own
    for role, part in (settings.roles or {}).items():
        # only what differs from the shared settings; sizes are always worth showing
        own = {
            name: value
            for name, value in part
            if value != getattr(settings, name) or name in _SIZES
        }
        out |= {f"{role}.{name}": value for name, value in own.items()}
    if settings.router:
        out |= {"router": settings.router.engine} | {
            f"router.{k}": value for k, value in settings.router.extra_args.items()
        }
    return out


def _shorten(rows: Sequence[dict[str, Any]]) -> None:
    """Shortens paths to as many last parts as tell them apart: ``gptq4``, or ``tiny/gptq4`` beside
    ``small/gptq4``.
    """
    for name in _PLACES:
        places = {PurePath(str(row[name])) for row in rows if row.get(name)}
        most = max((len(place.parts) for place in places), default=0)
        tails = (
            {place: "/".join(place.parts[-count:]) for place in places}
            for count in range(1, most + 1)
        )
        told = next((names for names in tails if len(set(names.values())) == len(places)), {})
        for row in rows:
            if row.get(name):
                row[name] = told[PurePath(str(row[name]))]


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]
    return [name for name in found if name not in LOCATION or not _told_by_version(name, rows)]


def _told_by_version(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the version tells as much as the location: every version has one location."""
    versions = {row.get("engine_version") for row in rows}
    return len({(row.get("engine_version"), row.get(name)) for row in rows}) == len(versions)


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = [(name, row[name]) for name in names if row.get(name) is not None]
    return " ".join([row["engine"], *(_part(name, value) for name, value in shown)])


def _speculation(spec: Speculative) -> str:
    """Method and tokens, then what else sets one draft apart from another."""
    parts = [f"spec={spec.method or 'auto'}:{spec.num_speculative_tokens}"]
    if spec.eagle_topk or spec.num_draft_tokens:
        parts.append(f"{spec.eagle_topk or 1}:{spec.num_draft_tokens}")
    parts += [f"{key}={value}" for key, value in spec.extra_args.items()]
    return ",".join(parts)


def _part(name: str, value: Any) -> str:
    if name == "hardware":
        return str(value)
    if name == "url":
        return str(value).partition("://")[2] or str(value)
    if hasattr(value, "method"):  # speculative decoding
        return _speculation(value)
    role, _, own = name.rpartition(".")
    name = ".".join(filter(None, (role, SHORT.get(own, own))))
    if isinstance(value, bool):
        return f"{name}={'on' if value else 'off'}"
    text = (
        json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
    )
    return f"{name}={text}"

"""Labels deployments: short names show the settings in which deployments of one engine differ."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
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
_PATHS = ("model", "executable", "profile", "served_model_name")  # shown by the end of their path
_SIZES = ("replicas", "tensor_parallel_size")
_HIDDEN = {"engine", "startup_timeout_s", "api_key_env", "roles", "router"}

LabelRow = dict[str, Any]  # settings of a deployment by the names that labels show


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """A deployment without a label yet.

    ``hardware``: the name of its class of nodes. ``is_excluded``: a rule of the file leaves it out.
    """

    id: str
    settings: EngineSettings
    hardware: str
    is_excluded: bool = False


def labels(deployments: Sequence[Unlabelled]) -> list[str]:
    """One label for each deployment, in order; unique if their ids are.

    A label shows the settings in which deployments of the same engine differ. Those in which only
    excluded deployments differ stand in the labels of these alone, unless labels would be equal.
    """
    rows = _rows(deployments)
    kept_rows = [row for row, each in zip(rows, deployments, strict=True) if not each.is_excluded]
    # by whole paths: two spellings of one path differ, although they are shortened alike
    names_of_all = _names_by_engine(rows)
    names_of_kept = names_of_all | _names_by_engine(kept_rows)
    _shorten_paths(rows)
    texts: list[str] = []
    for row, deployment in zip(rows, deployments, strict=True):
        names = names_of_all if deployment.is_excluded else names_of_kept
        texts.append(_label(row, names[row["engine"]]))
    if len(set(texts)) < len(texts):
        texts = [_label(row, names_of_all[row["engine"]]) for row in rows]
    times = Counter(texts)
    return [
        text
        if times[text] == 1 and len(text) <= LONGEST
        else f"{text[:LONGEST]} #{deployment.id[:6]}"
        for text, deployment in zip(texts, deployments, strict=True)
    ]


def _names_by_engine(rows: Iterable[LabelRow]) -> dict[str, list[str]]:
    """By engine, the names of settings in which these rows differ."""
    groups: dict[str, list[LabelRow]] = {}
    for row in rows:
        groups.setdefault(row["engine"], []).append(row)
    return {engine: _differing(group) for engine, group in groups.items()}


def _rows(deployments: Sequence[Unlabelled]) -> list[LabelRow]:
    """``_row`` of each deployment, without the settings in which no deployment differs from others
    of its engine. Most settings are such, and would take most of the memory: so whole rows are made
    one at a time, and twice.
    """
    first_rows: dict[str, LabelRow] = {}  # engine -> the whole row of its first deployment
    kept = {"engine", "engine_version", *LOCATION, *_PATHS}
    for deployment in deployments:
        row = _row(deployment)
        first_row = first_rows.setdefault(deployment.settings.engine, row)
        kept |= _differences(row, first_row)
    rows: list[LabelRow] = []
    for deployment in deployments:
        row = _row(deployment)
        rows.append({name: value for name, value in row.items() if name in kept})
    return rows


def _differences(row: LabelRow, other: LabelRow) -> set[str]:
    return {name for name in row.keys() | other.keys() if row.get(name) != other.get(name)}


def _row(deployment: Unlabelled) -> LabelRow:
    """Settings by name, with one entry for each flag and environment variable."""
    settings = deployment.settings
    row: LabelRow = {"engine": settings.engine, "hardware": deployment.hardware}
    for name, value in settings:
        if name in ("env", "extra_args"):
            row |= {str(key): entry for key, entry in value.items()}
        elif settings.roles and name in _SIZES:
            row[name] = None  # roles have sizes of their own
        elif name not in _HIDDEN:
            row[name] = value
    for role, part in (settings.roles or {}).items():
        for name, value in part:
            # only what differs from the shared settings; sizes are always worth showing
            if name in _SIZES or value != getattr(settings, name):
                row[f"{role}.{name}"] = value
    if settings.router:
        row["router"] = settings.router.engine
        for name, value in settings.router.extra_args.items():
            row[f"router.{name}"] = value
    return row


def _shorten_paths(rows: Sequence[LabelRow]) -> None:
    """Shortens paths to as many last parts as tell them apart: ``gptq4``, or ``tiny/gptq4`` beside
    ``small/gptq4``.
    """
    for name in _PATHS:
        paths = {PurePath(str(row[name])) for row in rows if row.get(name)}
        endings = _shortest_endings(paths)
        for row in rows:
            if row.get(name):
                row[name] = endings[PurePath(str(row[name]))]


def _shortest_endings(paths: Collection[PurePath]) -> dict[PurePath, str]:
    """The ends of paths, all with as many parts as it takes to tell them apart."""
    most = max((len(path.parts) for path in paths), default=0)
    for count in range(1, max(1, most) + 1):
        # the path "." has no parts
        endings = {path: "/".join(path.parts[-count:]) or str(path) for path in paths}
        if len(set(endings.values())) == len(paths):
            return endings
    return {}


def _differing(rows: Sequence[LabelRow]) -> list[str]:
    """The names of settings in which rows of one engine differ. A location is left out where the
    version tells as much.
    """
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    differing = [name for name in names if _differs(name, rows)]
    return [name for name in differing if name not in LOCATION or not _follows_version(name, rows)]


def _differs(name: str, rows: Sequence[LabelRow]) -> bool:
    return any(row.get(name) != rows[0].get(name) for row in rows)


def _follows_version(name: str, rows: Sequence[LabelRow]) -> bool:
    """Whether every version has one location."""
    versions = {row.get("engine_version") for row in rows}
    return len({(row.get("engine_version"), row.get(name)) for row in rows}) == len(versions)


def _label(row: LabelRow, names: Sequence[str]) -> str:
    parts = [_part(name, row[name]) for name in names if row.get(name) is not None]
    return " ".join([row["engine"], *parts])


def _speculation(spec: Speculative) -> str:
    """A draft's method and tokens, then what else sets one draft apart from another."""
    parts = [f"spec={spec.method or 'auto'}:{spec.num_speculative_tokens}"]
    if spec.eagle_topk or spec.num_draft_tokens:
        parts.append(f"{spec.eagle_topk or 1}:{spec.num_draft_tokens}")
    parts += [f"{key}={value}" for key, value in spec.extra_args.items()]
    return ",".join(parts)


def _part(name: str, value: Any) -> str:
    """One setting in a label."""
    if name == "hardware":
        return str(value)
    if name == "url":
        _, _, without_scheme = str(value).partition("://")
        return without_scheme or str(value)
    if isinstance(value, Speculative):
        return _speculation(value)
    role, _, own_name = name.rpartition(".")
    prefix = f"{role}." if role else ""
    return f"{prefix}{SHORT.get(own_name, own_name)}={_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)

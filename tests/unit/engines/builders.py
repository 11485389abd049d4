"""Settings and commands of engines, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from orchestrator.base.errors import FailureKind
from orchestrator.engines.command import Command, Flag, LogFigure, Node, log_reader
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import Engine
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

CPU = Hardware(name="cpu")
H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)


def settings_of(engine: str, **fields: Any) -> EngineSettings:
    """Settings of a small model with these fields."""
    return EngineSettings.model_validate({"engine": engine, "model": "acme/tiny"} | fields)


def command_of(
    engine: str, hardware: Hardware = H100, node: dict[str, Any] | None = None, **fields: Any
) -> Command:
    """The command of rank 0, unless ``node`` says otherwise, on a node with two GPUs."""
    on_node = {
        "port": 21001,
        "master_port": 21002,
        "extra_ports": (21003,),
        "devices": ("0", "1"),
        "launch_id": "01L",
        "model_path": "/models/tiny",
    }
    on_node |= node or {}
    settings = settings_of(engine, **fields)
    return ENGINES[engine].command(settings, hardware, Node(**on_node), "k3y")


def _half(value: int, settings: EngineSettings) -> int | None:
    return value // 2 if settings.dtype == "half" else None


# a small engine of its own, for what all engines share
ACME = Engine(
    name="acme",
    title="Acme",
    dialects=lambda settings: {"completions": Dialect("openai_completions", "/v1/completions")},
    flags={
        "max_num_seqs": (Flag("--batch"), Flag("--half-batch", value_from=_half)),
        "dtype": Flag("--type", choices=("half", "float")),
    },
    handled_fields=("tensor_parallel_size", "speculative"),
    unsupported={"tokenizer": "Acme has no tokenizer"},
    allowed_values={"load_format": ("dummy",)},
    reserved=("--port",),
    aliases={"-b": "the field max_num_seqs", "--ranks": "the field tensor_parallel_size"},
    drafts=DraftMethods({"ngram": "ngram"}),
    pins=lambda settings, hardware: {"max_num_seqs": 64},
    start=lambda settings, hardware, node: Command(
        ("acme", "--port", str(node.port), "--ranks", str(settings.tensor_parallel_size)),
        {"ACME": "1"},
        notes=("so",),
    ),
    key_variable="ACME_KEY",
    follower_grace_s=0.5,
    reported=log_reader({"kv_cache_tokens": LogFigure(r"cache of ([\d,]+) tokens", int)}),
    log=LogWords(
        {FailureKind.OOM_KV: "no cache left"}, passing=r"note: ", consequences="all is lost"
    ),
)


def acme(**given: Any) -> EngineSettings:
    """Settings of the engine ACME with these fields."""
    return EngineSettings.model_validate({"engine": "acme", "model": "/m/tiny"} | given)

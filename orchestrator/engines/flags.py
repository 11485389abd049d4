"""What engines share in turning settings into a command line: one table per engine, nothing dropped silently."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from orchestrator.engines.base import Node
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative

Kind = Literal["value", "switch", "bare", "json"]

# What every launched engine has without a flag: which, where, what for, and how often it is started.
EVERYWHERE = frozenset(
    {
        *("engine", "engine_version", "executable", "image", "container_runtime"),
        *("model", "replicas", "extra_args", "env", "startup_timeout_s"),
    }
)
KEY_VARIABLE = "ENGINE_API_KEY"
# Why fields of other kinds of engines are refused by all that are launched here.
NOT_LAUNCHED = {
    "url": "is for the engine `endpoint`; this one is launched",
    "profile": "is for the engine `emulator`; this one is real",
    "api_key_env": "is for the engine `endpoint`; this one gets a fresh random key",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """How one field becomes arguments.

    value: ``--x 3``; switch: ``--x`` or ``--no-x``; bare: ``--x`` for true, ``inverse`` for false (None: nothing);
    json: ``--x '{…}'``.
    """

    name: str
    kind: Kind = "value"
    inverse: str | None = None
    choices: tuple[str, ...] = ()  # all values the engine takes, where its source names them

    def arguments(self, value: Any) -> list[str]:
        if self.kind == "switch":
            return [self.name if value else "--no-" + self.name.removeprefix("--")]
        if self.kind == "bare":
            chosen = self.name if value else self.inverse
            return [chosen] if chosen else []
        if self.kind == "json":
            return [self.name, json.dumps(value, separators=(",", ":"), sort_keys=True)]
        return [self.name, str(value)]


def mapped(settings: EngineSettings, table: Mapping[str, Flag]) -> list[str]:
    """Arguments of the fields that were set, in the table's order."""
    arguments = []
    for field, flag in table.items():
        value = getattr(settings, field)
        if value is not None:
            arguments += flag.arguments(value)
    return arguments


def pairs(values: Mapping[str, Any]) -> list[str]:
    """``--flag value`` for every value that is not None."""
    return [text for flag, value in values.items() if value is not None for text in (flag, str(value))]


def left_open(settings: EngineSettings, values: Mapping[str, int]) -> dict[str, int]:
    """Those of ``values`` whose field was not set: what the field gets instead of the engine's own choice."""
    return {field: value for field, value in values.items() if getattr(settings, field) is None}


def pin_notes(pins: Mapping[str, Any]) -> tuple[str, ...]:
    """What the log and the results say of values that the settings left open."""
    return tuple(f"{field}={value} was left open and is pinned" for field, value in pins.items())


def extra_arguments(settings: EngineSettings) -> list[str]:
    """``extra_args`` as arguments: true is a bare flag, a list several values, false and null nothing."""
    arguments: list[str] = []
    for name, value in settings.extra_args.items():
        if value is None or value is False:
            continue
        arguments.append(name)
        if isinstance(value, list):
            arguments += value
        elif value is not True:
            arguments.append(str(value))
    return arguments


def field_problems(
    engine: str,
    settings: EngineSettings,
    table: Mapping[str, Flag],
    others: Mapping[str, str],
    known: frozenset[str],
    reasons: Mapping[str, str],
    ours: Iterable[str],
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """All that can be said of single fields: no place for it, a value the engine does not take, a flag said twice.

    ``table`` and ``others``: field -> flag, written by ``mapped`` and by the engine itself; ``ours``: flags that no
    field sets; ``aliases``: other spellings of flags -> who sets them.
    """
    own = {flag: f"the field {field}" for field, flag in others.items()} | dict.fromkeys(ours, "this program")
    return [
        *unmapped(engine, settings, known, reasons),
        *taken(engine, settings, table, own | dict(aliases)),
        *(
            sentence
            for field, flag in table.items()
            if flag.choices
            for sentence in only(settings, field, flag.choices, f"{engine} has these")
        ),
    ]


def unmapped(engine: str, settings: EngineSettings, known: frozenset[str], reasons: Mapping[str, str]) -> list[str]:
    """One sentence per field that is set and that the engine has no place for."""
    why = NOT_LAUNCHED | dict(reasons)
    return [
        f"{field}: {why.get(field, f'{engine} has no such setting')}"
        for field in settings.given()
        if field not in known | EVERYWHERE
    ]


def taken(engine: str, settings: EngineSettings, table: Mapping[str, Flag], own: Mapping[str, str]) -> list[str]:
    """Sentences about ``extra_args`` that name no flag, or one that a field or this program sets.

    ``own``: flag -> who sets it ("the field tensor_parallel_size", "this program").
    """
    by_flag = {flag.name: f"the field {field}" for field, flag in table.items()} | dict(own)
    owners = {_plain(flag): owner for flag, owner in by_flag.items()}
    sentences = []
    for name in settings.extra_args:
        if not name.startswith("-"):
            sentences.append(f"extra_args: {name!r} is no flag; write {'--' + name!r}")
        elif owner := owners.get(_plain(name)):
            sentences.append(f"extra_args: {name} is set by {owner}; {engine} would get it twice")
    return sentences


def _plain(flag: str) -> str:
    """Spellings of one flag, alike: ``--max_num_seqs=3``, ``--no-x``."""
    name = flag.split("=")[0].replace("_", "-")
    return "--" + name.removeprefix("--no-") if name.startswith("--no-") else name


def gpu_only(engine: str, hardware: Hardware) -> list[str]:
    """For engines whose CPU builds, where there are any, are not driven from here."""
    return [f"hardware: {engine} is run on GPUs only"] if hardware.is_cpu else []


def single_node(engine: str, settings: EngineSettings) -> list[str]:
    """For engines that run on one node only."""
    if settings.nnodes == 1:
        return []
    return [f"nnodes: {engine} runs on one node, so nnodes must be 1, not {settings.nnodes}"]


def whole_nodes(settings: EngineSettings) -> list[str]:
    """Every node of a replica must get the same number of ranks."""
    if settings.world_size % settings.nnodes == 0:
        return []
    sizes = "tensor_parallel_size * pipeline_parallel_size * data_parallel_size"
    return [f"nnodes: {sizes} = {settings.world_size} cannot be divided over {settings.nnodes} nodes"]


def only(settings: EngineSettings, field: str, allowed: tuple[str, ...], why: str) -> list[str]:
    """The field's value must be one of ``allowed`` where it is set."""
    value = getattr(settings, field)
    if value is None or value in allowed:
        return []
    return [f"{field}: {value!r} is none of {', '.join(allowed)}; {why}"]


def speculative_problems(
    engine: str,
    spec: Speculative | None,
    methods: Collection[str],
    with_model: Collection[str] = (),
    without: Collection[str] = ("draft_tensor_parallel_size", "prompt_lookup_min", "prompt_lookup_max"),
) -> list[str]:
    """A method it does not have, one that lacks its model, and details it has no place for (``without``)."""
    if spec is None:
        return []
    found = []
    if spec.method not in methods:
        found.append(f"speculative: {engine} has no method {spec.method}; it has {', '.join(methods)}")
    if spec.method in with_model and spec.model is None:
        found.append(f"speculative: method {spec.method} needs a model")
    given = [field for field in without if getattr(spec, field) is not None]
    return [*found, f"speculative: {engine} has no {' and no '.join(given)}"] if given else found


def rendezvous(settings: EngineSettings, node: Node) -> list[str]:
    """Torch's way to meet over several nodes, for engines whose flags are named like SGLang's; [] on one node."""
    if settings.nnodes == 1:
        return []
    meet = f"{node.master_host}:{node.master_port}"
    return ["--nnodes", str(settings.nnodes), "--node-rank", str(node.rank), "--dist-init-addr", meet]


def program(settings: EngineSettings, name: str) -> str:
    """The executable: in the venv that ``executable`` names, or ``executable`` itself, or ``name`` from PATH.

    In a container image it is always ``name``: paths of the node mean nothing there.
    """
    place = settings.executable
    if place is None or settings.image is not None:
        return name
    if os.path.isdir(place):
        return os.path.join(os.path.abspath(place), "bin", name)
    return os.path.abspath(place) if os.sep in place else place


def not_in_docker(engine: str, settings: EngineSettings) -> list[str]:
    """For engines that are proven ours by their listening socket alone: docker's processes are its daemon's."""
    if settings.image is None or settings.container_runtime in ("apptainer", "podman"):
        return []
    return [
        f"image: {engine} takes no key and names no model, so nothing would prove that the server in a docker "
        "container is ours; use container_runtime podman or apptainer, or an executable"
    ]


def with_key(settings: EngineSettings, module: str, function: str, flag: str) -> list[str]:
    """Starts an engine that takes its key as an argument only, without the key in any command line.

    Its own entry point is called by the environment's Python, which adds ``flag`` from the variable KEY_VARIABLE.
    ``executable`` names the venv, or that Python.
    """
    code = (
        f"import os, sys; from {module} import {function}; "
        f"sys.argv += ['{flag}', os.environ['{KEY_VARIABLE}']]; sys.exit({function}())"
    )
    return [program(settings, "python3"), "-c", code]


def package_version(settings: EngineSettings, package: str) -> tuple[str, ...] | None:
    """argv that prints the version of an engine whose Python is known."""
    if settings.image is not None:
        return None
    return program(settings, "python3"), "-c", f"import importlib.metadata as m; print(m.version('{package}'))"


def visible_devices(hardware: Hardware, devices: tuple[str, ...]) -> dict[str, str]:
    """Environment that shows the engine its GPUs and no other; on a CPU it sees none."""
    if hardware.is_cpu:
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}


def offline(model_path: str) -> dict[str, str]:
    """A model in a local folder needs no hub; asking one anyway costs seconds, or minutes behind a firewall."""
    return {"HF_HUB_OFFLINE": "1"} if os.path.isabs(model_path) else {}


def environment(settings: EngineSettings, hardware: Hardware, node: Node) -> dict[str, str]:
    """What every engine in Python gets: a log without delay, its GPUs and no other, no hub where there is no need."""
    return {
        "PYTHONUNBUFFERED": "1",
        **visible_devices(hardware, node.devices),
        **offline(node.model_path or settings.model),
    }


def nonce_name(settings: EngineSettings, launch_id: str) -> str:
    """A model name that no other server can have: it ends with the launch id."""
    name = settings.served_model_name or settings.model.rstrip("/").rsplit("/", 1)[-1]
    return f"{name}-{launch_id}" if launch_id else name

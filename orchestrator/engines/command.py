"""Building blocks of engines: turn settings into the command of one rank, and its log into figures."""

import getpass
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.engines.networks import GLOO, UCX, for_gloo
from orchestrator.spec.settings import EngineSettings, Hardware, installed_version

FlagKind = Literal["value", "switch", "bare", "json", "off", "list"]

KEY_VARIABLE = "ENGINE_API_KEY"
SOCKET_PATH_BYTES = 107  # the longest path of a UNIX socket
# the longest name of a socket in a temporary folder, which is vLLM's
SOCKET_NAME_BYTES = len("/01234567-89ab-cdef-0123-456789abcdef")
# written out where an engine would else choose by the GPU's memory
PINNED_BATCH = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
# Placeholders in the values of `env`: fields of Node that differ from launch to launch.
PLACE = re.compile(r"\{([a-z_]+)\}")
PLACES = ("rank", "host", "master_host", "launch_id", "workdir")


@dataclass(frozen=True, slots=True)
class Worker:
    """One replica as its router sees it."""

    role: str  # prefill or decode; "" without roles
    url: str
    port: int = 0  # where other roles learn about its KV cache: its node's ``rpc_port``


@dataclass(frozen=True, slots=True)
class Node:
    """One rank of a replica and its node, as the agent there knows them when the engine starts."""

    rank: int = 0  # 0 serves HTTP
    host: str = "127.0.0.1"  # this node's address for other nodes
    port: int = 8000  # HTTP port, free on rank 0's node
    master_host: str = "127.0.0.1"  # rank 0's address
    master_port: int = 29501  # rendezvous of a multi-node replica, free on rank 0's node
    rpc_port: int = 29550  # a second rendezvous, free on rank 0's node
    extra_ports: tuple[int, ...] = ()  # more free ports on this node
    # address of the HTTP server: loopback unless clients are on other hosts
    bind: str = "127.0.0.1"
    devices: tuple[str, ...] = ()  # indices or UUIDs of the GPUs to use, sorted; empty on cpu
    cores: tuple[int, ...] = ()  # CPU cores to use
    workdir: str = "."  # this launch's folder on this node
    launch_id: str = ""
    model_path: str = ""  # what to serve: a local folder or a hub id
    role: str = ""  # prefill, decode, or "" without roles
    workers: tuple[Worker, ...] = ()  # of a router: the replicas behind it

    @property
    def http_port(self) -> int:
        """The HTTP port for engines that open a server on every rank: ranks on one host cannot
        share rank 0's port.
        """
        return self.extra_ports[0] if self.rank and self.extra_ports else self.port


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start.

    ``secrets`` are environment variables that must not appear anywhere else.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    # name -> text, written below workdir before the start
    files: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # created before the start, because a container mounts them
    # prefixes of the node's variables that it inherits; None: all
    inherits: tuple[str, ...] | None = None
    hides: tuple[str, ...] = ()  # variables of the node that it does not inherit
    # argv that runs when the process is gone, whatever ended it: removes a container
    after: tuple[str, ...] = ()
    # between SIGTERM and SIGKILL, if shorter than the owner's; None: the owner's
    grace_s: float | None = None
    notes: tuple[str, ...] = ()  # decisions that the settings left open, one sentence each


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field becomes command line arguments.

    value: ``--x 3``; switch: ``--x`` or ``--no-x``; bare: ``--x`` for true, ``inverse`` for false
    (None: nothing); json: ``--x '{…}'``; off: ``--x`` for false; list: ``--x a b``.
    """

    name: str
    kind: FlagKind = "value"
    inverse: str | None = None
    # the values that we take, of those that the engine takes; empty: all of them
    choices: tuple[str, ...] = ()
    # The flag's value, computed from the field's value and all settings; None: the flag is left
    # out.
    value_from: Callable[[Any, EngineSettings], Any] | None = None

    def arguments(self, value: Any, settings: EngineSettings) -> list[str]:
        """Command line arguments for a field that is set to ``value``."""
        if self.value_from is not None:
            value = self.value_from(value, settings)
            if value is None:
                return []
        if self.kind == "switch":
            return [self.name if value else "--no-" + self.name.removeprefix("--")]
        if self.kind == "bare":
            chosen = self.name if value else self.inverse
            return [chosen] if chosen else []
        if self.kind == "off":
            return [] if value else [self.name]
        if self.kind == "json":
            return [self.name, json.dumps(value, separators=(",", ":"), sort_keys=True)]
        if self.kind == "list":
            return [self.name, *value]
        return [self.name, str(value)]


FlagTable = Mapping[str, Flag | tuple[Flag, ...]]  # by field


def named(*fields: str, kind: FlagKind = "value") -> dict[str, Flag]:
    """Flags that are named like their fields: ``--max-model-len`` for ``max_model_len``."""
    return {name: Flag("--" + name.replace("_", "-"), kind) for name in fields}


def iter_flags(flags: FlagTable) -> Iterator[tuple[str, Flag]]:
    """(field, flag) of every flag, in the table's order."""
    for name, own in flags.items():
        for flag in own if isinstance(own, tuple) else (own,):
            yield name, flag


def flag_arguments(settings: EngineSettings, flags: FlagTable) -> list[str]:
    """Arguments for the fields that are set, in the table's order."""
    arguments: list[str] = []
    for name, flag in iter_flags(flags):
        value = getattr(settings, name)
        if value is not None:
            arguments += flag.arguments(value, settings)
    return arguments


def fill_placeholders(text: str, node: Node) -> str:
    """A value of ``env`` with ``{rank}``, ``{host}`` and the like filled in for this rank."""

    def value_of(place: re.Match[str]) -> str:
        name = place[1]
        return str(getattr(node, name)) if name in PLACES else place[0]

    return PLACE.sub(value_of, text)


def adapter_pairs(adapters: Mapping[str, str], settings: EngineSettings) -> list[str]:
    """``Flag.value_from`` for ``lora_modules``: a word ``name=path`` for each adapter."""
    return [f"{name}={path}" for name, path in adapters.items()]


def adapters_are_on(settings: EngineSettings) -> dict[str, int]:
    """``Engine.pins`` of engines that serve adapters only where a flag of its own says so."""
    return {"enable_lora": True} if settings.lora_modules else {}


def whole_blocks(default_size: int) -> Callable[[int, EngineSettings], int]:
    """``Flag.value_from`` for a KV cache in blocks: how many blocks hold so many tokens.

    ``default_size``: tokens of a block where ``block_size`` is not set.
    """

    def blocks_for(tokens: int, settings: EngineSettings) -> int:
        return math.ceil(tokens / (settings.block_size or default_size))

    return blocks_for


def rendezvous(settings: EngineSettings, node: Node) -> list[str]:
    """Arguments with which ranks find those of other nodes, for engines with SGLang's flag names;
    [] on one node.
    """
    if settings.nnodes == 1:
        return []
    address = f"{node.master_host}:{node.master_port}"
    arguments = ["--nnodes", str(settings.nnodes), "--node-rank", str(node.rank)]
    return [*arguments, "--dist-init-addr", address]


def core_groups(settings: EngineSettings, node: Node) -> str:
    """This node's cores divided among its ranks, as ``0,1|2,3``; "" if no cores are given. With
    fewer cores than ranks, ranks share cores.
    """
    ranks = settings.devices_per_node
    cores = node.cores
    if not cores:
        return ""
    groups: list[str] = []
    if len(cores) < ranks:
        groups = [str(cores[rank % len(cores)]) for rank in range(ranks)]
    else:
        size = len(cores) // ranks
        for rank in range(ranks):
            own = cores[rank * size : (rank + 1) * size]
            groups.append(",".join(map(str, own)))
    return "|".join(groups)


def program(settings: EngineSettings, name: str) -> str:
    """The program to run: ``name`` in the venv ``executable``, the file ``executable``, or ``name``
    from PATH.

    In a container it is always ``name``, since paths of the node mean nothing there.
    """
    place = settings.executable
    if place is None or settings.image is not None:
        return name
    if os.path.isdir(place):
        return os.path.join(os.path.abspath(place), "bin", name)
    return os.path.abspath(place) if os.sep in place else place


def release(settings: EngineSettings, package: str, parts: int) -> tuple[int, ...] | None:
    """The first ``parts`` numbers of the engine's version; None: not known.

    The version is that of the settings, else of the installation, else of the image's tag. Only tags with three parts count: NVIDIA's tags of two parts are a year and a month.
    """
    versions = [settings.engine_version]
    if settings.executable and settings.image is None:
        versions.append(installed_version(settings.executable, package))
    tag = re.search(r":(v?\d+\.\d+\.\d[\w.-]*)(?:@|$)", settings.image or "")
    if tag:
        versions.append(tag[1])
    pattern = "v?" + r"\.".join([r"(\d+)"] * parts)
    for version in versions:
        match = re.match(pattern, version or "")
        if match:
            return tuple(map(int, match.groups()))
    return None


def assumed_release_note(assumed: str) -> str:
    """A note for an engine whose release is not known. ``assumed``: which one is taken instead."""
    return f"its release is not known: {assumed} is assumed; set engine_version for another"


def docker_problems(engine: str, settings: EngineSettings) -> list[str]:
    """The problem of an engine that takes no key and no model name, if it is to run in docker.

    Such an engine is recognised by which process owns its socket, and docker hides that.
    """
    if settings.image is None or settings.container_runtime in ("apptainer", "podman"):
        return []
    return [
        f"image: {engine} takes no key and names no model, so nothing would prove that the server "
        "in a docker container is ours; use container_runtime podman or apptainer, or an executable"
    ]


def random_key() -> str:
    """A fresh API key. It never begins with ``-``: engines that take it as an argument would read
    it as a flag.
    """
    return secrets.token_hex(24)


def with_key(settings: EngineSettings, module: str, function: str, flag: str) -> list[str]:
    """Arguments to start an engine that takes its key only as an argument, while keeping the key
    off command lines.

    The venv's Python calls the engine's entry point and adds ``flag`` with the value of the
    variable KEY_VARIABLE. ``executable`` names the venv or its Python.
    """
    code = (
        f"import os, sys; from {module} import {function}; "
        f"sys.argv += ['{flag}', os.environ['{KEY_VARIABLE}']]; sys.exit({function}())"
    )
    return [program(settings, "python3"), "-c", code]


def environment(settings: EngineSettings, hardware: Hardware, node: Node) -> dict[str, str]:
    """Variables of every engine: an unbuffered log, only its own GPUs, and no hub for local models."""
    env = {"PYTHONUNBUFFERED": "1"}
    if hardware.is_cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif node.devices:
        name = "HIP_VISIBLE_DEVICES" if hardware.is_amd else "CUDA_VISIBLE_DEVICES"
        env[name] = ",".join(node.devices)
    if settings.nnodes > 1 and not hardware.is_cpu:  # so that its log names the network
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}
    if settings.nnodes > 1 and GLOO not in {*settings.env, *os.environ}:
        env |= for_gloo(node.host)
    if node.role:
        env |= UCX
    env |= _temporary(settings, node)
    # asking the hub costs seconds, or minutes behind a firewall
    if os.path.isabs(node.model_path or settings.model):
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _temporary(settings: EngineSettings, node: Node) -> dict[str, str]:
    """Variables that put temporary files into the launch's folder, with which they are removed:
    vLLM and SGLang leave sockets behind.

    Empty where the user or the node chose a place for temporary files, and in a container, which
    has its own. torch keeps compiled kernels in a temporary folder, too. These stay in a place
    where later launches find them.
    """
    is_chosen = bool({"TMPDIR", "TEMP", "TMP"} & {*settings.env, *os.environ})
    is_too_long = len(os.fsencode(node.workdir)) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES
    if settings.image or is_chosen or is_too_long or not os.path.isabs(node.workdir):
        return {}
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a pod whose user has no name
        user = f"uid_{os.getuid()}"
    kernels = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not kernels:
        kernels = f"/tmp/torchinductor_{user}"  # noqa: S108 - torch's own default
    return {"TMPDIR": node.workdir, "TORCHINDUCTOR_CACHE_DIR": kernels}


def nonce_name(settings: EngineSettings, node: Node) -> str:
    """A model name that no other server has: it ends with the launch id."""
    name = settings.served_model_name or settings.model.rstrip("/").rsplit("/", 1)[-1]
    return f"{name}-{node.launch_id}" if node.launch_id else name


@dataclass(frozen=True, slots=True)
class LogFigure:
    """A figure that an engine logs."""

    pattern: str  # regular expression with one group
    convert: Callable[[str], Any]  # from the group's text, without commas


def log_reader(log_figures: Mapping[str, LogFigure]) -> Callable[[str], dict[str, Any]]:
    """A function that reads these figures, by name, from the text of a log.

    If several ranks log a figure, the largest number or the first text counts.
    """
    regexes = {name: re.compile(figure.pattern) for name, figure in log_figures.items()}

    def read(log: str) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name, figure in log_figures.items():
            texts = regexes[name].findall(log)
            values = [figure.convert(text.replace(",", "")) for text in texts]
            if values:
                figures[name] = values[0] if isinstance(values[0], str) else max(values)
        return figures

    return read


def bytes_of_gib(number: str | float) -> int:
    """Bytes from a log's GiB; some logs call them GB."""
    return round(float(number) * (1 << 30))

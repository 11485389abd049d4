"""What an engine is to us: one small protocol, implemented once per file beside this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware


@dataclass(frozen=True, slots=True)
class Node:
    """One rank of a replica on its node: what the agent there knows when the engine starts."""

    rank: int = 0  # 0 serves HTTP
    host: str = "127.0.0.1"  # address other nodes reach this one by
    port: int = 8000  # HTTP port, free on rank 0's node
    master_host: str = "127.0.0.1"  # rank 0's address
    master_port: int = 29501  # rendezvous of a multi-node replica, free on rank 0's node
    extra_ports: tuple[int, ...] = ()  # more free ports on this node, for engines that need them
    bind: str = "127.0.0.1"  # address the HTTP server listens on: loopback unless clients sit elsewhere
    devices: tuple[str, ...] = ()  # GPU indices or UUIDs given to us, sorted; empty on cpu
    cores: tuple[int, ...] = ()  # CPU cores this rank may use
    workdir: str = "."  # a folder of this launch on this node, for files an engine needs
    launch_id: str = ""
    model_path: str = ""  # what to serve: a local folder or a hub id


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start. ``secrets`` go into its environment and nowhere else."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[str, str] = field(default_factory=dict)  # written below workdir before the start: name -> text
    folders: tuple[str, ...] = ()  # made before the start where they are missing: what a container mounts
    inherits: tuple[str, ...] | None = None  # how the names of the node's variables start that it sees; None: all
    after: tuple[str, ...] = ()  # argv run once the process is gone, however it went: removes a container
    grace_s: float | None = None  # between SIGTERM and SIGKILL, where waiting longer gains nothing; None: the owner's
    notes: tuple[str, ...] = ()  # what was decided that the settings left open, one sentence each


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the engine and the column of the table ``engine_metrics`` that it fills.

    ``name``: its Prometheus name. ``name{label="value"}`` takes the series with that label only (``""``: without it);
    ``one + other`` is the sum of both.
    """

    column: str
    name: str


class Engine(Protocol):
    """One inference engine. Stateless; every method is a pure function of its arguments, except ``version``."""

    name: ClassVar[str]
    launches: ClassVar[bool]  # False: an endpoint that already runs
    emulated: ClassVar[bool]  # True: every output says so
    ready_path: ClassVar[str]
    metrics_path: ClassVar[str | None]
    metrics: ClassVar[tuple[Metric, ...]]
    reset_path: ClassVar[str | None]  # POST empties the prefix cache between points

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        """Why this engine cannot run these settings: one sentence per field it has no place for."""
        ...

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        """Fields left open that the engine would fill by the hardware it finds, with the values they get instead."""
        ...

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        """The process of one rank. The key travels in ``secrets``, never in argv."""
        ...

    def dialects(self, settings: EngineSettings) -> dict[str, Dialect]:
        """Its APIs by the names of ``Workload.api``: completions, chat, tgi, native."""
        ...

    def served_name(self, settings: EngineSettings, node: Node) -> str:
        """The model name requests carry and /v1/models must list (proof that the server is ours)."""
        ...

    def version_command(self, settings: EngineSettings) -> tuple[str, ...] | None:
        """argv that prints the engine's version, None when it has none."""
        ...

    def reported(self, log: str) -> dict[str, float | int | str]:
        """What the engine said of itself at start: kv_cache_tokens, weight_bytes, max_concurrency, …"""
        ...

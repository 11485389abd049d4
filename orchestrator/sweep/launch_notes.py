"""What is found out about a launch while it runs, and how it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import Failure, ResultsError
from orchestrator.cluster.base import HostLost
from orchestrator.emulator.version import is_emulator
from orchestrator.engines.networks import doubt
from orchestrator.engines.registry import program_of
from orchestrator.node.readiness import Ready
from orchestrator.plan.model import Deployment
from orchestrator.results.events import Event
from orchestrator.results.phases import PhaseName
from orchestrator.results.records import AnswerRow, LaunchRow
from orchestrator.spec.settings import ROUTER
from orchestrator.sweep.announcer import Announcer
from orchestrator.sweep.commit import commit_launch, how_it_ended, launch_row
from orchestrator.sweep.context import SweepContext

if TYPE_CHECKING:
    from orchestrator.cluster.protocol import Agent


@dataclass(frozen=True, slots=True)
class _StartedRank:
    """A rank whose process was started. ``place``: its host and devices, as the launch's row has
    them.
    """

    argv: tuple[str, ...]
    place: Mapping[str, Any]


class LaunchNotes:
    """What is known about a launch so far. The user is told what may come as a surprise.

    ``row``: its row in ``launches``. ``answers``: the answers to the fixed prompts. ``commit``
    stores both. ``announcer``: tells the user what happens to the launch.
    """

    def __init__(self, context: SweepContext, deployment: Deployment) -> None:
        self.row = launch_row(deployment, context.store.experiment, context.clock.unix_ns())
        self.answers: Sequence[AnswerRow] = ()
        self.announcer = Announcer(context.tell, deployment.label, self.row.launch_id)
        self._context = context
        self._deployment = deployment
        self._started_ranks: list[_StartedRank] = []
        self._reported: dict[str, Any] = {}
        self._environment: dict[str, dict[str, Any]] = {}  # of each host, by its name
        self._is_committed = False

    @property
    def launch_id(self) -> str:
        return self.row.launch_id

    @property
    def model_owner(self) -> str:
        """Who an endpoint says owns its model."""
        return str(self._reported.get("owned_by"))

    @property
    def vocab_size(self) -> int | None:
        """How many tokens the engine reported that its vocabulary has."""
        size = self._reported.get("vocab_size")
        return size if isinstance(size, int) else None

    def note(self, **columns: Any) -> None:
        """Note values of columns of the row."""
        self.row = replace(self.row, **columns)

    def note_rank(self, argv: tuple[str, ...], place: Mapping[str, Any]) -> None:
        """Note by which command, and where, a rank was started."""
        self._started_ranks.append(_StartedRank(argv, place))
        commands = [started.argv for started in self._started_ranks]
        places = [started.place for started in self._started_ranks]
        self.note(argv_json=json.dumps(commands), placement_json=json.dumps(places))

    def note_environment(self, agents: Sequence[Agent], names: Mapping[str, str]) -> None:
        """Note what the hosts of a replica are, as its agents find them. GPUs are those of these
        agents. ``names``: of hosts, by address.
        """
        for agent in agents:
            name = names[agent.allocation.address]
            with suppress(HostLost):  # noticed where its agent is polled
                environment = agent.environment()
                host = self._environment.setdefault(name, environment)
                if host is not environment and "gpus" in environment:
                    host["gpus"] = [*host.get("gpus", ()), *environment["gpus"]]
                if self._context.news.is_new_host(name):
                    text = f"the facts of host {name} are stored, those that doctor judges"
                    self._context.tell(Event("host_facts", text, data=agent.host_facts()))
        self.note(environment_json=json.dumps(self._environment))

    def note_endpoint(self, ready: Ready) -> None:
        """Note what an endpoint reported once it answered."""
        self._note_reported(ready.reported)
        self.note(engine_version=ready.version, emulated=is_emulator(ready.version))

    def note_ready(self, role: str, ready: Ready) -> None:
        """Note what a replica reported once it served, under names prefixed with its role."""
        settings = self._deployment.settings.parts[role]
        reported = dict(ready.reported)
        engine = program_of(settings.engine)
        if engine.version and ready.version and not engine.knows(ready.version):
            reported["flags_known_as_of"] = engine.version
            self.announcer.event(
                "other_version",
                f"{engine.title} {ready.version} runs, but its flags, metrics and log are known "
                f"for {engine.version}: a setting whose meaning has changed would go unnoticed",
            )
        if "network" in reported:
            subject = f"its {settings.nnodes} nodes talk"
            self._tell_of_network(subject, str(reported["network"]))
        if role != ROUTER:
            self.note(engine_version=ready.version)
        elif ready.version:
            reported["version"] = ready.version
        prefix = f"{role}." if role else ""
        self._note_reported({f"{prefix}{name}": value for name, value in reported.items()})

    def note_transport(self, transport: str) -> None:
        """Note what KV caches travel over between its roles. Tell the user if that may be slow."""
        self._note_reported({"kv_transport": transport})
        self._tell_of_network("KV caches travel", transport)

    def _note_reported(self, reported: Mapping[str, Any]) -> None:
        self._reported |= reported
        self.note(engine_reported_json=json.dumps(self._reported))

    def _tell_of_network(self, subject: str, network: str) -> None:
        """Tell the user if a network may be slow. ``subject``: what goes over it."""
        words = doubt(network, self._deployment.hardware.is_cpu)
        if words:
            self.announcer.event(
                "network", f"{subject} {words}: the results depend on that network, too"
            )

    def store_logs(self, logs: Mapping[int, bytes]) -> None:
        """Store the logs of the ranks, by rank. If a log cannot be stored, the user is told so, and
        everything else that happened to the engine is still reported.
        """
        for rank, log in logs.items():
            try:
                uri = self._context.store.write_log(f"{self.launch_id}/rank{rank}.log", log)
            except ResultsError as error:
                self.announcer.event(
                    "log_lost", f"the log of rank {rank} could not be stored: {error}"
                )
                continue
            self.note(log_uri=self.row.log_uri or uri)

    def commit_first(self, failure: Failure | None) -> None:
        """Do as ``commit`` does, but before the engine is stopped, because a user who stops the
        sweep may not wait until the engine has ended.
        """
        if self._started_ranks:
            # where the log will be stored once the engine has stopped
            self.note(log_uri=self._context.store.log_uri(f"{self.launch_id}/rank0.log"))
        self.commit(failure)

    def commit(self, failure: Failure | None) -> None:
        """Store how the launch ended, and the events since the last commit. Only the first call
        counts.
        """
        if self._is_committed:
            return
        self._is_committed = True
        self.announcer.phase(PhaseName.STORE_LAUNCH)
        row = replace(self.row, **how_it_ended(failure))
        store_launch(self._context, self._deployment, row, self.answers)


def store_launch(
    context: SweepContext,
    deployment: Deployment,
    row: LaunchRow,
    answers: Sequence[AnswerRow] = (),
) -> None:
    """Commit the row of a launch, and the events since the last commit. If the row cannot be
    stored, the user is told so, and other launches go on.
    """
    events = context.news.take_events()
    try:
        commit_launch(context.store, deployment, row, events, answers)
    except Exception as error:
        # after any other error, one of the events may be what cannot be stored; given back, it
        # would cost all later rows, too
        if isinstance(error, ResultsError):
            context.news.give_back_events(events)
        text = f"the row of launch {row.launch_id} could not be stored: {error}"
        context.tell(Event("row_lost", text, deployment.label, row.launch_id))

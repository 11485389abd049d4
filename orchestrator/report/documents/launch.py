"""One start of an engine: the record that ``results --launches`` shows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.launches import PredictedFigure, StoredLaunch
from orchestrator.results.records import LaunchRow
from orchestrator.results.stored_json import parsed_environment


@dataclass(frozen=True, slots=True)
class LaunchDocument:
    """One start of an engine, failed or not.

    ``deployment``: None: its row was not stored. ``figures``: predicted beside reported, by the
    names of ``analysis.launches.FIGURES``. ``reported``: all that the engine reported, as stored,
    since each engine has names of its own. ``environment``: host -> what it was found to be; empty
    for launches of earlier versions and of endpoints.

    The other fields are taken from ``reported``; None: not reported. ``checkpoint_bytes``: how much
    all ranks together read. ``network``: the network between ranks on several nodes.
    ``kv_transport``: the transport by which KV caches are handed on. ``flags_known_as_of``: the
    newest version of the engine whose flags are known; set where the version that started is newer.
    """

    row: LaunchRow
    deployment: StoredDeployment | None
    label: str
    figures: Mapping[str, PredictedFigure]
    reported: Mapping[str, object]
    environment: Mapping[str, Mapping[str, Any]]
    checkpoint_bytes: float | None
    quantization_kernel: str | None
    network: str | None
    kv_transport: str | None
    flags_known_as_of: str | None

    @property
    def has_served(self) -> bool:
        return self.row.status == "ok"

    @property
    def asked_version(self) -> str | None:
        """The engine version that the experiment file asks for."""
        return self.deployment.engine_version if self.deployment else None


def launch_documents(launches: Iterable[StoredLaunch]) -> list[LaunchDocument]:
    return [_launch_document(launch) for launch in launches]


def _launch_document(launch: StoredLaunch) -> LaunchDocument:
    reported = launch.reported
    return LaunchDocument(
        row=launch.row,
        deployment=launch.deployment,
        label=launch.label,
        figures=launch.figures,
        reported=reported,
        environment=parsed_environment(launch.row.environment_json),
        checkpoint_bytes=_number(reported, "checkpoint_bytes"),
        quantization_kernel=_text(reported, "quantization_kernel"),
        network=_text(reported, "network"),
        kv_transport=_text(reported, "kv_transport"),
        flags_known_as_of=_text(reported, "flags_known_as_of"),
    )


def _number(reported: Mapping[str, object], name: str) -> float | None:
    value = reported.get(name)
    return value if isinstance(value, int | float) else None


def _text(reported: Mapping[str, object], name: str) -> str | None:
    value = reported.get(name)
    return None if value is None else str(value)

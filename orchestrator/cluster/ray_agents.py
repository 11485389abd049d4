"""Agents: the actor that runs one rank's engine, as its node and as the driver see it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from orchestrator.cluster.base import Agent, AgentLost, Ready, Seat, Stopped
from orchestrator.cluster.host import EngineHost
from orchestrator.cluster.ray_errors import CALL_LIMIT_S, cause, first_line
from orchestrator.engines.base import Node
from orchestrator.errors import Failure
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.engine_metrics import Sample

STOP_LIMIT_S = 120.0


@ray.remote(max_concurrency=4, max_restarts=0)
class AgentActor:
    """EngineHost behind Ray."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        self._host = EngineHost(launch_id, gpus)

    def seat(self) -> Seat:
        context = ray.get_runtime_context()
        return self._host.seat(context.get_node_id(), ray.util.get_node_ip_address())

    def reserve_ports(self, count: int) -> list[int]:
        return self._host.reserve_ports(count)

    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        return self._host.start(settings, hardware, node, api_key)

    def wait_ready(self, timeout_s: float) -> Ready | Failure:
        return self._host.wait_ready(timeout_s)

    def failure(self) -> Failure | None:
        return self._host.failure()

    def between_points(self) -> None:
        self._host.between_points()

    def begin_metrics(self) -> None:
        self._host.begin_metrics()

    def end_metrics(self) -> list[Sample]:
        return self._host.end_metrics()

    def stop(self) -> Stopped:
        return self._host.stop()


def call(actor: Any, method: str, *args: object, limit_s: float = CALL_LIMIT_S) -> Any:
    """One call with a limit. A dead or silent actor is AgentLost."""
    try:
        return ray.get(getattr(actor, method).remote(*args), timeout=limit_s)
    except GetTimeoutError as error:
        raise AgentLost(f"no answer to {method} within {limit_s:g} s") from error
    except RayTaskError as error:
        raise AgentLost(f"{method} failed on its node: {cause(error)}") from error
    except RayError as error:
        raise AgentLost(f"the node agent is gone: {first_line(error)}") from error


class RayAgent:
    """An AgentActor seen from the driver."""

    def __init__(self, actor: Any, seat: Seat) -> None:
        self.seat = seat
        self._actor = actor
        self._ready: Any = None

    def reserve_ports(self, count: int) -> list[int]:
        return call(self._actor, "reserve_ports", count)  # type: ignore[no-any-return]

    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        return call(self._actor, "start", settings, hardware, node, api_key)  # type: ignore[no-any-return]

    def begin_ready(self, timeout_s: float) -> None:
        self._ready = self._actor.wait_ready.remote(timeout_s)

    def poll_ready(self, wait_s: float) -> Ready | Failure | None:
        try:
            return ray.get(self._ready, timeout=wait_s)  # type: ignore[no-any-return]
        except GetTimeoutError:
            return None
        except RayTaskError as error:
            raise AgentLost(f"waiting for the engine failed: {cause(error)}") from error
        except RayError as error:
            raise AgentLost(f"the node agent is gone: {first_line(error)}") from error

    def failure(self) -> Failure | None:
        return call(self._actor, "failure")  # type: ignore[no-any-return]

    def between_points(self) -> None:
        call(self._actor, "between_points")

    def begin_metrics(self) -> None:
        call(self._actor, "begin_metrics")

    def end_metrics(self) -> list[Sample]:
        return call(self._actor, "end_metrics")  # type: ignore[no-any-return]

    def stop(self) -> Stopped:
        return call(self._actor, "stop", limit_s=STOP_LIMIT_S)  # type: ignore[no-any-return]


class RayPlacement:
    """A placement group with its agents."""

    def __init__(self, group: PlacementGroup, actors: Sequence[Any], agents: Sequence[RayAgent]) -> None:
        self.agents: Sequence[Agent] = agents
        self._group = group
        self._actors = actors

    def release(self) -> None:
        """Kill the agents (their engines end by the guard) and free the group at once, lost or not."""
        release(self._group, self._actors)


def release(group: PlacementGroup, actors: Sequence[Any]) -> None:
    for actor in actors:
        with suppress(RayError):
            ray.kill(actor)
    with suppress(RayError):
        remove_placement_group(group)

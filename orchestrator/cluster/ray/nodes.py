"""Checks that nodes can run this program and reach the results, and ships this package to them."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.cluster.base import Machine, NoAnswer
from orchestrator.cluster.calls import CALL_LIMIT_S
from orchestrator.cluster.client_host import reach_problem
from orchestrator.cluster.protocol import ASK_LIMIT_S
from orchestrator.cluster.ray.actors import first_line
from orchestrator.cluster.ray.private import head_node, monitor_has_configuration, uploaded
from orchestrator.results.store import Store

PACKAGE = Path(__file__).resolve().parents[2]
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # an environment variable of Ray's with this odd name
ADVICE = (
    "install the program there with the driver's version of Python, or submit the job with "
    "--working-dir"
)


class _ProbeActor:
    """An actor that calls whatever function it is given."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


_PROBE_ACTOR: Any = ray.remote(num_cpus=0, max_restarts=0)(_ProbeActor)
# A task and no actor: on a node that lacks the program it fails, with an error that says so.
_REACH: Any = ray.remote(num_cpus=0, max_retries=0)(reach_problem)


def _has_configuration_here() -> bool:
    """Whether this node's monitor has an autoscaling configuration. Runs on the head's node,
    because only there the cluster has the address with which the monitor was started.
    """
    return monitor_has_configuration(ray.get_runtime_context().gcs_address)


_HAS_CONFIGURATION: Any = ray.remote(num_cpus=0, max_retries=0)(_has_configuration_here)


class HeadMonitor:
    """Asks the head's node, once, whether its monitor was started with an autoscaling
    configuration.
    """

    def __init__(
        self,
        environment: Callable[[], dict[str, Any] | None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self._now_s = now_s
        self._pending_ref: Any = None  # of the question, once it was sent to the head's node
        self._asked_s = 0.0
        self._answer: bool | None = None

    def has_configuration(self) -> bool | None:
        """Whether the monitor has an autoscaling configuration. None while the head may still
        answer, False when it has not answered in time. Does not wait.
        """
        if self._answer is None:
            if self._pending_ref is None:
                self._ask()
            else:
                self._take_answer()
        return self._answer

    def _ask(self) -> None:
        """Asks the head's node; answers at once where this is that node, or where there is none."""
        head = head_node()
        if head is None:
            self._answer = False
        elif head == ray.get_runtime_context().get_node_id():
            self._answer = _has_configuration_here()
        else:
            self._asked_s = self._now_s()
            self._pending_ref = _HAS_CONFIGURATION.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False),
                runtime_env=self._environment(),
            ).remote()

    def _take_answer(self) -> None:
        """Takes the answer if it has come. No answer in time counts as False."""
        answer = answers({"head": self._pending_ref}, 0.0)["head"]
        if not isinstance(answer, NoAnswer):
            self._answer = answer
        elif answer.cannot_run or self._now_s() - self._asked_s >= ASK_LIMIT_S:
            self._answer = False


class RayProbes:
    """``Probes`` of a Ray cluster: one actor without CPUs or GPUs per node, until ``close``."""

    def __init__(self, machines: Sequence[Machine], environment: dict[str, Any] | None) -> None:
        self.machines = machines
        self._actors = {
            machine.node_id: _PROBE_ACTOR.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
                runtime_env=environment,
            ).remote()
            for machine in machines
        }

    def ask(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        limit_s: float = ASK_LIMIT_S,
        nodes: Sequence[str] = (),
    ) -> dict[str, Any]:
        refs: dict[str, Any] = {}
        for node in nodes or self._actors:
            refs[node] = self._actors[node].call.remote(function, *arguments)
        return answers(refs, limit_s)

    def close(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor)


def answers(refs: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """What each call returned within ``limit_s``, or NoAnswer, under the key of its ref."""
    ray.wait(list(refs.values()), num_returns=len(refs), timeout=limit_s)
    results: dict[str, Any] = {}
    for key, ref in refs.items():
        try:
            results[key] = ray.get(ref, timeout=0)
        except GetTimeoutError:
            results[key] = NoAnswer(
                f"gave no answer within {limit_s:g} s: whether it can work is not known"
            )
        except RayTaskError as error:
            results[key] = NoAnswer.of(error.cause)
        except RayError as error:
            results[key] = NoAnswer(f"could not be asked: {first_line(error)}")
    return results


def shipped_package() -> dict[str, Any] | None:
    """The runtime_env that ships this package to other nodes; None when the job's working_dir
    contains it.
    """
    return None if _in_working_dir() else uploaded(str(PACKAGE))


def _in_working_dir() -> bool:
    """Whether a submitted job runs this package from its working_dir, which Ray copies to every
    node. Raises InputError if that folder is gone.
    """
    config = json.loads(os.environ.get(JOB_CONFIG) or "{}")
    if not config.get("runtime_env", {}).get("working_dir"):
        return False
    try:
        return PACKAGE.is_relative_to(Path.cwd())
    except FileNotFoundError as error:
        raise InputError(
            "the job's working_dir has vanished from this node: submit the job again, it "
            "continues. Nodes on one "
            "machine that share a temp-dir unpack uploads over each other: give each `ray start` "
            "its own --temp-dir"
        ) from error


def check_nodes(
    machines: Sequence[Machine], store: Store, environment: dict[str, Any] | None
) -> list[str]:
    """Checks in parallel that each node can run this program and write to the results.

    Returns a sentence for each node of which that is not known, because it gave no answer. Raises
    ProblemsError with all nodes that cannot.
    """
    refs = {
        machine.address: _REACH.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
            runtime_env=environment,
        ).remote(store)
        for machine in machines
    }
    problems: list[Problem] = []
    warnings: list[str] = []
    for address, result in answers(refs, CALL_LIMIT_S).items():
        if isinstance(result, NoAnswer) and not result.cannot_run:
            warnings.append(f"node {address} {result.why}")
        elif isinstance(result, NoAnswer):
            problems.append(Problem(f"node {address} {result.why}", hint=ADVICE))
        elif result:
            problems.append(Problem(f"node {address}: {result}"))
    if problems:
        raise ProblemsError(problems)
    return warnings

"""What nodes need before anything starts on them: this package, and a way to the results."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.base import Machine
from orchestrator.cluster.calls import CALL_LIMIT_S
from orchestrator.cluster.client_host import reach_problem
from orchestrator.cluster.ray_actors import first_line
from orchestrator.cluster.ray_private import uploaded
from orchestrator.errors import Problem, ProblemsError
from orchestrator.results.store import Store

PACKAGE = Path(__file__).resolve().parents[1]
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray's own name of it


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _reach(store: Store) -> str | None:
    return reach_problem(store)


def shipped_package() -> dict[str, Any] | None:
    """The runtime_env that takes this package to other nodes; None where the job's working_dir already carries it."""
    return None if _in_working_dir() else uploaded(str(PACKAGE))


def _in_working_dir() -> bool:
    """Whether a submitted job runs this package out of a working_dir, which Ray takes to every node."""
    config = json.loads(os.environ.get(JOB_CONFIG) or "{}")
    return bool(config.get("runtime_env", {}).get("working_dir")) and PACKAGE.is_relative_to(Path.cwd())


def check_nodes(machines: Sequence[Machine], store: Store, environment: dict[str, Any] | None) -> list[str]:
    """See that each of these nodes runs this program and writes to the results; all at once.

    Returns sentences on nodes that gave no answer. Raises ProblemsError with every node that cannot.
    """
    refs = {
        machine.address: _reach.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False), runtime_env=environment
        ).remote(store)
        for machine in machines
    }
    ray.wait(list(refs.values()), num_returns=len(refs), timeout=CALL_LIMIT_S)
    problems, silent = [], []
    for address, ref in refs.items():
        try:
            if problem := ray.get(ref, timeout=0):
                problems.append(Problem(f"node {address}: {problem}"))
        except GetTimeoutError:
            silent.append(f"node {address} gave no answer within {CALL_LIMIT_S:g} s: nobody knows whether it can work")
        except RayTaskError as error:
            problems.append(Problem(f"node {address} cannot run this program: {_cause(error)}", hint=_ADVICE))
        except RayError as error:
            silent.append(f"node {address} could not be asked: {first_line(error)}")
    if problems:
        raise ProblemsError(problems)
    return silent


def _cause(error: RayTaskError) -> str:
    return f"{type(error.cause).__name__}: {error.cause}"


_ADVICE = "install the program there with the driver's version of Python, or submit the job with --working-dir"

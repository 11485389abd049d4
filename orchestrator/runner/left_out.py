"""``hardware`` left out: what it means on this cluster, and that no result is of two kinds of devices.

The id of such a deployment is the same wherever it runs; what it ran on stands in the ``deployments`` row that was
committed with each of its points.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.cluster.base import ACCELERATOR_LABEL, Machine
from orchestrator.engines import ENGINES
from orchestrator.errors import InputError, Problem, ProblemsError
from orchestrator.plan.make import ANY
from orchestrator.plan.model import Deployment
from orchestrator.results.store import Store

CPU = "cpu"


def on_this_cluster(deployment: Deployment, machines: Sequence[Machine]) -> Deployment:
    """With the accelerator that the cluster has: GPUs where there are any (``any``: nobody names them), else CPU cores.

    Raises InputError where it has several kinds of them.
    """
    hardware, engine = deployment.hardware, ENGINES[deployment.settings.engine]
    if hardware.accelerator != ANY.accelerator or not engine.launches:
        return deployment
    gpus = {one.labels.get(ACCELERATOR_LABEL, ANY.accelerator) for one in machines if one.gpus and not engine.emulated}
    if len(gpus) > 1:
        kinds = ", ".join(sorted(gpus))
        raise InputError(f"{deployment.label} names no hardware, and this cluster has several kinds: {kinds}; name one")
    found = hardware.model_copy(update={"accelerator": gpus.pop() if gpus else CPU})
    return deployment.model_copy(update={"hardware": found})


def check_same(store: Store, deployments: Collection[Deployment]) -> None:
    """See that what is committed of deployments as they would run here was measured on the same accelerator.

    Raises ProblemsError with every one that was not.
    """
    here = {one.id: one for one in deployments if one.hardware.name == ANY.name}
    if not here:
        return
    first = {one.deployment_id: one for one in store.winners().values() if one.deployment_id in here}
    rows = store.read_manifests("deployments", first.values(), ["deployment_id", "accelerator"]).to_pylist()
    problems = []
    for row in rows:
        one, was = here[row["deployment_id"]], row["accelerator"]
        now = one.hardware.accelerator
        if was != now and (CPU in (was, now) or ANY.accelerator not in (was, now)):
            text = f"{one.label} names no hardware; it was measured on {was}, and this cluster has {now}"
            problems.append(Problem(text, hint="name the hardware, so that both are kept apart"))
    if problems:
        raise ProblemsError(problems)

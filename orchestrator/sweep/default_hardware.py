"""Deployments without ``hardware``: which accelerator they get on this cluster, and a check that
results never mix two.

The accelerator is the one that the cluster's label names. Ray's label is ``A100`` for 40 GB and for
80 GB; only named hardware tells those apart. A deployment without ``hardware`` has the same id
wherever it runs; the ``deployments`` row committed with each point says what it ran on.
"""

from collections.abc import Collection, Iterable, Sequence

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.cluster.base import ACCELERATOR_LABEL, Machine
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.candidates import ANY
from orchestrator.plan.model import Deployment
from orchestrator.results.records import Committed, DeploymentRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store

CPU = "cpu"


def on_this_cluster(
    deployments: Sequence[Deployment], machines: Sequence[Machine]
) -> list[Deployment]:
    """Give deployments without hardware the cluster's accelerator: its GPUs (``any`` if
    unlabelled), else CPU cores.

    Raises ProblemsError, which lists all such deployments, if the cluster has several kinds of GPU.
    """
    labels = {
        machine.labels.get(ACCELERATOR_LABEL, ANY.accelerator)
        for machine in machines
        if machine.gpus
    }
    gpus = sorted(labels)
    placed: list[Deployment] = []
    problems: list[Problem] = []
    for deployment in deployments:
        engine = ENGINES[deployment.settings.engine]
        if deployment.hardware.accelerator != ANY.accelerator or not engine.launches:
            placed.append(deployment)
        elif engine.emulated or not gpus:
            placed.append(_on(deployment, CPU))
        elif len(gpus) == 1:
            placed.append(_on(deployment, gpus[0]))
        else:
            text = f"{deployment.label} names no hardware, and this cluster has several kinds"
            problems.append(Problem(f"{text}: {', '.join(gpus)}; name one"))
    if problems:
        raise ProblemsError(problems)
    return placed


def _on(deployment: Deployment, accelerator: str) -> Deployment:
    hardware = deployment.hardware.model_copy(update={"accelerator": accelerator})
    return deployment.model_copy(update={"hardware": hardware})


def check_same(
    store: Store, deployments: Collection[Deployment], committed: Iterable[Committed]
) -> None:
    """Check that committed results of deployments without hardware come from the accelerator they
    would run on here.

    Raises ProblemsError, which lists every deployment that was measured on another accelerator.
    """
    unnamed = {
        deployment.id: deployment
        for deployment in deployments
        if deployment.hardware.name == ANY.name
    }
    if not unnamed:
        return
    attempts: dict[str, Committed] = {}  # one of each deployment
    for attempt in committed:
        if attempt.deployment_id in unnamed:
            attempts[attempt.deployment_id] = attempt
    manifests = []
    for attempt in attempts.values():
        manifest = store.manifest(attempt.measurement_id, attempt.attempt_id)
        if manifest is not None:
            manifests.append(manifest)
    rows = store.read_manifests("deployments", manifests)
    problems = []
    for row in rows_of(rows, DeploymentRow):
        deployment = unnamed[row.deployment_id]
        measured_on = row.accelerator
        present = deployment.hardware.accelerator
        if _are_different(measured_on, present):
            text = (
                f"{deployment.label} names no hardware; it was measured on {measured_on}, "
                f"and this cluster has {present}"
            )
            problems.append(Problem(text, hint="name the hardware, so that both are kept apart"))
    if problems:
        raise ProblemsError(problems)


def _are_different(measured_on: str, present: str) -> bool:
    """Whether two accelerators are certainly different. ``any`` may be any kind of GPU."""
    if measured_on == present:
        return False
    both = (measured_on, present)
    return CPU in both or ANY.accelerator not in both

"""Deployments without ``hardware``: which accelerator they get on this cluster, and a check that
results never mix two.

An accelerator is what the cluster's label says. Ray's label is ``A100`` for 40 GB and for 80 GB;
only named hardware tells those apart. Such a deployment has the same id wherever it runs; the
``deployments`` row committed with each point says what it ran on.
"""

from collections.abc import Collection, Iterable, Sequence

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.cluster.base import ACCELERATOR_LABEL, Machine
from orchestrator.engines import ENGINES
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

    Raises ProblemsError with each of them if the cluster has several kinds of GPU.
    """
    gpus = sorted(
        {one.labels.get(ACCELERATOR_LABEL, ANY.accelerator) for one in machines if one.gpus}
    )
    out, problems = [], []
    for one in deployments:
        engine = ENGINES[one.settings.engine]
        if one.hardware.accelerator != ANY.accelerator or not engine.launches:
            out.append(one)
        elif engine.emulated or not gpus:
            out.append(_on(one, CPU))
        elif len(gpus) == 1:
            out.append(_on(one, gpus[0]))
        else:
            text = f"{one.label} names no hardware, and this cluster has several kinds: {', '.join(gpus)}; name one"
            problems.append(Problem(text))
    if problems:
        raise ProblemsError(problems)
    return out


def _on(deployment: Deployment, accelerator: str) -> Deployment:
    hardware = deployment.hardware.model_copy(update={"accelerator": accelerator})
    return deployment.model_copy(update={"hardware": hardware})


def check_same(
    store: Store, deployments: Collection[Deployment], committed: Iterable[Committed]
) -> None:
    """Check that committed results of deployments without hardware come from the accelerator they
    would run on here.

    Raises ProblemsError with every deployment for which that is not so.
    """
    here = {one.id: one for one in deployments if one.hardware.name == ANY.name}
    if not here:
        return
    first = {one.deployment_id: one for one in committed if one.deployment_id in here}
    manifests = [store.manifest(one.measurement_id, one.attempt_id) for one in first.values()]
    rows = store.read_manifests("deployments", [one for one in manifests if one])
    problems = []
    for row in rows_of(rows, DeploymentRow):
        one, was = here[row.deployment_id], row.accelerator
        now = one.hardware.accelerator
        if was != now and (CPU in (was, now) or ANY.accelerator not in (was, now)):
            text = f"{one.label} names no hardware; it was measured on {was}, and this cluster has {now}"
            problems.append(Problem(text, hint="name the hardware, so that both are kept apart"))
    if problems:
        raise ProblemsError(problems)

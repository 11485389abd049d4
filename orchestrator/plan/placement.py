"""Spreads replicas that are larger than a node over several nodes, and says which fit nowhere."""

from orchestrator.base.text import counted
from orchestrator.engines.registry import program_of
from orchestrator.spec.settings import MOST_DEVICES, EngineSettings, Hardware


def spread(settings: EngineSettings, hardware: Hardware) -> EngineSettings:
    """Settings with ``nnodes`` for a replica larger than a node: pipeline stages are spread over as
    few nodes as can hold it, and tensor parallelism stays within nodes.

    A replica stays on one node if no number of nodes works. Settings that give ``nnodes`` are not
    changed.
    """
    devices_of_a_node = hardware.gpus_per_node or settings.world_size
    if (
        "nnodes" in settings.model_fields_set
        or settings.world_size <= devices_of_a_node
        or settings.data_parallel_size > 1
    ):
        return settings
    stages = settings.pipeline_parallel_size
    for nodes in range(2, stages + 1):
        if stages % nodes == 0 and settings.world_size // nodes <= devices_of_a_node:
            return settings.model_copy(update={"nnodes": nodes})
    return settings.model_copy(update={"nnodes": 1})


def placement_problems(
    settings: EngineSettings, hardware: Hardware, cluster_nodes: int | None = None
) -> list[str]:
    """Why nodes of this hardware cannot hold the replicas; empty if they can. ``cluster_nodes``:
    the number of nodes of the cluster; None if it is not known.
    """
    unit = "core" if hardware.is_cpu else "GPU"
    problems: list[str] = []
    for role, part in settings.engines.items():
        problems += [named(role, text) for text in _problems_of_a_replica(part, hardware, unit)]
    devices = settings.devices
    if devices > MOST_DEVICES:
        problems.append(
            f"needs {counted(devices, unit)} for all replicas; at most {MOST_DEVICES:,} are allowed"
        )
    if cluster_nodes is not None:
        nodes = settings.least_nodes(hardware.gpus_per_node)
        if nodes > cluster_nodes:
            problems.append(f"needs {counted(nodes, 'node')}; the cluster has {cluster_nodes}")
    return problems


def named(role: str, sentence: str) -> str:
    """A sentence about one role of a deployment; without roles it stands alone."""
    return f"{role}: {sentence}" if role else sentence


def _problems_of_a_replica(settings: EngineSettings, hardware: Hardware, unit: str) -> list[str]:
    problems: list[str] = []
    if settings.world_size % settings.nnodes:
        sizes = {
            "tensor": settings.tensor_parallel_size,
            "pipeline": settings.pipeline_parallel_size,
            "data": settings.data_parallel_size,
            "context": settings.context_parallel_size,
        }
        factors = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
        devices = counted(settings.world_size, unit)
        if factors:
            devices += f" ({factors})"
        problems.append(f"{devices} cannot be spread evenly over nnodes: {settings.nnodes}")
    if hardware.gpus_per_node is not None and settings.devices_per_node > hardware.gpus_per_node:
        nodes = -(-settings.world_size // hardware.gpus_per_node)
        sentence = (
            f"needs {counted(settings.devices_per_node, unit)} on one node; "
            f"a node of {hardware.name!r} has {hardware.gpus_per_node}"
        )
        engine = program_of(settings.engine)
        if engine.several_nodes:
            sentence += f" (nnodes: {nodes} would spread it)"
        else:
            sentence += f" ({engine.reason_to_refuse('nnodes')})"
        problems.append(sentence)
    return problems

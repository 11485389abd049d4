"""Places replicas on nodes: spreads those that are larger than a node, and says which fit nowhere."""

from orchestrator.engines.engine import program_of
from orchestrator.spec.load import counted
from orchestrator.spec.settings import MOST_DEVICES, EngineSettings, Hardware


def spread(settings: EngineSettings, hardware: Hardware) -> EngineSettings:
    """Settings with ``nnodes`` for a replica larger than a node: pipeline stages are spread over as
    few nodes as hold it, tensor parallelism stays within nodes.

    Unchanged if the settings give ``nnodes``, or if no number of nodes works.
    """
    room = hardware.gpus_per_node or settings.world_size
    if (
        "nnodes" in settings.model_fields_set
        or settings.world_size <= room
        or settings.data_parallel_size > 1
    ):
        return settings
    stages = settings.pipeline_parallel_size
    fitting = (
        nodes
        for nodes in range(2, stages + 1)
        if stages % nodes == 0 and settings.world_size // nodes <= room
    )
    return settings.model_copy(update={"nnodes": next(fitting, 1)})


def placement_problems(
    settings: EngineSettings, hardware: Hardware, cluster_nodes: int | None = None
) -> list[str]:
    """Why nodes of this hardware cannot hold the replicas. ``cluster_nodes``: nodes of the cluster,
    None if unknown.
    """
    unit = "core" if hardware.is_cpu else "GPU"
    parts = settings.engines.items()
    out = [
        f"{role}: {text}".removeprefix(": ")
        for role, one in parts
        for text in _on_a_node(one, hardware, unit)
    ]
    if (devices := settings.devices) > MOST_DEVICES:
        out.append(
            f"needs {counted(devices, unit)} for all replicas; at most {MOST_DEVICES:,} are allowed"
        )
    if (
        cluster_nodes is not None
        and (nodes := settings.least_nodes(hardware.gpus_per_node)) > cluster_nodes
    ):
        out.append(f"needs {counted(nodes, 'node')}; the cluster has {cluster_nodes}")
    return out


def _on_a_node(settings: EngineSettings, hardware: Hardware, unit: str) -> list[str]:
    out = []
    if settings.world_size % settings.nnodes:
        sizes = {
            axis: getattr(settings, f"{axis}_parallel_size")
            for axis in ("tensor", "pipeline", "data")
        }
        sizes["context"] = settings.context_parallel_size
        parts = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
        devices_text = counted(settings.world_size, unit) + (f" ({parts})" if parts else "")
        out.append(f"{devices_text} cannot be spread evenly over nnodes: {settings.nnodes}")
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
        out.append(sentence)
    return out

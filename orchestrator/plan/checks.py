"""Why a deployment cannot be placed or cannot serve a workload, as far as the numbers alone tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.load.workloads.file import summary
from orchestrator.spec.load import Lengths, Workload
from orchestrator.spec.settings import EngineSettings, Hardware


def placement_problems(settings: EngineSettings, hardware: Hardware, cluster_nodes: int | None = None) -> list[str]:
    """Why no nodes of this hardware hold a replica. ``cluster_nodes``: nodes of the cluster, None when not known."""
    out = []
    unit = "cores" if hardware.is_cpu else "GPUs"
    if settings.world_size % settings.nnodes:
        parts = " x ".join(
            f"{name} {size}"
            for name, size in (
                ("tensor", settings.tensor_parallel_size),
                ("pipeline", settings.pipeline_parallel_size),
                ("data", settings.data_parallel_size),
            )
            if size > 1
        )
        spread = f"{settings.world_size} {unit} ({parts})" if parts else f"1 {unit[:-1]}"
        out.append(f"{spread} cannot be spread evenly over nnodes: {settings.nnodes}")
    if hardware.gpus_per_node is not None and settings.devices_per_node > hardware.gpus_per_node:
        nodes = -(-settings.world_size // hardware.gpus_per_node)
        out.append(
            f"needs {settings.devices_per_node} {unit} on one node; a node of {hardware.name!r} has "
            f"{hardware.gpus_per_node} (nnodes: {nodes} would spread it)"
        )
    if cluster_nodes is not None and settings.nnodes > cluster_nodes:
        out.append(f"needs {settings.nnodes} nodes; the cluster has {cluster_nodes}")
    return out


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is wrong between a workload and a deployment. ``nothing_works``: no request of it can be served."""

    nothing_works: bool
    sentence: str


def workload_mismatch(
    workload: Workload, engine: str, max_model_len: int | None, apis: Sequence[str]
) -> Mismatch | None:
    """``apis``: names of the APIs the engine serves. None when the workload fits, as far as is known."""
    name = f"workload {workload.name!r}"
    if workload.api not in apis:
        return Mismatch(True, f"{name} asks for the API {workload.api!r}; {engine} has {', '.join(apis)}")
    if max_model_len is None:
        return None
    least, most = request_tokens(workload)
    if least > max_model_len:
        return Mismatch(True, f"{name} needs at least {least:,} tokens a request, max_model_len is {max_model_len:,}")
    if most is not None and most > max_model_len:
        longest = f"{name} has requests of up to {most:,} tokens, max_model_len is {max_model_len:,}"
        return Mismatch(False, f"{longest}: those will fail")
    return None


def request_tokens(workload: Workload) -> tuple[int, int | None]:
    """Prompt and answer together: least and most tokens of the longest request of a session; None: no limit is known.

    A conversation's last turn holds all turns before it.
    """
    turns = workload.turns if workload.kind == "conversations" else 1
    if workload.prompts is not None:
        return 1 + _least_output_tokens(workload, workload.prompts), None  # nobody counted the prompts' tokens
    assert workload.input_tokens is not None  # a workload has prompts or input_tokens
    bounds = [_bounds(workload.input_tokens), _bounds(workload.output_tokens)]
    least = workload.shared_prefix_tokens + turns * sum(low for low, _ in bounds)
    if any(high is None for _, high in bounds):
        return least, None
    return least, workload.shared_prefix_tokens + turns * sum(high or 0 for _, high in bounds)


def _least_output_tokens(workload: Workload, prompts: str) -> int:
    """The shortest answer any line asks for; one that names no number asks for the workload's."""
    default, _ = _bounds(workload.output_tokens)
    return min(default if named is None else named for named in summary(prompts).output_tokens)


def _bounds(lengths: Lengths) -> tuple[int, int | None]:
    if lengths.fixed is not None:
        return lengths.fixed, lengths.fixed
    if lengths.uniform is not None:
        return lengths.uniform.min, lengths.uniform.max
    assert lengths.lognormal is not None  # Lengths holds exactly one of the three
    return lengths.lognormal.min, lengths.lognormal.max

"""Can this deployment work at all? Answered from a model's config.json and an accelerator's data sheet, before any GPU.

``impossible`` is said only where the engine itself would refuse or cannot load; whatever merely looks tight is
``risky`` and runs last. What is asked of model, engine and device stands in ``rules.py``; here is the verdict, and what
nodes and workloads ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.catalog.models import ModelFacts
from orchestrator.plan.rules import ORDER, Finding, Status, case_of, findings_of
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import MOST_DEVICES, EngineSettings, Hardware


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The verdict, its sentences, and what the engine is predicted to report: the names of ``Engine.reported``.

    ``excluded``: a rule of the experiment leaves it out, nothing was judged. ``unserved``: names of workloads it cannot
    serve at all.
    """

    status: Status | Literal["excluded"]
    reasons: tuple[str, ...] = ()
    predicted: dict[str, Any] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()


def assess(
    settings: EngineSettings, facts: ModelFacts | None, hardware: Hardware, draft: ModelFacts | None = None
) -> Feasibility:
    """The verdict on one deployment. Pure, some 50 µs.

    ``facts`` come from ``model_facts(model, revision, hf_overrides)``; ``draft`` are those of a draft model.
    """
    if facts is None:
        unjudged = "its weights, KV cache and parallelism are not judged, and the nodes must be able to load it"
        return Feasibility("fits", (f"nothing is known of {settings.model} (no config.json at hand): {unjudged}",))
    case = case_of(settings, facts, hardware, draft)
    findings = sorted(findings_of(case), key=lambda finding: ORDER.index(finding.status))
    status = findings[0].status if findings else "fits"
    predicted = asdict(case.prediction)
    if (concurrency := case.prediction.max_concurrency) is not None:
        predicted["max_concurrency"] = round(concurrency, 2)
    if facts.sized:
        predicted["parameters"] = facts.parameters.total  # with its quantization: what answers are compared by
    if facts.quantization is not None:
        predicted["checkpoint_quantization"] = facts.quantization.method
    return Feasibility(status, tuple(finding.sentence for finding in findings), predicted)


def spread(settings: EngineSettings, hardware: Hardware) -> EngineSettings:
    """A replica that is larger than a node over as few as hold it: tensor parallelism within, stages across nodes.

    As it is where the settings say ``nnodes``, or where no number of nodes does that.
    """
    room = hardware.gpus_per_node or settings.world_size
    if "nnodes" in settings.model_fields_set or settings.world_size <= room or settings.data_parallel_size > 1:
        return settings
    stages = settings.pipeline_parallel_size
    fitting = (nodes for nodes in range(2, stages + 1) if stages % nodes == 0 and settings.world_size // nodes <= room)
    return settings.model_copy(update={"nnodes": next(fitting, 1)})


def placement_problems(settings: EngineSettings, hardware: Hardware, cluster_nodes: int | None = None) -> list[str]:
    """Why no nodes of this hardware hold a replica. ``cluster_nodes``: nodes of the cluster, None when not known."""
    out = []
    unit = "cores" if hardware.is_cpu else "GPUs"
    if (devices := settings.world_size * settings.replicas) > MOST_DEVICES:
        out.append(f"needs {devices:,} {unit} for all replicas; {MOST_DEVICES:,} are the most")
    if settings.world_size % settings.nnodes:
        sizes = {axis: getattr(settings, f"{axis}_parallel_size") for axis in ("tensor", "pipeline", "data")}
        parts = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
        devices_text = f"{settings.world_size} {unit} ({parts})" if parts else f"1 {unit[:-1]}"
        out.append(f"{devices_text} cannot be spread evenly over nnodes: {settings.nnodes}")
    if hardware.gpus_per_node is not None and settings.devices_per_node > hardware.gpus_per_node:
        nodes = -(-settings.world_size // hardware.gpus_per_node)
        there = f"a node of {hardware.name!r} has {hardware.gpus_per_node} (nnodes: {nodes} would spread it)"
        out.append(f"needs {settings.devices_per_node} {unit} on one node; {there}")
    if cluster_nodes is not None and (nodes := nodes_needed(settings, hardware)) > cluster_nodes:
        out.append(f"needs {nodes} nodes; the cluster has {cluster_nodes}")
    return out


def nodes_needed(settings: EngineSettings, hardware: Hardware) -> int:
    """Least nodes that hold all replicas; 0 for an endpoint. Several replicas share a node as far as it is known."""
    if settings.url:
        return 0
    room = (hardware.gpus_per_node or 0) // settings.devices_per_node  # replicas' parts on one node
    return max(settings.nnodes, -(-settings.replicas * settings.nnodes // room)) if room else settings.nnodes


def tokenizer_finding(settings: EngineSettings) -> Finding | None:
    """What is wrong with the files that load clients make prompts with, as far as this machine has them."""
    name = settings.tokenizer or settings.model
    if not Path(name).is_absolute():
        return None
    if settings.tokenizer and Path(name).is_file() and Path(name).suffix != ".json":
        return Finding("impossible", "tokenizer", f"{name} is no tokenizer.json, and prompts are made with it")
    if Path(name).is_dir() and not (Path(name) / "tokenizer.json").is_file():
        sentence = f"{name} holds no tokenizer.json, and prompts are made with it; give the setting 'tokenizer'"
        return Finding("impossible", "tokenizer", sentence)
    if Path(name).exists():
        return None
    sentence = f"{name} is not on this machine: clients that do not find it make prompts of about the length asked for"
    return Finding("fits", "tokenizer", sentence)


def workload_mismatch(
    workload: Workload, settings: EngineSettings, max_model_len: int | None, apis: Sequence[str]
) -> Finding | None:
    """Impossible when no request can be served, risky when some cannot; None when it fits, as far as is known.

    ``max_model_len``: what holds where the settings say nothing. ``apis``: names of the APIs the engine serves.
    """
    name = f"workload {workload.name!r}"
    if workload.api not in apis:
        sentence = f"{name} asks for the API {workload.api!r}; {settings.engine} has {', '.join(apis)}"
        return Finding("impossible", "api", sentence)
    if settings.max_input_len and (share := workload.longer_prompts(settings.max_input_len)):
        limit = f"max_input_len is {settings.max_input_len:,}"
        if share == 1:
            return Finding("impossible", "input_lengths", f"every prompt of {name} is longer, {limit}")
        sentence = f"about {max(share, 0.01):.0%} of the prompts of {name} are longer, {limit}: those will fail"
        return Finding("risky", "input_lengths", sentence)
    if max_model_len is None:
        return None
    least, most = workload.token_bounds()
    limit = f"max_model_len is {max_model_len:,}"
    if least > max_model_len:
        return Finding("impossible", "lengths", f"{name} needs at least {least:,} tokens a request, {limit}")
    if most is not None and most > max_model_len:
        sentence = f"{name} has requests of up to {most:,} tokens, {limit}: those will fail"
        return Finding("risky", "lengths", sentence)
    return None

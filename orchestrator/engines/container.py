"""The same command inside a container image: docker, podman or apptainer. Pure: words in, words out."""

from __future__ import annotations

import os
from dataclasses import replace

from orchestrator.engines.base import Command, Node
from orchestrator.engines.lease import node_path
from orchestrator.spec.settings import EngineSettings, Hardware

LABEL = "orchestrator.launch"
LEASES_LABEL = "orchestrator.leases"  # where the launch's lease lies: whose container it is
CACHE = "~/.cache/huggingface"
SHM = "16g"  # docker's 64 MB stop tensor parallelism; NCCL and the engines' own queues live there


def in_container(command: Command, settings: EngineSettings, hardware: Hardware, node: Node) -> Command:
    """``command`` as the runtime's command line.

    Values of the environment, secrets among them, reach the container by name: the runtime takes them from its own
    environment, so they stand in no argument and no file. The container runs under an init, is removed when it ends,
    and ``after`` ends it should its client die (a killed client leaves its container running).
    """
    assert settings.image is not None
    if (settings.container_runtime or "docker") == "apptainer":
        return _apptainer(command, settings.image, hardware, node)
    return _docker(command, settings.container_runtime or "docker", settings.image, hardware, node)


def mounts(command: Command, node: Node) -> list[tuple[str, str]]:
    """(path, mode) of what the container sees at the same path as the node: model, hub cache, the launch's folder."""
    cache = command.env.get("HF_HOME", os.path.expanduser(CACHE))
    found = [(cache, "rw"), (node.workdir, "rw")]
    return [*found, (node.model_path, "ro")] if os.path.isabs(node.model_path) else found


def _docker(command: Command, runtime: str, image: str, hardware: Hardware, node: Node) -> Command:
    name = f"orchestrator-{node.launch_id}-{node.port}-{node.rank}"  # the port tells replicas of one launch apart
    env = {key: value for key, value in command.env.items() if key != "CUDA_VISIBLE_DEVICES"}  # it sees only its own
    env.setdefault("HF_HOME", os.path.expanduser(CACHE))
    argv = [runtime, "run", "--rm", "--init", "--name", name, "--label", f"{LABEL}={node.launch_id}"]
    argv += ["--label", f"{LEASES_LABEL}={node_path('leases')}"]
    argv += ["--network", "host", "--ipc", "private", "--shm-size", SHM, *_gpus(runtime, hardware, node)]
    for path, mode in mounts(command, node):
        argv += ["--volume", f"{path}:{path}:{mode}"]
    for key in sorted({*env, *command.secrets}):
        argv += ["--env", key]
    argv += ["--workdir", node.workdir, "--entrypoint", command.argv[0], image, *command.argv[1:]]
    return replace(command, argv=tuple(argv), env=env, after=(runtime, "rm", "--force", name))


def _gpus(runtime: str, hardware: Hardware, node: Node) -> list[str]:
    if hardware.is_cpu:
        return []
    if runtime == "podman":
        return [word for device in node.devices for word in ("--device", f"nvidia.com/gpu={device}")]
    return ["--gpus", f'"device={",".join(node.devices)}"']


def _apptainer(command: Command, image: str, hardware: Hardware, node: Node) -> Command:
    """Its processes are children of the client and see the environment and the devices as they are."""
    argv = ["apptainer", "exec", *([] if hardware.is_cpu else ["--nv"]), "--pwd", node.workdir]
    for path, mode in mounts(command, node):
        argv += ["--bind", f"{path}:{path}:{mode}"]
    where = image if "://" in image or image.endswith(".sif") else f"docker://{image}"
    return replace(command, argv=(*argv, where, *command.argv))

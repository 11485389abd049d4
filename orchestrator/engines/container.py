"""The same command inside a container image: docker, podman or apptainer. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.engines.command import Command, Node
from orchestrator.engines.ownership import node_path
from orchestrator.spec.settings import EngineSettings, Hardware

LOCKS_LABEL = "orchestrator.locks"  # the folder with the launch's lock tells whose container it is
CACHE = "~/.cache/huggingface"
CACHES = ("HF_HOME", "HF_HUB_CACHE", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
FROM_THE_NODE = ("HF_ENDPOINT", "HF_TOKEN")  # inherited by an engine outside of a container; unset ones pass nothing
NETWORK = ("NCCL_", "RCCL_", "UCX_", "GLOO_", "FI_")  # how the variables start that say a node's network
INFINIBAND = "/dev/infiniband"
# NCCL needs its devices and memory that may be locked; without them it takes TCP and says so in its log alone.
RDMA = ("--device", INFINIBAND, "--ulimit", "memlock=-1", "--cap-add", "IPC_LOCK")
# https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/inference/vllm.html
ROCM = (
    *("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    *("--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
)
# What apptainer itself needs. Its container sees all that it is given, and there the node's paths mean nothing and the
# node's variables win over the image's own.
OF_APPTAINER = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_", "XDG_", "APPTAINER", "SINGULARITY", "DOCKER_", *FROM_THE_NODE),
    *NETWORK,
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
SHM = "16g"  # tensor parallelism fails with docker's 64 MB: NCCL and the engines' own queues live there


def in_container(command: Command, settings: EngineSettings, hardware: Hardware, node: Node) -> Command:
    """``command`` as the runtime's command line, where the settings name an image; else as it is.

    Values of the environment, secrets among them, reach the container by name: the runtime takes them from its own
    environment, so they stand in no argument and no file. The container runs under an init, is removed when it ends,
    and ``after`` ends it should its client die (a killed client leaves its container running).
    """
    if settings.image is None:
        return command
    node_has = {name: os.environ[name] for name in ("HF_HOME", "HF_HUB_CACHE") if os.environ.get(name)}
    env = {"HF_HOME": os.path.expanduser(CACHE)} | node_has | command.env
    caches = tuple(env[name] for name in CACHES if os.path.isabs(env.get(name, "")))
    command = replace(command, env=env, folders=caches)  # podman and apptainer refuse to mount what is not there
    writable = dict.fromkeys((*caches, node.workdir), "rw")
    mounts = dict.fromkeys(local_paths(settings, node), "ro") | writable
    own = (*hardware.container_args, *settings.container_args)
    if settings.container_runtime == "apptainer":
        return _apptainer(command, settings.image, hardware, node, mounts, own)
    return _docker(command, settings, hardware, node, mounts, own)


def is_docker(settings: EngineSettings) -> bool:
    """Whether a daemon starts it: its processes are no descendants of ours."""
    return settings.image is not None and settings.container_runtime in (None, "docker")


def local_paths(settings: EngineSettings, node: Node) -> list[str]:
    """Absolute paths that the settings name, which the container must see under the same paths."""
    spec = settings.speculative
    named = (node.model_path, settings.tokenizer, spec and spec.model)
    return [path for path in named if path and os.path.isabs(path)]


def container_name(node: Node) -> str:
    """Unique on the node: the port tells replicas of one launch apart."""
    return f"orchestrator-{node.launch_id}-{node.port}-{node.rank}"


def launch_of(name: str) -> str:
    """The launch id in a container's name."""
    return name.removeprefix("orchestrator-").rsplit("-", 2)[0]


def _docker(
    command: Command,
    settings: EngineSettings,
    hardware: Hardware,
    node: Node,
    mounts: Mapping[str, str],
    own: Sequence[str],
) -> Command:
    name, runtime, image = container_name(node), settings.container_runtime or "docker", settings.image or ""
    env = {key: value for key, value in command.env.items() if key != "CUDA_VISIBLE_DEVICES"}  # it sees only its own
    argv = [runtime, "run", "--rm", "--init", "--name", name, "--label", f"{LOCKS_LABEL}={node_path('locks')}"]
    argv += ["--network", "host", "--ipc", "private", "--shm-size", SHM, *_gpus(runtime, hardware, node)]
    if runtime == "docker" and node.cores:  # its daemon starts the engine, so our own affinity is not inherited
        argv += ["--cpuset-cpus", ",".join(map(str, node.cores))]
    for path, mode in mounts.items():
        argv += ["--volume", f"{path}:{path}:{mode}"]
    for key in sorted(
        {*env, *command.secrets, *FROM_THE_NODE, *(key for key in os.environ if key.startswith(NETWORK))}
    ):
        argv += ["--env", key]
    argv += [*own, "--workdir", node.workdir, "--entrypoint", command.argv[0], image, *command.argv[1:]]
    return replace(command, argv=tuple(argv), env=env, after=(runtime, "rm", "--force", name))


def _gpus(runtime: str, hardware: Hardware, node: Node) -> list[str]:
    """Its GPUs, and InfiniBand where the node has it. ROCm's are all there: HIP_VISIBLE_DEVICES chooses among them."""
    if hardware.is_cpu or not node.devices:
        return []
    rdma = RDMA if os.path.isdir(INFINIBAND) else ()
    if hardware.is_amd:
        return [*ROCM, *rdma]
    if runtime == "podman":
        return [*(word for device in node.devices for word in ("--device", f"nvidia.com/gpu={device}")), *rdma]
    return ["--gpus", f'"device={",".join(node.devices)}"', *rdma]


def _apptainer(
    command: Command, image: str, hardware: Hardware, node: Node, mounts: Mapping[str, str], own: Sequence[str]
) -> Command:
    """Its processes are children of the client and see the node's devices, /dev/shm and home as they are.

    The home stays: an image is read-only, and engines cache what they compile below it. But the Python packages that
    a user installed there would come before the image's own.
    """
    gpus = [] if hardware.is_cpu else ["--rocm" if hardware.is_amd else "--nv"]
    argv = ["apptainer", "exec", *gpus, "--pwd", node.workdir]
    for path, mode in mounts.items():
        argv += ["--bind", f"{path}:{path}:{mode}"]
    is_place = "://" in image or image.endswith(".sif") or os.path.isabs(image)  # a folder: a sandbox
    where = image if is_place else f"docker://{image}"
    env = {"PYTHONNOUSERSITE": "1"} | command.env
    return replace(command, argv=(*argv, *own, where, *command.argv), env=env, inherits=OF_APPTAINER)

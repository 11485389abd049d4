"""Wraps an engine's command to run in a container image with docker, podman or apptainer. Pure
functions.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.base.folders import node_path
from orchestrator.engines.command import Command, Node
from orchestrator.spec.settings import EngineSettings, Hardware

# The label of our containers. Its value is the folder with the launch's lock, which shows whose it
# is.
LOCKS_LABEL = "orchestrator.locks"
CACHE = "~/.cache/huggingface"
CACHES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "VLLM_CACHE_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
FROM_THE_NODE = ("HF_ENDPOINT", "HF_TOKEN")  # passed on if the node has them
NETWORK = ("NCCL_", "RCCL_", "UCX_", "GLOO_", "FI_")  # prefixes of variables about a node's network
INFINIBAND = "/dev/infiniband"
# NCCL needs these devices and lockable memory; without them it falls back to TCP, which only its
# log shows.
RDMA = ("--device", INFINIBAND, "--ulimit", "memlock=-1", "--cap-add", "IPC_LOCK")
# https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/inference/vllm.html
ROCM = (
    *("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    *("--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
)
# Variables that apptainer itself needs. It gets no others: the container would inherit them, though
# the node's paths mean nothing there and the node's values would override the image's.
OF_APPTAINER = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_",
    "XDG_",
    "APPTAINER",
    "SINGULARITY",
    "DOCKER_",
    *FROM_THE_NODE,
    *NETWORK,
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
SHM = "16g"  # for NCCL and the engines' queues; tensor parallelism fails with docker's 64 MB


def in_container(
    command: Command, settings: EngineSettings, hardware: Hardware, node: Node
) -> Command:
    """``command`` as the runtime's command line if the settings name an image, else unchanged.

    Environment variables, secrets included, are passed by name: the runtime reads the values from
    its own environment, so no argument or file contains them. The container runs under an init and
    is removed when it ends. If the runtime's client is killed, the container lives on; then the
    command ``after`` removes it.
    """
    if settings.image is None:
        return command
    env = {"HF_HOME": os.path.expanduser(CACHE)}
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        if os.environ.get(name):
            env[name] = os.environ[name]
    env |= command.env
    cache_folders = [env.get(name, "") for name in CACHES]
    caches = tuple(folder for folder in cache_folders if os.path.isabs(folder))
    # podman and apptainer mount only what exists
    command = replace(command, env=env, folders=caches)
    mounts = dict.fromkeys(local_paths(settings, node), "ro")
    mounts |= dict.fromkeys((*caches, node.workdir), "rw")
    options = (*hardware.container_args, *settings.container_args)
    if settings.container_runtime == "apptainer":
        return _apptainer(command, settings.image, hardware, node, mounts, options)
    return _docker(command, settings, hardware, node, mounts, options)


def is_docker(settings: EngineSettings) -> bool:
    """Whether docker's daemon runs it, so that its processes are not our descendants."""
    return settings.image is not None and settings.container_runtime in (None, "docker")


def image_query(settings: EngineSettings) -> list[tuple[str, ...]]:
    """Commands that print which content the image has, in this order: its digest in the registry,
    or the id of one that was built here. Empty without an image, and for apptainer, whose images
    are files.
    """
    if settings.image is None or settings.container_runtime == "apptainer":
        return []
    inspect = (settings.container_runtime or "docker", "image", "inspect", "--format")
    return [
        (*inspect, "{{index .RepoDigests 0}}", settings.image),
        (*inspect, "{{.Id}}", settings.image),
    ]


def local_paths(settings: EngineSettings, node: Node) -> list[str]:
    """Absolute paths in the settings, which must exist in the container too."""
    places = [node.model_path, settings.tokenizer]
    if settings.speculative is not None:
        places.append(settings.speculative.model)
    places += (settings.lora_modules or {}).values()
    return [place for place in places if place and os.path.isabs(place)]


def container_name(node: Node) -> str:
    """A name unique on the node: replicas of one launch differ in their port."""
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
    options: Sequence[str],
) -> Command:
    """The command line of docker or podman. ``mounts``: path -> ro or rw. ``options``: those of the
    user.
    """
    runtime = settings.container_runtime or "docker"
    image = settings.image or ""
    name = container_name(node)
    # a container counts its GPUs (``_gpus``) from 0: the node's numbers would be wrong
    env = {key: value for key, value in command.env.items() if key != "CUDA_VISIBLE_DEVICES"}
    argv = [runtime, "run", "--rm", "--init", "--name", name]
    argv += ["--label", f"{LOCKS_LABEL}={node_path('locks')}"]
    argv += ["--network", "host", "--ipc", "private", "--shm-size", SHM]
    argv += _gpus(runtime, hardware, node)
    if runtime == "docker" and node.cores:  # the daemon's child does not inherit our affinity
        argv += ["--cpuset-cpus", ",".join(map(str, node.cores))]
    # we read its output; the runtime would keep a copy of its own, without a limit
    argv += ["--log-driver", "none"]
    for path, mode in mounts.items():
        argv += ["--volume", f"{path}:{path}:{mode}"]
    about_network = [variable for variable in os.environ if variable.startswith(NETWORK)]
    for variable in sorted({*env, *command.secrets, *FROM_THE_NODE, *about_network}):
        argv += ["--env", variable]
    argv += [*options, "--workdir", node.workdir]
    argv += ["--entrypoint", command.argv[0], image, *command.argv[1:]]
    return replace(command, argv=tuple(argv), env=env, after=(runtime, "rm", "--force", name))


def _gpus(runtime: str, hardware: Hardware, node: Node) -> list[str]:
    """Options for GPUs, and for InfiniBand if the node has it. HIP_VISIBLE_DEVICES chooses among
    ROCm's GPUs.
    """
    if hardware.is_cpu or not node.devices:
        return []
    rdma = RDMA if os.path.isdir(INFINIBAND) else ()
    if hardware.is_amd:
        return [*ROCM, *rdma]
    if runtime == "podman":
        devices = []
        for device in node.devices:
            devices += ["--device", f"nvidia.com/gpu={device}"]
        return [*devices, *rdma]
    return ["--gpus", f'"device={",".join(node.devices)}"', *rdma]


def _apptainer(
    command: Command,
    image: str,
    hardware: Hardware,
    node: Node,
    mounts: Mapping[str, str],
    options: Sequence[str],
) -> Command:
    """The command line of apptainer. ``mounts``: path -> ro or rw. ``options``: those of the user.

    The container's processes are children of the client and see the node's devices, /dev/shm and
    home folder. They need the home folder: images are read-only, and engines cache compiled code
    there. Python packages that the user installed there are hidden, since they would override the
    image's own.
    """
    argv = ["apptainer", "exec"]
    if not hardware.is_cpu:
        argv.append("--rocm" if hardware.is_amd else "--nv")
    argv += ["--pwd", node.workdir]
    for path, mode in mounts.items():
        argv += ["--bind", f"{path}:{path}:{mode}"]
    is_file_or_folder = image.endswith(".sif") or os.path.isabs(image)  # a folder is a sandbox
    has_scheme = "://" in image
    source = image if has_scheme or is_file_or_folder else f"docker://{image}"
    return replace(
        command,
        argv=(*argv, *options, source, *command.argv),
        env={"PYTHONNOUSERSITE": "1"} | command.env,
        inherits=OF_APPTAINER,
    )

"""Containers: golden command lines of docker, podman and apptainer, with no secret in any of them."""

from __future__ import annotations

import itertools
import shlex

import pytest
from pydantic import ValidationError

from orchestrator.base.folders import node_path
from orchestrator.engines.command import Command, Node
from orchestrator.engines.container import container_name, image_query, in_container, launch_of
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.container_options import option_problem
from orchestrator.spec.settings import EngineSettings, Hardware

CPU = Hardware(name="cpu")
MI300X = Hardware(name="mi", accelerator="MI300X", gpus_per_node=8)
# https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/inference/vllm.html and
# https://rocm.docs.amd.com/en/7.12.0-preview/rocm-for-ai/vllm.html, "Start the Docker container";
# what is ours to say (names, terminals, mounts, memory shared with the host) left out
DOCUMENTED_ROCM = (
    "--network=host --group-add=video --cap-add=SYS_PTRACE --security-opt=seccomp=unconfined "
    "--device=/dev/kfd "
    "--device=/dev/dri"
)
H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
NODE = Node(
    rank=1, workdir="/run/l", launch_id="01L", devices=("0", "3"), model_path="/models/tiny"
)
INSIDE = Command(
    ("vllm", "serve", "/models/tiny"),
    {"CUDA_VISIBLE_DEVICES": "0,3", "HF_HOME": "/hub", "A": "b c"},
    {"KEY": "s3"},
)


def made(
    runtime: str | None, hardware: Hardware = H100, node: Node = NODE, image: str = "vllm/vllm:1"
) -> Command:
    given = {"engine": "vllm", "model": "m", "image": image, "container_runtime": runtime}
    return in_container(INSIDE, EngineSettings.model_validate(given), hardware, node)


@pytest.mark.parametrize("runtime", [None, "docker"])
def test_golden_docker(runtime: str | None) -> None:
    command = made(runtime)
    assert shlex.join(command.argv) == (
        "docker run --rm --init --name orchestrator-01L-8000-1 "
        f"--label orchestrator.locks={node_path('locks')} --network host --ipc private --shm-size "
        "16g "
        "--gpus '\"device=0,3\"' --log-driver none --volume /models/tiny:/models/tiny:ro --volume "
        "/hub:/hub:rw "
        "--volume /run/l:/run/l:rw --env A --env HF_ENDPOINT --env HF_HOME --env HF_TOKEN --env "
        "KEY --workdir /run/l "
        "--entrypoint vllm vllm/vllm:1 serve /models/tiny"
    )
    assert command.after == ("docker", "rm", "--force", "orchestrator-01L-8000-1")
    assert command.env == {"HF_HOME": "/hub", "A": "b c"}, (
        "GPUs are renumbered inside, so the list of ids is not passed"
    )
    assert command.secrets == {"KEY": "s3"}


def test_golden_podman() -> None:
    command = made("podman")
    assert "--device nvidia.com/gpu=0 --device nvidia.com/gpu=3" in shlex.join(command.argv)
    assert command.argv[0] == command.after[0] == "podman"


def test_golden_apptainer() -> None:
    command = made("apptainer")
    assert shlex.join(command.argv) == (
        "apptainer exec --nv --pwd /run/l --bind /models/tiny:/models/tiny:ro "
        "--bind /hub:/hub:rw --bind /run/l:/run/l:rw docker://vllm/vllm:1 vllm serve /models/tiny"
    )
    assert command.env == {"PYTHONNOUSERSITE": "1"} | INSIDE.env, (
        "packages in the user's home come before the image's"
    )
    assert command.secrets == {"KEY": "s3"}
    assert command.after == ()


@pytest.mark.parametrize("image", ["/i/vllm.sif", "/i/sandbox", "oras://acme/vllm:1"])
def test_apptainer_takes_files_folders_and_addresses_as_they_stand(image: str) -> None:
    assert image in made("apptainer", image=image).argv


def test_apptainer_inherits_the_variables_that_it_needs_and_no_paths() -> None:
    wanted = made("apptainer").inherits
    assert wanted is not None
    for name in ("PATH", "HOME", "APPTAINER_CACHEDIR", "HTTPS_PROXY", "https_proxy", "HF_TOKEN"):
        assert name.startswith(wanted)
    for name in (
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "SSL_CERT_FILE",
        "TMPDIR",
        "VLLM_USE_V1",
    ):
        assert not name.startswith(wanted)
    assert made("podman").inherits is None, "its containers see what is named to it"


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_a_cpu_gets_no_gpu_flags_and_a_hub_model_no_mount(runtime: str) -> None:
    node = Node(workdir="/run/l", launch_id="01L", model_path="acme/tiny")
    line = shlex.join(made(runtime, CPU, node).argv)
    assert "gpu" not in line
    assert "--nv" not in line
    assert ":ro" not in line


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_secrets_travel_by_name(runtime: str) -> None:
    command = made(runtime)
    assert "s3" not in command.argv
    assert "s3" not in " ".join(
        [*command.argv, *command.env.values(), *command.files.values(), *command.after]
    )


def test_a_container_shares_the_hub_cache_of_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    command = in_container(
        Command(("vllm",)),
        EngineSettings(engine="vllm", model="m", image="i"),
        CPU,
        Node(workdir="/w", launch_id="l"),
    )
    assert command.env["HF_HOME"] == "/home/me/.cache/huggingface"
    assert "/home/me/.cache/huggingface:/home/me/.cache/huggingface:rw" in command.argv
    assert command.folders == ("/home/me/.cache/huggingface",), (
        "podman mounts nothing that is not there"
    )


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_every_local_path_that_the_settings_name_is_seen_inside(runtime: str) -> None:
    settings = EngineSettings.model_validate(
        {
            "engine": "vllm", "model": "m", "image": "i", "container_runtime": runtime, "tokenizer": "/t",
            "speculative": {"method": "draft_model", "num_speculative_tokens": 2, "model": "/draft"},
        }
    )  # fmt: skip
    inside = Command(("vllm",), {"VLLM_CACHE_ROOT": "/caches/vllm", "TRITON_CACHE_DIR": "relative"})
    line = shlex.join(in_container(inside, settings, CPU, NODE).argv)
    for path in ("/models/tiny", "/t", "/draft"):
        assert f" {path}:{path}:ro" in line
    assert " /caches/vllm:/caches/vllm:rw" in line
    assert "relative" not in line


@pytest.mark.parametrize("launch_id", ["01L", "a-b-c", "x.y_z"])
def test_a_containers_name_tells_its_launch(launch_id: str) -> None:
    name = container_name(Node(launch_id=launch_id, port=8000, rank=3))
    assert name == f"orchestrator-{launch_id}-8000-3"
    assert launch_of(name) == launch_id


def test_docker_binds_the_engine_to_its_cores_and_podman_inherits_them() -> None:
    node = Node(workdir="/w", launch_id="l", cores=(2, 3))
    assert "--cpuset-cpus 2,3" in shlex.join(made("docker", CPU, node).argv)
    assert "--cpuset-cpus" not in made("podman", CPU, node).argv


@pytest.fixture
def infiniband(monkeypatch: pytest.MonkeyPatch) -> None:
    # a folder that every node has
    monkeypatch.setattr("orchestrator.engines.container.INFINIBAND", "/")


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_amd_gpus_get_the_devices_and_the_variable_that_rocm_documents(
    runtime: str,
) -> None:
    settings = EngineSettings(
        engine="vllm", model="m", image="rocm/vllm:1", container_runtime=runtime
    )  # type: ignore[arg-type]
    command = ENGINES["vllm"].command(settings, MI300X, NODE, "k3y")
    options_with_values = {f"{flag}={value}" for flag, value in itertools.pairwise(command.argv)}
    assert set(DOCUMENTED_ROCM.split()) <= options_with_values
    assert "--env=HIP_VISIBLE_DEVICES" in options_with_values
    assert command.env["HIP_VISIBLE_DEVICES"] == "0,3"
    assert "CUDA_VISIBLE_DEVICES" not in command.env, "vLLM refuses to start where the two differ"
    assert "--gpus" not in command.argv
    assert "nvidia" not in shlex.join(command.argv)


def test_amds_gpus_without_an_image_and_in_apptainer() -> None:
    bare = ENGINES["vllm"].command(EngineSettings(engine="vllm", model="m"), MI300X, NODE, "k")
    assert bare.env["HIP_VISIBLE_DEVICES"] == "0,3"
    assert made("apptainer", MI300X).argv[:3] == ("apptainer", "exec", "--rocm")


@pytest.mark.usefixtures("infiniband")
@pytest.mark.parametrize("hardware", [H100, MI300X])
def test_a_container_sees_the_nodes_infiniband_where_there_is_one(hardware: Hardware) -> None:
    line = shlex.join(made("docker", hardware).argv)
    assert "--device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK" in line
    assert "infiniband" not in shlex.join(made("docker", CPU).argv)


def test_variables_of_a_nodes_network_reach_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    assert "--env NCCL_IB_HCA" in shlex.join(made("docker").argv)
    assert "NCCL_IB_HCA".startswith(made("apptainer").inherits or ())


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_words_of_the_hardware_and_of_the_deployment_stand_before_the_image(runtime: str) -> None:
    hardware = H100.model_copy(update={"container_args": ("--device", "/dev/gdrdrv")})
    given = {"image": "i.sif", "container_runtime": runtime, "container_args": ["--ulimit=core=0"]}
    settings = EngineSettings.model_validate({"engine": "vllm", "model": "m"} | given)
    argv = in_container(INSIDE, settings, hardware, NODE).argv
    at = argv.index("/dev/gdrdrv")
    assert argv[at - 1 : at + 2] == ("--device", "/dev/gdrdrv", "--ulimit=core=0")
    assert at < next(index for index, word in enumerate(argv) if word.endswith("i.sif"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["/dev/x"], "would be read as the image"),
        (["--name", "x"], "--name: this program sets that itself"),
        (["-a", "stdin"], "-a: this program sets that itself"),
        (["--ulimit=core=0", "--network=none"], "--network=none: this program sets that itself"),
        (["-dit"], "-dit: this program sets that itself"),
        (["--device", "/dev/x", "--ulimit"], "--ulimit needs a value"),
        (["--ulimit", "--device", "/dev/x"], "--ulimit needs a value"),
        (["-v"], "-v needs a value"),
        (["--privileged", "/dev/x"], "'/dev/x' would be read as the image"),
        (["--"], "'--' would be read as the image"),
        (
            ["--ulimits", "core=0"],
            "--ulimits: docker is not known to have it; if yours has, write it as one word",
        ),
        (["--env\nx"], "one line"),
    ],
)
def test_words_that_would_take_the_container_away_are_refused(
    words: list[str], sentence: str
) -> None:
    for kind, given in (
        (EngineSettings, {"engine": "vllm", "model": "m", "image": "i"}),
        (Hardware, {"name": "h"}),
    ):
        with pytest.raises(ValidationError, match=sentence):
            kind.model_validate(given | {"container_args": words})


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        (
            "docker",
            (
                "-v/data:/data:ro",
                "-e=A=b",
                "--memory-swap",
                "-1",
                "--privileged",
                "--a-newer-one=3",
                "-Pq",
            ),
        ),
        ("podman", ("--tls-verify=false", "--no-hosts", "-m", "8g", "--env-host")),
        (
            "apptainer",
            ("--fakeroot", "-B", "/a:/b", "-ce", "--env", "A=b", "-W", "/scratch", "--nvccli"),
        ),
    ],
)
def test_whole_options_are_taken(runtime: str, words: tuple[str, ...]) -> None:
    assert option_problem(words, runtime) is None
    given = {
        "engine": "vllm",
        "model": "m",
        "image": "i.sif",
        "container_runtime": runtime,
        "container_args": words,
    }
    assert problems_of(ENGINES["vllm"], EngineSettings.model_validate(given), H100) == []


def test_options_of_another_runtime_are_a_problem_of_the_deployment() -> None:
    given = {"engine": "vllm", "model": "m", "image": "i", "container_args": ["--no-hosts"]}
    (problem,) = problems_of(ENGINES["vllm"], EngineSettings.model_validate(given), H100)
    assert problem.startswith("container_args: --no-hosts: docker is not known to have it")
    hardware = H100.model_copy(update={"container_args": ("--fakeroot",)})
    assert "--fakeroot" in "\n".join(
        problems_of(ENGINES["vllm"], EngineSettings.model_validate(given), hardware)
    )


@pytest.mark.parametrize(
    "words", [("-e", "CUDA_VISIBLE_DEVICES=0"), ("--env=NVIDIA_VISIBLE_DEVICES=all",)]
)
def test_a_container_cannot_choose_other_devices(words: tuple[str, ...]) -> None:
    made = EngineSettings(engine="vllm", model="m", image="i", container_args=words)
    assert "the cluster gives the devices" in "\n".join(problems_of(ENGINES["vllm"], made, H100))
    assert problems_of(ENGINES["vllm"], made, CPU) == [], (
        "none are given there: NVIDIA_VISIBLE_DEVICES=void keeps them out"
    )


def test_words_for_a_container_need_an_image() -> None:
    settings = EngineSettings(engine="vllm", model="m", container_args=("--privileged",))
    assert "container_args: these are for an image" in "\n".join(
        problems_of(ENGINES["vllm"], settings, H100)
    )


def test_an_image_is_asked_for_its_digest_and_then_for_its_id() -> None:
    settings = EngineSettings(engine="vllm", model="some/model", image="vllm/vllm-openai:v0.33")
    digest, image_id = image_query(settings)
    assert digest[:3] == ("docker", "image", "inspect")
    assert digest[-2:] == ("{{index .RepoDigests 0}}", "vllm/vllm-openai:v0.33")
    assert image_id[-2:] == ("{{.Id}}", "vllm/vllm-openai:v0.33")
    podman = settings.model_copy(update={"container_runtime": "podman"})
    assert image_query(podman)[0][0] == "podman"
    apptainer = settings.model_copy(update={"container_runtime": "apptainer"})
    assert image_query(apptainer) == []

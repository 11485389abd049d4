"""The cluster files that are shipped, checked without a cloud; each check also has broken files,
which it refuses.

What runs on this machine is run: the local files and Slurm in tests/cluster/test_local_files.py.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cluster import notices
from orchestrator.cluster.notices import NOTICE_FILE
from orchestrator.cluster.ray.actors import RayClientHost, RayEngineHost
from orchestrator.node.leases import FIRST_PORT, LAST_PORT
from scripts import install_engines
from tests.documentation.blocks import blocks
from tests.harness import ROOT
from tests.integration import cluster_checks as checks

CLUSTERS = ROOT / "clusters"
UP = ("aws", "gcp", "azure", "local/autoscaling")
KUBERAY = ("kuberay-rayjob", "kuberay-raycluster")


def text(name: str) -> str:
    return (CLUSTERS / name).read_text()


def cluster_files() -> dict[Path, str]:
    """The contents of all files that are shipped for clusters."""
    return {path: path.read_text() for path in CLUSTERS.rglob("*") if path.is_file()}


def load(name: str) -> Any:
    return yaml.safe_load(text(f"{name}.yaml"))


def ray_documents(name: str) -> list[dict[str, Any]]:
    """The documents of a file that KubeRay's operator reads."""
    documents = yaml.safe_load_all(text(f"{name}.yaml"))
    return [document for document in documents if document["kind"].startswith("Ray")]


def changed(config: Any, path: str, value: object) -> Any:
    """A copy with this value at the path of keys and indices, whether there was one or not."""
    copied = copy.deepcopy(config)
    *above, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    holder = copied
    for part in above:
        holder = holder[part]
    holder[last] = value
    return copied


@pytest.mark.parametrize("name", UP)
def test_a_file_for_ray_up_passes_rays_own_check_and_its_clouds(name: str) -> None:
    assert checks.ray_up(load(name)) == []


NODE = "available_node_types/h100_spot/node_config"


@pytest.mark.parametrize(
    ("name", "path", "value", "problem"),
    [
        ("aws", "upscaling_sped", 1, "Ray refuses it"),
        ("aws", "available_node_types/h100_spot/resources/GPU", 7.5, "Ray refuses it"),
        ("aws", "available_node_types/h100_spot/labels/market", 1, "Ray refuses it"),
        ("aws", "head_node_type", "haed", "Ray refuses it"),
        ("aws", f"{NODE}/InstanceTyp", "p5.48xlarge", "InstanceTyp"),
        ("aws", f"{NODE}/InstanceType", "p5.49xlarge", "'p5.49xlarge' is no InstanceType"),
        ("aws", f"{NODE}/InstanceMarketOptions/MarketType", "SPOT", "'SPOT' is no MarketType"),
        ("aws", f"{NODE}/BlockDeviceMappings/0/Ebs/VolumeSize", "200", "Ebs.VolumeSize"),
        ("aws", f"{NODE}/BlockDeviceMappings/0/Ebs/VolumeType", "gp33", "'gp33' is no VolumeType"),
        ("aws", f"{NODE}/IamInstanceProfile", {}, "h100_spot: its nodes have no credentials"),
        (
            "aws",
            "available_node_types/head/node_config",
            {"InstanceType": "m7i.2xlarge"},
            "may pass no other role",
        ),
        (
            "aws",
            "available_node_types/h100_spot/labels/accelerator",
            "H1000",
            "'H1000' is not in the catalogue",
        ),
        ("aws", "available_node_types/h100_spot/labels/a b", "c", "a b"),
        ("aws", "available_node_types/h100_spot/idle_timeout_s", 300, "weights may take"),
        ("aws", "initialization_commands/0", "if true; then", "bash: "),
        ("gcp", f"{NODE}/machinetype", "a3-highgpu-8g", "node_config.machinetype is unknown"),
        ("gcp", f"{NODE}/scheduling/provisioningModel", "spot", "'spot', not one of"),
        (
            "gcp",
            f"{NODE}/scheduling",
            [{"preemptible": True}],
            "scheduling is [{'preemptible': True}], not an object",
        ),
        (
            "gcp",
            "initialization_commands",
            ["sudo mkdir /mnt/weights"],
            "h100_spot: its containers would start before",
        ),
        (
            "gcp",
            f"{NODE}/disks/0/initializeParams/diskSizeGb",
            200,
            "diskSizeGb is 200, not a string",
        ),
        (
            "azure",
            f"{NODE}/azure_arm_parameters/prioritty",
            "Spot",
            "azure_arm_parameters.prioritty is unknown",
        ),
        (
            "azure",
            f"{NODE}/azure_arm_parameters/priority",
            "spot",
            "priority is 'spot', not one of",
        ),
        (
            "azure",
            f"{NODE}/azure_arm_parameters/evictionPolicy",
            "Deleted",
            "evictionPolicy is 'Deleted', not one of",
        ),
        ("azure", "file_mounts", {}, "h100_ondemand: its nodes have no credentials"),
        ("azure", f"{NODE}/azure_arm_parameters/imageSku", 2204, "imageSku is 2204, not a string"),
        (
            "azure",
            f"{NODE}/vmSize",
            "Standard_ND96isr_H100_v5",
            "vmSize is unknown beside azure_arm_parameters",
        ),
    ],
)
def test_a_broken_file_for_ray_up_is_refused(
    name: str, path: str, value: object, problem: str
) -> None:
    assert problem in " ".join(checks.ray_up(changed(load(name), path, value)))


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_a_line_that_is_a_comment_brings_the_token_for_gated_models(name: str) -> None:
    comment = "  # /home/ray/.ray/hf_token: ~/.cache/huggingface/token "
    line = comment.replace("# ", "")
    config = yaml.safe_load(text(f"{name}.yaml").replace(comment, line))
    assert checks.ray_up(config) == []
    mounts = config["file_mounts"].items()
    (token,) = [remote for remote, local in mounts if local.endswith("/token")]
    assert f"-e HF_TOKEN_PATH={token}" in config["docker"]["run_options"]


@pytest.mark.parametrize(("vendor", "calls"), [("0x10de", 3), ("0x1af4", 0)])
def test_a_node_with_gpus_waits_for_its_driver_and_one_without_does_not(
    vendor: str, calls: int, tmp_path: Path
) -> None:
    """The head, which has no GPU, runs the same command."""
    device = tmp_path / "sys/bus/pci/devices/0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    log = tmp_path / "calls"
    log.touch()
    programs = {
        "nvidia-smi": f"echo called >> {log}; [ $(wc -l < {log}) = 3 ]",  # fails until its third call
        "sleep": "",
    }
    for name, script in programs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    command = load("gcp")["initialization_commands"][0].replace("/sys/", f"{tmp_path}/sys/")
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], env={"PATH": path}, timeout=30, check=True)
    assert len(log.read_text().splitlines()) == calls


def test_a_file_without_setup_commands_would_install_a_nightly_ray() -> None:
    config = load("aws")
    del config["setup_commands"]
    assert "a nightly Ray is installed" in " ".join(checks.ray_up(config))


@pytest.mark.parametrize("name", KUBERAY)
def test_a_kuberay_file_holds_pods_that_kubernetes_knows_and_the_operators_rules(name: str) -> None:
    for document in yaml.safe_load_all(text(f"{name}.yaml")):
        assert checks.pods(document) == []
    (document,) = ray_documents(name)
    assert checks.kuberay_rules(document) == []


@pytest.mark.parametrize("name", KUBERAY)
def test_a_kuberay_file_holds_kuberays_definition_read_strictly(name: str) -> None:
    (document,) = ray_documents(name)
    assert checks.kuberay_schema(document) == []


def test_jobs_and_clusters_are_deleted_without_the_volume_that_they_share() -> None:
    (claim,) = yaml.safe_load_all(text("kuberay-weights.yaml"))
    assert checks.pods(claim) == []
    assert claim["kind"] == "PersistentVolumeClaim"
    for name in KUBERAY:
        (document,) = yaml.safe_load_all(text(f"{name}.yaml"))
        _, *worker_groups = checks.groups(document)
        for _, group in worker_groups:
            volumes = group["template"]["spec"]["volumes"]
            claims = [
                volume["persistentVolumeClaim"] for volume in volumes if volume["name"] == "weights"
            ]
            assert claims == [{"claimName": claim["metadata"]["name"]}]


def test_who_submits_to_the_cluster_that_stays_has_the_token_that_kuberay_made() -> None:
    (document,) = ray_documents("kuberay-raycluster")
    assert document["spec"]["authOptions"] == {"mode": "token"}
    lines = text("kuberay-raycluster.yaml").splitlines()
    header = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    (export_at,) = [at for at, line in enumerate(header) if line.startswith("export")]
    assert any(line.startswith("ray job submit") for line in header[export_at:])
    # KubeRay names the secret as the cluster, and the key in it auth_token
    asks_for_secret = f"get secret {document['metadata']['name']} -o jsonpath={{.data.auth_token}}"
    in_base64 = base64.b64encode(b"my token").decode()
    kubectl = f'kubectl() {{ [ "$*" = "{asks_for_secret}" ] && printf %s {in_base64}; }}'
    script = f"{kubectl}\n{header[export_at]}\necho $RAY_AUTH_MODE, $RAY_AUTH_TOKEN"
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout == "token, my token\n"


def network_policy() -> dict[str, Any]:
    """The NetworkPolicy of the page on what listens where."""
    page = ROOT / "docs" / "reference" / "listeners.md"
    texts = [block.text for block in blocks(page) if "kind: NetworkPolicy" in block.text]
    (document,) = [yaml.safe_load(text) for text in texts]
    assert isinstance(document, dict)
    return document


def test_the_network_policy_of_the_documentation_is_one_that_kubernetes_knows() -> None:
    document = network_policy()
    assert document["apiVersion"] == "networking.k8s.io/v1"
    assert checks.pods(document) == []
    broken = changed(document, "spec/ingress/1/port", [{"port": 8265}])
    assert checks.pods(broken) == ["NetworkPolicy.spec.ingress.1.port is unknown"]


GROUP = "spec/rayClusterSpec/workerGroupSpecs/0"
CONTAINER = f"{GROUP}/template/spec/containers/0"


@pytest.mark.parametrize(
    ("check", "path", "value", "problem"),
    [
        (checks.pods, f"{CONTAINER}/imag", "x", "containers.0.imag is unknown"),
        (checks.pods, f"{CONTAINER}/env/0/value", 0, "env.0.value is 0, not a str"),
        (checks.pods, f"{CONTAINER}/resources/limits/nvidia.com~gpu", 8, "is 8, not a str"),
        (
            checks.pods,
            f"{GROUP}/template/spec/terminationGracePeriodSeconds",
            "120",
            "'120', not a int",
        ),
        (
            checks.kuberay_schema,
            f"{GROUP}/idleTimeoutSecond",
            1800,
            "'idleTimeoutSecond' was unexpected",
        ),
        (checks.kuberay_schema, "spec/backofLimit", 1, "'backofLimit' was unexpected"),
        (
            checks.kuberay_schema,
            f"{GROUP}/rayStartParams/min-worker-port",
            10002,
            "10002 is not of type 'string'",
        ),
        (checks.kuberay_schema, f"{CONTAINER}/imag", "x", "'imag' was unexpected"),
        (checks.kuberay_schema, f"{GROUP}/groupName", None, "None is not of type 'string'"),
        (checks.kuberay_schema, "apiVersion", "ray.io/v1alpha1", "not ray.io/v1"),
        (checks.kuberay_rules, f"{GROUP}/idleTimeoutSeconds", 60, "weights may take"),
        (
            checks.kuberay_rules,
            f"{GROUP}/labels/accelerator",
            "H1000",
            "'H1000' is not in the catalogue",
        ),
        (
            checks.kuberay_rules,
            "spec/submissionMode",
            "K8SJobMode",
            "submissionMode 'K8SJobMode' is none of",
        ),
        (
            checks.kuberay_rules,
            "spec/shutdownAfterJobFinishes",
            False,
            "needs shutdownAfterJobFinishes",
        ),
        (
            checks.kuberay_rules,
            "spec/rayClusterSpec/autoscalerOptions/version",
            "v1",
            "version is not v2",
        ),
        (
            checks.kuberay_rules,
            f"{CONTAINER}/env/1/name",
            "OTHER",
            "taken back are found out when they are gone",
        ),
        (
            checks.kuberay_rules,
            f"{CONTAINER}/volumeMounts/0/name",
            "weight",
            "volume weight is mounted and not there",
        ),
        (
            checks.kuberay_rules,
            f"{GROUP}/template/spec/serviceAccountName",
            "SWEEP_HEAD",
            "h100-spot: engines may start pods",
        ),
    ],
)
def test_a_broken_kuberay_file_is_refused(
    check: Callable[[dict[str, Any]], list[str]], path: str, value: object, problem: str
) -> None:
    (document,) = ray_documents("kuberay-rayjob")
    assert problem in " ".join(check(changed(document, path, value)))


# runs a command in a PID namespace of its own, where it sees no other processes, as in a pod
UNSHARED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARED, "true"], capture_output=True).returncode == 0


# Arguments: the preStop command. In the pod are an idle worker of Ray that runs for a minute, and an
# actor that ends within a second. Succeeds if the actor has ended once the preStop command is done.
POD = """
(exec -a ray::IDLE sleep 60) &
(exec -a "$ACTOR" sleep 1) &
actor=$!
until [[ $(tr '\\0' ' ' < /proc/$actor/cmdline) = ray* ]]; do sleep 0.01; done
"$@"
! kill -0 $actor 2> /dev/null
"""


@pytest.mark.skipif(
    not may_unshare(), reason="NOT RUN: a pod's processes of its own need root and unshare"
)
@pytest.mark.parametrize("name", KUBERAY)
@pytest.mark.parametrize("actor", [RayEngineHost, RayClientHost])
def test_a_pod_that_is_taken_back_gives_notice_and_waits_for_agents_and_clients_alone(
    name: str, actor: type, tmp_path: Path
) -> None:
    (document,) = ray_documents(name)
    _, *worker_groups = checks.groups(document)
    for _, group in worker_groups:
        pod = group["template"]["spec"]
        command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        file = tmp_path / "notice"
        file.unlink(missing_ok=True)
        env = {**os.environ, NOTICE_FILE: str(file), "ACTOR": f"ray::{actor.__name__}.serve"}
        argv = [*UNSHARED, "bash", "-c", POD, "pod", *command]
        completed = subprocess.run(argv, env=env, capture_output=True, timeout=30, check=False)
        assert completed.stderr == b""
        assert completed.returncode == 0, "it ended before the actor for which it should wait"
        notice = notices.in_file(file)
        assert notice is not None
        assert notice.left_s < pod["terminationGracePeriodSeconds"]


def test_images_hold_the_versions_that_are_tested() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^ray==(\S+)", lock, re.M)
    in_images: set[str] = set()
    for content in cluster_files().values():
        in_images.update(re.findall(r"ray(?:/ray)?:(?:ray)?([\d.]+)-py", content))
    assert in_images == set(locked)
    image = text("image/Containerfile")
    assert set(re.findall(r"(?:vllm|sglang)==([\d.]+)", image)) == {
        install_engines.VLLM_VERSION,
        install_engines.SGLANG_VERSION,
    }


def test_rays_workers_and_engines_use_different_ports() -> None:
    ranges: dict[Path, set[str]] = {}
    for path, content in cluster_files().items():
        if "worker-port" in content:
            ports = re.findall(r"(?:min|max)-worker-port[=:]? ?\"?(\d+)", content)
            ranges[path] = set(ports)
    assert len(ranges) >= 6
    assert all(ports == {"10002", "10999"} for ports in ranges.values())
    assert FIRST_PORT > 10999 or LAST_PORT < 10002


@pytest.mark.parametrize(
    "name",
    ["slurm.sbatch", "local/token.sh", "local/two-nodes.sh", "local/autoscaling.sh", "sky.yaml"],
)
def test_bash_can_read_the_scripts(name: str) -> None:
    script = load("sky")["run"] if name == "sky.yaml" else text(name)
    assert checks.shell(script) == []
    assert checks.shell(script + "\nif") != [], "the check finds what bash cannot read"


ASK_SKYPILOT = """
import json, sys, sky
for file in sys.argv[1:]:
    accelerators = set()
    try:
        for resources in sky.Task.from_yaml(file).resources:
            accelerators |= {f'{name}:{n}' for name, n in resources.accelerators.items()}
    except Exception as error:
        print(json.dumps(str(error)))
    else:
        print(json.dumps(sorted(accelerators)))
"""


def skypilot(folder: Path, tasks: Sequence[Any]) -> list[Any]:
    """What SkyPilot says of tasks, without a cloud: the accelerators of each, or why it refuses
    it.
    """
    venv.create(folder / "venv", with_pip=True)
    try:
        install_engines.pip(folder / "venv", "installing SkyPilot", "skypilot==0.14.1")
    except install_engines.StepFailed as error:
        pytest.skip(f"SkyPilot could not be installed: {str(error)[-300:]}")
    files = [folder / f"{number}.yaml" for number in range(len(tasks))]
    for file, task in zip(files, tasks, strict=True):
        file.write_text(yaml.safe_dump(task))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    completed = subprocess.run(
        [folder / "venv" / "bin" / "python", "-c", ASK_SKYPILOT, *files],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return [json.loads(line) for line in completed.stdout.splitlines()]


@pytest.mark.timeout(1200)
def test_skypilot_takes_its_task_and_the_catalogue_knows_its_accelerator(tmp_path: Path) -> None:
    task = load("sky")
    task["secrets"]["RAY_AUTH_TOKEN"] = "given"
    good, no_such_key, no_such_cloud, no_such_accelerator = skypilot(
        tmp_path,
        [
            task,
            changed(task, "num_node", 2),
            changed(task, "resources/any_of/0/infra", "amazon/us-west-2"),
            changed(task, "resources/accelerators", "H1000:8"),
        ],
    )
    assert good == ["H100:8"]
    assert checks.accelerator(task["resources"]["accelerators"].partition(":")[0]) == []
    assert "num_nodes" in no_such_key
    assert "infra" in no_such_cloud.lower()
    assert no_such_accelerator == ["H1000:8"]  # SkyPilot asks no catalogue
    assert checks.accelerator("H1000") != []


def test_the_catalogue_knows_every_accelerator_of_the_sky_task() -> None:
    name, _, count = load("sky")["resources"]["accelerators"].partition(":")
    assert checks.accelerator(name) == []
    assert int(count) == 8


def test_this_python_is_that_of_the_images() -> None:
    tags = set(re.findall(r"-py(\d)(\d+)", text("image/Containerfile")))
    assert {tuple(map(int, tag)) for tag in tags} == {sys.version_info[:2]}

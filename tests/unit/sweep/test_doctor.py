"""What would fail a sweep or spoil its numbers: each check with facts that are fine and facts that
are not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cluster import machine_facts
from orchestrator.cluster.base import Growth, Machine, NodeType, RefusedNodes
from orchestrator.cluster.machine_facts import facts
from orchestrator.cluster.model_downloads import AbsenceCause
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Deployment
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.settings import Speculative
from orchestrator.sweep.doctor import MODEL_REMEDIES, diagnose
from orchestrator.sweep.examine import ExaminedNode, Finding, Requirements, requirements_of
from orchestrator.sweep.resource_request import ResourceRequest, resources_of

GIB = 2**30
HERE = {"Python": "3.11", "this program": "1.0", "Ray": "2.60.0"}
GPU = {
    "index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB, "used_bytes": 0, "pids": [], "mig": False,
    "ecc_errors": 0, "slowed": [], "fabric": None,
}  # fmt: skip
FINE: dict[str, Any] = {
    "hostname": "n1",
    "versions": HERE,
    "limits": {"nofile": 1_000_000, "memlock": None},
    "cgroup": {},
    "cores": 96,
    "memory_bytes": 1000 * GIB,
    "shm": {"free": 500 * GIB, "total": 500 * GIB, "kind": "tmpfs", "writable": True},
    "clock_is_set": True,
    "unknown_interfaces": [],
    "outgoing_ports": [32768, 60999],
    "taken_ports": 0,
    "disk": {
        "temporary files": {
            "free": 900 * GIB,
            "total": 999 * GIB,
            "kind": "ext4",
            "writable": True,
        }
    },
    "infiniband": {"mlx5_0/ports/1/state": "4: ACTIVE"},
    "gpus": {"driver": "570.86.15", "cuda": "12.8", "gpus": [GPU, GPU | {"index": 1}]},
    "amd_gpus": 0,
    "engines": [],
}


def node(machine: Machine | None = None, clock_s: float = 0.0, **changes: object) -> ExaminedNode:
    return ExaminedNode(machine or Machine("a" * 20, "10.0.0.1", 2, 96.0), FINE | changes, clock_s)


def gpu(**changes: object) -> dict[str, Any]:
    return FINE["gpus"] | {"gpus": [GPU | changes, GPU | {"index": 1}]}


def findings_of(
    *nodes: ExaminedNode, requirements: Requirements | None = None, **growth: Any
) -> list[Finding]:
    return diagnose(nodes, HERE, requirements or [], Growth(**growth))


def test_a_node_that_is_fine_is_told_nothing_of() -> None:
    assert findings_of(node(), node(Machine("b" * 20, "10.0.0.2", 2, 96.0))) == []


DISK = FINE["disk"]["temporary files"]
BROKEN = [
    (
        "limits",
        "warning",
        "at most 10000 open files",
        {"limits": FINE["limits"] | {"nofile": 10_000}},
    ),
    ("limits", "fail", "at most 1024 open files", {"limits": FINE["limits"] | {"nofile": 1024}}),
    (
        "limits",
        "fail",
        "only 65536 bytes of memory may be locked",
        {"limits": FINE["limits"] | {"memlock": 65536}},
    ),
    ("cgroup", "warning", "counts 96 CPUs, but the node may use only 8", {"cgroup": {"cpu": 8.0}}),
    ("cgroup", "warning", "counts 96 CPUs, but the node may use only 64", {"cores": 64}),
    (
        "cgroup",
        "warning",
        "allows 16 GiB of memory, but its GPUs have 160",
        {"cgroup": {"memory": 16.0 * GIB}},
    ),
    (
        "shared memory",
        "fail",
        "0.1 GiB are free in /dev/shm",
        {"shm": FINE["shm"] | {"free": GIB // 16}},
    ),
    (
        "ports",
        "warning",
        "outgoing connections use ports 9000 to 65000",
        {"outgoing_ports": [9000, 65000]},
    ),
    ("ports", "fail", "40 of 50 ports", {"taken_ports": 40}),
    (
        "disk",
        "warning",
        "5.0 GiB are free for temporary files",
        {"disk": {"temporary files": DISK | {"free": 5 * GIB}}},
    ),
    ("disk", "fail", "0.5 GiB are free", {"disk": {"temporary files": DISK | {"free": GIB // 2}}}),
    (
        "disk",
        "fail",
        "cannot be written",
        {"disk": {"temporary files": DISK | {"writable": False}}},
    ),
    ("clock", "warning", "at least 20 ms off", {"clock_s": 0.02}),
    ("clock", "fail", "at least 3000 ms off", {"clock_s": 3.0}),
    (
        "network",
        "fail",
        "NCCL_SOCKET_IFNAME=ib7 names no",
        {"unknown_interfaces": ["NCCL_SOCKET_IFNAME=ib7"]},
    ),
    (
        "versions",
        "fail",
        "Ray 2.50.0, but the driver has 2.60.0",
        {"versions": HERE | {"Ray": "2.50.0"}},
    ),
    (
        "versions",
        "fail",
        "Python 3.12, but the driver has 3.11",
        {"versions": HERE | {"Python": "3.12"}},
    ),
    ("gpus", "fail", "counts 2 GPUs, but NVML sees 0", {"gpus": {}}),
    ("gpus", "fail", "but NVML sees 0 and AMD's driver 1", {"gpus": {}, "amd_gpus": 1}),
    (
        "gpus",
        "fail",
        "counts 2 GPUs, but NVML sees 1",
        {"gpus": FINE["gpus"] | {"gpus": FINE["gpus"]["gpus"][:1]}, "amd_gpus": 1},
    ),
    (
        "gpus",
        "fail",
        "GPU 0: it is lost",
        {"gpus": FINE["gpus"] | {"gpus": [{"index": 0, "lost": True}, GPU]}},
    ),
    (
        "gpus",
        "fail",
        "30.0 GiB are in use, by pids [42]",
        {"gpus": gpu(used_bytes=30 * GIB, pids=[42])},
    ),
    ("gpus", "warning", "MIG is on", {"gpus": gpu(mig=True)}),
    ("gpus", "fail", "7 uncorrected memory errors", {"gpus": gpu(ecc_errors=7)}),
    ("gpus", "warning", "too hot (hardware)", {"gpus": gpu(slowed=["too hot (hardware)"])}),
    ("gpus", "fail", "fabric manager", {"gpus": gpu(fabric=False)}),
]


@pytest.mark.parametrize(("check", "level", "what", "changes"), BROKEN)
def test_each_fault_of_a_node_has_a_reason_and_a_remedy(
    check: str, level: str, what: str, changes: dict[str, Any]
) -> None:
    (finding,) = findings_of(node(**changes))
    assert (finding.check, finding.level) == (check, level)
    assert what in finding.what
    assert finding.where.startswith(("n1 (10.0.0.1, aaaaaaaa)", "10.0.0.1"))
    assert finding.why
    assert finding.do


def test_nodes_of_one_host_that_promise_its_cores_twice_are_named() -> None:
    two = [node(Machine(name * 20, "10.0.0.1", 0, 64.0), gpus={}) for name in "ab"]
    (finding,) = findings_of(*two)
    assert "2 nodes on one host count as 128 CPUs together, but it has 96" in finding.what


def test_drivers_that_differ_between_nodes_with_the_same_gpus_are_named() -> None:
    other = FINE["gpus"] | {"driver": "535.1"}
    (finding,) = findings_of(node(), node(Machine("b" * 20, "10.0.0.2", 2, 96.0), gpus=other))
    assert "driver 570.86.15, CUDA 12.8 on n1" in finding.what
    assert "driver 535.1" in finding.what


def deployments(text: str, labels: str = "{pool: a}", api: str = "completions") -> list[Deployment]:
    file = f"""
version: 1
name: x
model: org/model
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, labels: {labels}}}}}
deployments: {{{text}}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 2, api: {api}}}]
load: {{levels: {{concurrency: [8]}}, duration: 5s}}
"""
    return make_plan(parse_experiment(file)).runnable()


VLLM = "engine: vllm, hardware: h100, tensor_parallel_size: 2, executable: /opt/vllm"
THERE = {
    "name": "vllm",
    "path": "/x/vllm",
    "version": "0.32",
    "image": None,
    "missing": False,
    "models": {},
}


def gpu_node(name: str = "a", labels: Any = None, **engine: object) -> ExaminedNode:
    machine = Machine(
        name * 20, f"10.0.0.{name}", 2, 96.0, {"pool": "a"} if labels is None else labels
    )
    return node(machine, engines=[THERE | engine])


def test_engines_and_models_are_looked_for_where_deployments_fit_and_nowhere_else() -> None:
    requirements = requirements_of(deployments(VLLM))
    head = node(
        Machine("h" * 20, "10.0.0.9", 0, 8.0), cores=8, engines=[THERE | {"path": None}], gpus={}
    )
    assert findings_of(gpu_node(), head, requirements=requirements) == []
    for engine, level, what in (
        ({"path": None}, "fail", "vllm is not installed"),
        ({"missing": True}, "fail", "vllm is not installed"),
        ({"image": False}, "warning", "vllm is not pulled yet"),
        (
            {"models": {"org/draft": {"problem": "it is gated", "cause": "gated"}}},
            "fail",
            "org/draft: it is gated",
        ),
    ):
        (finding,) = findings_of(gpu_node(**engine), head, requirements=requirements)
        assert (finding.level, finding.what) == (level, what)
    (finding,) = findings_of(gpu_node(), gpu_node("b", version="0.31"), requirements=requirements)
    assert "its version differs: 0.32 on n1" in finding.what


@pytest.mark.parametrize("ports", [{}, {"mlx5_0/ports/1/state": "1: DOWN"}])
def test_a_replica_over_nodes_without_a_fabric_is_named(ports: dict[str, str]) -> None:
    requirements = requirements_of(deployments(f"{VLLM}, pipeline_parallel_size: 2, nnodes: 2"))
    fast = gpu_node("a")
    slow = node(gpu_node("b").machine, engines=[THERE], infiniband=ports)
    assert findings_of(fast, gpu_node("b"), requirements=requirements) == []
    (finding,) = findings_of(fast, slow, requirements=requirements)
    assert (finding.level, finding.check) == ("warning", "network")
    assert "has no active InfiniBand port" in finding.what
    assert "bbbbbbbb" in finding.where


def test_a_deployment_that_no_node_will_ever_hold_is_named() -> None:
    requirements = requirements_of(deployments(VLLM))
    (finding,) = findings_of(gpu_node(labels={}), requirements=requirements)
    assert (finding.check, finding.level) == ("room", "fail")
    assert "0 can ever hold it" in finding.what
    for labels in (None, {"pool": "a"}):
        assert (
            findings_of(
                gpu_node(labels={}),
                requirements=requirements,
                types=(NodeType("h100", 8, 96.0, 4, labels),),
            )
            == []
        )
    for wrong in (
        NodeType("cpu", 0, 96.0, 4),
        NodeType("h100", 8, 96.0, 0),
        NodeType("h100", 8, 96.0, 4, {"pool": "b"}),
        NodeType("h100", 8, 96.0, 4, {}),
    ):
        (finding,) = findings_of(gpu_node(labels={}), requirements=requirements, types=(wrong,))
        assert finding.check == "room"
        assert "0 can ever hold it" in finding.what
    (finding,) = findings_of(
        gpu_node(labels={"ray.io/node-group": "head"}), requirements=requirements
    )
    assert finding.level == "warning"
    assert "may add is not known" in finding.what
    alike = requirements_of(deployments(f"{VLLM}, vary: [{{grid: {{max_num_seqs: [8, 16]}}}}]"))
    (finding,) = findings_of(gpu_node(labels={}), requirements=alike)
    assert "each need 1 node, but 0 can ever hold it" in finding.what
    two = requirements_of(deployments(VLLM.replace("size: 2", "size: 4, nnodes: 2")))
    (finding,) = findings_of(gpu_node(), requirements=two)
    assert "needs 2 nodes" in finding.what
    assert findings_of(gpu_node(), gpu_node("b"), requirements=two) == []


def test_node_types_that_no_label_tells_apart_are_named() -> None:
    requirements = requirements_of(deployments(VLLM, labels="{}"))
    h100 = NodeType("h", 8, 96.0, 4, {"accelerator": "H100-80GB"})
    a10 = NodeType("a", 8, 96.0, 4, {"accelerator": "A10"})
    node_there = gpu_node(labels={})
    (finding,) = findings_of(node_there, requirements=requirements, types=(h100, a10))
    assert (finding.level, finding.check) == ("warning", "autoscaler")
    assert finding.what == (
        "for H100-80GB the autoscaler may add nodes of h, a: no label of the hardware tells "
        "them apart"
    )
    labelled = requirements_of(deployments(VLLM, labels="{accelerator: H100-80GB}"))
    assert (
        findings_of(
            gpu_node(labels={"accelerator": "H100-80GB"}), requirements=labelled, types=(h100, a10)
        )
        == []
    )
    spot = NodeType("spot", 8, 96.0, 4, {"accelerator": "H100", "market": "spot"})
    assert (
        findings_of(
            node_there,
            requirements=requirements,
            types=(h100, spot, NodeType("cpu", 0, 96.0, 9, {})),
        )
        == []
    )


@pytest.mark.parametrize(
    ("growth", "sentence"),
    [
        ({"reports": 1}, "an autoscaler is configured and has not reported for 20 s"),
        (
            {"reports": 0, "silent": "the autoscaler ended: KeyError"},
            "the autoscaler ended: KeyError",
        ),
        (
            {"reports": 2, "refused": {"spot": RefusedNodes(2, "quota")}},
            "launches of nodes were refused: 2 x spot (quota)",
        ),
        ({"reports": 2}, None),
        ({"reports": None}, None),
        ({"may_grow": False}, None),
    ],
)
def test_an_autoscaler_that_is_not_at_work_is_named(
    growth: dict[str, Any], sentence: str | None
) -> None:
    assert [
        (finding.level, finding.check, finding.what)
        for finding in findings_of(gpu_node(), **growth)
    ] == ([("warning", "autoscaler", sentence)] if sentence else [])


def test_without_any_gpu_that_is_what_is_said() -> None:
    requirements = requirements_of(deployments(VLLM))
    laptop = node(Machine("c" * 20, "10.0.0.3", 0, 8.0), gpus={}, cores=8)
    (finding,) = [
        finding
        for finding in findings_of(laptop, requirements=requirements)
        if finding.check == "room"
    ]
    assert finding.what.endswith("and no node has a GPU")
    (finding,) = [
        finding
        for finding in findings_of(
            laptop, requirements=requirements, types=(NodeType("a", 8, 1.0, 4, {}),)
        )
        if finding.check == "room"
    ]
    assert "no node has a GPU" not in finding.what


def test_a_laptop_with_20000_open_files_is_fine() -> None:
    assert findings_of(node(limits=FINE["limits"] | {"nofile": 20_000})) == []


def test_addresses_of_one_server_are_the_same_endpoint() -> None:
    urls = ("http://h", "http://H:80/v1", "http://h/v1/chat/completions", "http://h?api-version=1")
    same, other = set[ResourceRequest](), set[ResourceRequest]()
    for url in urls:
        (deployment,) = deployments(f"engine: endpoint, url: '{url}'", api=api_of(url))
        same.add(resources_of(deployment, exclusive=True))
    for url in ("http://h:8000", "http://h/other"):
        (deployment,) = deployments(f"engine: endpoint, url: '{url}'")
        other.add(resources_of(deployment, exclusive=True))
    assert (len(same), len(other | same)) == (1, 3)


def api_of(url: str) -> str:
    return "chat" if "chat" in url else "completions"


# -- the facts of this machine


def test_this_machine_tells_its_facts_in_json_and_where_an_engine_is() -> None:
    wanted = deployments("engine: vllm, hardware: h100, executable: ./nowhere")
    wanted += deployments("engine: emulator")
    machine = facts([(deployment.settings, deployment.hardware) for deployment in wanted])
    json.dumps(machine)
    assert machine["versions"]["Python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["shm"]["total"] > 0
    assert machine.keys() == FINE.keys()
    missing, emulated = machine["engines"]
    assert missing["path"] is None
    assert emulated["path"]
    assert not emulated["missing"]


def test_slices_of_gpus_may_be_counted_as_gpus() -> None:
    with_mig = {"gpus": [GPU | {"mig": True}]}
    (finding,) = findings_of(
        node(Machine("a" * 20, "10.0.0.1", 7, 96.0), gpus=FINE["gpus"] | with_mig)
    )
    assert (finding.level, finding.what) == ("warning", "GPU 0: MIG is on")


def test_clocks_that_nothing_keeps_right_are_told_where_there_are_several() -> None:
    first, second = (Machine(name * 20, f"10.0.0.{name}", 2, 96.0) for name in "12")
    unset, unknown = node(first, clock_is_set=False), node(second, clock_is_set=None)
    assert [
        (finding.level, finding.check, finding.where) for finding in findings_of(unset, unknown)
    ] == [("warning", "clock", unset.name)]
    assert findings_of(unset) == []


def test_a_model_that_a_node_cannot_have_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings,) = (deployment.settings for deployment in deployments(VLLM))

    def of(model: str) -> str:
        (absences,) = machine_facts._models([settings.model_copy(update={"model": model})])
        return str(absences[model]["problem"]) if model in absences else ""

    assert of(str(tmp_path)) == ""
    assert "no such file" in of(str(tmp_path / "gone"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 10**9, total=10**12)
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in of("org/not-there")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", secret := "hf_" + "a" * 30)

    def gated(self: object, model: str, **_: object) -> None:
        raise PermissionError(f"403 for {secret}: accept the licence of {model}")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", gated)
    problem = of("org/not-there")
    assert "403 for ***: accept the licence" in problem
    assert "accept the licence" in problem
    assert secret not in problem
    files = [
        SimpleNamespace(rfilename=name, size=70 * 10**9, lfs=None)
        for name in ("1.safetensors", "2.safetensors", "x.bin")
    ]
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info",
        lambda *_, **__: SimpleNamespace(siblings=files[:1], gated=False),
    )
    assert of("org/not-there") == ""
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info",
        lambda *_, **__: SimpleNamespace(siblings=files, gated=False),
    )
    too_much = f"140 GB have to be downloaded, but only 100 are free in {tmp_path}"
    assert of("org/not-there") == too_much
    (snapshot := tmp_path / "models--org--not-there/snapshots/1").mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--not-there/refs").mkdir()
    (tmp_path / "models--org--not-there/refs/main").write_text("1")
    assert of("org/not-there") == too_much, "a plan takes the config alone"
    (snapshot / "model.safetensors").write_text("")
    assert of("org/not-there") == ""


def test_a_model_and_its_draft_share_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def model_info(_: object, name: str, **__: object) -> Any:
        asked.append(name)
        files = [SimpleNamespace(rfilename="model.safetensors", size=70 * 10**9, lfs=None)]
        return SimpleNamespace(siblings=files, gated=False)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 10**9, total=10**12)
    )
    (alone,) = (deployment.settings for deployment in deployments(VLLM))
    draft = {"method": "eagle3", "num_speculative_tokens": 3, "model": "org/draft"}
    both = alone.model_copy(update={"speculative": Speculative.model_validate(draft)})
    room = f"70 GB have to be downloaded, but only 30 are free in {tmp_path}"
    no_room = {"problem": room, "cause": AbsenceCause.NO_ROOM}
    assert machine_facts._models([alone, both]) == [{}, {"org/draft": no_room}]
    assert sorted(asked) == ["org/draft", "org/model"]


class Hub(BaseHTTPRequestHandler):
    """Tells everybody what a gated model is, and lets nobody have it; it has the revision ``main``
    alone. Of a private model it says nothing, and it knows no token.
    """

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        is_listed = path in ("/api/models/org/gated", "/api/models/org/gated/revision/main")
        status, header = 404, ("X-Error-Code", "RevisionNotFound")
        if is_listed:
            status = 200
        elif path.endswith("/auth-check"):
            status, header = 403, ("X-Error-Code", "GatedRepo")
        elif path.startswith("/api/models/org/private"):
            status, header = 401, ("X-Error-Code", "RepoNotFound")
        elif "Authorization" in self.headers:
            status = 401
            header = ("X-Error-Message", "Invalid credentials in Authorization header")
        self.send_response(status)
        self.send_header(*header)
        self.end_headers()
        self.wfile.write(
            json.dumps(
                {"id": "org/gated", "gated": "manual", "siblings": []} if is_listed else {}
            ).encode()
        )

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("model", "revision", "token", "why", "cause"),
    [
        ("org/gated", None, None, "GatedRepo", AbsenceCause.GATED),
        ("org/gated", "main", "hf_x", "GatedRepo", AbsenceCause.GATED),
        ("org/gated", "gone", None, "RevisionNotFound", AbsenceCause.NO_REVISION),
        ("org/private", None, None, "RepositoryNotFound", AbsenceCause.NOT_FOUND),
        ("org/public", None, "hf_x", "HfHubHTTPError", AbsenceCause.BAD_TOKEN),
    ],
)
def test_why_the_hub_does_not_serve_a_model_is_told(
    model: str,
    revision: str | None,
    token: str | None,
    why: str,
    cause: AbsenceCause,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setattr(
            "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{hub.server_port}"
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        (deployment,) = deployments(VLLM)
        settings = deployment.settings.model_copy(update={"model": model, "revision": revision})
        (absence,) = machine_facts._models([settings])[0].values()
        hub.shutdown()
    words = "with a token" if token else "without a token"
    assert str(absence["problem"]).startswith(f"the hub does not serve it ({words}): {why}")
    assert absence["cause"] == cause


@pytest.mark.parametrize(("value", "may_ask"), [("1", False), ("true", False), ("0", True)])
def test_a_model_that_the_files_env_keeps_from_the_hub_is_missing_whatever_the_hub_has(
    value: str, may_ask: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    info = SimpleNamespace(gated=False, siblings=())
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    planned = deployments(f"{VLLM}, env: {{HF_HUB_OFFLINE: '{value}'}}")
    requirements = requirements_of(planned)
    (absences,) = machine_facts._models([requirements[0].settings])
    findings = findings_of(gpu_node(models=absences), requirements=requirements)
    remedies = [] if may_ask else [MODEL_REMEDIES[AbsenceCause.OFFLINE_BY_FILE]]
    assert [finding.do for finding in findings] == remedies


def test_a_hub_that_does_not_answer_is_no_question_of_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    requirements = requirements_of(deployments(VLLM))
    (absences,) = machine_facts._models([requirements[0].settings])
    (finding,) = findings_of(gpu_node(models=absences), requirements=requirements)
    assert "not in this node's cache, and the hub does not answer: ConnectionError" in finding.what
    assert "token" not in finding.what
    assert finding.do == MODEL_REMEDIES[AbsenceCause.NO_ANSWER]
    assert "HF_TOKEN" not in finding.do


def test_each_cause_has_a_remedy() -> None:
    assert set(MODEL_REMEDIES) == set(AbsenceCause)


def cached(cache: Path) -> None:
    """A model of the hub, as its library keeps it."""
    snapshot = cache / "models--org--model" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    (cache / "models--org--model" / "refs").mkdir()
    (cache / "models--org--model" / "refs" / "main").write_text("1")


@pytest.mark.parametrize(
    ("env", "node", "where"),
    [({}, {}, "node"), ({"HF_HOME": "home"}, {}, "home/hub"), ({"HF_HUB_CACHE": "hub"}, {}, "hub"),
     ({"HF_HOME": "home", "HF_HUB_CACHE": "hub"}, {}, "hub"), ({"HF_HOME": "home"}, {"HF_HUB_CACHE": "node"}, "node")],
)  # fmt: skip
def test_models_are_looked_for_in_the_cache_of_their_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    node: dict[str, str],
    where: str,
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for name, folder in node.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "node"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (deployment,) = deployments(VLLM)
    settings = deployment.settings.model_copy(
        update={"env": {name: str(tmp_path / folder) for name, folder in env.items()}}
    )
    before = facts([(settings, deployment.hardware)])
    cached(tmp_path / where)
    after = facts([(settings, deployment.hardware)])
    assert [
        "HF_HUB_OFFLINE" in str(machine["engines"][0]["models"]) for machine in (before, after)
    ] == [
        True,
        False,
    ]
    assert set(after["disk"]) == {"temporary files", f"the model cache {tmp_path / where}"}


ROLES = """engine: vllm, hardware: h100, router: {engine: vllm_router, executable: /opt/router}, env: {HF_HOME: /data},
  kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both},
  executable: /opt/vllm, roles: {prefill: {}, decode: {env: {HF_HOME: /other}}}"""


def test_every_role_and_the_router_is_looked_for_and_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    requirements = requirements_of(deployments(ROLES) * 2)
    assert [(requirement.settings.engine, requirement.settings.executable) for requirement in requirements] == [
        ("vllm", "/opt/vllm"), ("vllm", "/opt/vllm"), ("vllm_router", "/opt/router")
    ]  # fmt: skip
    machine = facts(
        [
            (requirement.settings, requirement.deployments[0].hardware)
            for requirement in requirements
        ]
    )
    engines = machine["engines"]
    assert [list(engine["models"]) for engine in engines] == [["org/model"], ["org/model"], []]
    assert [engine["path"] for engine in engines] == [None] * 3
    caches = {"the model cache /data/hub", "the model cache /other/hub"}
    assert set(machine["disk"]) == {"temporary files"} | caches
    facts_of_node = node(gpu_node().machine, engines=engines)
    findings = findings_of(facts_of_node, requirements=requirements)
    assert Counter((finding.check, finding.what.partition(" ")[0]) for finding in findings) == {
        ("engines", "vllm"): 1, ("engines", "vllm_router"): 1, ("models", "org/model:"): 1
    }  # fmt: skip
    assert [
        finding.check for finding in findings_of(node(engines=engines), requirements=requirements)
    ] == ["room"]

"""What changes an id and what does not: running again must continue, and never mix different
things.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator.plan.identity as identity
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.experiment import parse_experiment
from orchestrator.workloads.file import FileWorkload
from tests.unit.plan.files import grid, measurements, planned

pytestmark = pytest.mark.usefixtures("judged")

RATE = {"levels": {"request_rate": [1]}}
HARDWARE = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 2.0}}
BASE: dict[str, Any] = {
    "deployments": {"engine": "vllm", "hardware": "h100"},
    "hardware": HARDWARE,
    "load": RATE,
}


def ids(plan: Plan) -> tuple[list[str], list[str], list[str]]:
    deployments = [deployment.id for deployment in plan.deployments]
    return (
        deployments,
        [point.point_id for point in plan.points],
        [measurement.measurement_id for measurement in measurements(plan)],
    )


def model_folder(path: Path, layers: int = 2) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"0" * 100)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"slos": {"a": {"ttft": "1s"}}},
        {"budget": {"usd": 5}},
        {"isolation": "shared"},
        {"clients": 9},
        {"max_clients": 9, "placement_timeout": "1h", "storage_timeout": "1h"},
        {"hardware": {"h100": {**HARDWARE["h100"], "usd_per_gpu_hour": 9.0, "labels": {"a": "b"}}}},
        {"deployments": {"engine": "vllm", "hardware": "h100", "startup_timeout_s": 5.0}},
        {"deployments": {"engine": "vllm", "hardware": "h100", "tensor_parallel_size": 1}},
        {"load": {**RATE, "arrivals": "poisson", "duration": "60s"}},
        {"workloads": [{"name": "talk", "input_tokens": 100, "output_tokens": 20}]},
    ],
    ids=str,
)
def test_settings_without_influence_change_no_id(change: dict[str, Any]) -> None:
    assert ids(planned("/some/where/else.yaml", **{**BASE, **change})) == ids(planned(**BASE))


@pytest.mark.parametrize(
    "change",
    [
        {"deployments": {"engine": "vllm", "hardware": "h100", "max_num_seqs": 8}},
        {"deployments": {"engine": "vllm", "hardware": "h100", "engine_version": "0.31"}},
        {
            "deployments": {
                "engine": "vllm",
                "hardware": "h100",
                "image": "vllm/vllm-openai:v0.32.0",
            }
        },
        {"deployments": {"engine": "vllm", "hardware": "h100", "env": {"A": "1"}}},
        {"deployments": {"engine": "vllm", "hardware": "cpu"}},
        {"model": {"id": "org/model", "revision": "abc"}},
        {"hardware": {"h100": {**HARDWARE["h100"], "accelerator": "H200-141GB"}}},
    ],
    ids=str,
)
def test_changed_deployments_change_all_ids(change: dict[str, Any]) -> None:
    before, after = ids(planned(**BASE)), ids(planned(**{**BASE, **change}))
    assert all(set(a).isdisjoint(b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"load": {"levels": {"request_rate": [2]}}},
        {"load": {"levels": {"concurrency": [1]}}},
        {"load": {**RATE, "arrivals": "constant"}},
        {"load": {**RATE, "arrivals": {"process": "gamma", "burstiness": 0.5}}},
        {"load": {**RATE, "warmup": "11s"}},
        {"load": {**RATE, "duration": "61s"}},
        {"load": {**RATE, "requests": 60}},
        {"load": {**RATE, "max_in_flight": 5}},
        {"load": {**RATE, "request_timeout": "5s"}},
        {"load": {**RATE, "drain_timeout": "5s"}},
        {"workloads": [{"name": "chat", "input_tokens": 101, "output_tokens": 20}]},
        {"workloads": [{"name": "chat", "input_tokens": 100, "output_tokens": 20, "api": "chat"}]},
    ],
    ids=str,
)
def test_changed_loads_keep_the_id_of_the_deployment(change: dict[str, Any]) -> None:
    before, after = ids(planned(**BASE)), ids(planned(**{**BASE, **change}))
    assert before[0] == after[0]
    assert set(before[1]).isdisjoint(after[1])


def test_the_measurement_version_is_part_of_a_points_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ids(planned(**BASE))
    monkeypatch.setattr("orchestrator.plan.model.__version__", "99.0")
    assert ids(planned(**BASE)) == before
    monkeypatch.setattr("orchestrator.plan.model.MEASUREMENT_VERSION", 99)
    after = ids(planned(**BASE))
    assert before[0] == after[0]
    assert set(before[1]).isdisjoint(after[1])


def test_pinned_values_are_part_of_the_id_like_written_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ids(planned(**BASE))
    pinned = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    written = {**BASE, "deployments": {"engine": "vllm", "hardware": "h100", **pinned}}
    assert ids(planned(**written)) == before, "the same command line"
    smaller = {"h100": {**HARDWARE["h100"], "memory_gb": 24}}
    assert ids(planned(**{**BASE, "hardware": smaller}))[0] != before[0], (
        "other batches are pinned there"
    )
    other = replace(ENGINES["vllm"], pins=lambda settings, hardware: pinned | {"max_num_seqs": 512})
    monkeypatch.setattr("orchestrator.engines.vllm.ENGINE", other)
    after = ids(planned(**BASE))
    assert set(before[0]).isdisjoint(after[0])
    assert set(before[1]).isdisjoint(after[1])
    assert ids(planned(**written)) == before


def test_without_named_hardware_no_pins_are_part_of_the_id() -> None:
    """A GPU and a CPU get other batches: what is left open must not be taken for what is written."""
    written = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    left_open, given = (
        {**BASE, "deployments": {"engine": "vllm", **more}} for more in ({}, written)
    )
    assert set(ids(planned(**left_open))[0]).isdisjoint(ids(planned(**given))[0])


def test_arrivals_are_no_part_of_a_closed_loop() -> None:
    both = {"levels": {"concurrency": [4], "request_rate": [1]}}
    constant, poisson = (
        ids(planned(load={**both, "arrivals": process}))[1] for process in ("constant", "poisson")
    )
    assert len(set(constant) & set(poisson)) == len(constant) // 2


def test_more_repeats_keep_the_measurements_there_are() -> None:
    few, many = ids(planned(**BASE, repeats=2))[2], ids(planned(**BASE, repeats=4))[2]
    assert many[: len(few)] == few


def test_more_levels_and_deployments_keep_the_points_there_are() -> None:
    small = planned(deployments=grid(tensor_parallel_size=[1]), load=RATE)
    large = planned(
        deployments=grid(tensor_parallel_size=[1, 2]), load={"levels": {"request_rate": [1, 2]}}
    )
    assert set(ids(small)[1]) < set(ids(large)[1])


def test_deployments_see_the_same_requests_and_repeats_do_not() -> None:
    plan = planned(
        deployments=grid(tensor_parallel_size=[1, 2]),
        load={"levels": {"request_rate": [1, 2]}},
        repeats=3,
    )
    found = measurements(plan)
    first, second = (
        [one.seed for one in found if one.deployment_id == made.id] for made in plan.deployments
    )
    assert first == second
    assert len(set(first)) == 6
    assert all(0 <= seed < 2**48 for seed in first)


def test_another_seed_gives_other_points() -> None:
    before, after = ids(planned(**BASE)), ids(planned(**BASE, seed=1))
    assert before[0] == after[0]
    assert set(before[1]).isdisjoint(after[1])
    assert set(before[2]).isdisjoint(after[2])


def test_a_local_model_is_identified_by_its_content(tmp_path: Path) -> None:
    first = model_folder(tmp_path / "first")
    shutil.copytree(first, tmp_path / "copy")
    a = planned(tmp_path / "x.yaml", model={"id": "./first"})
    b = planned(tmp_path / "x.yaml", model={"id": "./copy"})
    assert ids(a) == ids(b)
    assert a.deployments[0].settings.model == str(first)


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_local_model_with_other_content_is_another_deployment(
    tmp_path: Path, change: str
) -> None:
    folder = model_folder(tmp_path / "m")
    before = ids(planned(tmp_path / "x.yaml", model={"id": "./m"}))
    (folder / change).write_text("something else")
    assert set(before[0]).isdisjoint(ids(planned(tmp_path / "x.yaml", model={"id": "./m"}))[0])


@pytest.mark.parametrize("name", ["m/model.safetensors", "m.gguf"])
@pytest.mark.parametrize("place", [0, 3 << 20, -1], ids=["start", "inside", "end"])
def test_weights_of_equal_size_differ_by_content(tmp_path: Path, name: str, place: int) -> None:
    """Another calibration, another fine-tune, another quantization of equal width: shapes and sizes
    are the same.
    """
    model_folder(tmp_path / "m")
    weights = bytearray(b"GGUF" + bytes(6 << 20))
    (tmp_path / name).write_bytes(weights)
    model = {"id": name.removesuffix("/model.safetensors")}
    before = ids(planned(tmp_path / "x.yaml", model=model))[0]
    # a sixteenth of the file, as if one layer was trained further
    part = (
        slice(place, (place + len(weights) // 16))
        if place >= 0
        else slice(-len(weights) // 16, None)
    )
    weights[part] = b"\1" * len(weights[part])
    (tmp_path / name).write_bytes(weights)
    assert set(before).isdisjoint(ids(planned(tmp_path / "x.yaml", model=model))[0])


def test_a_gguf_model_is_identified_by_all_its_parts(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for part in (1, 2):
            (tmp_path / folder / f"x-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    first, moved = (
        identity.model_digest(str(tmp_path / name))
        for name in ("a/x-00001-of-00002.gguf", "b/x-00001-of-00002.gguf")
    )
    assert first == moved is not None
    (tmp_path / "a" / "x-00002-of-00002.gguf").write_bytes(b"GGUf")
    assert identity.model_digest(str(tmp_path / "a/x-00001-of-00002.gguf")) != first


@pytest.mark.parametrize("place", ["build", "build/bin/llama-server", "link"])
@pytest.mark.parametrize(
    ("name", "content", "is_other"),
    [
        ("llama-server", b"\x7fELF two", True),
        ("libllama.so.0", b"\x7fELF two", True),
        ("llama-quantize", b"\x7fELF two", False),
        ("pip", b"#!/b/python", False),
    ],
)
def test_a_program_that_is_built_anew_is_another_deployment(
    tmp_path: Path, place: str, name: str, content: bytes, is_other: bool
) -> None:
    programs = tmp_path / "build" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "link").symlink_to(programs / "llama-server")
    for one in ("llama-server", "libllama.so.0", "llama-quantize"):
        (programs / one).write_bytes(b"\x7fELF one")
    (programs / "pip").write_bytes(b"#!/a/python")
    deployments = {"engine": "llama_cpp", "max_model_len": 1024, "executable": f"./{place}"}
    before = ids(planned(tmp_path / "x.yaml", deployments=deployments))[0]
    (programs / name).write_bytes(content)
    assert (ids(planned(tmp_path / "x.yaml", deployments=deployments))[0] != before) is is_other


def test_draft_models_are_known_by_their_content_too(tmp_path: Path) -> None:
    model_folder(tmp_path / "draft")
    shutil.copytree(tmp_path / "draft", tmp_path / "copy")

    def planned_with(draft: str) -> list[str]:
        speculative = {"method": "draft_model", "num_speculative_tokens": 2, "model": draft}
        deployments = {"engine": "vllm", "speculative": speculative}
        return [
            deployment.id
            for deployment in planned(tmp_path / "x.yaml", deployments=deployments).deployments
        ]

    first = planned_with("./draft")
    assert planned_with("./copy") == first
    assert planned_with("org/draft") != first
    (tmp_path / "draft" / "config.json").write_text("{}")
    assert planned_with("./draft") != first


def test_comments_order_and_spelling_of_the_file_change_no_id() -> None:
    one = """
version: 1
name: small
model: org/model
deployments: {engine: vllm, env: {A: "1", B: "2"}, vary: [{grid: {tensor_parallel_size: [1, 2]}}]}
workloads: [{name: chat, input_tokens: 100, output_tokens: 20}]
load: {levels: {request_rate: [1, 2]}, duration: 60s}
"""
    other = """
# the same
load: {duration: 1m, levels: {request_rate: [2.0, 1.0]}}
name: small
workloads:
  - {output_tokens: {fixed: 20}, kind: random, input_tokens: 100, name: chat}   # spelled out
deployments:
  vary: [{cases: [{tensor_parallel_size: 2}, {}]}]
  env: {B: "2", A: "1"}
  engine: vllm
model: {id: org/model}
version: 1
"""
    plans = [ids(make_plan(parse_experiment(text, "x.yaml"))) for text in (one, other)]
    assert [set(names) for names in plans[0]] == [set(names) for names in plans[1]]


def test_an_upgrade_of_a_local_engine_is_another_deployment(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.31.0.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    found = []
    for executable in ("venv", "venv/bin/vllm"):
        deployments = {"engine": "vllm", "executable": f"./{executable}"}
        found.append(ids(planned(tmp_path / "x.yaml", deployments=deployments))[0])
    assert identity.installed_version(str(tmp_path / "venv" / "bin" / "vllm"), "vllm") == "0.31.0"
    (packages / "vllm-0.31.0.dist-info").rename(packages / "vllm-0.32.0+cpu.dist-info")
    assert identity.installed_version(str(tmp_path / "venv"), "vllm") == "0.32.0+cpu"
    for executable, before in zip(("venv", "venv/bin/vllm"), found, strict=True):
        deployments = {"engine": "vllm", "executable": f"./{executable}"}
        assert ids(planned(tmp_path / "x.yaml", deployments=deployments))[0] != before


@pytest.mark.parametrize(
    ("line", "is_other"),
    [
        ("vllm/_C.abi3.so,sha256=two,9", True),
        ("../../../bin/vllm,sha256=two,9", False),  # the path of its interpreter stands in it
        ("vllm-0.32.0.dist-info/direct_url.json,sha256=two,9", False),
        ("vllm/__pycache__/version.cpython-311.pyc,,", False),
    ],
)
def test_a_wheel_that_is_built_anew_under_its_version_is_another_deployment(
    tmp_path: Path, line: str, is_other: bool
) -> None:
    record = tmp_path / "venv/lib/python3.11/site-packages/vllm-0.32.0.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    found = []
    for lines in (["vllm/version.py,sha256=one,9"], [line, "vllm/version.py,sha256=one,9"]):
        record.write_text("\n".join(lines))
        found += ids(
            planned(tmp_path / "x.yaml", deployments={"engine": "vllm", "executable": "./venv"})
        )[:1]
    assert (found[0] != found[1]) is is_other


def test_a_written_version_needs_no_installed_wheel(
    tmp_path: Path,
) -> None:
    deployments = {"engine": "vllm", "executable": "./venv", "engine_version": "0.32.0"}
    before = ids(planned(tmp_path / "x.yaml", deployments=deployments))
    record = tmp_path / "venv/lib/python3.11/site-packages/vllm-0.32.0.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("vllm/version.py,sha256=one,9")
    assert ids(planned(tmp_path / "x.yaml", deployments=deployments)) == before


def test_a_trace_is_known_by_its_content(tmp_path: Path) -> None:
    load = {**RATE, "arrivals": {"process": "trace", "trace": "t.txt"}}
    found = []
    for text in ("0.0\n0.5\n2.0\n", "0.0\n1.0\n2.0\n", "0.0\n0.5\n2.0\n"):
        (tmp_path / "t.txt").write_text(text)
        found.append(ids(planned(tmp_path / "x.yaml", load=load))[1])
    assert found[0] == found[2] != found[1]


def test_prompts_are_known_by_their_content_and_not_by_their_place(tmp_path: Path) -> None:
    workload = {"name": "w", "kind": "file", "prompts": "p.txt", "output_tokens": 1}
    found = []
    for folder, text in (("a", "one\n"), ("b", "two\n"), ("c", "one\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.txt").write_text(text)
        plan = planned(tmp_path / folder / "x.yaml", workloads=[workload])
        one = plan.points[0].workload
        assert isinstance(one, FileWorkload)
        assert one.prompts == str(tmp_path / folder / "p.txt")
        assert one.prompts_digest == identity.file_digest(str(tmp_path / folder / "p.txt"))
        found.append(ids(plan))
    assert found[0] == found[2]
    assert found[0][0] == found[1][0]
    assert not set(found[0][1]) & set(found[1][1])


def test_a_frozen_plan_keeps_its_ids_where_its_prompts_are_not(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n")
    workload = {"name": "w", "kind": "file", "prompts": "p.txt", "output_tokens": 1}
    plan = planned(tmp_path / "x.yaml", workloads=[workload])
    before = [measurement.measurement_id for measurement in measurements(plan)]
    (tmp_path / "p.txt").unlink()
    assert [
        measurement.measurement_id for measurement in measurements(Plan.from_json(plan.to_json()))
    ] == before


def test_the_place_of_the_experiment_changes_no_id_with_relative_paths(tmp_path: Path) -> None:
    found = []
    for name in ("here", "there"):
        model_folder(tmp_path / name)
        deployments = {"engine": "vllm", "executable": "../engines/vllm"}
        found.append(
            ids(planned(tmp_path / name / "x.yaml", model={"id": "."}, deployments=deployments))
        )
    assert found[0] == found[1]

"""What every engine of the registry promises, third parties' included."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest

from orchestrator.engines.command import Command, Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.schemas import ENGINE_METRICS
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.contract import recorded

KEY = "k3y-that-must-not-be-seen"
CPU = Hardware(name="cpu")
GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
NODE = Node(
    port=21001, master_port=21002, extra_ports=(21003, 21004, 21005, 21006), devices=("0", "1"), cores=(0, 1),
    workdir="/run/launch", launch_id="01L", model_path="/models/tiny",
)  # fmt: skip
# A value for every field that is not the default; a field that is added without one fails below.
SAMPLES: dict[str, Any] = {
    "revision": "abc", "served_model_name": "other", "trust_remote_code": True,
    "hf_overrides": {"a": 1}, "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2,
    "enable_expert_parallel": True, "distributed_executor_backend": "mp", "dtype": "float32",
    "quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8", "max_model_len": 512, "max_input_len": 256,
    "max_num_seqs": 7, "max_num_batched_tokens": 777, "max_num_queued_reqs": 77, "scheduling_policy": "priority",
    "enable_chunked_prefill": False, "enable_prefix_caching": False, "stream_interval": 3,
    "scheduler_recv_interval": 9,
    "gpu_memory_utilization": 0.55, "kv_cache_tokens": 12345, "kv_cache_memory_bytes": 7654321, "block_size": 64,
    "cpu_offload_gb": 3.0, "enforce_eager": True, "speculative": {"method": "mtp", "num_speculative_tokens": 5},
    "guided_decoding_backend": "xgrammar", "load_format": "dummy", "enable_lora": True, "lora_modules": {"a": "/l"},
    "max_loras": 3, "max_lora_rank": 64, "attention_backend": "FLASH_ATTN", "kv_transfer_config": {"k": 1},
    "url": "http://x", "endpoint_gpus": 3, "profile": "h100", "api_key_env": "X", "extra_args": {"--zzz": 1},
    "env": {"ZZZ": "1"},
}  # fmt: skip
# These say where and how often, not what the engine is told.
ELSEWHERE = {
    "engine",
    "engine_version",
    "executable",
    "image",
    "container_runtime",
    "container_args",
    "model",
}
ELSEWHERE |= {"nnodes", "replicas", "startup_timeout_s", "tokenizer", "roles", "router"}


def engine(name: str) -> Engine:
    return ENGINES[name]


def settings(name: str, **given: Any) -> EngineSettings:
    where = {"url": "http://127.0.0.1:1"} if name == "endpoint" else {}
    return EngineSettings.model_validate(
        {"engine": name, "model": "acme/tiny"} | where | recorded.NEEDED.get(name, {}) | given
    )


def told(command: Command) -> tuple[Any, ...]:
    return command.argv, command.env, command.files


def heeded(name: str, command: Command) -> tuple[Any, ...]:
    """What the engine is told, without the flags that its source takes and does nothing with."""
    ignored, argv, index = recorded.ignored(name, command.argv), [], 0
    while index < len(command.argv):
        skipped = command.argv[index] in ignored
        argv += [] if skipped else [command.argv[index]]
        index += 1
        while skipped and index < len(command.argv) and not command.argv[index].startswith("-"):
            index += 1
    return argv, command.env, command.files


# Where the sample is what an engine does anyway and has no flag for, another value must make the
# difference.
ANYWAY = {("lmdeploy", "enable_prefix_caching"): True}
LAUNCHED = [name for name in ENGINES.names() if ENGINES[name].launches]


def test_there_is_a_sample_for_every_field() -> None:
    assert set(EngineSettings.model_fields) == set(SAMPLES) | ELSEWHERE


@pytest.mark.parametrize("name", ENGINES.names())
def test_it_says_what_it_is(name: str) -> None:
    made = engine(name)
    assert made.name == name
    assert made.ready_path.startswith("/")
    assert made.metrics_path is None or made.metrics_path.startswith("/")
    assert made.reset_path is None or made.reset_path.startswith("/")
    assert set(made.metrics) <= set(ENGINE_METRICS.names), (
        "one name for one thing, whatever the engine"
    )
    assert not made.metrics or made.metrics_path is not None


def test_of_ours_one_is_emulated_and_one_launches_nothing() -> None:
    assert engine("emulator").emulated
    assert not engine("vllm").emulated
    assert engine("vllm").launches
    assert not engine("endpoint").launches


@pytest.mark.parametrize("name", ENGINES.names())
def test_the_simplest_settings_are_no_problem(name: str) -> None:
    assert problems_of(engine(name), settings(name), GPU) == []


@pytest.mark.parametrize("name", ENGINES.names())
def test_an_engine_runs_on_a_cpu_or_says_that_it_does_not_or_what_it_must_be_told(
    name: str,
) -> None:
    fields = [problem.split(":")[0] for problem in problems_of(engine(name), settings(name), CPU)]
    if fields and fields != ["hardware"]:
        given = {field: SAMPLES[field] for field in fields}
        assert problems_of(engine(name), settings(name, **given), CPU) == []


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("field", sorted(SAMPLES))
def test_a_field_is_refused_by_name_or_reaches_the_engine(name: str, field: str) -> None:
    made, given = engine(name), settings(name, **{field: ANYWAY.get((name, field), SAMPLES[field])})
    refused = [problem for problem in problems_of(made, given, GPU) if field in problem]
    if refused:
        return
    plain = made.command(settings(name), GPU, NODE, KEY)
    assert heeded(name, made.command(given, GPU, NODE, KEY)) != heeded(name, plain), (
        f"{field} is dropped silently"
    )


@pytest.mark.parametrize("name", [name for name in recorded.WITH_FLAGS if name in LAUNCHED])
def test_no_flag_is_given_that_the_engine_does_nothing_with(name: str) -> None:
    made = engine(name)
    for given in (
        {},
        recorded.fullest(name),
        *({field: value} for field, value in recorded.fullest(name).items()),
    ):
        if not problems_of(made, settings(name, **given), GPU):
            argv = made.command(settings(name, **given), GPU, NODE, KEY).argv
            assert not recorded.ignored(name, argv) & set(argv)


def test_a_flag_that_is_ignored_is_known_by_what_else_is_said() -> None:
    assert "--eager-mode" in recorded.ignored(
        "lmdeploy", ("--backend", "turbomind", "--eager-mode")
    )
    assert "--eager-mode" not in recorded.ignored(
        "lmdeploy", ("--backend", "pytorch", "--eager-mode")
    )
    loose = Command(("lmdeploy", "--backend", "turbomind", "--revision", "abc", "--tp", "2"))
    assert heeded("lmdeploy", loose)[0] == ["lmdeploy", "--backend", "turbomind", "--tp", "2"]


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize(
    "field", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"]
)
def test_several_nodes_are_refused_or_every_rank_knows_where_to_meet(name: str, field: str) -> None:
    made, given = engine(name), settings(name, nnodes=2, **{field: 2})
    if problems_of(made, given, GPU) or made.emulated:  # one process imitates all nodes
        return
    first = made.command(given, GPU, NODE, KEY)
    second = made.command(
        given, GPU, Node(rank=1, master_host="10.9.8.7", master_port=21777, launch_id="01L"), KEY
    )
    assert first.argv != second.argv
    said = " ".join([*second.argv, *second.env.values(), *second.files.values()])
    assert "10.9.8.7" in said
    assert "21777" in said


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize(
    "given", [{}, {"image": "x/y:1"}, {"image": "x.sif", "container_runtime": "apptainer"}]
)
def test_the_key_is_a_secret_or_nowhere(name: str, given: dict[str, str]) -> None:
    made = engine(name)
    if problems_of(made, settings(name, **given), GPU):
        return
    command = made.command(settings(name, **given), GPU, NODE, KEY)
    assert KEY not in repr(command)
    assert KEY not in " ".join(
        [*command.argv, *command.env.values(), *command.files.values(), *command.notes]
    )


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_command_is_a_pure_function_of_its_arguments(name: str) -> None:
    made = engine(name)
    assert made.command(settings(name), GPU, NODE, KEY) == made.command(
        settings(name), GPU, NODE, KEY
    )


@pytest.mark.parametrize("name", ENGINES.names())
@pytest.mark.parametrize("hardware", [GPU, CPU])
def test_what_it_pins_was_left_open_is_said_and_changes_nothing_when_written_down(
    name: str, hardware: Hardware
) -> None:
    made, given = engine(name), settings(name)
    pins = made.open_pins(given, hardware)
    assert not set(pins) & set(given.without_defaults())
    if not made.launches or problems_of(made, given, hardware):
        return
    command = made.command(given, hardware, NODE, KEY)
    assert [
        note
        for field in pins
        for note in command.notes
        if note.startswith(f"{field}={pins[field]} ")
    ] == [note for note in command.notes if "pinned" in note]
    written = given.model_copy(update=pins)
    assert made.open_pins(written, hardware) == {}
    assert told(made.command(written, hardware, NODE, KEY)) == told(command)


@pytest.mark.parametrize("name", LAUNCHED)
def test_it_listens_where_it_is_told(name: str) -> None:
    command = engine(name).command(settings(name), GPU, NODE, KEY)
    said = " ".join([*command.argv, *command.env.values(), *command.files.values()])
    assert "21001" in said
    assert "127.0.0.1" in said


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_venv_or_an_executable_may_be_named(name: str, tmp_path: Any) -> None:
    made = engine(name)
    if problems_of(made, settings(name, executable="/opt/x"), GPU):
        return
    in_venv = made.command(settings(name, executable=str(tmp_path)), GPU, NODE, KEY)
    assert in_venv.argv[0].startswith(f"{tmp_path}/bin/")
    assert (
        made.command(settings(name, executable="/opt/x/prog"), GPU, NODE, KEY).argv[0]
        == "/opt/x/prog"
    )


@pytest.mark.parametrize("name", ENGINES.names())
def test_its_dialects_are_whole_and_cross_process_borders(name: str) -> None:
    dialects = engine(name).dialects(settings(name))
    assert dialects
    for dialect in dialects.values():
        assert dialect.wire in WIRES
        assert dialect.path.startswith("/")
        assert pickle.loads(pickle.dumps(dialect)) == dialect
        assert not dialect.continuous_usage or dialect.include_usage, "the one needs the other"


@pytest.mark.parametrize("name", ENGINES.names())
def test_nothing_is_reported_from_an_empty_log(name: str) -> None:
    assert engine(name).reported("") == {}


@pytest.mark.parametrize("name", ENGINES.names())
def test_the_served_name_is_stable_and_not_empty(name: str) -> None:
    made = engine(name)
    assert made.served_name(settings(name), NODE) == made.served_name(settings(name), NODE) != ""


def test_a_command_hides_its_secrets_from_repr() -> None:
    assert "hidden" not in repr(Command(("x",), secrets={"A": "hidden"}))
    assert "secrets" in {field.name for field in fields(Command)}

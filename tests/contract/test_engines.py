"""What every engine of the registry promises, those of third parties included."""

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
# These say where and how often an engine runs; its command line does not have them.
BESIDE_COMMAND = {
    "engine",
    "engine_version",
    "executable",
    "image",
    "container_runtime",
    "container_args",
    "model",
}
BESIDE_COMMAND |= {"nnodes", "replicas", "startup_timeout_s", "tokenizer", "roles", "router"}


def engine(name: str) -> Engine:
    return ENGINES[name]


def settings(name: str, **given: Any) -> EngineSettings:
    url = {"url": "http://127.0.0.1:1"} if name == "endpoint" else {}
    return EngineSettings.model_validate(
        {"engine": name, "model": "acme/tiny"} | url | recorded.NEEDED.get(name, {}) | given
    )


def arguments(command: Command) -> tuple[Any, ...]:
    """All that an engine gets with a command: words, variables and files."""
    return command.argv, command.env, command.files


def effective_arguments(name: str, command: Command) -> tuple[Any, ...]:
    """The arguments of an engine without the flags that its source takes and does nothing with."""
    ignored = recorded.ignored(name, command.argv)
    argv = []
    is_skipped = False
    for word in command.argv:
        if word in ignored or word.startswith("-"):
            is_skipped = word in ignored  # with its values, up to the next flag
        if not is_skipped:
            argv.append(word)
    return argv, command.env, command.files


def text_of(command: Command) -> str:
    """All arguments of a command as one text."""
    return " ".join([*command.argv, *command.env.values(), *command.files.values()])


# Fields whose sample an engine has no flag for, because it does that anyway: here another value must
# make a difference.
OTHER_SAMPLES = {("lmdeploy", "enable_prefix_caching"): True}
LAUNCHED = [name for name in ENGINES.names() if ENGINES[name].launches]


def test_there_is_a_sample_for_every_field() -> None:
    assert set(EngineSettings.model_fields) == set(SAMPLES) | BESIDE_COMMAND


@pytest.mark.parametrize("name", ENGINES.names())
def test_names_paths_and_metrics_are_well_formed(name: str) -> None:
    tested = engine(name)
    assert tested.name == name
    assert tested.ready_path.startswith("/")
    assert tested.metrics_path is None or tested.metrics_path.startswith("/")
    assert tested.reset_path is None or tested.reset_path.startswith("/")
    assert set(tested.metrics) <= set(ENGINE_METRICS.names), (
        "all engines have one name for a metric"
    )
    assert not tested.metrics or tested.metrics_path is not None


def test_only_the_emulator_is_emulated_and_only_the_endpoint_launches_nothing() -> None:
    assert engine("emulator").emulated
    assert not engine("vllm").emulated
    assert engine("vllm").launches
    assert not engine("endpoint").launches


@pytest.mark.parametrize("name", ENGINES.names())
def test_the_simplest_settings_are_no_problem(name: str) -> None:
    assert problems_of(engine(name), settings(name), GPU) == []


@pytest.mark.parametrize("name", ENGINES.names())
def test_an_engine_runs_on_a_cpu_or_says_that_it_does_not_or_which_fields_it_needs(
    name: str,
) -> None:
    fields = [problem.split(":")[0] for problem in problems_of(engine(name), settings(name), CPU)]
    if fields and fields != ["hardware"]:
        given = {field: SAMPLES[field] for field in fields}
        assert problems_of(engine(name), settings(name, **given), CPU) == []


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("field", sorted(SAMPLES))
def test_a_field_is_refused_by_name_or_reaches_the_engine(name: str, field: str) -> None:
    tested = engine(name)
    sample = OTHER_SAMPLES.get((name, field), SAMPLES[field])
    given = settings(name, **{field: sample})
    refused = [problem for problem in problems_of(tested, given, GPU) if field in problem]
    if refused:
        return
    without_field = effective_arguments(name, tested.command(settings(name), GPU, NODE, KEY))
    with_field = effective_arguments(name, tested.command(given, GPU, NODE, KEY))
    assert with_field != without_field, f"{field} is dropped silently"


@pytest.mark.parametrize("name", [name for name in recorded.WITH_FLAGS if name in LAUNCHED])
def test_no_flag_is_given_that_the_engine_does_nothing_with(name: str) -> None:
    tested = engine(name)
    for given in (
        {},
        recorded.fullest(name),
        *({field: value} for field, value in recorded.fullest(name).items()),
    ):
        if not problems_of(tested, settings(name, **given), GPU):
            argv = tested.command(settings(name, **given), GPU, NODE, KEY).argv
            assert not recorded.ignored(name, argv) & set(argv)


def test_whether_a_flag_is_ignored_depends_on_the_other_flags() -> None:
    assert "--eager-mode" in recorded.ignored(
        "lmdeploy", ("--backend", "turbomind", "--eager-mode")
    )
    assert "--eager-mode" not in recorded.ignored(
        "lmdeploy", ("--backend", "pytorch", "--eager-mode")
    )
    loose = Command(("lmdeploy", "--backend", "turbomind", "--revision", "abc", "--tp", "2"))
    assert effective_arguments("lmdeploy", loose)[0] == [
        "lmdeploy",
        "--backend",
        "turbomind",
        "--tp",
        "2",
    ]


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize(
    "field", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"]
)
def test_several_nodes_are_refused_or_every_rank_knows_where_to_meet(name: str, field: str) -> None:
    tested = engine(name)
    given = settings(name, nnodes=2, **{field: 2})
    if problems_of(tested, given, GPU) or tested.emulated:  # one process imitates all nodes
        return
    first = tested.command(given, GPU, NODE, KEY)
    second = tested.command(
        given, GPU, Node(rank=1, master_host="10.9.8.7", master_port=21777, launch_id="01L"), KEY
    )
    assert first.argv != second.argv
    text = text_of(second)
    assert "10.9.8.7" in text
    assert "21777" in text


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize(
    "given", [{}, {"image": "x/y:1"}, {"image": "x.sif", "container_runtime": "apptainer"}]
)
def test_the_key_is_a_secret_or_nowhere(name: str, given: dict[str, str]) -> None:
    tested = engine(name)
    if problems_of(tested, settings(name, **given), GPU):
        return
    command = tested.command(settings(name, **given), GPU, NODE, KEY)
    assert KEY not in repr(command)
    assert KEY not in text_of(command)
    assert KEY not in " ".join(command.notes)


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_command_is_a_pure_function_of_its_arguments(name: str) -> None:
    tested = engine(name)
    assert tested.command(settings(name), GPU, NODE, KEY) == tested.command(
        settings(name), GPU, NODE, KEY
    )


@pytest.mark.parametrize("name", ENGINES.names())
@pytest.mark.parametrize("hardware", [GPU, CPU])
def test_only_open_fields_are_pinned_with_a_note_and_writing_them_down_changes_nothing(
    name: str, hardware: Hardware
) -> None:
    tested = engine(name)
    given = settings(name)
    pins = tested.open_pins(given, hardware)
    assert not set(pins) & set(given.without_defaults())
    if not tested.launches or problems_of(tested, given, hardware):
        return
    command = tested.command(given, hardware, NODE, KEY)
    notes_of_pins = [
        note
        for field in pins
        for note in command.notes
        if note.startswith(f"{field}={pins[field]} ")
    ]
    assert notes_of_pins == [note for note in command.notes if "pinned" in note]
    written = given.model_copy(update=pins)
    assert tested.open_pins(written, hardware) == {}
    assert arguments(tested.command(written, hardware, NODE, KEY)) == arguments(command)


@pytest.mark.parametrize("name", LAUNCHED)
def test_it_listens_on_the_address_of_its_node(name: str) -> None:
    command = engine(name).command(settings(name), GPU, NODE, KEY)
    text = text_of(command)
    assert "21001" in text
    assert "127.0.0.1" in text


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_venv_or_an_executable_may_be_named(name: str, tmp_path: Any) -> None:
    tested = engine(name)
    if problems_of(tested, settings(name, executable="/opt/x"), GPU):
        return
    in_venv = tested.command(settings(name, executable=str(tmp_path)), GPU, NODE, KEY)
    assert in_venv.argv[0].startswith(f"{tmp_path}/bin/")
    assert (
        tested.command(settings(name, executable="/opt/x/prog"), GPU, NODE, KEY).argv[0]
        == "/opt/x/prog"
    )


@pytest.mark.parametrize("name", ENGINES.names())
def test_dialects_are_complete_and_survive_pickling(name: str) -> None:
    dialects = engine(name).dialects(settings(name))
    assert dialects
    for dialect in dialects.values():
        assert dialect.wire in WIRES
        assert dialect.path.startswith("/")
        assert pickle.loads(pickle.dumps(dialect)) == dialect
        assert not dialect.continuous_usage or dialect.include_usage, "running usage needs usage"


@pytest.mark.parametrize("name", ENGINES.names())
def test_nothing_is_reported_from_an_empty_log(name: str) -> None:
    assert engine(name).reported("") == {}


@pytest.mark.parametrize("name", ENGINES.names())
def test_the_served_name_is_stable_and_not_empty(name: str) -> None:
    tested = engine(name)
    assert (
        tested.served_name(settings(name), NODE) == tested.served_name(settings(name), NODE) != ""
    )


def test_a_command_hides_its_secrets_from_repr() -> None:
    assert "hidden" not in repr(Command(("x",), secrets={"A": "hidden"}))
    assert "secrets" in {field.name for field in fields(Command)}

"""The engine class and its profiles: what is imitated, what is refused, how the process is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.emulator.flags import options_of, parser
from orchestrator.emulator.profile import Profile, device_of, facts_of, load_profile
from orchestrator.emulator.server import start_failure, start_lines
from orchestrator.engines.command import Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from tests.unit.emulator.builders import a_replica, device, facts

EMULATOR = ENGINES["emulator"]
H100 = Hardware(name="h100", accelerator="H100-80GB")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def settings(**changes: Any) -> EngineSettings:
    return EngineSettings(**{"engine": "emulator", "model": LLAMA} | changes)


def test_the_emulator_says_that_it_is_one() -> None:
    assert (EMULATOR.name, EMULATOR.launches, EMULATOR.emulated) == ("emulator", True, True)


def test_parallelism_batching_and_quantization_are_imitated() -> None:
    asked = settings(
        tensor_parallel_size=4, pipeline_parallel_size=2, nnodes=2, quantization="fp8_per_tensor", max_num_seqs=128,
        enable_prefix_caching=False, kv_cache_dtype="fp8", enforce_eager=True, load_format="dummy",
    )  # fmt: skip
    assert problems_of(EMULATOR, asked, H100) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"speculative": Speculative(method="ngram", num_speculative_tokens=3)},
            "speculative decoding",
        ),
        ({"enable_lora": True}, "LoRA"),
        ({"image": "x"}, "part of this program"),
        ({"profile": "no-such-gpu"}, "unknown accelerator"),
        ({"profile": "H100-80GB/no-such-model"}, "unknown model"),
        ({"extra_args": {"--no-such-flag": 1}}, "has no flag"),
        ({"extra_args": {"--port": 1}}, "set by this program"),
        ({"extra_args": {"--fault": "explode"}}, "--fault"),
        (
            {"extra_args": {"--profile": "A100-80GB/meta-llama/Llama-3.1-8B-Instruct"}},
            "the field profile",
        ),
        ({"extra_args": {"--set": ["max_num_seqs=1"]}}, "the fields themselves"),
    ],
)
def test_what_has_no_place_in_the_model_is_refused_with_the_reason(
    changes: dict[str, Any], words: str
) -> None:
    problems = problems_of(EMULATOR, settings(**changes), H100)
    assert len(problems) == 1
    assert words in problems[0]


def test_a_batch_without_chunked_prefill_holds_the_longest_prompt_as_vllms_does() -> None:
    pins = EMULATOR.pins(settings(enable_chunked_prefill=False, max_model_len=16384), H100)
    assert pins["max_num_batched_tokens"] == 16384


def test_all_problems_are_found_at_once() -> None:
    assert (
        len(
            problems_of(
                EMULATOR, settings(enable_lora=True, cpu_offload_gb=1, extra_args={"--x": 1}), H100
            )
        )
        == 3
    )


def test_the_command_names_its_config_and_keeps_the_key_out_of_argv(tmp_path: Path) -> None:
    node = Node(port=21234, workdir=str(tmp_path), launch_id="L1", devices=("0",))
    faults = {"--fault": ["stall_at_request=3", "orphan"]}
    command = EMULATOR.command(
        settings(env={"A": "b"}, extra_args=faults), H100, node, "secret-key"
    )
    assert "secret-key" not in " ".join(command.argv) + json.dumps(command.files) + json.dumps(
        command.env
    )
    assert "secret-key" in command.secrets.values()
    assert command.env["A"] == "b"
    for name, text in command.files.items():
        (tmp_path / name).write_text(text)
    options = options_of(parser().parse_args(command.argv[3:]))
    assert (options.port, options.model, options.headless) == (
        21234,
        EMULATOR.served_name(settings(), node),
        False,
    )
    assert (options.profile.faults.stall_at_request, options.profile.faults.orphan) == (3, True)
    assert (options.settings.model, options.hardware) == (LLAMA, H100)


def test_ranks_above_zero_serve_nothing(tmp_path: Path) -> None:
    assert (
        "--headless"
        in EMULATOR.command(settings(), H100, Node(rank=1, workdir=str(tmp_path)), "k").argv
    )


def test_what_is_said_at_start_is_read_back() -> None:
    model = a_replica(kv_cache_tokens=123_456)
    reported = EMULATOR.reported("\n".join(start_lines(facts(), device(), model)))
    assert reported["kv_cache_tokens"] == 123_456
    assert reported["max_model_len"] == 8192
    assert reported["max_concurrency"] == pytest.approx(15.07)
    assert reported["weight_bytes"] == pytest.approx(model.estimate.weight_bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("memory_bytes", "words"),
    [
        (8 * 10**9, "CUDA out of memory"),
        (17 * 10**9, "No available memory for the cache blocks"),
        (80 * 10**9, None),
    ],
)
def test_a_model_that_does_not_fit_fails_at_start_in_vllms_words(
    memory_bytes: int, words: str | None
) -> None:
    from orchestrator.emulator.model import replica

    small = device(memory_bytes=memory_bytes)
    failure = start_failure(
        small, replica(settings(), facts(), small, load_profile(None).constants)
    )
    assert (words is None and failure is None) or (words is not None and words in (failure or ""))


def test_a_sequence_that_does_not_fit_fails_at_start_in_vllms_words() -> None:
    failure = start_failure(device(), a_replica(kv_cache_tokens=1000))
    assert "To serve at least one request with the model's max seq len (8192)" in (failure or "")


def profile_from(tmp_path: Path, text: str, name: str = "profile.yaml") -> Profile:
    (tmp_path / name).write_text(text)
    return load_profile(str(tmp_path / name))


def test_every_wrong_line_of_a_profile_is_reported(tmp_path: Path) -> None:
    wrong = (
        "accelerator: H100\nconstants: {bandwidth_efficiency: -1}\nfaults:\n  die_at_request: "
        "x\n  stat: oom\n"
    )
    with pytest.raises(ProblemsError) as caught:
        profile_from(tmp_path, wrong)
    assert {one.file for one in caught.value.problems} == {str(tmp_path / "profile.yaml")}
    assert [
        (one.line, one.message.partition(" must")[0], one.hint) for one in caught.value.problems
    ] == [
        (2, "'bandwidth_efficiency'", None),
        (4, "'die_at_request'", None),
        (5, "unknown key 'stat'", "did you mean 'start'?"),
    ]


def test_a_wrong_figure_of_a_profiles_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="2: 'memory_gb' must be above 0, not -3"):
        profile_from(
            tmp_path, "accelerator:\n  {memory_gb: -3, bandwidth_gb_s: 1, tflops: {fp8: 1}}\n"
        )


@pytest.mark.parametrize("text", ["", "# nothing\n", "constants: {}\n"])
def test_an_empty_profile_is_that_of_the_deployment(tmp_path: Path, text: str) -> None:
    assert profile_from(tmp_path, text) == Profile()


def test_numbers_of_profiles_are_read_however_they_are_written(tmp_path: Path) -> None:
    constants = {
        "step_overhead_s": 1e-3,
        "sequence_overhead_s": 2.5e-06,
        "link_efficiency": 1.0,
        "prefill_first": True,
    }
    given = {"constants": constants, "model": {"rms_norm_eps": 1e-6}, "default_output_tokens": 7}
    expected = Profile.model_validate(given)
    texts = {
        "fit.yaml": yaml.safe_dump(given, sort_keys=False),  # as ``emulator fit`` writes them
        "plain.json": json.dumps(given),
        "tabs.json": json.dumps(given, indent="\t"),
        "own.yml": "constants: {step_overhead_s: 1e-3, sequence_overhead_s: 2.5E-6, "
        "link_efficiency: 1, "
        "prefill_first: yes}\nmodel: {rms_norm_eps: 0.000001}\ndefault_output_tokens: 7\n",
    }
    for name, text in texts.items():
        assert profile_from(tmp_path, text, name) == expected, name


def bomb(depth: int) -> str:
    """Mappings of ten merged mappings each, of ten merged ones each, and so on."""
    merged = (
        f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 10)}]}}\n" for at in range(1, depth)
    )
    return "a0: &a0 {x: 1}\n" + "".join(merged)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("merges.yaml", bomb(12), "holds more than 200,000 values"),
        ("deep.yaml", "[" * 3000, "is nested too deeply"),
        ("deep.json", '{"a":' * 100_000, "is nested too deeply"),
    ],
)
def test_a_profile_that_asks_for_too_much_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(ProblemsError, match=said):
        profile_from(tmp_path, text, name)


def test_a_profile_file_can_describe_a_device_and_a_model_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "accelerator: {name: new, memory_gb: 300, bandwidth_gb_s: 9000, tflops: {bfloat16: 3000}}\n"
        "model: {hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: "
        "1000, model_type: llama}\n"
    )
    profile = load_profile(str(path))
    assert device_of(profile, H100).bandwidth_bytes_s == 9e12
    assert facts_of(profile, settings()).shape.num_hidden_layers == 4


@pytest.mark.parametrize("text", ["constants: [1", "model: {hidden_size: 4}"])
def test_broken_profiles_are_input_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        facts_of(load_profile(str(path)), settings())


def test_without_a_profile_the_deployments_own_model_and_device_are_imitated() -> None:
    hardware = Hardware(name="a", accelerator="A100-80GB", memory_gb=70)
    profile = load_profile(None)
    assert device_of(profile, hardware).name == "A100-80GB"
    assert device_of(profile, hardware).memory_bytes == 70 * 10**9
    assert facts_of(profile, settings(model="Qwen/Qwen3-8B")).model_type == "qwen3"


def test_on_a_cpu_or_with_an_unknown_model_a_well_known_pair_is_imitated() -> None:
    assert device_of(load_profile(None), Hardware(name="cpu")).name == "H100-80GB"
    assert facts_of(load_profile(None), settings(model="never-heard-of")).model == LLAMA

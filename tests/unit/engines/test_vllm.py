"""vLLM: golden command lines, and every refusal with its reason."""

from __future__ import annotations

import json
import shlex

import pytest

from orchestrator.engines.command import Command, Node
from orchestrator.engines.problems import problems_of
from orchestrator.engines.vllm import ENGINE as VLLM
from orchestrator.node.process import inherited
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from tests.command_lines import by_flag

CPU = Hardware(name="cpu")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
NODE = Node(port=21001, launch_id="01L", cores=(2, 3), model_path="/models/tiny")


def settings(**given: object) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "acme/tiny"} | given)


def command(hardware: Hardware = CPU, node: Node = NODE, **given: object) -> Command:
    return VLLM.command(settings(**given), hardware, node, "k3y")


def problems(hardware: Hardware = H100, **given: object) -> str:
    return "\n".join(problems_of(VLLM, settings(**given), hardware))


def test_golden_one_rank_on_the_cpu() -> None:
    built = command(
        dtype="float32", max_model_len=2048, executable="/opt/vllm/bin/vllm", enforce_eager=True
    )
    assert by_flag(built.argv) == by_flag(
        "/opt/vllm/bin/vllm serve /models/tiny --host 127.0.0.1 --port 21001 --served-model-name "
        "tiny-01L "
        "--tensor-parallel-size 1 --pipeline-parallel-size 1 --dtype float32 --max-model-len 2048 "
        "--enforce-eager "
        "--max-num-seqs 128 --max-num-batched-tokens 2048 --kv-cache-memory-bytes 1073741824 "
        "--generation-config vllm --disable-uvicorn-access-log --enable-prompt-tokens-details"
    )
    assert built.env == {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "86400",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "2,3",
    }
    assert built.secrets == {"VLLM_API_KEY": "k3y"}
    assert built.notes == (
        "max_num_seqs=128 was left open and is pinned",
        "max_num_batched_tokens=2048 was left open and is pinned",
        "kv_cache_memory_bytes=1073741824 was left open and is pinned",
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_golden_two_nodes_of_eight_gpus(rank: int) -> None:
    node = Node(
        rank=rank,
        host=f"10.0.0.{rank + 1}",
        bind="10.0.0.1",
        port=21001,
        master_host="10.0.0.1",
        master_port=21002,
        devices=tuple("01234567"),
        launch_id="01L",
        model_path="acme/tiny",
    )
    built = command(
        H100, node, tensor_parallel_size=8, pipeline_parallel_size=2, nnodes=2, max_num_seqs=512,
        max_num_batched_tokens=16384, gpu_memory_utilization=0.9, revision="abc123",
    )  # fmt: skip
    listen, headless = ("--host 10.0.0.1 --port 21001 ", "") if rank == 0 else ("", " --headless")
    assert by_flag(built.argv) == by_flag(
        f"vllm serve acme/tiny {listen}--served-model-name tiny-01L --revision abc123 "
        "--tensor-parallel-size 8 "
        "--pipeline-parallel-size 2 --gpu-memory-utilization 0.9 --max-num-seqs 512 "
        "--max-num-batched-tokens 16384 "
        f"--nnodes 2 --node-rank {rank} --master-addr 10.0.0.1 --master-port 21002{headless} "
        "--generation-config vllm --disable-uvicorn-access-log --enable-prompt-tokens-details"
    )
    assert built.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert built.env["VLLM_HOST_IP"] == f"10.0.0.{rank + 1}"
    assert "HF_HUB_OFFLINE" not in built.env
    assert built.notes == ()
    assert built.grace_s == (0.5 if rank else None)


def test_golden_every_feature() -> None:
    built = command(
        H100, quantization="fp8_per_tensor", kv_cache_dtype="fp8", block_size=32, kv_cache_tokens=1000,
        max_num_seqs=8, max_num_batched_tokens=64, max_num_queued_reqs=0, scheduling_policy="priority",
        enable_chunked_prefill=False, enable_prefix_caching=True, stream_interval=2, cpu_offload_gb=4,
        speculative={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        load_format="dummy", attention_backend="FLASH_ATTN", trust_remote_code=True, tokenizer="/tok",
        hf_overrides={"num_hidden_layers": 2}, served_model_name="mine", enable_expert_parallel=True,
        distributed_executor_backend="mp", kv_transfer_config={"kv_connector": "X"}, dtype="bfloat16",
        extra_args={"--seed": 7, "--async-scheduling": True, "--off": False, "--middleware": ["a", "b"]},
    )  # fmt: skip
    assert by_flag(built.argv) == by_flag(
        "vllm serve /models/tiny --host 127.0.0.1 --port 21001 --served-model-name mine-01L mine "
        "--tokenizer /tok --trust-remote-code --hf-overrides '{\"num_hidden_layers\":2}' "
        "--tensor-parallel-size 1 --pipeline-parallel-size 1 --enable-expert-parallel "
        "--distributed-executor-backend mp --dtype bfloat16 --quantization fp8_per_tensor "
        "--kv-cache-dtype fp8 "
        "--max-num-queued-reqs 0 "
        "--scheduling-policy priority --no-enable-chunked-prefill --enable-prefix-caching "
        "--stream-interval 2 "
        "--cpu-offload-gb 4.0 --load-format dummy "
        '--attention-backend FLASH_ATTN --kv-transfer-config \'{"kv_connector":"X"}\' '
        "--max-num-seqs 8 --max-num-batched-tokens 64 --block-size 32 --num-gpu-blocks-override 32 "
        "--speculative-config "
        '\'{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}\' '
        "--generation-config vllm --disable-uvicorn-access-log --enable-prompt-tokens-details "
        "--seed 7 --async-scheduling --middleware a b"
    )
    assert (
        problems(
            scheduling_policy="priority",
            speculative={"method": "ngram", "num_speculative_tokens": 3},
        )
        == ""
    )


def test_data_parallel_ranks_are_dealt_to_nodes_in_whole() -> None:
    given = {"data_parallel_size": 4, "nnodes": 2, "tensor_parallel_size": 2}
    first = shlex.join(command(H100, Node(master_host="a", master_port=5), **given).argv)
    second = shlex.join(command(H100, Node(rank=1, master_host="a", master_port=5), **given).argv)
    common = (
        "--data-parallel-size 4 --data-parallel-address a --data-parallel-rpc-port 5 "
        "--data-parallel-size-local 2"
    )
    assert common in first
    assert f"{common} --data-parallel-start-rank 2 --headless" in second
    assert "--nnodes" not in first + second
    assert "--headless" not in first


@pytest.mark.parametrize(
    ("cores", "given", "binding"),
    [
        ((0, 1), {"tensor_parallel_size": 2}, "0|1"),
        ((0, 1, 2, 3), {"pipeline_parallel_size": 2}, "0,1|2,3"),
        ((0, 1, 2), {"tensor_parallel_size": 2}, "0|1"),
        ((5,), {"tensor_parallel_size": 2}, "5|5"),
        ((4,), {"tensor_parallel_size": 2, "nnodes": 2}, "4"),
        ((), {"tensor_parallel_size": 2}, "nobind"),
        ((), {}, None),
    ],
)
def test_every_local_rank_on_a_cpu_gets_its_own_cores(
    cores: tuple[int, ...], given: dict[str, object], binding: str | None
) -> None:
    assert command(CPU, Node(cores=cores), **given).env.get("VLLM_CPU_OMP_THREADS_BIND") == binding


@pytest.mark.parametrize(
    ("accelerator", "sequences", "tokens"),
    [
        ("L4", 256, 2048),
        ("A100-80GB", 256, 2048),
        ("H100-80GB", 1024, 8192),
        ("H20", 1024, 8192),
        ("B200", 1024, 16384),
        ("MI300X", 1024, 16384),
        ("any", 1024, 8192),
    ],
)
def test_batches_are_pinned_as_vllm_would_choose_them_for_the_gpu(
    accelerator: str, sequences: int, tokens: int
) -> None:
    pins = VLLM.open_pins(settings(), Hardware(name="x", accelerator=accelerator))
    assert pins == {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}


def test_fields_that_are_set_are_not_pinned() -> None:
    assert VLLM.open_pins(settings(max_num_seqs=5, max_num_batched_tokens=9), H100) == {}
    assert (
        VLLM.open_pins(
            settings(kv_cache_memory_bytes="2GiB", max_num_seqs=5, max_num_batched_tokens=9), CPU
        )
        == {}
    )


def test_the_kv_size_of_a_cpu_is_not_pinned_beside_its_variable() -> None:
    given = settings(env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert "kv_cache_memory_bytes" not in VLLM.open_pins(given, CPU)
    built = command(CPU, env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert "--kv-cache-memory-bytes" not in built.argv
    assert not [note for note in built.notes if "kv_cache_memory_bytes" in note]
    twice = settings(env={"VLLM_CPU_KVCACHE_SPACE": "4"}, kv_cache_memory_bytes="1GiB")
    assert "overrides it" in "\n".join(problems_of(VLLM, twice, CPU))
    assert problems_of(VLLM, twice, H100) == []


def test_a_variable_that_overrules_flags_is_not_inherited_from_the_node() -> None:
    node = {"VLLM_CPU_KVCACHE_SPACE": "4", "HOME": "/h"}
    assert inherited(node, command()) == {"HOME": "/h"}


def test_without_chunked_prefill_a_batch_can_hold_the_longest_prompt() -> None:
    pins = VLLM.open_pins(settings(enable_chunked_prefill=False, max_model_len=100_000), H100)
    assert pins["max_num_batched_tokens"] == 100_000


def test_the_users_environment_wins() -> None:
    assert (
        command(env={"VLLM_ENGINE_READY_TIMEOUT_S": "5", "MINE": "1"}).env[
            "VLLM_ENGINE_READY_TIMEOUT_S"
        ]
        == "5"
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_input_len": 5}, "max_input_len: vLLM limits input and output together"),
        ({"url": "http://x"}, "url: is for the engine `endpoint`"),
        (
            {"data_parallel_size": 3, "tensor_parallel_size": 2, "nnodes": 2},
            "vLLM takes whole ranks on a node or whole nodes for a rank",
        ),
        ({"extra_args": {"-dpl": 2}}, "-dpl is set by this program"),
        ({"distributed_executor_backend": "uni", "tensor_parallel_size": 2}, "uni runs one rank"),
        ({"quantization": "gguf"}, "quantization: gguf is no longer part of vLLM"),
        ({"kv_cache_tokens": 9, "kv_cache_memory_bytes": 9}, "leave one out"),
        ({"scheduling_policy": "lpm"}, "scheduling_policy: 'lpm' is none of fcfs, priority"),
        (
            {"speculative": {"method": "eagle", "num_speculative_tokens": 1}},
            "method eagle needs a model",
        ),
        (
            {"speculative": {"method": "ngram", "num_speculative_tokens": 1, "model": "m"}},
            "method ngram has no model",
        ),
        (
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 2}},
            "prompt_lookup_min and prompt_lookup_max are for ngram, not for mtp",
        ),
        ({"extra_args": {"--max-num-seqs": 3}}, "--max-num-seqs is set by the field max_num_seqs"),
        (
            {"extra_args": {"--max_model_len=4": True}},
            "--max_model_len=4 is set by the field max_model_len",
        ),
        (
            {"extra_args": {"--no-enable-prefix-caching": True}},
            "is set by the field enable_prefix_caching",
        ),
        ({"extra_args": {"-tp": 2}}, "-tp is set by the field tensor_parallel_size"),
        ({"extra_args": {"--port": 2}}, "--port is set by this program"),
        ({"extra_args": {"seed": 2}}, "extra_args: 'seed' is not a flag; write '--seed'"),
        (
            {"extra_args": {"--spec-method": "ngram"}, "speculative": NGRAM},
            "--spec-method is set by the field speculative",
        ),
        (
            {"extra_args": {"--spec-model": "/d"}, "speculative": NGRAM},
            "--spec-model is set by the field speculative",
        ),
        (
            {"extra_args": {"--spec-tokens": 5}, "speculative": NGRAM},
            "--spec-tokens is set by the field speculative",
        ),
    ],
)
def test_unsupported_settings_of_vllm_are_refused_with_the_reason(
    given: dict[str, object], sentence: str
) -> None:
    assert sentence in problems(**given)


def test_all_problems_come_at_once() -> None:
    assert (
        len(problems(max_input_len=5, url="x", quantization="gguf", max_lora_rank=7).splitlines())
        == 4
    )


def test_offloading_from_a_cpu_is_refused() -> None:
    assert "cpu_offload_gb" in problems(CPU, cpu_offload_gb=1)


def test_a_speculative_model_reaches_the_engine_whole() -> None:
    spec = Speculative(
        method="eagle3", num_speculative_tokens=4, model="acme/draft", draft_tensor_parallel_size=1
    )
    argv = command(H100, speculative=spec).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "eagle3",
        "num_speculative_tokens": 4,
        "model": "acme/draft",
        "draft_tensor_parallel_size": 1,
    }


def test_tokens_are_counted_exactly_and_prompts_are_token_ids() -> None:
    completions = VLLM.dialects(settings())["completions"]
    assert completions.prompt_token_ids
    assert completions.return_token_ids
    assert completions.allowed_fields is None

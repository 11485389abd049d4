"""Engines that cannot run here: golden command lines per engine and version, and refusals with
their reasons.

That their flags exist is checked in tests/contract/test_engine_flags.py.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from orchestrator.engines import ENGINES
from orchestrator.engines.command import Command, Node
from orchestrator.engines.problems import problems_of
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag

CPU = Hardware(name="cpu")
H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)


def settings(name: str, **given: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": name, "model": "acme/tiny"} | given)


def command(
    name: str, hardware: Hardware = H100, node: dict[str, Any] | None = None, **given: Any
) -> Command:
    usual = {
        "port": 21001,
        "master_port": 21002,
        "extra_ports": (21003,),
        "devices": ("0", "1"),
        "launch_id": "01L",
    }
    made = Node(**(usual | {"model_path": "/models/tiny"} | (node or {})))
    return ENGINES[name].command(settings(name, **given), hardware, made, "k3y")


def test_golden_sglang_0_5_23_on_two_nodes() -> None:
    given = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "nnodes": 2,
        "max_model_len": 8192,
    }
    node = {"rank": 1, "extra_ports": (21009,), "master_host": "10.0.0.1"}
    made = command(
        "sglang", node=node, executable="/opt/sglang/bin/python", enforce_eager=True, **given
    )
    assert made.argv[:2] == ("/opt/sglang/bin/python", "-c")
    assert made.argv[2] == (
        "import os, sys; from sglang.cli.main import main; "
        "sys.argv += ['--api-key', os.environ['ENGINE_API_KEY']]; sys.exit(main())"
    )
    assert by_flag(made.argv[3:]) == by_flag(
        "serve --model-path /models/tiny --host 127.0.0.1 --port 21009 --served-model-name tiny-01L --tp-size 8 "
        "--pp-size 2 --dp-size 1 --context-length 8192 --max-running-requests 1024 --max-prefill-tokens 8192 "
        "--chunked-prefill-size 8192 --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled "
        "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:21002 --enable-metrics --enable-cache-report "
        "--sampling-defaults openai"
    )
    assert made.secrets == {"ENGINE_API_KEY": "k3y"}
    assert made.env["SGL_FORCE_SHUTDOWN"] == "1"
    assert made.grace_s == 0.5
    assert command("sglang").grace_s is None


def test_golden_sglang_speculation_without_chunks() -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 4, "model": "/d"}
    said = by_flag(
        command(
            "sglang", speculative=spec, enable_chunked_prefill=False, max_num_batched_tokens=99
        ).argv[3:]
    )
    assert said["--max-prefill-tokens"] == ["99"]
    assert said["--chunked-prefill-size"] == ["-1"]
    assert {flag: values for flag, values in said.items() if flag.startswith("--speculative")} == {
        "--speculative-algorithm": ["EAGLE3"],
        "--speculative-draft-model-path": ["/d"],
        "--speculative-num-steps": ["4"],
        "--speculative-eagle-topk": ["1"],
        "--speculative-num-draft-tokens": ["5"],
    }


def test_a_chat_with_sglang_asks_for_running_counts_since_its_stream_refuses_token_ids() -> None:
    dialects = ENGINES["sglang"].dialects(settings("sglang"))
    assert (dialects["chat"].return_token_ids, dialects["chat"].continuous_usage) == (False, True)
    assert dialects["completions"].return_token_ids


def test_sglang_on_a_cpu_takes_its_cpu_engine_and_every_rank_its_cores() -> None:
    made = command(
        "sglang", CPU, {"cores": (0, 1, 2, 3)}, tensor_parallel_size=2, kv_cache_tokens=8192
    )
    assert by_flag(made.argv)["--device"] == ["cpu"]
    said = {name: made.env[name] for name in made.env if name.startswith(("SGLANG", "OMP"))}
    bound = {"SGLANG_CPU_OMP_THREADS_BIND": "0,1|2,3", "OMP_NUM_THREADS": "2"}
    assert said == {"SGLANG_USE_CPU_ENGINE": "1"} | bound
    assert not {"SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS"} & command("sglang").env.keys()
    assert "--device" not in command("sglang").argv


@pytest.mark.parametrize("folder", ["/tmp/orchestrator-01L-abcdef", "/scratch/" + 90 * "x"])
def test_tgis_socket_is_in_its_launchs_folder_as_far_as_a_sockets_path_may_be_long(
    folder: str,
) -> None:
    (path,) = by_flag(command("tgi", node={"workdir": folder}).argv)["--shard-uds-path"]
    assert path == (f"{folder}/shard" if len(folder) < 90 else "/tmp/tgi-01L-21001")
    assert len(f"{path}-100") <= 107


def test_golden_tgi_3_3_7() -> None:
    made = command(
        "tgi",
        tensor_parallel_size=4,
        max_model_len=8192,
        max_input_len=4096,
        enable_prefix_caching=False,
    )
    assert by_flag(made.argv) == by_flag(
        "text-generation-launcher --model-id /models/tiny --hostname 127.0.0.1 --port 21001 --prometheus-port 21003 "
        "--master-port 21002 --shard-uds-path ./shard --num-shard 4 --max-total-tokens 8192 "
        "--max-input-tokens 4096 --max-batch-prefill-tokens 8192 --max-concurrent-requests 10000 --usage-stats off"
    )
    assert made.env["PREFIX_CACHING"] == "0"
    assert made.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert made.secrets == {"API_KEY": "k3y"}
    assert "max_num_queued_reqs=10000 was left open and is pinned" in made.notes
    assert "--max-concurrent-requests 128" in shlex.join(
        command("tgi", max_num_queued_reqs=128).argv
    )


def test_golden_tensorrt_llm_1_2() -> None:
    given = {
        "tensor_parallel_size": 4,
        "max_model_len": 8192,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    made = command("tensorrt_llm", **given)
    assert by_flag(made.argv) == by_flag(
        "trtllm-serve /models/tiny --host 127.0.0.1 --port 21001 --backend pytorch --extra_llm_api_options trtllm.yaml"
    )
    assert json.loads(made.files["trtllm.yaml"]) == {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "max_seq_len": 8192,
        "max_batch_size": 1024,
        "max_num_tokens": 8192,
        "kv_cache_config": {"enable_block_reuse": False},
        "cuda_graph_config": None,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"method": "mtp"}, {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
        (
            {"method": "ngram", "prompt_lookup_max": 2},
            {"decoding_type": "NGram", "max_matching_ngram_size": 2},
        ),
        (
            {"method": "draft_model", "model": "/d"},
            {"decoding_type": "DraftTarget", "speculative_model_dir": "/d"},
        ),
    ],
)
def test_golden_tensorrt_llm_speculation(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    made = command("tensorrt_llm", speculative={"num_speculative_tokens": 3} | spec)
    found = json.loads(made.files["trtllm.yaml"])["speculative_config"]
    assert found == (expected if spec["method"] == "mtp" else expected | {"max_draft_len": 3})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"engine_version": "1.3.0rc2"}, "Draft_Target"),
        (
            {"engine_version": "1.2", "image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"},
            "DraftTarget",
        ),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"}, "Draft_Target"),
        ({"image": "mirror:5000/release:v1.3.0-cu130@sha256:1c3"}, "Draft_Target"),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"}, "DraftTarget"),
        ({"image": "mirror:5000/1.3.0/release"}, ""),
        ({"image": "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"}, ""),  # a month
        ({"image": "release@sha256:1c3"}, ""),
        ({}, ""),
    ],
)
def test_tensorrt_llm_calls_a_draft_model_as_the_release_does_that_is_named_or_is_in_the_images_tag(
    given: dict[str, Any], expected: str
) -> None:
    spec = {"method": "draft_model", "model": "/d", "num_speculative_tokens": 3}
    made = command("tensorrt_llm", speculative=spec, **given)
    config = json.loads(made.files["trtllm.yaml"])
    assert config["speculative_config"]["decoding_type"] == (expected or "DraftTarget")
    assert any("its release is not known" in note for note in made.notes) is (expected == "")
    assert not any("release" in note for note in command("tensorrt_llm", **given).notes), (
        "it differs in that alone"
    )


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, True),
        ({"engine_version": "1.2.0"}, True),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0"}, True),
        ({"engine_version": "1.1.0"}, False),
        ({"engine_version": "1.4.0"}, False),
        ({"image": "nvcr.io/nvidia/tensorrt-llm/release:2.0.1"}, False),
    ],
)
def test_a_key_is_refused_where_the_releases_keys_are_recorded_and_else_noted(
    given: dict[str, Any], refused: bool
) -> None:
    given = given | {"extra_args": {"kv_cache_config.max_gpu_total_byte": 5}}
    sentence = "'kv_cache_config.max_gpu_total_byte' is not a key of TensorRT-LLM's file"
    assert (
        sentence
        in "\n".join(problems_of(ENGINES["tensorrt_llm"], settings("tensorrt_llm", **given), H100))
    ) is refused
    assert refused or sentence in "\n".join(command("tensorrt_llm", **given).notes)


def test_golden_lmdeploy_0_18() -> None:
    made = command(
        "lmdeploy",
        tensor_parallel_size=2,
        max_model_len=8192,
        kv_cache_dtype="int8",
        max_num_queued_reqs=5,
    )
    assert "from lmdeploy.cli import run; sys.argv += ['--api-keys'" in made.argv[2]
    assert by_flag(made.argv[3:]) == by_flag(
        "serve api_server /models/tiny --server-name 127.0.0.1 --server-port 21001 --model-name tiny-01L "
        "--backend turbomind --tp 2 --quant-policy int8 --session-len 8192 --max-concurrent-requests 5 "
        "--max-batch-size 1024 --max-prefill-token-num 8192"
    )
    assert made.notes[-1] == "a full queue makes requests wait; LMDeploy never refuses one"
    assert "turbomind" not in command("lmdeploy", extra_args={"--backend": "pytorch"}).argv


def test_golden_lightllm() -> None:
    off = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    made = command("lightllm", tensor_parallel_size=2, max_model_len=9000, **off)
    assert by_flag(made.argv) == by_flag(
        "python3 -m lightllm.server.api_server --model_dir /models/tiny --model_name tiny-01L --host 127.0.0.1 "
        "--port 21001 --nccl_port 21002 --tp 2 --dp 1 --max_req_total_len 9000 --running_max_req_size 256 "
        "--disable_chunked_prefill --disable_dynamic_prompt_cache"
    )
    split = by_flag(command("lightllm").argv)  # server/api_start.py: its defaults
    assert (split["--running_max_req_size"], split["--batch_max_tokens"]) == (["256"], ["16384"])
    assert "--enable_ep_moe" in command("lightllm", enable_expert_parallel=True).argv
    ranks = by_flag(command("lightllm", data_parallel_size=8).argv)  # all on the 8 GPUs of one node
    assert (
        ranks["--tp"],
        ranks["--dp"],
        settings("lightllm", data_parallel_size=8).world_size,
    ) == (["8"], ["8"], 8)
    assert ranks["--batch_max_tokens"] == ["2048"]
    draft = by_flag(
        command("lightllm", speculative={"method": "mtp", "num_speculative_tokens": 1}).argv
    )
    # of the model's own folder
    assert (draft["--mtp_mode"], draft["--mtp_step"]) == (["eagle_with_att"], ["1"])
    assert "--mtp_draft_model_dir" not in draft


def test_golden_llama_cpp_on_gpus_and_on_a_cpu() -> None:
    node = {"model_path": "/m/a.gguf", "cores": (0, 1)}
    made = command(
        "llama_cpp", node=node, tensor_parallel_size=2, max_model_len=1000, max_num_seqs=8
    )
    assert by_flag(made.argv) == by_flag(
        "llama-server --model /m/a.gguf --host 127.0.0.1 --port 21001 --alias tiny-01L --parallel 8 --ctx-size 8192 "
        "--batch-size 2048 --ubatch-size 512 --gpu-layers all --split-mode tensor --fit off --metrics --no-webui"
    )
    assert made.secrets == {"LLAMA_API_KEY": "k3y"}
    line = shlex.join(
        command("llama_cpp", CPU, {"cores": (0, 1), "model_path": "acme/x:Q4_K_M"}).argv
    )
    assert "--hf-repo acme/x:Q4_K_M" in line
    assert "--gpu-layers 0 --threads 2" in line


def test_without_its_cache_llama_cpp_is_told_so_in_every_request_and_keeps_nothing_in_the_hosts_memory() -> (
    None
):
    engine = ENGINES["llama_cpp"]
    assert by_flag(command("llama_cpp", enable_prefix_caching=False).argv)["--cache-ram"] == ["0"]
    assert "--cache-ram" not in by_flag(command("llama_cpp", enable_prefix_caching=True).argv)
    off = engine.dialects(settings("llama_cpp", enable_prefix_caching=False))
    assert off["chat"].extra_body == off["completions"].extra_body == {"cache_prompt": False}
    assert engine.dialects(settings("llama_cpp"))["chat"].extra_body == {}


# TGI's longest prompt leaves one token of max_model_len to the answer.
WHOLE_PROMPTS = {
    "enable_chunked_prefill": False,
    "max_model_len": 4097,
    "max_num_batched_tokens": 4097,
}
DRAFTING = {"method": "ngram", "num_speculative_tokens": 4}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sglang", {"max_input_len": 5}, "max_input_len: SGLang limits input and output together"),
    (
        "sglang",
        {"data_parallel_size": 2, "nnodes": 2},
        "SGLang runs whole data-parallel ranks on one node only",
    ),
    ("sglang", {"cpu_offload_gb": 1.5}, "SGLang takes whole GB"),
    (
        "sglang",
        {"block_size": 64, "max_num_batched_tokens": 100},
        "must be a multiple of block_size (64)",
    ),
    (
        "sglang",
        {"speculative": {"method": "medusa", "num_speculative_tokens": 1}},
        "SGLang has no method medusa",
    ),
    (
        "sglang",
        {"speculative": {"method": "eagle", "num_speculative_tokens": 1}},
        "method eagle needs a model",
    ),
    (
        "sglang",
        {"extra_args": {"--tensor-parallel-size": 2}},
        "is set by the field tensor_parallel_size",
    ),
    ("sglang", {"extra_args": {"--device": "cpu"}}, "--device is set by this program"),
    (
        "tgi",
        {"pipeline_parallel_size": 2},
        "pipeline_parallel_size: TGI has no pipeline parallelism",
    ),
    ("tgi", {"nnodes": 2, "tensor_parallel_size": 2}, "nnodes: TGI runs on one node"),
    (
        "tgi",
        {"dtype": "float16", "quantization": "awq"},
        "dtype: TGI refuses it together with quantization",
    ),
    ("tgi", {"quantization": "exl2", "tensor_parallel_size": 2}, "exl2 cannot be sharded"),
    (
        "tgi",
        {"max_input_len": 9, "max_model_len": 9},
        "max_input_len: 9 must be below max_model_len (9)",
    ),
    (
        "tgi",
        WHOLE_PROMPTS | {"max_num_batched_tokens": 4095},
        "4095 must hold a whole prompt (4096)",
    ),
    (
        "tgi",
        WHOLE_PROMPTS | {"max_input_len": 4098, "max_model_len": 5000},
        "4097 must hold a whole prompt (4098)",
    ),
    ("tgi", {"max_num_queued_reqs": 0}, "0 would refuse every request"),
    (
        "tgi",
        {"speculative": {"method": "eagle", "num_speculative_tokens": 1}},
        "TGI has no method eagle; it has ngram, medusa",
    ),
    (
        "tensorrt_llm",
        {"quantization": "fp8"},
        "TensorRT-LLM takes the quantization from the checkpoint",
    ),
    ("tensorrt_llm", {"scheduling_policy": "fcfs"}, "'fcfs' is none of MAX_UTILIZATION"),
    ("tensorrt_llm", {"extra_args": {"--tp_size": 2}}, "is set by the field tensor_parallel_size"),
    ("lmdeploy", {"kv_cache_dtype": "fp8"}, "turbomind backend refuses fp8"),
    ("lmdeploy", {"enforce_eager": True}, "only LMDeploy's pytorch backend has it"),
    (
        "lmdeploy",
        {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
        "only LMDeploy's pytorch backend",
    ),
    (
        "lmdeploy",
        {"revision": "abc"},
        "revision: LMDeploy takes the flag and serves the newest revision all the same",
    ),
    (
        "lmdeploy",
        {"nnodes": 2, "tensor_parallel_size": 2, "extra_args": {"--backend": "pytorch"}},
        "through Ray only",
    ),
    (
        "lmdeploy",
        {"data_parallel_size": 2, "extra_args": {"--backend": "pytorch"}},
        "starts a server per rank behind a proxy of its own",
    ),
    (
        "lmdeploy",
        {"enable_expert_parallel": True, "nnodes": 2, "tensor_parallel_size": 2},
        "has it on one node only",
    ),
    ("lmdeploy", {"load_format": "dummy"}, "reads the checkpoint's own weights only"),
    (
        "lmdeploy",
        {"speculative": {"method": "ngram", "num_speculative_tokens": 1}},
        "LMDeploy has no method ngram",
    ),
    (
        "lightllm",
        {"data_parallel_size": 2, "tensor_parallel_size": 4},
        "data-parallel ranks are of one GPU each",
    ),
    ("lightllm", {"enable_prefix_caching": False}, "LightLLM splits prompts only with it"),
    (
        "lightllm",
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 9, "max_model_len": 10},
        "must hold a whole prompt (10)",
    ),
    (
        "lightllm",
        {"kv_cache_dtype": "fp8kv_spt"},
        "needs the scales: extra_args: {--kv_quant_calibration_config_path",
    ),
    ("lightllm", {"revision": "abc"}, "revision: LightLLM reads a local folder"),
    (
        "lightllm",
        {"speculative": {"method": "ngram", "num_speculative_tokens": 1}},
        "has no method",
    ),
    (
        "llama_cpp",
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        "splits tensors or layers, not both",
    ),
    (
        "llama_cpp",
        {"extra_args": {"-sm": "row"}},
        "-sm is how tensor_parallel_size is done, which is 1",
    ),
    ("llama_cpp", {"quantization": "q4_0"}, "a GGUF file has its own quantization"),
    ("llama_cpp", {"kv_cache_tokens": 9}, "max_num_seqs slots of max_model_len tokens; give these"),
    (
        "llama_cpp",
        {},
        "max_model_len: llama.cpp cuts its KV cache into max_num_seqs slots; give the length of one",
    ),
    (
        "llama_cpp",
        {"extra_args": {"-t": 2}},
        "-t is set by the key cpus_per_device of the hardware",
    ),
    (
        "llama_cpp",
        {"extra_args": {"--model-draft": "/d"}, "speculative": DRAFTING},
        "--model-draft is set by the field speculative",
    ),
    ("llama_cpp", {"extra_args": {"--n-gpu-layers": 9}}, "--n-gpu-layers is set by this program"),
    (
        "vllm",
        {"extra_args": {"--spec-method": "ngram"}, "speculative": DRAFTING},
        "--spec-method is set by the field speculative",
    ),
    (
        "vllm",
        {"extra_args": {"--spec-model": "/d"}, "speculative": DRAFTING},
        "--spec-model is set by the field speculative",
    ),
    (
        "vllm",
        {"extra_args": {"--spec-tokens": 5}, "speculative": DRAFTING},
        "--spec-tokens is set by the field speculative",
    ),
    (
        "tgi",
        {"extra_args": {"--max-input-length": 5}},
        "--max-input-length is set by the field max_input_len",
    ),
    ("llama_cpp", {"extra_args": {"-np": 2}}, "-np is set by the field max_num_seqs"),
    (
        "llama_cpp",
        {"speculative": {"method": "suffix", "num_speculative_tokens": 1}},
        "llama.cpp has no method suffix",
    ),
]


@pytest.mark.parametrize(("name", "given", "sentence"), REFUSED)
def test_what_an_engine_cannot_do_is_refused_with_the_reason(
    name: str, given: dict[str, Any], sentence: str
) -> None:
    assert sentence in "\n".join(problems_of(ENGINES[name], settings(name, **given), H100))


def test_tgi_splits_prompts_or_has_batches_that_hold_the_longest() -> None:
    for given in (
        WHOLE_PROMPTS | {"max_num_batched_tokens": 4096},
        WHOLE_PROMPTS | {"enable_chunked_prefill": True},
    ):
        assert problems_of(ENGINES["tgi"], settings("tgi", **given), H100) == []


NGRAM = {"method": "ngram", "num_speculative_tokens": 1}
# what it must be told there
ON_CPU = {"sglang": {"kv_cache_tokens": 99}, "tgi": {"max_input_len": 99}}


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        (
            "sglang",
            {"kv_cache_tokens": None},
            "kv_cache_tokens: on a CPU SGLang fills the node's memory",
        ),
        ("sglang", {"speculative": NGRAM}, "speculative: SGLang's kernels for it are not part"),
        ("sglang", {"cpu_offload_gb": 2}, "cpu_offload_gb: there is nothing to offload"),
        ("sglang", {"quantization": "gptq"}, "quantization: leave gptq out, on a CPU"),
        (
            "tgi",
            {"max_input_len": None},
            "max_input_len: on a CPU TGI's warm-up asks for more memory",
        ),
        ("tgi", {"dtype": "float32"}, "dtype: 'float32' is none of float16, bfloat16"),
        ("tgi", {"quantization": "fp8"}, "quantization: TGI quantizes on GPUs only"),
    ],
)
def test_on_a_cpu_engines_ask_for_what_they_need_there_and_refuse_the_rest(
    name: str, given: dict[str, Any], problem: str
) -> None:
    assert problems_of(ENGINES[name], settings(name, **ON_CPU[name]), CPU) == []
    (found,) = problems_of(ENGINES[name], settings(name, **(ON_CPU[name] | given)), CPU)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("accelerator", "sequences"),
    [
        ("A100-40GB", 384),
        ("H100-80GB", 1024),
        ("H200", 1024),
        ("B200", 128),
        ("L4", 128),
        ("any", 1024),
    ],
)
def test_lmdeploys_batch_is_the_one_that_it_chooses_by_the_gpus_name(
    accelerator: str, sequences: int
) -> None:
    pins = ENGINES["lmdeploy"].open_pins(
        settings("lmdeploy"), Hardware(name="x", accelerator=accelerator)
    )
    assert pins == {"max_num_seqs": sequences, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize("name", ["tensorrt_llm", "lmdeploy", "lightllm"])
def test_engines_for_gpus_refuse_a_cpu(name: str) -> None:
    problems = problems_of(ENGINES[name], settings(name), CPU)
    assert len(problems) == 1
    assert problems[0].startswith("hardware: ")
    assert problems[0].endswith("is run on GPUs only")


@pytest.mark.parametrize("name", ["tensorrt_llm", "lmdeploy", "lightllm"])
def test_engines_for_nvidias_gpus_refuse_amds(name: str) -> None:
    (problem,) = problems_of(
        ENGINES[name], settings(name), Hardware(name="mi", accelerator="MI325X")
    )
    assert problem.endswith("is run on NVIDIA's GPUs only")


def test_several_ranks_on_a_cpu_are_not_for_llama_cpp() -> None:
    assert "one rank on a CPU" in "\n".join(
        problems_of(ENGINES["llama_cpp"], settings("llama_cpp", tensor_parallel_size=2), CPU)
    )


@pytest.mark.parametrize(
    ("accelerator", "given", "tokens"),
    [
        ("L4", {}, 4096),
        ("H100-80GB", {}, 8192),
        ("L4", {"max_model_len": 16384}, 4096),
        ("L4", {"max_model_len": 16384, "enable_chunked_prefill": False}, 16384),
        (
            "L4",
            {"max_model_len": 16384, "max_input_len": 9000, "enable_chunked_prefill": False},
            9000,
        ),
        ("H100-80GB", {"max_model_len": 2048, "enable_chunked_prefill": False}, 8192),
    ],
)
def test_tgi_prefills_as_much_as_the_gpu_takes_and_without_chunks_the_longest_prompt(
    accelerator: str, given: dict[str, Any], tokens: int
) -> None:
    pins = ENGINES["tgi"].open_pins(
        settings("tgi", **given), Hardware(name="x", accelerator=accelerator)
    )
    assert pins["max_num_batched_tokens"] == tokens

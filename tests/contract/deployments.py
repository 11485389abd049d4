"""Deployments as people run them, and the flags that each engine's own documentation gives for
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BIG = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "tensor_parallel_size": 8,
    "max_model_len": 16384,
}
FP8 = {
    "model": "Qwen/Qwen3-32B",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "tensor_parallel_size": 2,
}
AWQ = {"model": "Qwen/Qwen2.5-72B-Instruct-AWQ", "quantization": "awq", "tensor_parallel_size": 2}
DRAFT = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
}
TWO_NODES = BIG | {"pipeline_parallel_size": 2, "nnodes": 2}
DEEPSEEK = {"model": "deepseek-ai/DeepSeek-V3.1", "enable_expert_parallel": True}
LORA = BIG | {"lora_modules": {"a": "/adapters/a", "b": "/adapters/b"}}
# Every launched engine has each of these kinds in DEPLOYMENTS, with other settings where it needs
# them, or REFUSED says why not.
KINDS: dict[str, dict[str, Any]] = {
    "70B on 8 GPUs": BIG,
    "fp8": FP8,
    "awq": AWQ,
    "eagle3": BIG | {"speculative": DRAFT},
    "two nodes": TWO_NODES,
    "DeepSeek, attention of 8 ranks": DEEPSEEK | {"data_parallel_size": 8},
    "LoRA": LORA,
}
_GGUF_QUANTIZATION = "a GGUF file has its own quantization"
_ONE_DEVICE = "transformers serve has no tensor parallelism"
# Engine -> kind -> a part of the sentence with which planning refuses it.
REFUSED: dict[str, dict[str, str]] = {
    "tgi": {
        "eagle3": "TGI has no method eagle3; it has ngram, medusa",
        "two nodes": "nnodes: TGI runs on one node",
        "DeepSeek, attention of 8 ranks": "TGI has no data parallelism; use replicas",
    },
    "tensorrt_llm": {
        "two nodes": "start them with it and measure the server as engine: endpoint",
    },
    "lightllm": {
        "eagle3": "LightLLM has no method eagle3; it has mtp",
        "LoRA": "LightLLM has no option for LoRA adapters",
    },
    "llama_cpp": {
        "fp8": _GGUF_QUANTIZATION,
        "awq": _GGUF_QUANTIZATION,
        "two nodes": "nnodes: llama.cpp runs on one node",
        "DeepSeek, attention of 8 ranks": "llama.cpp has no data parallelism; use replicas",
    },
    "transformers": dict.fromkeys(("70B on 8 GPUs", "fp8", "awq", "eagle3"), _ONE_DEVICE)
    | {
        "two nodes": "nnodes: transformers serve runs on one node",
        "DeepSeek, attention of 8 ranks": (
            "transformers serve has no data parallelism; use replicas"
        ),
        "LoRA": "transformers serve has no option for LoRA adapters",
    },
}


@dataclass(frozen=True)
class Case:
    """A deployment of one engine.

    ``flags``: what its command line must have among others: that of rank 1, or of rank 0 where
    there is one node. ``role``: that of the replica.
    """

    settings: dict[str, Any]
    flags: str
    role: str = ""


# Engine -> what the deployment is -> the case.
DEPLOYMENTS: dict[str, dict[str, Case]] = {
    "vllm": {
        "70B on 8 GPUs": Case(BIG, "--tensor-parallel-size 8 --max-model-len 16384"),
        "fp8": Case(FP8, "--quantization fp8 --kv-cache-dtype fp8"),
        "awq": Case(AWQ, "--quantization awq"),
        "eagle3": Case(BIG | {"speculative": DRAFT}, "--speculative-config"),
        "two nodes": Case(
            TWO_NODES,
            "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 21002 --headless",
        ),
        "DeepSeek, attention of 8 ranks": Case(
            DEEPSEEK | {"data_parallel_size": 8},
            "--data-parallel-size 8 --enable-expert-parallel --tensor-parallel-size 1",
        ),
        "DeepSeek, 16 ranks on two nodes": Case(
            DEEPSEEK | {"data_parallel_size": 16, "nnodes": 2},
            "--data-parallel-size 16 --data-parallel-size-local 8 --data-parallel-start-rank 8 "
            "--data-parallel-address 10.0.0.1 --data-parallel-rpc-port 21002 --headless",
        ),
        "DeepSeek, 2 ranks on four nodes": Case(
            DEEPSEEK | {"data_parallel_size": 2, "tensor_parallel_size": 16, "nnodes": 4},
            "--data-parallel-size 2 --nnodes 4 --node-rank 1 --master-addr 10.0.0.1 --master-port "
            "21002 "
            "--data-parallel-address 10.0.0.1 --data-parallel-rpc-port 21009 --headless",
        ),
        "70B that prefills": Case(BIG, "--kv-transfer-config", role="prefill"),
        "LoRA": Case(
            LORA | {"max_loras": 2, "max_lora_rank": 32},
            "--enable-lora --lora-modules a=/adapters/a b=/adapters/b --max-loras 2 "
            "--max-lora-rank 32",
        ),
    },
    "sglang": {
        "70B on 8 GPUs": Case(BIG, "--tp-size 8 --context-length 16384"),
        "fp8": Case(FP8, "--quantization fp8 --kv-cache-dtype fp8_e4m3"),
        "awq": Case(AWQ, "--quantization awq"),
        "eagle3": Case(
            BIG | {"speculative": DRAFT},
            "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4",
        ),
        "two nodes": Case(
            TWO_NODES,
            "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:21002 --port 21005",
        ),
        "DeepSeek, experts over 8 GPUs": Case(
            DEEPSEEK | {"tensor_parallel_size": 8},
            "--tp-size 8 --ep-size 8",
        ),
        "DeepSeek, attention of 8 ranks": Case(
            DEEPSEEK | {"data_parallel_size": 8},
            "--tp-size 8 --attn-dp-size 8 --ep-size 8",
        ),
        "70B that prefills on two nodes": Case(
            TWO_NODES,
            "--disaggregation-mode prefill --disaggregation-bootstrap-port 21009 --nnodes 2",
            role="prefill",
        ),
        "DeepSeek that decodes, attention of 8 ranks, over NIXL": Case(
            DEEPSEEK
            | {
                "data_parallel_size": 8,
                "extra_args": {"--disaggregation-transfer-backend": "nixl"},
            },
            "--disaggregation-mode decode --disaggregation-transfer-backend nixl --attn-dp-size 8",
            role="decode",
        ),
        "LoRA": Case(
            LORA | {"max_loras": 2},
            "--enable-lora --lora-paths a=/adapters/a b=/adapters/b --max-loras-per-batch 2",
        ),
    },
    "tgi": {
        "70B on 8 GPUs": Case(BIG, "--num-shard 8 --max-total-tokens 16384"),
        "fp8": Case(FP8, "--quantize fp8 --kv-cache-dtype fp8_e4m3fn"),
        "awq": Case(AWQ, "--quantize awq"),
        "LoRA": Case(LORA, "--lora-adapters a=/adapters/a,b=/adapters/b"),
    },
    "tensorrt_llm": {
        "70B on 8 GPUs": Case(BIG, "--backend pytorch --extra_llm_api_options trtllm.yaml"),
        "fp8": Case(
            FP8 | {"quantization": None, "model": "nvidia/Qwen3-32B-FP8"}, "--backend pytorch"
        ),
        # as ModelOpt makes it, whose files name the quantization (examples/llm_ptq: --qformat
        # int4_awq)
        "awq": Case(
            AWQ | {"quantization": None, "model": "/models/Qwen2.5-72B-Instruct-int4-awq"},
            "--backend pytorch",
        ),
        "eagle3": Case(BIG | {"speculative": DRAFT}, "--backend pytorch"),
        "DeepSeek, attention of 8 ranks": Case(
            DEEPSEEK
            | {
                "tensor_parallel_size": 8,
                "extra_args": {"enable_attention_dp": True, "moe_config.backend": "CUTLASS"},
            },
            "--backend pytorch",
        ),
        "LoRA": Case(
            LORA
            | {
                "max_loras": 2,
                "max_lora_rank": 32,
                "extra_args": {"lora_config.lora_target_modules": ["attn_q", "attn_k", "attn_v"]},
            },
            "--backend pytorch",
        ),
        "one LoRA adapter": Case(
            LORA | {"lora_modules": {"a": "/adapters/a"}}, "--backend pytorch"
        ),
    },
    "lmdeploy": {
        "70B on 8 GPUs": Case(BIG, "--backend turbomind --tp 8 --session-len 16384"),
        "fp8": Case(
            FP8 | {"extra_args": {"--backend": "pytorch"}},
            "--model-format fp8 --quant-policy fp8",
        ),
        "awq": Case(AWQ, "--model-format awq --tp 2"),
        "eagle3": Case(
            BIG | {"speculative": DRAFT, "extra_args": {"--backend": "pytorch"}},
            "--speculative-algorithm eagle3 --speculative-num-draft-tokens 3",
        ),
        "LoRA": Case(
            LORA | {"extra_args": {"--backend": "pytorch"}},
            "--adapters a=/adapters/a b=/adapters/b",
        ),
        "two nodes": Case(
            BIG | {"tensor_parallel_size": 16, "nnodes": 2},
            (
                "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:21002 --server-name 10.0.0.2 "
                "--server-port 21005"
            ),
        ),
        "DeepSeek, attention of 8 ranks": Case(
            DEEPSEEK | {"data_parallel_size": 8},
            "--dp 8 --ep 8 --tp 1",
        ),
    },
    "lightllm": {
        "70B on 8 GPUs": Case(BIG, "--tp 8 --max_req_total_len 16384"),
        "fp8": Case(FP8 | {"kv_cache_dtype": "int8"}, "--quant_type fp8w8a8 --llm_kv_type int8kv"),
        "awq": Case(AWQ, "--quant_type awq"),
        "two nodes": Case(
            BIG | {"tensor_parallel_size": 16, "nnodes": 2},
            "--nnodes 2 --node_rank 1 --nccl_host 10.0.0.1",
        ),
        "DeepSeek, attention of 8 ranks": Case(
            DEEPSEEK | {"data_parallel_size": 8},
            "--tp 8 --dp 8 --enable_ep_moe",
        ),
    },
    "llama_cpp": {
        "70B on 8 GPUs": Case(BIG, "--split-mode tensor --gpu-layers all"),
        "70B by layers": Case(
            BIG | {"tensor_parallel_size": 1, "pipeline_parallel_size": 8},
            "--split-mode layer",
        ),
        "eagle3": Case(
            BIG | {"speculative": DRAFT | {"model": "/models/EAGLE3-LLaMA3.3-Instruct-70B.gguf"}},
            "--spec-type draft-eagle3 --spec-draft-n-max 3 "
            "--spec-draft-model /models/EAGLE3-LLaMA3.3-Instruct-70B.gguf",
        ),
        "LoRA": Case(LORA, "--lora-scaled /adapters/a:0,/adapters/b:0"),
        "by rows": Case(BIG | {"extra_args": {"--split-mode": "row"}}, "--split-mode row"),
    },
}
# Field -> the value that an experiment file has for all engines -> engine -> the word that its command
# line has for it, by the engine's own source; "": no flag at all.
WORDS: dict[str, dict[str, dict[str, str]]] = {
    "quantization": {
        "fp8": {
            "vllm": "fp8",
            "sglang": "fp8",
            "tgi": "fp8",
            "lmdeploy": "fp8",
            "lightllm": "fp8w8a8",
        },
        "fp8_per_channel": {"vllm": "fp8_per_channel", "sglang": "w8a8_fp8", "lightllm": "fp8w8a8"},
        "fp8_per_tensor": {"vllm": "fp8_per_tensor", "lightllm": "fp8w8a8-pt"},
        "fp8_per_block": {"vllm": "fp8_per_block", "lightllm": "fp8w8a8-b128"},
        "int8": {"sglang": "w8a8_int8", "lightllm": "w8a8"},
        "awq": dict.fromkeys(("vllm", "sglang", "tgi", "lmdeploy", "lightllm"), "awq"),
        "gptq": dict.fromkeys(("vllm", "tgi", "lmdeploy"), "gptq") | {"sglang": "gptq_marlin"},
        "compressed-tensors": dict.fromkeys(
            ("vllm", "sglang", "tgi", "lmdeploy"), "compressed-tensors"
        ),
        "bitsandbytes": {"sglang": "bitsandbytes", "tgi": "bitsandbytes-nf4"},
        "mxfp4": dict.fromkeys(("vllm", "sglang", "lmdeploy"), "mxfp4"),
    },
    "kv_cache_dtype": {
        "auto": {
            **dict.fromkeys(("vllm", "sglang", "tensorrt_llm"), "auto"),
            "tgi": "",
            "lmdeploy": "none",
            "lightllm": "None",
            "llama_cpp": "",
        },
        "fp8": {
            **dict.fromkeys(("vllm", "lmdeploy", "tensorrt_llm"), "fp8"),
            "sglang": "fp8_e4m3",
            "tgi": "fp8_e4m3fn",
        },
        "int8": {
            "vllm": "int8_per_token_head",
            "lmdeploy": "int8",
            "lightllm": "int8kv",
            "llama_cpp": "q8_0",
        },
        "int4": {
            "vllm": "int4_per_token_head",
            "lmdeploy": "int4",
            "lightllm": "int4kv",
            "llama_cpp": "q4_0",
        },
    },
}
# What the file with TensorRT-LLM's options has, whose keys are those of its source
# (orchestrator/engines/tensorrt_llm_keys.json), in the cases of DEPLOYMENTS["tensorrt_llm"].
TENSORRT_FILES: dict[str, dict[str, Any]] = {
    "70B on 8 GPUs": {"tensor_parallel_size": 8, "max_seq_len": 16384},
    "fp8": {"tensor_parallel_size": 2, "kv_cache_config": {"dtype": "fp8"}},
    "awq": {"tensor_parallel_size": 2},
    "eagle3": {
        "speculative_config": {
            "decoding_type": "Eagle",
            "max_draft_len": 3,
            "speculative_model_dir": DRAFT["model"],
        }
    },
    "DeepSeek, attention of 8 ranks": {"enable_attention_dp": True, "moe_expert_parallel_size": 8},
    # the example of its docs/source/features/lora.md, and what an adapter alone is read from
    "LoRA": {
        "lora_config": {
            "lora_target_modules": ["attn_q", "attn_k", "attn_v"],
            "max_lora_rank": 32,
            "max_loras": 2,
        }
    },
    "one LoRA adapter": {"lora_config": {"lora_dir": ["/adapters/a"]}},
}
CASE_NAMES = [(engine, name) for engine, cases in DEPLOYMENTS.items() for name in cases]

"""Quantization methods: which need a checkpoint made for them, which belong together, what hardware they need.

Sources: vLLM 0.32 ``quantization/__init__.py`` and each config's ``get_min_capability``; SGLang 0.5.23
``server_args.py``; TGI 3.3.7 README; TensorRT-LLM 1.2 and LMDeploy 0.18 documentation.
"""

from __future__ import annotations

# Names of one storage format in different engines and kernels. A checkpoint's own method and the flag must share one.
FORMAT: dict[str, str] = {
    **dict.fromkeys(("awq", "auto_awq", "awq_marlin"), "awq"),
    **dict.fromkeys(("gptq", "auto_gptq", "gptq_marlin", "auto-round"), "gptq"),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), "mxfp4"),
    **dict.fromkeys(("fp8", "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "quark", "torchao"), ""),
}
FORMAT.update({name: name for name, family in FORMAT.items() if not family})

# Formats that exist only as checkpoints: on a 16-bit one the engine stops ("Cannot find the config file for awq").
CHECKPOINT_ONLY = frozenset({
    "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "marlin", "compressed-tensors", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "quark", "inc", "moe_wna16", "fbgemm_fp8", "gpt_oss_mxfp4",
    "deepseek_v4_fp8", "exl2", "petit_nvfp4", "w4afp8", "modelopt_fp8",
})  # fmt: skip
# Engines whose flag names how a checkpoint is stored, and that quantize nothing while they load.
STORED_ONLY = {"lmdeploy": frozenset({"fp8", "mxfp4"})}

# Applied while loading: the checkpoint must not be quantized already.
ONLINE_ONLY = frozenset({
    "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token",
    "experts_int8",
})  # fmt: skip
MOE_ONLY = frozenset({"int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8", "moe_wna16"})

_VLLM = {
    **dict.fromkeys(("auto_gptq", "gptq", "gptq_marlin", "inc"), 60),
    **dict.fromkeys(("compressed-tensors", "quark", "moe_wna16"), 70),
    **dict.fromkeys(("awq", "auto_awq", "awq_marlin", "fp8", "torchao", "humming", "modelopt_fp4"), 75),
    **dict.fromkeys(("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8"), 75),
    **dict.fromkeys(("modelopt", "experts_int8", "mxfp4", "gpt_oss_mxfp4", "fbgemm_fp8"), 80),
    "fp_quant": 100,
    "nvfp4_per_token": 100,
}
_SGLANG = {
    **dict.fromkeys(("w8a8_fp8", "modelopt_fp8"), 89),
    **dict.fromkeys(("w4afp8", "petit_nvfp4"), 90),
    **dict.fromkeys(("awq", "awq_marlin", "mxfp4", "gptq_marlin"), 80),
    **dict.fromkeys(("gptq", "gguf"), 60),
    **dict.fromkeys(("bitsandbytes", "compressed-tensors"), 70),
    "w8a8_int8": 75,
    "nvfp4_online": 100,
}
_TENSORRT_LLM = {"fp8": 89, "nvfp4": 100, "mxfp4": 100, "awq": 80, "gptq": 80}
MIN_CAPABILITY: dict[str, dict[str, int]] = {
    "vllm": _VLLM, "emulator": _VLLM, "sglang": _SGLANG, "tensorrt_llm": _TENSORRT_LLM,
    "lmdeploy": {"awq": 70, "gptq": 70},
}  # fmt: skip
BFLOAT16_CAPABILITY = 80
NATIVE_FP8_CAPABILITY = 89
NATIVE_FP4_CAPABILITY = 100


def needs_checkpoint(engine: str, method: str) -> bool:
    """Whether ``method`` works on checkpoints made for it alone."""
    return method in CHECKPOINT_ONLY or method in STORED_ONLY.get(engine, ())

"""How a checkpoint's weights are stored, by its config: in how many bits, which parts, in which
groups.

Sources: vLLM 0.32 ``quantization/__init__.py`` and its config classes; SGLang 0.5.23
``server_args.py``; TGI 3.3.7 README; TensorRT-LLM 1.2 and LMDeploy 0.18 documentation;
compressed-tensors' and ModelOpt's own formats.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.catalog.parameters import Config, Shape, items, mapping, whole

# Formats that exist only as checkpoints: on a 16-bit one the engine stops ("Cannot find the config
# file for awq").
CHECKPOINT_ONLY = frozenset({
    "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "marlin", "compressed-tensors", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "quark", "inc", "moe_wna16", "fbgemm_fp8", "gpt_oss_mxfp4",
    "deepseek_v4_fp8", "exl2", "petit_nvfp4", "w4afp8", "modelopt_fp8",
})  # fmt: skip
MOE_ONLY = frozenset({
    "int8_per_channel_weight_only", "nvfp4_per_token", "nvfp4_online", "experts_int8", "moe_wna16",
})  # fmt: skip
# Methods that quantize a 16-bit checkpoint while it loads, or (w8a8_int8) take one whose config
# names no quantization: weight bits, scales included, and Quantization.scheme.
ONLINE: dict[str, tuple[float, str]] = {
    "fp8": (8, "fp8 per tensor"), "fp8_per_tensor": (8, "fp8 per tensor"), "fp8_per_channel": (8, "fp8 per channel"),
    "fp8_per_block": (8.002, "fp8 per block"), "mxfp8": (8.25, "mxfp8"),
    **dict.fromkeys(("mxfp4", "quark_mxfp4"), (4.25, "mxfp4")),
    "int8_per_channel_weight_only": (8, "int8 weights"), "experts_int8": (8, "int8 weights"),
    **dict.fromkeys(("nvfp4_per_token", "nvfp4_online", "modelopt_fp4"), (4.5, "fp4")), "bnb-8bit": (8, ""),
    **dict.fromkeys(("int8", "w8a8_int8", "w8a8", "w8a8-vllm"), (8, "int8")),
    **dict.fromkeys(("w8a8_fp8", "fp8w8a8", "fp8w8a8-vllm"), (8, "fp8 per channel")),
    **dict.fromkeys(("fp8w8a8g128", "fp8w8a8g128-triton", "fp8w8a8g64", "fp8w8a8g64-triton"), (8, "fp8 per channel")),
    **{f"fp8w8a8-pt{kernels}": (8, "fp8 per tensor") for kernels in ("", "-vllm", "-sgl", "-triton")},
    **{f"fp8w8a8-b128{kernels}": (8.002, "fp8 per block") for kernels in ("", "-vllm", "-deepgemm", "-triton")},
    **dict.fromkeys(("bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "bnb-4bit"), (4.13, "")),
    "eetq": (8, "int8 weights"),
}  # fmt: skip
_EXPERTS_ONLY = {
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "nvfp4_online",
    "modelopt_fp4",
    "experts_int8",
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are stored. ``bits`` per weight include scales and zero points.

    ``scheme`` is what a kernel must compute, whatever the format is called: ``int8`` or ``fp8 per
    channel`` (weights and activations), ``int4 weights`` (activations stay 16 bits); empty if it is
    not known. ``shares``: how much of ``attention``, ``mlp``, ``experts`` and ``lm_head`` is
    quantized; ``part_bits``: bits of parts that differ.
    """

    method: str
    bits: float
    group_size: int | None = None  # inputs that share a scale
    block: tuple[int, int] | None = None  # (outputs, inputs) that share a scale
    scheme: str = ""
    kv_cache_dtype: str | None = None  # of the checkpoint; settings override it
    # by default all of a part, and nothing of lm_head
    shares: Mapping[str, float] = field(default_factory=dict)
    part_bits: Mapping[str, float] = field(default_factory=dict)

    def share(self, part: str) -> float:
        return self.shares.get(part, 0.0 if part == "lm_head" else 1.0)

    def bytes_of(self, part: str, plain: float) -> float:
        """Average bytes of one weight; ``plain``: bytes of an unquantized one."""
        share = self.share(part)
        return share * self.part_bits.get(part, self.bits) / 8 + (1 - share) * plain

    @property
    def experts_only(self) -> bool:
        return not self.share("attention") and not self.share("mlp")


EXPERTS = {"attention": 0.0, "mlp": 0.0}  # ``shares`` when only experts are quantized
NVFP4, MXFP4, MXFP8 = 4.5, 4.25, 8.25  # bits with an 8-bit scale for 16, 32 and 32 weights


def quantization_from_config(
    config: Config | None, shape: Shape | None = None
) -> Quantization | None:
    """A checkpoint's ``quantization_config``, None when its weights are not quantized.

    ``shape`` tells which modules exist: without it everything but the head counts as quantized.
    """
    if not config:
        return None
    method = str(
        config.get("quant_method") or ("modelopt" if "quant_algo" in config else "unknown")
    ).lower()
    algorithms = _algorithms(config) if config.get("quant_algo") == "MIXED_PRECISION" else {}
    if method in {"modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4"} or algorithms:
        config = config | mapping(config, "quantization")
        known = _modelopt(method, config, algorithms or _algorithms(config))
    else:
        known = _READERS[method](method, config) if method in _READERS else Quantization(method, 8)
    known = replace(known, kv_cache_dtype=_kv_cache_dtype(config))
    # DeepSeek-V4's own: I8 with E8M0 for 32 weights
    if config.get("expert_dtype") == "fp4" and known.method == "fp8":
        known = replace(known, part_bits={"experts": MXFP4})
    return known if shape is None else _by_part(known, config, algorithms, shape)


def _kv_cache_dtype(config: Config) -> str | None:
    """Read from ``kv_cache_scheme`` or modelopt's ``kv_cache_quant_algo``, as vLLM 0.32
    utils/torch_utils.py does.
    """
    scheme = mapping(config, "kv_cache_scheme")
    if scheme.get("type") == "float":
        return {8: "fp8", 4: "nvfp4"}.get(whole(scheme.get("num_bits")))
    algorithm = str(config.get("kv_cache_quant_algo") or "").lower()
    return algorithm if algorithm in {"fp8", "nvfp4"} else None


def _grouped(method: str, config: Config) -> Quantization:
    """Integer weights; each group has a 16-bit scale and a zero point with the bits of a weight."""
    bits, group = (
        whole(config.get("bits")) or whole(config.get("w_bit"), 4),
        whole(config.get("group_size")) or None,
    )
    stored = bits + ((16 + bits) / group if group else 0)
    return Quantization(method, stored, group_size=group, scheme=f"int{bits} weights")


def _fp8(method: str, config: Config) -> Quantization:
    block = _block(config, "weight_block_size")
    scheme = (
        "fp8 per block"
        if block
        else "fp8 per channel"
        if method == "fbgemm_fp8"
        else "fp8 per tensor"
    )
    return Quantization(
        method, 8 + (32 / (block[0] * block[1]) if block else 0), block=block, scheme=scheme
    )


def _block(config: Config, name: str) -> tuple[int, int] | None:
    sizes = [whole(size) for size in items(config, name)]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and all(sizes) else None


def _weights_of(method: str, weights: Config, quantized_inputs: bool) -> Quantization:
    """One scheme of compressed-tensors or quark, by compressed-tensors' names."""
    bits, strategy, block = (
        whole(weights.get("num_bits"), 8),
        weights.get("strategy"),
        _block(weights, "block_structure"),
    )
    scheme = f"{'fp' if weights.get('type') == 'float' else 'int'}{bits}"
    group = (
        whole(weights.get("group_size")) or None if strategy in {"group", "tensor_group"} else None
    )
    if scheme == "fp4" and group:
        micro = group == 32 and strategy == "group"
        said = "fp4" if quantized_inputs else "mxfp4" if micro else "fp4 weights"
        return Quantization(method, bits + 8 / group, group_size=group, scheme=said)
    if not quantized_inputs:
        scheme += " weights"
    elif scheme == "fp8":
        scheme += f" per {strategy}"
    zero = 0 if weights.get("symmetric") else bits
    return Quantization(method, bits + ((16 + zero) / group if group else 0), group, block, scheme)


def _compressed_tensors(method: str, config: Config) -> Quantization:
    first = next(_groups(config), None)
    if first is None:  # activations of attention, or the KV cache alone
        return Quantization(method, 16)
    return _weights_of(method, mapping(first, "weights"), bool(mapping(first, "input_activations")))


def _groups(config: Config) -> Iterator[Config]:
    groups = mapping(config, "config_groups")
    return (one for name in groups if mapping(one := mapping(groups, name), "weights"))


def _quark(method: str, config: Config) -> Quantization:
    everywhere = mapping(config, "global_quant_config")
    weights = mapping(everywhere, "weight")
    found = re.match(r"(fp|u?int)(\d+)", str(weights.get("dtype") or "int8"))
    kind, bits = found.groups() if found else ("int", "8")
    in_our_words = {
        "num_bits": int(bits),
        "type": "float" if kind == "fp" else "int",
        "strategy": str(weights.get("qscheme") or "").removeprefix("per_"),
        "group_size": weights.get("group_size"),
        "symmetric": weights.get("symmetric"),
    }
    return _weights_of(method, in_our_words, bool(mapping(everywhere, "input_tensors")))


_READERS: dict[str, Callable[[str, Config], Quantization]] = {
    **dict.fromkeys(("awq", "gptq", "auto-round", "auto_gptq"), _grouped),
    **dict.fromkeys(("fp8", "fbgemm_fp8"), _fp8),
    **dict.fromkeys(
        ("mxfp4", "gpt_oss_mxfp4"),
        lambda method, config: Quantization(
            "mxfp4", MXFP4, group_size=32, scheme="mxfp4", shares=EXPERTS
        ),
    ),
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": lambda method, config: Quantization(
        method, 4.13 if config.get("load_in_4bit") else 8
    ),
    "quark": _quark,
}

# ModelOpt's algorithms: bits, Quantization.scheme; the first one whose name is part of the
# algorithm's.
_ALGORITHMS = {
    "W4A16_NVFP4": (NVFP4, "fp4 weights"), "FP4": (NVFP4, "fp4"), "MXFP8": (MXFP8, "mxfp8"),
    "INT4": (4.125, "int4 weights"), "W4A8": (4.125, "int4 weights"), "INT8": (8, "int8"),
    "PER_CHANNEL": (8, "fp8 per channel"),
    "PB_WO": (8.002, "fp8 weights"), "FP8": (8, "fp8 per tensor"),
}  # fmt: skip


def _algorithm(name: object) -> tuple[float, str]:
    return next(
        (one for part, one in _ALGORITHMS.items() if part in str(name).upper()),
        (8, "fp8 per tensor"),
    )


def _algorithms(config: Config) -> dict[str, str]:
    """Algorithm by module, in checkpoints that mix algorithms or quantize only experts."""
    config = config | mapping(config, "quantization")
    layers = mapping(config, "quantized_layers")
    named = {name: str(mapping(layers, name).get("quant_algo")) for name in layers}
    if not named and config.get("quant_algo") == "MIXED_PRECISION":
        for group in _groups(config):
            weights = mapping(group, "weights")
            algorithm = "NVFP4" if whole(weights.get("num_bits")) == 4 else "FP8"
            named |= dict.fromkeys((str(target) for target in items(group, "targets")), algorithm)
    return named


def _modelopt(method: str, config: Config, algorithms: Mapping[str, str]) -> Quantization:
    one = config.get("quant_algo") or ("FP8" if method == "modelopt" else "NVFP4")
    mixed = (
        next((each for each in algorithms.values() if "FP4" in each), one) if algorithms else one
    )
    bits, scheme = _algorithm(mixed)
    group = {NVFP4: 16, MXFP8: 32}.get(bits) or whole(config.get("group_size")) or None
    named = (
        "modelopt_mixed"
        if algorithms
        else {NVFP4: "modelopt_fp4", MXFP8: "modelopt_mxfp8"}.get(bits, "modelopt")
    )
    return Quantization(named, bits, group if bits != 8 else None, scheme=scheme)


# -- which modules are quantized: configs name them by path, prefix, pattern or part of a path


_SPELLINGS = (
    ("self_attn", "attn"), ("block_sparse_moe", "mlp"), ("ffn", "mlp"), ("shared_experts", "shared_expert"),
    (".w1", ".gate_proj"), (".w2", ".down_proj"), (".w3", ".up_proj"),
)  # fmt: skip


def _plain(name: str) -> str:
    """One spelling for a module that programs name differently."""
    for theirs, ours in _SPELLINGS:
        name = name.replace(theirs, ours)
    return re.sub(r"^(?:(?:language_model|model|backbone|transformer)\.)+", "", name)


def _named(entries: Collection[str]) -> Callable[[str], bool]:
    """Tells whether one of ``entries`` means a module: a path, a part of one, a pattern with ``*``,
    or ``re:...``.
    """
    plain = {_plain(entry) for entry in entries if "*" not in entry and not entry.startswith("re:")}
    stars = [
        re.escape(_plain(entry)).replace(r"\*", ".*")
        for entry in entries
        if "*" in entry and "re:" not in entry
    ]
    pattern = re.compile(rf"(?:{'|'.join(stars)})(?:\..*)?$") if stars else None
    written = [_compiled(entry[3:]) for entry in entries if entry.startswith("re:")]

    def matches(name: str) -> bool:
        path = _plain(name).split(".")
        spans = (".".join(path[i:j]) for i in range(len(path)) for j in range(i + 1, len(path) + 1))
        if any(span in plain for span in spans) or (
            pattern is not None and pattern.match(".".join(path))
        ):
            return True
        return any(one.match(name) for one in written if one is not None)

    return matches


def _compiled(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except re.error:
        return None


_LEFT_ALONE = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)


def _by_part(
    known: Quantization, config: Config, algorithms: Mapping[str, str], shape: Shape
) -> Quantization:
    """The quantization with the quantized share of every part, found from the names of all modules."""
    entries = [str(entry) for name in _LEFT_ALONE for entry in items(config, name)]
    # GPTQModel
    entries += [f"re:.*{name[2:]}" for name in mapping(config, "dynamic") if name.startswith("-:")]
    if config.get("moe_quant_algo"):  # the rest is as quant_method says
        return replace(known, part_bits={"attention": 8, "mlp": 8}, shares={})
    if not (entries or algorithms):
        return known
    alone = _named(entries)
    by_algorithm = [
        (_named([name for name, one in algorithms.items() if one == each]), _algorithm(each)[0])
        for each in dict.fromkeys(algorithms.values())
    ]
    sizes: dict[str, float] = {}
    quantized: dict[str, float] = {}
    stored: dict[str, float] = {}
    for part, name, size in _modules(shape):
        sizes[part] = sizes.get(part, 0) + size
        bits = (
            known.bits
            if not algorithms
            else next((bits for within, bits in by_algorithm if within(name)), None)
        )
        # Gemma 4 has them beside it
        left = alone(name) and (part != "experts" or alone(name.replace(".mlp.", ".")))
        if (
            bits is not None
            and known.share(part)
            and (part != "lm_head" or algorithms)
            and not left
        ):
            quantized[part] = quantized.get(part, 0) + size
            stored[part] = stored.get(part, 0) + size * bits
    shares = {part: quantized.get(part, 0) / size for part, size in sizes.items() if size}
    bits_of = {part: stored[part] / quantized[part] for part in stored} if algorithms else {}
    return replace(known, shares=shares, part_bits=bits_of)


def _modules(shape: Shape) -> Iterator[tuple[str, str, int]]:
    """(part, path, weights) of all modules that may be quantized; only the first expert, since all
    are alike.
    """
    hidden, nope = shape.hidden_size, shape.qk_nope_head_dim

    def plain(of: Shape) -> dict[str, int]:
        heads, keys = (
            hidden * of.num_attention_heads * of.head_dim,
            hidden * of.num_key_value_heads * of.head_dim,
        )
        return {"q_proj": heads, "k_proj": keys, "v_proj": keys, "o_proj": heads}

    attention = plain(shape)
    if shape.mla:
        query, latent = (
            shape.num_attention_heads * (nope + shape.qk_rope_head_dim),
            shape.kv_lora_rank,
        )
        attention = {
            "q_b_proj" if shape.q_lora_rank else "q_proj": (shape.q_lora_rank or hidden) * query,
            "q_a_proj": hidden * shape.q_lora_rank,
            "kv_a_proj_with_mqa": hidden * (latent + shape.qk_rope_head_dim),
            "kv_b_proj": latent * shape.num_attention_heads * (nope + shape.v_head_dim),
            "o_proj": shape.num_attention_heads * shape.v_head_dim * hidden,
        }
    values = shape.linear_num_value_heads * shape.linear_value_head_dim
    inner = shape.mamba_num_heads * shape.mamba_head_dim
    linear = {
        "in_proj_qkv": hidden
        * (values + 2 * shape.linear_num_key_heads * shape.linear_key_head_dim),
        "in_proj_z": hidden * values,
        "out_proj": hidden * values,
    }
    mamba = {"in_proj": 2 * hidden * inner, "out_proj": hidden * inner}
    mixers = {
        "attention": ("self_attn", attention),
        "linear": ("linear_attn", linear),
        "mamba": ("mixer", mamba),
    }
    mixers["global"] = ("self_attn", plain(shape.of_global))
    mixers["both"] = ("self_attn", attention | mamba)
    wide = hidden * shape.mamba_inner_size
    mixers["mamba1"] = ("mamba", {"in_proj": 2 * wide, "out_proj": wide})
    delta = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), hidden * values)
    mixers["kda"] = ("self_attn", delta)
    alone = "" in shape.mlps  # Nemotron-H: a layer is one mixer, and called so
    for layer, (mixer, mlp) in enumerate(zip(shape.mixers, shape.mlps, strict=True)):
        place = f"model.layers.{layer}"
        called, parts = mixers.get(mixer, ("", {}))
        yield from (
            ("attention", f"{place}.{'mixer' if alone else called}.{name}", size)
            for name, size in parts.items()
        )
        called = f"{place}.{'mixer' if alone else 'mlp'}"
        shared = hidden * shape.shared_expert_intermediate_size
        for up in ("up_proj", "down_proj") + (() if alone else ("gate_proj",)) if mlp else ():
            if mlp == "mlp":
                yield "mlp", f"{called}.{up}", hidden * shape.intermediate_size
            else:
                yield "mlp", f"{called}.shared_experts.{up}", shared
                yield "experts", f"{called}.experts.0.{up}", 1
    yield "lm_head", "lm_head", 1


def online_quantization(quantization: str | None) -> Quantization | None:
    """What an engine makes of a 16-bit checkpoint while loading it; None for methods that need a
    quantized one.
    """
    if quantization is None or quantization not in ONLINE:
        return None
    bits, scheme = ONLINE[quantization]
    return Quantization(
        quantization, bits, scheme=scheme, shares=EXPERTS if quantization in _EXPERTS_ONLY else {}
    )

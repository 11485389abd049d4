"""Reads from a checkpoint's config how its weights are stored: in how many bits, which parts of the
model, and in which groups.

Sources: vLLM 0.32 ``quantization/__init__.py`` and its config classes; SGLang 0.5.23
``server_args.py``; TGI 3.3.7 README; TensorRT-LLM 1.2 and LMDeploy 0.18 documentation;
compressed-tensors' and ModelOpt's own formats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from orchestrator.catalog.parameters import Config, Shape, items, mapping, whole

# Formats that exist only as checkpoints. Asked to apply one to a 16-bit checkpoint, the engine
# stops ("Cannot find the config file for awq").
CHECKPOINT_ONLY = frozenset({
    "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "marlin", "compressed-tensors", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "quark", "inc", "moe_wna16", "fbgemm_fp8", "gpt_oss_mxfp4",
    "deepseek_v4_fp8", "exl2", "petit_nvfp4", "w4afp8", "modelopt_fp8",
})  # fmt: skip
# Methods that need a model with experts. Not all of them leave the other parts alone: those that do
# are _ONLINE_FOR_EXPERTS.
MOE_ONLY = frozenset({
    "int8_per_channel_weight_only", "nvfp4_per_token", "nvfp4_online", "experts_int8", "moe_wna16",
})  # fmt: skip


class StoredFormat(NamedTuple):
    """Bits of a weight, scales included, and ``Quantization.scheme``."""

    bits: float
    scheme: str


# Methods that quantize a 16-bit checkpoint while it loads, or (w8a8_int8) take one whose config
# names no quantization.
ONLINE: dict[str, StoredFormat] = {
    **dict.fromkeys(
        ("fp8", "fp8_per_tensor", "fp8w8a8-pt", "fp8w8a8-pt-vllm", "fp8w8a8-pt-sgl", "fp8w8a8-pt-triton"),
        StoredFormat(8, "fp8 per tensor"),
    ),
    **dict.fromkeys(
        (
            "fp8_per_channel", "w8a8_fp8", "fp8w8a8", "fp8w8a8-vllm",
            "fp8w8a8g128", "fp8w8a8g128-triton", "fp8w8a8g64", "fp8w8a8g64-triton",
        ),
        StoredFormat(8, "fp8 per channel"),
    ),
    **dict.fromkeys(
        (
            "fp8_per_block", "fp8w8a8-b128", "fp8w8a8-b128-vllm", "fp8w8a8-b128-deepgemm",
            "fp8w8a8-b128-triton",
        ),
        StoredFormat(8.002, "fp8 per block"),
    ),
    "mxfp8": StoredFormat(8.25, "mxfp8"),
    **dict.fromkeys(("mxfp4", "quark_mxfp4"), StoredFormat(4.25, "mxfp4")),
    **dict.fromkeys(
        ("int8_per_channel_weight_only", "experts_int8", "eetq"), StoredFormat(8, "int8 weights")
    ),
    **dict.fromkeys(
        ("nvfp4_per_token", "nvfp4_online", "modelopt_fp4"), StoredFormat(4.5, "fp4")
    ),
    **dict.fromkeys(("int8", "w8a8_int8", "w8a8", "w8a8-vllm"), StoredFormat(8, "int8")),
    "bnb-8bit": StoredFormat(8, ""),
    **dict.fromkeys(
        ("bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "bnb-4bit"), StoredFormat(4.13, "")
    ),
}  # fmt: skip
_ONLINE_FOR_EXPERTS = {  # those of ONLINE that quantize experts only
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "nvfp4_online",
    "modelopt_fp4",
    "experts_int8",
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are stored. ``bits`` per weight include scales and zero points.

    ``scheme``: what a kernel must compute, whatever the format is called: ``int8`` or ``fp8 per
    channel`` (weights and activations), ``int4 weights`` (activations stay 16 bits); empty if it is
    not known. ``shares``: how much of ``attention``, ``mlp``, ``experts`` and ``lm_head`` is
    quantized. ``part_bits``: the bits of parts that differ.
    """

    method: str
    bits: float
    group_size: int | None = None  # inputs that share a scale
    block: tuple[int, int] | None = None  # (outputs, inputs) that share a scale
    scheme: str = ""
    kv_cache_dtype: str | None = None  # of the checkpoint; settings override it
    # a part without an entry is quantized as a whole, except lm_head, which is not
    shares: Mapping[str, float] = field(default_factory=dict)
    part_bits: Mapping[str, float] = field(default_factory=dict)

    def share(self, part: str) -> float:
        """How much of a part is quantized."""
        return self.shares.get(part, 0.0 if part == "lm_head" else 1.0)

    def bytes_of(self, part: str, plain: float) -> float:
        """Average bytes of one weight; ``plain``: bytes of an unquantized one."""
        share = self.share(part)
        bits = self.part_bits.get(part, self.bits)
        return share * bits / 8 + (1 - share) * plain

    @property
    def experts_only(self) -> bool:
        return not self.share("attention") and not self.share("mlp")


SHARES_OF_EXPERTS_ONLY = {"attention": 0.0, "mlp": 0.0}  # when only experts are quantized
NVFP4 = 4.5  # bits with an 8-bit scale for 16 weights
MXFP4 = 4.25  # bits with an 8-bit scale for 32 weights
MXFP8 = 8.25


def quantization_from_config(
    config: Config | None, shape: Shape | None = None
) -> Quantization | None:
    """A checkpoint's ``quantization_config``, None when its weights are not quantized.

    ``shape`` tells which modules exist: without it everything but the head counts as quantized.
    """
    if not config:
        return None
    config = config | mapping(config, "quantization")  # where ModelOpt's own files have the keys
    method = str(config.get("quant_method") or "").lower()
    if not method:
        method = "modelopt" if "quant_algo" in config else "unknown"
    algorithms = _mixed_algorithms(config)
    if method in {"modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4"} or algorithms:
        stored = _modelopt(method, config, algorithms)
    elif method in _READERS:
        stored = _READERS[method](method, config)
    else:
        stored = Quantization(method, 8)
    stored = replace(stored, kv_cache_dtype=_kv_cache_dtype(config))
    # DeepSeek-V4's own: I8 with E8M0 for 32 weights
    if config.get("expert_dtype") == "fp4" and stored.method == "fp8":
        stored = replace(stored, part_bits={"experts": MXFP4})
    if shape is None:
        return stored
    return _by_part(stored, config, algorithms, shape)


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
    bits = whole(config.get("bits")) or whole(config.get("w_bit"), 4)
    group = whole(config.get("group_size")) or None
    scale_bits = (16 + bits) / group if group else 0
    return Quantization(method, bits + scale_bits, group_size=group, scheme=f"int{bits} weights")


def _fp8(method: str, config: Config) -> Quantization:
    block = _block(config, "weight_block_size")
    if block:
        scale_bits = 32 / (block[0] * block[1])
        return Quantization(method, 8 + scale_bits, block=block, scheme="fp8 per block")
    if method == "fbgemm_fp8":
        return Quantization(method, 8, scheme="fp8 per channel")
    return Quantization(method, 8, scheme="fp8 per tensor")


def _block(config: Config, name: str) -> tuple[int, int] | None:
    """Outputs and inputs of a block; None without one."""
    sizes = [whole(size) for size in items(config, name)]
    if len(sizes) != 2 or not all(sizes):
        return None
    return sizes[0], sizes[1]


def _weights_of(method: str, weights: Config, quantized_inputs: bool) -> Quantization:
    """One scheme of compressed-tensors or quark, by compressed-tensors' names."""
    bits = whole(weights.get("num_bits"), 8)
    strategy = weights.get("strategy")
    group = None
    if strategy in {"group", "tensor_group"}:
        group = whole(weights.get("group_size")) or None
    kind = "fp" if weights.get("type") == "float" else "int"
    scheme = f"{kind}{bits}"
    if scheme == "fp4" and group:  # MXFP4 and NVFP4: scales of 8 bits, and no zero points
        if not quantized_inputs:
            scheme = "mxfp4" if group == 32 and strategy == "group" else "fp4 weights"
        return Quantization(method, bits + 8 / group, group_size=group, scheme=scheme)
    if not quantized_inputs:
        scheme += " weights"
    elif scheme == "fp8":
        scheme += f" per {strategy}"
    zero_point_bits = 0 if weights.get("symmetric") else bits
    scale_bits = (16 + zero_point_bits) / group if group else 0
    block = _block(weights, "block_structure")
    return Quantization(method, bits + scale_bits, group, block, scheme)


def _compressed_tensors(method: str, config: Config) -> Quantization:
    first = next(_groups(config), None)
    if first is None:  # activations of attention, or the KV cache alone
        return Quantization(method, 16)
    return _weights_of(method, mapping(first, "weights"), bool(mapping(first, "input_activations")))


def _groups(config: Config) -> Iterator[Config]:
    """The groups of modules that have quantized weights."""
    groups = mapping(config, "config_groups")
    for name in groups:
        group = mapping(groups, name)
        if mapping(group, "weights"):
            yield group


def _quark(method: str, config: Config) -> Quantization:
    everywhere = mapping(config, "global_quant_config")
    weights = mapping(everywhere, "weight")
    match = re.match(r"(fp|u?int)(\d+)", str(weights.get("dtype") or "int8"))
    kind, bits = match.groups() if match else ("int", "8")
    in_words_of_compressed_tensors = {
        "num_bits": int(bits),
        "type": "float" if kind == "fp" else "int",
        "strategy": str(weights.get("qscheme") or "").removeprefix("per_"),
        "group_size": weights.get("group_size"),
        "symmetric": weights.get("symmetric"),
    }
    has_quantized_inputs = bool(mapping(everywhere, "input_tensors"))
    return _weights_of(method, in_words_of_compressed_tensors, has_quantized_inputs)


def _mxfp4(method: str, config: Config) -> Quantization:
    return Quantization(
        "mxfp4", MXFP4, group_size=32, scheme="mxfp4", shares=SHARES_OF_EXPERTS_ONLY
    )


def _bitsandbytes(method: str, config: Config) -> Quantization:
    return Quantization(method, 4.13 if config.get("load_in_4bit") else 8)


_READERS: dict[str, Callable[[str, Config], Quantization]] = {
    **dict.fromkeys(("awq", "gptq", "auto-round", "auto_gptq"), _grouped),
    **dict.fromkeys(("fp8", "fbgemm_fp8"), _fp8),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), _mxfp4),
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
}

# By parts of the names of ModelOpt's algorithms; the first part that a name has counts.
_ALGORITHMS = {
    "W4A16_NVFP4": StoredFormat(NVFP4, "fp4 weights"),
    "FP4": StoredFormat(NVFP4, "fp4"),
    "MXFP8": StoredFormat(MXFP8, "mxfp8"),
    "INT4": StoredFormat(4.125, "int4 weights"),
    "W4A8": StoredFormat(4.125, "int4 weights"),
    "INT8": StoredFormat(8, "int8"),
    "PER_CHANNEL": StoredFormat(8, "fp8 per channel"),
    "PB_WO": StoredFormat(8.002, "fp8 weights"),
}
_FP8_ALGORITHM = StoredFormat(8, "fp8 per tensor")  # any other algorithm


def _format_of(algorithm: str) -> StoredFormat:
    for part, stored_format in _ALGORITHMS.items():
        if part in algorithm.upper():
            return stored_format
    return _FP8_ALGORITHM


def _mixed_algorithms(config: Config) -> dict[str, str]:
    """Algorithm by module, of a checkpoint that mixes algorithms; empty for any other: engines read
    its list of layers only with MIXED_PRECISION (vLLM's and SGLang's ModelOpt).
    """
    if config.get("quant_algo") != "MIXED_PRECISION":
        return {}
    layers = mapping(config, "quantized_layers")
    by_module = {name: str(mapping(layers, name).get("quant_algo")) for name in layers}
    if not by_module:
        for group in _groups(config):
            weights = mapping(group, "weights")
            algorithm = "NVFP4" if whole(weights.get("num_bits")) == 4 else "FP8"
            by_module |= dict.fromkeys(
                (str(target) for target in items(group, "targets")), algorithm
            )
    return by_module


def _modelopt(method: str, config: Config, algorithms: Mapping[str, str]) -> Quantization:
    algorithm = str(config.get("quant_algo") or ("FP8" if method == "modelopt" else "NVFP4"))
    for of_module in algorithms.values():
        if "FP4" in of_module:  # where algorithms are mixed, the smallest format counts
            algorithm = of_module
            break
    bits, scheme = _format_of(algorithm)
    if algorithms:
        name = "modelopt_mixed"
    else:
        name = {NVFP4: "modelopt_fp4", MXFP8: "modelopt_mxfp8"}.get(bits, "modelopt")
    if bits == 8:
        return Quantization(name, bits, scheme=scheme)
    group = {NVFP4: 16, MXFP8: 32}.get(bits) or whole(config.get("group_size")) or None
    return Quantization(name, bits, group, scheme=scheme)


# Which modules are quantized: configs name them by path, prefix, pattern or part of a path.
_SPELLINGS = (
    ("self_attn", "attn"), ("block_sparse_moe", "mlp"), ("ffn", "mlp"), ("shared_experts", "shared_expert"),
    (".w1", ".gate_proj"), (".w2", ".down_proj"), (".w3", ".up_proj"),
)  # fmt: skip


def _plain(name: str) -> str:
    """One spelling for a module that programs name differently."""
    for theirs, ours in _SPELLINGS:
        name = name.replace(theirs, ours)
    return re.sub(r"^(?:(?:language_model|model|backbone|transformer)\.)+", "", name)


class _ModuleNames:
    """Entries of a config that mean modules: a path, a part of one, a pattern with ``*``, or
    ``re:...``.
    """

    def __init__(self, entries: Collection[str]) -> None:
        self._paths: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []  # of plain names
        self._expressions: list[re.Pattern[str]] = []  # of names as they are written
        for entry in entries:
            if entry.startswith("re:"):
                expression = _compiled(entry[3:])
                if expression is not None:
                    self._expressions.append(expression)
            elif "*" not in entry:
                self._paths.add(_plain(entry))
            elif "re:" not in entry:
                pattern = re.escape(_plain(entry)).replace(r"\*", ".*")
                self._patterns.append(re.compile(rf"(?:{pattern})(?:\..*)?$"))

    def include(self, name: str) -> bool:
        """Whether one of the entries means this module."""
        path = _plain(name)
        return (
            any(part in self._paths for part in _parts_of(path))
            or any(pattern.match(path) for pattern in self._patterns)
            or any(expression.match(name) for expression in self._expressions)
        )


def _parts_of(path: str) -> Iterator[str]:
    """All runs of names of a path."""
    names = path.split(".")
    for start in range(len(names)):
        for end in range(start + 1, len(names) + 1):
            yield ".".join(names[start:end])


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
    stored: Quantization, config: Config, algorithms: Mapping[str, str], shape: Shape
) -> Quantization:
    """The quantization with the quantized share of every part, by the names of all modules."""
    left_alone = [str(entry) for name in _LEFT_ALONE for entry in items(config, name)]
    # GPTQModel
    left_alone += [
        f"re:.*{name[2:]}" for name in mapping(config, "dynamic") if name.startswith("-:")
    ]
    algorithm_of_experts = config.get("moe_quant_algo")
    if algorithm_of_experts:  # NVIDIA's DeepSeek-V4: all other parts stay FP8
        expert_bits = _format_of(str(algorithm_of_experts)).bits
        part_bits = {"attention": 8.0, "mlp": 8.0, "experts": expert_bits}
        return replace(stored, part_bits=part_bits, shares={})
    if not (left_alone or algorithms):
        return stored
    bits_of_module = _BitsOfModules(stored, left_alone, algorithms)
    weights: Counter[str] = Counter()  # of each part
    quantized: Counter[str] = Counter()
    stored_bits: dict[str, float] = {}
    for module in _modules(shape):
        weights[module.part] += module.weights
        bits = bits_of_module.bits(module)
        if bits is not None:
            quantized[module.part] += module.weights
            earlier_bits = stored_bits.get(module.part, 0)
            stored_bits[module.part] = earlier_bits + module.weights * bits
    shares = {part: quantized[part] / total for part, total in weights.items() if total}
    part_bits = {}
    if algorithms:
        part_bits = {part: bits / quantized[part] for part, bits in stored_bits.items()}
    return replace(stored, shares=shares, part_bits=part_bits)


class _BitsOfModules:
    """In how many bits each module is stored, by the names in a config."""

    def __init__(
        self, stored: Quantization, left_alone: Collection[str], algorithms: Mapping[str, str]
    ) -> None:
        self._stored = stored
        self._left_alone = _ModuleNames(left_alone)
        self._left_alone_experts = _ModuleNames([name for name in left_alone if "expert" in name])
        self._by_algorithm: list[tuple[_ModuleNames, float]] = []
        for algorithm in dict.fromkeys(algorithms.values()):
            names = [name for name, other in algorithms.items() if other == algorithm]
            self._by_algorithm.append((_ModuleNames(names), _format_of(algorithm).bits))

    def bits(self, module: _Module) -> float | None:
        """Bits of a weight; None: the module is not quantized."""
        if self._is_left_alone(module):
            return None
        if not self._by_algorithm:
            return self._stored.bits if self._stored.share(module.part) else None
        for names, bits in self._by_algorithm:
            if names.include(module.path):
                return bits
        return None

    def _is_left_alone(self, module: _Module) -> bool:
        if module.part != "experts":
            return self._left_alone.include(module.path)
        # Gemma 4 has experts beside its MLP, so an entry for an MLP does not mean the experts. An
        # entry means them if it names them, or if it would mean them beside the MLP, too.
        beside_mlp = module.path.replace(".mlp.", ".")
        return self._left_alone_experts.include(module.path) or self._left_alone.include(beside_mlp)


class _Module(NamedTuple):
    """A module that may be quantized."""

    part: str  # as in ``Quantization.shares``
    path: str
    weights: int


class _Mixer(NamedTuple):
    """A layer's mixer: its name in paths, and the weights of its matrices by name."""

    name: str
    matrices: dict[str, int]


def _modules(shape: Shape) -> Iterator[_Module]:
    """All modules that may be quantized; of the experts only the first, since all are alike.

    Only the proportions of weights within a part count: an expert, and the head, weigh 1.
    """
    hidden = shape.hidden_size
    mixers = _mixers(shape)
    # Nemotron-H: a layer is a mixer or an MLP, and is called "mixer" either way
    layers_have_one_module = "" in shape.mlps
    mlp_matrices = ["up_proj", "down_proj"]
    if not layers_have_one_module:
        mlp_matrices.append("gate_proj")
    for layer, (kind, mlp) in enumerate(zip(shape.mixers, shape.mlps, strict=True)):
        place = f"model.layers.{layer}"
        mixer = mixers.get(kind, _Mixer("", {}))
        mixer_path = f"{place}.{'mixer' if layers_have_one_module else mixer.name}"
        for name, weights in mixer.matrices.items():
            yield _Module("attention", f"{mixer_path}.{name}", weights)
        if not mlp:
            continue
        mlp_path = f"{place}.{'mixer' if layers_have_one_module else 'mlp'}"
        for name in mlp_matrices:
            if mlp == "mlp":
                yield _Module("mlp", f"{mlp_path}.{name}", hidden * shape.intermediate_size)
                continue
            shared = hidden * shape.shared_expert_intermediate_size
            yield _Module("mlp", f"{mlp_path}.shared_experts.{name}", shared)
            yield _Module("experts", f"{mlp_path}.experts.0.{name}", 1)
    yield _Module("lm_head", "lm_head", 1)


def _mixers(shape: Shape) -> dict[str, _Mixer]:
    """The mixer of each kind in ``Shape.mixers``."""
    hidden = shape.hidden_size
    attention = _latent_attention(shape) if shape.has_latent_attention else _plain_attention(shape)
    values = shape.linear_num_value_heads * shape.linear_value_head_dim
    keys = shape.linear_num_key_heads * shape.linear_key_head_dim
    linear = {
        "in_proj_qkv": hidden * (values + 2 * keys),
        "in_proj_z": hidden * values,
        "out_proj": hidden * values,
    }
    inner = shape.mamba_num_heads * shape.mamba_head_dim
    mamba = {"in_proj": 2 * hidden * inner, "out_proj": hidden * inner}
    wide = hidden * shape.mamba_inner_size
    mamba1 = {"in_proj": 2 * wide, "out_proj": wide}
    delta = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), hidden * values)
    return {
        "attention": _Mixer("self_attn", attention),
        "global": _Mixer("self_attn", _plain_attention(shape.of_global)),
        "linear": _Mixer("linear_attn", linear),
        "mamba": _Mixer("mixer", mamba),
        "both": _Mixer("self_attn", attention | mamba),
        "mamba1": _Mixer("mamba", mamba1),
        "kda": _Mixer("self_attn", delta),
    }


def _plain_attention(shape: Shape) -> dict[str, int]:
    heads = shape.hidden_size * shape.num_attention_heads * shape.head_dim
    keys = shape.hidden_size * shape.num_key_value_heads * shape.head_dim
    return {"q_proj": heads, "k_proj": keys, "v_proj": keys, "o_proj": heads}


def _latent_attention(shape: Shape) -> dict[str, int]:
    """Multi-head latent attention."""
    hidden = shape.hidden_size
    heads = shape.num_attention_heads
    latent = shape.kv_lora_rank
    query = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    query_name = "q_b_proj" if shape.q_lora_rank else "q_proj"
    return {
        query_name: (shape.q_lora_rank or hidden) * query,
        "q_a_proj": hidden * shape.q_lora_rank,
        "kv_a_proj_with_mqa": hidden * (latent + shape.qk_rope_head_dim),
        "kv_b_proj": latent * heads * (shape.qk_nope_head_dim + shape.v_head_dim),
        "o_proj": heads * shape.v_head_dim * hidden,
    }


def online_quantization(quantization: str | None) -> Quantization | None:
    """What an engine makes of a 16-bit checkpoint while loading it; None for methods that need a
    quantized one.
    """
    if quantization is None or quantization not in ONLINE:
        return None
    bits, scheme = ONLINE[quantization]
    shares = SHARES_OF_EXPERTS_ONLY if quantization in _ONLINE_FOR_EXPERTS else {}
    return Quantization(quantization, bits, scheme=scheme, shares=shares)

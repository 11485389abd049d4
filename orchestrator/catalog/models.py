"""Facts about a model from its ``config.json`` (in a local folder, the hub's cache, or on the hub)
or its GGUF header.

No weights are loaded, and a model's own code is never run.
"""

import json
import logging
import os
import queue
import re
import socket
import threading
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from orchestrator.base.data_files import data_beside
from orchestrator.catalog import parameters
from orchestrator.catalog.parameters import (
    FAMILIES,
    MOST_LAYERS,
    Config,
    Family,
    Parameters,
    Shape,
    StoredModel,
    in_our_words,
    items,
    mapping,
    whole,
)
from orchestrator.catalog.quantization import Quantization, quantization_from_config
from orchestrator.spec.document import read_at_most

HUB_TIMEOUT_S = 3.0
INDEX = "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"
MOST_BYTES = 100_000_000  # of a JSON file; the largest indices have 10 MB
# Only its configs are read, which need no PyTorch.
logging.getLogger("transformers").addFilter(
    lambda record: "PyTorch was not found" not in record.getMessage()
)


class FormulaCoverage(IntEnum):
    """How much of a model the formula for its parameters covers, the least first."""

    NOTHING = 0  # no formula fits: the count means nothing
    PLAIN = 1  # counted as a plain transformer, which may be far off
    LANGUAGE_MODEL = 2  # without what stands beside the language model, like an image encoder
    WHOLE = 3


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What planning and the emulator need to know about a model."""

    model: str
    model_type: str
    shape: Shape
    parameters: Parameters
    coverage: FormulaCoverage
    dtype: str = "bfloat16"  # of the checkpoint
    # positions, with rope scaling, as vLLM derives them; None: unlimited
    max_model_len: int | None = None
    short_model_len: int | None = None  # positions that LongRoPE extends
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    quantization: Quantization | None = None
    checkpoint_bytes: int | None = None  # of the safetensors index or files; None: not at hand
    vision_size: int | None = None  # of an image encoder: layers * width squared
    draft_layers: int = 0  # layers for multi-token prediction, which are loaded only on request
    draft_vocab_size: int = 0  # of a draft head with an output layer of its own
    architectures: tuple[str, ...] = ()  # class names by which engines choose their code
    config_type: str = ""  # ``model_type`` of the whole config, towers included
    # the well-known model whose config was taken, because no config of this one was found
    known_as: str | None = None

    @property
    def has_parameter_count(self) -> bool:
        """Whether a formula fits the model, so that its number of parameters is useful."""
        return self.coverage >= FormulaCoverage.PLAIN

    @property
    def language_model_counted(self) -> bool:
        """Whether the parameters of the language model are counted by its own formula."""
        return self.coverage >= FormulaCoverage.LANGUAGE_MODEL

    @property
    def all_parameters_counted(self) -> bool:
        """Whether the formula counts all parameters, those of image encoders and the like too."""
        return self.coverage is FormulaCoverage.WHOLE

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, without the input embedding."""
        shape = self.shape
        parts = self.parameters
        experts = 0
        if shape.num_experts:
            experts = parts.experts * shape.num_experts_per_tok // shape.num_experts
        head = parts.lm_head or parts.embedding  # a tied head is the embedding
        return parts.attention + parts.mlp + parts.norms + experts + head


def model_facts(
    model: str, revision: str | None = None, overrides: Config | None = None, online: bool = True
) -> ModelFacts | None:
    """Facts about a model, None when its config cannot be found. ``overrides`` are
    ``hf_overrides``.

    ``model`` is a local folder, a GGUF file or a hub id. The hub is asked for at most
    HUB_TIMEOUT_S, and never when HF_HUB_OFFLINE is set or ``online`` is False. Its answers stay in
    the hub's own cache. For the well-known models of known_models.json the hub is not needed.
    """
    return _facts_cached(model, revision, json.dumps(overrides or {}, sort_keys=True), online)


@lru_cache(maxsize=256)
def _facts_cached(
    model: str, revision: str | None, overrides: str, online: bool
) -> ModelFacts | None:
    if model.endswith(".gguf"):
        from orchestrator.catalog.gguf import read_header  # few need it

        stored = read_header(Path(os.path.expanduser(model)))
    else:
        stored = read_config(model, revision, online)
    if stored is None:
        return None
    config = stored.config | json.loads(overrides)
    facts = facts_from_config(model, config, stored.checkpoint_bytes)
    return None if facts is None else replace(facts, known_as=stored.known_as)


def read_config(model: str, revision: str | None, online: bool) -> StoredModel | None:
    """A model's config.json, with what ModelOpt says beside it. None if there is none."""
    folder = _folder(model, revision, online)
    if folder is None:
        name = known_name(model)
        return None if name is None else StoredModel(known_configs()[name], None, name)
    config = with_modelopt(_read_json(folder / "config.json") or {}, _read_json(folder / MODELOPT))
    return StoredModel(config, _checkpoint_bytes(folder)) if config else None


def with_modelopt(config: Config, beside: Config | None) -> Config:
    """The config with the quantization that NVIDIA's ModelOpt writes to a file of its own, merged
    as vLLM 0.32 does: config.json wins.
    """
    if beside is None:
        return config
    of_modelopt = {"quant_method": "modelopt"}
    of_modelopt |= mapping(beside, "quantization") or beside
    of_config = mapping(config, "quantization_config")
    return config | {"quantization_config": of_modelopt | of_config}


def _folder(model: str, revision: str | None, online: bool) -> Path | None:
    """The folder with a model's config.json: the model itself, or one of the hub's cache."""
    local = Path(os.path.expanduser(model))  # the home of an unknown user stays ``~name``
    if (local / "config.json").is_file():
        return local
    may_be_on_hub = not local.is_absolute() and re.fullmatch(r"[\w.-]+/[\w.-]+", model)
    if not may_be_on_hub:
        return None
    if not online and known_config(model):
        return None  # known_models.json has its config
    cached = _from_cache(model, revision)
    is_complete = cached is not None and _is_index_known(model, revision)
    if is_complete or not online:
        return cached
    return _fetched(model, revision) or cached


def _is_index_known(model: str, revision: str | None) -> bool:
    """Whether the hub's cache has the model's index, or remembers that there is none."""
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(model, INDEX, revision=revision) is not None


def known_configs() -> dict[str, Config]:
    """Excerpts of the config.json of well-known models, by hub id, from their repositories.

    With them planning and the emulator work offline. An actual config.json is always preferred.
    """
    configs: dict[str, Config] = data_beside(__file__, "known_models.json")
    return configs


def known_config(model: str) -> Config | None:
    """The config of a well-known model by its hub id, or by a short name (``Llama-3.1-8B``)."""
    name = known_name(model)
    return None if name is None else known_configs()[name]


def known_name(model: str) -> str | None:
    """The hub id of the well-known model that a hub id, path or short name means."""
    configs = known_configs()
    if model in configs:
        return model
    short_name = _short_name(model)
    return next((name for name in configs if _short_name(name) == short_name), None)


_SUFFIXES = (
    "-instruct", "-chat", "-it", "-instruct-v0.1", "-instruct-v0.3", "-v0.1", "-v0.3",
)  # fmt: skip


def _short_name(name: str) -> str:
    base = name.rpartition("/")[2].lower()
    for suffix in _SUFFIXES:
        base = base.removesuffix(suffix)
    return base.removeprefix("meta-").removesuffix("-instruct")


def _fetched(model: str, revision: str | None) -> Path | None:
    """Asks the hub for at most HUB_TIMEOUT_S; its client would retry much longer."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return None
    answers: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_ask_hub(model, revision)), daemon=True).start()
    try:
        return answers.get(timeout=HUB_TIMEOUT_S)
    except queue.Empty:
        return _from_cache(model, revision)  # what has come in time


def _ask_hub(model: str, revision: str | None) -> Path | None:
    """Fetches config.json, if the hub can be reached at all: without a network its client would
    retry for 30 s.
    """
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if not getproxies() and not _is_reached(endpoint.hostname or "", endpoint.port or 443):
        return None
    return _from_hub(model, revision)


@cache
def _is_reached(host: str, port: int) -> bool:
    """Whether a connection succeeds. Tried once, since a plan may name many models."""
    try:
        socket.create_connection((host, port), timeout=HUB_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _from_cache(model: str, revision: str | None) -> Path | None:
    """The folder of the hub's cache with this model's config.json; None if it is not cached."""
    return _hub_folder(model, "config.json", revision, local_only=True)


def _from_hub(model: str, revision: str | None) -> Path | None:
    """Brings a model's config.json to the hub's cache, and its ModelOpt file and its index if it
    has any. Returns their folder; None without a config.json.
    """
    folder = _hub_folder(model, "config.json", revision, local_only=False)
    if folder is not None:
        for name in (MODELOPT, INDEX):
            _hub_folder(model, name, revision, local_only=False)
    return folder


def _hub_folder(model: str, name: str, revision: str | None, *, local_only: bool) -> Path | None:
    """The folder of the hub's cache with this file of a model; None if the model has no such file.

    ``local_only``: the hub is not asked, so a file that is not cached counts as missing.
    """
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            model,
            name,
            revision=revision,
            local_files_only=local_only,
            etag_timeout=HUB_TIMEOUT_S,
        )
    except Exception:
        # errors of its HTTP library differ between versions; all of them mean "not there"
        return None
    return Path(path).parent


def _read_json(path: Path) -> Config | None:
    try:
        value = json.loads(read_at_most(path, MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _checkpoint_bytes(folder: Path) -> int | None:
    """Bytes of the weights, by their index, else by their files; None without any."""
    index = _read_json(folder / INDEX) or {}
    size = mapping(index, "metadata").get("total_size")
    if isinstance(size, int):
        return size
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None


def _coverage(*, has_formula: bool, is_whole: bool, has_plain_layers: bool) -> FormulaCoverage:
    """How much of a model is counted. ``has_formula``: its type is one of FAMILIES. ``is_whole``:
    the config describes a language model and nothing beside it. ``has_plain_layers``: they are
    those of a plain transformer.
    """
    if has_formula:
        return FormulaCoverage.WHOLE if is_whole else FormulaCoverage.LANGUAGE_MODEL
    return FormulaCoverage.PLAIN if has_plain_layers else FormulaCoverage.NOTHING


def facts_from_config(
    model: str, config: Config, checkpoint_bytes: int | None = None
) -> ModelFacts | None:
    """Facts from a parsed config.json; None when it does not describe a decoder with attention.

    A value of an unexpected type counts as missing.
    """
    # the config of the language model, which stands in that of a model with other encoders
    text = mapping(config, "text_config") or mapping(config, "llm_config") or config
    is_whole = text is config
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    text = _with_defaults(text, model_type)
    text = _with_one_figure(text)
    text = in_our_words(text, model_type)
    has_uncounted_layers = any(text.get(name) for name in _UNCOUNTED) or _has_several_figures(text)
    family = None if has_uncounted_layers else FAMILIES.get(model_type)
    shape = _shape(text, family or Family())
    if shape is None:
        return None
    has_plain_layers = not has_uncounted_layers and set(shape.mixers) == {"attention"}
    sliding = _sliding_window(text, model_type, shape)
    return ModelFacts(
        model=model,
        model_type=model_type,
        shape=shape,
        parameters=parameters.count(shape, family or Family()),
        coverage=_coverage(
            has_formula=family is not None, is_whole=is_whole, has_plain_layers=has_plain_layers
        ),
        dtype=_dtype(text, config),
        max_model_len=_max_model_len(text, model_type),
        short_model_len=_short_model_len(text),
        sliding_window=sliding.tokens,
        num_sliding_layers=sliding.layers,
        quantization=_quantization(text, config, shape),
        checkpoint_bytes=checkpoint_bytes,
        vision_size=_vision_size(config),
        draft_layers=_number(text, "num_nextn_predict_layers"),
        draft_vocab_size=_number(text, "draft_vocab_size"),
        architectures=tuple(str(name) for name in items(config, "architectures")),
        config_type=str(config.get("model_type") or ""),
    )


def _dtype(text: Config, config: Config) -> str:
    for part in (text, config):
        for key in ("dtype", "torch_dtype"):
            if part.get(key):
                return str(part[key])
    return "bfloat16"


def _quantization(text: Config, config: Config, shape: Shape) -> Quantization | None:
    stored = mapping(config, "quantization_config") or mapping(text, "quantization_config")
    if not stored:
        return None
    return quantization_from_config({"expert_dtype": text.get("expert_dtype")} | stored, shape)


# Keys of architectures whose layers differ from each other in ways that the formula does not know.
_UNCOUNTED = (
    "block_configs",
    "linear_attn_config",
    "mamba_d_state",
    "ssm_cfg",
    "conv_L_cache",
    "rwkv_hidden_size",
    "attn_type_list",  # lightning attention (MiniMax)
    "layer_group_size",  # Ring
    "lru_width",  # recurrent layers (RecurrentGemma)
    "ffn_config",  # figures of experts one level below (DBRX)
    "hidden_size_per_layer_input",  # Gemma 3n and 4
    "num_kv_shared_layers",
    "zero_expert_num",  # LongCat
)


def _with_one_figure(text: Config) -> Config:
    """The config with a number in place of each list that has the same number for every layer."""
    layers = _number(text, "num_hidden_layers")
    numbers: Config = {}
    for name in _FIGURES & text.keys():
        figures = items(text, name)
        if not figures or len(figures) != layers or type(figures[0]) is not int:
            continue
        if figures.count(figures[0]) == layers:
            numbers[name] = figures[0]
    return text | numbers


def _has_several_figures(text: Config) -> bool:
    """Whether a figure that the formula needs is a list with different numbers, one for each layer
    or kind of token.
    """
    return any(isinstance(text.get(name), list | dict) for name in _FIGURES)


def _vision_size(config: Config) -> int | None:
    """Layers times width squared of an image encoder; None without one."""
    vision = mapping(config, "vision_config")
    if not vision:
        return None
    layers = whole(vision.get("num_hidden_layers"), 24)
    return layers * whole(vision.get("hidden_size"), 1024) ** 2


_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_ALIASES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "experts_per_token",
        "moe_topk",
        "num_experts_per_token",
        "top_k_experts",
        "moe_k",
    ),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers",),
}
_OF_EVERY_LAYER = {"mixers", "mlps"}  # fields of a shape that are no figures
# Keys of the figures that the formula needs, aliases included.
_FIGURES = (frozenset(Shape.__dataclass_fields__) - _OF_EVERY_LAYER).union(
    _ALIASES.keys(), *_ALIASES.values()
)


def _number(text: Config, name: str, otherwise: int = 0) -> int:
    """A whole number by its name or an alias; ``otherwise`` where there is none."""
    for key in (name, *_ALIASES.get(name, ())):
        if text.get(key) is not None:
            return whole(text[key], otherwise)
    return otherwise


def _with_defaults(text: Config, model_type: str) -> Config:
    """The config; if required keys are missing, with the defaults of its class in transformers."""
    kinds = items(text, "layers_block_type")
    if kinds and not _number(text, "num_hidden_layers"):
        text = text | {"num_hidden_layers": len(kinds)}
    if all(_number(text, name) for name in _REQUIRED):
        return text
    from transformers import CONFIG_MAPPING  # slow, and few configs need it

    if model_type not in CONFIG_MAPPING:
        return text
    defaults: Config = CONFIG_MAPPING[model_type]().to_dict()
    return defaults | text


def _shape(text: Config, family: Family) -> Shape | None:
    """The shape of a model; None without the figures that every model has."""
    hidden = _number(text, "hidden_size")
    layers = _number(text, "num_hidden_layers")
    heads = _number(text, "num_attention_heads")
    if not (hidden and heads and 0 < layers <= MOST_LAYERS):
        return None
    intermediate = _number(text, "intermediate_size", 4 * hidden)
    experts = _number(text, "num_experts")
    moe_intermediate = _number(text, "moe_intermediate_size", intermediate)
    shared = _number(text, "n_shared_experts") * moe_intermediate
    kv_heads = _number(text, "num_key_value_heads", heads)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        kv_heads = 1
    is_tied = text.get("tie_word_embeddings")
    kinds = _kinds_of_layers(text, layers)
    # all that is more than the number of the same name in the config, or 0
    derived = {
        "num_key_value_heads": kv_heads,
        "head_dim": _number(text, "head_dim", max(1, hidden // heads)),
        "intermediate_size": intermediate,
        "tie_word_embeddings": family.tied if is_tied is None else bool(is_tied),
        "attention_bias": bool(text.get("attention_bias")),
        "mlp_bias": bool(text.get("mlp_bias")),
        "attention_k_eq_v": bool(text.get("attention_k_eq_v")),
        "moe_intermediate_size": moe_intermediate if experts else 0,
        "shared_expert_intermediate_size": _number(text, "shared_expert_intermediate_size", shared),
        "mixers": _mixers(text, kinds),
        "mlps": _mlps(text, kinds, has_experts=experts > 0),
    }
    numbers: Config = {name: _number(text, name) for name in Shape.__dataclass_fields__}
    return Shape(**numbers | derived)


# Nemotron-H: one letter per layer
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _kinds_of_layers(text: Config, layers: int) -> list[str]:
    """What each layer is, in the words of the config; those that it does not name have attention."""
    named = _named_kinds(text, layers)[:layers]
    return named + ["attention"] * (layers - len(named))


def _named_kinds(text: Config, layers: int) -> list[str]:
    """The kinds of layers that a config names: by a pattern, by a list, or by an interval."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [_PATTERN.get(letter, letter) for letter in pattern]
    listed = items(text, "layers_block_type") or items(text, "layer_types")
    if listed:
        return [str(kind) for kind in listed]
    interval = _number(text, "full_attention_interval")
    if not interval:
        return []
    return [
        "linear_attention" if (layer + 1) % interval else "attention" for layer in range(layers)
    ]


def _is_one_part_a_layer(kinds: list[str]) -> bool:
    """Whether each layer is either a mixer or an MLP (Nemotron-H)."""
    return "mlp" in kinds or "moe" in kinds


def _mixers(text: Config, kinds: list[str]) -> tuple[str, ...]:
    """``Shape.mixers``."""
    if _is_one_part_a_layer(kinds):
        return tuple("" if kind in ("mlp", "moe") else kind for kind in kinds)
    mixers: list[str] = []
    for kind in kinds:
        if kind == "full_attention" and text.get("global_head_dim"):
            mixers.append("global")
        elif "linear" in kind:
            mixers.append("linear")
        elif "attention" in kind:
            mixers.append("attention")
        else:
            mixers.append(kind)
    return tuple(mixers)


def _mlps(text: Config, kinds: list[str], has_experts: bool) -> tuple[str, ...]:
    """``Shape.mlps``."""
    if _is_one_part_a_layer(kinds):
        return tuple(kind if kind in ("mlp", "moe") else "" for kind in kinds)
    moe_layers = _moe_layers(text, len(kinds)) if has_experts else set()
    return tuple("moe" if layer in moe_layers else "mlp" for layer in range(len(kinds)))


def _moe_layers(text: Config, layers: int) -> set[int]:
    """Layers with routed experts, counted from 0.

    A config has a kind or a flag for each layer, says how many layers come before those with
    experts (DeepSeek), or names the layers that have none (Qwen).
    """
    kinds = items(text, "mlp_layer_types")  # of transformers 5
    if kinds:
        return {layer for layer, kind in enumerate(kinds[:layers]) if kind != "dense"}
    flags = items(text, "moe_layer_freq")
    if flags:
        return {layer for layer, flag in enumerate(flags[:layers]) if flag}
    step = _number(text, "decoder_sparse_step") or _number(text, "moe_layer_freq", 1)
    if text.get("first_k_dense_replace") is not None:
        first = _number(text, "first_k_dense_replace")
        return {layer for layer in range(first, layers) if layer % step == 0}
    dense = items(text, "mlp_only_layers")
    return {layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0}


# Model types -> n: every n-th layer has full attention.
_FULL_ATTENTION_STEP = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
# Model types whose layers all have a sliding window, if any has.
_ALL_SLIDING = {"mistral", "mixtral", "phi3", "starcoder2"}


@dataclass(frozen=True, slots=True)
class _SlidingWindow:
    """The window of attention, and how many layers have it. ``tokens``: None: no layer has it."""

    tokens: int | None
    layers: int


_NO_WINDOW = _SlidingWindow(None, 0)


def _sliding_window(text: Config, model_type: str, shape: Shape) -> _SlidingWindow:
    """The window, with its layers by ``layer_types`` if the config has it, else by the family's
    rule.
    """
    tokens = _number(text, "sliding_window")
    layers = shape.num_hidden_layers
    if not tokens or text.get("use_sliding_window") is False:
        return _NO_WINDOW
    if isinstance(text.get("layer_types"), list):
        kinds = items(text, "layer_types")[:layers]
        sliding_layers = kinds.count("sliding_attention") + kinds.count("chunked_attention")
        return _SlidingWindow(tokens, sliding_layers)
    step = _number(text, "sliding_window_pattern", _FULL_ATTENTION_STEP.get(model_type, 0))
    if step:
        return _SlidingWindow(tokens, layers - layers // step)
    return _SlidingWindow(tokens, layers) if model_type in _ALL_SLIDING else _NO_WINDOW


_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


def _max_model_len(text: Config, model_type: str) -> int | None:
    """The positions of a model by vLLM's rule: the smallest length that the config gives, times the
    factor of its rope scaling, unless the length is one after scaling.
    """
    lengths = [whole(text.get(key)) for key in _LENGTHS]
    if whole(text.get("model_max_length")):
        lengths = [whole(text.get("model_max_length"))]
    length = min((length for length in lengths if length), default=None)
    if length is None:
        return None
    scaling = _rope_scaling(text)
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not whole(factor):
        return length
    if _rope_type(scaling) in _SCALED_ALREADY or "gemma3" in model_type:
        return length
    return int(length * factor)


def _short_model_len(text: Config) -> int | None:
    """The positions that LongRoPE extends; None for models without it."""
    if _rope_type(_rope_scaling(text)) not in ("su", "longrope"):
        return None
    return whole(text.get("original_max_position_embeddings")) or None


def _rope_scaling(text: Config) -> Config:
    return mapping(text, "rope_scaling") or mapping(text, "rope_parameters")


def _rope_type(scaling: Config) -> Any:
    return scaling.get("rope_type") or scaling.get("type")

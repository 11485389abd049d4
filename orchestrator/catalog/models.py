"""A model's facts from its ``config.json``: a local folder, the hub's cache, or the hub itself within a short limit.

Nothing here loads weights or runs a model's own code.
"""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from orchestrator.catalog import parameters
from orchestrator.catalog.parameters import FAMILIES, Family, Parameters, Quantization, Shape

Json = dict[str, Any]
HUB_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What planning and the emulator need of a model. ``exact``: the parameter formula knows this architecture."""

    model: str
    model_type: str
    shape: Shape
    parameters: Parameters
    exact: bool
    dtype: str = "bfloat16"  # of the checkpoint
    max_model_len: int | None = None  # positions, with rope scaling, as vLLM derives it; None: unlimited
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    num_attention_layers: int = 0  # layers that hold a KV cache
    quantization: Quantization | None = None
    checkpoint_bytes: int | None = None  # of the safetensors index or files, where they are at hand
    multimodal: bool = False

    @property
    def active_parameters(self) -> int:
        """Parameters one token passes through, without the input embedding."""
        shape, parts = self.shape, self.parameters
        experts = parts.experts * shape.num_experts_per_tok // shape.num_experts if shape.num_experts else 0
        head = parts.lm_head or parts.embedding
        return parts.attention + parts.mlp + parts.norms + experts + head


def model_facts(
    model: str, revision: str | None = None, overrides: Json | None = None, online: bool = True
) -> ModelFacts | None:
    """Facts of a model, None when nothing is known of it. ``overrides`` are ``hf_overrides``.

    ``model`` is a local folder or a hub id. The hub is asked for at most HUB_TIMEOUT_S, and not at all when
    HF_HUB_OFFLINE is set or ``online`` is False; what it gave stays in its own cache. Without a config.json the
    well-known models of known_models.json still have facts.
    """
    return _facts_cached(model, revision, json.dumps(overrides or {}, sort_keys=True), online)


@lru_cache(maxsize=256)
def _facts_cached(model: str, revision: str | None, overrides: str, online: bool) -> ModelFacts | None:
    folder = _folder(model, revision, online)
    config = _read_json(folder / "config.json") if folder else known_config(model)
    if config is None:
        return None
    size = _checkpoint_bytes(folder) if folder else None
    return facts_from_config(model, config | json.loads(overrides), size)


def _folder(model: str, revision: str | None, online: bool) -> Path | None:
    local = Path(model).expanduser()
    if (local / "config.json").is_file():
        return local
    if local.is_absolute() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or (not online and known_config(model)):
        return None
    return _from_hub(model, revision, local_only=True) or (_fetched(model, revision) if online else None)


@cache
def known_configs() -> dict[str, Json]:
    """What planning and the emulator need of the config.json of well-known models, by hub id; from their repositories.

    With them both work without a network. A config.json at hand always wins.
    """
    found: dict[str, Json] = json.loads(Path(__file__).with_name("known_models.json").read_text(encoding="utf-8"))
    return found


def known_config(model: str) -> Json | None:
    """The config of a well-known model by its hub id, or by a short name such as ``Llama-3.1-8B``."""
    configs = known_configs()
    if model in configs:
        return configs[model]
    wanted = _short(model)
    return next((config for name, config in configs.items() if _short(name) == wanted), None)


def _short(name: str) -> str:
    base = name.rpartition("/")[2].lower()
    for suffix in ("-instruct", "-chat", "-it", "-instruct-v0.1", "-instruct-v0.3", "-v0.1", "-v0.3"):
        base = base.removesuffix(suffix)
    return base.removeprefix("meta-").removesuffix("-instruct")


def _fetched(model: str, revision: str | None) -> Path | None:
    """Ask the hub, for at most HUB_TIMEOUT_S whatever its client does with retries and name servers."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return None
    answers: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_ask_hub(model, revision)), daemon=True).start()
    try:
        return answers.get(timeout=HUB_TIMEOUT_S)
    except queue.Empty:
        return None


def _ask_hub(model: str, revision: str | None) -> Path | None:
    """Fetch config.json, after a look whether the hub can be reached at all: its client would try for half a minute."""
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if not getproxies():
        try:
            socket.create_connection((endpoint.hostname or "", endpoint.port or 443), timeout=HUB_TIMEOUT_S).close()
        except OSError:
            return None
    return _from_hub(model, revision, local_only=False)


def _from_hub(model: str, revision: str | None, local_only: bool) -> Path | None:
    """The folder of the hub's cache that holds this model's config.json."""
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            model, "config.json", revision=revision, local_files_only=local_only, etag_timeout=HUB_TIMEOUT_S
        )
    except Exception:  # its HTTP library's, which changes between versions; here all mean "not there"
        return None
    return Path(path).parent


def _read_json(path: Path) -> Json | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _checkpoint_bytes(folder: Path) -> int | None:
    index = _read_json(folder / "model.safetensors.index.json")
    if index and isinstance(size := index.get("metadata", {}).get("total_size"), int):
        return size
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None


def facts_from_config(model: str, config: Json, checkpoint_bytes: int | None = None) -> ModelFacts | None:
    """Facts from a parsed config.json; None when it is not a decoder with attention that we can read."""
    text = config.get("text_config") or config.get("llm_config") or config
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = FAMILIES.get(model_type)
    shape = _shape(_with_defaults(text, model_type), family or Family())
    if shape is None:
        return None
    window, sliding = _sliding(text, model_type, shape)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    named = (one.get(key) for one in (text, config) for key in ("dtype", "torch_dtype"))
    return ModelFacts(
        model=model,
        model_type=model_type,
        shape=shape,
        parameters=parameters.count(shape, family or Family()),
        exact=family is not None and text is config,
        dtype=str(next(filter(None, named), "bfloat16")),
        max_model_len=_max_model_len(text),
        sliding_window=window,
        num_sliding_layers=sliding,
        num_attention_layers=_attention_layers(text, shape),
        quantization=parameters.quantization_from_config(quantization),
        checkpoint_bytes=checkpoint_bytes,
        multimodal=text is not config,
    )


_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_ALIASES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("experts_per_token", "moe_topk", "num_experts_per_token"),
}


def _get(text: Json, name: str) -> Any:
    for key in (name, *_ALIASES.get(name, ())):
        if text.get(key) is not None:
            return text[key]
    return None


def _with_defaults(text: Json, model_type: str) -> Json:
    """Configs may leave out what their authors' class defaults to; only then is transformers asked (a slow import)."""
    if all(_get(text, name) is not None for name in _REQUIRED):
        return text
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return text
    defaults: Json = CONFIG_MAPPING[model_type]().to_dict()
    return defaults | text


def _shape(text: Json, family: Family) -> Shape | None:
    def number(name: str, otherwise: int = 0) -> int:
        value = _get(text, name)
        return int(value) if isinstance(value, int | float) else otherwise

    hidden, heads, layers = number("hidden_size"), number("num_attention_heads"), number("num_hidden_layers")
    if not (hidden and heads and layers):
        return None
    intermediate, experts = number("intermediate_size", 4 * hidden), number("num_experts")
    moe_intermediate = number("moe_intermediate_size", intermediate)
    shared = number("shared_expert_intermediate_size", number("n_shared_experts") * moe_intermediate)
    one_kv_head = text.get("multi_query") and not text.get("new_decoder_architecture")
    tied = text.get("tie_word_embeddings")
    derived = {
        "num_key_value_heads": 1 if one_kv_head else number("num_key_value_heads", heads),
        "head_dim": number("head_dim", hidden // heads),
        "intermediate_size": intermediate,
        "tie_word_embeddings": family.tied if tied is None else bool(tied),
        "attention_bias": bool(text.get("attention_bias")),
        "mlp_bias": bool(text.get("mlp_bias")),
        "moe_intermediate_size": moe_intermediate if experts else 0,
        "shared_expert_intermediate_size": shared,
        "num_moe_layers": _moe_layers(text, layers) if experts else 0,
    }
    figures: Json = {name: number(name) for name in Shape.__dataclass_fields__}
    return Shape(**figures | derived)


def _moe_layers(text: Json, layers: int) -> int:
    """Layers with routed experts: the first k dense (DeepSeek), every n-th sparse or a list of dense ones (Qwen)."""
    dense_first = int(text.get("first_k_dense_replace") or 0)
    step = int(text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1)
    dense = set(text.get("mlp_only_layers") or ())
    if text.get("first_k_dense_replace") is not None:
        return sum(1 for layer in range(layers) if layer >= dense_first and layer % step == 0)
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _sliding(text: Json, model_type: str, shape: Shape) -> tuple[int | None, int]:
    """(window, layers that have it). transformers' ``layer_types`` where the config has it, else each family's rule."""
    window = text.get("sliding_window")
    if not isinstance(window, int) or text.get("use_sliding_window") is False:
        return None, 0
    layers = shape.num_hidden_layers
    if isinstance(kinds := text.get("layer_types"), list):
        return window, sum(kind in {"sliding_attention", "chunked_attention"} for kind in kinds)
    pattern = text.get("sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}.get(model_type)
    if pattern:
        return window, sum((layer + 1) % int(pattern) != 0 for layer in range(layers))
    return (window, layers) if model_type in {"mistral", "mixtral", "phi3", "starcoder2"} else (None, 0)


def _attention_layers(text: Json, shape: Shape) -> int:
    """Layers with a KV cache: all, unless the config lists linear-attention or state-space layers among them."""
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if not isinstance(kinds, list):
        return shape.num_hidden_layers
    return sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)


_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}


def _max_model_len(text: Json) -> int | None:
    """vLLM's rule: the smallest of the keys for it, times the factor of a rope scaling that is not in it already."""
    given = [text[key] for key in _LENGTHS if isinstance(text.get(key), int)]
    if isinstance(text.get("model_max_length"), int):
        given = [text["model_max_length"]]
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if not given:
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = 1.0 if kind in _SCALED_ALREADY else float(scaling.get("factor") or 1.0)
    return int(min(given) * factor)

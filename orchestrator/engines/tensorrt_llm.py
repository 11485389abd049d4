"""TensorRT-LLM (``trtllm-serve``, PyTorch backend) 1.2, as its source shows it.

Everything but the address goes into one YAML file, since releases differ in whether the file or the
command line wins. tensorrt_llm_keys.json lists the file's keys. The server takes no API key. Its
HTTP port opens once the model is loaded. Its ``/metrics`` is JSON that is emptied by each read, so
the Prometheus metrics are read, which have another path. Metrics of 1.3 are asked for too; in older
releases they stay null.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.base.data_files import data_beside
from orchestrator.base.errors import FailureKind
from orchestrator.base.registry import did_you_mean
from orchestrator.engines import command
from orchestrator.engines.command import Command, LogFigure, Node
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.engine import ADAPTERS_UNLIMITED, Engine, named_as_vllm
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.constraint import ConstraintForm, ConstraintForms, all_kinds
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, Dialect, openai
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from orchestrator.spec.stages import PinnedSettings

CONFIG = "trtllm.yaml"
# Field -> key of the YAML file, with dots between levels.
KEY_OF_FIELD = {
    "revision": "revision",
    "tokenizer": "tokenizer",
    "trust_remote_code": "trust_remote_code",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "max_model_len": "max_seq_len",
    "max_input_len": "max_input_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "guided_decoding_backend": "guided_decoding_backend",
    "enable_prefix_caching": "kv_cache_config.enable_block_reuse",
    # of what is free after the weights
    "gpu_memory_utilization": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_tokens": "kv_cache_config.max_tokens",
    "block_size": "kv_cache_config.tokens_per_block",
    "stream_interval": "stream_interval",
    "scheduling_policy": "scheduler_config.capacity_scheduler_policy",
    "attention_backend": "attn_backend",
    "load_format": "load_format",
    "max_loras": "lora_config.max_loras",
    "max_lora_rank": "lora_config.max_lora_rank",
}
# The modules of the model that adapters change, in TensorRT-LLM's names.
ADAPTED_MODULES = "lora_config.lora_target_modules"
# Keys of speculative_config that the field ``speculative`` sets.
SPECULATIVE_KEYS = (
    "decoding_type",
    "num_nextn_predict_layers",
    "max_draft_len",
    "speculative_model_dir",
    "max_matching_ngram_size",
)
# Method -> decoding_type. Eagle means EAGLE 3: later releases name it Eagle3, which 1.2 does not
# know, and still take Eagle.
DECODING = {"draft_model": "DraftTarget", "ngram": "NGram", "eagle3": "Eagle", "mtp": "MTP"}
METHOD_OF_DECODING = {decoding: method for method, decoding in DECODING.items()}
DRAFT_TARGET = (1, 3)  # first release with the name Draft_Target
# tensorrt_llm_keys.json has the keys of all releases from the first of these to before the second.
OLDEST_RECORDED = (1, 2)
FIRST_NOT_RECORDED = (1, 4)
# The only fields that a request may have: the server refuses those that it does not know
# (serve/openai_protocol.py: CompletionRequest and ChatCompletionRequest).
FIELDS = (
    *("model", "stream", "stream_options", "max_tokens", "ignore_eos", "min_tokens"),
    *("temperature", "top_p", "top_k", "min_p", "top_p_min", "seed", "stop", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"),
    *("logit_bias", "use_beam_search", "early_stopping", "prompt_ignore_length"),
    *("add_special_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "lora_request", "user"),
)
CHAT_FIELDS = frozenset(
    {
        *("chat_template", "chat_template_kwargs", "add_generation_prompt", "documents"),
        *("reasoning_effort", "mm_processor_kwargs"),
    }
)


def _start(settings: PinnedSettings, hardware: Hardware, node: Node) -> Command:
    argv = [
        *(command.program(settings, "trtllm-serve"), node.model_path or settings.model),
        *("--host", node.bind, "--port", str(node.port), "--backend", "pytorch"),
        *("--extra_llm_api_options", CONFIG),  # an option of old and new releases
    ]
    files = {CONFIG: json.dumps(configuration(settings), indent=1, sort_keys=True)}  # JSON is YAML
    notes: list[str] = []
    key_problems = _unknown_key_problems(settings)
    if key_problems and not _is_recorded(settings):  # else ``_problems`` has them
        notes += key_problems
    spec = settings.speculative
    if spec is not None and _method(spec) == "draft_model" and not _release(settings):
        notes.append(command.assumed_release_note("one before 1.3"))
    return Command(tuple(argv), files=files, notes=tuple(notes))


def _release(settings: EngineSettings) -> tuple[int, ...] | None:
    return command.release(settings, "tensorrt_llm", 2)


def _is_recorded(settings: EngineSettings) -> bool:
    """Whether the release has recorded keys; one that is not known counts as recorded."""
    return OLDEST_RECORDED <= (_release(settings) or OLDEST_RECORDED) < FIRST_NOT_RECORDED


def _dialects(settings: EngineSettings) -> dict[str, Dialect]:
    constraints: ConstraintForms = {}
    own_key = settings.extra_args.get("guided_decoding_backend")
    if settings.guided_decoding_backend is not None or own_key is not None:
        # serve/openai_protocol.py: _response_format_to_guided_decoding_params
        constraints = all_kinds(ConstraintForm.TYPED_RESPONSE_FORMAT)
    dialects = openai(
        prompt_token_ids=True,
        allowed_fields=FIELDS,
        continuous_usage=True,
        constraints=constraints,
        tool_choices=ANY_TOOL_CHOICE,
        adapter_field="lora_request",
        adapter_values=_adapter_values(settings),
    )
    # ChatCompletionRequest alone has these fields
    chat = dialects["chat"].with_fields(CHAT_FIELDS)
    return dialects | {"chat": replace(chat, cache_salt=True)}


def _adapter_values(settings: EngineSettings) -> dict[str, dict[str, str | int]]:
    """What requests say for each adapter, which the server loads when it is first asked for
    (executor/request.py: LoRARequest; docs/source/features/lora.md). The numbers tell adapters
    apart in its cache.
    """
    adapters = settings.lora_modules or {}
    return {
        name: {"lora_name": name, "lora_int_id": number, "lora_path": path}
        for number, (name, path) in enumerate(adapters.items(), 1)
    }


def _served_name(settings: EngineSettings, node: Node) -> str:
    model = node.model_path or settings.model
    if model.startswith("/"):
        return model.rstrip("/").rsplit("/", 1)[-1]
    return model


def configuration(settings: EngineSettings) -> dict[str, Any]:
    """The YAML file: fields that are set or pinned, and what turns metrics on."""
    document: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    for field, path in KEY_OF_FIELD.items():
        value = getattr(settings, field)
        if value is not None:
            _put(document, path, value)
    if settings.enable_expert_parallel:
        document["moe_expert_parallel_size"] = settings.tensor_parallel_size
    if settings.enforce_eager:
        document["cuda_graph_config"] = None
    else:
        # by default graphs end at a batch of 128, with gaps before; other engines' cover all
        # batches
        graphs: dict[str, Any] = {"enable_padding": True}
        if "cuda_graph_config.batch_sizes" not in settings.extra_args:
            graphs["max_batch_size"] = settings.max_num_seqs
        document["cuda_graph_config"] = graphs
    if settings.speculative:
        document["speculative_config"] = _speculative(settings, settings.speculative)
    adapters = settings.lora_modules or {}
    if len(adapters) == 1:
        # what the adapter changes is read from its folder (pyexecutor/_util.py: load_torch_lora)
        _put(document, "lora_config.lora_dir", list(adapters.values()))
    for path, value in settings.extra_args.items():
        if not path.startswith("-"):
            _put(document, path, value)
    return document


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set a key of a nested document; ``path`` has dots between its levels."""
    *levels, key = path.split(".")
    for level in levels:
        document = document.setdefault(level, {})
    document[key] = value


def _problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    keys = [key for key in settings.extra_args if not key.startswith("-")]
    key_problems = _unknown_key_problems(settings)
    # the release, which is looked up on disk, makes a difference only where a key is unknown
    if key_problems and _is_recorded(settings):
        yield from key_problems
    if settings.extra_args.get("orchestrator_type") == "ray":
        yield (
            "extra_args: orchestrator_type: ray joins the cluster that runs the sweep and waits "
            "there for GPUs that this launch holds; leave it out"
        )
    for key in keys:
        inner = next((other for other in keys if other.startswith(f"{key}.")), None)
        if inner:
            yield f"extra_args: {key} and {inner} set the same; leave one of them out"
        if settings.enforce_eager and key.split(".")[0] == "cuda_graph_config":
            yield f"extra_args: {key}: enforce_eager switches CUDA graphs off; give one of them"
    yield from _adapter_problems(settings)


def _adapter_problems(settings: EngineSettings) -> Iterator[str]:
    adapters = settings.lora_modules or {}
    if not adapters:
        for field in ("max_loras", "max_lora_rank"):
            if getattr(settings, field) is not None:
                yield f"{field}: TensorRT-LLM needs lora_modules beside it, or leave it out"
        return
    # executor/request.py: LoRARequest looks whether the path exists
    for name, path in adapters.items():
        if not path.startswith("/"):
            yield (
                f"lora_modules: {name}: TensorRT-LLM reads adapters from folders alone: give the "
                f"whole path of one, not {path!r}"
            )
    # pyexecutor/_util.py: "Expecting at least one lora target module"
    if len(adapters) > 1 and ADAPTED_MODULES not in settings.extra_args:
        yield (
            "lora_modules: TensorRT-LLM must be told which modules several adapters change: "
            f"extra_args: {{{ADAPTED_MODULES}: [attn_q, attn_k, attn_v]}}, for example"
        )


def _unknown_key_problems(settings: EngineSettings) -> list[str]:
    """Sentences about the keys of ``extra_args`` that no recorded release has."""
    sentences: list[str] = []
    for key in settings.extra_args:
        if key.startswith("-"):
            continue  # a flag
        sentence = unknown_key_problem(key)
        if sentence is not None:
            sentences.append(sentence)
    return sentences


def unknown_key_problem(path: str) -> str | None:
    """A sentence about a key of the file that no recorded release has; None if one has it.

    The releases refuse to start with such a key. ``path``: the key, with dots between its levels.
    """
    recorded = data_beside(__file__, "tensorrt_llm_keys.json")
    keys = recorded["keys"]
    if _is_known(path, keys):
        return None
    paths = list(keys)
    for key, inner_keys in keys.items():
        paths += [f"{key}.{inner}" for inner in inner_keys or ()]
    guess = did_you_mean(path, paths)
    sentence = f"extra_args: {path!r} is not a key of TensorRT-LLM's file ({recorded['releases']})"
    return f"{sentence}; {guess}" if guess else sentence


def _is_known(path: str, keys: Mapping[str, Sequence[str] | None]) -> bool:
    """Whether a key is among ``keys``: key -> the keys below it; None: these are not recorded, so
    that any is taken for one of them.
    """
    first, *inner = path.split(".")
    if first not in keys or "" in inner:
        return False
    inner_keys = keys[first]
    if not inner or not inner_keys:
        return True
    return inner[0] in inner_keys


def _method(spec: Speculative) -> str:
    """The method in the common vocabulary; the file may give TensorRT-LLM's own name instead."""
    assert spec.method is not None  # ``DraftMethods`` refuses speculation without a method
    return METHOD_OF_DECODING.get(spec.method, spec.method)


def _speculative(settings: EngineSettings, spec: Speculative) -> dict[str, Any]:
    method = _method(spec)
    document: dict[str, Any] = {"decoding_type": DECODING[method]}
    if method == "draft_model":
        release = _release(settings) or OLDEST_RECORDED
        if release >= DRAFT_TARGET:
            document["decoding_type"] = "Draft_Target"
    if method == "mtp":
        document["num_nextn_predict_layers"] = spec.num_speculative_tokens
        return document
    document["max_draft_len"] = spec.num_speculative_tokens
    if spec.model:
        document["speculative_model_dir"] = spec.model
    if spec.prompt_lookup_max:
        document["max_matching_ngram_size"] = spec.prompt_lookup_max
    return document


ENGINE = Engine(
    name="tensorrt_llm",
    title="TensorRT-LLM",
    version="1.2",
    metrics_path="/prometheus/metrics",
    metrics=named_as_vllm("trtllm_")
    | {
        "kv_usage": "trtllm_kv_cache_utilization",
        "prefix_query_tokens_total": "trtllm_prompt_tokens_total",
        "prefix_hit_tokens_total": "trtllm_prompt_cached_tokens_total",
    },
    dialects=_dialects,
    served_name=_served_name,
    handled_fields=(
        *KEY_OF_FIELD,
        *("enable_expert_parallel", "enforce_eager", "speculative", "lora_modules"),
    ),
    unsupported={
        "enable_lora": ADAPTERS_UNLIMITED["enable_lora"],
        "quantization": (
            "TensorRT-LLM takes the quantization from the checkpoint; name a quantized model"
        ),
        "served_model_name": "trtllm-serve answers to the model's own name",
        "data_parallel_size": (
            "TensorRT-LLM has none beside replicas; that of its attention runs on the ranks of "
            "tensor_parallel_size: extra_args: {enable_attention_dp: true}"
        ),
        "nnodes": (
            "the ranks of TensorRT-LLM on several nodes need a launcher of their own: start them "
            "with it and measure the server as engine: endpoint"
        ),
        "kv_transfer_config": (
            "disaggregated serving has a launcher of its own (trtllm-serve disaggregated)"
        ),
    },
    value_names={"kv_cache_dtype": {"fp8_e4m3": "fp8"}},
    keys={path: f"the field {field}" for field, path in KEY_OF_FIELD.items()}
    | dict.fromkeys(
        ("return_perf_metrics", "enable_iter_perf_stats", "backend", "model"), "this program"
    )
    | {
        "moe_expert_parallel_size": "the field enable_expert_parallel",
        "lora_config.lora_dir": "the field lora_modules",
    }
    | dict.fromkeys(
        (f"speculative_config.{key}" for key in SPECULATIVE_KEYS), "the field speculative"
    ),
    allowed_values={
        "dtype": ("auto", "float16", "bfloat16", "float32"),
        # TensorRT-LLM takes TRTLLM for any other word (_torch/attention_backend/utils.py)
        "attention_backend": ("TRTLLM", "FLASHINFER", "FLASHINFER_STAR_ATTENTION", "VANILLA"),
        "scheduling_policy": ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"),
        "load_format": ("auto", "dummy"),
        "kv_cache_dtype": ("auto", "float16", "bfloat16", "float32", "fp8", "fp8_ds_mla", "nvfp4"),
    },
    reserved=("--host", "--port", "--backend", "--config", "--extra_llm_api_options"),
    # Its command line has these too, and might contradict the file.
    aliases={
        "--" + path.rpartition(".")[2]: f"the field {field}" for field, path in KEY_OF_FIELD.items()
    }
    | {
        "--tp_size": "the field tensor_parallel_size",
        "--pp_size": "the field pipeline_parallel_size",
        "--ep_size": "the field enable_expert_parallel",
        "--moe_expert_parallel_size": "the field enable_expert_parallel",
        "--kv_cache_free_gpu_memory_fraction": "the field gpu_memory_utilization",
    },
    drafts=DraftMethods(
        DECODING,
        with_model=("draft_model", "eagle3", "DraftTarget", "Eagle"),
        without_model=("ngram", "NGram"),
        optional_fields=("prompt_lookup_max",),
    ),
    pins=lambda settings, hardware: command.PINNED_BATCH,
    more_problems=_problems,
    start=_start,
    rules=ModelRules(
        share_of="free",
        # pyexecutor/resource_manager.py: _validate_and_adjust_attention_windows
        holds_length=lambda settings: False,
        moves_memory=("context_parallel_size", "--context_parallel_size", "--cp_size"),
        whole_attention=("enable_attention_dp",),
        # llmapi/llm_utils.py: _update_from_hf_quant_config. It reads AWQ checkpoints that ModelOpt
        # made, and GPTQ since late 2026.
        unreadable_methods=frozenset({"awq", "auto-round", "bitsandbytes", "fbgemm_fp8", "quark"}),
        unknown_methods=frozenset({"gptq", "compressed-tensors"}),
        min_capability={
            **dict.fromkeys(("fp8", "modelopt", "modelopt_mixed"), 89),
            "mxfp4": 90,
            "gptq": 80,
        },
        # on later GPUs for some models only
        kernels_on=dict.fromkeys(("modelopt_fp4", "modelopt_mxfp8"), range(100, 999)),
    ),
    # The engine first makes a small cache and measures what a step needs; only this measurement
    # logs the weights. Then it makes the final cache. Of all lines the largest number counts.
    # kvCacheManager.cpp, _torch/pyexecutor/py_executor_creator.py and _util.py
    reported=command.log_reader(
        {
            "weight_bytes": LogFigure(
                r"after loading model weights \(inside torch\) in .*: ([\d.]+) GiB",
                command.bytes_of_gib,
            ),
            "kv_cache_bytes": LogFigure(
                r"Allocated ([\d.]+) GiB for max tokens in paged KV cache",
                command.bytes_of_gib,
            ),
            "kv_cache_tokens": LogFigure(r"for max tokens in paged KV cache \((\d+)\)", int),
            "max_model_len": LogFigure(r"\bmax_seq_len=(\d+), max_num_requests=", int),
        }
    ),
    log=LogWords(
        failures={
            FailureKind.OOM_KV: r"component could not be created: KV cache",
            FailureKind.OOM_LOAD: r"failed due to insufficient GPU memory",
            FailureKind.BAD_QUANT: r"[Uu]nsupported quant[_ ]mode",
            FailureKind.BAD_MODEL: r"Unknown architecture for AutoModel",
            FailureKind.ENGINE_DEAD: r"Executor worker returned error",
        },
        consequences=r"Executor worker returned error",
    ),
)

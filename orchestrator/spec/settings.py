"""One engine configuration in one vocabulary for all engines, and where each version of an engine
is installed.

A field left at None means "the engine's own default". Names are vLLM's where vLLM has one. Each
engine maps a field to its own flag or refuses it with a reason (``engines/problems.py``); no field
is ignored silently.

``environments: {vllm: {"0.31": {executable: /opt/vllm-0.31}, "0.32": {image:
"vllm/vllm-openai:v0.32.0"}}}`` lets a sweep vary the version: a deployment with one of these as
``engine_version`` gets its executable or image from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from orchestrator.base.redaction import is_like_secret
from orchestrator.spec.container_options import RUNTIMES, option_problem
from orchestrator.spec.document import wrong

Scalar = str | int | float | bool | None
MOST = 2**31 - 1
MOST_DEVICES = 4096
LONGEST_NAME = 255  # bytes of a file's name


def _one_line(text: str) -> str:
    """Checks text that may be a path: the operating system fails on longer parts."""
    longest_part = max(len(part.encode()) for part in text.split("/"))
    if "\n" in text or "\t" in text or longest_part > LONGEST_NAME:
        raise ValueError(f"must be one line, with at most {LONGEST_NAME} bytes between two '/'")
    return text


def _runtime_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Checks that at least one runtime takes these arguments. ``engines/problems.py`` checks them
    again for the runtime in use, which may be known only later, from an environment.
    """
    problems = [option_problem(words, runtime) for runtime in RUNTIMES]
    if all(problems):
        raise ValueError(problems[0])
    return words


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


@lru_cache(4096)  # combinations share theirs
def _variable(name: str) -> str:
    """Checks the name of an environment variable. A refused name is not shown, because it may be a
    key that was written in place of the variable's name.
    """
    if not _VARIABLE.fullmatch(name) or is_like_secret(name):
        raise ValueError(
            "must be the name of an environment variable, like MY_KEY, and not what it holds"
        )
    return name


# Kubernetes' rule, and Ray's
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def _label(text: str) -> str:
    """Checks the value of a label. No node can have other values, and Ray would take ``!spot`` and
    ``in(a,b)`` for operators.
    """
    if not _LABEL.fullmatch(text):
        raise ValueError(
            f"no node has a label like {text!r}: write up to 63 letters, digits, '-', '_' and '.'"
        )
    return text


def _label_value(text: str) -> str:
    """Checks the value of a label, which Ray allows to be empty."""
    return _label(text) if text else text


def _label_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    has_bad_part = any(_LABEL.fullmatch(part) is None for part in prefix.split("."))
    if len(prefix) > 253 or (slash and has_bad_part):
        raise ValueError(f"no node has a label with the prefix {prefix!r}: write a domain")
    _label(name)
    return text


def as_tuple(value: Any) -> Any:
    """Makes a tuple of a list: a file has only lists, and strict validation wants a tuple."""
    return tuple(value) if isinstance(value, list) else value


Size = Annotated[int, Field(ge=1, le=MOST)]
Devices = Annotated[int, Field(ge=1, le=MOST_DEVICES)]  # also for nodes and replicas
OneLine = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
Variable = Annotated[str, AfterValidator(_variable)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,100}$")]  # shown in tables and sentences
ContainerArgs = Annotated[
    tuple[OneLine, ...], BeforeValidator(as_tuple), AfterValidator(_runtime_words)
]
Labels = dict[
    Annotated[str, AfterValidator(_label_key)], Annotated[str, AfterValidator(_label_value)]
]
# of a LoRA adapter: no sign that a command line or an API takes for a separator
AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w./-]{0,199}$")]
# a value in an engine's own vocabulary
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.:+/@-]{0,99}$")]
Runtime = Literal["docker", "podman", "apptainer"]
Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)
ROUTER = "router"  # the role of the router in front of all replicas


# The sets of fields that were given. Objects with the same fields share one: a plan of 100,000
# deployments would otherwise hold 160 MB of equal sets. They never change, since objects are
# immutable.
_FIELDS_SETS: dict[frozenset[str], set[str]] = {}
_EMPTY: dict[Any, Any] = {}  # the default value of several fields, which must stay empty


class Strict(BaseModel):
    """Base of everything read from a user's file: unknown keys are errors, and objects are
    immutable.

    ``SHORTHAND``: the type of what a file may have in place of the mapping, for the JSON schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)
    SHORTHAND: ClassVar[Any] = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        mapping = handler(schema)
        if cls.SHORTHAND is None:
            return mapping
        return {"anyOf": [handler(TypeAdapter(cls.SHORTHAND).core_schema), mapping]}

    def model_post_init(self, _: Any) -> None:
        fields = self.model_fields_set
        shared = _FIELDS_SETS.setdefault(frozenset(fields), fields)
        object.__setattr__(self, "__pydantic_fields_set__", shared)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        copy.model_post_init(None)
        return copy


class Speculative(Strict):
    """Speculative decoding. ``model`` is the draft model; n-gram methods have none.

    ``method`` is a common word (draft_model, ngram, eagle, eagle3, mtp, medusa, suffix) or the
    engine's own name; without it the engine works it out from the draft model, if it can.
    """

    method: Word | None = Field(
        default=None,
        description="How drafts are made: `draft_model`, `ngram`, `eagle`, `eagle3`, `mtp`, "
        "`medusa`, `suffix`, or the engine's own name for it, such as vLLM's `dflash`, `dspark` and "
        "`ngram_gpu`, SGLang's `DFLASH` or llama.cpp's `ngram-mod`. vLLM finds it out by the draft "
        "model if it is left out.",
    )
    num_speculative_tokens: Annotated[int, Field(ge=1, le=10_000)] = Field(
        description="Tokens that are drafted at a time; of a tree, the tokens of its longest "
        "branch."
    )
    model: OneLine | None = Field(
        default=None, description="The draft model: a name on the hub or a folder."
    )
    draft_tensor_parallel_size: Devices | None = Field(
        default=None, description="Tensor-parallel ranks of the draft model."
    )
    prompt_lookup_min: Size | None = Field(
        default=None, description="`ngram`: the fewest tokens that are looked up in the text."
    )
    prompt_lookup_max: Size | None = Field(
        default=None, description="`ngram`: the most tokens that are looked up in the text."
    )
    eagle_topk: Size | None = Field(
        default=None, description="SGLang: branches of each step of a tree of drafts."
    )
    num_draft_tokens: Size | None = Field(
        default=None, description="SGLang: tokens of a tree of drafts that are verified at a time."
    )
    extra_args: dict[str, Any] = Field(
        default_factory=lambda: _EMPTY,
        description="Further keys of vLLM's `--speculative-config`, for example "
        "`{attention_backend: FLASH_ATTN, draft_sample_method: probabilistic}`.",
    )


# Flags of ``extra_args``, or keys of an engine's own file, that multiply the ranks of a replica
# (vLLM 0.32 config/parallel.py: world_size; TensorRT-LLM 1.2 llmapi/llm_args.py). SGLang's divide
# the tensor-parallel ranks, and so do LMDeploy's without expert parallelism.
CONTEXT_PARALLEL = {
    "vllm": ("prefill-context-parallel-size", "pcp"),
    "tensorrt_llm": ("context-parallel-size", "cp-size"),
}


class EngineSettings(Strict):
    """One engine configuration, part of ``deployment_id``. Its stages on the way from a file to an
    engine: ``spec/stages.py``.
    """

    # which engine, and where it is installed
    engine: OneLine = Field(
        description="What serves the model: an engine such as `vllm` or `sglang`, `endpoint` for a "
        "server that already runs, or `emulator`, which imitates an engine."
    )
    engine_version: OneLine | None = Field(
        default=None,
        description="The version to compare: a name under `environments`. It is part of the "
        "deployment's identity and decides which flags the engine is known to have.",
    )
    executable: OneLine | None = Field(
        default=None,
        description="A virtual environment or an executable on the nodes. By default the engine "
        "is looked up on the nodes' PATH.",
    )
    image: OneLine | None = Field(
        default=None,
        description="A container image to run the engine in: a reference, or a path.",
    )
    container_runtime: Runtime | None = Field(
        default=None, description="What runs the `image`: `docker`, `podman` or `apptainer`."
    )
    container_args: ContainerArgs = Field(
        default=(),
        description="More options for the container runtime, after those of the hardware and "
        'without a shell, for example `["--ulimit=core=0", "--volume=/data:/data:ro"]`.',
    )
    url: OneLine | None = Field(
        default=None,
        description="`endpoint` only: the address of the server, with or without `/v1`, or the "
        "whole path of an API, with its query.",
    )
    endpoint_gpus: Devices | None = Field(
        default=None,
        description="`endpoint` only: how many GPUs all its replicas and roles run on. Figures "
        "per GPU need it, and those per dollar the price of its `hardware` too.",
    )
    api_key_env: Variable | None = Field(
        default=None,
        description="`endpoint` only: the name of the environment variable that holds its key.",
    )
    profile: OneLine | None = Field(
        default=None,
        description="`emulator` only: what it imitates, a file or `ACCELERATOR/MODEL`.",
    )

    # what it serves
    model: OneLine = Field(
        description="The model: a name on the Hugging Face hub or a folder. By default that of "
        "the whole file."
    )
    revision: OneLine | None = Field(
        default=None, description="A branch, tag or commit of the model on the hub."
    )
    tokenizer: OneLine | None = Field(
        default=None,
        description="The tokenizer that prompts are made with, and that the engine gets if it has "
        "a flag for it. By default the model's own.",
    )
    served_model_name: OneLine | None = Field(
        default=None,
        description="The model's name in requests. By default a name with the launch's id.",
    )
    trust_remote_code: bool | None = Field(
        default=None, description="Whether the engine may run code that comes with the model."
    )
    hf_overrides: dict[str, Any] | None = Field(
        default=None, description="Values that replace those of the model's `config.json`."
    )

    # parallelism: a replica has tensor * pipeline * data devices, divided evenly among its nnodes
    tensor_parallel_size: Devices = Field(
        default=1, description="Devices that share each layer of a replica (TP)."
    )
    pipeline_parallel_size: Devices = Field(
        default=1, description="Stages that the layers of a replica are divided into (PP)."
    )
    data_parallel_size: Devices = Field(
        default=1, description="Data-parallel ranks within one replica (DP)."
    )
    enable_expert_parallel: bool | None = Field(
        default=None,
        description="Whether whole experts are divided among the devices of a replica (EP).",
    )
    nnodes: Devices = Field(
        default=1,
        description="Nodes of one replica; its devices are divided evenly among them. If it is "
        "left out, a replica larger than a node is spread over as few nodes as hold it.",
    )
    # ray: refused, see docs/explained/ray.md
    distributed_executor_backend: Literal["mp", "uni"] | None = Field(
        default=None,
        description="How vLLM starts its workers: `mp` (processes) or `uni` (one process).",
    )
    replicas: Devices = Field(
        default=1, description="Equal engines that share the load of this deployment."
    )

    # numbers
    dtype: Word | None = Field(
        default=None,
        description="Number format of weights and activations, for example `bfloat16`.",
    )
    quantization: Word | None = Field(
        default=None,
        description="Quantization that happens while loading, in words that mean the same for "
        "every engine: `fp8`, `fp8_per_tensor`, `fp8_per_channel`, `fp8_per_block`, `int8` (weights "
        "and activations), `bitsandbytes` (4 bits), `awq`, `gptq`, `compressed-tensors`, `mxfp4`; "
        "or the engine's own word.",
    )
    kv_cache_dtype: Word | None = Field(
        default=None,
        description="Number format of the KV cache: `auto`, `fp8` (E4M3), `int8`, `int4`, or the "
        "engine's own word.",
    )

    # lengths, batching, scheduling
    max_model_len: Size | None = Field(
        default=None, description="Longest prompt and answer together, in tokens."
    )
    max_input_len: Size | None = Field(default=None, description="Longest prompt, in tokens.")
    max_num_seqs: Size | None = Field(
        default=None, description="Most requests that a replica runs at a time: its batch size."
    )
    max_num_batched_tokens: Size | None = Field(
        default=None, description="Most tokens that a replica processes in one step."
    )
    max_num_queued_reqs: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description="Most requests that wait in the engine's queue before it refuses more.",
    )
    scheduling_policy: Word | None = Field(
        default=None, description="In which order the engine takes requests, for example `fcfs`."
    )
    enable_chunked_prefill: bool | None = Field(
        default=None,
        description="Whether long prompts are processed in pieces, between steps of others.",
    )
    enable_prefix_caching: bool | None = Field(
        default=None,
        description="Whether the KV cache of a prompt's beginning is kept for prompts that begin "
        "alike.",
    )
    stream_interval: Size | None = Field(
        default=None, description="Tokens that are sent together in one event of a stream."
    )
    scheduler_recv_interval: Size | None = Field(
        default=None,
        description="SGLang: decode steps from one look for new requests to the next.",
    )

    # memory
    gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of a GPU's memory that the engine may use, for example 0.9.",
    )
    kv_cache_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        default=None, description="Size of the KV cache in tokens."
    )
    kv_cache_memory_bytes: Annotated[ByteSize, Field(ge=1, le=2**50)] | None = Field(
        default=None, description="Size of the KV cache on each GPU, for example `16GiB`."
    )
    block_size: Size | None = Field(
        default=None, description="Tokens of one block of the KV cache."
    )
    cpu_offload_gb: float | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description="Weights of each GPU that are kept in the host's memory, in GB.",
    )

    # features
    enforce_eager: bool | None = Field(
        default=None, description="Whether the engine runs without compiled graphs."
    )
    speculative: Speculative | None = Field(
        default=None,
        description="Speculative decoding, for example "
        "`{method: ngram, num_speculative_tokens: 4}`.",
    )
    guided_decoding_backend: Word | None = Field(
        default=None, description="What enforces constraints on answers, for example `xgrammar`."
    )
    load_format: Word | None = Field(
        default=None,
        description="How weights are read, for example `safetensors`, `runai_streamer` or `dummy`.",
    )
    enable_lora: bool | None = Field(
        default=None,
        description="Whether the engine serves LoRA adapters; set where there are `lora_modules`.",
    )
    lora_modules: dict[AdapterName, OneLine] | None = Field(
        default=None,
        description="LoRA adapters by name: where each of them is, a folder or a name on the hub "
        "(of llama.cpp a GGUF file), for example `{sql: /adapters/sql, law: acme/law-lora}`.",
    )
    max_loras: Size | None = Field(
        default=None, description="Most LoRA adapters that are used in one step."
    )
    max_lora_rank: Size | None = Field(
        default=None, description="Highest rank of the LoRA adapters."
    )
    attention_backend: Word | None = Field(
        default=None,
        description="The engine's own name of its attention kernels, for example `FLASH_ATTN`.",
    )
    kv_transfer_config: dict[str, Any] | None = Field(
        default=None,
        description="How a role sends or receives KV caches: keys of vLLM's "
        "`--kv-transfer-config`.",
    )

    # everything else. {"--flag": value} is a flag of its command line, bare where the value is
    # true; a name without dashes is a key of its own configuration file, with dots between levels
    extra_args: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=lambda: _EMPTY,
        description='Flags of the engine that no setting covers: `{"--flag": value}`, with '
        "`true` for a bare flag. A flag that a setting controls is refused in any spelling, "
        "abbreviations included.",
    )
    # {rank}, {host}, … in a value: engines/command.py, PLACES
    env: dict[Variable, str] = Field(
        default_factory=lambda: _EMPTY,
        description="Environment variables of the engine, for example "
        '`{NCCL_P2P_DISABLE: "1"}`. `{rank}`, `{host}`, `{master_host}`, `{launch_id}` and '
        "`{workdir}` in a value are filled in for each rank. Variables that choose GPUs are "
        "refused.",
    )
    startup_timeout_s: float = Field(
        default=1800.0,
        gt=0,
        le=MOST,
        description="Seconds until the engine must serve. By default as long as a download of its "
        "weights at 100 MB/s takes, where that is longer.",
    )

    # separate prefill and decode replicas with their own settings, and the router that clients talk
    # to
    roles: dict[Role, EngineSettings] | None = Field(
        default=None,
        description="Separate `prefill` and `decode` replicas, each with settings that override "
        "those beside `roles`.",
    )
    router: EngineSettings | None = Field(  # its engine is one of ROUTERS
        default=None,
        description="The program in front of the replicas, for example `{engine: vllm_router}`.",
    )

    @property
    def parts(self) -> dict[str, Self]:
        """Settings of everything a launch starts, by role: engines ("" without roles), then their
        router. All are of the same stage (``spec/stages.py``).
        """
        parts: dict[str, EngineSettings] = {}
        if self.roles:
            parts.update({str(role): part for role, part in self.roles.items()})
        else:
            parts[""] = self
        if self.router:
            parts[ROUTER] = self.router
        return cast(dict[str, Self], parts)

    @property
    def engines(self) -> dict[str, Self]:
        """``parts`` without the router."""
        return {role: part for role, part in self.parts.items() if role != ROUTER}

    def each(self, change: Callable[[EngineSettings], EngineSettings]) -> EngineSettings:
        """A copy with ``change`` applied to these settings and to those of every role and the
        router.
        """
        changed = change(self)
        if self.roles is None and self.router is None:
            return changed
        roles = None
        if self.roles:
            roles = {role: change(part) for role, part in self.roles.items()}
        router = change(self.router) if self.router else None
        return changed.model_copy(update={"roles": roles, "router": router})

    @property
    def devices(self) -> int:
        """Devices of all replicas of all roles. A router has none; an endpoint has
        ``endpoint_gpus``, or 0 where these are not given.
        """
        if self.url:
            return self.endpoint_gpus or 0
        return sum(part.world_size * part.replicas for part in self.engines.values())

    def least_nodes(self, room: int | None) -> int:
        """Fewest nodes that hold all replicas; 0 for an endpoint.

        ``room`` is the number of devices of a node, by which replicas may share nodes. None: it is
        not known.
        """
        if self.url:
            return 0
        parts = self.engines.values()
        widest = max(part.nnodes for part in parts)
        if not room or any(part.devices_per_node > room for part in parts):
            return widest
        least = max(widest, -(-self.devices // room))
        for part in parts:
            ranks = part.replicas * part.nnodes
            ranks_per_node = room // part.devices_per_node
            least = max(least, -(-ranks // ranks_per_node))
        return least

    @property
    def world_size(self) -> int:
        """Devices of one replica over all its nodes."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
        return ranks * self.context_parallel_size if self.extra_args else ranks

    @property
    def context_parallel_size(self) -> int:
        """Ranks among which an engine divides prompts, as ``extra_args`` ask for. Most engines take
        these from the ranks that other settings give: they have 1 here.
        """
        names = CONTEXT_PARALLEL.get(self.engine, ())
        for flag, value in self.extra_args.items():
            name, has_value, written = flag.partition("=")
            if name.lstrip("-").replace("_", "-") not in names:
                continue
            size = written if has_value else str(value)
            if size.isdecimal() and 1 <= int(size) <= MOST_DEVICES:
                return int(size)
        return 1

    @property
    def devices_per_node(self) -> int:
        """Devices of one replica on each of its nodes, rounded up; ``plan`` refuses a remainder."""
        return -(-self.world_size // self.nnodes)

    def without_defaults(self) -> dict[str, Any]:
        """The fields whose values are not their defaults."""
        return self.model_dump(exclude_defaults=True)


NO_HARDWARE = "none"  # the hardware of endpoints: we place nothing


class Hardware(Strict):
    """One class of nodes. ``accelerator: cpu`` is built in: devices are then CPU cores."""

    name: Name = Field(description="The key of this class under `hardware`.")
    accelerator: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w .+()/-]{0,99}$")] = Field(
        default="cpu",
        description="A name from the catalogue, such as `H100-80GB`, any other name with "
        "`memory_gb`, or `cpu`, where devices are cores.",
    )
    gpus_per_node: Devices | None = Field(
        default=None, description="GPUs of one node; `plan` finds replicas that do not fit."
    )
    usd_per_gpu_hour: float | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description="Price of one GPU in dollars per hour; without one there are no costs.",
    )
    labels: Labels = Field(
        default_factory=dict,
        description="Labels that the Ray nodes of this class carry, for example "
        "`{ray.io/market-type: spot}`.",
    )
    memory_gb: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Memory of one device in GB; overrides the catalogue.",
    )
    memory_bandwidth_gb_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Memory bandwidth of one device in GB/s; overrides the catalogue.",
    )
    weights_gb_s: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="GB/s at which one of these nodes reads weights, from its disk or over a "
        "network. Starts that never ran are estimated, and simulated, with it. Default: 1.",
    )
    cpus_per_device: float | None = Field(
        default=None,
        ge=0,
        le=MOST_DEVICES,
        description="Ray CPUs that are reserved with each device.",
    )
    container_args: ContainerArgs = Field(
        default=(),
        description="Options for the container runtime, for every container on these nodes.",
    )

    @property
    def is_cpu(self) -> bool:
        return self.accelerator == "cpu"

    @property
    def is_amd(self) -> bool:
        """Whether it is an Instinct or Radeon, which need ROCm instead of CUDA."""
        return _AMD.match(self.accelerator) is not None


_AMD = re.compile(r"(amd[\W_]*)?((radeon|instinct)\b|mi\d)", re.IGNORECASE)
LOCATION = ("executable", "image", "container_runtime")  # settings that an environment decides
_NUMBERED = re.compile(r"v?(\d[^-_/ ]*)")


class Environment(Strict):
    """One place where one version of an engine is installed on the nodes: a virtual environment or
    an image.
    """

    executable: OneLine | None = Field(
        default=None, description="A virtual environment or an executable on the nodes."
    )
    image: OneLine | None = Field(
        default=None, description="A container image: a reference or a path."
    )
    container_runtime: Runtime | None = Field(
        default=None, description="What runs the `image`: `docker`, `podman` or `apptainer`."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Environment:
        if (self.executable is None) == (self.image is None):
            raise wrong(
                (), "an environment is either an executable or an image", "give one of them"
            )
        if self.container_runtime is not None and self.image is None:
            raise wrong(
                "container_runtime",
                "'container_runtime' is for images",
                "give 'image', or leave it out",
            )
        return self


Versions = Annotated[dict[str, Environment], Field(min_length=1)]
Environments = Mapping[str, Mapping[str, Environment]]  # engine -> version -> where it is


def is_version(wanted: str, actual: str) -> bool:
    """Whether an installed version is the wanted one. ``0.32`` and ``v0.32`` include ``0.32.1+cpu``
    and exclude ``0.321``; a word such as ``nightly`` includes any version.
    """
    number = _NUMBERED.fullmatch(wanted)
    if number is None:
        return True
    if not actual.startswith(number[1]):
        return False
    next_character = actual.removeprefix(number[1])[:1]
    return not next_character.isdigit()


def installed(executable: str, engine: str) -> Path | None:
    """The ``.dist-info`` folder of an engine in a virtual environment, or in the one that holds an
    executable.
    """
    path = Path(executable)
    pattern = f"lib/python*/site-packages/{engine.replace('-', '_')}-*.dist-info"
    for home in (path, *path.parents[1:2]):
        folders = sorted(home.glob(pattern))
        if folders:
            return folders[-1]
    return None


def installed_version(executable: str, engine: str) -> str | None:
    """The version of an engine in a virtual environment (or an executable's), found without
    starting it.
    """
    folder = installed(executable, engine)
    if folder is None:
        return None
    return folder.name.removesuffix(".dist-info").partition("-")[2]


# -- settings by dotted names, as combinations collect them


PARTS = tuple(f"roles.{role}" for role in ROLES)
_PARTS_AND_ALL = ("roles", *PARTS, ROUTER)
# choices and roles add to these mappings; they replace every other setting
ADDED = ("env", "extra_args")
# settings of a deployment that its router inherits
_OF_ROUTERS_TOO = ("model", "served_model_name", "startup_timeout_s")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one deployment, its roles and its router as EngineSettings nests them, from
    dotted names.
    """
    shared = {
        name: value
        for name, value in values.items()
        if "." not in name and name not in ("roles", ROUTER)
    }
    settings = dict(shared)
    roles: dict[str, Any] = {}
    for role in ROLES:
        own = _below(f"roles.{role}", values)
        if own:
            roles[role] = merged(shared, own)
    if roles:
        settings["roles"] = roles
    router = _below(ROUTER, values)
    if router:
        inherited = {name: shared[name] for name in _OF_ROUTERS_TOO if name in shared}
        settings[ROUTER] = inherited | router
    return settings


def merged(before: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` updated with ``own``; mappings of ADDED are joined. A role or router set to None
    is removed.
    """
    joined = dict(before)
    for name, value in own.items():
        if value is None and name in _PARTS_AND_ALL:
            joined = {kept: joined[kept] for kept in joined if not kept.startswith(f"{name}.")}
    for name, value in own.items():
        earlier = joined.get(name)
        is_added = name.rpartition(".")[2] in ADDED
        if is_added and isinstance(value, dict) and isinstance(earlier, dict):
            joined[name] = {**earlier, **value}
        else:
            joined[name] = value
    return joined


class SettingProblem(NamedTuple):
    """What is wrong with one setting, by its dotted name."""

    setting: str
    message: str
    hint: str


def problems_of_parts(values: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Everything wrong with the roles and the router of one deployment, by themselves and
    together.
    """
    for name in _PARTS_AND_ALL:
        if values.get(name) is not None:
            yield SettingProblem(
                name,
                f"{name!r} must be a mapping of settings",
                "write roles: {prefill: {replicas: 2}, decode: {}}",
            )
    roles = [part for part in PARTS if _below(part, values)]
    if len(roles) == 1:
        other_role = next(part for part in PARTS if part not in roles)
        yield SettingProblem(
            roles[0],
            f"{roles[0]!r} stands alone: it needs {other_role!r} beside it",
            f"give {other_role}, or no roles",
        )
    if roles and values.get("replicas") is not None:
        yield SettingProblem(
            "replicas",
            "'replicas' belongs to each role",
            "write roles: {prefill: {replicas: 2}, decode: ...}",
        )
    router = _below(ROUTER, values)
    if roles and not router:
        yield SettingProblem(
            "roles",
            "'roles' need a 'router' in front of them",
            "write router: {engine: vllm_router}",
        )
    if router and "engine" not in router:
        yield SettingProblem(
            ROUTER, "'router' names no engine", "write router: {engine: vllm_router}"
        )


def _below(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(f"{part}."): value
        for name, value in values.items()
        if name.startswith(f"{part}.")
    }

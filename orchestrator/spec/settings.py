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
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    model_validator,
)

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
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

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

    method: Word | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=10_000)]  # of a tree: its depth
    model: OneLine | None = None
    draft_tensor_parallel_size: Devices | None = None
    prompt_lookup_min: Size | None = None
    prompt_lookup_max: Size | None = None
    eagle_topk: Size | None = None  # branches of a tree of drafts
    num_draft_tokens: Size | None = None  # tokens of a tree that are verified at a time
    # further keys of the engine's own draft configuration
    extra_args: dict[str, Any] = Field(default_factory=lambda: _EMPTY)


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
    engine: OneLine
    engine_version: OneLine | None = None
    executable: OneLine | None = None  # path of a venv or of an executable
    image: OneLine | None = None  # container image reference
    container_runtime: Runtime | None = None
    # options of the runtime, after ours and those of the hardware
    container_args: ContainerArgs = ()
    url: OneLine | None = None  # engine: endpoint only
    # engine: endpoint only; how many GPUs all its replicas and roles run on
    endpoint_gpus: Devices | None = None
    # engine: endpoint only; the environment variable that holds its key
    api_key_env: Variable | None = None
    profile: OneLine | None = None  # engine: emulator only; a file or a name from the catalogue

    # what it serves
    model: OneLine
    revision: OneLine | None = None
    tokenizer: OneLine | None = None
    served_model_name: OneLine | None = None
    trust_remote_code: bool | None = None
    hf_overrides: dict[str, Any] | None = None

    # parallelism: a replica has tensor * pipeline * data devices, divided evenly among its nnodes
    tensor_parallel_size: Devices = 1
    pipeline_parallel_size: Devices = 1
    data_parallel_size: Devices = 1
    enable_expert_parallel: bool | None = None
    nnodes: Devices = 1
    # ray: refused, see docs/explained/ray.md
    distributed_executor_backend: Literal["mp", "uni"] | None = None
    replicas: Devices = 1

    # numbers
    dtype: Word | None = None
    quantization: Word | None = None
    kv_cache_dtype: Word | None = None

    # lengths, batching, scheduling
    max_model_len: Size | None = None
    max_input_len: Size | None = None
    max_num_seqs: Size | None = None
    max_num_batched_tokens: Size | None = None
    max_num_queued_reqs: int | None = Field(default=None, ge=0, le=MOST)
    scheduling_policy: Word | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    stream_interval: Size | None = None
    # decode steps after which the scheduler looks for new requests again
    scheduler_recv_interval: Size | None = None

    # memory
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None  # KV capacity in tokens
    kv_cache_memory_bytes: Annotated[ByteSize, Field(ge=1, le=2**50)] | None = None  # per GPU
    block_size: Size | None = None
    cpu_offload_gb: float | None = Field(default=None, ge=0, le=MOST)

    # features
    enforce_eager: bool | None = None
    speculative: Speculative | None = None
    guided_decoding_backend: Word | None = None
    load_format: Word | None = None
    enable_lora: bool | None = None
    lora_modules: dict[str, str] | None = None
    max_loras: Size | None = None
    max_lora_rank: Size | None = None
    attention_backend: Word | None = None
    kv_transfer_config: dict[str, Any] | None = None

    # everything else. {"--flag": value} is a flag of its command line, bare where the value is
    # true; a name without dashes is a key of its own configuration file, with dots between levels
    extra_args: dict[str, Scalar | list[Scalar]] = Field(default_factory=lambda: _EMPTY)
    # {rank}, {host}, … in a value: engines/command.py, PLACES
    env: dict[Variable, str] = Field(default_factory=lambda: _EMPTY)
    startup_timeout_s: float = Field(default=1800.0, gt=0, le=MOST)

    # separate prefill and decode replicas with their own settings, and the router that clients talk
    # to
    roles: dict[Role, EngineSettings] | None = None
    router: EngineSettings | None = None  # its engine is one of ROUTERS

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

    name: Name
    accelerator: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w .+()/-]{0,99}$")] = "cpu"
    gpus_per_node: Devices | None = None
    usd_per_gpu_hour: float | None = Field(default=None, ge=0, le=MOST)
    labels: Labels = Field(default_factory=dict)  # of the Ray nodes to use
    memory_gb: float | None = Field(default=None, gt=0, le=1e6)  # overrides the catalogue
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0, le=1e9)
    # Ray CPUs reserved for each device
    cpus_per_device: float | None = Field(default=None, ge=0, le=MOST_DEVICES)
    container_args: ContainerArgs = ()  # of every container on these nodes

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

    executable: OneLine | None = None
    image: OneLine | None = None
    container_runtime: Runtime | None = None

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

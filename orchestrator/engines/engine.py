"""What an engine is to us: a record of what differs from the others, and the skeleton that all of them share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.catalog.memory import FLOAT32, kernel_scheme, kv_cache_dtype
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.quantization import Quantization
from orchestrator.engines import ROUTERS, command
from orchestrator.engines.command import Command, Flags, Node
from orchestrator.errors import FailureKind
from orchestrator.spec.container_options import option_problem
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware

Reported = dict[str, float | int | str]
# What every launched engine has without a flag: which, where, what for, and how often it is started.
EVERYWHERE = frozenset(
    {
        *("engine", "engine_version", "executable", "image", "container_runtime", "container_args"),
        *("model", "replicas", "extra_args", "env", "startup_timeout_s", "nnodes"),
        *("roles", "router"),
        "tokenizer",  # load clients make prompts with it; an engine with a flag for it gets it too
    }
)
# Why fields of other kinds of engines are refused by all that are launched here.
NOT_LAUNCHED = {
    "url": "is for the engine `endpoint`; this one is launched",
    "endpoint_gpus": "is for the engine `endpoint`; those of this one follow from its settings",
    "profile": "is for the engine `emulator`; this one is real",
    "api_key_env": "is for the engine `endpoint`; this one gets a fresh random key",
}
# Why an engine has no place for a field, where its own `refused` says nothing else; {} is its title.
LACKING = {
    "pipeline_parallel_size": "{} has no pipeline parallelism",
    "data_parallel_size": "{} has no data parallelism; use replicas",
    "enable_expert_parallel": "{} has no expert parallelism",
    "distributed_executor_backend": "{} starts its ranks in its own way; leave it out",
    "hf_overrides": "{} reads the model's own config.json",
    "load_format": "{} reads the checkpoint's own weights only",
    "max_input_len": "{} limits input and output together; use max_model_len",
    "max_num_queued_reqs": "{} has no limit on its queue",
    "scheduling_policy": "{} has one order of serving",
    "stream_interval": "{} sends every token as it comes",
    "kv_cache_memory_bytes": "{} does not take the size of its KV cache in bytes; use kv_cache_tokens",
    "cpu_offload_gb": "{} keeps all weights on its devices",
    "kv_transfer_config": "{} has no disaggregated prefill",
}
# Variables that choose them.
DEVICES = {"GPU_DEVICE_ORDINAL", *(f"{vendor}_VISIBLE_DEVICES" for vendor in ("CUDA", "HIP", "ROCR", "NVIDIA"))}
LEAST_GROUP = 32  # inputs: no kernel for experts has smaller groups
# No request makes use of them yet.
UNUSED = ("enable_lora", "lora_modules", "max_loras", "max_lora_rank", "guided_decoding_backend")


def named_as_vllm(prefix: str) -> dict[str, str]:
    """``Engine.metrics`` of an engine that calls these as vLLM does, behind a prefix of its own."""
    names = {
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "queue_time_s_sum": "request_queue_time_seconds_sum",
        "queue_time_count": "request_queue_time_seconds_count",
        "ttft_s_sum": "time_to_first_token_seconds_sum",
        "ttft_count": "time_to_first_token_seconds_count",
        "spec_draft_tokens_total": "spec_decode_num_draft_tokens_total",
        "spec_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
        "prompt_tokens_total": "prompt_tokens_total",
        "generation_tokens_total": "generation_tokens_total",
    }
    return {column: prefix + name for column, name in names.items()}


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculative decoding, as far as an engine has it."""

    methods: Collection[str]
    with_model: Collection[str] = ()  # methods that need a draft model
    lacking: Collection[str] = ("draft_tensor_parallel_size", "prompt_lookup_min", "prompt_lookup_max")

    def problems(self, engine: str, settings: EngineSettings) -> list[str]:
        """A method it does not have, one that lacks its model or has one too many, details it has no place for."""
        spec = settings.speculative
        if spec is None:
            return []
        found = []
        if spec.method not in self.methods:
            found.append(f"speculative: {engine} has no method {spec.method}; it has {', '.join(self.methods)}")
        if spec.method in self.with_model and spec.model is None:
            found.append(f"speculative: method {spec.method} needs a model")
        if spec.method in ("ngram", "suffix") and spec.model is not None:
            found.append(f"speculative: method {spec.method} has no model")
        if spec.method != "ngram" and (spec.prompt_lookup_min or spec.prompt_lookup_max):
            found.append(f"speculative: prompt_lookup_min and prompt_lookup_max are for ngram, not for {spec.method}")
        if given := [name for name in self.lacking if getattr(spec, name) is not None]:
            found.append(f"speculative: {engine} has no {' and no '.join(given)}")
        return found


@dataclass(frozen=True, slots=True)
class LogWords:
    """How an engine's log tells why it failed, as regular expressions; what all engines say is in failures.py."""

    failures: Mapping[FailureKind, str] = field(default_factory=dict)
    passing: str = ""  # how a line begins that is said in passing, of what the engine then does another way
    consequences: str = ""  # what follows from a cause that stands elsewhere in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernels:
    """What an engine computes on CPUs. Schemes are those of ``catalog/parameters.py: Quantization``."""

    schemes: Mapping[str, bool]  # that any CPU has -> whether in float32 too
    risks: Mapping[str, str]  # schemes and methods that some CPUs or installations lack -> what they need
    flags: Mapping[str, tuple[str, ...]]  # a checkpoint's method -> all that ``quantization`` may then be
    kv_dtypes: tuple[str, ...]
    kv_noise: frozenset[str]  # accepted, and every answer is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRules:
    """What an engine asks of a model's shape, of a checkpoint and of a device's memory: feasibility judges by it."""

    heads_divisible: bool = True  # attention heads and widths by tensor parallelism
    repeats_kv_heads: bool = True  # where there are fewer of them than ranks
    experts_divisible: bool = True  # by expert parallelism
    partition_variable: str | None = None  # environment variable with the layers of each pipeline stage
    refuses_longer: bool = False  # a max_model_len beyond the model's positions
    longer_variable: str | None = None  # environment variable that, set to 1, allows it
    caps_length: bool = False  # a longer max_model_len is served as if it were the model's positions
    whole_prompts: bool = False  # without chunked prefill a batch must hold max_model_len tokens
    # What it takes of all memory where the settings say nothing; of the settings, the model and the device's bytes.
    memory_fraction: float | Callable[[EngineSettings, ModelFacts, int], float] = 0.9
    static_fraction: bool = False  # that is for weights and KV cache alone: what a step needs lies beside it
    holds_length: bool = True  # it does not start where the KV cache cannot hold max_model_len
    keeps_block: bool = False  # of kv_cache_tokens one block is never given to a sequence
    allocates_tokens: bool = False  # it makes room for kv_cache_tokens whatever memory there is
    whole_replicas: bool = False  # data-parallel ranks without expert parallelism hold all experts each
    of_free_memory: bool = False  # the fraction is of what the weights leave, and for the KV cache alone
    # Whether it goes on where a quantization is asked for beside a checkpoint's own (both by name); None: not known.
    takes: Callable[[str, str], bool] | None = None
    allowed_by: Mapping[str, str] = field(default_factory=dict)  # method that it refuses -> flag that allows it
    not_on_amd: frozenset[str] = frozenset()  # methods
    unknown_methods: frozenset[str] = frozenset()  # that others have
    experts_while_loading: frozenset[str] = frozenset()  # methods of checkpoints that also quantize experts at load
    stored_methods: frozenset[str] = frozenset()  # names of how a checkpoint is stored; nothing is quantized at load
    whole_groups: bool = False  # a rank cannot hold a part of a group of integer weights
    # It cuts FP8 blocks of experts into whole smaller ones, and takes K and V as they come.
    cuts_blocks: bool = False
    halved_groups: frozenset[str] = frozenset()  # but of experts it halves them, in checkpoints of these methods
    draft_vocabulary_slack: int = 0  # tokens by which a draft's vocabulary may differ
    # Of ``extra_args``: flags that put weights or KV cache elsewhere, and what stands in one that says other positions.
    moves_memory: tuple[str, ...] = ()
    other_positions: str | None = None
    # Quantization method -> compute capability times ten.
    min_capability: Mapping[str, int] = field(default_factory=dict)
    float32_methods: frozenset[str] | None = None  # those of min_capability that compute in float32; None: not known
    cpu: CpuKernels | None = None  # None: not known

    def cut_group(
        self, stored: Quantization, width: int, hardware: Hardware, name: str
    ) -> Literal["risky", "impossible"]:
        """What comes of a block or group that two ranks share, ``width`` inputs of ``name`` on each."""
        experts = name == "moe_intermediate_size"
        if stored.block:
            whole = experts and stored.method == "fp8" and math.gcd(*stored.block, width) >= LEAST_GROUP
            return (
                "risky" if self.cuts_blocks and (whole or name == "KV width") and not hardware.is_cpu else "impossible"
            )
        halved = experts and stored.method in self.halved_groups and width % LEAST_GROUP == 0 and not hardware.is_cpu
        return "impossible" if self.whole_groups and stored.scheme.startswith("int") and not halved else "risky"

    def without_kernel(
        self, settings: EngineSettings, facts: ModelFacts, hardware: Hardware
    ) -> Iterator[tuple[Literal["risky", "impossible"], str]]:
        """What the engine computes, as far as that is known: 16 bits beside most methods, on CPUs a few schemes."""
        stored, scheme, kind = facts.quantization, kernel_scheme(facts, settings), kv_cache_dtype(facts, settings)
        method, wide = settings.quantization or (stored.method if stored else ""), settings.dtype in FLOAT32
        sixteen_bits = self.float32_methods is not None and method in self.min_capability.keys() - self.float32_methods
        cpu = self.cpu if hardware.is_cpu else None
        if wide and (sixteen_bits or (cpu and not cpu.schemes.get(scheme, True))):
            yield "impossible", f"{method} is computed in 16 bits only: give dtype bfloat16 or float16"
        if cpu is None:
            return
        if need := cpu.risks.get(scheme) or cpu.risks.get(method):
            yield "risky", f"{method} on cpu needs {need}"
        elif scheme and scheme not in cpu.schemes:  # of experts nothing is known
            sentence = f"{method} ({scheme}) has no kernel on cpu, which has {', '.join(cpu.schemes)}"
            yield "risky" if facts.shape.num_experts else "impossible", sentence
        flags = cpu.flags.get(stored.method if stored else "", (method,))
        if settings.quantization and settings.quantization not in flags:
            yield "impossible", f"quantization {settings.quantization}: on cpu this checkpoint takes {flags[0]} only"
        if kind in cpu.kv_noise:
            yield "impossible", f"kv_cache_dtype {kind}: accepted on cpu, and every answer is noise"
        elif kind not in cpu.kv_dtypes:
            yield "risky", f"kv_cache_dtype {kind} is none of {', '.join(cpu.kv_dtypes)}, which cpu is made for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One inference engine. Its functions are pure; nothing of it changes.

    Every field of ``EngineSettings`` is a key of ``flags`` or ``refused``, or is in ``taken``; one that is nowhere is
    refused as unknown to the engine. A flag that is named like a field which has a place is that field's.
    """

    name: str  # in experiment files
    title: str  # in sentences
    version: str = ""  # its release that flags, metrics and log lines are known of; "": any
    launches: bool = True  # False: a server that already runs
    emulated: bool = False  # every output says so

    # its HTTP server
    ready_path: str = "/health"
    # Where it says which version it is: paths and the field of each answer, tried in this order.
    version_at: Mapping[str, str] = field(default_factory=lambda: {"/version": "version"})
    metrics_path: str | None = "/metrics"
    reset_path: str | None = None  # POST empties the prefix cache, for dialects without cache_salt
    # Column of the table engine_metrics -> Prometheus name. `name{label="value"}` takes the series with that label only
    # (`""`: without it), `one + other` is the sum of both.
    metrics: Mapping[str, str] = field(default_factory=dict)
    dialects: Callable[[EngineSettings], dict[str, Dialect]]  # by the names of `Workload.api`
    # The model name that requests carry and /v1/models must list: proof that the server is ours.
    served_name: Callable[[EngineSettings, Node], str] = command.nonce_name
    guarded: bool = True  # False: it takes a key for whom it asks, and asks nobody for it

    # its settings
    flags: Flags = field(default_factory=dict)  # field -> the flags that it becomes
    taken: Collection[str] = ()  # fields that `start` knows, or that are part of other fields' flags
    refused: Mapping[str, str] = field(default_factory=dict)  # field -> why it has no place
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # field -> all that it may be
    # Field -> the words that all engines share (vLLM's: fp8 is E4M3) -> what this one calls it; None: says nothing.
    words: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    keys: Mapping[str, str] | None = None  # of its own file -> who sets them; None: it reads none
    reserved: tuple[str, ...] = ()  # flags that this program sets
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spellings of flags -> who sets them
    drafts: Drafts | None = None
    on_cpus: bool = False
    on_amd: bool = False
    several_nodes: bool = False
    routers: Collection[str] = ()  # those of ROUTERS that know its way from prefill to decode replicas
    # Why its prefill and decode replicas cannot work together, of a whole deployment that has both.
    role_problems: Callable[[EngineSettings, Hardware], list[str]] = lambda settings, hardware: []
    # Fields and the values they get where they are left open and the engine would choose by the hardware it finds.
    pins: Callable[[EngineSettings, Hardware], dict[str, int]] = lambda settings, hardware: {}
    rules: ModelRules = ModelRules()
    more_problems: Callable[[EngineSettings, Hardware], list[str]] = lambda settings, hardware: []

    # its process
    # Program and arguments but for `flags` and `extra_args`, environment, files. Settings come with their pins.
    start: Callable[[EngineSettings, Hardware, Node], Command] | None = None
    key_variable: str | None = None  # environment variable it takes its API key from
    follower_grace_s: float | None = None  # between SIGTERM and SIGKILL of ranks above 0, which have nothing to finish

    # its log
    reported: Callable[[str], Reported] = lambda log: {}  # what it said of itself at start: kv_cache_tokens, …
    log: LogWords = LogWords()

    def dialect(self, settings: EngineSettings, api: str) -> Dialect:
        """How to talk to one of its APIs. Raises KeyError for one it does not have."""
        drafts = [one.speculative.num_speculative_tokens for one in settings.engines.values() if one.speculative]
        return replace(self.apis(settings)[api], tokens_per_step=1 + max(drafts, default=0))

    def apis(self, settings: EngineSettings) -> dict[str, Dialect]:
        """Its ``dialects``, as far as the router in front of it passes them on."""
        own = self.dialects(settings)
        if settings.router is None:
            return own
        passed = ROUTERS[settings.router.engine].dialects(settings)
        return {api: dialect.through(passed[api]) for api, dialect in own.items() if api in passed}

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        """Why it cannot run these settings, one sentence each."""
        return [
            *([f"hardware: {self.title} is run on GPUs only"] if hardware.is_cpu and not self.on_cpus else []),
            *([f"hardware: {self.title} is run on NVIDIA's GPUs only"] if hardware.is_amd and not self.on_amd else []),
            *self._without_place(settings),
            *self._given_twice(settings),
            *self._unknown_values(settings),
            *self._node_problems(settings),
            *(
                f"env: {name} is set by this program: the cluster gives the devices"
                for name in DEVICES & settings.env.keys()
            ),
            *(
                f"env: {name} holds {{{place}}}, which is none of {', '.join(map('{{{}}}'.format, command.PLACES))}"
                for name, value in settings.env.items()
                for place in command.PLACE.findall(value)
                if place not in command.PLACES
            ),
            *self._container_problems(settings, hardware),
            *(self.drafts.problems(self.title, settings) if self.drafts else ()),
            *self.more_problems(settings, hardware),
        ]

    def pinned(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        """The ``pins`` of the fields that were left open."""
        return {name: value for name, value in self.pins(settings, hardware).items() if getattr(settings, name) is None}

    def command(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> Command:
        """The process of one rank. The key travels in ``secrets``, never in argv. Raises TypeError for an endpoint."""
        if self.start is None:
            raise TypeError(f"{self.title} is not launched")
        from orchestrator.engines.container import in_container  # it brings what nobody needs who only plans

        pins = self.pinned(settings, hardware)
        settings = self.in_its_words(settings.model_copy(update=pins))
        own = self.start(settings, hardware, node)
        notes = tuple(f"{name}={value} was left open and is pinned" for name, value in pins.items())
        made = replace(
            own,
            argv=(*own.argv, *command.mapped(settings, self.flags), *command.extra_arguments(settings)),
            env=command.environment(settings, hardware, node)
            | own.env
            | {name: command.filled(value, node) for name, value in settings.env.items()},
            secrets={self.key_variable: api_key} if self.key_variable else {},
            grace_s=self.follower_grace_s if node.rank else None,
            notes=notes + own.notes,
        )
        return in_container(made, settings, hardware, node)

    def _without_place(self, settings: EngineSettings) -> list[str]:
        why = dict.fromkeys(UNUSED, command.NO_USE)
        why |= (LACKING | NOT_LAUNCHED if self.launches else {}) | dict(self.refused)
        otherwise = "{} has no such setting" if self.launches else "{} already runs; nothing of it can be set here"
        missing = [name for name in settings.given() if name not in self._known()]
        return [f"{name}: {why.get(name, otherwise).replace('{}', self.title)}" for name in missing]

    def _known(self) -> set[str]:
        """The fields that have a place."""
        return ({*self.flags, *self.taken} | (EVERYWHERE if self.launches else set())) - self.refused.keys()

    def _given_twice(self, settings: EngineSettings) -> list[str]:
        named = self._known() - {"roles", "router"}  # no engine's flags, and LMDeploy has a --role of its own
        flags = [(name, "--" + name) for name in named] + [(name, flag.name) for name, flag in command.each(self.flags)]
        owners = {flag: f"the field {name}" for name, flag in flags} | dict(self.aliases)
        owners |= dict.fromkeys(self.reserved, "this program")
        return command.taken(self.title, settings, owners, self.keys)

    def in_its_words(self, settings: EngineSettings) -> EngineSettings:
        """The same settings as this engine calls them."""
        given = {name: getattr(settings, name) for name in self.words}
        said = {name: self.words[name][word] for name, word in given.items() if word in self.words[name]}
        return settings.model_copy(update=said)

    def _unknown_values(self, settings: EngineSettings) -> list[str]:
        allowed = {name: flag.choices for name, flag in command.each(self.flags) if flag.choices} | dict(self.values)
        return [
            f"{name}: {value!r} is none of {', '.join(dict.fromkeys((*self.words.get(name, ()), *values)))}; "
            f"{self.title} has no other"
            for name, values in allowed.items()
            if (value := getattr(settings, name)) is not None
            and (word := self.words.get(name, {}).get(value, value)) is not None
            and word not in values
        ]

    def _container_problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        if settings.image is None:
            words = "container_args: they are for an image; name one, or leave them out"
            return [words] if settings.container_args else []
        runtime = settings.container_runtime or "docker"
        given = (hardware.container_args, settings.container_args)
        found = [problem for words in given if (problem := option_problem(words, runtime))]
        found += [
            f"{name} is set by this program: the cluster gives the devices"
            for name in sorted(() if hardware.is_cpu else DEVICES)
            if any(re.search(rf"(^|\W|-e){name}\b", word) for words in given for word in words)
        ]
        return [f"container_args: {problem}" for problem in found]

    def _node_problems(self, settings: EngineSettings) -> list[str]:
        if settings.nnodes == 1 or self.several_nodes or "nnodes" in self.refused:
            return []
        return [f"nnodes: {self.title} runs on one node, so nnodes must be 1, not {settings.nnodes}"]

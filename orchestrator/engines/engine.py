"""The Engine record: what differs from engine to engine as data, and the code that all engines
share.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.base.errors import FailureKind
from orchestrator.base.registry import did_you_mean
from orchestrator.catalog.memory import FLOAT32, ShareOf, kernel_scheme, kv_cache_dtype
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.quantization import Quantization
from orchestrator.engines import ENGINES, ROUTERS, command
from orchestrator.engines.command import Command, Flags, Node
from orchestrator.engines.command_lines import (
    CommandLine,
    RecordedFlag,
    Release,
    Standing,
    command_lines,
    is_same_release,
    nearest_word,
    release_of,
)
from orchestrator.spec.container_options import option_problem
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative, is_version
from orchestrator.spec.stages import PinnedSettings, PlannedSettings, ResolvedSettings

Reported = dict[str, float | int | str]
# Settings that every launched engine has without a flag: which engine, where it runs, and how
# often.
EVERYWHERE = frozenset(
    {
        *("engine", "engine_version", "executable", "image", "container_runtime", "container_args"),
        *("model", "replicas", "extra_args", "env", "startup_timeout_s", "nnodes"),
        *("roles", "router"),
        "tokenizer",  # for the prompts of load clients; engines with a flag for it get it too
    }
)
# Why launched engines refuse settings of other kinds of engines.
NOT_LAUNCHED = {
    "url": "is for the engine `endpoint`; this one is launched",
    "endpoint_gpus": "is for the engine `endpoint`; the GPUs of this one follow from its settings",
    "profile": "is for the engine `emulator`; this one is real",
    "api_key_env": "is for the engine `endpoint`; this one gets a fresh random key",
}
# Why an engine does not have a setting, unless its own `refused` says it. {} is its title.
LACKING = {
    "nnodes": "{} runs on one node",
    "pipeline_parallel_size": "{} has no pipeline parallelism",
    "data_parallel_size": "{} has no data parallelism; use replicas",
    "enable_expert_parallel": "{} has no expert parallelism",
    "distributed_executor_backend": "{} starts its ranks by itself; leave it out",
    "hf_overrides": "{} reads the model's own config.json",
    "load_format": "{} reads the checkpoint's own weights only",
    "max_input_len": "{} limits input and output together; use max_model_len",
    "max_num_queued_reqs": "{} has no limit on its queue",
    "scheduling_policy": "{} has only one scheduling policy",
    "stream_interval": "{} sends every token as it comes",
    "scheduler_recv_interval": "{} cannot be told how often to look for new requests",
    "kv_cache_memory_bytes": "{} does not take the size of its KV cache in bytes; use kv_cache_tokens",
    "cpu_offload_gb": "{} keeps all weights on its devices",
    "kv_transfer_config": "{} has no disaggregated prefill",
}
# Environment variables that choose the GPUs.
DEVICES = {
    "GPU_DEVICE_ORDINAL",
    *(f"{vendor}_VISIBLE_DEVICES" for vendor in ("CUDA", "HIP", "ROCR", "NVIDIA")),
}
LEAST_GROUP = 32  # inputs that share a scale: no kernel for experts has smaller groups
MOST_LISTED = 12  # words in a sentence; of more, only the nearest is named
OWNED_BY_DRAFTS = "the field speculative"
# Fields of ``Speculative`` that some engines have.
OF_SOME_DRAFTS = (
    "draft_tensor_parallel_size",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "eagle_topk",
    "num_draft_tokens",
    "extra_args",
)
# Settings that no workload makes use of.
UNUSED = ("enable_lora", "lora_modules", "max_loras", "max_lora_rank", "guided_decoding_backend")


def named_as_vllm(prefix: str) -> dict[str, str]:
    """``Engine.metrics`` of an engine that names these metrics as vLLM does, with its own prefix."""
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
    """What an engine has of speculative decoding."""

    # method in the common vocabulary -> the engine's own name, which is taken as well
    names: Mapping[str, str] = field(default_factory=dict)
    flag: str | None = None  # its recorded choices are further methods
    no_methods: Collection[str] = ()  # choices of ``flag`` that are none
    with_model: Collection[str] = ()  # methods that need a draft model
    without_model: Collection[str] = ("ngram", "suffix")
    # fields of ``Speculative`` that not every engine has, and this one does
    has: Collection[str] = ()
    finds_method: bool = False  # it knows the method by the draft model
    # flags with the number of drafted tokens, if ``extra_args`` say what ``speculative`` leaves open
    tokens_flags: tuple[str, ...] = ()

    def tokens(self, settings: EngineSettings) -> int:
        """Tokens that are drafted at a time; 0 without speculation."""
        if settings.speculative is not None:
            return settings.speculative.num_speculative_tokens
        given = command.among(settings, self.tokens_flags)
        return max((_number_in(name, settings.extra_args[name]) for name in given), default=0)

    def own_name(self, method: str) -> str:
        """A method as the engine calls it."""
        return self.names.get(method, method)

    def methods(self, command_line: CommandLine | None) -> RecordedFlag:
        """All methods, as a flag that has them as choices."""
        own = command_line.find(self.flag) if command_line and self.flag else None
        choices = [
            choice for choice in (own.choices if own else ()) if choice not in self.no_methods
        ]
        names = dict.fromkeys((*self.names, *self.names.values(), *choices))
        any_case = own is not None and own.any_case
        return RecordedFlag("method", "value", tuple(names), any_case=any_case)

    def problems(
        self, engine: str, spec: Speculative, extra_keys: Collection[str] = ()
    ) -> Iterator[str]:
        """Draft models that are missing or superfluous, and details that the engine lacks.

        ``extra_keys``: what ``extra_args`` may hold, () if that is not known.
        """
        method = spec.method
        if method is None and not self.finds_method:
            yield f"speculative: {engine} needs the method"
        if method is None and spec.model is None:
            yield "speculative: without a method it needs the draft model, which tells the method"
        if method in self.with_model and spec.model is None:
            yield f"speculative: method {method} needs a model"
        if method in self.without_model and spec.model is not None:
            yield f"speculative: method {method} has no model"
        looks_up = method is not None and method.startswith("ngram")
        if not looks_up and (spec.prompt_lookup_min or spec.prompt_lookup_max):
            yield (
                "speculative: prompt_lookup_min and prompt_lookup_max are for ngram, "
                f"not for {method or 'a draft model'}"
            )
        given = [name for name in OF_SOME_DRAFTS if getattr(spec, name) and name not in self.has]
        if given:
            yield f"speculative: {engine} has no {' and no '.join(given)}"
        for key in spec.extra_args if "extra_args" in self.has else ():
            if key in Speculative.model_fields:
                yield f"speculative: extra_args: {key} is a key of speculative itself"
            elif extra_keys and key not in extra_keys:
                guess = did_you_mean(key, extra_keys)
                yield (
                    f"speculative: extra_args: {engine} has no key {key!r} there"
                    f"{f'; {guess}' if guess else ''}"
                )


@dataclass(frozen=True, slots=True)
class LogWords:
    """How an engine's log tells why it failed, as regular expressions. failures.py has those that
    engines share.
    """

    failures: Mapping[FailureKind, str] = field(default_factory=dict)
    # Start of lines that are never a cause though they name no level; levels are read in the formats
    # of all engines (log_lines.py).
    passing: str = ""
    causes_at_any_level: str = ""  # lines that are a cause though their level says otherwise
    consequences: str = ""  # lines that follow from a cause elsewhere in the log
    # whether a traceback directly below a warning belongs to it, whatever the warning says
    warns_with_tracebacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernels:
    """What an engine can compute on CPUs. Schemes are those of ``catalog/quantization.py:
    Quantization``.
    """

    schemes: Mapping[str, bool]  # scheme that every CPU supports -> whether in float32 too
    # scheme or method that some CPUs or installations lack -> what it needs
    risks: Mapping[str, str]
    # method of a checkpoint -> values that ``quantization`` may have then
    flags: Mapping[str, tuple[str, ...]]
    kv_dtypes: tuple[str, ...]
    kv_noise: frozenset[str]  # types of KV cache that are accepted and make every answer wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRules:
    """What an engine demands of a model's shape, a checkpoint and a device's memory, for
    plan/feasibility.py.
    """

    # attention heads and widths must be divisible by tensor parallelism
    heads_divisible: bool = True
    repeats_kv_heads: bool = True  # KV heads are repeated if there are fewer than ranks
    experts_divisible: bool = True  # experts must be divisible by expert parallelism
    experts_span_nodes: bool = False  # data-parallel ranks span nodes of models with experts only
    # environment variable with the layers of each pipeline stage
    partition_variable: str | None = None
    refuses_longer: bool = False  # refuses a max_model_len beyond the model's positions
    longer_variable: str | None = None  # environment variable that, set to 1, allows it
    caps_length: bool = False  # treats a longer max_model_len as the model's positions
    whole_prompts: bool = False  # without chunked prefill a batch must hold max_model_len tokens
    # Default share of the memory that it takes, or a function of the settings, the model, the
    # device's bytes, the role.
    memory_fraction: float | Callable[[EngineSettings, ModelFacts, int, str], float] = 0.9
    share_of: ShareOf = "all"
    # Whether it does not start if the KV cache cannot hold max_model_len; else it serves shorter
    # requests.
    holds_length: Callable[[EngineSettings], bool] = lambda settings: True
    # a max_model_len that is left open becomes the positions that LongRoPE extends
    cuts_longrope: bool = False
    keeps_block: bool = False  # one block of kv_cache_tokens is never given to a sequence
    allocates_tokens: bool = False  # it allocates kv_cache_tokens whatever memory there is
    # that divide shared experts, as far as is known
    shared_ranks: Callable[[EngineSettings], int] = lambda settings: 1
    # flags of ``extra_args`` with which every rank has whole dense MLPs
    whole_dense: tuple[str, ...] = ()
    # without expert parallelism every data-parallel rank has all experts
    whole_replicas: bool = False
    # data-parallel ranks of attention share dense MLPs, shared experts and output layer
    shares_dense: bool = False
    # Whether it accepts (``quantization`` asked for, method of the checkpoint); None: not known.
    takes: Callable[[str, str], bool] | None = None
    # methods of checkpoints that stay in effect, whatever is asked for
    own_wins: frozenset[str] = frozenset()
    # method that it refuses -> flag that allows it
    allowed_by: Mapping[str, str] = field(default_factory=dict)
    not_on_amd: frozenset[str] = frozenset()  # methods that it has for NVIDIA's GPUs only
    unknown_methods: frozenset[str] = frozenset()  # methods of other engines that it does not have
    unread: frozenset[str] = frozenset()  # methods of checkpoints at which it stops
    # methods of checkpoints that also quantize experts at load
    experts_while_loading: frozenset[str] = frozenset()
    # ``quantization`` values for checkpoints that are stored that way
    stored_methods: frozenset[str] = frozenset()
    whole_groups: bool = False  # ranks cannot share a group of integer weights
    # except of experts, in checkpoints of these methods
    halved_groups: frozenset[str] = frozenset()
    # ranks can share FP8 blocks: those of experts are split evenly, K and V may be uneven
    cuts_blocks: bool = False
    draft_vocabulary_slack: int = 0  # tokens by which a draft's vocabulary may differ
    # flags of ``extra_args`` that place or size memory otherwise
    moves_memory: tuple[str, ...] = ()
    # Flags or keys of ``extra_args`` with which ranks have all heads of attention, and KV caches of
    # their own.
    whole_attention: tuple[str, ...] = ()
    # part of a flag of ``extra_args`` that changes the model's positions
    other_positions: str | None = None
    # quantization -> compute capability times ten
    min_capability: Mapping[str, int] = field(default_factory=dict)
    # of multi-head latent attention that an indexer makes sparse (DeepSeek-V3.2, GLM-5), on NVIDIA
    sparse_capability: int = 0
    # Method or scheme -> capabilities times ten for which every release and model has kernels.
    kernels_on: Mapping[str, range] = field(default_factory=dict)
    # methods of min_capability with float32 kernels; None: not known
    float32_methods: frozenset[str] | None = None
    cpu: CpuKernels | None = None  # None: not known

    def method(self, asked: str | None, stored: Quantization | None) -> str:
        """The quantization in effect: the one asked for, else or where it wins the checkpoint's;
        empty without any.
        """
        own = stored.method if stored else ""
        return own if own in self.own_wins else asked or own

    def moved(self, settings: EngineSettings) -> list[str]:
        """Names in ``extra_args`` with which nobody here knows what memory holds."""
        return command.among(settings, (*self.moves_memory, *self.whole_attention))

    def cut_group(
        self, stored: Quantization, width: int, hardware: Hardware, name: str
    ) -> Literal["risky", "impossible"]:
        """What happens if ranks share a block or group. Each rank has ``width`` inputs of the
        matrices ``name``.
        """
        experts = name == "moe_intermediate_size"
        if stored.block:
            whole = (
                experts and stored.method == "fp8" and math.gcd(*stored.block, width) >= LEAST_GROUP
            )
            return (
                "risky"
                if self.cuts_blocks and (whole or name == "KV width") and not hardware.is_cpu
                else "impossible"
            )
        halved = (
            experts
            and stored.method in self.halved_groups
            and width % LEAST_GROUP == 0
            and not hardware.is_cpu
        )
        return (
            "impossible"
            if self.whole_groups and stored.scheme.startswith("int") and not halved
            else "risky"
        )

    def without_kernel(
        self, settings: EngineSettings, facts: ModelFacts, hardware: Hardware
    ) -> Iterator[tuple[Literal["risky", "impossible"], str]]:
        """What the engine has no kernel for, as far as is known: float32 with most methods, on CPUs
        most schemes.
        """
        stored, scheme, kind = (
            facts.quantization,
            kernel_scheme(facts, settings),
            kv_cache_dtype(facts, settings),
        )
        method, wide = self.method(settings.quantization, stored), settings.dtype in FLOAT32
        sixteen_bits = (
            self.float32_methods is not None
            and method in self.min_capability.keys() - self.float32_methods
        )
        cpu = self.cpu if hardware.is_cpu else None
        if wide and (sixteen_bits or (cpu and not cpu.schemes.get(scheme, True))):
            yield (
                "impossible",
                f"{method} is computed in 16 bits only: give dtype bfloat16 or float16",
            )
        if cpu is None:
            return
        if need := cpu.risks.get(scheme) or cpu.risks.get(method):
            yield "risky", f"{method} on cpu needs {need}"
        elif scheme and scheme not in cpu.schemes:  # nothing is known of experts
            sentence = (
                f"{method} ({scheme}) has no kernel on cpu, which has {', '.join(cpu.schemes)}"
            )
            yield "risky" if facts.shape.num_experts else "impossible", sentence
        flags = cpu.flags.get(stored.method if stored else "", (method,))
        if settings.quantization and settings.quantization not in flags:
            yield (
                "impossible",
                f"quantization {settings.quantization}: on cpu this checkpoint takes {flags[0]} only",
            )
        if kind in cpu.kv_noise:
            yield "impossible", f"kv_cache_dtype {kind}: accepted on cpu, and every answer is noise"
        elif kind not in cpu.kv_dtypes:
            yield (
                "risky",
                f"kv_cache_dtype {kind} is none of {', '.join(cpu.kv_dtypes)}, which cpu is made for",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One inference engine. Its functions are pure, and it is immutable.

    A field of ``EngineSettings`` reaches the engine through ``flags``, or through ``start`` if it
    is in ``taken``. All other fields are refused, with the reason in ``refused`` if there is one.
    """

    name: str  # in experiment files
    title: str  # in sentences
    version: str = ""  # the release whose flags, metrics and log lines these are; "": any
    launches: bool = True  # False: a server that already runs
    emulated: bool = False  # all results are marked as emulated

    # its HTTP server
    ready_path: str = "/health"
    # Asked in this order where a release does not have ``ready_path``.
    ready_fallbacks: tuple[str, ...] = ("/v1/models",)
    # Where it tells its version: path -> field of the answer, tried in this order.
    version_at: Mapping[str, str] = field(default_factory=lambda: {"/version": "version"})
    metrics_path: str | None = "/metrics"
    reset_path: str | None = None  # POST empties the prefix cache, for dialects without cache_salt
    # Column of the table engine_metrics -> Prometheus name. `name{label="value"}` selects series by
    # label (`""`: series without it), `one + other` is a sum.
    metrics: Mapping[str, str] = field(default_factory=dict)
    dialects: Callable[[EngineSettings], dict[str, Dialect]]  # by the names of `Workload.api`
    # The model name in requests, which /v1/models must list: proof that the server is ours.
    served_name: Callable[[EngineSettings, Node], str] = command.nonce_name
    # False: it has a key only for its own requests, and accepts requests without one
    guarded: bool = True

    # its settings
    flags: Flags = field(default_factory=dict)  # field -> its flag, or flags
    # fields that `start` handles, or that are part of other fields' flags
    taken: Collection[str] = ()
    # field -> why the engine does not have it
    refused: Mapping[str, str] = field(default_factory=dict)
    # field -> all values it may have
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Field -> value in the common vocabulary (vLLM's: fp8 is E4M3) -> what the engine calls it;
    # None: left out.
    words: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    # field -> value that it does not have -> why, as a sentence
    no_words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # key of its own configuration file -> who sets it; None: it has no file
    keys: Mapping[str, str] | None = None
    reserved: tuple[str, ...] = ()  # flags that this program sets
    # flag of a field -> values that only ``extra_args`` can say, while the field is left open
    open_flags: Mapping[str, Collection[str]] = field(default_factory=dict)
    # other spelling of a flag -> who sets it
    aliases: Mapping[str, str] = field(default_factory=dict)
    drafts: Drafts | None = None
    # Environment variable that names its plugins; with it, words that plugins may add are taken.
    plugins_variable: str | None = None
    on_cpus: bool = False
    on_amd: bool = False
    several_nodes: bool = False
    # names of ROUTERS that can route between its prefill and decode replicas
    routers: Collection[str] = ()
    # Why the prefill and decode replicas of a deployment cannot work together.
    role_problems: Callable[[EngineSettings, Hardware], Iterable[str]] = lambda settings, hardware: ()
    # Values for fields that are left open where the engine would choose by the hardware it finds.
    pins: Callable[[EngineSettings, Hardware], dict[str, int]] = lambda settings, hardware: {}
    rules: ModelRules = ModelRules()
    more_problems: Callable[[EngineSettings, Hardware], Iterable[str]] = lambda settings, hardware: ()

    # its process
    # The command without `flags` and `extra_args`.
    start: Callable[[PinnedSettings, Hardware, Node], Command] | None = None
    key_variable: str | None = None  # environment variable with its API key
    # between SIGTERM and SIGKILL of ranks above 0; they have nothing to finish
    follower_grace_s: float | None = None

    # its log
    # what it logs at start: kv_cache_tokens, …
    reported: Callable[[str], Reported] = lambda log: {}
    log: LogWords = LogWords()

    def dialect(self, settings: EngineSettings, api: str) -> Dialect:
        """The dialect of one of its APIs. Raises KeyError for one that it does not have."""
        drafted = 0
        if self.drafts is not None:
            drafted = max(self.drafts.tokens(part) for part in settings.engines.values())
        return replace(self.apis(settings)[api], tokens_per_step=1 + drafted)

    def apis(self, settings: EngineSettings) -> dict[str, Dialect]:
        """Its ``dialects``, limited to what the router in front of it passes on."""
        own = self.dialects(settings)
        if settings.router is None:
            return own
        passed = ROUTERS[settings.router.engine].dialects(settings)
        return {api: dialect.through(passed[api]) for api, dialect in own.items() if api in passed}

    def problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        """Why it cannot run these settings, one sentence each."""
        return [
            *(
                [f"hardware: {self.title} is run on GPUs only"]
                if hardware.is_cpu and not self.on_cpus
                else []
            ),
            *(
                [f"hardware: {self.title} is run on NVIDIA's GPUs only"]
                if hardware.is_amd and not self.on_amd
                else []
            ),
            *self._not_supported(settings),
            *self._given_twice(settings),
            *self._unknown_words(settings, certain=True),
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
            *self._draft_problems(settings),
            *self.more_problems(settings, hardware),
        ]

    def notes(self, settings: EngineSettings) -> list[str]:
        """What cannot be known of these settings, because their release is not a recorded one."""
        release = self._release(settings)
        if release is None or release.is_certain:
            return []
        recorded = ", ".join(line.version for line in command_lines(self.name))
        if release.standing is Standing.NEWER:
            about = f"{self.title} {release.stated} is newer than {recorded}, whose flags are known"
        else:
            about = f"the flags of {self.title} {release.stated} are not known, only those of {recorded}"
        words = self._unknown_words(settings, certain=False)
        return [f"{about}: {word}" for word in words] or [about]

    def pinned(self, settings: ResolvedSettings, hardware: Hardware) -> PinnedSettings:
        """The settings of one part as its command line says them, and as its verdict judges them:
        with values for the fields that are left open, in the engine's own words.
        """
        values: dict[str, Any] = dict(self.open_pins(settings, hardware))
        for name, own_words in self.words.items():
            word = values.get(name, getattr(settings, name))
            if word in own_words:
                values[name] = own_words[word]
        return PinnedSettings(settings.model_copy(update=values))

    def open_pins(self, settings: EngineSettings, hardware: Hardware) -> dict[str, int]:
        """The ``pins`` of the fields that are left open."""
        return {
            name: value
            for name, value in self.pins(settings, hardware).items()
            if getattr(settings, name) is None
        }

    def command(
        self, settings: PlannedSettings, hardware: Hardware, node: Node, api_key: str
    ) -> Command:
        """The process of one rank. The key travels in ``secrets``, never in argv. Raises TypeError
        for an endpoint.
        """
        if self.start is None:
            raise TypeError(f"{self.title} is not launched")
        # planning does not need what it imports
        from orchestrator.engines.container import in_container

        pinned = self.pinned(settings, hardware)
        own = self.start(pinned, hardware, node)
        pins = self.open_pins(settings, hardware)
        notes = tuple(f"{name}={value} was left open and is pinned" for name, value in pins.items())
        made = replace(
            own,
            argv=(
                *own.argv,
                *command.mapped(pinned, self.flags),
                *command.extra_arguments(pinned),
            ),
            env=command.environment(pinned, hardware, node)
            | own.env
            | {name: command.filled(value, node) for name, value in pinned.env.items()},
            secrets=own.secrets | ({self.key_variable: api_key} if self.key_variable else {}),
            grace_s=self.follower_grace_s if node.rank else None,
            notes=notes + own.notes,
        )
        return in_container(made, pinned, hardware, node)

    def reason_to_refuse(self, field_name: str) -> str:
        """Why the engine does not have a field, as a sentence; the field is not one that it has."""
        reasons = dict.fromkeys(UNUSED, command.NO_USE)
        if self.launches:
            reasons |= LACKING | NOT_LAUNCHED
        reasons |= self.refused
        if self.launches:
            otherwise = "{} has no such setting"
        else:
            otherwise = "{} already runs; nothing of it can be set here"
        return reasons.get(field_name, otherwise).replace("{}", self.title)

    def _not_supported(self, settings: EngineSettings) -> list[str]:
        known = self._known()
        missing = [name for name in settings.given() if name not in known]
        return [f"{name}: {self.reason_to_refuse(name)}" for name in missing]

    def _known(self) -> set[str]:
        """The fields that the engine has."""
        known = {*self.flags, *self.taken} | (EVERYWHERE if self.launches else set())
        return known - self.refused.keys() - (set() if self.several_nodes else {"nnodes"})

    def _given_twice(self, settings: EngineSettings) -> list[str]:
        named = self._known() - {"roles", "router"}  # never flags, and LMDeploy has its own --role
        flags = [(name, "--" + name) for name in named] + [
            (name, flag.name) for name, flag in command.each(self.flags)
        ]
        owners = {flag: f"the field {name}" for name, flag in flags} | dict(self.aliases)
        owners |= self._other_spellings(settings, owners)
        keys = self.keys
        if settings.speculative is None:  # extra_args may say all of it
            owners = {flag: owner for flag, owner in owners.items() if owner != OWNED_BY_DRAFTS}
            if keys is not None:
                keys = {key: owner for key, owner in keys.items() if owner != OWNED_BY_DRAFTS}
        for flag, values in self.open_flags.items():
            given = command.among(settings, (flag,))
            if given and all(str(settings.extra_args[name]) in values for name in given):
                owner = owners[flag]
                field_name = owner.removeprefix("the field ")
                if getattr(settings, field_name) is None:
                    owners = {name: one for name, one in owners.items() if one != owner}
        owners |= dict.fromkeys(self.reserved, "this program")
        return command.taken(self.title, settings, owners, keys)

    def _other_spellings(
        self, settings: EngineSettings, owners: Mapping[str, str]
    ) -> dict[str, str]:
        """Who sets the flags of ``extra_args`` that are recorded spellings of owned flags."""
        release = self._release(settings)
        if release is None:
            return {}
        flags = release.command_line.flags
        owner_of = {flags[flag].name: owner for flag, owner in owners.items() if flag in flags}
        found = {}
        for name in settings.extra_args:
            spelling = name.partition("=")[0].partition(".")[0]
            flag = flags.get(spelling)
            if flag is not None and flag.name in owner_of:
                found[spelling] = owner_of[flag.name]
        return found

    def knows(self, version: str) -> bool:
        """Whether the flags of a release that runs are recorded, or are those of this record."""
        if any(is_same_release(version, line.version) for line in command_lines(self.name)):
            return True
        return not self.version or self.version in version or is_version(self.version, version)

    def _release(self, settings: EngineSettings) -> Release | None:
        return release_of(self.name, settings)

    def _unknown_words(self, settings: EngineSettings, certain: bool) -> list[str]:
        """Sentences about flags, values and methods that the engine does not have.

        They are refused if they are certain: if the deployment's release is recorded, or nothing
        says which it is. Else they may be words of a release that nobody has recorded.
        """
        release = self._release(settings)
        is_certain = release is None or release.is_certain
        if is_certain is not certain:
            return []
        command_line = release.command_line if release else None
        return [
            *self._unknown_values(settings, command_line),
            *self._unknown_method(settings, command_line),
            *(self._unknown_flags(settings, command_line) if command_line else ()),
        ]

    def _unknown_values(
        self, settings: EngineSettings, command_line: CommandLine | None
    ) -> Iterator[str]:
        for name, flag in self._with_choices(command_line).items():
            value = getattr(settings, name)
            common = self.words.get(name, {})
            word = common.get(value, value) if value is not None else None
            if word is None or flag.has_choice(word) or self._is_of_plugin(flag, settings):
                continue
            reason = self.no_words.get(name, {}).get(value)
            names = tuple(dict.fromkeys((*common, *flag.choices)))
            guess = nearest_word(value, names) if len(names) > MOST_LISTED else ""
            if reason:
                yield f"{name}: {reason}"
            elif guess:
                yield f"{name}: {self.title} has no {value!r}; {guess}"
            else:
                yield f"{name}: {value!r} is none of {', '.join(names)}; {self.title} has no other"

    def _with_choices(self, command_line: CommandLine | None) -> dict[str, RecordedFlag]:
        """Fields with the choices of their values: this record's own, else the recorded ones."""
        found = {}
        for name, flag in command.each(self.flags):
            recorded = command_line.find(flag.name) if command_line else None
            if flag.choices:
                is_open = recorded is not None and recorded.is_open
                found[name] = RecordedFlag(flag.name, "value", flag.choices, is_open=is_open)
            elif recorded and recorded.choices and flag.kind == "value" and flag.of is None:
                found[name] = recorded
        for name, values in self.values.items():
            found[name] = RecordedFlag(name, "value", values)
        return found

    def _unknown_method(
        self, settings: EngineSettings, command_line: CommandLine | None
    ) -> Iterator[str]:
        if self.drafts is None or settings.speculative is None:
            return
        method, methods = settings.speculative.method, self.drafts.methods(command_line)
        if method is None or methods.has_choice(method):
            return
        older = [
            line.version
            for line in command_lines(self.name)
            if line is not command_line and self.drafts.methods(line).has_choice(method)
        ]
        if older and command_line:
            yield (
                f"speculative: {self.title} {command_line.version} has no method {method}; "
                f"{older[0]} has it: if that one runs, say engine_version: {older[0]!r}"
            )
            return
        listed = f"it has {', '.join(methods.choices)}"
        guess = nearest_word(method, methods.choices) if len(methods.choices) > MOST_LISTED else ""
        yield f"speculative: {self.title} has no method {method}; {guess or listed}"

    def _unknown_flags(self, settings: EngineSettings, command_line: CommandLine) -> Iterator[str]:
        for name, value in settings.extra_args.items():
            if not name.startswith("-"):
                continue  # a key of a file, or no flag at all
            flag = command_line.find(name)
            if flag is None:
                guess = command_line.nearest(name)
                sentence = f"extra_args: {self.title} {command_line.version} has no flag {name}"
                yield f"{sentence}; {guess}" if guess else sentence
                continue
            reason = command_line.reason_to_refuse(name, value)
            if reason and not self._is_of_plugin(flag, settings):
                yield f"extra_args: {name} {reason}"

    def _is_of_plugin(self, flag: RecordedFlag, settings: EngineSettings) -> bool:
        """Whether a word may be one that a plugin of the engine brings."""
        return flag.is_open and self.plugins_variable in settings.env

    def _draft_problems(self, settings: EngineSettings) -> Iterator[str]:
        if self.drafts is None or settings.speculative is None:
            return
        release = self._release(settings)
        keys: Collection[str] = ()
        if release is not None and release.is_certain:
            keys = {key for flag in release.command_line.flags.values() for key in flag.keys}
        yield from self.drafts.problems(self.title, settings.speculative, keys)

    def _container_problems(self, settings: EngineSettings, hardware: Hardware) -> list[str]:
        if settings.image is None:
            sentence = "container_args: these are for an image; name one, or leave them out"
            return [sentence] if settings.container_args else []
        runtime = settings.container_runtime or "docker"
        given = (hardware.container_args, settings.container_args)
        found = [problem for words in given if (problem := option_problem(words, runtime))]
        found += [
            f"{name} is set by this program: the cluster gives the devices"
            for name in sorted(() if hardware.is_cpu else DEVICES)
            if any(re.search(rf"(^|\W|-e){name}\b", word) for words in given for word in words)
        ]
        return [f"container_args: {problem}" for problem in found]


def _number_in(name: str, value: Any) -> int:
    """Drafted tokens that one of ``extra_args`` says: as a number or within a JSON object."""
    if name.partition(".")[2] not in ("", "num_speculative_tokens"):
        return 0
    try:
        number = json.loads(str(value))
    except ValueError:
        return 0
    if isinstance(number, dict):
        number = number.get("num_speculative_tokens", 0)
    return number if isinstance(number, int) else 0


def program_of(name: str) -> Engine:
    """The engine or router of this name. Raises InputError when there is neither."""
    return ROUTERS[name] if name in ROUTERS else ENGINES[name]

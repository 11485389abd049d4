"""The Engine record: what differs from engine to engine as data, and the code that all engines
share.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.engines import command
from orchestrator.engines.command import Command, FlagTable, Node
from orchestrator.engines.command_lines import command_lines, is_same_release
from orchestrator.engines.drafts import DraftMethods
from orchestrator.engines.extra_args import extra_arguments
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.model_rules import ModelRules
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware, is_version
from orchestrator.spec.stages import PinnedSettings, PlannedSettings, ResolvedSettings

NO_RULES = ModelRules()
NO_LOG_WORDS = LogWords()
Reported = dict[str, float | int | str]
# Settings that every launched engine has without a flag: which engine it is, where it runs, and
# how many replicas of it.
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
NO_ADAPTERS = "{} has no option for LoRA adapters"
# of engines that take adapters without limits (for ``Engine.unsupported``)
ADAPTERS_UNLIMITED = {
    "enable_lora": "{} takes adapters wherever lora_modules names some",
    "max_loras": "{} cannot be told how many adapters a batch may have",
    "max_lora_rank": "{} takes adapters of any rank",
}
# Why an engine does not have a setting, unless its own `unsupported` says it. {} is its title.
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
    "kv_cache_memory_bytes": (
        "{} does not take the size of its KV cache in bytes; use kv_cache_tokens"
    ),
    "cpu_offload_gb": "{} keeps all weights on its devices",
    "kv_transfer_config": "{} has no disaggregated prefill",
    "enable_lora": NO_ADAPTERS,
    "lora_modules": NO_ADAPTERS,
    "max_loras": NO_ADAPTERS,
    "max_lora_rank": NO_ADAPTERS,
    "guided_decoding_backend": "{} has no choice of what constrains answers",
}


def named_as_vllm(prefix: str) -> dict[str, str]:
    """``Engine.metrics`` of an engine that names these metrics as vLLM does, with its prefix."""
    names = {
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "queue_time_s_sum": "request_queue_time_seconds_sum",
        "queue_time_count": "request_queue_time_seconds_count",
        "ttft_s_sum": "time_to_first_token_seconds_sum",
        "ttft_count": "time_to_first_token_seconds_count",
        "prefill_time_s_sum": "request_prefill_time_seconds_sum",
        "prefill_time_count": "request_prefill_time_seconds_count",
        "decode_time_s_sum": "request_decode_time_seconds_sum",
        "decode_time_count": "request_decode_time_seconds_count",
        "spec_draft_tokens_total": "spec_decode_num_draft_tokens_total",
        "spec_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
        "prompt_tokens_total": "prompt_tokens_total",
        "generation_tokens_total": "generation_tokens_total",
    }
    return {column: prefix + name for column, name in names.items()}


def estimates_of_work(prefix: str) -> dict[str, str]:
    """Counters that vLLM and SGLang have if they are started with ``--enable-mfu-metrics``."""
    columns = (
        "estimated_flops_per_gpu_total",
        "estimated_read_bytes_per_gpu_total",
        "estimated_write_bytes_per_gpu_total",
    )
    return {column: prefix + column for column in columns}


def no_problems(settings: EngineSettings, hardware: Hardware) -> Iterable[str]:
    """The problems of an engine without rules of its own."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One inference engine. Its functions are pure, and it is immutable.

    A field of ``EngineSettings`` reaches the engine through ``flags``, or through ``start`` if it
    is in ``handled_fields``. All other fields are refused, with the reason in ``unsupported`` if
    there is one; problems.py finds them.
    """

    name: str  # in experiment files
    title: str  # in sentences
    version: str = ""  # the release whose flags, metrics and log lines these are; "": any
    launches: bool = True  # False: a server that already runs
    emulated: bool = False  # all results are marked as emulated

    # its HTTP server
    ready_path: str = "/health"
    # asked in this order where a release does not have ``ready_path``
    ready_fallbacks: tuple[str, ...] = ("/v1/models",)
    # Where it reports its version: path -> field of the answer, tried in this order.
    version_at: Mapping[str, str] = field(default_factory=lambda: {"/version": "version"})
    metrics_path: str | None = "/metrics"
    # Whether ranks above 0 have pages of /metrics, too, which tell of requests that no other page has.
    metrics_on_every_rank: Callable[[EngineSettings], bool] = lambda settings: False
    reset_path: str | None = None  # POST empties the prefix cache, for dialects without cache_salt
    # Column of the table engine_metrics -> Prometheus name. `name{label="value"}` selects series by
    # label (`""`: series without it), `a + b` is a sum.
    metrics: Mapping[str, str] = field(default_factory=dict)
    dialects: Callable[[EngineSettings], dict[str, Dialect]]  # by the names of `Workload.api`
    # The model name in requests, which /v1/models must list: proof that the server is ours.
    served_name: Callable[[EngineSettings, Node], str] = command.nonce_name
    # Whether it refuses requests without its key. A router that answers without it still gets the
    # key, for its requests to the replicas.
    guarded: bool = True

    # its settings
    flags: FlagTable = field(default_factory=dict)  # field -> its flag, or flags
    # fields that `start` handles, or that are part of other fields' flags
    handled_fields: Collection[str] = ()
    # field -> why the engine does not have it
    unsupported: Mapping[str, str] = field(default_factory=dict)
    # field -> all values it may have
    allowed_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Field -> value in the common vocabulary (vLLM's: fp8 is E4M3) -> what the engine calls it;
    # None: left out.
    value_names: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    # field -> value that it does not have -> why, as a sentence
    missing_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # key of its own configuration file -> who sets it; None: it has no file
    keys: Mapping[str, str] | None = None
    reserved: tuple[str, ...] = ()  # flags that this program sets
    # flag of a field -> values that only ``extra_args`` can give, while the field is left open
    open_flags: Mapping[str, Collection[str]] = field(default_factory=dict)
    # other spelling of a flag -> who sets it
    aliases: Mapping[str, str] = field(default_factory=dict)
    drafts: DraftMethods | None = None
    # Environment variable that names its plugins; where it is set, values that plugins may add are
    # accepted.
    plugins_variable: str | None = None
    on_cpus: bool = False
    on_amd: bool = False
    several_nodes: bool = False
    # names of ROUTERS that can route between its prefill and decode replicas
    routers: Collection[str] = ()
    # Why the prefill and decode replicas of a deployment cannot work together.
    role_problems: Callable[[EngineSettings, Hardware], Iterable[str]] = no_problems
    # Values for open fields that the engine would otherwise choose by the hardware that it finds.
    pins: Callable[[EngineSettings, Hardware], dict[str, int]] = lambda settings, hardware: {}
    # tokens that its prefix cache keeps together; where that is not known, 1
    cache_block: Callable[[EngineSettings, Hardware], int] = lambda settings, hardware: (
        settings.block_size or 1
    )
    rules: ModelRules = NO_RULES
    more_problems: Callable[[EngineSettings, Hardware], Iterable[str]] = no_problems

    # its process
    # The command without `flags` and `extra_args`.
    start: Callable[[PinnedSettings, Hardware, Node], Command] | None = None
    key_variable: str | None = None  # environment variable with its API key
    # between SIGTERM and SIGKILL of ranks above 0; they have nothing to finish
    follower_grace_s: float | None = None

    # its log
    # what it logs at start: kv_cache_tokens, …
    reported: Callable[[str], Reported] = lambda log: {}
    log: LogWords = NO_LOG_WORDS

    def pinned(self, settings: ResolvedSettings, hardware: Hardware) -> PinnedSettings:
        """The settings of one part as its command line has them and as its verdict judges them:
        with values for the fields that are left open, in the engine's own words.
        """
        values: dict[str, Any] = dict(self.open_pins(settings, hardware))
        for name, own_words in self.value_names.items():
            word = values.get(name, getattr(settings, name))
            if word in own_words:
                values[name] = own_words[word]
        return PinnedSettings(settings.model_copy(update=values))

    def cache_block_tokens(self, settings: EngineSettings, hardware: Hardware) -> int | None:
        """Tokens that the prefix cache keeps together; None where the settings switch it off."""
        if settings.enable_prefix_caching is False:
            return None
        return self.cache_block(settings, hardware)

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
        # imported here because plans are made without containers
        from orchestrator.engines.container import in_container

        pinned = self.pinned(settings, hardware)
        own = self.start(pinned, hardware, node)
        env = command.environment(pinned, hardware, node) | own.env
        for name, value in pinned.env.items():
            env[name] = command.fill_placeholders(value, node)
        secrets = dict(own.secrets)
        if self.key_variable:
            secrets[self.key_variable] = api_key
        pins = self.open_pins(settings, hardware)
        notes = [f"{name}={value} was left open and is pinned" for name, value in pins.items()]
        flags = command.flag_arguments(pinned, self.flags)
        whole = replace(
            own,
            argv=(*own.argv, *flags, *extra_arguments(pinned)),
            env=env,
            secrets=secrets,
            grace_s=self.follower_grace_s if node.rank else None,
            notes=(*notes, *own.notes),
        )
        return in_container(whole, pinned, hardware, node)

    def program_in(self, environment: str) -> str | None:
        """The program that is started in an environment or a folder; None for an endpoint."""
        if self.start is None:
            return None
        settings = EngineSettings(engine=self.name, model="any", executable=environment)
        cpu = Hardware(name="cpu")
        return self.start(PinnedSettings(settings), cpu, Node()).argv[0]

    def reason_to_refuse(self, field_name: str) -> str:
        """Why the engine does not have a field, as a sentence. Call it for such fields only."""
        reasons: dict[str, str] = {}
        if self.launches:
            reasons |= LACKING | NOT_LAUNCHED
        reasons |= self.unsupported
        if self.launches:
            otherwise = "{} has no such setting"
        else:
            otherwise = "{} already runs; nothing of it can be set here"
        return reasons.get(field_name, otherwise).replace("{}", self.title)

    def supported_fields(self) -> set[str]:
        """The fields of ``EngineSettings`` that the engine has."""
        fields = {*self.flags, *self.handled_fields}
        if self.launches:
            fields |= EVERYWHERE
        if not self.several_nodes:
            fields -= {"nnodes"}
        return fields - self.unsupported.keys()

    def knows(self, version: str) -> bool:
        """Whether the flags of this release are recorded, or are those of this record."""
        if any(is_same_release(version, line.version) for line in command_lines(self.name)):
            return True
        return not self.version or self.version in version or is_version(self.version, version)

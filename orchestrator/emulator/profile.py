"""What the emulator imitates: a device, a model, a few constants and a fault script. They come from
a file, or from a name in the catalogue.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from orchestrator.base.data_files import data_beside
from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.registry import unknown_name
from orchestrator.catalog.accelerators import Accelerator, accelerators, find, of_hardware
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs, model_facts
from orchestrator.spec.document import (
    MOST_BYTES,
    Problems,
    add_errors,
    from_home,
    parse_document,
    read_at_most,
)
from orchestrator.spec.settings import EngineSettings, Hardware, Strict

DEFAULT_ACCELERATOR = "H100-80GB"
DEFAULT_MODEL = "meta-llama/Llama-3.1-8B-Instruct"


class Constants(Strict):
    """The numbers of the step model that ``fit`` calibrates. What a profile leaves out gets the
    value that is typical of the engine on such devices (``typical``). Efficiencies are shares of
    the device's peak.
    """

    compute_efficiency: float = Field(default=0.88, gt=0)  # 16-bit matrix products
    # products in 8 and 4 bit, of their own peak
    low_bit_efficiency: float = Field(default=0.6, gt=0)
    attention_efficiency: float = Field(default=0.5, gt=0)  # of the 16-bit peak
    # the many small products of experts, and their dispatch
    expert_compute_efficiency: float = Field(default=0.17, gt=0)
    bandwidth_efficiency: float = Field(default=0.85, gt=0)  # reading weights
    expert_bandwidth_efficiency: float = Field(default=0.72, gt=0)  # reading routed experts
    kv_efficiency: float = Field(default=0.9, gt=0)  # reading the KV cache
    activation_efficiency: float = Field(default=0.4, gt=0)  # reading and writing activations
    link_efficiency: float = Field(default=0.6, gt=0)  # of links, in collectives
    # scheduling, sampling and launching one step
    step_overhead_s: float = Field(default=1e-3, ge=0)
    # the same, for each sequence in the step
    sequence_overhead_s: float = Field(default=1e-5, ge=0)
    # the kernels of a layer, however small the batch is
    layer_overhead_s: float = Field(default=35e-6, ge=0)
    # added by routing, in layers with experts
    expert_layer_overhead_s: float = Field(default=12e-6, ge=0)
    block_fp8_layer_overhead_s: float = Field(default=94e-6, ge=0)  # added by scaling blocks of FP8
    eager_layer_overhead_s: float = Field(default=60e-6, ge=0)  # added with enforce_eager
    # added where a step holds a prompt: no CUDA graph
    prefill_layer_overhead_s: float = Field(default=1e-4, ge=0)
    # an all-reduce or a hop between stages, inside a node
    collective_latency_s: float = Field(default=3e-6, ge=0)
    collective_rank_s: float = Field(default=0.5e-6, ge=0)  # added to an all-reduce by each rank
    network_latency_s: float = Field(default=40e-6, ge=0)  # an all-reduce or a hop between nodes
    # HTTP and tokenizing, before a request can be scheduled
    request_overhead_s: float = Field(default=20e-3, ge=0)
    # between the tokens of one step, written one after the other
    token_interval_s: float = Field(default=15e-6, ge=0)
    # whether decodes wait while there is a prompt to prefill; else both share a step
    prefill_first: bool = False
    # standard deviation of one step's length, as a share of it
    jitter: float = Field(default=0.0, ge=0, le=1)
    # whether kernels are timed by the tables (step_tables.py), not by formula; the host's part stays the
    # same
    tables: bool = False


@dataclass(frozen=True, slots=True)
class Typical:
    """The constants of one engine on one GPU architecture, and how far they were from measurements
    that they were not fitted to.
    """

    engine: str
    architecture: str
    fitted_on: str  # the architecture; another one where the constants are inherited
    source: str  # of the measurements
    date: str  # of the measurements
    constants: dict[str, Any]
    # The median of |predicted / measured - 1| of ``ttft`` and ``tpot`` on this architecture, and
    # the factors within which 90 % lay (``ttft_within``); None where nothing was compared.
    error: dict[str, float] | None


# the names of architectures in constants.json, by the first number of the CUDA compute capability
_ARCHITECTURES = {9: "hopper", 10: "blackwell"}


def typical(engine: str, device: Accelerator, tables: bool = False) -> Typical:
    """The constants that are typical of an engine on a device, for the formula or for the tables.

    constants.json has them by engine and architecture. Engines that are not in it take vLLM's
    constants, whose error for them is not known.
    """
    by_engine = data_beside(__file__, "constants.json")["tables" if tables else "formula"]
    by_architecture: dict[str, Any] = by_engine.get(engine, by_engine["vllm"])
    generation = device.capability[0] if device.capability else 0
    architecture = _ARCHITECTURES.get(generation, "other")
    own_entry = by_architecture.get(architecture, {"inherits": "hopper"})
    fitted_on = own_entry.get("inherits", architecture)
    # what an entry does not say itself is that of the architecture that it inherits from
    entry = by_architecture[fitted_on] | own_entry
    is_compared = engine in by_engine and architecture in by_architecture
    return Typical(
        engine=engine,
        architecture=architecture,
        fitted_on=fitted_on,
        source=entry["source"],
        date=entry["date"],
        constants=entry["constants"],
        error=entry["error"] if is_compared else None,
    )


def compared_architectures(engine: str) -> list[str]:
    """The GPU architectures on which the formula was compared with measurements of an engine."""
    by_engine = data_beside(__file__, "constants.json")["formula"]
    return list(by_engine.get(engine, {}))


def resolved(constants: Constants, engine: str, device: Accelerator) -> Constants:
    """The constants that a profile sets, and for the rest those that are typical of the engine."""
    own = constants.model_dump(exclude_unset=True)
    return Constants.model_validate(typical(engine, device, constants.tables).constants | own)


class Faults(Strict):
    """What goes wrong, and when. Requests are counted from 1, over all endpoints that generate."""

    start: Literal["die", "oom", "hang"] | None = None
    start_delay_s: float = Field(default=0.0, ge=0)
    die_at_request: int | None = Field(default=None, ge=1)
    stall_at_request: int | None = Field(default=None, ge=1)
    stall_s: float = Field(default=5.0, ge=0)
    garbage_at_request: int | None = Field(default=None, ge=1)
    error_every: int | None = Field(default=None, ge=1)  # HTTP 500
    # the connection closes in the middle of the stream
    cut_every: int | None = Field(default=None, ge=1)
    # constrained requests are answered as if they were free
    ignore_constraints: bool = False
    orphan: bool = False  # a child in its own session that ignores SIGTERM


class Device(Strict):
    """An accelerator that is not in the catalogue."""

    name: str = "custom"
    memory_gb: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    tflops: dict[str, float] = Field(min_length=1)  # dense, by compute type: bfloat16, fp8, …
    link_gb_s: float = Field(default=32.0, gt=0)
    network_gb_s: float = Field(default=12.5, gt=0)

    def accelerator(self) -> Accelerator:
        """The device as the catalogue would describe it."""
        return Accelerator(
            name=self.name,
            memory_bytes=int(self.memory_gb * 1e9),
            bandwidth_bytes_s=self.bandwidth_gb_s * 1e9,
            flops={kind: value * 1e12 for kind, value in self.tflops.items()},
            capability=None,
            link_bytes_s=self.link_gb_s * 1e9,
            network_bytes_s=self.network_gb_s * 1e9,
            usd_per_hour=None,
            source="the emulator's profile",
        )


class Profile(Strict):
    """A profile file. Keys left out follow from the deployment's own model and hardware."""

    accelerator: str | Device | None = None
    model: str | dict[str, Any] | None = None  # a name, a folder, or the fields of a config.json
    constants: Constants = Field(default_factory=Constants)
    faults: Faults = Field(default_factory=Faults)
    # after which chat requests without a limit end
    default_output_tokens: int = Field(default=256, ge=1)
    # where the constants come from, and how large their error is; written by fit
    fitted: dict[str, Any] | None = None


def load_profile(name: str | None) -> Profile:
    """A profile from a file, from a name ``<accelerator>/<model>``, or the default one.

    Raises InputError with every problem of the file, or with the nearest names.
    """
    if name is None:
        return Profile()
    path = from_home(name)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        return _from_file(path)
    accelerator, _, model = name.partition("/")
    if find(accelerator) is None:
        raise InputError(unknown_name("accelerator", accelerator, accelerators()))
    if model and model_facts(model, online=False) is None:
        raise InputError(unknown_name("model of a built-in profile", model, known_configs()))
    return Profile(accelerator=accelerator, model=model or None)


def _from_file(path: Path) -> Profile:
    try:
        text = read_at_most(path, MOST_BYTES).decode("utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot read the emulator profile {path}: {reason}") from error
    except ValueError as error:
        raise InputError(f"cannot read the emulator profile {path}: {error}") from error
    is_json = path.suffix == ".json"
    if is_json:
        # JSON is parsed as YAML, which bounds it and knows its lines, but takes no tabs.
        text = text.replace("\t", " ")
    document = parse_document(text, str(path), may_be_empty=not is_json)
    problems = Problems(document)
    try:
        profile = Profile.model_validate({} if document.value is None else document.value)
    except ValidationError as error:
        add_errors(error, Profile, problems, _keys_of_file)
    problems.raise_any()
    return profile


def _keys_of_file(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys at which pydantic found an error, without its name for one type of a union."""
    return tuple(key for key in location if key != Device.__name__)


def problems_of(error: ValidationError) -> ProblemsError:
    """The problems that pydantic found, each with its place."""
    problems = []
    for detail in error.errors():
        place = ".".join(map(str, detail["loc"]))
        problems.append(Problem(f"{place}: {detail['msg']}"))
    return ProblemsError(problems)


def device_of(profile: Profile, hardware: Hardware) -> Accelerator:
    """The device to imitate: that of the profile, else that of the hardware, or an H100 where the
    hardware is a CPU or unknown. Raises InputError for an accelerator that the catalogue lacks.
    """
    if isinstance(profile.accelerator, Device):
        return profile.accelerator.accelerator()
    if profile.accelerator:
        named = find(profile.accelerator)
        if named is None:
            raise InputError(
                unknown_name("accelerator", profile.accelerator, [*accelerators(), "cpu"])
            )
        return named
    device = None if hardware.is_cpu else of_hardware(hardware)
    device = device or find(DEFAULT_ACCELERATOR)
    assert device is not None
    return device


def facts_of(profile: Profile, settings: EngineSettings) -> ModelFacts:
    """The model to imitate: that of the profile, else that of the deployment, or Llama-3.1-8B where
    nothing is known of the deployment's. Raises InputError for a model whose size is not known.
    """
    facts = _facts_of(profile, settings)
    if not facts.has_parameter_count:
        raise InputError(
            f"there is no formula for {facts.model_type}, the model of {facts.model}: its steps "
            "cannot be timed"
        )
    return facts


def _facts_of(profile: Profile, settings: EngineSettings) -> ModelFacts:
    if isinstance(profile.model, dict):
        facts = facts_from_config("profile", profile.model)
        if facts is None:
            raise InputError(
                "the profile's model needs at least hidden_size, num_hidden_layers and "
                "num_attention_heads"
            )
        return facts
    if profile.model is not None:
        facts = model_facts(profile.model, None, settings.hf_overrides, online=False)
        if facts is None:
            raise InputError(
                f"nothing is known of the profile's model {profile.model!r}: give a folder with a "
                "config.json"
            )
        return facts
    facts = model_facts(settings.model, settings.revision, settings.hf_overrides, online=False)
    facts = facts or facts_from_config(DEFAULT_MODEL, known_configs()[DEFAULT_MODEL])
    assert facts is not None
    return facts

"""One engine configuration, in one vocabulary for all engines.

A field left at None means "the engine's own default". Names are vLLM's where vLLM has one. Each engine maps
a field to its own flag or refuses it with a reason (``Engine.problems``); nothing is dropped silently.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.spec.units import Bytes

Scalar = str | int | float | bool | None


class Strict(BaseModel):
    """Base of everything read from a user's file: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Speculative(Strict):
    """Speculative decoding. ``model`` is the draft model; n-gram methods have none."""

    method: Literal["draft_model", "ngram", "eagle", "eagle3", "mtp", "medusa", "suffix"]
    num_speculative_tokens: int = Field(ge=1)
    model: str | None = None
    draft_tensor_parallel_size: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)


class EngineSettings(Strict):
    """A fully resolved engine configuration: what one deployment runs. Part of ``deployment_id``."""

    # which engine, and where it lives
    engine: str
    engine_version: str | None = None
    executable: str | None = None  # path of a venv or of an executable
    image: str | None = None  # container image reference
    container_runtime: Literal["docker", "podman", "apptainer"] | None = None
    url: str | None = None  # engine: endpoint only
    api_key_env: str | None = None  # engine: endpoint only; the environment variable that holds its key
    profile: str | None = None  # engine: emulator only; a file or a name from the catalogue

    # what it serves
    model: str
    revision: str | None = None
    tokenizer: str | None = None
    served_model_name: str | None = None
    trust_remote_code: bool | None = None
    hf_overrides: dict[str, Any] | None = None

    # parallelism; gpus of one replica = tensor * pipeline * data / nnodes per node
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    enable_expert_parallel: bool | None = None
    nnodes: int = Field(default=1, ge=1)
    distributed_executor_backend: Literal["mp", "uni"] | None = None  # ray: refused, see docs/architecture.md
    replicas: int = Field(default=1, ge=1)

    # numbers
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None

    # lengths, batching, scheduling
    max_model_len: int | None = Field(default=None, ge=1)
    max_input_len: int | None = Field(default=None, ge=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    max_num_queued_reqs: int | None = Field(default=None, ge=0)
    scheduling_policy: str | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    stream_interval: int | None = Field(default=None, ge=1)

    # memory
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_tokens: int | None = Field(default=None, ge=1)  # KV capacity in tokens
    kv_cache_memory_bytes: Annotated[Bytes, Field(ge=1)] | None = None  # per GPU
    block_size: int | None = Field(default=None, ge=1)
    cpu_offload_gb: float | None = Field(default=None, ge=0)

    # features
    enforce_eager: bool | None = None
    speculative: Speculative | None = None
    guided_decoding_backend: str | None = None
    load_format: str | None = None
    enable_lora: bool | None = None
    lora_modules: dict[str, str] | None = None
    max_loras: int | None = Field(default=None, ge=1)
    max_lora_rank: int | None = Field(default=None, ge=1)
    attention_backend: str | None = None
    kv_transfer_config: dict[str, Any] | None = None

    # everything else
    extra_args: dict[str, Scalar | list[str]] = Field(default_factory=dict)  # {"--flag": value}; True = bare flag
    env: dict[str, str] = Field(default_factory=dict)
    startup_timeout_s: float = Field(default=1800.0, gt=0)

    @property
    def world_size(self) -> int:
        """Devices of one replica over all its nodes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def devices_per_node(self) -> int:
        """Devices of one replica on each of its nodes (rounded up; ``plan`` refuses a remainder)."""
        return -(-self.world_size // self.nnodes)

    def given(self) -> dict[str, Any]:
        """The fields that were set, without those at their default."""
        return self.model_dump(exclude_defaults=True)


class Hardware(Strict):
    """One class of nodes. ``accelerator: cpu`` is built in: devices are then CPU cores."""

    name: str
    accelerator: str = "cpu"
    gpus_per_node: int | None = Field(default=None, ge=1)
    usd_per_gpu_hour: float | None = Field(default=None, ge=0)
    labels: dict[str, str] = Field(default_factory=dict)  # selects Ray nodes
    memory_gb: float | None = Field(default=None, gt=0)  # overrides of the catalogue
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    cpus_per_device: float | None = Field(default=None, ge=0)  # Ray CPUs taken beside each device

    @property
    def is_cpu(self) -> bool:
        return self.accelerator == "cpu"

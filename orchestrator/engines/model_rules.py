"""What engines demand of a model's shape, a checkpoint and a device, as data; plan/feasibility.py
and plan/kernels.py judge deployments by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.catalog.memory import ShareOf
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.quantization import Quantization
from orchestrator.engines.extra_args import present_flags
from orchestrator.spec.settings import EngineSettings


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
    # Default share of the device's memory that it takes; or a function of the settings, the model,
    # the device's bytes and the role.
    memory_fraction: float | Callable[[EngineSettings, ModelFacts, int, str], float] = 0.9
    share_of: ShareOf = "all"
    # Whether it refuses to start where the KV cache cannot hold max_model_len. Otherwise it starts
    # and serves shorter requests.
    holds_length: Callable[[EngineSettings], bool] = lambda settings: True
    # whether a max_model_len that is left open becomes the positions before LongRoPE's extension
    cuts_longrope: bool = False
    keeps_block: bool = False  # one block of kv_cache_tokens is never given to a sequence
    allocates_tokens: bool = False  # it allocates kv_cache_tokens whatever memory there is
    # ranks that divide shared experts, as far as is known
    shared_ranks: Callable[[EngineSettings], int] = lambda settings: 1
    # flags of ``extra_args`` with which every rank has whole dense MLPs
    whole_dense: tuple[str, ...] = ()
    # without expert parallelism every data-parallel rank has all experts
    whole_replicas: bool = False
    # data-parallel ranks of attention share dense MLPs, shared experts and output layer
    shares_dense: bool = False
    # Arguments: a value of ``quantization`` and the method of a checkpoint. Whether the engine
    # accepts the one for the other; None: not known.
    accepts_method: Callable[[str, str], bool] | None = None
    # methods of checkpoints that stay in effect, whatever ``quantization`` says
    fixed_methods: frozenset[str] = frozenset()
    # method that it refuses -> flag that allows it
    allowed_by: Mapping[str, str] = field(default_factory=dict)
    not_on_amd: frozenset[str] = frozenset()  # methods that it has for NVIDIA's GPUs only
    unknown_methods: frozenset[str] = frozenset()  # methods of other engines that it does not have
    unreadable_methods: frozenset[str] = frozenset()  # methods of checkpoints at which it stops
    # methods of checkpoints that also quantize experts at load
    experts_while_loading: frozenset[str] = frozenset()
    # ``quantization`` values for checkpoints that are stored that way
    stored_methods: frozenset[str] = frozenset()
    whole_groups: bool = False  # ranks cannot share a group of integer weights
    # checkpoint methods whose experts are an exception to ``whole_groups``
    halved_groups: frozenset[str] = frozenset()
    # Ranks can share FP8 blocks. Blocks of experts are split evenly, those of K and V may be split
    # unevenly.
    splits_blocks: bool = False
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
    # compute capability times ten, on NVIDIA, that multi-head latent attention needs where an
    # indexer makes it sparse (DeepSeek-V3.2, GLM-5)
    sparse_capability: int = 0
    # Method or scheme -> capabilities times ten for which every release and model has kernels.
    kernels_on: Mapping[str, range] = field(default_factory=dict)
    # methods of min_capability with float32 kernels; None: not known
    float32_methods: frozenset[str] | None = None
    cpu: CpuKernels | None = None  # None: not known

    def method(self, wanted: str | None, stored: Quantization | None) -> str:
        """The method of quantization in effect; "" without quantization.

        It is the method that the settings want. If they leave it open, or if the method of the
        checkpoint is fixed, it is that of the checkpoint.
        """
        own = stored.method if stored else ""
        if own in self.fixed_methods:
            return own
        return wanted or own

    def memory_overrides(self, settings: EngineSettings) -> list[str]:
        """Names in ``extra_args`` that change what memory holds in a way that is not modelled."""
        return present_flags(settings, (*self.moves_memory, *self.whole_attention))

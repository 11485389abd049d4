"""What an engine has no kernel for: groups of quantized weights that ranks would have to share, and
number formats.
"""

import math
from collections.abc import Iterator
from typing import Literal

from orchestrator.catalog.memory import FLOAT32, kernel_scheme, kv_cache_dtype
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.quantization import Quantization
from orchestrator.engines.model_rules import CpuKernels, ModelRules
from orchestrator.spec.settings import EngineSettings, Hardware

LEAST_GROUP = 32  # inputs that share a scale: no kernel for experts has smaller groups
Doubtful = Literal["risky", "impossible"]


def status_of_cut_group(
    rules: ModelRules, stored: Quantization, width: int, hardware: Hardware, matrices: str
) -> Doubtful:
    """Whether an engine refuses, or may refuse, a block or group of quantized weights that two
    ranks share.

    ``width``: inputs that each rank has of the matrices with the name ``matrices``.
    """
    of_experts = matrices == "moe_intermediate_size"
    if stored.block:
        if not rules.splits_blocks or hardware.is_cpu:
            return "impossible"
        if matrices == "KV width":  # the blocks of K and V may be split unevenly
            return "risky"
        if not of_experts or stored.method != "fp8":
            return "impossible"
        # a rank's inputs and the blocks must be whole numbers of groups that a kernel takes
        group = math.gcd(*stored.block, width)
        return "risky" if group >= LEAST_GROUP else "impossible"
    if not rules.whole_groups or not stored.scheme.startswith("int"):
        return "risky"
    halves_groups = (
        of_experts
        and stored.method in rules.halved_groups
        and width % LEAST_GROUP == 0
        and not hardware.is_cpu
    )
    return "risky" if halves_groups else "impossible"


def missing_kernels(
    rules: ModelRules, settings: EngineSettings, facts: ModelFacts, hardware: Hardware
) -> Iterator[tuple[Doubtful, str]]:
    """What the engine has no kernel for, as far as is known: float32 with most methods and, on
    CPUs, most schemes. Yields a status and a sentence for each.
    """
    method = rules.method(settings.quantization, facts.quantization)
    scheme = kernel_scheme(facts, settings)
    cpu = rules.cpu if hardware.is_cpu else None
    if settings.dtype in FLOAT32 and _is_16_bits_only(rules, cpu, method, scheme):
        yield (
            "impossible",
            f"{method} is computed in 16 bits only: give dtype bfloat16 or float16",
        )
    if cpu is not None:
        yield from _missing_on_cpu(cpu, settings, facts, method, scheme)


def _is_16_bits_only(rules: ModelRules, cpu: CpuKernels | None, method: str, scheme: str) -> bool:
    """Whether a method has no kernels for float32, or its scheme has none on CPUs; False where that
    is not known.
    """
    if rules.float32_methods is not None:
        # what ``float32_methods`` leaves out takes 16 bits only if ``min_capability`` lists it
        is_listed = method in rules.min_capability
        if is_listed and method not in rules.float32_methods:
            return True
    return cpu is not None and not cpu.schemes.get(scheme, True)


def _missing_on_cpu(
    cpu: CpuKernels, settings: EngineSettings, facts: ModelFacts, method: str, scheme: str
) -> Iterator[tuple[Doubtful, str]]:
    requirement = cpu.risks.get(scheme) or cpu.risks.get(method)
    if requirement:
        yield "risky", f"{method} on cpu needs {requirement}"
    elif scheme and scheme not in cpu.schemes:
        # which kernels there are for experts is not known
        status: Doubtful = "risky" if facts.shape.num_experts else "impossible"
        yield (
            status,
            f"{method} ({scheme}) has no kernel on cpu, which has {', '.join(cpu.schemes)}",
        )
    stored_method = facts.quantization.method if facts.quantization else ""
    accepted = cpu.flags.get(stored_method, (method,))
    if settings.quantization and settings.quantization not in accepted:
        yield (
            "impossible",
            f"quantization {settings.quantization}: on cpu this checkpoint takes {accepted[0]} "
            "only",
        )
    kv_dtype = kv_cache_dtype(facts, settings)
    if kv_dtype in cpu.kv_noise:
        yield "impossible", f"kv_cache_dtype {kv_dtype}: accepted on cpu, and every answer is noise"
    elif kv_dtype not in cpu.kv_dtypes:
        yield (
            "risky",
            f"kv_cache_dtype {kv_dtype} is none of {', '.join(cpu.kv_dtypes)}, which cpu is made "
            "for",
        )

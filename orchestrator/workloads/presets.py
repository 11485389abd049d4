"""Ready workloads. Each has the keys of an experiment file and says where its numbers are from;
keys that are given beside ``preset`` win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TGI = (
    "Hugging Face, 'Benchmarking Text Generation Inference', huggingface.co/blog/tgi-benchmarking"
)
_CATALOG = "github.com/kubernetes-sigs/inference-perf, workload-catalog"


@dataclass(frozen=True, slots=True)
class Preset:
    """Keys of a workload. ``source``: where their numbers are from, and what is not from there."""

    source: str
    keys: Mapping[str, Any]


chat = Preset(
    f"{_TGI}: 2 x turns x 50-200 tokens; turns (2-8) and pauses (8 s) are typical values",
    {
        "kind": "conversations",
        "api": "chat",
        "turns": {"uniform": {"min": 2, "max": 8}},
        "think_time": {"lognormal": {"mean": "8s", "sigma": 1, "max": "60s"}},
        "input_tokens": {"uniform": {"min": 50, "max": 200}},
        "output_tokens": {"uniform": {"min": 50, "max": 200}},
    },
)

rag = Preset(
    f"{_TGI}: instruction and query below 200 tokens, up to ten documents of 500-1000, answers of "
    "500-1000; the pool (10,000 documents, Zipf 1.0) is a typical value",
    {
        "kind": "random",
        "shared_prefix_tokens": 150,
        "documents": {
            "count": {"uniform": {"min": 1, "max": 10}},
            "tokens": {"uniform": {"min": 500, "max": 1000}},
            "pool": 10_000,
            "popularity": {"zipf": 1.0},
        },
        "input_tokens": {"uniform": {"min": 20, "max": 199}},
        "output_tokens": {"uniform": {"min": 500, "max": 1000}},
    },
)

# A log-normal number of mean m and standard deviation s has sigma = sqrt(ln(1 + (s / m)**2)). The
# catalogue's exponential answers are log-normal here, of the same mean and deviation.
reasoning = Preset(
    f"{_CATALOG}/reasoning: system prompt 250, in 1000 ± 800 (100-5000), out 8000 ± 6500 "
    "(500-32000)",
    {
        "kind": "random",
        "shared_prefix_tokens": 250,
        "input_tokens": {"lognormal": {"mean": 1000, "sigma": 0.703, "min": 100, "max": 5000}},
        "output_tokens": {"lognormal": {"mean": 8000, "sigma": 0.712, "min": 500, "max": 32000}},
    },
)

code_agent = Preset(
    f"{_CATALOG}/code-generation: system prompt 3000, in 1500 ± 1200 a turn, out 425 ± 825, pauses "
    "15 s ± 55 s; its sessions have 540 turns and up to 990,000 tokens, here they have 20 turns on "
    "average and at most 80",
    {
        "kind": "conversations",
        "api": "chat",
        "start": "anywhere",
        "shared_prefix_tokens": 3000,
        "first_input_tokens": {"lognormal": {"mean": 10000, "sigma": 0.5, "max": 40000}},
        "turns": {"lognormal": {"mean": 20, "sigma": 0.8, "max": 80}},
        "think_time": {"lognormal": {"mean": "15s", "sigma": 1.64, "min": "1s", "max": "1000s"}},
        "input_tokens": {"lognormal": {"mean": 1500, "sigma": 0.703, "min": 100, "max": 10000}},
        "output_tokens": {"lognormal": {"mean": 425, "sigma": 1.25, "min": 50, "max": 10000}},
    },
)

deep_research = Preset(
    f"{_CATALOG}/deep-research: system prompt 2000, 15 ± 8.5 turns (2-50), in 3000 ± 2500 a turn, "
    "out 300 ± 850 (50-4000), pauses 25 s ± 12 s; its bimodal answers are two bins of that mean",
    {
        "kind": "conversations",
        "api": "chat",
        "start": "anywhere",
        "shared_prefix_tokens": 2000,
        "turns": {"normal": {"mean": 15, "sigma": 8.5, "min": 2, "max": 50}},
        "think_time": {"normal": {"mean": "25s", "sigma": "12s", "min": "5s", "max": "60s"}},
        "input_tokens": {"lognormal": {"mean": 3000, "sigma": 0.726, "min": 500, "max": 15000}},
        "output_tokens": {
            "histogram": [
                {"min": 50, "max": 200, "weight": 0.937},
                {"min": 2000, "max": 4000, "weight": 0.063},
            ]
        },
    },
)

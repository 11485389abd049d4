"""Points of published measurements as this program's own deployments: what was measured, what is
predicted of each.

``aiconfigurator_core/systems/silicon_sample.csv`` (NVIDIA, Apache-2.0) holds TTFT and TPOT of vLLM
and SGLang on H100, H200 and B200, most of them from public benchmark runs, and config.json files of
their models. Taken are aggregated points without data and pipeline parallelism of at most 256
requests in flight, of architectures that the catalogue has a formula for, on devices that hold the
model by its own count; points that several dumps repeat count once.

Assumed, since the file does not say: TTFT a mean, and as in the scripts of InferenceMAX 10 requests
per slot in closed loop with lengths uniform in 0.8 to 1.0 of those stated. Of the file's SGLang
points of source "gap-analysis" the lengths are taken as fixed (on half 0 their TTFT on H100 is that
of waves of prompts). Two of its sources are not fitted on, but scored: vLLM points of FP8 whose
prompts go through an H200 at 77 % of its peak beside their decodes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from orchestrator.catalog.accelerators import Accelerator, find
from orchestrator.catalog.arithmetic import no_term
from orchestrator.catalog.models import ModelFacts, facts_from_config
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.step_costs import StepTimes
from orchestrator.predict.simulate import run_closed
from orchestrator.spec.settings import EngineSettings

ENGINES = ("vllm", "sglang")
DEVICES = {"h100_sxm": "H100-80GB", "h200_sxm": "H200-141GB", "b200_sxm": "B200-180GB"}
PER_SLOT = 10
# The file's names -> its folder of config.json files; of one shape, so one model.
SAME = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
QUANTIZATION: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp8_block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
CONFIGS = TemporaryDirectory()  # config.json as measured, a folder each


def recv_interval(
    engine: str, device: str, tensor: int, precision: str, in_flight: int
) -> int | None:
    """``--scheduler-recv-interval`` of the servers of InferenceMAX and InferenceX, which only
    SGLang's on B200 had: benchmarks/dsr1_fp4_b200_docker.sh and dsr1_fp8_b200_docker.sh since
    2025-09-23 (6be2c69), then benchmarks/single_node/dsr1_fp4_b200.sh and dsr1_fp8_b200.sh (12ba0ae
    of 2026-03-25, d4948f9 of 2026-05-22), in the history of github.com/olegleyz/inferencex-nkx.
    """
    if engine != "sglang" or not device.startswith("B200"):
        return None
    return 10 if in_flight < 16 or (precision, tensor) == ("fp8", 4) else 30


@dataclass(frozen=True, eq=False)
class Point:
    """One measured point. ``measured``: seconds of TTFT and TPOT."""

    engine: str
    model: str
    precision: str
    tensor: int
    expert_parallel: bool
    concurrency: int
    lengths: tuple[int, int]  # input, output
    system: str
    source: str
    facts: ModelFacts
    measured: tuple[float, float]

    @cached_property
    def configuration(self) -> str:
        return f"{self.engine} {self.model.rpartition('/')[2]} TP{self.tensor} {self.precision}"

    @cached_property
    def half(self) -> int:
        return hashlib.sha256(self.configuration.encode()).digest()[0] % 2

    @property
    def month(self) -> str:
        """When it was measured; empty where the file does not say."""
        found = re.search(r"measured=(\d{4}-\d\d)", self.source)
        return found[1] if found else ""

    @property
    def unfitted(self) -> bool:
        """B200: constants of no fold have seen it."""
        return self.system == "b200_sxm"

    @property
    def doubtful(self) -> bool:
        own = "gap-analysis" in self.source and self.engine == "vllm" and self.precision == "fp8"
        return own and ("Qwen3-32B" in self.model or "8B" in self.model)

    @cached_property
    def settings(self) -> EngineSettings:
        return EngineSettings(
            engine=self.engine, model=self.model, tensor_parallel_size=self.tensor,
            enable_expert_parallel=self.expert_parallel or None,
            scheduler_recv_interval=recv_interval(
                self.engine, DEVICES[self.system], self.tensor, self.precision, self.concurrency
            ),
        )  # fmt: skip

    @cached_property
    def device(self) -> Accelerator:
        device = find(DEVICES[self.system])
        assert device is not None
        return device

    def fits(self) -> bool:
        return replica(self.settings, self.facts, self.device, Constants()).limits.kv_tokens >= sum(
            self.lengths
        )

    def costs(self, constants: Constants) -> StepTimes:
        return replica(self.settings, self.facts, self.device, constants).costs

    def predicted(self, constants: Constants) -> tuple[float, float]:
        """Seconds of mean TTFT and mean TPOT."""
        return simulated(self, replica(self.settings, self.facts, self.device, constants))

    def throughput(self, latencies: Iterable[float]) -> float:
        """Output tokens/s per GPU that these latencies mean."""
        ttft, tpot = latencies
        return (
            self.concurrency * self.lengths[1] / (ttft + tpot * (self.lengths[1] - 1)) / self.tensor
        )


@cache  # a fit asks again, with other constants that are not in this point's costs
def simulated(point: Point, model: Replica) -> tuple[float, float]:
    """Seconds of mean TTFT and mean TPOT."""
    rng, requests = np.random.default_rng(0), point.concurrency * PER_SLOT
    fixed = point.engine == "sglang" and "gap-analysis" in point.source
    low = 1.0 if fixed else 0.8
    prompts, outputs = (
        rng.integers(round(low * most), most + 1, requests) for most in point.lengths
    )
    trace, outcome = run_closed(model, prompts, outputs, point.concurrency)
    tpot = (outcome.last_token_s - outcome.first_token_s) / (outputs - 1)
    return float((outcome.first_token_s - trace.arrival_s).mean()), float(tpot.mean())


def read(folder: Path) -> tuple[list[Point], Counter[str]]:
    """The points that are scored or fitted, each once; why the others of these engines are not, and
    how many.
    """
    core = folder / "aiconfigurator_core"
    points: dict[object, Point] = {}
    left_out: Counter[str] = Counter()
    with (core / "systems" / "silicon_sample.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["backend"] not in ENGINES:
                continue
            if why := _unusable(row):
                left_out[why] += 1
                continue
            point = _point(core, row)
            if point is None:
                left_out["no config.json of the model in the wheel"] += 1
            elif lacking := no_term(point.facts):
                left_out[f"{lacking}, which the step model has no term for"] += 1
            elif not point.fits():
                left_out["does not fit the device by its own count"] += 1
            else:
                alike = (
                    point.configuration,
                    point.system,
                    point.lengths,
                    point.concurrency,
                    point.expert_parallel,
                )
                before = points.setdefault((*alike, round(point.measured[1], 3)), point)
                left_out["the same point of another dump"] += before is not point
    return list(points.values()), left_out


def _unusable(row: dict[str, str]) -> str:
    """Why a row is not taken, whatever its model; empty: it is."""
    tensor, pipeline, data = (
        int(float(row[f"{name}_size"] or 1)) for name in ("tp", "pp", "attention_dp")
    )
    reasons = {
        "prefill and decode apart": row["mode"] != "agg",
        "another device (B300, GB200)": row["system"] not in DEVICES,
        "data or pipeline parallelism": pipeline > 1 or data > 1,
        "more than 8 GPUs": tensor > 8,
        "more than 256 in flight": row["mode"] == "agg" and float(row["batch_size"]) > 256,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _point(core: Path, row: dict[str, str]) -> Point | None:
    model = SAME.get(row["model_path"], row["model_path"])
    path = core / "model_configs" / f"{model.replace('/', '--')}_config.json"
    facts = _facts(path, row["precision"], row["gemm_quant_mode"]) if path.is_file() else None
    return None if facts is None else Point(
        engine=row["backend"], model=model, precision=row["precision"] or "bf16", tensor=int(float(row["tp_size"])),
        expert_parallel=float(row["moe_ep_size"] or 1) > 1, concurrency=int(float(row["batch_size"])),
        lengths=(int(float(row["isl"])), int(float(row["osl"]))), system=row["system"],
        source=row["silicon_data_source"], facts=facts,
        measured=(float(row["silicon_ttft_ms"]) / 1e3, float(row["silicon_tpot_ms"]) / 1e3),
    )  # fmt: skip


def _facts(path: Path, precision: str, products: str) -> ModelFacts | None:
    """With the quantization that was measured: the checkpoint's own where it has one of that
    precision.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    own = config.get("quantization_config") or text.get("quantization_config")
    if products == "fp8_block":
        own = QUANTIZATION["fp8_block"]
    elif precision == "fp4" and (own or {}).get("quant_method") != "mxfp4":
        own = QUANTIZATION["fp4"]
    elif precision == "fp8" and own is None:
        own = QUANTIZATION["fp8"]
    for part in (config, text):
        part["quantization_config"] = own
    folder = Path(CONFIGS.name) / f"{path.stem} {precision} {products}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return facts_from_config(str(folder), config)

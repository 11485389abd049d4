"""The tools that are compared: how each is called for a scenario, and where its report says what.

Every tool runs with its defaults, except where the load itself must be the same: prompt and output
lengths, ignore_eos, no readiness probes, no progress display, no telemetry. Units of a report are
turned into milliseconds here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scenarios import Scenario

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".engines/peers"
VLLM = ROOT / ".engines/vllm/bin/vllm"
MODEL = PEERS / "tiny-llama"  # a tokenizer for those that want one: scripts/make_tiny_model.py
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

Summary = dict[str, float]  # mean, p50, p99 in ms


class Unsupported(Exception):
    """The tool cannot make this load. The message says why, for the table."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a tool said. ``itl_of``: whether its inter-token latency is of gaps or of per-request
    means.
    """

    ttft: Summary | None
    itl: Summary | None
    itl_of: str
    ok: int
    failed: int
    ttft_scheduled: Summary | None = None
    send_lag_p99_ms: float | None = None
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """``command(scenario, url, folder)`` gives argv; ``read(folder)`` its report."""

    name: str
    title: str
    executable: Path
    command: Callable[[Scenario, str, Path], list[str]]
    read: Callable[[Path], Report]
    env: dict[str, str] = field(default_factory=dict)


def _args(**flags: object) -> list[str]:
    return [
        part
        for name, value in flags.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


def _json(path: Path) -> dict:
    if not path.exists():
        raise Unsupported("it left no report")
    return json.loads(
        path.read_text().splitlines()[-1] if path.suffix == ".jsonl" else path.read_text()
    )


def _no_cap(scenario: Scenario, tool: str) -> None:
    if scenario.rate and scenario.max_in_flight:
        raise Unsupported(f"{tool} has no request rate with a cap on requests in flight")


# ---- the yardstick and ours ----


def _c_command(s: Scenario, url: str, folder: Path) -> list[str]:
    if s.streams is None:
        raise Unsupported("closed loop only")
    flags = _args(
        port=url.rpartition(":")[2], streams=s.streams, requests=s.requests, tokens=s.output_tokens
    )
    return [
        str(ROOT / "benchmarks/client/build/epoll_client"),
        *flags,
        *_args(prompt_tokens=s.input_tokens),
    ]


def _c_read(folder: Path) -> Report:
    said = _json(folder / "output.txt")
    return Report(
        said["ttft_ms"], said["itl_ms"], "gap", said["requests"] - said["failed"], said["failed"]
    )


def _ours_command(s: Scenario, url: str, folder: Path) -> list[str]:
    load = _args(concurrency=s.streams) if s.streams else _args(rate=s.rate, arrivals=s.arrivals)
    if s.max_in_flight:
        load += _args(max_in_flight=s.max_in_flight)
    sizes = _args(requests=s.requests, input_tokens=s.input_tokens, output_tokens=s.output_tokens)
    rest = _args(clients=s.clients, seed=s.seed, results=folder / "results", format="json")
    return [
        sys.executable,
        "-m",
        "orchestrator",
        "load",
        url,
        *_args(model="mock"),
        *load,
        *sizes,
        *rest,
    ]


def _ours_read(folder: Path) -> Report:
    text = (folder / "output.txt").read_text()
    said = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    requests = said["requests"]
    rows = _ours_rows(folder / "results")
    return Report(
        said["ttft_from_sent_ms"], said["itl_ms"], "gap", requests["ok"], requests["failed"], said["ttft_ms"],
        rows.pop("send_lag_p99_ms", None), {"validity": said["validity"], **rows},
    )  # fmt: skip


def _ours_rows(root: Path) -> dict:
    import numpy as np
    import pyarrow.dataset as ds

    table = ds.dataset(sorted(root.glob("**/requests/**/*.parquet"))).to_table()
    sent = table.filter(table["sent_ns"].is_valid())
    lag = (sent["sent_ns"].to_numpy() - sent["scheduled_ns"].to_numpy()) / 1e6
    classes = [name for name in table["error_class"].to_pylist() if name]
    counts = {name: classes.count(name) for name in sorted(set(classes))}
    return {
        "send_lag_p99_ms": float(np.percentile(lag, 99)),
        "rows": table.num_rows,
        "error_classes": counts,
    }


# ---- peers ----


def _vllm_command(s: Scenario, url: str, folder: Path) -> list[str]:
    load = (
        _args(max_concurrency=s.streams, request_rate="inf")
        if s.streams
        else _args(request_rate=s.rate)
    )
    if s.rate and s.arrivals == "constant":
        load += _args(burstiness=1e6)  # gamma with so large a shape is constant
    if s.max_in_flight:
        load += _args(max_concurrency=s.max_in_flight)
    sizes = _args(
        num_prompts=s.requests, random_input_len=s.input_tokens, random_output_len=s.output_tokens
    )
    rest = _args(
        backend="openai", base_url=url, endpoint="/v1/completions", model="mock", tokenizer=MODEL,
        dataset_name="random", percentile_metrics="ttft,tpot,itl,e2el", metric_percentiles="50,99",
        result_dir=folder, result_filename="r.json", seed=s.seed,
    )  # fmt: skip
    return [
        str(VLLM),
        "bench",
        "serve",
        *rest,
        *load,
        *sizes,
        "--ignore-eos",
        "--save-result",
        "--disable-tqdm",
    ]


def _vllm_read(folder: Path) -> Report:
    said = _json(folder / "r.json")
    pick = {
        name: {p: said[f"{p}_{name}_ms"] for p in ("mean", "p50", "p99")}
        for name in ("ttft", "itl")
    }
    return Report(pick["ttft"], pick["itl"], "gap", said["completed"], said["failed"])


def _sglang_command(s: Scenario, url: str, folder: Path) -> list[str]:
    # Poisson is all it knows
    load = _args(max_concurrency=s.streams) if s.streams else _args(request_rate=s.rate)
    if s.max_in_flight:
        load += _args(max_concurrency=s.max_in_flight)
    sizes = _args(
        num_prompts=s.requests, random_input_len=s.input_tokens, random_output_len=s.output_tokens
    )
    rest = _args(
        backend="vllm", base_url=url, model="mock", tokenizer=MODEL, dataset_name="random-ids", random_range_ratio=1,
        output_file=folder / "r.jsonl", seed=s.seed, warmup_requests=0,
    )  # fmt: skip
    python, switches = str(PEERS / "sglang/bin/python"), ["--disable-tqdm", "--disable-retokenize"]
    return [python, "-m", "sglang.benchmark.rust_client", *rest, *load, *sizes, *switches]


def _sglang_read(folder: Path) -> Report:
    said = _json(folder / "r.jsonl")
    pick = {
        name: {
            "mean": said[f"mean_{name}_ms"],
            "p50": said[f"median_{name}_ms"],
            "p99": said[f"p99_{name}_ms"],
        }
        for name in ("ttft", "itl")
    }
    asked = int(json.loads((folder / "scenario.json").read_text())["requests"])
    return Report(pick["ttft"], pick["itl"], "gap", said["completed"], asked - said["completed"])


def _guidellm_command(s: Scenario, url: str, folder: Path) -> list[str]:
    if s.streams:
        profile = f"kind=concurrent,streams={s.streams}"
    else:
        cap = f",max_concurrency={s.max_in_flight}" if s.max_in_flight else ""
        profile = f"kind={s.arrivals},rate={s.rate:g}{cap}"
    rest = _args(
        backend=f"kind=openai_http,target={url},model=mock", profile=profile, tokenizer=f"kind=hf_auto,model={MODEL}",
        constraint=f"kind=max_requests,count={s.requests}", output=f"kind=json,path={folder / 'r.json'}",
        data=f"kind=synthetic_text,prompt_tokens={s.input_tokens},output_tokens={s.output_tokens}",
    )  # fmt: skip
    return [str(PEERS / "guidellm/bin/guidellm"), "run", *rest, "--disable-console"]


def _guidellm_read(folder: Path) -> Report:
    metrics = _json(folder / "r.json")["benchmarks"][0]["metrics"]

    def pick(name: str) -> Summary:
        said = metrics[name]["successful"]
        return {"mean": said["mean"], "p50": said["median"], "p99": said["percentiles"]["p99"]}

    totals = metrics["request_totals"]
    itl = pick("inter_token_latency_ms")
    return Report(
        pick("time_to_first_token_ms"), itl, "request", totals["successful"], totals["errored"]
    )


def _aiperf_command(s: Scenario, url: str, folder: Path) -> list[str]:
    load = (
        _args(concurrency=s.streams)
        if s.streams
        else _args(request_rate=s.rate, arrival_pattern=s.arrivals)
    )
    if s.max_in_flight:
        load += _args(concurrency=s.max_in_flight)
    rest = _args(
        model="mock", tokenizer=MODEL, url=url, endpoint_type="completions", request_count=s.requests, ui="none",
        prompt_input_tokens_mean=s.input_tokens, prompt_output_tokens_mean=s.output_tokens,
        extra_inputs="ignore_eos:true", output_artifact_dir=folder / "aiperf",
    )  # fmt: skip
    switches = [
        "--streaming",
        "--no-server-metrics",
        "--no-gpu-telemetry",
        "--use-server-token-count",
    ]
    return [str(PEERS / "aiperf/bin/aiperf"), "profile", *rest, *load, *switches]


def _aiperf_read(folder: Path) -> Report:
    said = _json(folder / "aiperf/profile_export_aiperf.json")

    def pick(name: str) -> Summary:
        return {"mean": said[name]["avg"], "p50": said[name]["p50"], "p99": said[name]["p99"]}

    failed = (said.get("error_request_count") or {"avg": 0})["avg"]
    ok = int(said["request_count"]["avg"])
    return Report(pick("time_to_first_token"), pick("inter_chunk_latency"), "gap", ok, int(failed))


def _genai_command(s: Scenario, url: str, folder: Path) -> list[str]:
    if s.streams is None:
        raise Unsupported("closed loop only")
    rest = _args(
        api_backend="vllm", api_base=url, api_key="none", task="text-to-text", api_model_name="mock",
        model_tokenizer=MODEL, num_concurrency=s.streams, traffic_scenario=f"D({s.input_tokens},{s.output_tokens})",
        max_time_per_run=2, max_requests_per_run=s.requests, experiment_base_dir=folder, experiment_folder_name="genai",
        additional_request_params='{"ignore_eos": true}', log_dir=folder,
    )  # fmt: skip
    return [str(PEERS / "genai-bench/bin/genai-bench"), "benchmark", *rest]


def _genai_read(folder: Path) -> Report:
    found = sorted(folder.glob("genai/D*.json"))
    if not found:
        raise Unsupported("it left no report")
    said = _json(found[0])["aggregated_metrics"]

    def pick(name: str) -> Summary:
        stats = said["stats"][name]
        return {"mean": 1e3 * stats["mean"], "p50": 1e3 * stats["p50"], "p99": 1e3 * stats["p99"]}

    ok, failed = said["num_completed_requests"], said["num_error_requests"]
    return Report(pick("ttft"), pick("tpot"), "request", ok, failed)


def _inference_perf_command(s: Scenario, url: str, folder: Path) -> list[str]:
    _no_cap(s, "inference-perf")
    if s.streams:
        load = {
            "type": "concurrent",
            "stages": [{"num_requests": s.requests, "concurrency_level": s.streams}],
        }
    else:
        load = {
            "type": "poisson",
            "stages": [{"rate": s.rate, "duration": round(s.requests / (s.rate or 1))}],
        }

    def fixed(length: int) -> dict:
        return {
            "min": length,
            "max": length,
            "mean": length,
            "std_dev": 0,
            "total_count": s.requests,
        }

    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": fixed(s.input_tokens),
            "output_distribution": fixed(s.output_tokens),
        },
        "load": load,
        "server": {"type": "vllm", "model_name": "mock", "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(MODEL)},
        "storage": {"local_storage": {"path": str(folder / "inference-perf")}},
        "report": {
            "request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}
        },
    }
    (folder / "config.json").write_text(json.dumps(config))  # JSON is YAML
    return [str(PEERS / "inference-perf/bin/inference-perf"), "-c", str(folder / "config.json")]


def _inference_perf_read(folder: Path) -> Report:
    said = _json(folder / "inference-perf/summary_lifecycle_metrics.json")
    latency = said["successes"]["latency"]

    def pick(name: str) -> Summary:
        said = latency[name]
        return {"mean": 1e3 * said["mean"], "p50": 1e3 * said["median"], "p99": 1e3 * said["p99"]}

    ok, failed = said["successes"]["count"], said["failures"]["count"]
    return Report(pick("time_to_first_token"), pick("inter_token_latency"), "gap", ok, failed)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("c", "C, epoll", ROOT / "benchmarks/client/build/epoll_client", _c_command, _c_read),
        Tool("ours", "orchestrator load", Path(sys.executable), _ours_command, _ours_read, {"PYTHONPATH": str(ROOT)}),
        Tool("sglang-rust", "SGLang (Rust)", PEERS / "sglang/bin/python", _sglang_command, _sglang_read, OFFLINE),
        Tool("vllm", "vllm bench serve", VLLM, _vllm_command, _vllm_read, OFFLINE),
        Tool("aiperf", "AIPerf", PEERS / "aiperf/bin/aiperf", _aiperf_command, _aiperf_read),
        Tool("genai-bench", "genai-bench", PEERS / "genai-bench/bin/genai-bench", _genai_command, _genai_read, OFFLINE),
        Tool("guidellm", "GuideLLM", PEERS / "guidellm/bin/guidellm", _guidellm_command, _guidellm_read, OFFLINE),
        Tool(
            "inference-perf", "inference-perf", PEERS / "inference-perf/bin/inference-perf",
            _inference_perf_command, _inference_perf_read, OFFLINE,
        ),
    )
}  # fmt: skip

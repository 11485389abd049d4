"""From one run to figures: what the tool reported minus what the server did, and what it cost."""

from __future__ import annotations

from statistics import median

import numpy as np
from measure import Run, Truth
from scenarios import Scenario
from tools import Report, Summary

Figures = dict[str, float]


def _errors(name: str, said: Summary | None, true: Summary) -> Figures:
    if said is None:
        return {}
    return {f"{name}_error_{part}_ms": said[part] - true[part] for part in ("mean", "p50", "p99")}


def _main_start(truth: Truth, scenario: Scenario) -> int:
    """Index of the first request of the load itself: what came before were the tool's warm-up and
    test requests.
    """
    return max(0, len(truth.arrival) - scenario.requests)


def _streams_in_use(truth: Truth, scenario: Scenario) -> float:
    """Closed loop: mean requests in flight at the server over those asked for, while new ones still
    came.
    """
    first = _main_start(truth, scenario)
    arrival, last = truth.arrival[first:], truth.last[first:]
    start, end = arrival[min(len(arrival), scenario.streams or 1) - 1], arrival[-1]
    if end <= start:
        return float("nan")
    busy = np.clip(np.minimum(last, end) - np.maximum(arrival, start), 0, None).sum()
    return float(busy / (end - start) / (scenario.streams or 1))


def _open_loop(truth: Truth, scenario: Scenario) -> Figures:
    """Arrival rate at the server over the rate asked for; dispersion: variance over mean of the
    counts per 50 ms.
    """
    arrival = truth.arrival[_main_start(truth, scenario) :]
    span_s = (arrival[-1] - arrival[0]) / 1e9
    counts = np.bincount(((arrival - arrival[0]) // 50_000_000).astype(int))[:-1]
    rate = (len(arrival) - 1) / span_s
    dispersion = float(counts.var() / counts.mean())
    return {"achieved_over_offered": float(rate / (scenario.rate or 1)), "dispersion": dispersion}


def _ttft_from_schedule(truth: Truth, scenario: Scenario) -> float:
    """Constant arrivals: the true mean TTFT from the instants the requests were due. Milliseconds."""
    first = truth.first[truth.first > 0][_main_start(truth, scenario) :]
    due = truth.arrival[_main_start(truth, scenario)] + np.arange(len(first)) * (
        1e9 / (scenario.rate or 1)
    )
    return float((np.sort(first) - due).mean() / 1e6)


def figures(scenario: Scenario, run: Run, report: Report | None) -> Figures:
    """Everything that is a number. Times in ms unless named otherwise; what cannot be known is left
    out.
    """
    stats, truth = run.truth.stats, run.truth
    if not len(truth.arrival):
        return {"wall_s": run.wall_s}
    start, end = int(truth.arrival[_main_start(truth, scenario)]), int(stats["last_event_ns"])
    tokens = max(stats["tokens"], 1)
    out: Figures = {
        "start_s": (int(truth.arrival[0]) - run.started_ns) / 1e9,
        "wall_s": run.wall_s,
        "tokens_per_s": tokens / max((end - start) / 1e9, 1e-9),
        "cpu_us_per_token": run.cpu_between(start, end) / tokens * 1e6,
        "cpu_us_per_token_whole_command": run.cpu_s / tokens * 1e6,
        "cpu_us_per_request": run.cpu_between(start, end) / len(truth.arrival) * 1e6,
        "server_lateness_p99_ms": stats["lateness_ms"]["p99"],
        "requests_at_server": stats["requests"],
        "requests_per_s_to_end": len(truth.arrival)
        / (run.wall_s - (int(truth.arrival[0]) - run.started_ns) / 1e9),
        "failed_true": stats["errors"] + stats["cuts"],
    }
    if scenario.streams:
        out["achieved_over_offered"] = _streams_in_use(truth, scenario)
    else:
        out |= _open_loop(truth, scenario)
    if scenario.arrivals == "constant":
        out["ttft_from_schedule_true_ms"] = _ttft_from_schedule(truth, scenario)
    return out | (_reported(stats, report) if report else {})


def _reported(stats: dict, report: Report) -> Figures:
    out: Figures = {"ok": report.ok, "failed": report.failed}
    out |= _errors("ttft", report.ttft, stats["ttft_ms"])
    out |= _errors("itl", report.itl, stats["itl_ms" if report.itl_of == "gap" else "tpot_ms"])
    headline = report.ttft_scheduled or report.ttft
    if headline:
        out["ttft_headline_ms"] = headline["mean"]
    if report.send_lag_p99_ms is not None:
        out["send_lag_p99_ms"] = report.send_lag_p99_ms
    return out


def medians(repeats: list[Figures]) -> Figures:
    """Median of every figure over the repeats that have it."""
    names = {name for one in repeats for name in one}
    return {name: median(one[name] for one in repeats if name in one) for name in sorted(names)}


def ratios(tool: list[Figures], yardstick: list[Figures], name: str) -> float | None:
    """Median over repeats of the tool's figure over the yardstick's in the same repeat."""
    pairs = [
        (a[name], b[name])
        for a, b in zip(tool, yardstick, strict=False)
        if a.get(name) and b.get(name)
    ]
    return median(a / b for a, b in pairs) if pairs else None

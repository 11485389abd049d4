"""The model's constants from a sweep's own Parquet, and the error they leave.

Every measured point is simulated with its real requests (their send times in open loop, their order in closed loop);
the constants are those whose simulated TTFT and TPOT come closest to each request's measured ones, as ratios.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.optimize import least_squares

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants, Profile, device_of, facts_of
from orchestrator.emulator.simulate import Floats, Ints, Outcome, Trace, run, run_closed
from orchestrator.errors import InputError
from orchestrator.results.records import DeploymentRow, PointHead
from orchestrator.results.root import open_results
from orchestrator.results.schemas import rows_of
from orchestrator.spec.settings import EngineSettings, Hardware

FIGURES = ("ttft_p50", "ttft_p90", "tpot_p50", "e2e_p50")
FITTED = (
    "compute_efficiency", "bandwidth_efficiency", "step_overhead_s", "sequence_overhead_s", "collective_latency_s",
    "network_latency_s", "request_overhead_s",
)  # fmt: skip
# Pulls a constant that the data say nothing of towards where it started: one e-fold weighs like an error of 2 %.
_PRIOR = 0.02
_GROUPS = 4
_HELD_OUT_MIN = 4  # samples below which nothing is held out
_MAX_REQUESTS = 3000  # per sample; the first ones


@dataclass(frozen=True, slots=True)
class FitSample:
    """One replica's share of one measured point. Arrays have one entry per answered request, in the order sent."""

    name: str
    settings: EngineSettings
    facts: ModelFacts
    device: Accelerator
    schedule: Trace
    measure: NDArray[np.bool_]  # False: warm-up, simulated but not compared
    concurrency: int | None  # closed loop: requests in flight on this replica
    outcome: Outcome  # measured


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibrated profile. Errors are medians over samples of |simulated / measured - 1|, by figure."""

    profile: Profile
    error: dict[str, float]
    held_out_error: dict[str, float] | None  # of samples the constants were not fitted to; None: too few
    by_sample: dict[str, dict[str, float]]


def fit(uri: str, profile: Profile | None = None, engine: str | None = None) -> Fit:
    """Calibrate on the results at ``uri``. ``profile`` names what to imitate where that is not the sweep's own.

    All samples share one profile, so they must come from one engine (``engine`` chooses it) on one kind of device.
    Raises InputError when they do not, or when there is nothing to fit.
    """
    base = profile or Profile()
    samples = [one for one in read_samples(uri, base) if engine is None or one.settings.engine == engine]
    if not samples:
        which = f" of {engine}" if engine else ""
        raise InputError(f"no answered requests of any committed point{which} at {uri}: nothing to fit")
    devices, engines = {one.device.name for one in samples}, {one.settings.engine for one in samples}
    for what, found in (("on", devices), ("with", engines)):
        if len(found) > 1:
            raise InputError(f"the deployments at {uri} ran {what} {', '.join(sorted(found))}: fit each on its own")
    constants = calibrate(samples, base.constants)
    by_sample = {sample.name: _errors(sample, constants) for sample in samples}
    error, held_out = _summary(by_sample), _held_out(samples, base.constants)
    origin = {"results": uri, "samples": len(samples), "error": error, "held_out_error": held_out}
    named = base.accelerator or samples[0].device.name
    fitted = base.model_copy(update={"constants": constants, "accelerator": named, "fitted": origin})
    return Fit(fitted, error, held_out, by_sample)


def calibrate(samples: Sequence[FitSample], start: Constants) -> Constants:
    """The constants with the smallest log-ratios of TTFT and TPOT over all requests; every sample weighs the same."""
    origin = np.log([max(getattr(start, name), 1e-7) for name in FITTED])

    def residuals(position: Floats) -> Floats:
        constants = _constants(start, position)
        ratios = [_log_ratios(sample, constants) for sample in samples]
        return np.concatenate([*ratios, _PRIOR * (position - origin)])

    found = least_squares(residuals, origin, diff_step=0.05, loss="soft_l1", f_scale=0.1, max_nfev=80)
    return _constants(start, found.x)


def _log_ratios(sample: FitSample, constants: Constants) -> Floats:
    """Mean log-ratio of TTFT and TPOT in groups of requests by prompt length.

    Means, because one request's latency jumps by whole steps when a constant moves a little; groups, because short and
    long prompts tell overheads from work.
    """
    measured = _latencies(sample.schedule, sample.outcome)[:, sample.measure]
    simulated = _latencies(*_simulated(sample, constants))[:, sample.measure]
    ratios = np.log(np.maximum(simulated, 1e-7) / np.maximum(measured, 1e-7))
    order = np.argsort(sample.schedule.prompt_tokens[sample.measure], kind="stable")
    groups = [ratios[:, group] for group in np.array_split(order, min(_GROUPS, len(order)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a group of one-token outputs has no TPOT: its mean is NaN
        means: Floats = np.concatenate([np.nanmean(group, axis=1) for group in groups])
    return np.nan_to_num(means, nan=0.0) / float(np.sqrt(len(means)))


def _constants(start: Constants, position: Floats) -> Constants:
    return start.model_copy(update=dict(zip(FITTED, np.exp(np.clip(position, -18, 5)).tolist(), strict=True)))


def _held_out(samples: Sequence[FitSample], start: Constants) -> dict[str, float] | None:
    """Fit on every other sample, look at the rest, and the other way round."""
    if len(samples) < _HELD_OUT_MIN:
        return None
    errors: dict[str, dict[str, float]] = {}
    for fold in (0, 1):
        constants = calibrate(samples[fold::2], start)
        errors |= {sample.name: _errors(sample, constants) for sample in samples[1 - fold :: 2]}
    return _summary(errors)


def _summary(errors: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.median([one[name] for one in errors.values()])), 4) for name in FIGURES}


def _errors(sample: FitSample, constants: Constants) -> dict[str, float]:
    simulated = figures(*_simulated(sample, constants), sample.measure)
    values = np.abs(simulated / figures(sample.schedule, sample.outcome, sample.measure) - 1)
    return {name: round(float(value), 4) for name, value in zip(FIGURES, values, strict=True)}


def _simulated(sample: FitSample, constants: Constants) -> tuple[Trace, Outcome]:
    model, schedule = replica(sample.settings, sample.facts, sample.device, constants), sample.schedule
    if sample.concurrency is None:
        return schedule, run(model, schedule, ranks=sample.settings.data_parallel_size)
    return run_closed(model, schedule.prompt_tokens, schedule.output_tokens, sample.concurrency)


def _latencies(schedule: Trace, outcome: Outcome) -> Floats:
    """Rows of TTFT and TPOT in seconds from when each request was sent; NaN where there is none."""
    steps = np.where(schedule.output_tokens > 1, schedule.output_tokens - 1, np.nan)
    tpot = (outcome.last_token_s - outcome.first_token_s) / steps
    return np.stack([outcome.first_token_s - schedule.arrival_s, tpot])


def figures(schedule: Trace, outcome: Outcome, measure: NDArray[np.bool_]) -> Floats:
    """FIGURES of the requests in ``measure``, seconds from when they were sent."""
    ttft, tpot = _latencies(schedule, outcome)[:, measure]
    e2e = (outcome.last_token_s - schedule.arrival_s)[measure]
    wanted = ((ttft, 0.5), (ttft, 0.9), (tpot, 0.5), (e2e, 0.5))
    known = [(values[~np.isnan(values)], share) for values, share in wanted]
    return np.maximum([np.quantile(values, share) if len(values) else 0.0 for values, share in known], 1e-6)


# --- reading ---------------------------------------------------------------------------------------------------------

_REQUESTS = (
    "measurement_id", "replica", "phase", "sent_ns", "first_token_ns", "last_token_ns", "input_tokens",
    "input_tokens_asked", "output_tokens", "cached_tokens", "status",
)  # fmt: skip


def read_samples(uri: str, profile: Profile) -> list[FitSample]:
    """Every committed point at ``uri``, one sample per replica."""
    results = open_results(uri)
    deployments = {row.deployment_id: row for row in rows_of(results.read("deployments"), DeploymentRow)}
    requests = results.read("requests", _REQUESTS)
    requests = requests.filter(pc.equal(requests["status"], "ok"))
    samples = []
    for point in rows_of(results.read("points"), PointHead):
        deployment = deployments.get(point.deployment_id)
        rows = requests.filter(pc.equal(requests["measurement_id"], point.measurement_id))
        if deployment is None:
            continue
        for number in sorted(set(rows["replica"].to_pylist())):
            name = f"{deployment.label} {point.control}={point.level:g} {point.measurement_id[:8]} replica {number}"
            share = rows.filter(pc.equal(rows["replica"], number)).sort_by("sent_ns").slice(0, _MAX_REQUESTS)
            samples.append(_sample(name, deployment, point, share, profile))
    return samples


def _sample(name: str, deployment: DeploymentRow, point: PointHead, rows: pa.Table, profile: Profile) -> FitSample:
    settings = EngineSettings.model_validate(json.loads(deployment.settings_json))
    hardware = Hardware(name=deployment.hardware, accelerator=deployment.accelerator)
    own = profile if profile.accelerator or not hardware.is_cpu else profile.model_copy(update={"accelerator": "cpu"})
    sent_ns = _floats(rows["sent_ns"])
    schedule = Trace(
        arrival_s=(sent_ns - sent_ns[0]) / 1e9,
        prompt_tokens=_whole(pc.coalesce(rows["input_tokens"], rows["input_tokens_asked"])),
        output_tokens=_whole(rows["output_tokens"].fill_null(1)),
        cached_tokens=_whole(rows["cached_tokens"].fill_null(0)),
    )
    outcome = Outcome(
        scheduled_s=schedule.arrival_s,
        first_token_s=(_floats(rows["first_token_ns"]) - sent_ns[0]) / 1e9,
        last_token_s=(_floats(rows["last_token_ns"]) - sent_ns[0]) / 1e9,
        preemptions=np.zeros(rows.num_rows, np.int64),
    )
    measure = np.array([phase == "measure" for phase in rows["phase"].to_pylist()], np.bool_)
    closed = max(1, round(point.level / settings.replicas)) if point.control == "concurrency" else None
    return FitSample(
        name=name,
        settings=settings,
        facts=facts_of(own, settings),
        device=device_of(own, hardware),
        schedule=schedule,
        measure=measure if measure.any() else np.ones(rows.num_rows, np.bool_),
        concurrency=closed,
        outcome=outcome,
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    """Null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _whole(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)

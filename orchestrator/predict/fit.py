"""The model's constants from a sweep's own Parquet, and the error they leave.

Every measured point is simulated with its real requests (their send times in open loop, their order
in closed loop); the constants are those whose simulated TTFT and TPOT come closest to each
request's measured ones, as ratios.
"""

import itertools
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.optimize import least_squares

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.base.errors import InputError
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants, Profile, device_of, facts_of, resolved
from orchestrator.predict.simulate import RequestTimes, Trace, run, run_closed
from orchestrator.results.records import DeploymentRow, PointHead
from orchestrator.results.root import open_results
from orchestrator.results.schemas import rows_of
from orchestrator.spec.settings import EngineSettings, Hardware

Errors = dict[str, dict[str, float]]  # median errors by figure, of each of something
FIGURES = ("ttft_p50", "ttft_p90", "tpot_p50", "e2e_p50")
FITTED = (
    "compute_efficiency", "low_bit_efficiency", "expert_compute_efficiency", "bandwidth_efficiency",
    "expert_bandwidth_efficiency", "step_overhead_s", "sequence_overhead_s", "collective_latency_s",
    "network_latency_s", "request_overhead_s",
)  # fmt: skip
# Keeps constants near their start if the data do not show them: a factor of e weighs like an error
# of 2 %.
_PRIOR = 0.02
_TOLD = 0.25  # standard deviation, as a share, beyond which a constant is not told by the samples
_JITTERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
_CHANCE = 0.2  # |log| that a jitter of 1 must gain in the tail of TTFT: less is chance
_DESCRIBED = (
    "model",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "nnodes",
    "quantization",
)
_GROUPS = 4
_HELD_OUT_MIN = 4  # samples below which nothing is held out
_MAX_REQUESTS = 3000  # per sample; the first ones


@dataclass(frozen=True, slots=True)
class FitSample:
    """One replica's share of one measured point. Arrays have one entry per answered request, in the
    order sent.
    """

    name: str
    settings: EngineSettings
    facts: ModelFacts
    device: Accelerator
    schedule: Trace
    measure: Bools  # False: warm-up, simulated but not compared
    level: float
    concurrency: int | None  # closed loop: requests in flight on this replica
    outcome: RequestTimes  # measured


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibrated profile. Errors are medians over samples of |simulated / measured - 1|, by
    figure.

    ``spread``: how far each fitted constant may be off, as ``calibrate`` has it. ``held``:
    constants that these samples cannot tell apart from others; they are what is typical, and the
    rest holds together with them.
    """

    profile: Profile
    spread: dict[str, float]
    held: tuple[str, ...]
    error: dict[str, float]
    # of samples the constants were not fitted to; None: too few
    held_out_error: dict[str, float] | None
    by_sample: Errors
    by_field: dict[str, Errors]


def fit(uri: str, profile: Profile | None = None, engine: str | None = None) -> Fit:
    """Calibrate on the results at ``uri``. ``profile`` names what to imitate where that is not the
    sweep's own.

    All samples share one profile, so they must come from one engine (``engine`` chooses it) on one
    kind of device. Raises InputError when they do not, or when there is nothing to fit.
    """
    base = profile or Profile()
    answered, emulated = read_samples(uri, base)
    samples = [one for one in answered if engine is None or one.settings.engine == engine]
    if not samples:
        which = f" of {engine}" if engine else ""
        why = (
            f"; {emulated} points were answered by an emulator, which says nothing of an engine"
            if emulated
            else ""
        )
        raise InputError(
            f"no answered requests of any committed point{which} at {uri}{why}: nothing to fit"
        )
    devices, engines = (
        {one.device.name for one in samples},
        {one.settings.engine for one in samples},
    )
    for what, found in (("on", devices), ("with", engines)):
        if len(found) > 1:
            raise InputError(
                f"the deployments at {uri} ran {what} {', '.join(sorted(found))}: fit each on its "
                "own"
            )
    start = resolved(base.constants, samples[0].settings.engine, samples[0].device)
    constants, spread, held = calibrate(samples, start)
    by_sample = {sample.name: _errors(sample, constants) for sample in samples}
    error, held_out = _summary(by_sample), _held_out(samples, start)
    by_field = _by_field(samples, by_sample)
    origin = {
        "results": uri, "samples": len(samples), "emulated_points_left_out": emulated, "error": error,
        "held_out_error": held_out, "by_field": by_field, "spread": spread, "held": list(held),
    }  # fmt: skip
    named = base.accelerator or samples[0].device.name
    fitted = base.model_copy(
        update={"constants": constants, "accelerator": named, "fitted": origin}
    )
    return Fit(fitted, spread, held, error, held_out, by_sample, by_field)


def _by_field(samples: Sequence[FitSample], errors: Errors) -> dict[str, Errors]:
    """Median errors of the samples that share a value of a setting, or a level, in which the
    samples differ.
    """
    described = {
        one.name: {"level": one.level} | {name: getattr(one.settings, name) for name in _DESCRIBED}
        for one in samples
    }
    result: dict[str, Errors] = {}
    for field in ("level", *_DESCRIBED):
        groups: dict[str, Errors] = {}
        for name, values in described.items():
            groups.setdefault(str(values[field]), {})[name] = errors[name]
        if len(groups) > 1:
            result[field] = {value: _summary(group) for value, group in sorted(groups.items())}
    return result


def calibrate(
    samples: Sequence[FitSample], start: Constants
) -> tuple[Constants, dict[str, float], tuple[str, ...]]:
    """The constants with the smallest log-ratios of TTFT and TPOT over all requests; every sample
    weighs the same.

    With them how far each may be off (one standard deviation, as a share), and which were held
    where ``start`` has them: those that the fit is as good without. Constants that change nothing
    for any sample (of experts, where no model has any) stay as they are; ``jitter`` comes last: it
    would be noise before.
    """
    start = start.model_copy(update={"jitter": 0.0})
    names = [name for name in FITTED if any(_matters(one, start, name) for one in samples)]
    whole = search = _ConstantSearch(samples, start, names)
    corners = [
        whole.origin + np.log(_scales(names, *scales))
        for scales in itertools.product((1, 0.6), (1, 0.5), (2, 1, 0.3))
    ]
    best = whole.best(
        min(corners, key=lambda corner: np.sum(np.log1p((whole.residuals(corner) / 0.1) ** 2)))
    )
    while len(search.names) > 1 and (spread := search.spread(best)).max() > _TOLD:
        others = np.arange(len(spread)) != spread.argmax()
        fewer = _ConstantSearch(
            samples, start, [name for name, kept in zip(search.names, others, strict=True) if kept]
        )
        again = fewer.best(best[others])
        if fewer.noise(again) > max(_PRIOR, 1.1 * search.noise(best)):
            break  # it is told, if not well
        search, best = fewer, again
    found = search.at(best)
    spread = whole.spread(whole.position(found))
    held = tuple(name for name in names if name not in search.names)
    return (
        with_jitter(samples, found),
        dict(zip(names, spread.round(4).tolist(), strict=True)),
        held,
    )


class _ConstantSearch:
    """For the values of some constants, as logarithms, that come closest to what was measured."""

    def __init__(self, samples: Sequence[FitSample], start: Constants, names: list[str]) -> None:
        self._samples, self._start, self.names = samples, start, names
        self.origin = self.position(start)

    def position(self, constants: Constants) -> Floats:
        return np.log([max(getattr(constants, name), 1e-7) for name in self.names])

    def at(self, position: Floats) -> Constants:
        values = np.exp(np.clip(position, -18, 5)).tolist()
        return self._start.model_copy(update=dict(zip(self.names, values, strict=True)))

    def residuals(self, position: Floats) -> Floats:
        """Of each sample its groups' log-ratios, whose squares add up to their mean square; then of
        each constant.
        """
        ratios = [_log_ratios(sample, self.at(position)) for sample in self._samples]
        return np.concatenate([*ratios, _PRIOR * (position - self.origin)])

    def derivatives(self, position: Floats) -> Floats:
        """By wide steps: latencies jump by whole steps of the engine, and narrow ones would show
        the jumps.
        """
        here, steps = self.residuals(position), 0.2 * np.eye(len(position))
        return np.stack([(self.residuals(position + step) - here) / 0.2 for step in steps], axis=1)

    def best(self, near: Floats) -> Floats:
        """The nearest minimum."""
        limits = {"max_nfev": 80, "ftol": 3e-3, "xtol": 3e-3}
        best = least_squares(
            self.residuals, near, self.derivatives, loss="soft_l1", f_scale=0.1, **limits
        )
        return np.asarray(best.x)

    def noise(self, position: Floats) -> float:
        """Root mean square of the log-ratios that are left."""
        left = self.residuals(position)[: -len(position)]
        return float(np.sqrt(np.sum(left**2) / len(self._samples)))

    def spread(self, position: Floats) -> Floats:
        """Standard deviation of each logarithm, as far as the samples and where it started tell it;
        errors of less than ``_PRIOR`` are taken for that.
        """
        by = self.derivatives(position)
        return max(_PRIOR, self.noise(position)) * np.sqrt(np.diag(np.linalg.inv(by.T @ by)))


def with_jitter(samples: Sequence[FitSample], constants: Constants) -> Constants:
    """With the jitter that brings the 90th percentile of TTFT closest, where that is more than
    chance would.
    """
    tried = [constants.model_copy(update={"jitter": value}) for value in _JITTERS]
    return min(
        tried,
        key=lambda one: (
            np.mean([_tail_error(sample, one) for sample in samples]) + _CHANCE * one.jitter
        ),
    )


def _scales(names: list[str], efficiency: float, compute: float, overhead: float) -> list[float]:
    """Factors of another point to start from: with queues a search may end in a local minimum."""
    return [
        (efficiency * (compute if "compute" in name else 1.0))
        if name.endswith("efficiency")
        else overhead
        for name in names
    ]


def _matters(sample: FitSample, start: Constants, name: str) -> bool:
    halved = start.model_copy(update={name: max(getattr(start, name), 1e-7) / 2})
    one, other = (
        replica(sample.settings, sample.facts, sample.device, each) for each in (start, halved)
    )
    return one != other


def _tail_error(sample: FitSample, constants: Constants) -> float:
    """|log| of simulated over measured p90 of TTFT."""
    simulated, measured = (
        figures(trace, outcome, sample.measure)[FIGURES.index("ttft_p90")]
        for trace, outcome in (_simulated(sample, constants), (sample.schedule, sample.outcome))
    )
    return float(abs(np.log(simulated / measured)))


def _log_ratios(sample: FitSample, constants: Constants) -> Floats:
    """Mean log-ratio of TTFT and TPOT in groups of requests by prompt length.

    Means, because one request's latency jumps by whole steps when a constant moves a little;
    groups, because short and long prompts tell overheads from work.
    """
    measured = _latencies(sample.schedule, sample.outcome)[:, sample.measure]
    simulated = _latencies(*_simulated(sample, constants))[:, sample.measure]
    ratios = np.log(np.maximum(simulated, 1e-7) / np.maximum(measured, 1e-7))
    order = np.argsort(sample.schedule.prompt_tokens[sample.measure], kind="stable")
    groups = [ratios[:, group] for group in np.array_split(order, min(_GROUPS, len(order)))]
    with warnings.catch_warnings():
        # a group of one-token outputs has no TPOT: its mean is NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        means: Floats = np.concatenate([np.nanmean(group, axis=1) for group in groups])
    return np.nan_to_num(means, nan=0.0) / float(np.sqrt(len(means)))


def _held_out(samples: Sequence[FitSample], start: Constants) -> dict[str, float] | None:
    """Fit on every other sample, look at the rest, and the other way round."""
    if len(samples) < _HELD_OUT_MIN:
        return None
    errors: Errors = {}
    for fold in (0, 1):
        constants = calibrate(samples[fold::2], start)[0]
        errors |= {sample.name: _errors(sample, constants) for sample in samples[1 - fold :: 2]}
    return _summary(errors)


def _summary(errors: Errors) -> dict[str, float]:
    return {
        name: round(float(np.median([one[name] for one in errors.values()])), 4) for name in FIGURES
    }


def _errors(sample: FitSample, constants: Constants) -> dict[str, float]:
    simulated = figures(*_simulated(sample, constants), sample.measure)
    values = np.abs(simulated / figures(sample.schedule, sample.outcome, sample.measure) - 1)
    return {name: round(float(value), 4) for name, value in zip(FIGURES, values, strict=True)}


def _simulated(sample: FitSample, constants: Constants) -> tuple[Trace, RequestTimes]:
    model, schedule = (
        replica(sample.settings, sample.facts, sample.device, constants),
        sample.schedule,
    )
    if sample.concurrency is None:
        return schedule, run(model, schedule, ranks=sample.settings.data_parallel_size)
    return run_closed(
        *(model, schedule.prompt_tokens, schedule.output_tokens, sample.concurrency),
        ranks=sample.settings.data_parallel_size,
        cached=schedule.cached_tokens,
    )


def _latencies(schedule: Trace, outcome: RequestTimes) -> Floats:
    """Rows of TTFT and TPOT in seconds from when each request was sent; NaN where there is none."""
    steps = np.where(schedule.output_tokens > 1, schedule.output_tokens - 1, np.nan)
    tpot = (outcome.last_token_s - outcome.first_token_s) / steps
    return np.stack([outcome.first_token_s - schedule.arrival_s, tpot])


def figures(schedule: Trace, outcome: RequestTimes, measure: Bools) -> Floats:
    """FIGURES of the requests in ``measure``, seconds from when they were sent."""
    ttft, tpot = _latencies(schedule, outcome)[:, measure]
    e2e = (outcome.last_token_s - schedule.arrival_s)[measure]
    wanted = ((ttft, 0.5), (ttft, 0.9), (tpot, 0.5), (e2e, 0.5))
    known = [(values[~np.isnan(values)], share) for values, share in wanted]
    return np.maximum(
        [np.quantile(values, share) if len(values) else 0.0 for values, share in known], 1e-6
    )


# --- reading
# ---------------------------------------------------------------------------------------------------------

_REQUESTS = (
    "measurement_id", "replica", "phase", "sent_ns", "first_token_ns", "last_token_ns", "input_tokens",
    "input_tokens_asked", "output_tokens", "cached_tokens", "status",
)  # fmt: skip


def read_samples(uri: str, profile: Profile) -> tuple[list[FitSample], int]:
    """Every committed point at ``uri`` that an engine answered, one sample per replica; how many an
    emulator did.
    """
    results = open_results(uri)
    deployments = {
        row.deployment_id: row for row in rows_of(results.read("deployments"), DeploymentRow)
    }
    requests = results.read("requests", _REQUESTS)
    requests = requests.filter(pc.equal(requests["status"], "ok"))
    samples, emulated = [], 0
    for point in rows_of(results.read("points"), PointHead):
        deployment = deployments.get(point.deployment_id)
        rows = requests.filter(pc.equal(requests["measurement_id"], point.measurement_id))
        emulated += point.emulated
        # which replica answered is not known
        if deployment is None or point.emulated or deployment.router is not None:
            continue
        for number in sorted(set(rows["replica"].to_pylist())):
            name = (
                f"{deployment.label} {point.control}={point.level:g} "
                f"{point.measurement_id[:8]} replica {number}"
            )
            share = (
                rows.filter(pc.equal(rows["replica"], number))
                .sort_by("sent_ns")
                .slice(0, _MAX_REQUESTS)
            )
            samples.append(_sample(name, deployment, point, share, profile))
    return samples, emulated


def _sample(
    name: str, deployment: DeploymentRow, point: PointHead, rows: pa.Table, profile: Profile
) -> FitSample:
    settings = EngineSettings.model_validate(json.loads(deployment.settings_json))
    hardware = Hardware(name=deployment.hardware, accelerator=deployment.accelerator)
    own = (
        profile
        if profile.accelerator or not hardware.is_cpu
        else profile.model_copy(update={"accelerator": "cpu"})
    )
    sent_ns = _floats(rows["sent_ns"])
    schedule = Trace(
        arrival_s=(sent_ns - sent_ns[0]) / 1e9,
        prompt_tokens=_whole(pc.coalesce(rows["input_tokens"], rows["input_tokens_asked"])),
        output_tokens=_whole(rows["output_tokens"].fill_null(1)),
        cached_tokens=_whole(rows["cached_tokens"].fill_null(0)),
    )
    outcome = RequestTimes(
        scheduled_s=schedule.arrival_s,
        first_token_s=(_floats(rows["first_token_ns"]) - sent_ns[0]) / 1e9,
        last_token_s=(_floats(rows["last_token_ns"]) - sent_ns[0]) / 1e9,
        preemptions=np.zeros(rows.num_rows, np.int64),
    )
    measure = np.array([phase == "measure" for phase in rows["phase"].to_pylist()], np.bool_)
    closed = (
        max(1, round(point.level / settings.replicas)) if point.control == "concurrency" else None
    )
    return FitSample(
        name=name,
        settings=settings,
        facts=facts_of(own, settings),
        device=device_of(own, hardware),
        schedule=schedule,
        level=point.level,
        measure=measure if measure.any() else np.ones(rows.num_rows, np.bool_),
        concurrency=closed,
        outcome=outcome,
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    """Null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _whole(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)

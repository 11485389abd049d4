"""Fits the constants of the step model to the results of a sweep, and finds the error that is left.

Every measured point is simulated with its real requests (their send times in open loop, their order
in closed loop). The constants are those whose simulated TTFT and TPOT come closest, as ratios, to
what was measured.
"""

from __future__ import annotations

import itertools
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
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Constants, Profile, device_of, facts_of, resolved
from orchestrator.predict.simulate import RequestTimes, Trace, run, run_closed
from orchestrator.results.records import DeploymentRow, PointHead
from orchestrator.results.root import open_results
from orchestrator.results.schemas import rows_of
from orchestrator.results.stored_json import parsed_settings
from orchestrator.spec.settings import EngineSettings, Hardware

# name of a sample, or value of a setting -> median errors by figure
Errors = dict[str, dict[str, float]]
FIGURES = ("ttft_p50", "ttft_p90", "tpot_p50", "e2e_p50")
FITTED = (
    "compute_efficiency", "low_bit_efficiency", "expert_compute_efficiency", "bandwidth_efficiency",
    "expert_bandwidth_efficiency", "step_overhead_s", "sequence_overhead_s", "collective_latency_s",
    "network_latency_s", "request_overhead_s",
)  # fmt: skip
# Keeps constants that the data do not determine near their start: being off by a factor of e weighs
# as much as an error of 2 %.
_PRIOR = 0.02
# standard deviation, as a share, above which samples do not determine a constant
_UNDETERMINED = 0.25
# factor by which noise may grow without a constant for it to count as undetermined
_NOISE_GROWTH = 1.1
_LEAST = 1e-7  # the least value of constants and latencies, so that they have logarithms
_ERROR_SCALE = 0.1  # log-ratio beyond which a residual counts as an outlier
_STEP = 0.2  # difference in the logarithm of a constant over which derivatives are taken
_JITTERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
# by how much, in |log|, a jitter of 1 must bring the tail of TTFT closer: less may be chance
_CHANCE = 0.2
_DESCRIBED = (
    "model",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "nnodes",
    "quantization",
)
_GROUPS = 4
_HELD_OUT_MIN = 4  # with fewer samples than this, none is held out
_MAX_REQUESTS = 3000  # only so many requests of a sample are used, the first ones


@dataclass(frozen=True, slots=True)
class _Served:
    """Requests, and when each of them was served."""

    schedule: Trace
    times: RequestTimes


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
    times: RequestTimes  # measured

    @property
    def served(self) -> _Served:
        """The requests as they were measured."""
        return _Served(self.schedule, self.times)


@dataclass(frozen=True, slots=True)
class StoredSamples:
    """What a sweep offers to a fit. ``emulated_points``: how many points were left out because an
    emulator answered them, which says nothing of an engine.
    """

    samples: list[FitSample]
    emulated_points: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants that come closest to measurements.

    ``spread``: how far each fitted constant may be off (one standard deviation, as a share).
    ``undetermined``: constants that the samples cannot tell apart from others; they have their
    typical values, and the other constants are right together with these.
    """

    constants: Constants
    spread: dict[str, float]
    undetermined: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibrated profile. Errors are medians over samples of |simulated / measured - 1|, by
    figure; ``error_before``: with the constants that the fit began with.
    """

    profile: Profile
    calibration: Calibration
    error_before: dict[str, float]
    error: dict[str, float]
    # error of samples that the constants were not fitted to; None: there are too few samples
    held_out_error: dict[str, float] | None
    by_sample: Errors
    by_field: dict[str, Errors]  # by the setting, or ``level``, in which samples differ


def fit(
    uri: str,
    profile: Profile | None = None,
    engine: str | None = None,
    *,
    with_emulated: bool = False,
) -> Fit:
    """Calibrate on the results at ``uri``. ``profile``: what to imitate, if that is not what the
    sweep ran. ``with_emulated``: treat what emulators answered as measurements of an engine.

    All samples share one profile, so they must come from one engine (``engine`` chooses it) on one
    kind of device. Raises InputError when they do not, or when there is nothing to fit.
    """
    base = profile or Profile()
    stored = read_samples(uri, base, with_emulated=with_emulated)
    samples = [
        sample for sample in stored.samples if engine is None or sample.settings.engine == engine
    ]
    if not samples:
        raise InputError(_nothing_to_fit(uri, engine, stored.emulated_points))
    _check_alike(uri, "on", {sample.device.name for sample in samples})
    _check_alike(uri, "with", {sample.settings.engine for sample in samples})
    start = resolved(base.constants, samples[0].settings.engine, samples[0].device)
    calibration = calibrate(samples, start)
    by_sample = {sample.name: errors_of(sample, calibration.constants) for sample in samples}
    error_before = _summary({sample.name: errors_of(sample, start) for sample in samples})
    error = _summary(by_sample)
    held_out_error = _held_out_error(samples, start)
    by_field = _by_field(samples, by_sample)
    origin = {
        "results": uri,
        "engine": samples[0].settings.engine,
        "samples": len(samples),
        "emulated_points_left_out": stored.emulated_points,
        "error": error,
        "held_out_error": held_out_error,
        "by_field": by_field,
        "spread": calibration.spread,
        "held": list(calibration.undetermined),
    }
    fitted = base.model_copy(
        update={
            "constants": calibration.constants,
            "accelerator": base.accelerator or samples[0].device.name,
            "fitted": origin,
        }
    )
    return Fit(fitted, calibration, error_before, error, held_out_error, by_sample, by_field)


def _nothing_to_fit(uri: str, engine: str | None, emulated_points: int) -> str:
    points = "any committed point"
    if engine:
        points = f"{points} of {engine}"
    reason = ""
    if emulated_points:
        reason = (
            f"; {emulated_points} points were answered by an emulator, "
            "which says nothing of an engine"
        )
    return f"no answered requests of {points} at {uri}{reason}: nothing to fit"


def _check_alike(uri: str, preposition: str, names: set[str]) -> None:
    """Raises InputError if deployments ran on several devices, or with several engines."""
    if len(names) > 1:
        raise InputError(
            f"the deployments at {uri} ran {preposition} {', '.join(sorted(names))}: "
            "fit each on its own"
        )


def _by_field(samples: Sequence[FitSample], errors: Errors) -> dict[str, Errors]:
    """Setting in which the samples differ, or ``level`` -> its values -> median errors of the
    samples that have this value.
    """
    by_field: dict[str, Errors] = {}
    for field in ("level", *_DESCRIBED):
        groups: dict[str, Errors] = {}
        for sample in samples:
            value = sample.level if field == "level" else getattr(sample.settings, field)
            groups.setdefault(str(value), {})[sample.name] = errors[sample.name]
        if len(groups) > 1:
            by_field[field] = {value: _summary(group) for value, group in sorted(groups.items())}
    return by_field


def calibrate(samples: Sequence[FitSample], start: Constants) -> Calibration:
    """The constants that give the smallest log-ratios of TTFT and TPOT over all requests; every
    sample weighs the same.

    Constants without which the fit is as good stay where ``start`` has them. So do constants that
    change nothing for any sample (those of experts, if no model has any). ``jitter`` is fitted
    last, because it would be noise to the others.
    """
    start = start.model_copy(update={"jitter": 0.0})
    names = [name for name in FITTED if _matters(name, samples, start)]
    search = _ConstantSearch(samples, start, names)
    minimum = _Minimum(search, search.minimum(_best_corner(search)))
    determined = _without_undetermined(minimum)
    constants = determined.search.at(determined.position)
    spread = search.spread(search.position(constants))
    return Calibration(
        constants=with_jitter(samples, constants),
        spread=dict(zip(names, spread.round(4).tolist(), strict=True)),
        undetermined=tuple(name for name in names if name not in determined.search.names),
    )


def _without_undetermined(minimum: _Minimum) -> _Minimum:
    """The minimum of a search over only those constants that the samples determine. The least
    determined constant is left out first, as long as the others explain the samples without it.
    """
    while len(minimum.search.names) > 1:
        spread = minimum.search.spread(minimum.position)
        if spread.max() <= _UNDETERMINED:
            break
        least_determined = int(spread.argmax())
        search = minimum.search.without(minimum.search.names[least_determined])
        fewer = _Minimum(search, search.minimum(np.delete(minimum.position, least_determined)))
        if fewer.noise > max(_PRIOR, _NOISE_GROWTH * minimum.noise):
            break  # the samples determine it, if not well
        minimum = fewer
    return minimum


class _ConstantSearch:
    """Searches the values of some constants that come closest to the samples.

    A *position* has the logarithm of each of these constants, in the order of ``names``. The other
    constants are those of ``start``.
    """

    def __init__(self, samples: Sequence[FitSample], start: Constants, names: list[str]) -> None:
        self._samples = samples
        self._start = start
        self.names = names
        self.origin = self.position(start)

    def without(self, name: str) -> _ConstantSearch:
        """The search that leaves one constant where it started."""
        others = [other for other in self.names if other != name]
        return _ConstantSearch(self._samples, self._start, others)

    def position(self, constants: Constants) -> Floats:
        """Where these constants are."""
        return np.log([max(getattr(constants, name), _LEAST) for name in self.names])

    def at(self, position: Floats) -> Constants:
        """All constants at a position."""
        values = np.exp(np.clip(position, -18, 5)).tolist()
        return self._start.model_copy(update=dict(zip(self.names, values, strict=True)))

    def residuals(self, position: Floats) -> Floats:
        """What least squares minimizes: the log-ratios of every sample, scaled so that each sample
        weighs the same, and then how far each constant is from its start.
        """
        constants = self.at(position)
        ratios = [_log_ratios(sample, constants) for sample in self._samples]
        return np.concatenate([*ratios, _PRIOR * (position - self.origin)])

    def loss(self, position: Floats) -> float:
        """How far the simulation is off; outliers count by their logarithm."""
        return float(np.sum(np.log1p((self.residuals(position) / _ERROR_SCALE) ** 2)))

    def derivatives(self, position: Floats) -> Floats:
        """Derivatives of the residuals, over wide differences: latencies jump by whole steps of the
        engine, and narrow differences would show the jumps.
        """
        here = self.residuals(position)
        # each step changes one constant
        steps = _STEP * np.eye(len(position))
        columns = [(self.residuals(position + step) - here) / _STEP for step in steps]
        return np.stack(columns, axis=1)

    def minimum(self, near: Floats) -> Floats:
        """The position of the minimum that is nearest to ``near``."""
        limits = {"max_nfev": 80, "ftol": 3e-3, "xtol": 3e-3}
        best = least_squares(
            self.residuals,
            near,
            self.derivatives,
            loss="soft_l1",
            f_scale=_ERROR_SCALE,
            **limits,
        )
        return np.asarray(best.x)

    def noise(self, position: Floats) -> float:
        """Root mean square of the log-ratios that are left."""
        left = self.residuals(position)[: -len(position)]
        return float(np.sqrt(np.sum(left**2) / len(self._samples)))

    def spread(self, position: Floats) -> Floats:
        """Standard deviation of the logarithm of each constant, as the samples and the pull of its
        start determine it. Noise below ``_PRIOR`` counts as ``_PRIOR``.
        """
        slopes = self.derivatives(position)
        variances = np.diag(np.linalg.inv(slopes.T @ slopes))
        return max(_PRIOR, self.noise(position)) * np.sqrt(variances)


@dataclass(frozen=True, slots=True)
class _Minimum:
    """A search, and the position at which its constants come closest to the samples."""

    search: _ConstantSearch
    position: Floats

    @property
    def noise(self) -> float:
        return self.search.noise(self.position)


def _best_corner(search: _ConstantSearch) -> Floats:
    """The best of several positions to start from: where requests queue, a search may end in a
    local minimum.
    """
    corners: list[Floats] = []
    for efficiency, compute, overhead in itertools.product((1, 0.6), (1, 0.5), (2, 1, 0.3)):
        scales = [_scale(name, efficiency, compute, overhead) for name in search.names]
        corners.append(search.origin + np.log(scales))
    return min(corners, key=search.loss)


def _scale(name: str, efficiency: float, compute: float, overhead: float) -> float:
    """The factor of one constant at a corner. All efficiencies are scaled by ``efficiency``, those
    of computing by ``compute`` too, and the other constants by ``overhead``.
    """
    if not name.endswith("efficiency"):
        return overhead
    return efficiency * compute if "compute" in name else efficiency


def with_jitter(samples: Sequence[FitSample], constants: Constants) -> Constants:
    """The constants with the jitter that brings the 90th percentile of TTFT closest to what was
    measured, unless chance would bring it as close.
    """

    def error(candidate: Constants) -> float:
        tails = [tail_error(sample, candidate) for sample in samples]
        return float(np.mean(tails)) + _CHANCE * candidate.jitter

    candidates = [constants.model_copy(update={"jitter": jitter}) for jitter in _JITTERS]
    return min(candidates, key=error)


def _matters(name: str, samples: Sequence[FitSample], start: Constants) -> bool:
    """Whether the step model of any sample depends on a constant."""
    halved = start.model_copy(update={name: max(getattr(start, name), _LEAST) / 2})
    return any(_model(sample, start) != _model(sample, halved) for sample in samples)


def _model(sample: FitSample, constants: Constants) -> Replica:
    return replica(sample.settings, sample.facts, sample.device, constants)


def tail_error(sample: FitSample, constants: Constants) -> float:
    """|log| of simulated over measured p90 of TTFT."""
    p90 = FIGURES.index("ttft_p90")
    simulated = _simulated_figures(sample, constants)[p90]
    measured = _measured_figures(sample)[p90]
    return float(abs(np.log(simulated / measured)))


def _log_ratios(sample: FitSample, constants: Constants) -> Floats:
    """Mean log-ratio of TTFT and TPOT in groups of requests by prompt length.

    Means are taken because the latency of one request jumps by whole steps when a constant moves a
    little. Groups are formed because short and long prompts together tell overheads from work.
    """
    measured = _latencies(sample.served)[:, sample.measure]
    simulated = _latencies(_simulated(sample, constants))[:, sample.measure]
    ratios = np.log(np.maximum(simulated, _LEAST) / np.maximum(measured, _LEAST))
    order = np.argsort(sample.schedule.prompt_tokens[sample.measure], kind="stable")
    groups = [ratios[:, group] for group in np.array_split(order, min(_GROUPS, len(order)))]
    with warnings.catch_warnings():
        # a group of one-token outputs has no TPOT: its mean is NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        means: Floats = np.concatenate([np.nanmean(group, axis=1) for group in groups])
    return np.nan_to_num(means, nan=0.0) / float(np.sqrt(len(means)))


def _held_out_error(samples: Sequence[FitSample], start: Constants) -> dict[str, float] | None:
    """Errors of samples that the constants were not fitted to: one half of the samples is fitted
    and the other half judged, then the other way round. None if there are too few samples.
    """
    if len(samples) < _HELD_OUT_MIN:
        return None
    errors: Errors = {}
    for fold in (0, 1):
        constants = calibrate(samples[fold::2], start).constants
        errors |= {sample.name: errors_of(sample, constants) for sample in samples[1 - fold :: 2]}
    return _summary(errors)


def _summary(errors: Errors) -> dict[str, float]:
    """The medians of these errors, by figure."""
    medians: dict[str, float] = {}
    for name in FIGURES:
        median = np.median([of_sample[name] for of_sample in errors.values()])
        medians[name] = round(float(median), 4)
    return medians


def errors_of(sample: FitSample, constants: Constants) -> dict[str, float]:
    """|simulated / measured - 1| of a sample, by figure."""
    simulated = _simulated_figures(sample, constants)
    errors = np.abs(simulated / _measured_figures(sample) - 1)
    return {name: round(float(error), 4) for name, error in zip(FIGURES, errors, strict=True)}


def _simulated_figures(sample: FitSample, constants: Constants) -> Floats:
    """FIGURES of a sample's requests as the model would serve them."""
    served = _simulated(sample, constants)
    return figures(served.schedule, served.times, sample.measure)


def _measured_figures(sample: FitSample) -> Floats:
    """FIGURES of a sample's requests as they were measured."""
    return figures(sample.schedule, sample.times, sample.measure)


def _simulated(sample: FitSample, constants: Constants) -> _Served:
    """A sample's requests as the model would serve them. In closed loop they arrive when the
    simulation sends them.
    """
    model = _model(sample, constants)
    schedule = sample.schedule
    ranks = sample.settings.data_parallel_size
    if sample.concurrency is None:
        return _Served(schedule, run(model, schedule, ranks))
    closed = run_closed(
        model,
        schedule.prompt_tokens,
        schedule.output_tokens,
        sample.concurrency,
        ranks,
        schedule.cached_tokens,
    )
    return _Served(closed.trace, closed.times)


def _latencies(served: _Served) -> Floats:
    """A row of TTFT and a row of TPOT, in seconds; NaN for the TPOT of an answer of one token."""
    schedule = served.schedule
    times = served.times
    steps = np.where(schedule.output_tokens > 1, schedule.output_tokens - 1, np.nan)
    tpot = (times.last_token_s - times.first_token_s) / steps
    return np.stack([times.first_token_s - schedule.arrival_s, tpot])


def figures(schedule: Trace, times: RequestTimes, measure: Bools) -> Floats:
    """FIGURES of the requests in ``measure``, in seconds since they were sent; at least 1e-6."""
    ttft, tpot = _latencies(_Served(schedule, times))[:, measure]
    e2e = (times.last_token_s - schedule.arrival_s)[measure]
    values = [
        _quantile(ttft, 0.5),
        _quantile(ttft, 0.9),
        _quantile(tpot, 0.5),
        _quantile(e2e, 0.5),
    ]
    return np.maximum(values, 1e-6)


def _quantile(seconds: Floats, share: float) -> float:
    """A quantile of the values that are not NaN; 0 if all are."""
    present = seconds[~np.isnan(seconds)]
    return float(np.quantile(present, share)) if len(present) else 0.0


_REQUESTS = (
    "measurement_id", "replica", "phase", "sent_ns", "first_token_ns", "last_token_ns", "input_tokens",
    "input_tokens_asked", "output_tokens", "cached_tokens", "status",
)  # fmt: skip


def read_samples(uri: str, profile: Profile, *, with_emulated: bool = False) -> StoredSamples:
    """One sample for each replica of every committed point at ``uri`` that an engine answered.
    Simulated points are left out, because they are not measurements.
    """
    results = open_results(uri)
    deployments = {
        row.deployment_id: row for row in rows_of(results.read("deployments"), DeploymentRow)
    }
    requests = results.read("requests", _REQUESTS)
    requests = requests.filter(pc.equal(requests["status"], "ok"))
    samples: list[FitSample] = []
    emulated_points = 0
    for point in rows_of(results.read("points"), PointHead):
        if point.simulated:
            continue
        if point.emulated and not with_emulated:
            emulated_points += 1
            continue
        deployment = deployments.get(point.deployment_id)
        # behind a router it is not known which replica answered
        if deployment is None or deployment.router is not None:
            continue
        rows = requests.filter(pc.equal(requests["measurement_id"], point.measurement_id))
        for replica_index in sorted(set(rows["replica"].to_pylist())):
            of_replica = rows.filter(pc.equal(rows["replica"], replica_index)).sort_by("sent_ns")
            name = (
                f"{deployment.label} {point.control}={point.level:g} "
                f"{point.measurement_id[:8]} replica {replica_index}"
            )
            first_requests = of_replica.slice(0, _MAX_REQUESTS)
            samples.append(_sample(name, deployment, point, first_requests, profile))
    return StoredSamples(samples, emulated_points)


def _sample(
    name: str, deployment: DeploymentRow, point: PointHead, rows: pa.Table, profile: Profile
) -> FitSample:
    """The sample of one replica. ``rows``: its answered requests, in the order sent."""
    settings = EngineSettings.model_validate(parsed_settings(deployment.settings_json))
    hardware = Hardware(name=deployment.hardware, accelerator=deployment.accelerator)
    if hardware.is_cpu and not profile.accelerator:
        profile = profile.model_copy(update={"accelerator": "cpu"})
    sent_ns = _floats(rows["sent_ns"])
    schedule = Trace(
        arrival_s=(sent_ns - sent_ns[0]) / 1e9,
        prompt_tokens=_ints(pc.coalesce(rows["input_tokens"], rows["input_tokens_asked"])),
        output_tokens=_ints(rows["output_tokens"].fill_null(1)),
        cached_tokens=_ints(rows["cached_tokens"].fill_null(0)),
    )
    times = RequestTimes(
        scheduled_s=schedule.arrival_s,
        first_token_s=(_floats(rows["first_token_ns"]) - sent_ns[0]) / 1e9,
        last_token_s=(_floats(rows["last_token_ns"]) - sent_ns[0]) / 1e9,
        preemptions=np.zeros(rows.num_rows, np.int64),
    )
    measure = np.array([phase == "measure" for phase in rows["phase"].to_pylist()], np.bool_)
    if not measure.any():
        measure = np.ones(rows.num_rows, np.bool_)
    concurrency = None
    if point.control == "concurrency":
        concurrency = max(1, round(point.level / settings.replicas))
    return FitSample(
        name=name,
        settings=settings,
        facts=facts_of(profile, settings),
        device=device_of(profile, hardware),
        schedule=schedule,
        level=point.level,
        measure=measure,
        concurrency=concurrency,
        times=times,
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    """The column as floats; null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)

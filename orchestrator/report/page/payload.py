"""What the page needs to judge again: each stored request in three bytes, and where it belongs.

The records are written as JSON under the names of their fields; ``judge.js`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson

from orchestrator.analysis.attempt_summary import AttemptIds
from orchestrator.analysis.deployments import StoredDeployment, compared_model
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.intervals import Interval, batches_of, student_t
from orchestrator.analysis.metrics import BACKLOG, BROKEN
from orchestrator.analysis.output_agreement import disagreement
from orchestrator.analysis.points import Repeat, StoredPoint, deciding_test
from orchestrator.analysis.request_values import stored_limit_values
from orchestrator.analysis.slo import LimitValues, format_slo
from orchestrator.analysis.throughput import BATCHES
from orchestrator.base.arrays import Floats, Ints
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.answers import Excluded, Exclusion, Group, level_of
from orchestrator.capacity.best import Comparison, group_of
from orchestrator.capacity.capacities import per_or_default, reason_to_exclude
from orchestrator.catalog.work import StepWork
from orchestrator.report.answer_table import if_slower_text
from orchestrator.report.page.packing import json_line, packed, packed_bins
from orchestrator.report.page.stops import BEYOND, Bins, bins_of, stops_for
from orchestrator.report.selection import JudgedExperiment
from orchestrator.report.words import (
    exclusion_text,
    level_text,
    ranked_load_text,
    ranked_mark,
    short_model_text,
)
from orchestrator.results.records import Figures
from orchestrator.spec.load import Limit, Slo

MOST_REQUESTS = 20_000_000  # which take about 50 MB of page, and a second for each judgement
LATENCIES = ("ttft", "tpot", "e2e")  # latencies whose limits the page can move
CENTRED = ("tpot", "e2e")  # latencies by which a repeat's requests are not sorted


@dataclass(frozen=True, slots=True)
class PageRepeat:
    """One repeat that counts.

    ``start``: the number of the engine start on which it ran. ``first``: where its requests begin
    in the bins. ``centres``: see ``BinnedAttempt``. ``parts``: for each part of the group, how many
    of its requests each batch has; empty where the workload is no mix. ``tokens``, ``seconds``: of
    each batch of its window, the output tokens and the length.
    """

    start: int
    first: int
    centres: dict[str, int]
    requests: int
    parts: list[list[int]]
    tokens: list[float]
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class PagePoint:
    """One load level of one deployment.

    ``deployment``: the number of its deployment in the group. ``excluded``: why the point cannot
    hold any limits; None: it can. ``too_much``: the level is shown to fail under any limits.
    ``ended_early``: a search ended the probe because it failed the limits of the file.
    ``power_w``: the mean power of its GPUs together; None: it is not known. ``part_figures``: the
    latencies among ``figures`` of each part of a mix alone.
    """

    point_id: str
    deployment: int
    control: str
    level: float
    load: str
    validity: str
    excluded: str | None
    too_much: bool
    ended_early: bool
    reasons: list[str]
    power_w: float | None
    figures: dict[str, float | None]
    part_figures: dict[str, dict[str, float | None]]
    repeats: list[PageRepeat]


@dataclass(frozen=True, slots=True)
class PageModelError:
    """The factors of simulated latencies within which nine in ten measurements lie."""

    ttft: float
    others: float


@dataclass(frozen=True, slots=True)
class PagePeaks:
    """The peaks of one device, in B/s and FLOP/s."""

    device: str
    compute_type: str
    bandwidth_bytes_s: float
    flops_s: float


@dataclass(frozen=True, slots=True)
class PageDeployment:
    """One deployment of a group.

    ``model_error``: None: it was measured, or it is unknown. ``peaks``: None: not known.
    ``predicted_capacity``: output tokens/s; 0: not predicted.
    """

    label: str
    devices: int
    usd_per_hour: float | None
    settings: dict[str, object]
    model_error: PageModelError | None
    peaks: PagePeaks | None
    predicted_capacity: float


@dataclass(frozen=True, slots=True)
class PageRanked:
    """A deployment as ``best`` ranks it where the page cannot.

    It is ranked by the claim or the estimate of its search, or under limits that the page does not
    judge. ``place``: in the ranking, from 0. ``deployment``: its number in the group. ``point_id``:
    of the probe from which its figures come. ``load``: the load that is claimed or estimated, and
    ``mark`` what stands beside it. ``throughput``: in the unit of the group. ``part``: the part of a
    mix whose attainment it is; None: it is that of all requests. ``may_hold``: see
    ``if_slower_text``.
    """

    place: int
    deployment: int
    point_id: str
    load: str
    mark: str
    throughput: Interval
    attainment: Interval
    part: str | None
    may_hold: str


@dataclass(frozen=True, slots=True)
class PagePartLimits:
    """The limits of an SLO on the requests of one part of a mix; the fields as in ``PageLimits``."""

    attainment: float
    stops: dict[str, int]


@dataclass(frozen=True, slots=True)
class PageLimits:
    """An SLO of the file, as far as the page can move it.

    ``stops``: by latency, the number of the limit's stop. ``parts``: by part of a mix, where the
    limits are on parts; empty: they are on all requests. ``fixed``: limits that the page cannot
    judge. ``disagreeing``: numbers of the deployments whose outputs differ too much from the
    reference's to be ranked. ``ranking``: the ranking under exactly these limits; set where the
    workload was searched or limits are ``fixed``.
    """

    name: str
    text: str
    attainment: float
    stops: dict[str, int]
    parts: dict[str, PagePartLimits]
    fixed: list[str]
    disagreeing: list[int]
    ranking: list[PageRanked]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """A group of points that has a tab of its own.

    ``ranked_with``: the experiment, or the runs of ``load``, with which it is ranked. ``model``:
    the key that its checkpoints share. ``content``: what its requests were, where there is no plan
    to say it. ``per``: what throughputs are divided by at first. ``device``: the word for the
    devices of a deployment, ``GPU`` or ``core``. ``searched``: a search chose its levels.
    ``parts``: the names of the parts of a mix; empty for other workloads.
    """

    experiment: str
    ranked_with: str
    workload: str
    model: str
    model_name: str
    hardware: str
    emulated: bool
    simulated: bool
    source: str  # the other tool that measured its points; empty: this program did
    content: str
    per: str
    device: str
    searched: bool
    parts: list[str]
    slos: list[PageLimits]
    deployments: list[PageDeployment]
    points: list[PagePoint]


@dataclass(frozen=True, slots=True)
class PageMissing:
    """A level that is planned and not measured yet. Its group may have no points."""

    experiment: str
    workload: str
    model: str
    hardware: str
    emulated: bool
    simulated: bool
    source: str
    label: str
    control: str
    level: float
    load: str


@dataclass(frozen=True, slots=True)
class BinnedAttempt:
    """Where the requests of an attempt are in the bins. ``first``: the number of its first request.

    ``centres``: by latency (TPOT and E2E), what was subtracted from its bins, modulo 256. The bins
    of all attempts then lie around 0, so that one short code fits all of them. ``parts``: by name
    of a part of the mix, how many of its requests each batch has.
    """

    first: int
    requests: int
    centres: dict[str, int]
    parts: dict[str, list[int]]


class RequestBins:
    """The requests of attempts as bins, one attempt after the other, in the order of adding.

    Within each batch, the requests of a mix are sorted by their parts. So it is enough to store how
    many requests of each part a batch has (``BinnedAttempt.parts``) to know the part of every
    request.
    """

    def __init__(self, stops: Mapping[str, Floats]) -> None:
        """``stops``: by latency, in seconds."""
        self.stops = stops
        self.requests = 0
        self._attempts: dict[AttemptIds, BinnedAttempt] = {}
        self._planes: dict[str, list[Bins]] = {name: [] for name in LATENCIES}

    def __len__(self) -> int:
        """How many attempts there are."""
        return len(self._attempts)

    def __contains__(self, ids: object) -> bool:
        return ids in self._attempts

    def __getitem__(self, ids: AttemptIds) -> BinnedAttempt:
        return self._attempts[ids]

    def add(self, ids: AttemptIds, latencies: LimitValues) -> None:
        """Adds the requests of an attempt behind those that are there."""
        planes = {
            name: bins_of(latencies.seconds[name], latencies.ok, self.stops[name])
            for name in LATENCIES
        }
        order = order_within_batches(planes["ttft"], _part_batches(latencies))
        self._planes["ttft"].append(differences_within_batches(planes["ttft"][order]))
        centres = {name: _centre(planes[name]) for name in CENTRED}
        for name, centre in centres.items():
            self._planes[name].append(planes[name][order] - np.uint8(centre))
        self._attempts[ids] = BinnedAttempt(
            self.requests, int(order.size), centres, _counts_of_parts(latencies)
        )
        self.requests += int(order.size)

    def copy(self) -> RequestBins:
        """A copy to which attempts can be added without changing this one; arrays are shared."""
        copied = RequestBins(self.stops)
        copied.requests = self.requests
        copied._attempts = dict(self._attempts)
        copied._planes = {name: list(planes) for name, planes in self._planes.items()}
        return copied

    def encoded(self, after: int = 0) -> bytes:
        """The planes of the three latencies, one after the other.

        ``after``: how many attempts at the beginning are left out.
        """
        planes: list[Bins] = []
        for name in LATENCIES:
            planes += self._planes[name][after:]
        return np.concatenate(planes).tobytes() if planes else b""


@dataclass(frozen=True, slots=True)
class Payload:
    """All that the page judges.

    ``stops``: by latency, in seconds. ``student_t``: by degrees of freedom, half the width of an
    interval in standard errors.
    """

    groups: list[PageGroup]
    missing: list[PageMissing]
    stops: dict[str, list[float]]
    student_t: list[float]
    bins: RequestBins

    @property
    def requests(self) -> int:
        return self.bins.requests

    def lines(self) -> Iterator[str]:
        """Everything but the bins, one JSON record per line.

        A group comes before its deployments and its points.
        """
        yield json_line({"head": {"stops": self.stops, "student_t": self.student_t}})
        for missing in self.missing:
            yield json_line({"missing": missing})
        for group in self.groups:
            yield json_line({"group": replace(group, deployments=[], points=[])})
            for deployment in group.deployments:
                yield json_line({"deployment": deployment})
            for point in group.points:
                yield json_line({"point": point})

    def encoded(self) -> dict[str, str]:
        """Everything as texts that may stand in a page: compressed, in base64."""
        described = {
            "groups": self.groups,
            "missing": self.missing,
            "stops": self.stops,
            "student_t": self.student_t,
        }
        return {
            "described": packed(orjson.dumps(described)),
            "bins": packed_bins(self.bins.encoded()),
        }


def payload_of(
    experiments: Sequence[JudgedExperiment],
    comparisons: Sequence[Comparison] = (),
    earlier: RequestBins | None = None,
) -> Payload:
    """Everything that the page judges.

    ``experiments``: with their points, judged by their own SLOs. ``comparisons``: the rankings of
    these experiments. ``earlier``: see ``_bins_of``. Raises InputError for more than MOST_REQUESTS.
    """
    _check_requests(experiments)
    bins = _bins_of(experiments, earlier)
    groups: list[PageGroup] = []
    missing: list[PageMissing] = []
    for judged in experiments:
        groups += _groups(judged, comparisons, bins)
        missing += _missing(judged)
    most_batches = max((_most_batches(group) for group in groups), default=1)
    return Payload(
        groups=groups,
        missing=missing,
        stops={name: values.tolist() for name, values in bins.stops.items()},
        student_t=[student_t(freedom) for freedom in range(most_batches + 1)],
        bins=bins,
    )


def _check_requests(experiments: Sequence[JudgedExperiment]) -> None:
    """Raises InputError for more than MOST_REQUESTS."""
    requests = 0
    for judged in experiments:
        requests += sum(repeat.requests.scheduled for repeat in _used_repeats(judged))
    if requests > MOST_REQUESTS:
        raise InputError(
            f"{requests:,} requests are too many for one page (at most {MOST_REQUESTS:,}):"
            " choose one experiment with --experiment"
        )


def _bins_of(experiments: Sequence[JudgedExperiment], earlier: RequestBins | None) -> RequestBins:
    """The requests of all attempts that count.

    ``earlier``: bins that have some of the attempts. The others are added to a copy of it, unless a
    limit is not among its stops: then all attempts are binned anew.
    """
    needed_stops = {name: _needed_stops(name, experiments) for name in LATENCIES}
    if earlier is not None and not _has_stops(earlier.stops, needed_stops):
        earlier = None
    latencies: dict[AttemptIds, LimitValues] = {}
    for judged in experiments:
        attempts = [repeat.head.ids for repeat in _used_repeats(judged)]
        unread = [ids for ids in attempts if earlier is None or ids not in earlier]
        latencies |= stored_limit_values(judged.experiment.store, unread, LATENCIES)
    if earlier is not None:
        bins = earlier.copy()
    else:
        bins = RequestBins(_stops(list(latencies.values()), needed_stops))
    for ids, values in latencies.items():
        bins.add(ids, values)
    return bins


def _used_repeats(judged: JudgedExperiment) -> list[Repeat]:
    """The repeats of an experiment's points that count."""
    repeats: list[Repeat] = []
    for point in judged.points.current:
        repeats += point.used_repeats
    return repeats


def _stops(
    latencies: Sequence[LimitValues], needed: Mapping[str, set[float]]
) -> Mapping[str, Floats]:
    """The stops of each latency, in seconds, chosen so that they suit the requests.

    ``needed``: stops that must be among them.
    """
    stops = {}
    for name in LATENCIES:
        values = [of_attempt.seconds[name][of_attempt.ok] for of_attempt in latencies]
        all_values = np.concatenate(values) if values else np.zeros(0)
        stops[name] = stops_for(all_values, needed[name])
    return stops


def _has_stops(stops: Mapping[str, Floats], needed: Mapping[str, set[float]]) -> bool:
    """Whether all needed stops of all latencies are among these."""
    return all(needed[name] <= set(stops[name].tolist()) for name in LATENCIES)


def _needed_stops(latency: str, experiments: Sequence[JudgedExperiment]) -> set[float]:
    """The stops at which the page must be able to judge one latency, in seconds.

    They are the limits of the files. For simulated points, whose latencies may be off by a known
    factor, they are also each limit multiplied and divided by this factor.
    """
    stops_s: set[float] = set()
    for judged in experiments:
        limits_s = _limits_s(latency, judged.slos)
        stops_s.update(limits_s)
        for error in {point.model_error for point in judged.points.current}:
            if error is not None:
                factor = error.ttft if latency == "ttft" else error.tpot
                stops_s.update(limit_s / factor for limit_s in limits_s)
                stops_s.update(limit_s * factor for limit_s in limits_s)
    return stops_s


def _is_movable(limit: Limit) -> bool:
    """Whether the page can move a limit: it judges each request by itself."""
    return limit.of in LATENCIES and limit.share is None


def _limits_s(latency: str, slos: Sequence[Slo]) -> list[float]:
    """The limits of requests, or of those of a part, on one latency, in seconds."""
    limits_s: list[float] = []
    for slo in slos:
        for limit in slo.limits:
            if limit.of == latency and _is_movable(limit):
                limits_s.append(limit.seconds)
    return limits_s


def _groups(
    judged: JudgedExperiment, comparisons: Sequence[Comparison], bins: RequestBins
) -> Iterator[PageGroup]:
    """The groups of an experiment. Points without a plan whose requests were not the same are in
    different groups.
    """
    for content, points in judged.experiment.alike(judged.points).items():
        points_by_group = values_by_key((group_of(point), point) for point in points)
        for group in sorted(points_by_group):
            rankings = [
                comparison
                for comparison in comparisons
                if group in comparison.groups and comparison.content == content
            ]
            yield _group(group, content, points_by_group[group], judged, rankings, bins)


def _missing(judged: JudgedExperiment) -> Iterator[PageMissing]:
    for missing in judged.experiment.missing(judged.points):
        group = missing.group
        level = missing.level
        yield PageMissing(
            experiment=group.experiment,
            workload=group.workload,
            model=group.model,
            hardware=group.hardware,
            emulated=group.emulated,
            simulated=group.simulated,
            source=group.source,
            label=missing.label,
            control=level.control,
            level=level.value,
            load=level_text(level),
        )


def _most_batches(group: PageGroup) -> int:
    """The most batches that the repeats of one point have together."""
    return max((BATCHES * len(point.repeats) for point in group.points), default=1)


def _group(
    group: Group,
    content: str,
    points: Sequence[StoredPoint],
    judged: JudgedExperiment,
    rankings: Sequence[Comparison],
    bins: RequestBins,
) -> PageGroup:
    """Makes a group. ``rankings``: those in which it takes part, one per SLO that was answered."""
    experiment = judged.experiment
    # one point of each deployment, which tells what there is to say of the deployment
    point_by_deployment = {point.head.deployment_id: point for point in points}
    numbers = _numbers(point_by_deployment)
    if rankings:
        per = rankings[0].per
        ranked_with = rankings[0].experiment
    else:
        deployments = [point.deployment for point in point_by_deployment.values()]
        per = per_or_default(experiment.objective, deployments)
        ranked_with = group.experiment
    accelerators = {point.deployment.accelerator for point in points}
    model = compared_model([point.deployment for point in points])
    parts = _parts_of(points, bins)
    limits = []
    for slo in judged.slos:
        ranking = next((ranking for ranking in rankings if ranking.slo == slo), None)
        limits.append(_limits(slo, ranking, point_by_deployment, parts, bins.stops))
    return PageGroup(
        experiment=group.experiment,
        ranked_with=ranked_with,
        workload=group.workload,
        model=group.model,
        model_name=short_model_text(model),
        hardware=group.hardware,
        emulated=group.emulated,
        simulated=group.simulated,
        source=group.source,
        content=content,
        per=per,
        device="core" if accelerators == {"cpu"} else "GPU",
        searched=group.workload in experiment.searched,
        parts=parts,
        slos=limits,
        deployments=[_deployment(point) for point in point_by_deployment.values()],
        points=[_point(point, numbers[point.head.deployment_id], parts, bins) for point in points],
    )


def _numbers(deployment_ids: Iterable[str]) -> dict[str, int]:
    """The number of each deployment in its group, by its id."""
    return {deployment_id: number for number, deployment_id in enumerate(deployment_ids)}


def _parts_of(points: Sequence[StoredPoint], bins: RequestBins) -> list[str]:
    """The parts of the mix that the requests of these points are of, in the order of their names."""
    names: set[str] = set()
    for point in points:
        for repeat in point.used_repeats:
            names.update(bins[repeat.head.ids].parts)
    return sorted(names)


def _limits(
    slo: Slo,
    ranking: Comparison | None,
    point_by_deployment: Mapping[str, StoredPoint],
    parts: Sequence[str],
    stops_by_latency: Mapping[str, Floats],
) -> PageLimits:
    """Makes the record of an SLO. ``ranking``: the ranking under this SLO.

    ``point_by_deployment``: by id, one point of each deployment of the group, in the order of their
    numbers. ``parts``: those of the group's mix. Limits on other parts cannot be moved: no request
    is of them.
    """
    stops: dict[str, int] = {}
    limits_by_part: dict[str, PagePartLimits] = {}
    fixed: list[str] = []
    for group in slo.groups:
        if group.part is not None and group.part not in parts:
            fixed += [limit.name for limit in group.limits]
            continue
        stops_of_group: dict[str, int] = {}
        for limit in group.limits:
            if _is_movable(limit):
                stops_of_latency = stops_by_latency[limit.of]
                stops_of_group[limit.of] = int(np.searchsorted(stops_of_latency, limit.seconds))
            else:
                fixed.append(limit.name)
        if group.part is None:
            stops |= stops_of_group
        else:
            limits_by_part[group.part] = PagePartLimits(group.attainment, stops_of_group)
    disagreeing = []
    if slo.agreement is not None:
        for number, point in enumerate(point_by_deployment.values()):
            if disagreement(point.agreement, slo.agreement) is not None:
                disagreeing.append(number)
    ranked: list[PageRanked] = []
    if ranking is not None:
        ranked += _ranked(ranking, _numbers(point_by_deployment), bool(fixed))
    return PageLimits(
        name=slo.name,
        text=format_slo(slo),
        attainment=slo.attainment,
        stops=stops,
        parts=limits_by_part,
        fixed=fixed,
        disagreeing=disagreeing,
        ranking=ranked,
    )


def _ranked(
    ranking: Comparison, numbers: Mapping[str, int], has_fixed: bool
) -> Iterator[PageRanked]:
    """The deployments of a group that are ranked by what the page cannot judge.

    ``numbers``: those of the group's deployments, by their ids. ``has_fixed``: the ranking is under
    limits that the page cannot move.
    """
    for place, ranked in enumerate(ranking.ranking):
        number = numbers.get(ranked.point.head.deployment_id)
        if number is not None and (has_fixed or ranked.capacity is not None):
            test = deciding_test(ranked.point.tests)
            yield PageRanked(
                place=place,
                deployment=number,
                point_id=ranked.point.head.point_id,
                load=ranked_load_text(ranked),
                mark=ranked_mark(ranked),
                throughput=ranked.throughput,
                attainment=ranked.attainment,
                part=test.part if test is not None else None,
                may_hold=if_slower_text(ranked),
            )


def _point(
    point: StoredPoint, deployment: int, parts: Sequence[str], bins: RequestBins
) -> PagePoint:
    """The record of one point. ``deployment``: its number. ``parts``: those of the group's mix."""
    reason = reason_to_exclude(point)
    excluded = None
    # NO_REQUESTS and ONLY_FIGURES mean that there is no attainment under the limits of the file, if
    # it has any. What the page judges under its own limits, it finds out by itself.
    if reason not in (None, Exclusion.NO_REQUESTS, Exclusion.ONLY_FIGURES):
        excluded = exclusion_text(Excluded(point.deployment, reason, point, point))
    figures = point.figures
    return PagePoint(
        point_id=point.head.point_id,
        deployment=deployment,
        control=point.head.control,
        level=point.head.level,
        load=level_text(level_of(point)),
        validity=point.validity,
        excluded=excluded,
        too_much=bool(point.engine_failures) or point.validity in (BACKLOG, BROKEN),
        ended_early=reason is Exclusion.ENDED_EARLY,
        reasons=point.reasons,
        power_w=point.energy.power_w if point.energy is not None else None,
        figures={
            **_latency_figures(figures),
            "per_user": figures.decode_throughput.p50 if figures.decode_throughput else None,
            "input_token_throughput": figures.input_token_throughput,
            "output_token_throughput": figures.output_token_throughput,
            **_efficiency_figures(point),
        },
        part_figures={part.part: _latency_figures(part.figures) for part in point.part_figures},
        repeats=[_repeat(repeat, parts, bins) for repeat in point.used_repeats],
    )


def _latency_figures(figures: Figures) -> dict[str, float | None]:
    return {
        "ttft_p50_ms": figures.ttft_ms.p50 if figures.ttft_ms else None,
        "ttft_p99_ms": figures.ttft_ms.p99 if figures.ttft_ms else None,
        "tpot_p50_ms": figures.tpot_ms.p50 if figures.tpot_ms else None,
        "tpot_p99_ms": figures.tpot_ms.p99 if figures.tpot_ms else None,
        "e2e_p99_ms": figures.e2e_ms.p99 if figures.e2e_ms else None,
    }


def _efficiency_figures(point: StoredPoint) -> dict[str, float | None]:
    """Where the point stands on a roofline; all None where it is not known."""
    efficiency = point.efficiency
    if not isinstance(efficiency, Efficiency):
        return dict.fromkeys(("flops_per_byte", "device_flops_s", "decode_mbu", "mfu"))
    return {
        "flops_per_byte": efficiency.flops_per_byte,
        "device_flops_s": efficiency.flops_s,
        "decode_mbu": efficiency.mbu.estimate,
        "mfu": efficiency.mfu,
    }


def _repeat(repeat: Repeat, parts: Sequence[str], bins: RequestBins) -> PageRepeat:
    """The record of one repeat. ``parts``: those of the group's mix."""
    binned = bins[repeat.head.ids]
    no_requests = [0] * min(BATCHES, binned.requests)
    return PageRepeat(
        start=repeat.head.start,
        first=binned.first,
        centres=binned.centres,
        requests=binned.requests,
        parts=[binned.parts.get(part, no_requests) for part in parts],
        tokens=repeat.output_tokens.amounts.tolist(),
        seconds=repeat.output_tokens.sizes.tolist(),
    )


def _deployment(point: StoredPoint) -> PageDeployment:
    deployment = point.deployment
    error = point.model_error
    return PageDeployment(
        label=deployment.label,
        devices=deployment.devices,
        usd_per_hour=deployment.usd_per_hour,
        settings=dict(deployment.settings),
        model_error=None if error is None else PageModelError(error.ttft, error.tpot),
        peaks=_peaks(deployment),
        predicted_capacity=deployment.prediction.highest_capacity(point.head.workload),
    )


def _peaks(deployment: StoredDeployment) -> PagePeaks | None:
    if not isinstance(deployment.work, StepWork):
        return None
    peaks = deployment.work.peaks
    return PagePeaks(
        device=peaks.device,
        compute_type=peaks.compute_type,
        bandwidth_bytes_s=peaks.bandwidth_bytes_s,
        flops_s=peaks.flops_s,
    )


def _centre(bins: Bins) -> int:
    """The middle bin of the answered requests; 0 if none has a value."""
    known = bins[bins < BEYOND]
    return int(np.median(known)) if known.size else 0


def _batch_of_each(requests: int) -> Ints:
    """For each of so many requests, in the order of their schedule, the number of its batch."""
    sizes = batches_of(np.zeros(requests, np.bool_)).sizes.astype(np.int64)
    return np.repeat(np.arange(sizes.size), sizes)


def _part_batches(latencies: LimitValues) -> Ints:
    """For each request, a number that stands for its part of the mix and its batch of that part.

    A part is also judged by itself, in batches of its own that are cut from its requests alone. The
    numbers ascend by part, then by batch. All are 0 where the requests are of no mix.
    """
    part_batches = np.zeros(latencies.ok.size, np.int64)
    for place, part in enumerate(_part_names(latencies)):
        is_of_part = latencies.of_part(part)
        batch = _batch_of_each(int(np.count_nonzero(is_of_part)))
        part_batches[is_of_part] = 1 + place * BATCHES + batch
    return part_batches


def _part_names(latencies: LimitValues) -> list[str]:
    """The parts that the requests are of, in the order of their names."""
    if latencies.parts is None:
        return []
    return sorted(name for name in latencies.parts.names if latencies.parts.of(name).any())


def _counts_of_parts(latencies: LimitValues) -> dict[str, list[int]]:
    """See ``BinnedAttempt.parts``."""
    batches = min(BATCHES, latencies.ok.size)
    batch = _batch_of_each(latencies.ok.size)
    counts: dict[str, list[int]] = {}
    for part in _part_names(latencies):
        in_batches = np.bincount(batch[latencies.of_part(part)], minlength=batches)
        counts[part] = in_batches.tolist()
    return counts


def order_within_batches(bins: Bins, part_batches: Ints) -> npt.NDArray[np.intp]:
    """The order of requests by their batch, then by their batch of a part, then by their bin.

    Sorted bins compress better. No request changes its batch, nor its batch of a part.
    ``part_batches``: see ``_part_batches``.
    """
    return np.lexsort((bins, part_batches, _batch_of_each(bins.size)))


def differences_within_batches(bins: Bins) -> Bins:
    """Replaces each bin but the first of a batch by its difference from the bin before."""
    differences = bins.copy()
    first = 0
    for size in batches_of(np.zeros(bins.size, np.bool_)).sizes.astype(int):
        differences[first + 1 : first + size] = np.diff(bins[first : first + size])
        first += size
    return differences

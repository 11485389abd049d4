"""One attempt at a measurement in virtual time: from the schedule that clients would follow to the
verdict that a sweep would reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind, InputError
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.cluster.base import ClientReport
from orchestrator.emulator.batch import refusal
from orchestrator.emulator.model import Replica
from orchestrator.load.point import ClientStats, LoadPoint
from orchestrator.load.request_record import TokenGaps
from orchestrator.load.rows import token_events_of
from orchestrator.load.schedule import Schedule
from orchestrator.predict.rank_loop import Arrival, is_covered, serve
from orchestrator.predict.simulate import RequestTimes, Trace, run
from orchestrator.results.outcomes import CacheState
from orchestrator.results.row_writer import RowFile
from orchestrator.simulation.client import ClientLoad, VirtualClient
from orchestrator.simulation.fleet import Fleet, FleetNeeds
from orchestrator.simulation.known_runs import DrawnLoad, KnownRun, KnownRuns, RunKey
from orchestrator.simulation.requests import RequestEnd
from orchestrator.simulation.rows import RequestOutcomes
from orchestrator.spec.assumptions import NOTHING_ASSUMED, Assumptions, with_option
from orchestrator.spec.load import Level, Workload
from orchestrator.sweep.attempt import Attempt, Loaded, judged
from orchestrator.sweep.early_end import EarlyEnd
from orchestrator.workloads.kind import WorkloadKind
from orchestrator.workloads.segments import (
    NameOfDraw,
    PromptContents,
    count_images,
    has_slices,
    share_tokens,
)

NO_TEXT = "a simulation makes no text, so it does not know which slices of one begin alike"
LOADS_KEPT = 64  # schedules with their lengths, in memory


@dataclass(frozen=True, slots=True)
class SimulatedEngines:
    """The engines of a deployment: the model of one data-parallel rank, how many replicas there
    are, and how many ranks each has.
    """

    rank: Replica
    replicas: int
    ranks_per_replica: int
    caches_prefixes: bool

    @property
    def cache_state(self) -> CacheState:
        """Every point begins with empty caches."""
        return "emptied" if self.caches_prefixes else "off"


@dataclass(frozen=True, slots=True)
class SimulatedAttempt:
    """An attempt, and how many seconds it took until the last request was over."""

    attempt: Attempt
    took_s: float


class _Lengths:
    """Tokens of the requests of a workload, made as they are needed."""

    def __init__(self, kind: WorkloadKind) -> None:
        self._kind = kind
        self.prompts: list[int] = []
        self.outputs: list[int] = []

    def of(self, session: int) -> tuple[int, int]:
        """Tokens of a session's prompt and of its answer."""
        while len(self.prompts) <= session:
            following = len(self.prompts)
            self.prompts.append(self._kind.input_tokens(following, 0))
            self.outputs.append(self._kind.output_tokens(following, 0))
        return self.prompts[session], self.outputs[session]


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of a point's requests. ``over_s``: when the last one was over, in seconds since
    the start. ``gaps``: the token gaps of the requests that were answered, if they are wanted.
    """

    outcomes: RequestOutcomes
    in_flight_max: int
    over_s: float
    gaps: Sequence[TokenGaps] = ()


class PointSimulator:
    """Simulates attempts. What all deployments have in common at a level is computed once.

    ``wants_gaps``: the gaps between tokens are computed, too, which takes several times as long.
    """

    def __init__(
        self, wants_gaps: bool = False, assumptions: Assumptions = NOTHING_ASSUMED
    ) -> None:
        self._wants_gaps = wants_gaps
        self._assumptions = assumptions
        self._kind = lru_cache(LOADS_KEPT)(self._new_kind)
        self._lengths = lru_cache(LOADS_KEPT)(self._new_lengths)
        self._open_loops: dict[tuple[str, Level, int], DrawnLoad] = {}
        self._known_runs = KnownRuns()

    def attempt(
        self,
        engines: SimulatedEngines,
        point: LoadPoint,
        watch: ProbeWatch | None,
        started_unix_ns: int,
    ) -> SimulatedAttempt:
        """Make one attempt at a point. ``watch``: not None if the point is a probe, which ends as
        soon as it knows enough. ``started_unix_ns``: when the attempt starts.
        """
        unknown = point.workload.known_to_engines_only(self._assumptions)
        if unknown is not None:
            reason = with_option(f"only the engine knows {unknown.text}", unknown)
            sentence = f"It cannot be simulated: {reason}."
            return SimulatedAttempt(
                Attempt(failure=Failure(FailureKind.NOT_SIMULATED, sentence)), 0.0
            )
        early_end = EarlyEnd(point, watch) if watch is not None else None
        try:
            result = self._result(engines, replace(point, watched=watch is not None), early_end)
        except InputError as error:
            sentence = f"The point cannot be run: {error}."
            return SimulatedAttempt(Attempt(failure=Failure(FailureKind.BAD_POINT, sentence)), 0.0)
        early = early_end.end if early_end is not None else None
        length_s = early.at_s if early is not None else point.ends_s
        lasted_s = result.over_s if length_s is None else length_s
        requests = result.outcomes.table(point, engines.caches_prefixes, self._wants_gaps)
        rows = RowFile("requests", requests.num_rows, requests)
        events: RowFile | None = None
        if self._wants_gaps:
            gaps = token_events_of(point, result.gaps)
            events = RowFile("token_events", gaps.num_rows, gaps)
        stats = _stats(result)
        if engines.caches_prefixes and has_slices(point.workload):
            stats = replace(stats, no_expected_hits=NO_TEXT)
        loaded = Loaded(
            span=UnixSpan(started_unix_ns, started_unix_ns + int(lasted_s * 1e9)),
            requests=requests,
            reports={0: ClientReport(stats, (), rows, events)},
            early=early,
            cache=engines.cache_state,
        )
        return SimulatedAttempt(judged(point, loaded), max(lasted_s, result.over_s))

    def _new_kind(self, workload: Workload, seed: int) -> WorkloadKind:
        kind: WorkloadKind = workload.requests(NameOfDraw(), seed)
        count_images(kind, self._assumptions)
        return kind

    def _new_lengths(self, workload: Workload, seed: int) -> _Lengths:
        return _Lengths(self._new_kind(workload, seed))

    def _result(
        self, engines: SimulatedEngines, point: LoadPoint, early_end: EarlyEnd | None
    ) -> _Result:
        """Simulate a point, as fast as its load allows. Raises InputError if it cannot be run."""
        kind = self._kind(point.workload, point.seed).at_level(point.level, point.arrivals)
        may_share = share_tokens(point.workload) or point.workload.sends_images()
        shares_tokens = engines.caches_prefixes and may_share
        is_simple = not (shares_tokens or kind.has_sessions or early_end or self._wants_gaps)
        is_simple = is_simple and engines.rank.drafts is None
        has_one_rank = engines.ranks_per_replica == 1 and engines.rank.limits.max_requests is None
        if is_simple and has_one_rank:
            known = self._known_or_new_run(engines, point, kind)
            result = _whole_result(engines, point, known) if known is not None else None
            if result is not None:
                return result
        schedule = Schedule(point, kind)
        is_coupled = not schedule.open_loop or kind.has_sessions or schedule.cap is not None
        needs = FleetNeeds(is_coupled, shares_tokens, self._wants_gaps)
        fleet = Fleet(engines.rank, engines.replicas, engines.ranks_per_replica, point.seed, needs)
        contents = PromptContents(kind) if shares_tokens else None
        client = VirtualClient(ClientLoad(point, kind, schedule), fleet, contents, early_end)
        client.run()
        outcomes = RequestOutcomes.of(client.requests, kind.has_sessions)
        gaps = [request.gaps for request in client.requests if request.gaps is not None]
        gaps.sort(key=lambda of_request: of_request.request_index)
        return _Result(outcomes, client.in_flight_max, client.over_s, gaps)

    def _known_or_new_run(
        self, engines: SimulatedEngines, point: LoadPoint, kind: WorkloadKind
    ) -> KnownRun | None:
        """The run of a point whose requests meet only in the engines, if clients send each when it
        is due. This is several times faster than a client that looks at each request. None for a
        closed loop that the fast loop does not cover.
        """
        if not is_covered(engines.rank):
            return self._new_run(engines, point, kind)
        key = RunKey.of(engines.rank, engines.replicas, point)
        known = self._known_runs.find(key, engines.rank.limits)
        if known is None:
            known = self._new_run(engines, point, kind)
            if known is not None:
                self._known_runs.add(key, known)
        return known

    def _new_run(
        self, engines: SimulatedEngines, point: LoadPoint, kind: WorkloadKind
    ) -> KnownRun | None:
        if point.level.control == "request_rate":
            return self._open_loop_run(engines, point, kind)
        if engines.replicas == 1 and is_covered(engines.rank):
            return self._closed_loop_run(engines, point, kind)
        return None

    def _open_loop_run(
        self, engines: SimulatedEngines, point: LoadPoint, kind: WorkloadKind
    ) -> KnownRun:
        load = self._open_loop(point, kind)
        trace = Trace(load.due_s, load.input_tokens, load.output_tokens)
        return KnownRun(load, run(engines.rank, trace, engines.replicas, point.seed))

    def _closed_loop_run(
        self, engines: SimulatedEngines, point: LoadPoint, kind: WorkloadKind
    ) -> KnownRun | None:
        """Simulate a closed loop on one rank. None if a request is refused or the KV cache
        overflows, and if a request ends before all slots have started, because the fast loop takes
        requests in the order they arrive.
        """
        schedule = Schedule(point, kind)
        if schedule.cap is not None and schedule.cap < schedule.slots:
            return None
        lengths = self._lengths(point.workload, point.seed)
        sessions = _ClosedLoopSessions(schedule, lengths, engines.rank)
        first: list[Arrival] = []
        for start_ns in schedule.slot_starts:
            arrival = sessions.following(start_ns / 1e9)
            if arrival is not None:
                first.append(arrival)
        times = serve(
            engines.rank,
            f"{point.seed} 0",
            [arrival.arrival_s for arrival in first],
            [arrival.prompt for arrival in first],
            [arrival.output for arrival in first],
            sessions.after_end,
        )
        if times is None or sessions.is_given_up:
            return None
        due_s = np.array(times.arrival_s)
        load = DrawnLoad(
            np.round(due_s * 1e9).astype(np.int64),
            due_s,
            np.array(lengths.prompts[: sessions.begun], np.int64),
            np.array(lengths.outputs[: sessions.begun], np.int64),
            _parts(kind, sessions.begun),
        )
        of_requests = RequestTimes(
            np.array(times.scheduled_s),
            np.array(times.first_token_s),
            np.array(times.last_token_s),
            np.zeros(sessions.begun, np.int64),
            times.same_under,
        )
        return KnownRun(load, of_requests)

    def _open_loop(self, point: LoadPoint, kind: WorkloadKind) -> DrawnLoad:
        key = (point.workload.name, point.level, point.seed)
        if key not in self._open_loops:
            if len(self._open_loops) >= LOADS_KEPT:
                del self._open_loops[next(iter(self._open_loops))]
            self._open_loops[key] = _drawn(point, kind)
        return self._open_loops[key]


class _ClosedLoopSessions:
    """Begins the sessions of a closed loop, one in each slot, and the next one after each end.

    ``begun``: how many sessions have begun. ``is_given_up``: the fast loop cannot simulate this
    point: a request is refused, or one ended before all slots had started.
    """

    def __init__(self, schedule: Schedule, lengths: _Lengths, rank: Replica) -> None:
        self._lengths = lengths
        self._limits = rank.limits
        self._end_s = math.inf if schedule.end_ns is None else schedule.end_ns / 1e9
        self._most = math.inf if schedule.sessions is None else schedule.sessions
        self._last_start_s = schedule.slot_starts[-1] / 1e9
        self.begun = 0
        self.is_given_up = False

    def following(self, due_s: float) -> Arrival | None:
        """The next session, which is due at this time; None if the loop ends before."""
        if self.begun >= self._most or due_s >= self._end_s:
            return None
        prompt, output = self._lengths.of(self.begun)
        self.begun += 1
        if refusal(self._limits, prompt, output) is not None:
            self.is_given_up = True
            return None
        return Arrival(round(due_s * 1e9) / 1e9, prompt, output)

    def after_end(self, ended_s: float) -> Arrival | None:
        """The session that follows in the slot of a request that ended."""
        if ended_s < self._last_start_s:
            self.is_given_up = True
        return None if self.is_given_up else self.following(ended_s)


def _whole_result(engines: SimulatedEngines, point: LoadPoint, known: KnownRun) -> _Result | None:
    """The result of a point; None if a client would not send some requests when they are due, or
    would not wait for some.
    """
    load = known.load
    times = known.times
    is_refused = np.isnan(times.last_token_s)
    done_s = np.where(is_refused, load.due_s, times.last_token_s)
    in_flight_max = _most_in_flight(load.due_s, done_s)
    if point.max_in_flight is not None and in_flight_max > point.max_in_flight:
        return None
    over_s = float(done_s.max(initial=0.0))
    last_due_s = point.ends_s
    if last_due_s is None:
        last_due_s = float(load.due_s.max(initial=0.0))
    takes_too_long = (done_s - load.due_s).max(initial=0.0) >= point.request_timeout_s
    if takes_too_long or over_s >= last_due_s + point.drain_s:
        return None
    return _Result(_outcomes(engines, load, times, is_refused, done_s), in_flight_max, over_s)


def _drawn(point: LoadPoint, kind: WorkloadKind) -> DrawnLoad:
    schedule = Schedule(point, kind)
    sessions = range(len(schedule.due_ns))
    return DrawnLoad(
        schedule.due_ns,
        schedule.due_ns / 1e9,
        np.array([kind.input_tokens(session, 0) for session in sessions], np.int64),
        np.array([kind.output_tokens(session, 0) for session in sessions], np.int64),
        _parts(kind, len(sessions)),
    )


def _parts(kind: WorkloadKind, sessions: int) -> list[str] | None:
    """The parts of a mix that the first sessions are of; None if it is no mix."""
    parts = [kind.part(session) for session in range(sessions)]
    named = [part for part in parts if part is not None]
    return named or None


def _outcomes(
    engines: SimulatedEngines,
    load: DrawnLoad,
    times: RequestTimes,
    is_refused: np.ndarray,
    done_s: Floats,
) -> RequestOutcomes:
    indices = np.arange(len(load.due_ns))
    refusals: dict[int, str] = {}
    for place in np.flatnonzero(is_refused).tolist():
        prompt, output = int(load.input_tokens[place]), int(load.output_tokens[place])
        refusals[place] = refusal(engines.rank.limits, prompt, output) or ""
    return RequestOutcomes(
        indices=indices,
        replicas=indices % engines.replicas,
        sessions=indices,
        turns=None,
        due_ns=load.due_ns,
        sent_s=load.due_s,
        first_token_s=times.first_token_s,
        last_token_s=times.last_token_s,
        done_s=done_s,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        # requests that share tokens are simulated one by one (VirtualClient)
        cached_tokens=np.zeros(len(indices), np.int64),
        expected_cached_tokens=np.zeros(len(indices), np.int64),
        ends=np.where(is_refused, int(RequestEnd.REFUSED), int(RequestEnd.OK)),
        refusals=refusals,
        parts=load.parts,
    )


def _most_in_flight(due_s: Floats, done_s: Floats) -> int:
    """The most requests that are open at once."""
    if not len(due_s):
        return 0
    begun = np.arange(1, len(due_s) + 1)
    ended = np.searchsorted(np.sort(done_s), due_s, side="right")
    return int((begun - ended).max())


def _stats(result: _Result) -> ClientStats:
    """The statistics of a client that loses no time."""
    return ClientStats(
        client=0,
        wall_s=result.over_s,
        cpu_s=0.0,
        cpu_share=0.0,
        loop_lag_p99_ms=0.0,
        loop_lag_max_ms=0.0,
        send_lag_p50_ms=0.0,
        send_lag_p99_ms=0.0,
        sockets_opened=0,
        sockets_max=0,
        reads=0,
        coalesced_reads=0,
        in_flight_max=result.in_flight_max,
        start_error_ms=0.0,
    )

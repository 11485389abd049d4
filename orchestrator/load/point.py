"""What a client needs to know of one point, and what it gives back. Pure data, picklable, the same on every client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.redaction import SHORTEST
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Level, Workload

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.results.spool import Part


@dataclass(frozen=True, slots=True)
class Target:
    """One replica's HTTP server. ``api_key`` is a secret: never logged, never stored."""

    url: str  # scheme://host:port
    model: str  # the name requests carry
    replica: int = 0
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # more of them, secrets perhaps too
    verify_tls: bool = True  # False: whoever answers is believed

    @property
    def secrets(self) -> list[str]:
        """What no error may show, whatever a server repeats: the key, and of headers values and their last word."""
        said = [self.api_key or "", *(part for _, value in self.headers for part in (value, value.split(" ")[-1]))]
        return [one for one in said if len(one) >= SHORTEST]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load level of one workload on running targets.

    The schedule is a pure function of these values: ``clients`` processes each take every ``clients``-th entry.
    Open loop (request_rate): arrivals over ``warmup_s + duration_s``, or ``requests`` of them; at an infinite rate
    all of these at once.
    Closed loop (concurrency): that many requests kept in flight in all, for the same time or number.
    Requests scheduled before ``warmup_s`` are rows with ``phase = 'warmup'``; None: all are measured, and the window
    begins where the run was steady.
    """

    targets: tuple[Target, ...]
    dialect: Dialect
    workload: Workload
    level: Level
    arrivals: Arrivals = field(default_factory=Arrivals)
    warmup_s: float | None = 0.0
    duration_s: float | None = 60.0
    requests: int | None = None
    seed: int = 0
    max_in_flight: int | None = None  # over all clients; a due request then waits, and its latency says so
    max_errors: int | None = None  # once so many requests of a client failed, it sends no more and leaves the rest out
    request_timeout_s: float = 600.0
    drain_timeout_s: float | None = None  # after the last due instant; open then: a row `timeout`. None: as for one
    tokenizer: str | None = None  # folder or tokenizer.json; needed where prompts must be text
    keep_replies: bool = False  # what was answered is wanted, not only how fast
    watched: bool = False  # what became of its requests is asked for while it runs (LoadClient.so_far)
    count_text: bool = False  # the engine tells no counts: keep replies and count them with the tokenizer after the run
    vocabulary: tuple[int, int] | None = None  # token ids to draw from [low, high) when there is no tokenizer
    measurement_id: str = ""
    attempt_id: str = ""

    @property
    def ends_s(self) -> float | None:
        """When the time is over in which requests are due; None: their number says when."""
        return None if self.duration_s is None else (self.warmup_s or 0.0) + self.duration_s

    @property
    def drain_s(self) -> float:
        """How long after the last due instant answers are waited for: by default as long as for any other."""
        return self.request_timeout_s if self.drain_timeout_s is None else self.drain_timeout_s


@dataclass(frozen=True, slots=True)
class ClientStats:
    """What one client knows of itself: the evidence for a point's validity."""

    client: int
    wall_s: float  # from the common start to the last row
    cpu_s: float  # of the thread that runs the loop
    cpu_share: float  # of a core, and the loop's lag: while requests were due, without the wait for the last answers
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    send_lag_p50_ms: float  # sent - scheduled
    send_lag_p99_ms: float
    sockets_opened: int
    sockets_max: int
    reads: int
    coalesced_reads: int  # reads that held more than one content event
    in_flight_max: int
    start_error_ms: float  # how late this client began after the agreed instant
    clock_offset_ns: int = 0  # wall clock of this client minus the driver's
    clock_error_ns: int = 0  # half the round trip that measured it
    host: str = ""
    pid: int = 0
    priority: str = "normal"  # of the thread that runs the loop: realtime | nice | normal
    left_out: int = 0  # requests that were due and not over when the run was ended early: they have no rows
    gave_up: bool = False  # max_errors of its requests failed
    tcp_retransmits: int = 0  # segments that its TCP had to send again
    network_silent_max_s: float = 0.0  # the longest that a server's host gave no sign at all to an open request


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What others did on an engine's host while a point ran: neither its launch, nor its clients, nor its driver."""

    host: str
    foreign_cpu_s: float
    foreign_cpu_share: float  # of the CPU time of all cores
    foreign_launches: int  # of other sweeps, by their leases


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a target has said nothing although ``open`` requests of a client wait for it (or, with none open, said
    nothing at all)."""

    target: int
    open: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """A running client's counters so far, or those of several."""

    scheduled: int = 0  # known so far; closed loop by time grows
    sent: int = 0
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    output_chunks: int = 0
    silences: tuple[Silence, ...] = ()

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, name) + getattr(other, name) for name in Progress.__slots__))

    def silent(self, limit_s: float) -> list[int]:
        """Targets where requests are open and of which no client has heard anything for so long."""
        every: dict[int, list[Silence]] = {}
        for one in self.silences:
            every.setdefault(one.target, []).append(one)
        return [
            target
            for target, found in sorted(every.items())
            if any(one.open for one in found) and min(one.seconds for one in found) >= limit_s
        ]


@dataclass(frozen=True, slots=True)
class SoFar:
    """What a watched point's client had not told before. Nanoseconds since the point's start.

    ``ended``: requests, as load/rows.py holds them (Arrow takes ten times as long to make). ``open``: of those that are
    due and have not ended when they were due, and whether nothing of their answer has come.
    """

    now_ns: int
    ended: tuple[Any, ...]
    open: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered to one request. ``token_ids`` None: the engine does not tell them; ``logprobs`` None: it gave
    none at all; NaN in there: none of that token."""

    request_index: int
    replica: int
    prompt: str
    text: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ClientResult:
    """Rows of one client as ``requests`` and ``token_events``, one request for each that was scheduled.

    ``replies``: of the good ones, where the point keeps them.
    """

    parts: tuple[Part, Part]
    stats: ClientStats
    replies: tuple[Reply, ...] = ()

    @property
    def requests(self) -> pa.Table:
        """By request_index."""
        return self.parts[0].read().sort_by("request_index")

    @property
    def token_events(self) -> pa.Table:
        return self.parts[1].read().sort_by("request_index")

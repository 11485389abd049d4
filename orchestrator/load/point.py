"""What a client needs to know of one point, and what it returns. Plain picklable data, the same for
every client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.base.grouping import values_by_key
from orchestrator.base.redaction import SHORTEST
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Level, Workload

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.load.request_record import EndedRequest
    from orchestrator.results.row_writer import RowFile
    from orchestrator.telemetry.core_wait import CoreWait
    from orchestrator.workloads.kind import IdRange


@dataclass(frozen=True, slots=True)
class Target:
    """One replica's HTTP server. ``api_key`` is a secret: never logged, never stored."""

    url: str  # scheme://host:port
    model: str  # the name requests carry
    replica: int = 0
    api_key: str | None = field(default=None, repr=False)
    # additional ones; may hold secrets
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    verify_tls: bool = True  # False: certificates are not checked

    @property
    def secrets(self) -> list[str]:
        """What no error text may show, even where a server repeats it: the key, the values of
        headers, and the last word of each value.
        """
        secrets = [self.api_key or ""]
        for _, value in self.headers:
            secrets += [value, value.split(" ")[-1]]
        return [secret for secret in secrets if len(secret) >= SHORTEST]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load level of one workload on running targets.

    The schedule is a pure function of these values; of n clients each takes every n-th session.
    Open loop (request_rate): arrivals over ``warmup_s + duration_s``, or ``requests`` of them; at
    an infinite rate all at once. Closed loop (concurrency): the level is the number of requests
    that all clients together keep in flight, for that time or number of requests. Requests due
    before ``warmup_s`` have ``phase = 'warmup'``; without it all are measured, and the window
    begins where the run became steady.
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
    # of all clients together; beyond it due requests wait, and the wait is part of their latency
    max_in_flight: int | None = None
    # a client stops once this many of its requests have failed; the rest has no rows
    max_errors: int | None = None
    request_timeout_s: float = 600.0
    # How long answers are waited for after the last due instant; requests that are still open then
    # have failed with `timeout`. None: request_timeout_s
    drain_timeout_s: float | None = None
    # folder or tokenizer.json; needed where prompts must be text of an exact length
    tokenizer: str | None = None
    keep_replies: bool = False  # return what was answered, too
    watched: bool = False  # LoadClient.so_far is called while it runs
    # the engine gives no token counts: keep replies, count them with the tokenizer afterwards
    count_text: bool = False
    # token ids to draw from, where there is no tokenizer; None: SAFE_IDS (workloads/content.py)
    id_range: IdRange | None = None
    # tokens that the engine's prefix cache keeps together; None: it keeps no prefixes
    cache_block_tokens: int | None = 1
    measurement_id: str = ""
    attempt_id: str = ""

    @property
    def ends_s(self) -> float | None:
        """When requests stop being due; None: when ``requests`` have been sent."""
        if self.duration_s is None:
            return None
        return (self.warmup_s or 0.0) + self.duration_s

    @property
    def drain_s(self) -> float:
        """How long to wait for answers after the last due instant; by default the timeout of a
        request.
        """
        if self.drain_timeout_s is None:
            return self.request_timeout_s
        return self.drain_timeout_s


@dataclass(frozen=True, slots=True)
class ClientStats:
    """What one client measured about itself: evidence for a point's validity."""

    client: int
    wall_s: float  # from the common start to the last row
    cpu_s: float  # of the thread that runs the loop
    # the CPU share, of one core, and the loop's lag are those while requests were due: the wait for
    # the last answers is left out
    cpu_share: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    send_lag_p50_ms: float  # sent - scheduled
    send_lag_p99_ms: float
    sockets_opened: int
    sockets_max: int
    reads: int
    coalesced_reads: int  # reads that held more than one content event
    in_flight_max: int
    start_error_ms: float  # how late this client began
    clock_offset_ns: int = 0  # wall clock of this client minus the driver's
    clock_error_ns: int = 0  # half the round trip that measured it
    host: str = ""
    pid: int = 0
    priority: str = "normal"  # of the thread that runs the loop: realtime | nice | normal
    # requests that were due and open when the run was ended early: they have no rows
    left_out: int = 0
    gave_up: bool = False  # max_errors of its requests failed
    tcp_retransmits: int = 0  # segments that TCP sent again
    # the longest time without a packet from a server's host while a request was open
    network_silent_max_s: float = 0.0
    # why no prefix hits are expected of some of its requests; None: there are none of these
    no_expected_hits: str | None = None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What other programs did on an engine's host while a point ran: all but the point's own
    launch, clients and driver. ``core_wait``: None if the kernel does not count it.
    """

    host: str
    foreign_cpu_s: float
    foreign_cpu_share: float  # of the CPU time of all cores
    foreign_launches: int  # launches and load clients of other sweeps, as their leases show
    core_wait: CoreWait | None = None


@dataclass(frozen=True, slots=True)
class TargetSilence:
    """How long a target has sent nothing to a client. ``open_requests``: how many requests of the
    client wait for an answer there.
    """

    target: int
    open_requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of a running client so far, or of several added up."""

    scheduled: int = 0  # due so far
    sent: int = 0
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    silences: tuple[TargetSilence, ...] = ()

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            scheduled=self.scheduled + other.scheduled,
            sent=self.sent + other.sent,
            done=self.done + other.done,
            failed=self.failed + other.failed,
            in_flight=self.in_flight + other.in_flight,
            silences=self.silences + other.silences,
        )

    def silent(self, limit_s: float) -> list[int]:
        """Targets with open requests that no client has heard from for ``limit_s``."""
        by_target = values_by_key((silence.target, silence) for silence in self.silences)
        silent_targets = []
        for target, silences in sorted(by_target.items()):
            has_open_requests = any(silence.open_requests for silence in silences)
            shortest_s = min(silence.seconds for silence in silences)
            if has_open_requests and shortest_s >= limit_s:
                silent_targets.append(target)
        return silent_targets


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """Requests that have not ended. ``due_ns``: when each was due, in nanoseconds since the point's
    start. ``parts``: the part of a mix that each is of; empty where the workload is no mix.
    """

    due_ns: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SoFar:
    """What the client of a watched point reports, ``now_ns`` nanoseconds after the point's start.

    ``ended``: the requests that ended since the last report, as records (Arrow would take ten times
    as long). ``silent``: the open requests of whose answer nothing has come. ``answering``: the
    other open requests.
    """

    now_ns: int
    ended: tuple[EndedRequest, ...]
    silent: OpenRequests = OpenRequests()
    answering: OpenRequests = OpenRequests()


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. ``token_ids`` None: the engine does not send them. ``logprobs``
    None: it sent none at all; NaN: none for that token.
    """

    request_index: int
    replica: int
    prompt: str
    text: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ClientResult:
    """Rows of one client: ``requests``, one for each that was scheduled, and ``token_events``.

    ``replies``: the answers to ok requests, where the point keeps them.
    """

    requests_file: RowFile
    token_events_file: RowFile
    stats: ClientStats
    replies: tuple[Reply, ...] = ()

    @property
    def requests(self) -> pa.Table:
        """Sorted by request_index."""
        return self.requests_file.read().sort_by("request_index")

    @property
    def token_events(self) -> pa.Table:
        return self.token_events_file.read().sort_by("request_index")

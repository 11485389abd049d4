"""Was a point honestly measured? The verdict and its evidence.

The verdicts, the first that applies first:

- ``broken_output``: the engine's answers are no output (NaN, nothing, the same token forever;
  analysis/broken_output.py).
- ``invalid``: what was measured is not what was asked for (lengths, constraints that were not
  applied, lost clients, nothing answered).
- ``network_bound``: the network was silent or lost much, so the latencies are the network's.
- ``disturbed``: other programs took most of an engine's host or cores that it waited for, or used
  its GPU, or a GPU was lost or braked by heat, so the figures are not those of an engine that has its
  hardware to itself.
- ``client_bound``: the client was too slow, so the figures are the client's; repeat with more
  clients.
- ``stream_buffered``: events came in lumps although the client was idle (a proxy, a server that
  collects them), or answers came in one event. When each token came is not known: TTFT is that of
  the first lump, and there is no TPOT or ITL. The tokens of one speculative step are no lump
  (load/response/counts.py).
- ``engine_bound_backlog``: the engine fell behind all through the run, so latencies grow with the
  length of the run.

A point that the user ended is ``interrupted``, whatever is found here (sweep/measure.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.base.errors import ProblemsError
from orchestrator.base.text import listed
from orchestrator.load.point import ClientStats, HostLoad, LoadPoint
from orchestrator.load.request_counts import MAX_SEND_DELAY_MS, RequestCounts
from orchestrator.results.columns import NumberColumn, quantiles
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.offered_rate import BEYOND_CHANCE, MAX_DIFFERENCE, share_beyond
from orchestrator.results.outcomes import BUFFERED_SHARE, MANY_TOKENS
from orchestrator.results.records import EngineSide
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Scale, Workload
from orchestrator.telemetry.gpu_condition import GpuCondition
from orchestrator.workloads.fidelity import RATE_DIFFERS, fidelity_of

if TYPE_CHECKING:
    from orchestrator.telemetry.core_wait import CoreWait

BUSY_CPU_SHARE = 0.7
# How often the end-to-end time must fit into the window. The throughput of a shorter window depends
# on where it begins and ends.
LEAST_E2E_TIMES = 3
MIN_ACHIEVED = 0.98
MAX_LENGTH_ERROR = 0.01
MAX_FAILED = 0.05
MAX_LOST = 0.05
# the last tenth of requests must have taken at least this many times as long as the first
SLOWER = 2
MIN_ENDED = 0.95  # share of the requests offered; fewer ended where the engine was overloaded
MANY_OPEN = 2  # times as many requests as are open if the engine keeps up
FEW_REQUESTS = 8  # with fewer, a backlog or the number of requests in flight is not judged
MOST_END_REASONS = 3  # why answers ended: the commonest are named, the others counted
MOST_REASON_CHARACTERS = 60
# any network loses a segment now and then; in a short run that would be a large share
CHANCE_RETRANSMITS = 3


@dataclass(frozen=True, slots=True)
class EvidenceLimit:
    """A limit on a figure of the evidence, and the sentence about a point whose figure is above it:
    a format string that takes the figure and the limit.
    """

    figure: str
    limit: float
    sentence: str

    def is_exceeded(self, evidence: Mapping[str, float]) -> bool:
        return evidence[self.figure] > self.limit

    def words(self, evidence: Mapping[str, float]) -> str:
        return self.sentence.format(evidence[self.figure], self.limit)


INVALID = (
    EvidenceLimit("lost_requests", 0, "{0:.0f} requests were lost with their client process"),
    EvidenceLimit(
        "count_mismatch_share",
        0.01,
        "in {0:.1%} of requests the engine's token count is not what it streamed",
    ),
)
# Share of checked answers that may violate their constraint. Of an engine that applies it none does,
# unless its answer was cut; but a few may, by a bug or by a check that is stricter.
MAX_VIOLATED = 0.01
VIOLATIONS_CONFIDENCE = 0.95  # that more than MAX_VIOLATED do, before the point is invalid
CONSTRAINT_CUT = EvidenceLimit(
    "constraint_cut_share",
    0.1,
    "{0:.1%} of constrained answers were cut at their output_tokens before they were complete",
)
CONSTRAINT_UNCHECKED = EvidenceLimit(
    "constraint_unchecked_share",
    0,
    "{0:.1%} of constrained answers are unchecked: their check takes too long (a pattern that tries "
    "every way to match?), or was ended by something else",
)
# A host that is there answers a probe within a second, whatever its programs do
# (sockets.KEEPALIVE). A longer silence is noted, or makes a point network_bound.
NOTED_SILENT_S = 1.3
MOST_SILENT_S = 2.0
SILENT = "nothing came from a server's host for {0:.1f} s"
NETWORK_BOUND = (
    EvidenceLimit("network_silent_max_s", MOST_SILENT_S, f"{SILENT}, not even from its kernel"),
    EvidenceLimit(
        "tcp_retransmits_per_request", 0.05, "TCP had to resend {0:.2f} segments per request"
    ),
)
SENT_LATE = EvidenceLimit(
    "send_lag_p99_ms", MAX_SEND_DELAY_MS, "p99 of sent - due is {0:.1f} ms (limit {1:g})"
)
# every time stamp may be late by as much as the loop
LOOP_LAGS = EvidenceLimit(
    "loop_lag_p99_ms", 10.0, "p99 of the client's loop lag is {0:.1f} ms (limit {1:g})"
)
CLIENT_BOUND = (
    EvidenceLimit("client_errors", 0, "{0:.0f} requests found no socket on the client's machine"),
    SENT_LATE,
    LOOP_LAGS,
    # above this, queues build up in the client
    EvidenceLimit("client_cpu_share", 0.9, "a client used {0:.0%} of its core (limit {1:.0%})"),
)
LENGTHS = (
    EvidenceLimit(
        "input_length_error",
        MAX_LENGTH_ERROR,
        "prompts were off by {0:.1%} from the length asked for (engine's count)",
    ),
)
MOST_FOREIGN_CPU = 0.5  # share of the CPU time of an engine's host
# seconds of CPU time; less than this is a program that starts or ends, not a steady load
LEAST_FOREIGN_S = 10.0
# share of the CPU time that an engine needed, of what others took from it at most
MOST_LOST_CPU = 0.1
LEAST_LOST_S = 3.0  # seconds of CPU time; less is what starts and ends of programs take
DISTURBED_GPU = (
    EvidenceLimit("gpus_lost", 0, "GPUs that stopped answering while the point ran: {0:.0f}"),
    # a context that computes nothing takes less
    EvidenceLimit(
        "gpu_foreign_gib", 0.5, "processes of others used {0:.1f} GiB of a GPU (limit {1:g})"
    ),
    EvidenceLimit(
        "gpu_braked_share",
        0.05,
        "heat or a power brake held down a GPU's clocks {0:.0%} of the time (limit {1:.0%})",
    ),
)
# share of prompt tokens that prompts have in common by chance: a first token, a chat template
MAX_CACHED = 0.005
# Prefix hits below this share of the expected ones are noted, where at least so many are expected.
FEW_HITS = 0.5
LEAST_EXPECTED = 0.02
# notes: what a reader must know although the point stays valid
MANY_FAILED = EvidenceLimit(
    "failed_share",
    MAX_FAILED,
    "{0:.1%} of requests failed: throughput and latencies are those of the others",
)
CUT_OFF = EvidenceLimit(
    "cut_off_share",
    MAX_FAILED,
    "{0:.1%} of requests were cut off when the point was ended, and are no failures of the server: "
    "throughput and latencies are those of the others",
)
NOTES = (
    EvidenceLimit(
        "refused_share",
        0.5,
        "{0:.1%} of requests were refused by the server (HTTP 4xx, or too many for it)",
    ),
    EvidenceLimit(
        "output_length_error",
        MAX_LENGTH_ERROR,
        "answers were off by {0:.1%} from the length asked for",
    ),
    EvidenceLimit(
        "uncounted_share",
        0,
        "{0:.1%} of answers came without a usable token count: each event counts as one token",
    ),
    EvidenceLimit(
        "hidden_share",
        0,
        "{0:.1%} of output tokens were never streamed (reasoning): TPOT and ITL are of the others",
    ),
    EvidenceLimit(
        "lost_at_the_end",
        MAX_LOST,
        "throughput is {0:.0%} too low: the window has the end of the run, with less in flight; "
        "measure for a time (--duration, in a file `duration`), or with more requests",
    ),
    # large GPUs reach it under any heavy load, so it belongs to what is measured
    EvidenceLimit(
        "gpu_power_limited_share",
        0.5,
        "its power limit held down a GPU's clocks {0:.0%} of the time: another limit, other figures",
    ),
    EvidenceLimit("gpu_ecc_errors", 0, "GPUs had {0:.0f} uncorrected memory errors"),
    EvidenceLimit(
        "foreign_launches", 0, "{0:.0f} launches or load clients of other sweeps were on its hosts"
    ),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The engines' hosts while a point ran, and their GPUs as far as they were sampled.
    ``engine_side``: what the engines reported of themselves; None: nothing.
    """

    hosts: Sequence[HostLoad] = ()
    gpus: Sequence[GpuCondition] = ()
    engine_side: EngineSide | None = None


@dataclass(frozen=True, slots=True)
class PointVerdict:
    """``validity``: ``valid``, or the first verdict above that applies. ``reasons``: sentences,
    notes included.
    """

    validity: str
    reasons: list[str]
    evidence: dict[str, float]


def judge(
    requests: Rows,
    stats: Sequence[ClientStats],
    point: LoadPoint,
    start_ns: int,
    broken: Sequence[str] = (),
    surroundings: Surroundings | None = None,
    was_interrupted: bool = False,
) -> PointVerdict:
    """The verdict on one point, from the rows of all clients and what the clients measured about
    themselves.

    ``start_ns``: where the steady window begins; ``broken``: why the engine's answers are no
    output; ``surroundings``: what is known of the engines' hosts; ``was_interrupted``: the user
    ended the point, so that the end of its window is not that of the run.
    """
    counts = RequestCounts(requests, stats, point, start_ns)
    surroundings = surroundings or Surroundings()
    evidence = _evidence(counts, stats, point)
    evidence |= _cut_off(counts)
    evidence |= _hits(counts, surroundings.engine_side)
    evidence |= _drafts(surroundings.engine_side)
    reason_without_fidelity = None
    try:
        evidence |= _fidelity(point)
    except ProblemsError as error:
        reason_without_fidelity = str(error)
    evidence |= _surroundings(stats, surroundings.hosts, len(requests))
    evidence |= _gpu_evidence(surroundings.gpus)
    if was_interrupted:
        evidence["lost_at_the_end"] = 0.0
    open_at_the_end = _open_at_the_end(counts, point)
    if open_at_the_end is not None:
        evidence |= open_at_the_end.evidence()
    invalid = _invalid(counts, evidence)
    as_text = _parts_sent_as_text(counts, point)
    invalid += _wrong_lengths(counts, counts.prompt_lengths.parts - as_text)
    reasons_by_validity = {
        Validity.BROKEN_OUTPUT: list(broken),
        Validity.INVALID: invalid,
        Validity.NETWORK_BOUND: _exceeded(NETWORK_BOUND, evidence),
        Validity.DISTURBED: _disturbed(evidence),
        Validity.CLIENT_BOUND: _client_bound(evidence, point),
        Validity.STREAM_BUFFERED: _buffered(evidence),
        Validity.ENGINE_BOUND_BACKLOG: _backlog(open_at_the_end, evidence, point),
    }
    validity = Validity.VALID
    all_reasons: list[str] = []
    for name, reasons in reasons_by_validity.items():
        if reasons and validity is Validity.VALID:
            validity = name
        all_reasons += reasons
    all_reasons += _notes(counts, evidence, point, stats, open_at_the_end)
    if reason_without_fidelity is not None:
        all_reasons.append(
            f"how near this load came to its recorded times is unknown: {reason_without_fidelity}"
        )
    return PointVerdict(validity, all_reasons, evidence)


def _quantile(column: NumberColumn, probability: float) -> float:
    values = column.values()
    return float(quantiles(values, [probability])[0]) if values.size else 0.0


def _must_call_tools(point: LoadPoint) -> bool:
    """Whether some answers must be calls of tools, which are as long as they are. False where a
    file that would say it can no longer be read.
    """
    try:
        choices = [part.asked_tool_choices().keys() for part in point.workload.with_parts()]
    except ProblemsError:
        return False
    return any(choice in ("required", "named") for of_part in choices for choice in of_part)


def _evidence(
    counts: RequestCounts, stats: Sequence[ClientStats], point: LoadPoint
) -> dict[str, float]:
    """The figures behind the verdict; those of the worst client where there are several."""
    sums = counts.sums
    due_s = counts.due_until_s - counts.due_from_s
    per_s = 1.0 / due_s if due_s > 0 else 0.0  # none where all were due at once
    sent_after_due_ms = _quantile(counts.send_delay_ms, 0.99) if sums["in_time"] else 0.0
    capped_share = 0.0
    if point.max_in_flight is not None:
        capped_share = counts.share("capped")
    # above 0 where an engine cannot be told the length, or where another tokenizer counts tokens
    output_length_error = 0.0
    if point.dialect.length_control != "natural" and not _must_call_tools(point):
        output_length_error = counts.share("output_off", "output_asked")
    lost_at_the_end = 0.0
    if point.duration_s is None:
        lost_at_the_end = counts.lost_at_the_end(point.level)
    return {
        "offered_rate": sums["all"] * per_s,
        "offered_below_asked": _offered_below_asked(sums["all"], due_s, point),
        "later_turns_share": counts.share("later_turns"),
        "achieved_rate": sums["in_time"] * per_s,
        "achieved_over_offered": counts.share("in_time"),
        "ok_share": counts.share("ok"),
        "lost_requests": float(sums["lost"]),
        "client_errors": float(sums["no_socket"]),
        "sent_minus_scheduled_p99_ms": sent_after_due_ms,
        "send_lag_p99_ms": counts.client_delay_ms,
        "capped_share": capped_share,
        "loop_lag_p99_ms": max((client.loop_lag_p99_ms for client in stats), default=0.0),
        "loop_lag_max_ms": max((client.loop_lag_max_ms for client in stats), default=0.0),
        "client_cpu_share": max((client.cpu_share for client in stats), default=0.0),
        "sockets_opened": float(sum(client.sockets_opened for client in stats)),
        "sockets_max": float(sum(client.sockets_max for client in stats)),
        "in_flight_max": float(sum(client.in_flight_max for client in stats)),
        "coalesced_share": counts.share("coalesced", "chunks"),
        "lump_share": counts.share("in_lumps", "several"),
        "tokens_per_event": counts.share("events_tokens", "events"),
        "odd_end_share": sum(counts.odd_ends.values()) / max(sums["ok"], 1),
        "start_error_max_ms": max((client.start_error_ms for client in stats), default=0.0),
        "count_mismatch_share": counts.share("mismatched", "exact"),
        "input_length_error": counts.prompt_lengths.relative_error(counts.prompt_lengths.parts),
        "output_length_error": output_length_error,
        "failed_share": (len(counts) - sums["ok"] - sums["cut_off"]) / max(len(counts), 1),
        "refused_share": counts.share("refused"),
        "uncounted_share": counts.share("uncounted", "ok"),
        "hidden_share": counts.share("hidden_tokens", "hidden_tokens_of"),
        "constraint_violated_share": counts.share("constraint_violated", "constraint_checked"),
        "constraint_cut_share": counts.share("constraint_cut", "constrained"),
        "constraint_unchecked_share": counts.share("constraint_unchecked", "constrained"),
        "e2e_p95_s": _quantile(counts.e2e_from_due_s, 0.95),
        "lost_at_the_end": lost_at_the_end,
    }


def _offered_below_asked(due: float, due_s: float, point: LoadPoint) -> float:
    """The share of the requests that a rate asks for and that were not due; 0 where chance may
    explain it, and in closed loops. ``due``: requests that were due within ``due_s`` seconds.
    """
    asked = point.level.value * due_s
    if point.level.control != "request_rate" or not np.isfinite(asked):
        return 0.0
    return max(0.0, -share_beyond(due, asked))


def _cut_off(counts: RequestCounts) -> dict[str, float]:
    """The share of requests that this program ended itself, where there are any: the server did not
    fail them.
    """
    return {"cut_off_share": counts.share("cut_off")} if counts.sums["cut_off"] else {}


def _hits(counts: RequestCounts, engine_side: EngineSide | None) -> dict[str, float]:
    """Shares of prompt tokens that the engine's prefix cache had, by its answers or else by its
    metrics, and that one of unlimited size would have held; without those that are not known.
    """
    hits: dict[str, float] = {}
    if counts.sums["reports_of_hits"]:
        hits["cached_share"] = counts.share("cached_tokens", "cached_tokens_of")
    elif engine_side is not None and engine_side.prefix_hit_share is not None:
        hits["cached_share"] = engine_side.prefix_hit_share
    if counts.sums["expected_hits_of"] and not _lacks_expectations(counts):
        hits["expected_cached_share"] = counts.share("expected_hits", "expected_hits_of")
    return hits


def _lacks_expectations(counts: RequestCounts) -> bool:
    """Whether nobody can say of some answered requests how many hits to expect: those of a mix's
    other parts.
    """
    return counts.sums["expected_hits_of"] < counts.sums["cached_tokens_of"]


def _drafts(engine_side: EngineSide | None) -> dict[str, float]:
    """How many drafted tokens were accepted, as far as the engines say it."""
    drafts: dict[str, float] = {}
    if engine_side is None:
        return drafts
    if engine_side.spec_accepted_share is not None:
        drafts["spec_accepted_share"] = engine_side.spec_accepted_share
    if engine_side.spec_accepted_length is not None:
        drafts["spec_accepted_length"] = engine_side.spec_accepted_length
    return drafts


def _fidelity(point: LoadPoint) -> dict[str, float]:
    """How near a load at recorded times came to what was recorded. Raises ProblemsError where the
    trace can no longer be read.
    """
    fidelity = fidelity_of(point.workload, point.level, point.arrivals)
    return {} if fidelity is None else fidelity.evidence()


def _surroundings(
    stats: Sequence[ClientStats], hosts: Sequence[HostLoad], requests: int
) -> dict[str, float]:
    """Figures of what neither engine nor client did: of the network, and of the engine's host on
    which other programs did most.
    """
    retransmits = float(sum(client.tcp_retransmits for client in stats))
    retransmits_per_request = 0.0
    if retransmits > CHANCE_RETRANSMITS:
        retransmits_per_request = retransmits / max(1, requests)
    return {
        "tcp_retransmits": retransmits,
        "tcp_retransmits_per_request": retransmits_per_request,
        "network_silent_max_s": max((client.network_silent_max_s for client in stats), default=0.0),
        "foreign_cpu_s": max((host.foreign_cpu_s for host in hosts), default=0.0),
        "foreign_cpu_share": max((host.foreign_cpu_share for host in hosts), default=0.0),
        "foreign_launches": float(sum(host.foreign_launches for host in hosts)),
        **_core_evidence(hosts),
    }


def _core_evidence(hosts: Sequence[HostLoad]) -> dict[str, float]:
    """How much an engine waited for cores, on the host where others took most of its CPU time; none
    where no kernel counts it. Hosts on which others took at most LEAST_LOST_S are looked at only
    where they are all.
    """
    losses: list[_CoreLoss] = []
    for host in hosts:
        if host.core_wait is not None:
            losses.append(_CoreLoss(host.core_wait, host.foreign_cpu_s))
    if not losses:
        return {}
    large_losses = [loss for loss in losses if loss.lost_s > LEAST_LOST_S]
    worst = max(large_losses or losses, key=attrgetter("lost_share"))
    return {
        "engine_cpu_s": worst.wait.ran_s,
        "core_wait_s": worst.wait.waited_s,
        "lost_cpu_s": worst.lost_s,
        "lost_cpu_share": worst.lost_share,
    }


@dataclass(frozen=True, slots=True)
class _CoreLoss:
    """How an engine's threads waited on a host, where foreign programs used ``foreign_s`` of CPU."""

    wait: CoreWait
    foreign_s: float

    @property
    def lost_s(self) -> float:
        return self.wait.lost_s(self.foreign_s)

    @property
    def lost_share(self) -> float:
        return self.wait.lost_share(self.foreign_s)


def _gpu_evidence(gpus: Sequence[GpuCondition]) -> dict[str, float]:
    """Figures of the GPU that fared worst, as far as GPUs report them; none where none was sampled."""
    if not gpus:
        return {}
    evidence = {"gpus_lost": float(sum(gpu.is_lost for gpu in gpus))}
    foreign_bytes = [gpu.foreign_bytes for gpu in gpus if gpu.foreign_bytes is not None]
    if foreign_bytes:
        evidence["gpu_foreign_gib"] = max(foreign_bytes) / 2**30
    braked = [gpu.braked_share for gpu in gpus if gpu.braked_share is not None]
    if braked:
        evidence["gpu_braked_share"] = max(braked)
    limited = [gpu.power_limited_share for gpu in gpus if gpu.power_limited_share is not None]
    if limited:
        evidence["gpu_power_limited_share"] = max(limited)
    ecc_errors = [gpu.ecc_errors for gpu in gpus if gpu.ecc_errors is not None]
    if ecc_errors:
        evidence["gpu_ecc_errors"] = float(sum(ecc_errors))
    return evidence


def _exceeded(limits: Iterable[EvidenceLimit], evidence: dict[str, float]) -> list[str]:
    """A sentence for each limit that the evidence is above. Figures that it lacks were not
    measured.
    """
    measured = [limit for limit in limits if limit.figure in evidence]
    return [limit.words(evidence) for limit in measured if limit.is_exceeded(evidence)]


def _invalid(counts: RequestCounts, evidence: dict[str, float]) -> list[str]:
    if not len(counts):
        return ["no request was scheduled in the measured window"]
    reasons = _exceeded(INVALID, evidence) + _violated_constraints(counts)
    if evidence["ok_share"] == 0.0:
        reasons.append("not one request succeeded")
    return reasons


@dataclass(frozen=True, slots=True)
class Violations:
    """The answers of a point, or of a part of a mix, that are not what they had to be."""

    part: str | None
    violated: int
    checked: int

    @property
    def share(self) -> float:
        return self.violated / self.checked

    def least_share(self) -> float:
        """The share that violates at least, with VIOLATIONS_CONFIDENCE: the lower bound of Clopper
        and Pearson (1934), for answers that do not depend on each other.
        """
        if not self.violated:
            return 0.0
        from scipy.special import betaincinv  # imported late: `load` starts without scipy

        free = self.checked - self.violated + 1
        return float(betaincinv(self.violated, free, 1 - VIOLATIONS_CONFIDENCE))

    def words(self) -> str:
        place = "" if self.part is None else f"in part {self.part!r} "
        return (
            f"{place}{self.share:.1%} of the answers that were checked are not what they had to be"
        )

    def counted(self) -> str:
        """How many answers that are."""
        return f"{self.violated:,} of {self.checked:,}"


def _violations(counts: RequestCounts) -> list[Violations]:
    """Those of each part of a mix. Where the constraint was applied in every part, it was in the
    whole point.
    """
    parts = sorted(counts.constraint_checked, key=lambda part: part or "")
    return [
        Violations(part, counts.constraint_violated[part], counts.constraint_checked[part])
        for part in parts
    ]


def _violated_constraints(counts: RequestCounts) -> list[str]:
    """A sentence for each part of a mix whose constraint was not applied: more answers violate it
    than MAX_VIOLATED, and more than chance explains where few were checked.
    """
    reasons = []
    for violations in _violations(counts):
        least = violations.least_share()
        if least > MAX_VIOLATED:
            reasons.append(
                f"the constraint was not applied: {violations.words()} ({violations.counted()}: at "
                f"least {least:.1%}, with {VIOLATIONS_CONFIDENCE:.0%} confidence)"
            )
    return reasons


def _notes_on_violations(counts: RequestCounts) -> list[str]:
    """That more answers than MAX_VIOLATED violate their constraint, where that may be chance."""
    notes = []
    for violations in _violations(counts):
        if violations.share > MAX_VIOLATED >= violations.least_share():
            notes.append(
                f"{violations.words()} ({violations.counted()}): too few to tell that the "
                f"constraint was not applied, for which more than {MAX_VIOLATED:.0%} must be beyond "
                "chance"
            )
    return notes


def _parts_sent_as_text(counts: RequestCounts, point: LoadPoint) -> frozenset[str | None]:
    """The parts of a mix whose prompts were text; None stands for a workload that is no mix."""
    all_parts = counts.prompt_lengths.parts
    if not point.dialect.prompt_token_ids:
        return all_parts
    has_tokenizer = point.tokenizer is not None
    names = point.workload.part_names()
    if not names:
        return all_parts if point.workload.sends_text(has_tokenizer) else frozenset()
    contents = [content for content in point.workload.with_parts() if content.name in names]
    return frozenset(content.name for content in contents if content.sends_text(has_tokenizer))


def _wrong_lengths(counts: RequestCounts, parts: Collection[str | None]) -> list[str]:
    """A sentence if the prompts of these parts have not the lengths asked for."""
    error = counts.prompt_lengths.relative_error(parts)
    return _exceeded(LENGTHS, {"input_length_error": error})


def _disturbed(evidence: dict[str, float]) -> list[str]:
    reasons = _exceeded(DISTURBED_GPU, evidence)
    share = evidence["foreign_cpu_share"]
    if share > MOST_FOREIGN_CPU and evidence["foreign_cpu_s"] > LEAST_FOREIGN_S:
        reasons.append(
            f"other processes took {share:.0%} of the CPU of an engine's host (limit "
            f"{MOST_FOREIGN_CPU:.0%})"
        )
    lost = evidence.get("lost_cpu_share", 0.0)
    if lost > MOST_LOST_CPU and evidence["lost_cpu_s"] > LEAST_LOST_S:
        reasons.append(
            f"an engine waited for cores that other processes used: up to {lost:.0%} of the CPU "
            f"time that it needed (limit {MOST_LOST_CPU:.0%})"
        )
    return reasons


def _client_bound(evidence: dict[str, float], point: LoadPoint) -> list[str]:
    limits = list(CLIENT_BOUND)
    if np.isinf(point.level.value):
        # requests that are due at once are sent one after the other, and the loop does nothing else
        # meanwhile; the figure of such a load is its throughput
        limits.remove(SENT_LATE)
        limits.remove(LOOP_LAGS)
    reasons = _exceeded(limits, evidence)
    coalesced = evidence["coalesced_share"]
    if evidence["client_cpu_share"] > BUSY_CPU_SHARE and coalesced > BUFFERED_SHARE:
        reasons.append(
            f"{coalesced:.0%} of events came together with the one before while the client was busy"
        )
    return reasons


def _buffered(evidence: dict[str, float]) -> list[str]:
    in_lumps = evidence["lump_share"]
    if in_lumps > BUFFERED_SHARE:
        return [
            f"{in_lumps:.0%} of answers came in one event or a few (a gateway that does not "
            "stream?): when each token came is not known, so there is no TPOT and no ITL"
        ]
    coalesced = evidence["coalesced_share"]
    if coalesced <= BUFFERED_SHARE or evidence["client_cpu_share"] > BUSY_CPU_SHARE:
        return []
    return [
        f"{coalesced:.0%} of events came together with the one before while the client was idle: "
        "something gathers them "
        "(a proxy? undeclared speculative decoding?), so TPOT and ITL cannot be seen"
    ]


# -- notes: what a reader must know although the point stays valid


def _notes(
    counts: RequestCounts,
    evidence: dict[str, float],
    point: LoadPoint,
    stats: Sequence[ClientStats],
    open_at_the_end: OpenAtTheEnd | None,
) -> list[str]:
    is_by_time = point.duration_s is not None
    overload = _overload(counts, evidence, open_at_the_end) if is_by_time else []
    notes = [*overload]
    if evidence["ok_share"]:
        notes += _exceeded([MANY_FAILED, CUT_OFF], evidence)
    notes += _notes_on_the_rate(evidence, point)
    notes += _exceeded([*NOTES, CONSTRAINT_CUT, CONSTRAINT_UNCHECKED], evidence)
    notes += _notes_on_violations(counts)
    notes += _notes_on_hits(counts, evidence, stats)
    notes += _notes_on_drafts(evidence, point)
    notes += _notes_on_fidelity(evidence, point)
    notes += _notes_on_answers(counts, evidence, point)
    notes += _notes_on_sending(counts, evidence, point)
    if is_by_time:
        notes += _notes_on_the_window(counts, evidence, point)
    if is_by_time and not overload:
        notes += _unsteady(counts)
    return notes


def _is_unsteady(counts: RequestCounts) -> bool:
    """Whether the number of open requests changed within the window by more than chance explains,
    apart from its first quarter.
    """
    quarters = counts.open.by_quarter()
    mean = quarters.mean()
    by_chance = 2 * np.sqrt(max(mean, 1.0))  # two standard deviations of a Poisson count
    return len(counts) >= FEW_REQUESTS and bool(np.ptp(quarters[1:]) > max(0.25 * mean, by_chance))


def _unsteady(counts: RequestCounts) -> list[str]:
    if not _is_unsteady(counts):
        return []
    _, second, third, fourth = counts.open.by_quarter()
    span = f"from {second:.0f} to {fourth:.0f}"
    if not min(second, fourth) <= third <= max(second, fourth):
        span = f"from {second:.0f} via {third:.0f} to {fourth:.0f}"
    return [f"requests in flight were not steady: {span} within the window"]


def _overload(
    counts: RequestCounts, evidence: dict[str, float], end: OpenAtTheEnd | None
) -> list[str]:
    """What shows that more was sent than the engine can answer, where it is not enough for a
    backlog: open requests became more and more, many more than an engine that keeps up has.
    """
    if end is None or not _is_unsteady(counts):
        return []
    quarters = counts.open.by_quarter()
    grew = bool(np.all(np.diff(quarters[1:]) > 0))
    offered = evidence["offered_rate"]
    ended = counts.open.ended_per_s()
    falls_behind = ended < MIN_ENDED * offered and end.still_open > MANY_OPEN * end.kept_up
    if not (grew and falls_behind):
        return []
    return [
        f"overloaded: in flight grew from {quarters[1]:.0f} to {quarters[3]:.0f} within the "
        f"window; requests ended at {ended:.3g} of {offered:.3g} a second offered"
    ]


def _notes_on_hits(
    counts: RequestCounts, evidence: dict[str, float], stats: Sequence[ClientStats]
) -> list[str]:
    """How many prompt tokens came from the engine's prefix cache, and whether that is what was to be
    expected of what was sent.
    """
    notes = []
    without_expectation = _without_expectation(counts, stats)
    cached_share = evidence.get("cached_share", 0.0)
    if cached_share > MAX_CACHED:
        note = f"{cached_share:.1%} of prompt tokens came from the engine's prefix cache"
        if "expected_cached_share" in evidence:
            note += f"; {evidence['expected_cached_share']:.1%} were expected of an unlimited cache"
        elif without_expectation:
            note += f"; {without_expectation}"
        notes.append(note)
    elif without_expectation:
        notes.append(without_expectation)
    if "cached_share" not in evidence or not counts.sums["expected_hits_of"]:
        return notes
    if _lacks_expectations(counts) and not counts.sums["reports_of_hits"]:
        return notes  # the engine's metrics do not say whose hits they count
    measured = cached_share
    if counts.sums["reports_of_hits"]:
        measured = counts.share("measured_hits", "expected_hits_of")
    expected = counts.share("expected_hits", "expected_hits_of")
    template = counts.share("template_tokens", "expected_hits_of")
    if measured > expected + template + MAX_CACHED:
        held = "prompts of earlier runs"
        # what was expected counts answered requests alone
        if evidence["failed_share"] or "cut_off_share" in evidence:
            held += ", or of requests that failed"
        notes.append(
            f"more prompt tokens were found in the prefix cache ({measured:.1%}) than this run had "
            f"sent before ({expected:.1%}): the cache held {held}"
        )
    if expected >= LEAST_EXPECTED and measured < FEW_HITS * expected:
        notes.append(
            f"only {measured:.1%} of prompt tokens were found in the prefix cache, and "
            f"{expected:.1%} had been sent before: requests went to other replicas, the cache had no "
            "room for them, or the chat template rewrites what was said before"
        )
    return notes


def _without_expectation(counts: RequestCounts, stats: Sequence[ClientStats]) -> str:
    """Why nobody can say how many hits were to be expected, and of which requests one can; empty
    where all are expected, or the engine keeps no prefixes.
    """
    reasons = {client.no_expected_hits for client in stats if client.no_expected_hits is not None}
    if not reasons:
        return ""
    text = f"how many prefix hits to expect is not known: {'; '.join(sorted(reasons))}"
    if counts.sums["expected_hits_of"]:
        expected = counts.share("expected_hits", "expected_hits_of")
        text += f"; of the other parts {expected:.1%} were expected of an unlimited cache"
    return text


def _notes_on_drafts(evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """How many drafted tokens were accepted, and whether that says anything about real text."""
    if "spec_accepted_share" not in evidence:
        return []
    note = f"{evidence['spec_accepted_share']:.1%} of drafted tokens were accepted"
    if "spec_accepted_length" in evidence:
        note += f", {evidence['spec_accepted_length']:.2f} tokens a step"
    random_parts = _random_parts(point.workload)
    if point.workload.content_source() == "random":
        note += ": this says nothing about real text, because prompts are random"
    elif random_parts:
        note += f": this is not the share of real text, because {listed(random_parts)} "
        note += "send random prompts" if len(random_parts) > 1 else "sends random prompts"
    elif point.dialect.length_control not in ("natural", "none"):
        note += ", also behind the end that the model would have made: lengths are forced"
    return [note]


def _random_parts(workload: Workload) -> list[str]:
    """The parts of a mix whose prompts are random; of a workload that is no mix, itself if so."""
    return [part.name for part in workload.with_parts() if part.content_source() == "random"]


def _notes_on_the_rate(evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """At what rate requests were due, and why, where it is far below the one asked for."""
    missing = evidence["offered_below_asked"]
    if missing <= MAX_DIFFERENCE:
        return []
    is_trace = point.arrivals.process == "trace"
    causes = ["this part of the trace has fewer" if is_trace else "arrivals came in bursts"]
    if evidence["later_turns_share"]:
        causes.append("later turns waited for answers and pauses (a longer warmup gives them time)")
    return [
        f"{missing:.0%} fewer requests were due than the rate asks for, "
        f"{evidence['offered_rate']:.3g} of {point.level.value:.3g} a second: "
        f"{' or '.join(causes)}"
    ]


def _notes_on_fidelity(evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """How a trace was brought to another rate than the one at which it was recorded."""
    factor = evidence.get("rate_factor", 1.0)
    if abs(factor - 1) < RATE_DIFFERS:
        return []
    rate = f"{factor:.3g} times the recorded {evidence['recorded_rate']:.4g} requests/s"
    if point.arrivals.scale is Scale.THIN:
        return [f"{evidence['thinned_share']:.1%} of sessions left out, for {rate}"]
    if evidence["later_turns_share"]:
        return [f"gaps between sessions stretched alike, pauses within them kept, for {rate}"]
    return [f"all gaps stretched alike, for {rate}"]


def _notes_on_answers(
    counts: RequestCounts, evidence: dict[str, float], point: LoadPoint
) -> list[str]:
    """How answers ended, and what their events held."""
    notes = []
    if counts.odd_ends:
        reasons = ", ".join(
            f"{count} by {reason[:MOST_REASON_CHARACTERS]}"
            for reason, count in counts.odd_ends.most_common(MOST_END_REASONS)
        )
        more = len(counts.odd_ends) - MOST_END_REASONS
        if more > 0:
            reasons += f" and {more} other reasons"
        notes.append(f"{evidence['odd_end_share']:.1%} of answers ended unusually: {reasons}")
    in_lumps = evidence["lump_share"]
    tokens_per_event = evidence["tokens_per_event"]
    if 0 < in_lumps <= BUFFERED_SHARE:
        notes.append(
            f"{in_lumps:.1%} of answers came in one event or a few: these have no TPOT or ITL"
        )
    most_tokens = max(MANY_TOKENS, point.dialect.tokens_per_step)
    if in_lumps <= BUFFERED_SHARE and tokens_per_event > most_tokens:
        notes.append(
            f"an event held {tokens_per_event:.1f} tokens on average: the times between these are "
            "not seen, and ITL spreads each gap evenly over them"
        )
    return notes


def _notes_on_sending(
    counts: RequestCounts, evidence: dict[str, float], point: LoadPoint
) -> list[str]:
    """A network that was silent for a moment, requests that waited, prompts of other lengths."""
    notes = []
    silent_s = evidence["network_silent_max_s"]
    if NOTED_SILENT_S < silent_s <= MOST_SILENT_S:
        notes.append(f"{SILENT.format(silent_s)}: the highest latencies are the network's")
    capped = evidence["capped_share"]
    if capped:
        notes.append(
            f"{capped:.1%} of requests waited for a place: max_in_flight is "
            f"{point.max_in_flight}, as asked"
        )
    wrong_lengths = _wrong_lengths(counts, _parts_sent_as_text(counts, point))
    notes += [f"{sentence}; they were sent as text" for sentence in wrong_lengths]
    if np.isinf(point.level.value):
        late_s = _quantile(counts.send_delay_ms, 0.5) / 1e3
        notes.append(
            f"all requests were due at once: half of them were sent {late_s:.3f} s later or more"
        )
    return notes


def _notes_on_the_window(
    counts: RequestCounts, evidence: dict[str, float], point: LoadPoint
) -> list[str]:
    """Whether the window of a point by time begins after a warm-up, and is long enough."""
    notes = []
    if counts.due_from_s == 0:
        why = "no part of the run was steady, so all of it counts"
        if point.warmup_s == 0:
            why = "no warm-up"
        notes.append(f"{why}: the window begins before the engine is under load")
    e2e_s = evidence["e2e_p95_s"]
    window_s = counts.due_until_s - counts.due_from_s
    if window_s < LEAST_E2E_TIMES * e2e_s:
        notes.append(
            f"the window ({window_s:.4g} s) is shorter than {LEAST_E2E_TIMES} end-to-end times "
            f"(p95 {e2e_s:.1f} s): its throughput depends on where it begins and ends"
        )
    return notes


# -- backlog


@dataclass(frozen=True, slots=True)
class OpenAtTheEnd:
    """How many requests were due, and how many of them were over, when the last one was due.
    ``kept_up``: how many would be open if the engine kept up. ``first_s``, ``last_s``: mean
    end-to-end times of the first and the last tenth of all requests.
    """

    due: int
    over: int
    kept_up: float
    first_s: float
    last_s: float

    @property
    def still_open(self) -> int:
        return self.due - self.over

    def evidence(self) -> dict[str, float]:
        return {
            "open_at_end": float(self.still_open),
            "open_if_kept_up": self.kept_up,
            "e2e_first_tenth_s": self.first_s,
            "e2e_last_tenth_s": self.last_s,
        }

    def is_backlog(self) -> bool:
        """Whether more are open than chance explains (arrivals and answers taken as two Poisson
        counts), and the last requests took far longer than the first.
        """
        by_chance = BEYOND_CHANCE * np.sqrt(self.due + self.over)
        is_beyond_chance = bool(self.still_open - self.kept_up > by_chance)
        return is_beyond_chance and self.last_s > SLOWER * self.first_s


def _open_at_the_end(counts: RequestCounts, point: LoadPoint) -> OpenAtTheEnd | None:
    """The requests of an open loop when the last one was due. None for other points, and where
    there are too few requests to judge.

    An engine that keeps up has rate x end-to-end time requests open (Little 1961); the first
    requests, which met an empty engine, give that time.
    """
    is_at_once = np.isinf(point.level.value) or counts.due_until_s <= 0
    is_open_loop = point.level.control == "request_rate"
    if not is_open_loop or is_at_once or len(counts) < FEW_REQUESTS:
        return None
    end = counts.open.at_the_end()
    first_s, last_s = counts.open.first_and_last_s()
    rate = end.due_in_last_quarter / (counts.due_until_s / 4)
    return OpenAtTheEnd(end.due, end.over, rate * first_s, first_s, last_s)


def _backlog(end: OpenAtTheEnd | None, evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """Why an open loop's requests came in faster than they were answered, over the whole run with
    its warm-up; empty where they did not.

    Below about 85 % of the engine's capacity a batch that fills up is no backlog.
    docs/explained/validity.md says how often this errs.
    """
    if end is None:
        return []
    reasons = []
    sent_in_time = evidence["achieved_over_offered"]
    if sent_in_time < MIN_ACHIEVED and point.max_in_flight is None:
        reasons.append(f"only {sent_in_time:.1%} of requests could be sent in their time")
    if end.is_backlog():
        reasons.append(
            f"{end.still_open} of {end.due} requests were open when the last one was due; "
            f"{end.kept_up:.0f} would be if the engine kept up, and they took from "
            f"{end.first_s:.2f} s to {end.last_s:.2f} s: it does not keep up with this rate"
        )
    return reasons

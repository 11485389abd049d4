"""Was a point honestly measured? The verdict and its evidence.

``broken_output``: the engine's answers are no output (NaN, nothing, the same token for ever;
analysis/broken_output.py). ``invalid``: what was measured is not what was asked for (lengths,
lost clients, nothing answered). ``network_bound``: the network was silent or lost much: the
latencies are the network's. ``disturbed``: other programs took most of an engine's host: the
figures are those of an engine that shares its host. ``client_bound``: the client was too slow: the
figures are the client's; repeat with more clients. ``stream_buffered``: events came in lumps
although the client was idle (a proxy, a server that collects them). When each token came is not
known: TTFT is that of the first lump, and there is no TPOT or ITL. So it is where answers came in
one event. The tokens of one speculative step are no lump (load/response). ``engine_bound_backlog``:
the engine fell behind all through the run: latencies grow with the length of the run. A point that
the user ended is ``interrupted``, whatever is found here (sweep/measure.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from orchestrator.load.point import ClientStats, HostLoad, LoadPoint
from orchestrator.load.request_counts import MAX_SEND_DELAY_MS, RequestCounts
from orchestrator.results.columns import NumberColumn, quantiles
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.outcomes import BUFFERED_SHARE, MANY_TOKENS
from orchestrator.results.validity import Validity

BUSY_CPU_SHARE = 0.7
# end-to-end times; the throughput of a shorter window depends on where it begins and ends
WINDOWS = 3
MIN_ACHIEVED = 0.98
MAX_LENGTH_ERROR = 0.01
MAX_FAILED = 0.05
MAX_LOST = 0.05
BEYOND_CHANCE = 2.33  # standard deviations: 1 % of a normal distribution lies above
SLOWER = 2  # the last tenth of requests must have taken so many times longer than the first
SHOWN, MOST_SHOWN = 3, 60  # reasons why answers ended, and characters of each
# any network loses a segment now and then; in a short run that would be a large share
CHANCE_RETRANSMITS = 3

# (name of a figure of the evidence, limit, sentence): above the limit the point has that verdict
Limit = tuple[str, float, str]
Limits = tuple[Limit, ...]
INVALID: Limits = (
    ("lost_requests", 0, "{0:.0f} requests were lost with their client process"),
    (
        "count_mismatch_share",
        0.01,
        "in {0:.1%} of requests the engine's token count is not what it streamed",
    ),
)
# a host that is there answers a probe within a second, whatever its programs do (sockets.KEEPALIVE)
NOTED_SILENT_S, MOST_SILENT_S = 1.3, 2.0
SILENT = "nothing came from a server's host for {0:.1f} s"
NETWORK_BOUND: Limits = (
    ("network_silent_max_s", MOST_SILENT_S, f"{SILENT}, not even from its kernel"),
    ("tcp_retransmits_per_request", 0.05, "TCP had to resend {0:.2f} segments per request"),
)
CLIENT_BOUND: Limits = (
    ("client_errors", 0, "{0:.0f} requests found no socket on the client's machine"),
    ("send_lag_p99_ms", MAX_SEND_DELAY_MS, "p99 of sent - due is {0:.1f} ms (limit {1:g})"),
    # any time stamp may be late by as much
    ("loop_lag_p99_ms", 10.0, "p99 of the client's loop lag is {0:.1f} ms (limit {1:g})"),
    # above this, queues build up in the client
    ("client_cpu_share", 0.9, "a client used {0:.0%} of its core (limit {1:.0%})"),
)
LENGTHS: Limits = (
    (
        "input_length_error",
        MAX_LENGTH_ERROR,
        "prompts were off by {0:.1%} from the length asked for (engine's count)",
    ),
)
MOST_FOREIGN_CPU = 0.5  # share of the CPU time of an engine's host
LEAST_FOREIGN_S = 10.0  # of CPU time: less is some program that starts or ends, no steady load
# share of prompt tokens that prompts have in common by chance: a first token, a chat template
MAX_CACHED = 0.005
# notes: what a reader must know although the point stays valid
NOTES: Limits = (
    (
        "failed_share",
        MAX_FAILED,
        "{0:.1%} of requests failed: throughput and latencies are those of the others",
    ),
    (
        "refused_share",
        0.5,
        "{0:.1%} of requests were refused by the server (HTTP 4xx, or too many for it)",
    ),
    (
        "output_length_error",
        MAX_LENGTH_ERROR,
        "answers were off by {0:.1%} from the length asked for",
    ),
    (
        "uncounted_share",
        0,
        "{0:.1%} of answers came without a usable token count: each event counts as one token",
    ),
    (
        "hidden_share",
        0,
        "{0:.1%} of output tokens were never streamed (reasoning): TPOT and ITL are of the others",
    ),
    ("cached_share", MAX_CACHED, "{0:.1%} of prompt tokens came from the engine's prefix cache"),
    (
        "lost_at_the_end",
        MAX_LOST,
        "throughput is {0:.0%} too low: the window has the end of the run, with less in flight",
    ),
    ("foreign_launches", 0, "{0:.0f} launches or load clients of other sweeps were on its hosts"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
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
    hosts: Sequence[HostLoad] = (),
    was_interrupted: bool = False,
) -> Verdict:
    """The verdict on one point, from the rows of all clients and what the clients measured about
    themselves.

    ``start_ns``: begin of the steady window; ``broken``: why the engine's answers are no output;
    ``hosts``: the hosts of the engines, where they are known; ``was_interrupted``: the user ended
    the point, so that the end of its window is not that of the run.
    """
    counts = RequestCounts(requests, stats, point, start_ns)
    evidence = _evidence(counts, stats, point) | _surroundings(stats, hosts, len(requests))
    if was_interrupted:
        evidence["lost_at_the_end"] = 0.0
    found = {
        Validity.BROKEN_OUTPUT: list(broken),
        Validity.INVALID: _invalid(counts, evidence),
        Validity.NETWORK_BOUND: _over(NETWORK_BOUND, evidence),
        Validity.DISTURBED: _disturbed(evidence),
        Validity.CLIENT_BOUND: _client_bound(evidence, point),
        Validity.STREAM_BUFFERED: _buffered(evidence),
        Validity.ENGINE_BOUND_BACKLOG: _backlog(counts, evidence, point),
    }
    if point.dialect.prompt_token_ids:
        found[Validity.INVALID] += _over(LENGTHS, evidence)
    validity = next((name for name, reasons in found.items() if reasons), Validity.VALID)
    return Verdict(validity, [*chain(*found.values()), *_notes(counts, evidence, point)], evidence)


def _quantile(column: NumberColumn, probability: float) -> float:
    values = column.values()
    return float(quantiles(values, [probability])[0]) if values.size else 0.0


def _evidence(
    counts: RequestCounts, stats: Sequence[ClientStats], point: LoadPoint
) -> dict[str, float]:
    """The figures behind the verdict; those of the worst client where there are several."""
    due_s, sums = counts.due_until_s - counts.due_from_s, counts.sums
    per_s = 1.0 / due_s if due_s > 0 else 0.0  # none where all were due at once
    return {
        "offered_rate": sums["all"] * per_s,
        "achieved_rate": sums["in_time"] * per_s,
        "achieved_over_offered": counts.share("in_time"),
        "ok_share": counts.share("ok"),
        "lost_requests": float(sums["lost"]),
        "client_errors": float(sums["no_socket"]),
        "sent_minus_scheduled_p99_ms": _quantile(counts.send_delay_ms, 0.99)
        if sums["in_time"]
        else 0.0,
        "send_lag_p99_ms": counts.client_delay_ms,
        "capped_share": counts.share("capped") if point.max_in_flight is not None else 0.0,
        "loop_lag_p99_ms": max((s.loop_lag_p99_ms for s in stats), default=0.0),
        "loop_lag_max_ms": max((s.loop_lag_max_ms for s in stats), default=0.0),
        "client_cpu_share": max((s.cpu_share for s in stats), default=0.0),
        "sockets_opened": float(sum(s.sockets_opened for s in stats)),
        "sockets_max": float(sum(s.sockets_max for s in stats)),
        "in_flight_max": float(sum(s.in_flight_max for s in stats)),
        "coalesced_share": counts.share("coalesced", "chunks"),
        "lump_share": counts.share("in_lumps", "several"),
        "tokens_per_event": counts.share("events_tokens", "events"),
        "odd_end_share": sum(counts.odd_ends.values()) / max(counts.sums["ok"], 1),
        "start_error_max_ms": max((s.start_error_ms for s in stats), default=0.0),
        "count_mismatch_share": counts.share("mismatched", "exact"),
        "input_length_error": counts.prompt_lengths.relative_error(),
        # of engines that cannot be told to keep lengths, or whose tokens another tokenizer counts
        "output_length_error": counts.share("output_off", "output_asked")
        if point.dialect.length_control != "natural"
        else 0.0,
        "failed_share": (len(counts) - sums["ok"]) / max(len(counts), 1),
        "refused_share": counts.share("refused"),
        "uncounted_share": counts.share("uncounted", "ok"),
        "hidden_share": counts.share("hidden_tokens", "hidden_tokens_of"),
        "cached_share": counts.share("cached_tokens", "cached_tokens_of"),
        "e2e_p95_s": _quantile(counts.e2e_from_due_s, 0.95),
        "lost_at_the_end": counts.lost_at_the_end(point.level) if point.duration_s is None else 0.0,
    }


def _surroundings(
    stats: Sequence[ClientStats], hosts: Sequence[HostLoad], requests: int
) -> dict[str, float]:
    """What neither engine nor client did: figures of the network and of the worst of the engines'
    hosts.
    """
    again = float(sum(one.tcp_retransmits for one in stats))
    return {
        "tcp_retransmits": again,
        "tcp_retransmits_per_request": again / max(1, requests)
        if again > CHANCE_RETRANSMITS
        else 0.0,
        "network_silent_max_s": max((one.network_silent_max_s for one in stats), default=0.0),
        "foreign_cpu_s": max((one.foreign_cpu_s for one in hosts), default=0.0),
        "foreign_cpu_share": max((one.foreign_cpu_share for one in hosts), default=0.0),
        "foreign_launches": float(sum(one.foreign_launches for one in hosts)),
    }


def _disturbed(evidence: dict[str, float]) -> list[str]:
    share, seconds = evidence["foreign_cpu_share"], evidence["foreign_cpu_s"]
    if share <= MOST_FOREIGN_CPU or seconds <= LEAST_FOREIGN_S:
        return []
    return [
        (
            f"other processes took {share:.0%} of the CPU of an engine's host (limit "
            f"{MOST_FOREIGN_CPU:.0%})"
        )
    ]


def _over(limits: Iterable[Limit], evidence: dict[str, float]) -> list[str]:
    return [
        said.format(evidence[name], limit) for name, limit, said in limits if evidence[name] > limit
    ]


def _invalid(counts: RequestCounts, evidence: dict[str, float]) -> list[str]:
    if not len(counts):
        return ["no request was scheduled in the measured window"]
    failed = ["not one request succeeded"] if evidence["ok_share"] == 0.0 else []
    return _over(INVALID, evidence) + failed


def _client_bound(evidence: dict[str, float], point: LoadPoint) -> list[str]:
    # then requests are late by nature: they are sent one after another
    at_once = bool(np.isinf(point.level.value))
    found = _over(
        [limit for limit in CLIENT_BOUND if not (at_once and limit[0] == "send_lag_p99_ms")],
        evidence,
    )
    shared = evidence["coalesced_share"]
    if evidence["client_cpu_share"] > BUSY_CPU_SHARE and shared > BUFFERED_SHARE:
        found.append(
            f"{shared:.0%} of events came together with the one before while the client was busy"
        )
    return found


def _buffered(evidence: dict[str, float]) -> list[str]:
    lumps = evidence["lump_share"]
    if lumps > BUFFERED_SHARE:
        return [
            f"{lumps:.0%} of answers came in one event or a few (a gateway that does not stream?): "
            "when each token came is not known, so there is no TPOT and no ITL"
        ]
    shared = evidence["coalesced_share"]
    if shared <= BUFFERED_SHARE or evidence["client_cpu_share"] > BUSY_CPU_SHARE:
        return []
    return [
        f"{shared:.0%} of events came together with the one before while the client was idle: "
        "something gathers them "
        "(a proxy? undeclared speculative decoding?), so TPOT and ITL cannot be seen"
    ]


def _notes(counts: RequestCounts, evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """What a reader must know although the point stays valid."""
    notes, capped = (
        _over(NOTES if evidence["ok_share"] else NOTES[1:], evidence),
        evidence["capped_share"],
    )
    notes += _notes_on_answers(counts, evidence, point)
    if NOTED_SILENT_S < (silent_s := evidence["network_silent_max_s"]) <= MOST_SILENT_S:
        notes.append(f"{SILENT.format(silent_s)}: the highest latencies are the network's")
    if capped:
        notes.append(
            f"{capped:.1%} of requests waited for a place: max_in_flight is "
            f"{point.max_in_flight}, as asked"
        )
    if not point.dialect.prompt_token_ids:
        notes += [f"{said}; they were sent as text" for said in _over(LENGTHS, evidence)]
    if np.isinf(point.level.value):
        late_s = _quantile(counts.send_delay_ms, 0.5) / 1e3
        notes.append(
            f"all requests were due at once: half of them were sent {late_s:.3f} s later or more"
        )
    if point.duration_s is None:
        return notes
    if counts.due_from_s == 0:
        found = (
            "no warm-up"
            if point.warmup_s == 0
            else "no part of the run was steady, so all of it counts"
        )
        notes.append(f"{found}: the window begins before the engine is under load")
    e2e_s, window_s = evidence["e2e_p95_s"], counts.due_until_s - counts.due_from_s
    if window_s < WINDOWS * e2e_s:
        short = (
            f"the window ({window_s:.4g} s) is shorter than {WINDOWS} end-to-end times (p95 "
            f"{e2e_s:.1f} s)"
        )
        notes.append(f"{short}: its throughput depends on where it begins and ends")
    quarters = counts.open.by_quarter()
    if len(counts) >= 8 and np.ptp(quarters[1:]) > max(
        0.25 * quarters.mean(), 2 * np.sqrt(max(quarters.mean(), 1.0))
    ):
        said = f"from {quarters[1]:.0f} to {quarters[3]:.0f} within the window"
        notes.append(f"requests in flight were not steady: {said}")
    return notes


def _notes_on_answers(
    counts: RequestCounts, evidence: dict[str, float], point: LoadPoint
) -> list[str]:
    """How answers ended, and what their events held."""
    notes = []
    if counts.odd_ends:
        reasons = ", ".join(
            f"{count} by {reason[:MOST_SHOWN]}"
            for reason, count in counts.odd_ends.most_common(SHOWN)
        )
        more = (
            f" and {len(counts.odd_ends) - SHOWN} other reasons"
            if len(counts.odd_ends) > SHOWN
            else ""
        )
        notes.append(f"{evidence['odd_end_share']:.1%} of answers ended unusually: {reasons}{more}")
    lumps, each = evidence["lump_share"], evidence["tokens_per_event"]
    if 0 < lumps <= BUFFERED_SHARE:
        notes.append(
            f"{lumps:.1%} of answers came in one event or a few: these have no TPOT or ITL"
        )
    if lumps <= BUFFERED_SHARE and each > max(MANY_TOKENS, point.dialect.tokens_per_step):
        notes.append(
            f"an event held {each:.1f} tokens on average: the times between these are not seen, "
            "and "
            "ITL spreads each gap evenly over them"
        )
    return notes


def _backlog(counts: RequestCounts, evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """Open loop: do requests come in faster than they are answered, all through the run, warm-up
    included?

    An engine that keeps up has rate x end-to-end time requests open (Little 1961); the first
    requests, which met an empty engine, give that time. A backlog is found where more are open at
    the end than that and chance explain (arrivals and answers taken as two Poisson counts), and the
    last requests took far longer than the first. A batch that fills up does not do that below about
    85 % of the engine's capacity. How often this errs: docs/metrics.md.
    """
    at_once = np.isinf(point.level.value) or counts.due_until_s <= 0
    if point.level.control != "request_rate" or len(counts) < 8 or at_once:
        return []
    reasons = []
    if evidence["achieved_over_offered"] < MIN_ACHIEVED and point.max_in_flight is None:
        reasons.append(
            f"only {evidence['achieved_over_offered']:.1%} of requests could be sent in their time"
        )
    end = counts.open.at_the_end()
    first_s, last_s = counts.open.first_and_last_s()
    still_open = end.due - end.over
    kept_up = end.due_in_last_quarter / (counts.due_until_s / 4) * first_s
    evidence["open_at_end"] = float(still_open)
    evidence["open_if_kept_up"] = kept_up
    evidence["e2e_first_tenth_s"] = first_s
    evidence["e2e_last_tenth_s"] = last_s
    if (
        still_open - kept_up > BEYOND_CHANCE * np.sqrt(end.due + end.over)
        and last_s > SLOWER * first_s
    ):
        reasons.append(
            f"{still_open} of {end.due} requests were open when the last one was due; "
            f"{kept_up:.0f} would be if the "
            f"engine kept up, and they took from {first_s:.2f} s to {last_s:.2f} s: it does not "
            "keep up with this rate"
        )
    return reasons

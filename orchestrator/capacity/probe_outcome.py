"""What one ended probe shows of its level, under one tier of limits.

A probe that was saturated, or ended before its time because it failed, never shows that a level
holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from orchestrator.base.arrays import Bools
from orchestrator.base.errors import FailureClass
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.records import AttemptData, Committed, PointHead
from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.spec.load import Slo

SEPARATOR = "; "  # between the limits of several SLOs for which a probe ended
# share of its requests that max_in_flight may hold back in a probe which shows that a level holds
MOST_CAPPED = 0.01
# limits on the time of every token; it is not known of a stream whose tokens came in lumps
TOKEN_LIMITS = ("tpot", "itl_p99")


class Shows(Enum):
    """What a probe shows of its level."""

    ANY_VERDICT = auto()  # that the level holds, or that it fails
    FAILURE_ONLY = auto()  # that the level fails, and never that it holds
    DIVERGED = auto()  # as FAILURE_ONLY: requests came in faster than they were answered
    # as FAILURE_ONLY, and no share counts its requests: slow answers were not waited for
    INTERRUPTED = auto()
    ENGINE_DIED = auto()  # that the level fails, without any figures
    CLIENT_BOUND = auto()  # nothing, because the clients are too slow for the level
    NOTHING = auto()
    POINTLESS = auto()  # that no probe of any level will show anything

    @property
    def is_evidence(self) -> bool:
        """Whether the requests of the probe are evidence on its level."""
        return self in (
            Shows.ANY_VERDICT,
            Shows.FAILURE_ONLY,
            Shows.DIVERGED,
            Shows.INTERRUPTED,
        )


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """One ended probe under one tier.

    ``met``: an array for each test of the tier: whether each request met it, in order of when
    requests were due. ``whole``: the probe ran its time, so more evidence on its level takes
    another probe. ``start``: number of the engine start on which it ran, from 0. ``validity``: the
    verdict on the probe. ``seconds``: for how long its requests were due; 0: unknown.
    """

    level: float
    met: tuple[Bools, ...] = ()
    shows: Shows = Shows.ANY_VERDICT
    whole: bool = True
    start: int = 0
    validity: str = Validity.VALID
    seconds: float = 0.0


def outcome_of_attempt(attempt: Committed, level: float, slo: Slo, starts: int = 1) -> ProbeOutcome:
    """Judges a stored attempt by the tier ``slo``. ``starts``: see ``outcome_of_point``."""
    if not isinstance(attempt, AttemptData):
        return ProbeOutcome(level, shows=Shows.NOTHING)
    # imported late, here and below: plans are made without rows
    from orchestrator.analysis.slo import stored_values, tests

    met: tuple[Bools, ...] = ()
    if attempt.status == "ok":
        met = tuple(test.met for test in tests(stored_values(attempt), slo))
    launched = attempt.deployment is None or attempt.deployment.launched
    return outcome_of_point(attempt.point, level, met, slo, launched, starts)


def outcome_of_point(
    point: PointHead,
    level: float,
    met: tuple[Bools, ...],
    slo: Slo,
    launched: bool = True,
    starts: int = 1,
) -> ProbeOutcome:
    """Judges a stored row of ``points`` by the tier ``slo``.

    ``met``: as in ``ProbeOutcome``. ``launched``: the engine was started for this experiment; if
    not, a server behind an endpoint may have died of something else than the load. ``starts``: how
    many engine starts the file asks for now; where it is one, it does not matter on which start a
    probe ran.
    """
    has_requests = any(results.size > 0 for results in met)
    shows = _shows(point, slo, launched, has_requests)
    return ProbeOutcome(
        level,
        met if shows.is_evidence else (),
        shows,
        whole=point.ended_early is None,
        start=point.start if starts > 1 else 0,
        validity=point.validity,
        seconds=point.window_s,
    )


def no_load_changes(validity: str, slo: Slo) -> bool:
    """Whether probes of every load will get this verdict once one probe got it."""
    if validity not in list(Validity):
        return False  # a verdict of another version of the orchestrator
    ends_search = Validity(validity).ends_search
    if ends_search is EndsSearch.PARTLY:
        return _limits_tokens(slo)
    return ends_search is EndsSearch.YES


def _limits_tokens(slo: Slo) -> bool:
    return any(limit.of in TOKEN_LIMITS for limit in slo.limits)


def _shows(point: PointHead, slo: Slo, launched: bool, has_requests: bool) -> Shows:
    if point.validity == Validity.CLIENT_BOUND or point.failure_class == FailureClass.CLIENT_BOUND:
        return Shows.CLIENT_BOUND
    if launched and _died_under_load(point):
        return Shows.ENGINE_DIED
    if _is_pointless(point, slo, has_requests):
        return Shows.POINTLESS
    if point.status != "ok" or not _says_something_of(point, slo):
        return Shows.NOTHING
    if point.validity == Validity.INTERRUPTED:
        return Shows.INTERRUPTED
    is_capped = (point.capped_share or 0.0) > MOST_CAPPED
    if point.validity in _good_verdicts(slo) and point.ended_early != "fails" and not is_capped:
        return Shows.ANY_VERDICT
    if point.validity == Validity.ENGINE_BOUND_BACKLOG and point.ended_early in ("fails", "mixed"):
        return Shows.DIVERGED
    return Shows.FAILURE_ONLY


def was_overloaded(attempt: AttemptData) -> bool:
    """Whether the search ended the probe because its level failed, before one request was answered.

    The requests were aborted by this program, so the server refused none of them.
    """
    figures = attempt.figures
    return (
        attempt.point.ended_early == "fails"
        and figures.requests.scheduled > 0
        and figures.requests.ok == 0
        and set(figures.errors) == {ErrorClass.ABORTED}
    )


def _died_under_load(point: PointHead) -> bool:
    """Whether the engine died after clients had begun to send load."""
    died = point.failure_class in (FailureClass.ENGINE_CRASH, FailureClass.TIMEOUT)
    return died and bool(point.clients)


def _is_pointless(point: PointHead, slo: Slo, has_requests: bool) -> bool:
    """Whether the probe has a verdict that no other load changes."""
    if point.status != "ok" and point.validity != Validity.BROKEN_OUTPUT:
        return False  # the point was not judged
    # With another load the window might have requests, or they might not be aborted.
    was_aborted = point.ended_early == "fails"
    if point.validity == Validity.INVALID and (was_aborted or not has_requests):
        return False
    return no_load_changes(point.validity, slo)


def _says_something_of(point: PointHead, slo: Slo) -> bool:
    """Whether the requests of a probe with status ok are evidence under this tier."""
    telling_verdicts: set[str] = {
        *_good_verdicts(slo),
        Validity.ENGINE_BOUND_BACKLOG,
        Validity.INTERRUPTED,
    }
    if point.ended_early == "fails":
        telling_verdicts.add(Validity.INVALID)  # no answer came in time
        from orchestrator.analysis.slo import format_limits

        # The probe ended as soon as certain limits failed; its open requests might have met others.
        failed_limits = (point.ended_for or "").split(SEPARATOR)
        if format_limits(slo) not in failed_limits:
            return False
    return point.validity in telling_verdicts


def _good_verdicts(slo: Slo) -> Sequence[str]:
    """Verdicts on probes that may show that a level holds."""
    if _limits_tokens(slo):
        return (Validity.VALID,)
    return (Validity.VALID, Validity.STREAM_BUFFERED)

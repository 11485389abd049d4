"""The records of what is known of deployments: rankings, exclusions, notes and missing levels.

``capacities.py`` and ``best.py`` make them; ``report/words.py`` has the sentences.
"""

from dataclasses import dataclass
from enum import Enum, auto

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.output_agreement import Disagreement
from orchestrator.analysis.points import Attained, StoredPoint
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.first_change import FirstChange
from orchestrator.capacity.levels import ANY_LEVEL, LevelRange
from orchestrator.results.validity import Validity
from orchestrator.spec.load import PRECISION, Level, Limit


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """What is ranked together.

    ``model``: as ``ids.model_key`` names it. ``hardware`` is empty where prices make several kinds
    comparable. ``source``: the other tool that measured it; empty: this program did.
    """

    experiment: str
    workload: str
    model: str
    hardware: str
    emulated: bool
    simulated: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class SearchRules:
    """How the capacity under a workload was searched.

    ``precision``: how far the lowest level that fails may lie above the claim, as a share of it.
    ``starts``: how often the engine is started. ``sendable``: the levels that can be sent.
    """

    precision: float = PRECISION
    starts: int = 1
    sendable: LevelRange = ANY_LEVEL


@dataclass(frozen=True, slots=True)
class MissingLevel:
    """A level of a deployment that the plan asks for and of which nothing is stored yet."""

    group: Group
    deployment_id: str
    label: str
    model: str
    level: Level


class Exclusion(Enum):
    """Why a level, or a whole deployment, is not in the ranking."""

    # of a level
    FAILED = auto()  # a repeat failed because of the engine, or none ran
    NOT_VALID = auto()
    ENDED_EARLY = auto()  # a probe that missed its limits early
    NO_REQUESTS = auto()  # no request was due in the steady window
    ONLY_FIGURES = auto()  # imported from a file that has no requests
    # of a deployment
    NO_LEVEL_HOLDS = auto()
    SEARCH_FOUND_NO_LEVEL = auto()
    GPUS_UNKNOWN = auto()
    PRICE_UNKNOWN = auto()
    ENERGY_UNKNOWN = auto()
    DISAGREES = auto()  # its answers differ from the reference's, or were not compared


@dataclass(frozen=True, slots=True)
class SearchedClaim:
    """What the search of one deployment shows under one control.

    ``change``: what to change first where it ended without an answer; None: that is not known, or
    it did not end so.
    """

    control: str
    claim: Claim
    change: FirstChange | None = None

    @property
    def claimed_level(self) -> float | None:
        """The load at which the limits are confirmed to hold; None: none is."""
        return self.claim.claim


@dataclass(frozen=True, slots=True)
class ExceededPercentile:
    """A percentile of the requests' latencies that lies above a limit. ``name``: ``p90``."""

    limit: Limit
    name: str
    value_ms: float


@dataclass(frozen=True, slots=True)
class MissedLimit:
    """A limit that some answered requests missed. ``met``: the share of all requests within it."""

    limit: Limit
    met: float


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What keeps a level from holding the limits.

    ``test``: the test that is furthest below its target. ``percentile``: the percentile of one
    limit that says it all; None: there is none, and ``missed`` lists the limits that answered
    requests missed.
    """

    test: Attained
    percentile: ExceededPercentile | None
    missed: tuple[MissedLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Excluded:
    """A level, or a whole deployment, that is not in the ranking.

    ``level``: None: the whole deployment is excluded. ``evidence``: the point that shows the
    reason; None: no single point does.
    """

    deployment: StoredDeployment
    reason: Exclusion
    level: StoredPoint | None = None
    evidence: StoredPoint | None = None
    # with NO_LEVEL_HOLDS, and with searches under which nothing holds
    shortfall: Shortfall | None = None
    claims: tuple[SearchedClaim, ...] = ()  # with SEARCH_FOUND_NO_LEVEL
    disagreement: Disagreement | None = None  # with DISAGREES


class NoteKind(Enum):
    """What a reader must know of a deployment in the ranking."""

    NO_LEVEL_FAILED = auto()  # its capacity may be higher
    NOT_MONOTONIC = auto()  # a lower level does not hold the limits
    MAY_MISS_TARGET = auto()
    FAILING = auto()  # many requests failed
    REPEATS_LEFT_OUT = auto()
    FELL_BEHIND = auto()
    ANSWERS_DIFFER = auto()  # hardly any answer equals the reference's


@dataclass(frozen=True, slots=True)
class Note:
    """A note on a deployment's best level, whose point has the figures.

    ``test``: set with MAY_MISS_TARGET. ``agreeing``: set with ANSWERS_DIFFER: the labels of the
    deployments whose answers equal the reference's.
    """

    kind: NoteKind
    test: Attained | None = None
    agreeing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RateBounds:
    """The highest request rate that a search claims and the lowest that fails, per unit."""

    claim: float
    fails: float


@dataclass(frozen=True, slots=True)
class HeldIfSlower:
    """What a simulated deployment holds where the engine is slower by the model's known error.

    ``level``: the highest level that was simulated and holds even then; None: none does.
    ``throughput``: the least there, in the comparison's unit.
    """

    level: Level | None
    throughput: float


@dataclass(frozen=True, slots=True)
class RankedDeployment:
    """The best level of one deployment.

    ``lower_bound_only``: no higher level was seen to fail, so it may hold more. ``capacity``: what
    a search knows of it; None: it was not searched. ``ranking_value``: what it is ranked by, the
    highest first: its throughput; after a search, the throughput at the load that it is expected to
    hold (``capacity/dominance.py``). ``divisor``: what the comparison divides loads by.
    ``throughput``: of a simulated deployment, the interval reaches down to ``if_slower``.

    ``estimate``: set where a search claims nothing yet: the load that is expected to hold. The
    throughput is then the one that is expected at that load, and ``point`` is the probe from which
    it is computed. ``if_slower``: None: the best level holds even then, or that is not known.
    ``sends_whole_trace``: the best level sends all of a trace that lower levels thin, so that no
    higher rate can be sent.
    """

    point: StoredPoint
    attainment: Interval
    throughput: Interval  # in the comparison's unit
    lower_bound_only: bool
    notes: tuple[Note, ...]
    ranking_value: float
    capacity: Claim | None = None
    divisor: float = 1.0
    estimate: Estimate | None = None
    if_slower: HeldIfSlower | None = None
    sends_whole_trace: bool = False

    @property
    def is_estimate(self) -> bool:
        return self.estimate is not None

    @property
    def bounds(self) -> RateBounds | None:
        """The bounds of the request rate that was searched.

        None: nothing is claimed, or requests in flight were searched: more of them do not mean more
        throughput.
        """
        capacity = self.capacity
        if capacity is None or capacity.claim is None:
            return None
        if self.point.head.control != "request_rate":
            return None
        return RateBounds(capacity.claim / self.divisor, capacity.high / self.divisor)

    @property
    def label(self) -> str:
        return self.point.deployment.label

    @property
    def level(self) -> Level:
        return level_of(self.point)


@dataclass(frozen=True, slots=True)
class LastingVerdict:
    """A level whose points have a verdict that neither another load nor a repeat changes."""

    level: Level
    validity: Validity


@dataclass(frozen=True, slots=True)
class DeploymentAnswer:
    """What is known of one deployment.

    ``open_levels``: levels that could hold and have no valid measurement. ``near_levels``: levels
    that missed a target by no more than chance. Both lie above what holds and below what is shown
    to fail. ``lasting_levels``: the open levels whose verdict another run would not change.
    ``had_no_room``: it was never started, because no node could hold it.
    ``incomparable``: why the deployment has no figure to be ranked by. ``unsettled``: the claims of
    searches that ended before they knew enough.
    """

    label: str
    measured: bool
    ranked: RankedDeployment | None
    excluded: tuple[Excluded, ...]
    open_levels: tuple[Level, ...] = ()
    lasting_levels: tuple[LastingVerdict, ...] = ()
    near_levels: tuple[Level, ...] = ()
    incomparable: Exclusion | None = None
    unsettled: tuple[SearchedClaim, ...] = ()
    had_no_room: bool = False


def level_of(point: StoredPoint) -> Level:
    """The load level of a point."""
    return level_at(point.head.control, point.head.level)


def level_at(control: str, value: float) -> Level:
    """The load level of a control at this value."""
    return Level.model_validate({"control": control, "value": value})

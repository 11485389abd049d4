"""The frozen plan: every deployment of an experiment and how it will be loaded. It is written to
JSON without loss.

Points are made when a search strategy asks for their level; the points of a list of levels are
known beforehand.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import orjson
from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from orchestrator import __version__
from orchestrator.analysis.prediction import NOTHING_PREDICTED, Prediction
from orchestrator.base.errors import InputError
from orchestrator.base.redaction import holds_key
from orchestrator.base.text import counted
from orchestrator.capacity.levels import ANY_LEVEL, LevelRange
from orchestrator.capacity.registry import STRATEGIES
from orchestrator.capacity.strategy import SearchQuestion, Strategy
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.identity import MEASUREMENT_VERSION, seed_of
from orchestrator.results.ids import digest, model_key
from orchestrator.spec.assumptions import DRAFTS, NOTHING_ASSUMED, Assumptions, EngineFact
from orchestrator.spec.experiment import SweepRules
from orchestrator.spec.load import AnyWorkload, Level, LoadRules, Objective, Slo, Workload
from orchestrator.spec.settings import Hardware, Strict
from orchestrator.spec.stages import PlannedSettings

if TYPE_CHECKING:
    from orchestrator.capacity.race import Race

DeploymentStatus = Literal["planned", "risky", "excluded", "impossible"]
FORMAT: Literal[1] = 1
LIMITS = {  # the fields of a load that limit a point
    "warmup_s",
    "duration_s",
    "requests",
    "max_in_flight",
    "request_timeout_s",
    "drain_timeout_s",
}
RETRY_SEED_STEP = 1_000_003
UNKNOWN_LOAD_S = 60.0  # seconds that a load of unknown length is estimated to take


class DeploymentGroup(NamedTuple):
    """What the deployments that are compared with each other have in common. ``hardware`` is "" if
    they are compared across hardware.
    """

    model: str
    hardware: str
    emulated: bool


class LeftOut(Strict):
    """Why a shortlist leaves a deployment out.

    ``behind``: the most that it may hold is less than the least that the leader is predicted to
    hold; without limits, no load may put it on the frontier. ``no_room``: it may be among the best
    within the error of predictions, but as many as asked for are predicted better.
    ``not_predicted``: nothing is known of it, and those with a prediction take all places.
    """

    why: Literal["behind", "no_room", "not_predicted"]
    # with ``behind`` and ``no_room``: where it comes nearest to the leader; empty without limits
    workload: str = ""
    slo: str = ""
    leader: str = ""  # its label
    # the most that it may hold, in output tokens/s per unit of the shortlist
    highest: float | None = None
    leader_lowest: float | None = None  # the least that the leader is predicted to hold
    reason: str = ""  # why nothing is predicted


class PredictedShortlist(Strict):
    """Which deployments a run is limited to by their predictions (plan/shortlist.py).

    ``size``: how many were asked for at most. ``source``: what predicted them. ``considered``:
    digest of the ids of the ``of`` deployments that the list was chosen from. ``listed``: how many
    are on it. ``candidates``: how many may be the best within the error of predictions.
    ``unpredicted``: labels of the deployments on the list without a prediction. ``references``:
    labels of those on the list whose answers others are compared with, if an SLO limits the
    agreement. ``per``: what throughputs are divided by.
    """

    size: int
    source: str
    considered: str
    of: int
    listed: int
    candidates: int
    unpredicted: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    per: Objective = "gpu"


def _prediction(value: object) -> Prediction:
    """The prediction that a plan has. Raises ValueError if it is none."""
    if isinstance(value, Prediction):
        return value
    if value is None:
        return NOTHING_PREDICTED
    try:
        return Prediction.from_document(cast("Mapping[str, Any]", value))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a prediction: {error}") from error


def _document(prediction: Prediction) -> dict[str, Any] | None:
    """The JSON of a prediction; None if nothing is predicted."""
    return prediction.document() or None


PlannedPrediction = Annotated[Prediction, PlainValidator(_prediction), PlainSerializer(_document)]


class Deployment(Strict):
    """One engine configuration. ``planned`` and ``risky`` deployments are run, the risky last."""

    id: str
    label: str  # short and unique in the plan: the settings in which it differs from others
    settings: PlannedSettings
    hardware: Hardware
    status: DeploymentStatus
    reasons: tuple[str, ...] = ()  # for the status
    remarks: tuple[str, ...] = ()  # what is worth knowing and changes nothing
    unserved: tuple[str, ...] = ()  # names of workloads that it cannot serve
    # by feasibility.py (starts) and predictions.py (all else); a factory, because pydantic copies a
    # default that cannot be hashed
    predicted: PlannedPrediction = Field(default_factory=lambda: NOTHING_PREDICTED)
    derived: dict[str, Any] = {}
    levels: tuple[Level, ...] = ()  # the file's levels, if they follow from these settings
    left_out: LeftOut | None = None  # why the shortlist of its plan leaves it out, if it does

    def __hash__(self) -> int:  # pydantic's own fails, because it would hash the dicts, too
        return hash(self.id)

    @property
    def runs(self) -> bool:
        """Whether the sweep measures it."""
        return self.can_run and self.left_out is None

    @property
    def can_run(self) -> bool:
        """Whether the sweep would measure it without a shortlist."""
        return self.status in ("planned", "risky")

    @property
    def devices(self) -> int:
        """GPUs (or cores, on cpu) of all replicas; for an endpoint its ``endpoint_gpus``, or 0."""
        return self.settings.devices

    def first_guess(self, workload: str, slo: str) -> float | None:
        """Predicted capacity: the highest level at which a workload meets an SLO; None: not
        predicted.
        """
        capacity = self.predicted.capacity(slo, workload)
        return None if capacity is None else capacity.level

    def divisor(self, per: Objective) -> float | None:
        """The number that throughput and capacity are divided by; None if it is 0 or not known."""
        if per == "usd":
            return (self.hardware.usd_per_gpu_hour or 0.0) * self.devices or None
        return 1.0 if per == "deployment" else float(self.devices) or None

    @property
    def model_key(self) -> str:
        """A key that all checkpoints of one model share."""
        return model_key(self.settings.model, self.predicted.start.parameters)

    def group(self, per: Objective) -> DeploymentGroup:
        """The deployments that it is compared with: those of one model, whatever its checkpoint, on
        one class of hardware, or on any if dollars make them comparable. Emulators are never
        compared with real engines.
        """
        return DeploymentGroup(
            model=self.model_key,
            hardware="" if per == "usd" else self.hardware.name,
            emulated=ENGINES[self.settings.engine].emulated,
        )

    @property
    def on_cpus(self) -> bool:
        """Whether it runs on CPU cores; an emulator does unless GPUs are named."""
        return self.hardware.is_cpu or (
            self.hardware.accelerator == "any" and ENGINES[self.settings.engine].emulated
        )


class PlannedLoad(LoadRules):
    """One workload and how it is loaded on every deployment that can serve it. The search chooses
    the levels.

    Either ``duration_s`` or ``requests`` is None. ``trace_digest``: hash of the file with recorded
    arrivals. ``lowest_rate``, ``highest_rate``: of a search over a trace that is thinned, the rates
    of one of its sessions and of all of them.
    """

    workload: AnyWorkload
    trace_digest: str | None = None
    lowest_rate: float | None = None
    highest_rate: float | None = None
    # the file's levels, if they are the same for every deployment
    levels: tuple[Level, ...] = ()
    drain_timeout_s: float

    @property
    def searches(self) -> bool:
        """Whether it searches for capacities."""
        return hasattr(STRATEGIES[self.search], "claims")

    @property
    def sendable(self) -> LevelRange:
        """The levels that a search may ask for."""
        if self.lowest_rate is None or self.highest_rate is None:
            return ANY_LEVEL
        return LevelRange(self.lowest_rate, self.highest_rate)

    @property
    def races(self) -> bool:
        """Whether one deployment may beat another. Where concurrency is searched, none does,
        because more requests in flight are not more throughput.
        """
        return self.searches and self.control == "request_rate" and not self.full_grid

    def rules(self, level: Level) -> dict[str, Any]:
        """How a level is measured, as JSON values: arrivals, warm-up, window, limits and
        MEASUREMENT_VERSION.
        """
        rules = self.model_dump(mode="json", include=LIMITS, exclude_none=True)
        if level.control == "request_rate":
            arrivals = self.arrivals.model_dump(mode="json", exclude_defaults=True)
            if self.arrivals.trace is not None:
                arrivals["trace"] = self.trace_digest
            rules["arrivals"] = arrivals
        return {"measurement_version": MEASUREMENT_VERSION, **rules}

    def identity(self, level: Level, seed: int) -> str:
        """Hash of what a point asks of any deployment. Files count by content. ``seed``: that of
        the experiment.
        """
        return digest(
            {
                "workload": self.workload.identity(),
                "level": level,
                "seed": seed,
                **self.rules(level),
            }
        )

    def estimated_s(self, level: Level) -> float:
        """Seconds of load; UNKNOWN_LOAD_S for a closed loop over a number of requests."""
        seconds = self.duration_s
        if seconds is None and self.requests and level.control == "request_rate":
            seconds = self.requests / level.value
        if seconds is None:
            seconds = UNKNOWN_LOAD_S
        return (self.warmup_s or 0.0) + seconds


@dataclass(frozen=True, slots=True)
class Point:
    """A planned load at one level on a deployment."""

    point_id: str
    deployment_id: str
    load: PlannedLoad
    level: Level

    @property
    def workload(self) -> Workload:
        return self.load.workload

    def load_rules(self) -> dict[str, Any]:
        """What load clients are told, by field names of ``LoadPoint``."""
        names = ("workload", "arrivals", *LIMITS)
        return {"level": self.level} | {name: getattr(self.load, name) for name in names}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repeat of a point. ``seed`` is the same for every deployment, so that all get the same
    requests.

    ``start``: number of the engine start that it belongs to, from 0; a retried start keeps its
    number.
    """

    measurement_id: str
    point_id: str
    deployment_id: str
    repeat: int
    seed: int
    start: int = 0

    def tried(self, times: int) -> Measurement:
        """The measurement after ``times`` tries, with a new seed: a prefix cache may know the
        earlier prompts.
        """
        return replace(self, seed=self.seed + RETRY_SEED_STEP * times)


class KnownLevel(NamedTuple):
    """A level that a search will ask for, whatever the other levels show."""

    load: PlannedLoad
    level: Level
    repeats: int


class _SearchInputs(NamedTuple):
    """What decides on the levels of a search before anything is measured."""

    workload: str
    levels: tuple[Level, ...]
    first_guess: float | None
    follows: bool  # another deployment is expected to be ahead of this one in a race


class Plan(SweepRules):
    """What a sweep does. Equal experiments on equal engines give equal ids, so another run
    continues the sweep.
    """

    plan_format: Literal[1] = FORMAT
    program_version: str = __version__
    deployments: tuple[Deployment, ...]
    loads: tuple[PlannedLoad, ...]
    slos: tuple[Slo, ...] = ()
    notes: tuple[str, ...] = ()
    # digest of the options of `orchestrator load`; None where a file made the plan
    load_options: str | None = None
    shortlist: PredictedShortlist | None = None  # `run --shortlist`
    # `simulate --assume`; of a run, what its predictions rest on
    assumptions: Assumptions = NOTHING_ASSUMED

    def asks_the_same(self, stored: Plan) -> bool:
        """Whether a run of ``orchestrator load`` sends what a stored one sent, whatever their seeds
        are.
        """
        return (
            self.load_options == stored.load_options
            and [deployment.id for deployment in self.deployments]
            == [deployment.id for deployment in stored.deployments]
            and self._load_identities() == stored._load_identities()
        )

    def _load_identities(self) -> list[str]:
        """What the loads ask for at one level and seed, which are the same for all plans."""
        level = Level(control="request_rate", value=1.0)
        return [load.identity(level, 0) for load in self.loads]

    def runnable(self) -> list[Deployment]:
        """The deployments to run, risky ones last."""
        running = [deployment for deployment in self.deployments if deployment.runs]
        planned = [deployment for deployment in running if deployment.status == "planned"]
        risky = [deployment for deployment in running if deployment.status == "risky"]
        return planned + risky

    @property
    def most_started(self) -> int:
        """How many of the runnable deployments are started. Which ones these are is decided while
        the sweep runs (capacity/proposing.py).
        """
        limits = [load.max_deployments for load in self.loads if load.max_deployments is not None]
        return min([len(self.runnable()), *limits])

    def deployment(self, deployment_id: str) -> Deployment:
        """The deployment with this id. Raises KeyError if there is none."""
        return self._deployments[deployment_id]

    def loads_of(self, deployment_id: str) -> list[PlannedLoad]:
        """The loads that a deployment gets; none if it is not run."""
        deployment = self.deployment(deployment_id)
        return self.loads_served_by(deployment) if deployment.runs else []

    def loads_served_by(self, deployment: Deployment) -> list[PlannedLoad]:
        """The loads that a deployment can serve, and gets if it is run."""
        return [load for load in self.loads if load.workload.name not in deployment.unserved]

    def levels_of(self, load: PlannedLoad, deployment_id: str) -> tuple[Level, ...]:
        """The levels that the file gives a deployment; empty when a search finds them."""
        return load.levels or self.deployment(deployment_id).levels

    def strategy(self, load: PlannedLoad, deployment_id: str, race: Race | None = None) -> Strategy:
        """A new search strategy, which has been told nothing."""
        rivals = race.rivals(deployment_id, load.workload.name) if race is not None else None
        question = self._question(load, self._search_inputs(load, deployment_id))
        question = replace(question, starts=self._starts_of(deployment_id), rivals=rivals)
        return STRATEGIES[load.search](question)

    def _question(self, load: PlannedLoad, inputs: _SearchInputs) -> SearchQuestion:
        """A search's question on one start of an engine, without rivals."""
        return SearchQuestion(
            levels=inputs.levels,
            control=load.control,
            slos=self.slos,
            repeats=self.repeats,
            first_guess=inputs.first_guess,
            precision=load.precision,
            sendable=load.sendable,
            follows=inputs.follows,
        )

    def _search_inputs(self, load: PlannedLoad, deployment_id: str) -> _SearchInputs:
        slo = self.slos[0].name if self.slos else ""
        workload = load.workload.name
        predicted_level = self.deployment(deployment_id).first_guess(workload, slo)
        return _SearchInputs(
            workload=workload,
            levels=self.levels_of(load, deployment_id),
            first_guess=load.first_level or predicted_level,
            follows=load.races and deployment_id in self._following,
        )

    def _starts_of(self, deployment_id: str) -> int:
        # endpoints are never started
        return 1 if self.deployment(deployment_id).settings.url else self.starts

    @property
    def needs_figures(self) -> bool:
        """Whether a search strategy must be told what earlier sweeps measured."""
        return any(STRATEGIES[load.search].needs_figures for load in self.loads)

    def point(self, deployment_id: str, load: PlannedLoad, level: Level) -> Point:
        """The point of a deployment at a level that a strategy asked for."""
        return Point(
            digest([deployment_id, self._identity(load.workload.name, level)]),
            deployment_id,
            load,
            level,
        )

    def measurement(self, point: Point, repeat: int, start: int | None = None) -> Measurement:
        """One repeat of a point, with the same seed on every deployment.

        ``start``: the engine start that a search asks for; None: repeats are divided among the
        starts.
        """
        seed = self._seed(point.workload.name, point.level, repeat)
        if start is None:
            starts = self._starts_of(point.deployment_id)
            # limited, because a search may repeat more often
            start = min(repeat * starts // self.repeats, starts - 1)
        identity = [point.point_id, repeat, seed]
        if start:
            identity.append(start)
        return Measurement(
            digest(identity), point.point_id, point.deployment_id, repeat, seed, start
        )

    @property
    def points(self) -> list[Point]:
        """The points of all deployments that are known before anything is measured."""
        points: list[Point] = []
        for deployment in self.deployments:
            points += self.points_of(deployment.id)
        return points

    def points_of(self, deployment_id: str) -> list[Point]:
        """The points of one deployment that are known before anything is measured."""
        return [
            self.point(deployment_id, known_level.load, known_level.level)
            for known_level in self.known_levels(deployment_id)
        ]

    def known_levels(self, deployment_id: str) -> list[KnownLevel]:
        """What strategies will ask for, as far as that is known beforehand."""
        known_levels: list[KnownLevel] = []
        for load in self.loads_of(deployment_id):
            levels = self._levels_ahead(self._search_inputs(load, deployment_id))
            for level, repeats in levels.items():
                known_levels.append(KnownLevel(load, level, repeats))
        return known_levels

    def groups(self, per: Objective) -> dict[DeploymentGroup, list[Deployment]]:
        """The deployments to run, in groups whose deployments are compared with each other."""
        groups: dict[DeploymentGroup, list[Deployment]] = {}
        for deployment in self.runnable():
            groups.setdefault(deployment.group(per), []).append(deployment)
        return groups

    @cached_property
    def _following(self) -> frozenset[str]:
        """Ids of the deployments that are taken to follow another one in a race: all but the first
        of each group. Which one of a group will lead is not known beforehand.
        """
        per: Objective = next((load.objective for load in self.loads if load.objective), "gpu")
        following: set[str] = set()
        for deployments in self.groups(per).values():
            following.update(deployment.id for deployment in deployments[1:])
        return frozenset(following)

    # cached, because most deployments have the same inputs
    @cached_property
    def _levels_ahead(self) -> Callable[[_SearchInputs], Mapping[Level, int]]:
        """How often a search will ask for each level, as far as that is known beforehand."""
        loads = {load.workload.name: load for load in self.loads}

        def levels_ahead(inputs: _SearchInputs) -> Mapping[Level, int]:
            load = loads[inputs.workload]
            strategy = STRATEGIES[load.search](self._question(load, inputs))
            return Counter(strategy.ahead())

        return cache(levels_ahead)

    # cached by the (unique) name of a workload: hashing a workload takes longer than all the rest
    @cached_property
    def _identity(self) -> Callable[[str, Level], str]:
        loads = {load.workload.name: load for load in self.loads}
        return cache(lambda workload, level: loads[workload].identity(level, self.seed))

    @cached_property
    def _seed(self) -> Callable[[str, Level, int], int]:
        workloads = {load.workload.name: load.workload for load in self.loads}
        return cache(
            lambda workload, level, repeat: seed_of(self.seed, workloads[workload], level, repeat)
        )

    @cached_property
    def _deployments(self) -> Mapping[str, Deployment]:
        return {deployment.id: deployment for deployment in self.deployments}

    def load_s(self, deployment_id: str) -> float:
        """Seconds of load on one deployment over all repeats, as far as they are known."""
        return sum(
            known_level.repeats * known_level.load.estimated_s(known_level.level)
            for known_level in self.known_levels(deployment_id)
        )

    def unset_keys(self) -> list[str]:
        """Environment variables with endpoints' keys that are not set in this process."""
        names = dict.fromkeys(deployment.settings.api_key_env for deployment in self.runnable())
        return [name for name in names if name and not os.environ.get(name)]

    def refusing(self, reasons: Mapping[str, str], note: str) -> Plan:
        """The plan with one more note, in which the deployments with these ids are impossible."""
        changed: dict[str, Deployment] = {}
        for deployment in self.deployments:
            if deployment.id in reasons:
                all_reasons = (reasons[deployment.id], *deployment.reasons)
                changed[deployment.id] = deployment.model_copy(
                    update={"status": "impossible", "reasons": all_reasons}
                )
        return self._with_changed(changed, note)

    def allowing(self) -> Plan:
        """The plan that runs deployments judged impossible all the same, last.

        Deployments stay impossible if they have no valid command line, no nodes that can hold them,
        or a workload that they cannot serve.
        """
        changed: dict[str, Deployment] = {}
        for deployment in self.deployments:
            if deployment.status != "impossible":
                continue
            # A prediction comes of judging the model's shape, which is done after the other checks:
            # what was refused for its command line, its nodes or a missing file has none.
            was_refused_before = deployment.predicted == NOTHING_PREDICTED
            if was_refused_before or deployment.unserved:
                continue
            reasons = tuple(f"run all the same: {reason}" for reason in deployment.reasons)
            changed[deployment.id] = deployment.model_copy(
                update={"status": "risky", "reasons": reasons}
            )
        if not changed:
            return self
        note = f"--allow-impossible: runs {counted(len(changed), 'deployment')} all the same"
        return self._with_changed(changed, note)

    def _with_changed(self, changed: Mapping[str, Deployment], note: str) -> Plan:
        """The plan with one more note and with other deployments in place of these, by id."""
        deployments = [changed.get(deployment.id, deployment) for deployment in self.deployments]
        return self.with_deployments(deployments, note)

    def with_deployments(self, deployments: Iterable[Deployment], *notes: str) -> Plan:
        """The plan with other deployments and more notes."""
        changed = {"deployments": tuple(deployments), "notes": (*self.notes, *notes)}
        # a new object: a copy would keep the cached properties
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields} | changed)

    def assuming(self, assumptions: Assumptions) -> Plan:
        """The plan with those of the assumptions that it needs."""
        facts: list[EngineFact] = []
        for deployment in self.runnable():
            facts += self.engine_facts(deployment)
        changed = {"assumptions": assumptions.needed_for(facts)}
        # a new object: a copy would keep the cached properties
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields} | changed)

    def engine_facts(self, deployment: Deployment) -> list[EngineFact]:
        """What only an engine knows of a deployment, and of the loads that it can serve."""
        facts: list[EngineFact] = []
        if deployment.settings.speculative is not None:
            facts.append(DRAFTS)
        for load in self.loads_served_by(deployment):
            facts += load.workload.engine_facts()
        return facts

    def to_json(self) -> str:
        """The frozen plan as JSON that ``from_json`` turns into an equal plan; defaults are left
        out.
        """
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """``to_json`` in pieces: the whole takes as much memory as the plan."""
        fields = {"plan_format": FORMAT, "program_version": self.program_version}
        fields |= self.model_dump(mode="json", exclude_defaults=True, exclude={"deployments"})
        yield _json(fields).removesuffix("\n}") + ',\n  "deployments": ['
        separator = ""
        for deployment in self.deployments:
            text = _json(deployment.model_dump(mode="json", exclude_defaults=True))
            indented = text.replace("\n", "\n    ")
            yield f"{separator}\n    {indented}"
            separator = ","
        yield "\n  ]\n}\n" if self.deployments else "]\n}\n"

    @classmethod
    def from_json(cls, text: str, *, to_run: bool = True) -> Plan:
        """A plan from its JSON. Raises InputError if the text is not a plan, or if it is a plan of
        another version.

        With ``to_run=False``, plans of other versions are read, too.
        """
        try:
            content = orjson.loads(text)
        except ValueError as error:
            raise InputError(f"not a plan: {error}") from None
        if not isinstance(content, dict) or "plan_format" not in content:
            raise InputError(
                "not a plan: write one with 'orchestrator plan EXPERIMENT --output plan.json'"
            )
        version = content.get("program_version")
        if content["plan_format"] != FORMAT or (to_run and version != __version__):
            raise InputError(
                f"plan written by version {version}, this is {__version__}: plan the experiment "
                "again"
            )
        if to_run and holds_key(text):  # plans are shown and stored, as experiments are
            raise InputError(
                "not a valid plan: something in it looks like a secret; plan the experiment again"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InputError(f"not a valid plan: {place}: {first['msg']}") from None


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()

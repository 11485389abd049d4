"""Predicts what one deployment does under a load, and the load that it holds under limits.

Predictions come from the emulator's step model in closed form (``predict/steady.py``) or, if tables
were asked for, from measured kernels. What the model or the catalogue does not know is not
predicted, and the reason is given.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np

from orchestrator.analysis.prediction import (
    ErrorFactors,
    PredictedCapacity,
    PredictedLevel,
    PredictedStart,
    Prediction,
    PredictionError,
    usd_per_million_tokens,
)
from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import LimitValues, tests
from orchestrator.catalog.accelerators import Accelerator, of_hardware
from orchestrator.catalog.arithmetic import no_term
from orchestrator.catalog.drafts import is_eagle, is_head, is_own_layers, looks_tokens_up
from orchestrator.catalog.memory import MemoryEstimate
from orchestrator.catalog.models import ModelFacts, model_facts
from orchestrator.emulator.drafts import Drafts, drafts_of
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import (
    Constants,
    Profile,
    compared_architectures,
    device_of,
    facts_of,
    load_profile,
    typical,
)
from orchestrator.emulator.step_tables import NoRow
from orchestrator.engines.registry import ENGINES
from orchestrator.predict.steady import SAMPLES, Demand, Rank, State
from orchestrator.spec.assumptions import DRAFTS, NOTHING_ASSUMED, Assumptions, EngineFact
from orchestrator.spec.experiment import Predictions
from orchestrator.spec.load import Control, Level, LoadRules, Slo, Workload
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative
from orchestrator.workloads.content import SAFE_IDS, RandomIds
from orchestrator.workloads.mix import MixWorkload
from orchestrator.workloads.segments import count_images

NO_TERM = {
    "roles": "replicas with roles",
    "router": "a router",
    "kv_transfer_config": "transfer of KV caches between engines",
    "cpu_offload_gb": "weights offloaded to the host",
}
# the levels that are predicted if the file names no finite one, as shares of the highest load
LADDER = tuple(2.0**step for step in range(-6, 1))
TO_BAND = 1.645 / 0.674  # the 90 % range of a normal distribution over the median of its deviations
COMPARED_TENSOR_PARALLEL_SIZE = 8  # the largest in the published points
STEADY_ARRIVALS = ("poisson", "gamma", "constant")
LIMITS_FROM_MEMORY = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
_LEAST_RUNNING = 1e-2  # sequences that run at once in the least busy state that is tried
FIT_A_PROFILE = (
    "fit a profile (orchestrator predict fit) and name it (predictions: {profile: FILE})"
)
_HALVINGS = 10  # how often the range of the busiest state that holds is halved
_NO_MEMORY = MemoryEstimate(None, None, 0, 0, 0)


class NotPredictable(Exception):
    """The model cannot predict a deployment; the message is the reason.

    ``fact``: what only an engine knows, if that is the reason.
    """

    def __init__(self, reason: str, fact: EngineFact | None = None) -> None:
        super().__init__(reason)
        self.fact = fact


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """The median of |predicted / measured - 1| for TTFT and TPOT, and what it was found on.

    ``counted``: the factors for TTFT and TPOT within which 90 % of the measured points lay; None if
    the points were not counted.
    """

    ttft: float
    tpot: float
    source: str
    counted: ErrorFactors | None = None

    @property
    def factors(self) -> ErrorFactors:
        """The factors within which 90 % of what is measured lies of the prediction. If points were
        not counted, the logarithms of errors are taken as normally distributed, although the errors
        of published points have thicker tails.
        """
        if self.counted is not None:
            return self.counted
        return ErrorFactors((1 + self.ttft) ** TO_BAND, (1 + self.tpot) ** TO_BAND)

    def doubled(self, what: str) -> Self:
        """The error of a deployment that the points do not cover. ``what``: what none of them is or
        has.
        """
        counted = self.counted
        if counted is not None:
            counted = ErrorFactors(counted.ttft**2, counted.tpot**2)
        source = f"{self.source}, none of them {what}: twice their error"
        return type(self)(2 * self.ttft, 2 * self.tpot, source, counted)

    def record(self) -> PredictionError:
        """The estimate as a plan has it."""
        return PredictionError(
            ttft=self.ttft,
            tpot=self.tpot,
            source=self.source,
            within=replace(self.factors, source=self.source),
            is_counted=self.counted is not None,
        )


# more than the error that tests/unit/predict/test_steady.py finds
OF_THE_FORMULA = ErrorEstimate(0.3, 0.05, "emulators on this machine")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a deployment is predicted from. ``starts``: what plan/feasibility.py predicts, by role;
    empty if it predicts nothing.
    """

    settings: EngineSettings
    hardware: Hardware
    starts: Mapping[str, PredictedStart]


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A workload, and the rules by which it is sent."""

    workload: Workload
    rules: LoadRules


@dataclass(frozen=True, slots=True)
class _Model:
    """The step model of a deployment: one data-parallel rank, and how many of them there are."""

    rank: Replica
    ranks: int
    error: ErrorEstimate
    devices: int
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class StepModel:
    """The step model of one data-parallel rank of a deployment, and how far off it is."""

    rank: Replica
    error: ErrorEstimate


@dataclass(frozen=True, slots=True)
class _ModelSource:
    """What a step model is made from, and how far off it is."""

    profile: Profile
    facts: ModelFacts
    device: Accelerator
    error: ErrorEstimate


class _FiniteLevel(NamedTuple):
    """A level of the file or of the ladder. Whole numbers of requests in flight stay whole."""

    control: Control
    value: float


@dataclass(frozen=True, slots=True)
class _LoadPrediction:
    """Figures at each level, and the capacity under each SLO."""

    levels: list[PredictedLevel]
    capacities: list[PredictedCapacity]


class Predictor:
    """Predicts the deployments of one plan. What they have in common is computed once."""

    def __init__(
        self,
        loads: Sequence[OfferedLoad],
        slos: Sequence[Slo],
        predictions: Predictions,
        seed: int,
        assumptions: Assumptions = NOTHING_ASSUMED,
    ) -> None:
        self._loads = {load.workload.name: load for load in loads}
        self._slos = slos
        self._wants_tables = predictions.tables
        self._seed = seed
        self._assumptions = assumptions
        self._fitted = load_profile(predictions.profile) if predictions.profile else None
        self._profile = cache(load_profile)
        self._demand = cache(self._demand_of)
        self._under_load = cache(self._predict_load)

    def predict(
        self, configuration: Configuration, levels: Mapping[str, tuple[Level, ...]]
    ) -> Prediction:
        """What is predicted of a deployment, without its starts and assumptions.

        ``levels``: the file's levels by name of the workload, for all workloads that are served.
        """
        try:
            return self._predict_by_tables_or_formula(configuration, levels)
        except (NotPredictable, NoRow) as reason:
            return Prediction(not_predicted=str(reason), error=self._error_of_model(configuration))

    def _predict_by_tables_or_formula(
        self, configuration: Configuration, levels: Mapping[str, tuple[Level, ...]]
    ) -> Prediction:
        """What is predicted: by tables, if they were asked for and have the deployment, else by the
        formula. Raises NotPredictable, or NoRow if neither covers it.
        """
        is_emulated = ENGINES[configuration.settings.engine].emulated
        if not self._wants_tables or is_emulated:
            return self._predict(configuration, levels, tables=False)
        try:
            return self._predict(configuration, levels, tables=True)
        except NoRow as reason:
            by_formula = self._predict(configuration, levels, tables=False)
            return replace(by_formula, missing_row=str(reason))

    def _error_of_model(self, configuration: Configuration) -> PredictionError | None:
        """The error of the step model, if there is one: a load without a steady state can still be
        simulated.
        """
        try:
            return self.step_model(configuration).error.record()
        except NotPredictable:
            return None

    def _predict(
        self,
        configuration: Configuration,
        levels: Mapping[str, tuple[Level, ...]],
        tables: bool,
    ) -> Prediction:
        """What is predicted, by tables or by formula. Raises NotPredictable, or NoRow if the tables
        do not cover it.
        """
        model = self._model_of(configuration, tables)
        caches_prefixes = configuration.settings.enable_prefix_caching is not False
        by_workload = {
            name: self._under_load(model, name, given, caches_prefixes)
            for name, given in levels.items()
        }
        figures: list[PredictedLevel] = []
        for load in by_workload.values():
            figures += load.levels
        capacities = {
            slo.name: {name: load.capacities[index] for name, load in by_workload.items()}
            for index, slo in enumerate(self._slos)
        }
        return Prediction(levels=tuple(figures), capacities=capacities, error=model.error.record())

    def step_model(self, configuration: Configuration) -> StepModel:
        """The step model of a deployment, with its limits. It is made from tables if they were
        asked for and have the deployment, else from the formula. Raises NotPredictable.
        """
        engine = ENGINES[configuration.settings.engine]
        try:
            if self._wants_tables and not engine.emulated:
                with suppress(NoRow):
                    return self._step_model(configuration, tables=True)
            return self._step_model(configuration, tables=False)
        except NoRow as reason:
            raise NotPredictable(str(reason)) from reason

    def _model_of(self, configuration: Configuration, tables: bool) -> _Model:
        """The model of a deployment, without what predictions do not depend on. Raises
        NotPredictable, and NoRow if the tables do not cover it.
        """
        settings = configuration.settings
        hardware = configuration.hardware
        model = self._step_model(configuration, tables)
        rank = model.rank
        if rank.drafts is not None:
            raise NotPredictable("only a simulation has a term for speculative decoding")
        # fields that do not change the figures are emptied, so that deployments that differ in
        # nothing else are predicted only once
        rank = replace(rank, limits=replace(rank.limits, max_model_len=0), estimate=_NO_MEMORY)
        usd_per_hour = None
        if hardware.usd_per_gpu_hour is not None:
            usd_per_hour = hardware.usd_per_gpu_hour * settings.devices
        ranks = settings.replicas * settings.data_parallel_size
        return _Model(rank, ranks, model.error, settings.devices, usd_per_hour)

    def _step_model(self, configuration: Configuration, tables: bool) -> StepModel:
        """The step model, by tables or by formula. Raises NotPredictable, or NoRow if the tables do
        not cover it.
        """
        settings = configuration.settings
        engine = ENGINES[settings.engine]
        if not engine.launches:
            raise NotPredictable("it runs already, and its hardware is not known")
        for field, name in NO_TERM.items():
            if getattr(settings, field):
                raise NotPredictable(f"the model has no term for {name}")
        if settings.speculative is not None and self._assumptions.drafts_accepted is None:
            raise NotPredictable("the model has no term for speculative decoding", DRAFTS)
        moved = engine.rules.memory_overrides(settings)
        if moved:
            raise NotPredictable(f"the model has no term for {', '.join(moved)}")
        if engine.emulated:
            source = self._emulated_source(configuration)
        else:
            source = self._real_source(configuration, tables)
        limits: dict[str, Any] = {}
        if "" in configuration.starts:
            start = configuration.starts[""]
            limits = {name: getattr(start, name) for name in LIMITS_FROM_MEMORY}
            if not engine.emulated and start.kv_cache_tokens:
                limits["kv_cache_tokens"] = start.kv_cache_tokens
        rank = replica(
            settings.model_copy(update=limits),
            source.facts,
            source.device,
            source.profile.constants,
        )
        if settings.speculative is None:
            return StepModel(rank, source.error)
        rank = replace(rank, drafts=self._drafts(settings, source))
        return StepModel(rank, source.error.doubled("with drafts"))

    def _drafts(self, settings: EngineSettings, source: _ModelSource) -> Drafts:
        """What a deployment drafts. Raises NotPredictable, and NoRow if tables were asked for."""
        accepted_share = self._assumptions.drafts_accepted
        speculative = settings.speculative
        assert speculative is not None
        assert accepted_share is not None
        if source.profile.constants.tables:
            raise NoRow("the tables have no speculative decoding")
        draft: ModelFacts | None = None
        if is_own_layers(settings):
            if not source.facts.draft_layers:
                raise NotPredictable(f"{source.facts.model} has no layers for drafts")
        elif not looks_tokens_up(settings):
            draft = _draft_model(speculative)
        return drafts_of(
            settings,
            source.facts,
            draft,
            source.device,
            source.profile.constants,
            accepted_share,
        )

    def _emulated_source(self, configuration: Configuration) -> _ModelSource:
        settings = configuration.settings
        profile = self._profile(settings.profile)
        return _ModelSource(
            profile,
            facts_of(profile, settings),
            device_of(profile, configuration.hardware),
            OF_THE_FORMULA,
        )

    def _real_source(self, configuration: Configuration, tables: bool) -> _ModelSource:
        """The experiment's fitted profile if it suits the deployment, else constants that were
        fitted to published points. Raises NotPredictable.
        """
        settings = configuration.settings
        hardware = configuration.hardware
        facts = model_facts(settings.model, settings.revision, settings.hf_overrides)
        if facts is None:
            raise NotPredictable(f"nothing is known of {settings.model} (no config.json at hand)")
        if not facts.all_parameters_counted:
            raise NotPredictable(
                f"the catalogue does not know the architecture {facts.model_type!r}"
            )
        lacking = no_term(facts)
        if lacking:
            raise NotPredictable(
                f"the model has no term for {lacking}, which {facts.model_type!r} has"
            )
        fitted = self._fitted_source(settings.engine, facts, hardware)
        if fitted is not None:
            return fitted
        if hardware.is_cpu:
            raise NotPredictable(f"no figures of this CPU are known: {FIT_A_PROFILE}")
        device = of_hardware(hardware)
        if device is None:
            raise NotPredictable(f"the catalogue has no accelerator {hardware.accelerator!r}")
        constants = Constants(tables=True) if tables else Constants()
        error = _published_error(settings, device, tables)
        return _ModelSource(Profile(constants=constants), facts, device, error)

    def _fitted_source(
        self, engine: str, facts: ModelFacts, hardware: Hardware
    ) -> _ModelSource | None:
        """The source from the profile that the experiment names; None if there is no fitted one, or
        if it was fitted on another engine or accelerator.
        """
        profile = self._fitted
        if profile is None or not profile.fitted or not profile.accelerator:
            return None
        if profile.fitted.get("engine", engine) != engine:
            return None
        device = device_of(profile, hardware)
        if not hardware.is_cpu and not _are_same(device, of_hardware(hardware)):
            return None
        error = profile.fitted.get("held_out_error") or profile.fitted["error"]
        own_error = ErrorEstimate(error["ttft_p50"], error["tpot_p50"], "the profile's own fit")
        return _ModelSource(profile, facts, device, own_error)

    def _demand_of(self, name: str, caches_prefixes: bool) -> Demand:
        """Sampled requests of a workload. Raises NotPredictable if the tokens of its prompts or
        answers are not known.
        """
        workload = self._loads[name].workload
        unknown = workload.known_to_engines_only(self._assumptions)
        if unknown is not None:
            raise NotPredictable(f"only the engine knows {unknown.text} ({name!r})", unknown)
        requests = workload.requests(RandomIds(SAFE_IDS), self._seed)
        count_images(requests, self._assumptions)
        shared_prefixes = _shared_prefixes(workload)
        rows: list[tuple[int, int, int]] = []
        parts: list[str | None] = []
        for session in range(SAMPLES):
            part = requests.part(session)
            seen_before = shared_prefixes[part]
            for turn in range(min(requests.turns(session), SAMPLES - len(rows))):
                input_tokens = requests.input_tokens(session, turn)
                output_tokens = requests.output_tokens(session, turn)
                if not input_tokens:
                    raise NotPredictable(
                        f"it is not known how many tokens the prompts of {name!r} have"
                    )
                cached = min(seen_before, input_tokens - 1) if caches_prefixes else 0
                rows.append((input_tokens - cached, cached, output_tokens))
                parts.append(part)
                seen_before = input_tokens + output_tokens
        prompt, cached_tokens, output = np.array(rows, dtype=np.float64).T
        return Demand(prompt, cached_tokens, output, _request_parts(parts))

    def _predict_load(
        self, model: _Model, name: str, levels: tuple[Level, ...], caches_prefixes: bool
    ) -> _LoadPrediction:
        """The prediction for one workload. Raises NotPredictable if its arrivals have no steady
        state, or if the KV cache does not hold one of its requests.
        """
        rules = self._loads[name].rules
        demand = self._demand(name, caches_prefixes)
        if rules.arrivals.process not in STEADY_ARRIVALS:
            raise NotPredictable(
                f"{rules.arrivals.process} arrivals have no steady state: "
                "orchestrator simulate plays them"
            )
        finite_levels = [
            _FiniteLevel(level.control, level.value) for level in levels if level.value < math.inf
        ]
        control: Control = "request_rate"
        if rules.control:
            control = rules.control
        elif finite_levels:
            control = finite_levels[0].control
        controls = {control, *(level.control for level in finite_levels)}
        ranks: dict[Control, Rank] = {
            of_levels: Rank(model.rank, demand, of_levels) for of_levels in controls
        }
        rank = ranks[control]
        if rank.most < 1:
            raise NotPredictable(f"the KV cache does not hold one request of {name!r}")
        if not finite_levels:
            finite_levels = _ladder(model, rank, control)
        figures = [
            _figures(model, ranks[level.control], demand, name, level)
            for level in dict.fromkeys(finite_levels)
        ]
        capacities = [_capacity(model, rank, demand, control, slo) for slo in self._slos]
        return _LoadPrediction(figures, capacities)


def _draft_model(speculative: Speculative) -> ModelFacts:
    """The facts of a draft model. Raises NotPredictable for drafts of another kind."""
    facts: ModelFacts | None = None
    if speculative.model is not None:
        facts = model_facts(speculative.model)
        if facts is None:
            raise NotPredictable(
                f"nothing is known of the draft model {speculative.model} (no config.json at hand)"
            )
    method = speculative.method or str(speculative.model)
    if facts is None or (is_head(facts, speculative) and not is_eagle(facts, speculative)):
        raise NotPredictable(f"the model has no term for drafts by {method}")
    if speculative.num_draft_tokens or (speculative.eagle_topk or 1) > 1:
        raise NotPredictable("the model has no term for trees of drafts")
    if not facts.all_parameters_counted or no_term(facts):
        raise NotPredictable(
            f"the model has no term for a part of the draft model {speculative.model}"
        )
    return facts


def _shared_prefixes(workload: Workload) -> dict[str | None, int]:
    """Tokens that all prompts begin with, by part of a mix; by None for other workloads."""
    if isinstance(workload, MixWorkload):
        return {
            content.name: getattr(content, "shared_prefix_tokens", 0)
            for content in workload.contents
        }
    return {None: getattr(workload, "shared_prefix_tokens", 0)}


def _request_parts(parts: Sequence[str | None]) -> RequestParts | None:
    """The parts of a mix that requests are of; None for other workloads."""
    names = {part: place for place, part in enumerate(dict.fromkeys(parts)) if part is not None}
    if not names:
        return None
    codes = [names[part] for part in parts if part is not None]
    return RequestParts(tuple(names), np.array(codes))


def _are_same(device: Accelerator, other: Accelerator | None) -> bool:
    """Whether two devices compute alike, whatever they cost."""
    return other is not None and replace(device, usd_per_hour=other.usd_per_hour) == other


def _published_error(settings: EngineSettings, device: Accelerator, tables: bool) -> ErrorEstimate:
    """How far the model was off from published points. Raises NotPredictable if there are none."""
    published = typical(settings.engine, device, tables)
    if published.error is None:
        elsewhere = ""
        compared = compared_architectures(settings.engine)
        if compared:
            elsewhere = f", only on {' and '.join(compared)} GPUs"
        raise NotPredictable(
            f"the model was never compared with {settings.engine} on {device.name}{elsewhere}: "
            f"{FIT_A_PROFILE}"
        )
    source = (
        f"published points of {published.engine} on {published.architecture} GPUs, {published.date}"
    )
    if published.fitted_on != published.architecture:
        source = f"{source}, constants fitted on {published.fitted_on}"
    if tables:
        source = f"{source}, by tables of kernels"
    error = published.error
    counted = ErrorFactors(error["ttft_within"], error["tpot_within"])
    estimate = ErrorEstimate(error["ttft"], error["tpot"], source, counted)
    if (
        settings.world_size != settings.tensor_parallel_size
        or settings.tensor_parallel_size > COMPARED_TENSOR_PARALLEL_SIZE
    ):
        return estimate.doubled("parallel like this one")
    return estimate


def _ladder(model: _Model, rank: Rank, control: Control) -> list[_FiniteLevel]:
    """The levels of LADDER for a deployment. Concurrencies are whole numbers."""
    highest = model.ranks * rank.level(rank.full)
    values = [share * highest for share in LADDER]
    if control == "concurrency":
        values = [max(1, round(value)) for value in values]
    return [_FiniteLevel(control, value) for value in values]


def _figures(
    model: _Model, rank: Rank, demand: Demand, workload: str, level: _FiniteLevel
) -> PredictedLevel:
    """Medians at a level; without latencies if the deployment cannot keep up with the level."""
    level_of_rank = level.value / model.ranks
    state = rank.under(level_of_rank)
    ttft_ms = tpot_ms = None
    if state is not None:
        latencies = rank.latencies(state, level_of_rank)
        ttft_ms = float(np.median(latencies["ttft"])) * 1e3
        tpot_ms = float(np.median(latencies["tpot"])) * 1e3
    rate = (state or rank.full).rate
    return PredictedLevel(
        workload=workload,
        control=level.control,
        level=level.value,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        output_throughput=rate * model.ranks * float(demand.output.mean()),
    )


def _capacity(
    model: _Model, rank: Rank, demand: Demand, control: Control, slo: Slo
) -> PredictedCapacity:
    """The highest load that holds, its output tokens/s, and the interval of these per GPU. The
    interval reaches from what holds if latencies are longer to what holds if they are shorter, by
    the factors within which nine in ten predictions lie.
    """
    factors = model.error.factors
    best = _busiest_that_holds(rank, slo, 1.0, 1.0)
    slow = _busiest_that_holds(rank, slo, factors.ttft, factors.tpot)
    fast = _busiest_that_holds(rank, slo, 1 / factors.ttft, 1 / factors.tpot)
    tokens = model.ranks * float(demand.output.mean())
    slow_per_gpu, per_gpu, fast_per_gpu = (
        0.0 if state is None else state.rate * tokens / max(1, model.devices)
        for state in (slow, best, fast)
    )
    level = 0.0 if best is None else rank.level(best) * model.ranks
    throughput = 0.0 if best is None else best.rate * tokens
    return PredictedCapacity(
        control=control,
        level=math.floor(level) if control == "concurrency" else level,
        output_throughput=throughput,
        output_throughput_per_gpu=per_gpu,
        interval_per_gpu=(slow_per_gpu / factors.tpot, fast_per_gpu * factors.tpot),
        usd_per_million_tokens=usd_per_million_tokens(model.usd_per_hour, throughput),
    )


def _busiest_that_holds(
    rank: Rank, slo: Slo, ttft_factor: float, other_factor: float
) -> State | None:
    """The busiest state that holds the SLO if TTFT is longer by ``ttft_factor`` and every other
    latency by ``other_factor``; None if not even an idle rank holds it.
    """

    def holds(running: float) -> bool:
        state = rank.at(running)
        seconds = {
            name: values * (ttft_factor if "ttft" in name else other_factor)
            for name, values in rank.latencies(state, rank.level(state)).items()
        }
        values = LimitValues(np.ones(SAMPLES, bool), seconds, rank.parts)
        # a part so rare that no sampled request is of it is not predicted
        limits = [limit for limit in tests(values, slo) if limit.met.size]
        return all(float(limit.met.mean()) >= limit.target for limit in limits)

    low, high = min(_LEAST_RUNNING, rank.most), rank.most
    if holds(high):
        return rank.at(high)
    if not holds(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return rank.at(low)

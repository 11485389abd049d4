"""What each deployment is predicted to do under the experiment's load, and what it holds under its
limits.

From the emulator's step model in closed form (predict/steady.py). What the model or the catalogue
knows nothing of is not predicted, and the reason is said. Predictions order a sweep and seed its
searches; they exclude nothing.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from orchestrator.analysis.slo import LimitValues, tests
from orchestrator.catalog.accelerators import Accelerator, of_hardware
from orchestrator.catalog.memory import Prediction
from orchestrator.catalog.models import ModelFacts, model_facts
from orchestrator.emulator.model import Replica, no_term, replica
from orchestrator.emulator.profile import (
    Constants,
    Profile,
    device_of,
    facts_of,
    load_profile,
    typical,
)
from orchestrator.emulator.tables import NoRow
from orchestrator.engines import ENGINES
from orchestrator.plan.model import Deployment, Plan
from orchestrator.predict.steady import SAMPLES, Demand, Rank, State
from orchestrator.spec.load import Control, Level, Slo
from orchestrator.workloads.content import SAFE_IDS, RandomIds

# Where a file names no limits: MLPerf Inference 5.0, Llama 2 70B interactive (mlcommons.org, April
# 2025).
DEFAULT_SLO = Slo(name="default", ttft=0.45, tpot=0.04, attainment=0.99)
NO_TERM = {
    "roles": "replicas with roles",
    "router": "a router",
    "speculative": "speculative decoding",
    "kv_transfer_config": "transfer of KV caches between engines",
    "cpu_offload_gb": "weights offloaded to the host",
}
# of all it can do: levels of a search, which names none before
LADDER = tuple(2.0**step for step in range(-6, 1))
TO_BAND = 1.645 / 0.674  # the 90 % range of a normal distribution over the median of its deviations
_LEAST, _LOOKS = 1e-2, 10
_NOTHING = Prediction(None, None, 0, 0, 0)


class Unknown(Exception):
    """Why something is not predicted."""


@dataclass(frozen=True, slots=True)
class Error:
    """Median of |predicted / measured - 1|, and of what. ``counted``: factors of TTFT and TPOT
    within which 90 % of measured points lay; None: nobody counted.
    """

    ttft: float
    tpot: float
    source: str
    counted: tuple[float, float] | None = None

    @property
    def factors(self) -> tuple[float, float]:
        """Of TTFT, and of all else: 90 % of what is measured lies within a factor of the
        prediction. Where nobody counted, as if logarithms of errors were normal, which have thinner
        tails than those of published points.
        """
        return self.counted or ((1 + self.ttft) ** TO_BAND, (1 + self.tpot) ** TO_BAND)

    def document(self) -> dict[str, Any]:
        """As in a plan."""
        within = dict(zip(("ttft", "tpot"), self.factors, strict=True))
        counted = self.counted is not None
        return {
            "ttft": self.ttft,
            "tpot": self.tpot,
            "source": self.source,
            "within": within,
            "counted": counted,
        }


# more than tests/unit/emulator/test_steady.py finds
OF_THE_FORMULA = Error(0.3, 0.05, "emulators on this machine")


class _Known(NamedTuple):
    """What a deployment is predicted from."""

    model: Replica
    ranks: int
    error: Error
    devices: int
    usd_per_hour: float | None


def predicted(plan: Plan) -> Plan:
    """The plan with ``levels``, ``capacity`` and ``error`` (or ``not_predicted``) in what its
    deployments predict, and ``no_row`` where tables were asked for that have none, so that the
    formula answered.
    """
    foretold = _Predictor(plan)
    return plan.with_deployments(
        one.model_copy(update={"predicted": (one.predicted or {}) | foretold(one)})
        if one.runs
        else one
        for one in plan.deployments
    )


def limits_of(plan: Plan) -> tuple[Slo, ...]:
    """Those of its file, else the default ones."""
    return plan.slos or (DEFAULT_SLO,)


class _Predictor:
    """Shares between deployments what the model does not tell apart."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._slos = plan, limits_of(plan)
        self._given = load_profile(plan.predictions.profile) if plan.predictions.profile else None
        self._loads = {load.workload.name: load for load in plan.loads}
        self._demand, self._profile = cache(self._demand_of), cache(load_profile)
        self._under = cache(self._of_load)

    def __call__(self, one: Deployment) -> dict[str, Any]:
        try:
            if not self._plan.predictions.tables or ENGINES[one.settings.engine].emulated:
                return self._foretold(one, tables=False)
            try:
                return self._foretold(one, tables=True)
            except NoRow as why:
                return self._foretold(one, tables=False) | {"no_row": str(why)}
        except (Unknown, NoRow) as why:
            return {"not_predicted": str(why)}

    def _foretold(self, one: Deployment, tables: bool) -> dict[str, Any]:
        """Raises Unknown, and NoRow of the tables."""
        known, caching = self._known(one, tables), one.settings.enable_prefix_caching is not False
        found = [
            (name, self._under(known, name, self._plan.levels_of(load, one.id), caching))
            for name, load in ((load.workload.name, load) for load in self._plan.loads_of(one.id))
        ]
        return {
            "levels": [
                {"workload": name, **level} for name, (levels, _) in found for level in levels
            ],
            "capacity": {
                slo.name: {name: capacities[at] for name, (_, capacities) in found}
                for at, slo in enumerate(self._slos)
            },
            "error": known.error.document(),
        }

    def _known(self, one: Deployment, tables: bool) -> _Known:
        """Raises Unknown, and NoRow of the tables."""
        settings, engine, memory = one.settings, ENGINES[one.settings.engine], one.predicted or {}
        if not engine.launches:
            raise Unknown("it runs already, and its hardware is not known")
        for field, what in NO_TERM.items():
            if getattr(settings, field):
                raise Unknown(f"the model has no term for {what}")
        if moved := engine.rules.moved(settings):
            raise Unknown(f"the model has no term for {', '.join(moved)}")
        profile, facts, device, error = (
            self._imitated(one) if engine.emulated else self._real(one, tables)
        )
        names = ["max_model_len", "max_num_seqs", "max_num_batched_tokens"]
        limits = {name: memory[name] for name in names if name in memory}
        if not engine.emulated and memory.get("kv_cache_tokens"):
            limits["kv_cache_tokens"] = memory["kv_cache_tokens"]
        model = replica(settings.model_copy(update=limits), facts, device, profile.constants)
        # what figures do not follow from: deployments that differ in nothing else are predicted
        # once
        model = replace(model, limits=replace(model.limits, max_model_len=0), prediction=_NOTHING)
        price = one.hardware.usd_per_gpu_hour
        return _Known(
            model, settings.replicas * settings.data_parallel_size, error, one.devices,
            None if price is None else price * one.devices,
        )  # fmt: skip

    def _imitated(self, one: Deployment) -> tuple[Profile, ModelFacts, Accelerator, Error]:
        profile = self._profile(one.settings.profile)
        return (
            profile,
            facts_of(profile, one.settings),
            device_of(profile, one.hardware),
            OF_THE_FORMULA,
        )

    def _real(
        self, one: Deployment, tables: bool
    ) -> tuple[Profile, ModelFacts, Accelerator, Error]:
        settings, hardware, given = one.settings, one.hardware, self._given
        facts = model_facts(settings.model, settings.revision, settings.hf_overrides)
        if facts is None:
            raise Unknown(f"nothing is known of {settings.model} (no config.json at hand)")
        if not facts.exact:
            raise Unknown(f"the catalogue does not know the architecture {facts.model_type!r}")
        if lacking := no_term(facts):
            raise Unknown(f"the model has no term for {lacking}, which {facts.model_type!r} has")
        if given is not None and given.fitted and given.accelerator:
            device = device_of(given, hardware)
            if hardware.is_cpu or device == of_hardware(hardware):
                error = given.fitted.get("held_out_error") or given.fitted["error"]
                return (
                    given,
                    facts,
                    device,
                    Error(error["ttft_p50"], error["tpot_p50"], "the profile's own fit"),
                )
        if hardware.is_cpu:
            raise Unknown(
                "no figures of this CPU are known: fit a profile and name it (predictions: {profile: FILE})"
            )
        if (found := of_hardware(hardware)) is None:
            raise Unknown(f"the catalogue has no accelerator {hardware.accelerator!r}")
        known = typical(settings.engine, found, tables)
        if known.error is None:
            where = f"{settings.engine} on {found.name}"
            raise Unknown(
                f"the model was never compared with {where}: fit a profile and name it (predictions: {{profile: FILE}})"
            )
        source, wider = (
            f"published points of {known.engine} on {known.architecture} GPUs, {known.date}",
            1.0,
        )
        if known.fitted_on != known.architecture:
            source = f"{source}, constants fitted on {known.fitted_on}"
        source = f"{source}, by tables of kernels" if tables else source
        if (
            settings.world_size != settings.tensor_parallel_size
            or settings.tensor_parallel_size > 8
        ):
            source, wider = f"{source}, none of them parallel like this one: twice their error", 2.0
        ttft, tpot = (
            (known.error[name], known.error[f"{name}_within"] ** wider) for name in ("ttft", "tpot")
        )
        error = Error(wider * ttft[0], wider * tpot[0], source, (ttft[1], tpot[1]))
        return (
            Profile(constants=Constants(tables=True) if tables else Constants()),
            facts,
            found,
            error,
        )

    def _demand_of(self, name: str, caching: bool) -> Demand:
        """Raises Unknown where nobody counted the tokens of its prompts."""
        workload = self._loads[name].workload
        kind = workload.requests(RandomIds(SAFE_IDS), self._plan.seed)
        shared = getattr(workload, "shared_prefix_tokens", 0)
        rows: list[tuple[int, int, int]] = []
        for session in range(SAMPLES):
            before = shared
            for turn in range(min(kind.turns(session), SAMPLES - len(rows))):
                asked, answered = (
                    kind.input_tokens(session, turn),
                    kind.output_tokens(session, turn),
                )
                if not asked:
                    raise Unknown(f"it is not known how many tokens the prompts of {name!r} have")
                cached = min(before, asked - 1) if caching else 0
                rows.append((asked - cached, cached, answered))
                before = asked + answered
        return Demand(*np.array(rows, dtype=np.float64).T)

    def _of_load(
        self, known: _Known, name: str, levels: tuple[Level, ...], caching: bool
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Figures at every level, and the capacity under each of the limits. Raises Unknown."""
        load, demand = self._loads[name], self._demand(name, caching)
        if load.arrivals.process not in ("poisson", "gamma", "constant"):
            raise Unknown(f"{load.arrivals.process} arrivals have no steady state")
        asked = [(one.control, one.value) for one in levels if one.value < math.inf]
        control: Control = load.control or (asked[0][0] if asked else "request_rate")
        ranks = {
            each: Rank(known.model, demand, each)
            for each in {control, *(each for each, _ in asked)}
        }
        if ranks[control].most < 1:
            raise Unknown(f"the KV cache does not hold one request of {name!r}")
        if not asked:
            most = known.ranks * ranks[control].level(ranks[control].full)
            asked = [
                (control, value if control == "request_rate" else max(1, round(value)))
                for value in (share * most for share in LADDER)
            ]
        figures = [
            _figures(known, ranks[each], demand, each, value)
            for each, value in dict.fromkeys(asked)
        ]
        return figures, [
            _capacity(known, ranks[control], demand, control, slo) for slo in self._slos
        ]


def _figures(
    known: _Known, rank: Rank, demand: Demand, control: Control, level: float
) -> dict[str, Any]:
    """Medians at a level; without latencies where it is more than the deployment can do for long."""
    state = rank.under(level / known.ranks)
    out: dict[str, Any] = {"control": control, "level": level, "ttft_ms": None, "tpot_ms": None}
    if state is not None:
        found = rank.latencies(state, level / known.ranks)
        out |= {f"{name}_ms": float(np.median(found[name])) * 1e3 for name in ("ttft", "tpot")}
    rate = (rank.full if state is None else state).rate
    return out | {"output_throughput": rate * known.ranks * float(demand.output.mean())}


def _capacity(
    known: _Known, rank: Rank, demand: Demand, control: Control, slo: Slo
) -> dict[str, Any]:
    """The highest load that holds, what it yields, and the same if all is slower (``low``) or
    faster (``high``) by as much as nine in ten predictions are off at most.
    """
    ttft, other = known.error.factors
    best = _highest(rank, slo, 1.0, 1.0)
    low, high = _highest(rank, slo, ttft, other), _highest(rank, slo, 1 / ttft, 1 / other)
    tokens = known.ranks * float(demand.output.mean())
    per_gpu = [
        0.0 if one is None else one.rate * tokens / max(1, known.devices)
        for one in (low, best, high)
    ]
    level = 0.0 if best is None else rank.level(best) * known.ranks
    throughput = 0.0 if best is None else best.rate * tokens
    usd = known.usd_per_hour
    return {
        "control": control,
        "level": math.floor(level) if control == "concurrency" else level,
        "output_throughput": throughput,
        "output_throughput_per_gpu": per_gpu[1],
        "interval_per_gpu": [per_gpu[0] / other, per_gpu[2] * other],
        "usd_per_million_tokens": usd / throughput / 3600 * 1e6
        if usd is not None and throughput
        else None,
    }


def _highest(rank: Rank, slo: Slo, ttft: float, other: float) -> State | None:
    """The busiest state that holds, TTFT and all else being longer by such factors; None: not even
    an idle one.
    """

    def holds(running: float) -> bool:
        state = rank.at(running)
        found = rank.latencies(state, rank.level(state))
        seconds = {
            name: values * (ttft if "ttft" in name else other) for name, values in found.items()
        }
        judged = tests(LimitValues(np.ones(SAMPLES, bool), seconds), slo)
        return all(float(one.met.mean()) >= one.target for one in judged)

    low, high = min(_LEAST, rank.most), rank.most
    if holds(high):
        return rank.at(high)
    if not holds(low):
        return None
    for _ in range(_LOOKS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return rank.at(low)

"""Which deployments a race starts where it may not start all: the first in order, or those that
Optuna proposes.

The proposer is asked again for every start, with all that is known by then, and remembers nothing:
after the same outcomes it proposes the same, in a sweep that goes on too. What it does not propose
is not started, so the answer is the best of the deployments that were.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from orchestrator.base.errors import InputError
from orchestrator.capacity.dominance import expected
from orchestrator.capacity.race import GroupClaims, Race, distance

INSTALL = "pip install llm-serving-orchestrator[optuna]"
FIRST = 10  # starts of a group before outcomes count: of fewer no model can be made

Settings = Mapping[str, Any]
T = TypeVar("T")


class Shortlist:
    """Chooses at most ``most`` deployments of a race, by name; None: all are chosen. ``targets``:
    share of requests, by name of SLO. ``promise``: see ``plan/order.py``; empty: nothing is
    predicted.
    """

    def __init__(
        self,
        race: Race,
        targets: Mapping[str, float],
        most: int | None,
        promise: Mapping[str, float] = MappingProxyType({}),
        proposer: str | None = None,
        seed: int = 0,
    ) -> None:
        self._race = race
        self._targets = targets
        self._most = most
        self._promise = promise
        self._proposes = proposer is not None
        self._seed = seed
        self.chosen: set[str] = set()

    @property
    def left(self) -> int:
        """How many may still be chosen; 0 where all are."""
        return max(0, (self._most or 0) - len(self.chosen))

    def has(self, name: str) -> bool:
        """Whether it was chosen."""
        return self._most is None or name in self.chosen

    def others(self, names: Iterable[str]) -> list[str]:
        """Of these, the ones that were not chosen."""
        return [name for name in names if not self.has(name)]

    def expected(self, by_name: Mapping[str, T]) -> list[T]:
        """Of these, the chosen ones and as many others as may still be chosen."""
        beyond = set(self.others(by_name)[self.left :])
        return [deployment for name, deployment in by_name.items() if name not in beyond]

    def choose(self, names: Sequence[str], running: Collection[str]) -> str:
        """One more of ``names``. ``running``: of those chosen before, what is not over yet.

        Groups that are not compared with each other take turns. The proposer begins with what is
        predicted best, too.
        """
        turns = Counter(self._group(chosen) for chosen in self.chosen)
        group = self._group(min(names, key=lambda name: turns[self._group(name)]))
        candidates = [name for name in names if self._group(name) == group]
        if self._asks_the_proposer(group, turns[group]):
            results = self._results(group, running)
            settings = {
                name: self._race.entrants[name].settings for name in (*results, *candidates)
            }
            name = propose(settings, results, self._seed + len(self.chosen))
        else:
            name = max(candidates, key=lambda candidate: self._promise.get(candidate, 0.0))
        self.chosen.add(name)
        return name

    def _asks_the_proposer(self, group: Hashable, starts: int) -> bool:
        """Whether the proposer chooses after so many starts of a group that is compared."""
        if not self._proposes or group is None:
            return False
        return starts >= FIRST or not self._promise

    def _group(self, name: str) -> Hashable:
        """The group that a deployment is compared in; None: it is compared with no other."""
        entrant = self._race.entrants.get(name)
        return None if entrant is None else entrant.group

    def _results(self, group: Hashable, running: Collection[str]) -> dict[str, float | None]:
        """What chosen ones hold, as a share of the best of them, of several searches the largest;
        0: they failed; None: nothing is known yet.
        """
        results: dict[str, float | None] = {}
        for name in sorted(self.chosen):
            if self._group(name) == group:
                results[name] = None if name in running else 0.0
        for group_claims in self._race.claims_in(group):
            values = self._values(group_claims, results)
            best = max(values.values(), default=0.0) or 1.0
            for name, value in values.items():
                results[name] = max(value / best, results[name] or 0.0)
        return results

    def _values(self, group_claims: GroupClaims, names: Collection[str]) -> dict[str, float]:
        """What those of these names are expected to hold, over their divisors, as far as probes
        tell.
        """
        target = self._targets[group_claims.slo]
        values: dict[str, float] = {}
        for name, claim in group_claims.claims.items():
            if name not in names:
                continue
            level = expected(claim, target)
            if level is not None:
                values[name] = level / self._race.entrants[name].divisor
        return values


def propose(settings: Mapping[str, Settings], known: Mapping[str, float | None], seed: int) -> str:
    """The one of ``settings``, by name, to be tried next, by Optuna's tree-structured Parzen
    estimator. ``known``: the values of those that were tried, the higher the better; None: not
    known yet. Raises InputError without Optuna.
    """
    try:
        import optuna
    except ImportError:
        raise InputError(f"Optuna is not installed; {INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes = _axes(list(settings.values()))
    space = {name: _distribution(optuna.distributions, values) for name, values in axes.items()}
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=FIRST)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    states = optuna.trial.TrialState
    for name, value in known.items():
        trial = optuna.trial.create_trial(
            params=_places(settings[name], axes),
            distributions=space,
            value=value,
            state=states.RUNNING if value is None else states.COMPLETE,
        )
        study.add_trial(trial)
    places = study.ask(space).params
    wanted = {axis: values[places[axis]] for axis, values in axes.items()}

    def distance_to_wanted(name: str) -> float:
        return distance({axis: settings[name].get(axis) for axis in axes}, wanted)

    untried = [name for name in settings if name not in known]
    return min(untried, key=distance_to_wanted)


def _axes(settings: Sequence[Settings]) -> dict[str, list[Any]]:
    """Values of each setting that varies, numbers in order. Of settings that vary together the
    first stands for all. Values are told apart by how they are written: 1 and True are two.
    """
    axes: dict[str, list[Any]] = {}
    patterns: set[tuple[int, ...]] = set()  # in which deployments a setting has equal values
    names = dict.fromkeys(name for of_deployment in settings for name in of_deployment)
    for name in names:
        by_text: dict[str, Any] = {}
        for of_deployment in settings:
            value = of_deployment.get(name)
            by_text.setdefault(repr(value), value)
        if len(by_text) < 2:
            continue
        place_of = {text: place for place, text in enumerate(by_text)}
        pattern = tuple(place_of[repr(of_deployment.get(name))] for of_deployment in settings)
        if pattern not in patterns:
            patterns.add(pattern)
            values = list(by_text.values())
            axes[name] = sorted(values) if _are_numbers(values) else values
    return axes


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _distribution(kinds: Any, values: Sequence[Any]) -> Any:
    """Of places in ``values``: near ones are alike if these are numbers."""
    if _are_numbers(values):
        return kinds.IntDistribution(0, len(values) - 1)
    return kinds.CategoricalDistribution(range(len(values)))


def _places(settings: Settings, axes: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Where a deployment stands on each axis."""
    places: dict[str, int] = {}
    for axis, values in axes.items():
        texts = [repr(value) for value in values]
        places[axis] = texts.index(repr(settings.get(axis)))
    return places

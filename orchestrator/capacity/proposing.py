"""Chooses which deployments a race starts, where it may not start all of them.

It chooses those predicted best (without predictions, the first in order), or those that Optuna
proposes. The proposer is asked anew for every start, with everything that is known by then, and
remembers nothing: after the same outcomes it makes the same proposal, also in a sweep that is
continued. A deployment that is not chosen is not started, so the answer is the best of the started
ones.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from orchestrator.base.errors import InputError
from orchestrator.base.extras import how_to_install
from orchestrator.capacity.dominance import expected
from orchestrator.capacity.race import GroupClaims, Race, distance

INSTALL = how_to_install("optuna")
FIRST = 10  # starts of a group before the proposer chooses: its model needs so many outcomes

Settings = Mapping[str, Any]
T = TypeVar("T")


class Shortlist:
    """Chooses at most ``most`` deployments of a race, by name; with None, all of them.

    ``targets``: by name of SLO, the share of requests that must meet its first test. ``promise``:
    by name of deployment, what is predicted (``plan/order.py: queue_priority``); empty where
    nothing is. ``proposer``: None: the predictions alone choose.
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
        """How many more may be chosen; 0 where all are chosen anyway."""
        return max(0, (self._most or 0) - len(self.chosen))

    def has(self, name: str) -> bool:
        """Whether this deployment was chosen."""
        return self._most is None or name in self.chosen

    def others(self, names: Iterable[str]) -> list[str]:
        """The names among ``names`` that were not chosen."""
        return [name for name in names if not self.has(name)]

    def expected(self, by_name: Mapping[str, T]) -> list[T]:
        """The chosen deployments of ``by_name``, and as many others as may still be chosen."""
        beyond = set(self.others(by_name)[self.left :])
        return [deployment for name, deployment in by_name.items() if name not in beyond]

    def choose(self, names: Sequence[str], running: Collection[str]) -> str:
        """Chooses one more of ``names``. ``running``: the chosen deployments that are not over.

        Groups that are not compared with each other take turns. Even with a proposer, the first
        starts of a group are those predicted best, if there are predictions.
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
        """Whether the proposer chooses, after so many starts of the group.

        It chooses only in groups whose deployments are compared with each other.
        """
        if not self._proposes or group is None:
            return False
        return starts >= FIRST or not self._promise

    def _group(self, name: str) -> Hashable:
        """The group in which a deployment is compared; None: it is compared with no other."""
        entrant = self._race.entrants.get(name)
        return None if entrant is None else entrant.group

    def _results(self, group: Hashable, running: Collection[str]) -> dict[str, float | None]:
        """What each chosen deployment of the group holds, as a share of what the best one holds.

        It is 0 if the deployment failed and None if nothing is known yet. Of several searches of a
        deployment, the largest share counts.
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
        """The load that each of ``names`` is expected to hold, divided by its divisor.

        Deployments whose probes say nothing yet are left out.
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
    """The deployment to try next, by Optuna's tree-structured Parzen estimator.

    ``settings``: by name of deployment; one of these names is returned. ``known``: the value of
    each that was tried, the higher the better; None: not known yet. Raises InputError if Optuna is
    not installed.
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
    """The values of each setting that varies; numbers are sorted.

    Where several settings vary together, only the first is kept: they have the same pattern, which
    says for each deployment which of the values it has, in the order in which values come. Values
    are told apart by their ``repr``, so 1 and True differ.
    """
    axes: dict[str, list[Any]] = {}
    patterns: set[tuple[int, ...]] = set()
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
    """The distribution of indexes into ``values``.

    Indexes of numbers are ordered, so that Optuna takes neighbours to be alike; others are
    categories.
    """
    if _are_numbers(values):
        return kinds.IntDistribution(0, len(values) - 1)
    return kinds.CategoricalDistribution(range(len(values)))


def _places(settings: Settings, axes: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The index of a deployment's value on each axis."""
    places: dict[str, int] = {}
    for axis, values in axes.items():
        texts = [repr(value) for value in values]
        places[axis] = texts.index(repr(settings.get(axis)))
    return places

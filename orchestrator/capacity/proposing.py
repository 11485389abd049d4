"""Which deployments a race starts where it may not start all: the first in order, or those that
Optuna proposes.

The proposer is asked again for every start, with all that is known by then, and remembers nothing:
after the same outcomes it proposes the same, in a sweep that goes on too. Whoever it does not
propose is not started, so the answer is the best of those that were.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar

from orchestrator.base.errors import InputError
from orchestrator.capacity.dominance import expected
from orchestrator.capacity.race import Race, distance

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
        self._race, self._targets, self._most, self._promise = race, targets, most, promise
        self._proposes, self._seed = proposer is not None, seed
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
        return [name for name in names if not self.has(name)] if self._most is not None else []

    def expected(self, some: Mapping[str, T]) -> list[T]:
        """Of these, by name, the chosen ones and as many others as may still be."""
        beyond = {*self.others(some)[self.left :]}
        return [one for name, one in some.items() if name not in beyond]

    def choose(self, names: Sequence[str], running: Collection[str]) -> str:
        """One more of ``names``. ``running``: of those chosen before, what is not over yet.

        Groups that are not compared with each other take turns. The proposer begins with what is
        predicted best, too.
        """
        turns, group_of = Counter(map(self._group, self.chosen)), self._group
        group = group_of(min(names, key=lambda name: turns[group_of(name)]))
        some = [name for name in names if group_of(name) == group]
        name = max(some, key=lambda one: self._promise.get(one, 0.0))
        if self._proposes and group is not None and (turns[group] >= FIRST or not self._promise):
            known = self._known(group, running)
            settings = {one: self._race.entrants[one].settings for one in (*known, *some)}
            name = propose(settings, known, self._seed + len(self.chosen))
        self.chosen.add(name)
        return name

    def _group(self, name: str) -> Hashable:
        return self._race.entrants[name].group if name in self._race.entrants else None

    def _known(self, group: Hashable, running: Collection[str]) -> dict[str, float | None]:
        """What chosen ones hold, as a share of the best of them, of several searches the largest;
        0: they failed; None: nothing is known yet.
        """
        chosen = [one for one in sorted(self.chosen) if self._group(one) == group]
        found: dict[str, float | None] = {one: None if one in running else 0.0 for one in chosen}
        for of_slo in self._race.claims_in(group):
            target = self._targets[of_slo.slo]
            held = {
                one: expected(claim, target) for one, claim in of_slo.claims.items() if one in found
            }
            values = {
                one: value / self._race.entrants[one].divisor
                for one, value in held.items()
                if value is not None
            }
            best = max(values.values(), default=0.0) or 1.0
            found |= {one: max(value / best, found[one] or 0.0) for one, value in values.items()}
        return found


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
    axes, states = _axes(settings.values()), optuna.trial.TrialState
    space = {name: _distribution(optuna.distributions, values) for name, values in axes.items()}
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=FIRST)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for name, value in known.items():
        at = {axis: _place(settings[name].get(axis), values) for axis, values in axes.items()}
        state = states.RUNNING if value is None else states.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(params=at, distributions=space, value=value, state=state)
        )
    asked = study.ask(space).params
    wanted = {axis: values[asked[axis]] for axis, values in axes.items()}
    left = [name for name in settings if name not in known]
    return min(
        left, key=lambda name: distance({axis: settings[name].get(axis) for axis in axes}, wanted)
    )


def _axes(settings: Collection[Settings]) -> dict[str, list[Any]]:
    """Values of each setting that varies, numbers in order. Of settings that vary together the
    first stands for all.
    """
    names = dict.fromkeys(name for one in settings for name in one)
    found: dict[tuple[int, ...], tuple[str, list[Any]]] = {}
    for name in names:
        number, numbers = count(), dict[str, tuple[int, Any]]()
        for one in settings:
            if (key := repr(value := one.get(name))) not in numbers:
                numbers[key] = next(number), value
        pattern = tuple(numbers[repr(one.get(name))][0] for one in settings)
        values = [value for _, value in numbers.values()]
        if len(values) > 1:
            found.setdefault(pattern, (name, sorted(values) if _ordered(values) else values))
    return dict(found.values())


def _ordered(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _distribution(kinds: Any, values: Sequence[Any]) -> Any:
    """Of places in ``values``: near ones are alike if these are numbers."""
    return (
        kinds.IntDistribution(0, len(values) - 1)
        if _ordered(values)
        else kinds.CategoricalDistribution(range(len(values)))
    )


def _place(value: Any, values: Sequence[Any]) -> int:
    return next(at for at, one in enumerate(values) if repr(one) == repr(value))

"""A race of deployments: where each is probed first, who is beaten, who is thought to be ahead."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.capacity.choose_level import level_to_confirm, level_to_explore
from orchestrator.capacity.claim import Claim, claim_of
from orchestrator.capacity.dominance import RivalClaim, is_dominated, lead_of
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.levels import SAME, STEPS, LevelEvidence
from orchestrator.capacity.race import CAUTION, Entrant, Race, _SearchProgress, precision_reached
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.sequential_test import Evidence, LevelVerdict
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.spec.load import Slo
from tests.unit.capacity.builders import at, claim

ENTRANTS = {
    "small": Entrant("h100", 1, {"tensor_parallel_size": 1, "quantization": None}),
    "large": Entrant("h100", 8, {"tensor_parallel_size": 8, "quantization": None}),
    "middle": Entrant("h100", 2, {"tensor_parallel_size": 2, "quantization": None}),
    "other": Entrant("l4", 1, {"tensor_parallel_size": 1, "quantization": None}),
}


def test_a_lead_is_compared_per_what_deployments_take() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    assert race.to_equal("small", "w", "fast").lead == 10.0
    assert race.to_equal("middle", "w", "fast").lead == 20.0
    assert race.to_equal("large", "w", "fast").lead == 0.0  # nobody is ahead of itself
    assert race.to_equal("other", "w", "fast").lead == 0.0
    assert (
        race.to_equal("small", "w", "slow").lead == race.to_equal("small", "v", "fast").lead == 0.0
    )
    assert race.to_equal("small", "w", "fast").leader_estimate == pytest.approx(CAUTION * 12.0)


def test_a_reach_counts_while_it_is_asked_for_and_after_another_probe() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    seen = race.version
    race.tell("large", "w", "fast", claim(80.0), 96.0, asks=False)
    assert race.to_equal("small", "w", "fast").leader_estimate == 10.0
    assert race.version > seen
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    # or two that wait for each other would do so for ever
    assert race.to_equal("small", "w", "fast").leader_estimate == 10.0
    race.tell("large", "w", "fast", claim(80.0, 100.0), 96.0)
    assert race.to_equal("small", "w", "fast").leader_estimate == pytest.approx(CAUTION * 12.0)


def test_a_search_that_is_over_leads_with_what_it_claims() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    assert race.to_equal("small", "w", "fast").lead == 10.0
    claims_64 = Claim(claim=64.0, low=80.0, high=96.0, status="unresolved", levels=())
    race.tell("large", "w", "fast", claims_64, 0.0, asks=False)
    assert (
        race.to_equal("small", "w", "fast").lead
        == race.to_equal("small", "w", "fast").leader_estimate
        == 8.0
    )
    race.tell("large", "w", "fast", claim(80.0, 96.0, "unresolved"), 0.0, asks=False)
    assert race.to_equal("small", "w", "fast").lead == 0.0
    claims_6 = Claim(claim=6.0, low=9.0, high=12.0, status="unresolved", levels=())
    claims_nothing = claim(80.0, 96.0, "unresolved")
    assert lead_of([RivalClaim(claims_nothing, 8.0), RivalClaim(claims_6, 1.0)]) == 6.0


def test_a_doubted_lead_stays_until_it_fails_or_nothing_is_asked() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(80.0), 80.0)
    race.tell("large", "w", "fast", claim(40.0, 96.0), 80.0)
    assert race.to_equal("small", "w", "fast").lead == 10.0
    race.tell("large", "w", "fast", claim(40.0, 96.0), 80.0, asks=False)
    assert race.to_equal("small", "w", "fast").lead == 5.0
    race.tell("large", "w", "fast", claim(64.0, 96.0), 64.0)
    race.tell("large", "w", "fast", claim(40.0, 64.0), 40.0)
    assert race.to_equal("small", "w", "fast").lead == 5.0


GRID = [float(f"{2.0 ** (step / STEPS):.4g}") for step in range(70, 100)]


def probed(
    level: float, verdict: LevelVerdict | None, share: float, whole: int, confirmed: bool = False
) -> LevelEvidence:
    undecided = Evidence(
        requests=3000, share=0.95, effective=150.0, design_effect=20.0, holds=0.0, fails=0.0
    )
    return LevelEvidence(
        level=level,
        probes=whole,
        verdict=verdict,
        confirmed=confirmed,
        share=share,
        requests=3000,
        tests=(undecided,),
        whole=whole,
        blocked=False,
        client_bound=False,
        collapsed=False,
        usual_effect=20.0,
    )


# ONE_WAITS waits while OTHER asks, and OTHER asks while ONE_WAITS waits.
ONE_WAITS = [
    *(
        probed(level, None, share, 8)
        for level, share in ((8.0, 0.945), (8.98, 0.955), (11.31, 0.95))
    ),
    probed(11.99, None, 0.95, 2),
    probed(12.34, None, 0.96, 1),
    probed(15.1, "fails", 0.8, 1),
]
OTHER = [
    probed(8.0, "holds", 0.98, 1),
    probed(9.514, None, 0.96, 8),
    *(probed(level, "fails", 0.8, 1) for level in (9.792, 10.08, 17.45)),
]


@st.composite
def near_ties(draw: st.DrawFn) -> list[LevelEvidence]:
    """What probes of one deployment may show: the lowest levels hold, those above them are
    undecided, and the highest fail.
    """
    steps = sorted(draw(st.sets(st.integers(0, len(GRID) - 1), min_size=2, max_size=6)))
    first_undecided = draw(st.integers(0, len(steps) - 1))
    first_failing = draw(st.integers(first_undecided, len(steps)))
    found = []
    for index, step in enumerate(steps):
        verdict: LevelVerdict | None = None
        if index < first_undecided:
            verdict = "holds"
        elif index >= first_failing:
            verdict = "fails"
        share = {
            "holds": 0.98,
            None: draw(st.sampled_from([0.945, 0.95, 0.955, 0.96])),
            "fails": 0.8,
        }[verdict]
        # an undecided level gets MOST_REPEATS (8) whole probes, one that holds twice as many
        whole = 1 if verdict == "fails" else draw(st.sampled_from([1, 3, 8, 16]))
        confirmed = verdict == "holds" and draw(st.integers(0, 3)) == 0
        found.append(probed(GRID[step], verdict, share, whole, confirmed))
    return found


class Contest:
    """Searches that race as a sweep follows them (``Sweep._follow_race``): whoever is told
    anything, all look again.
    """

    def __init__(self, count: int) -> None:
        self.race = Race({str(at): Entrant("g", 1.0) for at in range(count)})
        slo = Slo(name="s", ttft=0.5, attainment=0.95)
        self.searches = {
            name: Capacity(
                SearchQuestion(
                    control="request_rate", slos=(slo,), rivals=self.race.rivals(name, "w")
                )
            )
            for name in self.race.entrants
        }
        self.given_up = dict[str, Claim]()

    def shows(self, name: str, levels: list[LevelEvidence]) -> None:
        """As if these had been probed."""
        search = self.searches[name]
        (tier,) = search._tiers
        tier._claim = claim_of(levels, 0.95)
        tier._is_over = None  # computed again
        search._wanted = None  # computed again
        search._probes = 1
        search.look()
        self.tell(name)

    def tell(self, name: str) -> None:
        search = self.searches[name]
        asks = search.ask() is not None
        self.race.tell(name, "w", "s", search.claims()["s"], search.reaches()["s"], asks)

    def give_up(self, name: str) -> None:
        self.given_up[name] = claim = self.searches.pop(name).claims()["s"]
        self.race.tell(name, "w", "s", claim, 0.0, asks=False)

    def follow(self) -> None:
        for _ in range(3 * len(self.searches) + 2):
            seen = self.race.version
            for name, search in self.searches.items():
                if search.look():
                    self.tell(name)
            if self.race.version == seen:
                return
        pytest.fail("it goes on for ever")

    def check(self) -> None:
        """A search that asks nothing waits for one that asks, unless it is beaten by what others
        hold now, would ask nothing without rivals either, or is too near to the lead to tell.
        """
        leads = {name: self._lead(name) for name in self.race.entrants}
        asking = {name for name, search in self.searches.items() if search.ask() is not None}
        estimates_of_asking = [
            self._progress(name).leader_estimate for name in self.race.entrants if name in asking
        ]
        for name in self.searches.keys() - asking:
            (tier,) = self.searches[name]._tiers
            lead_of_others = max(leads[other] for other in leads if other != name)
            if is_dominated(tier.claim, lead_of_others):
                continue
            level_without_rivals = level_to_explore(tier.state, None) or level_to_confirm(
                tier.state
            )
            is_near_the_lead = self.searches[name].claims()["s"].status == "unresolved"
            if level_without_rivals is None or is_near_the_lead:
                continue
            assert max(estimates_of_asking, default=0.0) * SAME >= level_without_rivals

    def _lead(self, name: str) -> float:
        """The level that counts as held by a deployment: while it asks, also one that was doubted
        since it was shown to hold.
        """
        if name in self.given_up:
            return self.given_up[name].claim or 0.0
        search = self.searches[name]
        claim = search.claims()["s"]
        is_over = not search.reaches()["s"]
        shown = claim.claim if is_over else claim.low
        lead = shown or 0.0
        known_lead = self._progress(name).lead
        if search.ask() is None or known_lead >= claim.high:
            assert known_lead == lead
        return max(lead, known_lead)

    def _progress(self, name: str) -> _SearchProgress:
        return self.race._fields["w", "s", "g"].progress[name]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(near_ties(), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.none() | near_ties()), max_size=5),
)
@example([ONE_WAITS, OTHER], [])
def test_every_deployment_is_dominated_asks_or_waits_for_one_that_asks(
    found: list[list[LevelEvidence]], later: list[tuple[int, list[LevelEvidence] | None]]
) -> None:
    """``later``: what is found of one of them then; None: it is given up."""
    contest = Contest(len(found))
    for name, levels in zip(contest.race.entrants, found, strict=True):
        contest.shows(name, levels)
    contest.follow()
    contest.check()
    for number, news in later:
        if (name := str(number)) not in contest.searches:
            continue
        if news is None:
            contest.give_up(name)
        else:
            contest.shows(name, news)
        contest.follow()
        contest.check()


def test_what_a_search_sees_of_others_stays_until_it_looks() -> None:
    race = Race(ENTRANTS)
    rivals = race.rivals("small", "w")
    assert rivals.lead("fast") == 0.0
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    assert rivals.lead("fast") == rivals.leader_estimate("fast") == 0.0
    assert rivals.look(begun=True)
    assert rivals.lead("fast") == 10.0
    seen = race.version
    race.tell("middle", "w", "fast", claim(4.0), 8.0)
    assert race.version > seen
    assert not rivals.look(begun=True)  # not of the best: nothing has to be thought over


def test_on_a_full_grid_a_search_begins_where_its_neighbour_holds() -> None:
    race = Race(ENTRANTS, full_grid=True)
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    race.tell("small", "w", "fast", claim(12.0), 12.0)
    assert (
        race.to_equal("middle", "w", "fast").lead
        == race.to_equal("middle", "w", "fast").leader_estimate
        == 0.0
    )
    assert race.neighbour("middle", "w", "fast") == 24.0
    assert race.neighbour("other", "w", "fast") is None


def test_a_deployment_that_may_come_further_has_priority() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(0.0, 96.0), 80.0)
    race.tell("small", "w", "fast", claim(0.0, 11.0), 10.0)
    race.tell("middle", "w", "fast", claim(0.0, 18.0), 0.0, asks=False)
    assert race.priority("large") > race.priority("small") > race.priority("middle") == 0.0
    before = race.priority("large")
    race.tell("large", "w", "fast", claim(0.0, 96.0), 80.0, asks=False)
    race.tell("large", "w", "fast", claim(0.0, 96.0), 80.0)  # it waited, and returned
    assert race.priority("large") == pytest.approx(before)


def estimated(level: float, lower: float, upper: float) -> Claim:
    """A claim with an estimate, of which one probe met the limits as often as is allowed."""
    probed = at(level)
    return replace(
        claim(0.0, math.inf, "budget", probed), estimate=Estimate(level, lower, upper, None)
    )


def test_of_estimates_priority_has_what_is_expected_and_could_be_more() -> None:
    race = Race(ENTRANTS, targets={"fast": 0.95})
    race.tell("large", "w", "fast", estimated(80.0, 40.0, 128.0), 80.0)
    race.tell("middle", "w", "fast", estimated(20.0, 18.0, 22.0), 20.0)
    race.tell("small", "w", "fast", estimated(9.0, 8.0, 16.0), 9.0)
    assert race.priority("large") > race.priority("small") > race.priority("middle")


@pytest.mark.parametrize(
    ("lower", "upper", "factors"),
    [(10.0, 20.0, 0), (10.0, 12.0, 1), (10.0, 11.0, 2), (10.0, 10.5, 3)],
)
def test_an_estimate_becomes_precise_in_steps(lower: float, upper: float, factors: int) -> None:
    assert precision_reached(estimated(10.0, lower, upper)) == factors


def test_without_an_estimate_nothing_is_precise() -> None:
    assert precision_reached(claim(8.0, 12.0)) == 0


def test_the_same_news_does_not_raise_the_version() -> None:
    race = Race(ENTRANTS)
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    seen = race.version
    race.tell("large", "w", "fast", claim(80.0), 96.0)
    race.tell("nobody", "w", "fast", claim(80.0), 96.0)
    assert race.version == seen

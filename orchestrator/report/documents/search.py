"""What a search for one capacity found: the record that ``load --find-capacity`` shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.points import repeat_of
from orchestrator.analysis.slo import stored_values, tests
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.first_change import FirstChange, first_change
from orchestrator.capacity.inversion import Inversion, ProbeShare, clearest_inversion
from orchestrator.results.offered_rate import WindowOffer, is_as_asked, pooled_rate
from orchestrator.results.records import AttemptData
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Slo

if TYPE_CHECKING:
    from orchestrator.plan.model import Plan


@dataclass(frozen=True, slots=True)
class SearchedEndpoint:
    """What was searched, by how many clients, and where its probes are stored.

    ``results``, ``name``: None: the probes are not stored.
    """

    url: str
    model: str
    clients: int
    emulated: bool
    results: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class PlannedProbe:
    """What the search would probe if it had as much time again, and for about how many seconds."""

    level: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LimitShare:
    """The share of a probe's requests that met one test; ``share``: None: no request was due."""

    name: str
    target: float
    share: float | None


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """One probe, and what it shows of the limits."""

    probe: AttemptData
    tests: tuple[LimitShare, ...]


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The claim, its bounds, and every probe that shows it.

    ``change``: what to change first where the search ended without an answer. ``seed``: that of the
    plan. ``next``: None: the search would go no further.
    """

    endpoint: SearchedEndpoint
    control: str
    slo: Slo
    claim: Claim
    change: FirstChange | None
    seed: int
    probes: tuple[ProbeDocument, ...]
    next: PlannedProbe | None
    notes: tuple[str, ...]

    @property
    def offered_at_claim(self) -> float | None:
        """Requests/s that were due in the probes of the claimed level; None: those asked for."""
        claim = self.claim.claim
        if claim is None:
            return None
        windows: list[WindowOffer] = []
        for document in self.probes:
            probe = document.probe
            if probe.point.level == claim:
                windows.append(
                    WindowOffer(
                        due=probe.figures.requests.scheduled,
                        rate=probe.point.offered_rate,
                        window_s=probe.point.window_s,
                    )
                )
        offered = pooled_rate(windows)
        due = sum(window.due for window in windows)
        return None if is_as_asked(offered, claim, due) else offered

    @property
    def inversion(self) -> Inversion | None:
        """Two probes of which the one at the higher level met clearly more; None: there are none.

        Each probe counts with the test of which it met least.
        """
        shares: list[ProbeShare] = []
        for document in self.probes:
            point = document.probe.point
            lowest = min(
                (test.share for test in document.tests if test.share is not None), default=None
            )
            if lowest is not None and point.validity == Validity.VALID:
                requests = document.probe.figures.requests.scheduled
                shares.append(ProbeShare(point.level, lowest, requests))
        return clearest_inversion(shares)

    @property
    def excess_of_failing(self) -> float | None:
        """How far the lowest level that fails lies above the claim, as a share of the claim.

        None: nothing is claimed, or no level was shown to fail.
        """
        claim = self.claim.claim
        high = self.claim.high
        if not claim or math.isinf(high):
            return None
        return high / claim - 1


def search_document(
    endpoint: SearchedEndpoint,
    plan: Plan,
    claim: Claim,
    probes: Sequence[AttemptData],
    following: PlannedProbe | None,
    notes: Sequence[str],
) -> SearchDocument:
    """Makes the document of a search.

    ``plan``: it has one load and one SLO. ``probes``: all that are stored, the oldest first.
    ``following``: the probe that would come next.
    """
    (slo,) = plan.slos
    (load,) = plan.loads
    assert load.control is not None  # a search has one
    return SearchDocument(
        endpoint=endpoint,
        control=load.control,
        slo=slo,
        claim=claim,
        change=first_change(claim, [repeat_of(probe, slo) for probe in probes], slo),
        seed=plan.seed,
        probes=tuple(_probe_document(probe, slo) for probe in probes),
        next=following,
        notes=tuple(notes),
    )


def _probe_document(probe: AttemptData, slo: Slo) -> ProbeDocument:
    shares = []
    for test in tests(stored_values(probe), slo):
        share = float(test.met.mean()) if test.met.size else None
        shares.append(LimitShare(test.name, test.target, share))
    return ProbeDocument(probe, tuple(shares))

"""What a search for one capacity found: what ``orchestrator load --find-capacity`` shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.slo import format_slo, stored_values, tests
from orchestrator.capacity.claim import POINTLESS, claim_document
from orchestrator.capacity.dominance import estimate
from orchestrator.capacity.outcomes import targets
from orchestrator.report.formats import Document, fields_of
from orchestrator.report.text import EMULATED, Column, plain, say, table
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Slo, hours, load_text

if TYPE_CHECKING:
    from orchestrator.capacity.claim import Claim
    from orchestrator.plan.model import Plan
    from orchestrator.results.records import AttemptData

_STATUS = {
    "converged": (
        "the claim is as near to the lowest level that fails as was asked for (--precision)"
    ),
    "cliff": "just above the claim hardly any request meets the limits",
    "unresolved": "levels in between could not be decided: longer probes (--duration) tell more",
    "nothing_holds": "the lowest level that gives a probe enough requests does not hold either",
    "budget": "the search ended before it knew all it could",
    "non_monotonic": (
        "a level holds above one that fails: the engine does not behave the same all the time"
    ),
    "client_bound": "the client was too slow to tell: try more --clients",
} | {one: Validity(one).remedy.format("the server") for one in POINTLESS}
# how a probe ended before its time; that it is no claim yet is said below the table
_ENDED = {"holds": "passed", "fails": "missed"}


def search_document(plan: Plan, claim: Claim, probes: Sequence[AttemptData]) -> Document:
    """The claim, its bounds, and every probe that shows it."""
    (slo,), (load,) = plan.slos, plan.loads
    return {
        "control": load.control,
        "slo": format_slo(slo),
        **claim_document(claim),
        "passed": claim.passed,
        "estimate": estimate(claim, targets([slo])[0][0]),
        "seed": plan.seed,
        "probes": [_probe(one, slo) for one in probes],
    }


def _probe(data: AttemptData, slo: Slo) -> Document:
    held = [
        {"name": one.name, "target": one.target, "share": _share(one.met)}
        for one in tests(stored_values(data), slo)
    ]
    return {
        **fields_of(
            data.point, "level", "repeat", "seed", "ended_early", "validity", "validity_reasons"
        ),
        **fields_of(data.figures, "window_s", "requests"),
        "tests": held,
    }


def _share(met: Any) -> float | None:
    return float(met.mean()) if met.size else None


def search_text(found: Document) -> Iterator[str]:
    """The document for a person."""
    one: dict[str, Any] = dict(found)
    yield say(f"{one['model']} at {one['url']}: capacity under {one['slo']}", "bold")
    titles = ["probe", "requests", "window s", "attained", "ended early", "validity"]
    yield from table(
        [Column(title, fold=title == "probe") for title in titles],
        [_cells(one, at) for at in one["probes"]],
    )
    yield from _why_not_valid(one)
    yield ""
    yield say(_answer(one), "green" if one["status"] == "converged" else "yellow")
    goes_on = one["results"] and one["status"] == "budget"
    yield f"{one['status']}: {_STATUS[one['status']]}" + (
        ": the same command goes on" if goes_on else ""
    )
    yield from _run_on(one)
    yield from (say(f"note: {plain(note)}", "yellow") for note in one["notes"])
    if one["emulated"]:
        yield say(EMULATED, "yellow")


def _answer(one: dict[str, Any]) -> str:
    """``holds 16 req/s; 24 req/s passed once and is not confirmed; best estimate 28.4 req/s; ...``"""
    control, claim, high = one["control"], one["claim"], one["high"]
    words = []
    if claim is not None:
        words.append(f"holds {load_text(control, claim)}")
    elif one["status"] not in POINTLESS:
        words.append("no load is confirmed yet")
    else:
        words.append("no load can be judged")
    if one["passed"] is not None and one["passed"] > (claim or 0.0):
        words.append(f"{load_text(control, one['passed'])} passed and is not confirmed")
    if one["estimate"] is not None:
        words.append(f"best estimate {load_text(control, float(format(one['estimate'], '.3g')))}")
    if high is not None:
        words.append(f"fails {load_text(control, high)}")
    if claim is not None or one["low"]:
        bounds = f"between {one['low']:g} and {'more' if high is None else f'{high:g}'}"
        words.append(f"95 % bounds {bounds}")
    return f"{'; '.join(words)} ({one['status']})"


def _why_not_valid(one: dict[str, Any]) -> Iterator[str]:
    """A line for each verdict that is not ``valid``, with its reason and the probes that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for probe in one["probes"]:
        if probe["validity"] == Validity.VALID:
            continue
        reasons = "; ".join(probe["validity_reasons"]) or "no reason was stored"
        # the same reason with other figures is not repeated
        key = probe["validity"], re.sub(r"\d+([.,]\d+)*", "", reasons)
        found.setdefault(key, [reasons]).append(load_text(one["control"], probe["level"]))
    for (validity, _), (reasons, *levels) in found.items():
        yield say(f"{validity} at {', '.join(dict.fromkeys(levels))}: {plain(reasons)}", "yellow")


def _run_on(one: dict[str, Any]) -> Iterator[str]:
    """What would be gained by running on."""
    ahead, claim, high = one["next"], one["claim"], one["high"]
    if ahead is not None:
        level = load_text(one["control"], ahead["level"])
        apart = (
            f"; what fails lies {high / claim - 1:.0%} above the claim" if claim and high else ""
        )
        yield (
            f"With as much time again it would probe {level} next, for about "
            f"{hours(ahead['seconds'])}{apart}."
        )
    elif claim and high and one["status"] == "converged":
        yield (
            f"What fails lies {high / claim - 1:.0%} above the claim: a smaller --precision "
            "brings them nearer."
        )


def _cells(one: dict[str, Any], probe: dict[str, Any]) -> list[str]:
    shares = [f"{at['share']:.3f}" for at in probe["tests"] if at["share"] is not None]
    return [
        load_text(one["control"], probe["level"])
        + (f" #{probe['repeat'] + 1}" if probe["repeat"] else ""),
        f"{probe['requests'].ok}/{probe['requests'].scheduled}",
        f"{probe['window_s']:.1f}",
        ", ".join(shares) or "-",
        _ENDED.get(probe["ended_early"], probe["ended_early"]) or "",
        probe["validity"],
    ]

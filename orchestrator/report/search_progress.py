"""The text of ``load --find-capacity``: what a search for one capacity found."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.analysis.slo import format_slo
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import hours
from orchestrator.capacity.estimate_words import OVERLOADED, estimate_words, missed_words
from orchestrator.capacity.probe_outcome import was_overloaded
from orchestrator.report.documents.search import ProbeDocument, SearchDocument
from orchestrator.report.text import EMULATED, Column, plain, styled, table
from orchestrator.report.words import (
    NO_REASON,
    first_change_text,
    option_text,
    search_status_text,
)
from orchestrator.results.records import PointHead
from orchestrator.results.validity import Validity
from orchestrator.spec.load import load_text

# by the verdict with which a probe ended early: its word in the table, where it is no claim yet
_EARLY_ENDS = {"holds": "passed", "fails": "missed"}


def search_text(document: SearchDocument) -> Iterator[str]:
    """A table of all probes; below it the claim, its bounds, and what would tell more."""
    endpoint = document.endpoint
    status = document.claim.status
    limits = format_slo(document.slo)
    yield styled(f"{endpoint.model} at {endpoint.url}: capacity under {limits}", "bold")
    titles = ["requests", "window s", "attained", "ended early", "validity"]
    columns = [Column("probe", fold=True), *map(Column, titles)]
    yield from table(columns, [_cells(document, probe) for probe in document.probes])
    yield from _why_overloaded(document)
    yield from _why_not_valid(document)
    yield ""
    yield styled(_answer(document), "green" if status == "converged" else "yellow")
    yield from _why_not_safe(document)
    yield from _inversion(document)
    is_stored = endpoint.results is not None
    can_go_on = is_stored and status == "budget" and document.inversion is None
    remedy = ": the same command goes on" if can_go_on else ""
    yield f"{search_status_text(status)}{remedy}"
    if document.change is not None:
        text = first_change_text(document.control, document.change, option_text)
        yield f"change first: {text}"
    yield from _gain_of_running_on(document)
    for note in document.notes:
        yield styled(f"note: {plain(note)}", "yellow")
    if endpoint.emulated:
        yield styled(EMULATED, "yellow")


def _cells(document: SearchDocument, probe_document: ProbeDocument) -> list[str]:
    """The row of one probe."""
    head = probe_document.probe.point
    figures = probe_document.probe.figures
    shares = [f"{test.share:.3f}" for test in probe_document.tests if test.share is not None]
    level = load_text(document.control, head.level)
    ended_early = head.ended_early or ""
    return [
        f"{level} #{head.repeat + 1}" if head.repeat else level,
        f"{figures.requests.ok}/{figures.requests.scheduled}",
        f"{figures.window_s:.1f}",
        ", ".join(shares) or "-",
        _EARLY_ENDS.get(ended_early, ended_early),
        OVERLOADED if was_overloaded(probe_document.probe) else head.validity,
    ]


class _Verdict(NamedTuple):
    """A verdict that is not ``valid``, and its reason.

    ``reason``: without figures, so that probes with the same reason and other figures share a line.
    """

    validity: str
    reason: str


def _why_overloaded(document: SearchDocument) -> Iterator[str]:
    """A line for the probes that ended before one request was answered."""
    heads = [probe.probe.point for probe in document.probes if was_overloaded(probe.probe)]
    if heads:
        levels = dict.fromkeys(load_text(document.control, head.level) for head in heads)
        reason = "requests came in faster than they were answered, so the search ended the probe"
        yield styled(f"{OVERLOADED} at {', '.join(levels)}: {reason}", "yellow")


def _why_not_valid(document: SearchDocument) -> Iterator[str]:
    """A line for each verdict that is not ``valid``, with its reason and its probes."""
    not_valid = [
        probe.probe.point
        for probe in document.probes
        if probe.probe.point.validity != Validity.VALID and not was_overloaded(probe.probe)
    ]
    by_verdict = values_by_key(
        (_Verdict(head.validity, _without_figures(_reasons(head))), head) for head in not_valid
    )
    for verdict, heads in by_verdict.items():
        levels = dict.fromkeys(load_text(document.control, head.level) for head in heads)
        reasons = plain(_reasons(heads[0]))
        yield styled(f"{verdict.validity} at {', '.join(levels)}: {reasons}", "yellow")


def _reasons(head: PointHead) -> str:
    return "; ".join(head.validity_reasons) or NO_REASON


def _without_figures(text: str) -> str:
    return re.sub(r"\d+([.,]\d+)*", "", text)


def _answer(document: SearchDocument) -> str:
    """The claim, the estimate, what fails, and the status.

    ``holds 13 req/s; estimate 16.2 req/s (15.1 to 17.0), safe so far 14.2; fails 19.3 req/s
    (budget)``.
    """
    control = document.control
    claim = document.claim
    parts: list[str] = []
    if claim.claim is not None:
        parts.append(f"holds {load_text(control, claim.claim)}{_offered_text(document)}")
    elif claim.pointless:
        parts.append("no load can be judged")
    elif claim.estimate is None:
        parts.append("no load is confirmed yet")
    # beside the claim: the estimate, else a higher level that passed
    if claim.estimate is not None:
        parts.append(estimate_words(control, claim.estimate))
    elif claim.passed is not None and claim.passed > (claim.claim or 0.0):
        parts.append(f"{load_text(control, claim.passed)} passed and is not confirmed")
    if claim.missed is not None:
        parts.append(missed_words(control, claim.missed))
    if math.isfinite(claim.high):
        parts.append(f"fails {load_text(control, claim.high)}")
    return f"{'; '.join(parts)} ({claim.status})"


def _offered_text(document: SearchDocument) -> str:
    """The requests/s that were due at the claim; empty where they were those asked for."""
    if document.offered_at_claim is None:
        return ""
    return f" ({document.offered_at_claim:.3g} offered)"


def _why_not_safe(document: SearchDocument) -> Iterator[str]:
    """Why a level that passed is above the one that is called safe."""
    claim = document.claim
    if claim.estimate is None or claim.passed is None:
        return
    if claim.passed > max(claim.estimate.safe or 0.0, claim.claim or 0.0):
        level = load_text(document.control, claim.passed)
        yield f"{level} passed, with too few requests to be 95 % sure: it is not called safe yet"


def _inversion(document: SearchDocument) -> Iterator[str]:
    """Two probes that no server explains which was the same throughout."""
    inversion = document.inversion
    if inversion is None:
        return
    lower = inversion.lower
    higher = inversion.higher
    remedy = "search again"
    if document.endpoint.results is not None:
        remedy = "search again, under another --name"  # under this one the probes would count
    text = (
        f"not to be trusted: {load_text(document.control, higher.level)} attained"
        f" {higher.share:.3f}, the lower {load_text(document.control, lower.level)} only"
        f" {lower.share:.3f}: the server was hardly the same throughout (other work on its machine?);"
        f" {remedy}"
    )
    yield styled(text, "yellow")


def _gain_of_running_on(document: SearchDocument) -> Iterator[str]:
    """What the search would probe next, and how far the load that fails lies above the claim."""
    excess = document.excess_of_failing
    if document.next is not None:
        level = load_text(document.control, document.next.level)
        length = hours(document.next.seconds)
        gap = "" if excess is None else f"; what fails lies {excess:.0%} above the claim"
        yield f"With as much time again it would probe {level} next, for about {length}{gap}."
    elif excess is not None and document.claim.status == "converged":
        yield (
            f"What fails lies {excess:.0%} above the claim: a smaller --precision brings them"
            " nearer."
        )

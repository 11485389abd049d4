"""Serves the report's page: the whole page at first, then only what came since."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.base.redaction import redact
from orchestrator.base.text import hours
from orchestrator.report.documents.run import RunDocument
from orchestrator.report.page.html import LiveState, page_html
from orchestrator.report.page.packing import packed_bins
from orchestrator.report.run_status import since_text
from orchestrator.results.runs import RunState
from orchestrator.web.texts import KeptTexts
from orchestrator.web.watched import Watched

WAITING = "nothing is stored here yet"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page has: its edition, the serial number of its texts, and of how many attempts it
    has the requests.
    """

    edition: int = 0
    serial: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a page of the same edition lacks.

    ``serial``, ``attempts``: what the page has once it has taken in the change. ``says``: what the
    runs do. ``texts``: the ``TextChanges`` since the page's serial. ``bins``: the bins of new
    attempts. ``texts`` and ``bins`` are packed; they are empty where the page lacks nothing.
    """

    edition: int
    serial: int
    attempts: int
    says: str
    texts: str = ""
    bins: str = ""

    @property
    def seen(self) -> Seen:
        """What the page has once it has taken in the change."""
        return Seen(self.edition, self.serial, self.attempts)


def live_page(now: Watched, texts: KeptTexts) -> str:
    """The whole page, which then asks for changes by itself."""
    state = LiveState(
        edition=now.edition,
        serial=now.serial,
        attempts=now.attempts,
        says=runs_text(now.runs),
        texts=texts.at(now).packed(),
    )
    return page_html(now.content, state)


def change_since(now: Watched, texts: KeptTexts, seen: Seen) -> Change:
    """What a page lacks. ``seen``: what it has already."""
    change = Change(now.edition, now.serial, now.attempts, says=runs_text(now.runs))
    if now.edition != seen.edition or now.serial == seen.serial:
        return change
    return replace(
        change,
        texts=texts.since(seen.serial, now).packed(),
        bins=packed_bins(now.content.payload.bins.encoded(seen.attempts)),
    )


def runs_text(runs: tuple[RunDocument, ...]) -> str:
    """What the latest run of each experiment does."""
    latest = {run.experiment: run for run in runs}
    return redact("; ".join(map(_run_text, latest.values()))) or WAITING


def _run_text(run: RunDocument) -> str:
    record = run.record
    if run.is_starting:
        return f"{run.experiment}: starting since {since_text(record)}"
    text = f"{run.experiment}: {run.state}, {record.measured} of {record.total} measured"
    if record.failed:
        text += f", {record.failed} failed"
    if record.left_s and run.state is RunState.RUNNING:
        text += f", ~{hours(record.left_s)} left"
    doing = [f"{label}: {each.doing}" for label, each in record.deployments.items() if each.doing]
    if doing and run.state is RunState.RUNNING:
        text += f" ({', '.join(doing[:3])}{', …' if len(doing) > 3 else ''})"
    return text

"""The report's page as it is served: whole at first, then only what came since."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.base.redaction import redact
from orchestrator.report.documents.run import RunDocument
from orchestrator.report.page.html import LiveState, page_html
from orchestrator.spec.load import hours
from orchestrator.web.watched import Watched

WAITING = "nothing is stored here yet"


@dataclass(frozen=True, slots=True)
class Change:
    """What a page of the same edition lacks.

    ``says``: what the runs do. ``serial`` and ``attempts``: what the page has then; ``described``
    and ``bins``: packed as in the page, the bins of new attempts alone. Both are empty where the page
    has all.
    """

    edition: int
    serial: int
    attempts: int
    says: str
    described: str = ""
    bins: str = ""


def live_page(now: Watched) -> str:
    """The whole page, which goes on by itself."""
    return page_html(
        now.content, LiveState(now.edition, now.serial, now.attempts, runs_text(now.runs))
    )


def static_page(now: Watched) -> str:
    """What the page shows without scripts, and the time lines."""
    return page_html(now.content, has_scripts=False)


def change_since(now: Watched, edition: int, serial: int, attempts: int) -> Change:
    """What a page of this edition and serial number lacks, which has ``attempts``."""
    says = runs_text(now.runs)
    if now.edition != edition or now.serial == serial:
        return Change(now.edition, now.serial, now.attempts, says)
    packed = now.content.payload.encoded(attempts)
    return Change(now.edition, now.serial, now.attempts, says, packed["described"], packed["bins"])


def runs_text(runs: tuple[RunDocument, ...]) -> str:
    """What the latest run of each experiment does."""
    latest = {run.experiment: run for run in runs}
    return redact("; ".join(map(_run_text, latest.values()))) or WAITING


def _run_text(run: RunDocument) -> str:
    record = run.record
    text = f"{run.experiment}: {run.state}, {record.measured} of {record.total} measured"
    if record.failed:
        text += f", {record.failed} failed"
    if record.left_s and run.state == "running":
        text += f", ~{hours(record.left_s)} left"
    doing = [f"{label}: {each.doing}" for label, each in record.deployments.items() if each.doing]
    if doing and run.state == "running":
        text += f" ({', '.join(doing[:3])}{', …' if len(doing) > 3 else ''})"
    return text

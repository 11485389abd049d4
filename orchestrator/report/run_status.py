"""The text of ``orchestrator status``: what a run does now, or did last."""

import time
from collections.abc import Iterator

from orchestrator.base.redaction import redact
from orchestrator.base.text import hours
from orchestrator.report.documents.run import RunDocument
from orchestrator.results.runs import RunRecord, RunState

# Of a run's last events, these many are shown: as many as leave its progress on a small terminal.
# JSON has all that are kept.
SHOWN_EVENTS = 8

# what a run that is starting waits for, by its state
_WAITS_FOR = {
    RunState.CLAIMING: "it waits until it is clear whether an earlier run is over",
    RunState.STARTING: "it joins its cluster",
}


def run_text(document: RunDocument) -> str:
    """Which process runs it and since when, its progress, each deployment, and the last events; for
    a run that is starting, what it waits for in place of its progress.

    The text has no secrets and no terminal control characters.
    """
    return redact("\n".join(_lines(document)))


def _lines(document: RunDocument) -> Iterator[str]:
    record = document.record
    state = RunState.STARTING if document.is_starting else document.state
    last = "it ended" if state is RunState.ENDED else "its last heartbeat was"
    age = f"{last} {hours(document.age_s)} ago"
    yield f"{document.experiment}: {state}, {record.name}, since {since_text(record)}; {age}"
    if state in (RunState.DEAD, RunState.SILENT):
        yield (
            "  running the same command again takes its place and continues; what it measured "
            "is kept"
        )
    if document.is_starting:
        yield f"  {_WAITS_FOR[document.state]}"
        return
    progress = _progress(document)
    if state in (RunState.DEAD, RunState.SILENT):
        progress = f"at its last heartbeat: {progress}"
    yield f"  {progress}"
    for standing in record.standings.values():
        yield f"  {standing}"
    if record.decided:
        yield f"  {record.decided}"
    yield from _deployments(document)
    events = record.events[-SHOWN_EVENTS:]
    if events:
        yield "  last events"
    for event in events:
        deployment = f"{event.deployment}: " if event.deployment else ""
        yield f"    {_clock('%H:%M:%S', event.unix_ns)} {event.kind}: {deployment}{event.text}"


def since_text(record: RunRecord) -> str:
    """When a run began, in the time zone of this machine."""
    return _clock("%Y-%m-%d %H:%M:%S", record.began_unix_ns)


def _clock(form: str, unix_ns: int) -> str:
    return time.strftime(form, time.localtime(unix_ns / 1e9))


def _progress(document: RunDocument) -> str:
    record = document.record
    text = (
        f"{record.measured} of {record.total} measured, {record.failed} failed,"
        f" {record.skipped} done before"
    )
    if record.left_s and document.state is RunState.RUNNING:
        text += f", ~{hours(record.left_s)} left"
    if record.says not in ("", "ended"):
        text += f"; {record.says}"
    return text


def _deployments(document: RunDocument) -> Iterator[str]:
    is_at_work = document.state in (RunState.RUNNING, RunState.STOPPING)
    for label, deployment in document.record.deployments.items():
        text = f"  {label}: {deployment.measured} measured, {deployment.failed} failed"
        if deployment.left is not None:
            text += f", {deployment.left} left"
        if deployment.doing and is_at_work:
            text += f"; {deployment.doing}"
        yield text
        if deployment.why:
            yield f"    {deployment.why}"

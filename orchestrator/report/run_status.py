"""``orchestrator status``: what a run does now, or did last, from its record alone."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from orchestrator.base.redaction import redact
from orchestrator.report.formats import JsonObject
from orchestrator.results.runs import SILENT_S, RunRecord
from orchestrator.spec.load import hours


def state_of(record: RunRecord, age_s: float) -> str:
    """``running``, ``stopping`` or ``ended``; ``dead``: its process is gone; ``silent``: no sign of
    life for long.

    ``age_s``: seconds since its last heartbeat.
    """
    lives = record.lives()
    if record.state == "ended" or lives or (lives is None and age_s < SILENT_S):
        return record.state
    return "dead" if lives is False else "silent"


def run_documents(records: Iterable[tuple[RunRecord, float]]) -> list[JsonObject]:
    """Records with their state. ``records``: each with the age of its last heartbeat, s."""
    return [
        asdict(one) | {"state": state_of(one, age_s), "heartbeat_age_s": age_s}
        for one, age_s in records
    ]


def run_lines(experiment: str, record: RunRecord, age_s: float) -> Iterator[str]:
    """For people: who runs it and since when, its progress, each deployment, what failed, the last
    events.
    """
    state = state_of(record, age_s)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.began_unix_ns / 1e9))
    heard = "it ended" if state == "ended" else "its last heartbeat was"
    yield f"{experiment}: {state}, {record.name}, since {since}; {heard} {hours(age_s)} ago"
    if state in ("dead", "silent"):
        yield (
            "  running the same command again takes its place and continues; what it measured "
            "is kept"
        )
    left_s = f", ~{hours(record.left_s)} left" if record.left_s and state == "running" else ""
    yield (
        (
            f"  {record.measured} of {record.total} measured, {record.failed} failed, "
            f"{record.skipped} done before{left_s}"
        )
        + (f"; {record.says}" if record.says not in ("", "ended") else "")
    )
    for label, one in record.deployments.items():
        left = f", {one.left} left" if one.left is not None else ""
        doing = f"; {one.doing}" if one.doing and state in ("running", "stopping") else ""
        yield f"  {label}: {one.measured} measured, {one.failed} failed{left}{doing}"
        if one.why:
            yield f"    {one.why}"
    if record.events:
        yield "  last events"
    for event in record.events:
        at = time.strftime("%H:%M:%S", time.localtime(event.unix_ns / 1e9))
        yield f"    {at} {event.kind}: {event.deployment and event.deployment + ': '}{event.text}"


def run_text(experiment: str, record: RunRecord, age_s: float) -> str:
    """``run_lines`` as text, without secrets and without terminal control characters."""
    return redact("\n".join(run_lines(experiment, record, age_s)))

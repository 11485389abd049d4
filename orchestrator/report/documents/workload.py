"""What the workloads of an experiment hold, as far as their files are still at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.spec.load import Workload
from orchestrator.workloads.facts import (
    PartFacts,
    WorkloadFacts,
    facts_by_part,
    facts_of,
    sessions_within,
)
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.reuse import WorkloadReuse, reuse_of
from orchestrator.workloads.segments import NameOfDraw

LOOKED_AT = 1_000  # requests of each workload


@dataclass(frozen=True, slots=True)
class WorkloadDocument:
    """What the first requests of a workload hold. ``facts``: None where its file is gone or has
    changed; there is no ``reuse`` then. ``parts``: of a mix, what its requests of each part hold.
    """

    workload: Workload
    facts: WorkloadFacts | None
    reuse: WorkloadReuse | None
    parts: tuple[PartFacts, ...] = ()


def workload_documents(workloads: Iterable[Workload], seed: int) -> Iterator[WorkloadDocument]:
    """A document of each workload. Nothing is downloaded for it."""
    for workload in workloads:
        try:
            yield _document(workload, seed)
        except (InputError, ProblemsError):
            yield WorkloadDocument(workload, None, None)


def _document(workload: Workload, seed: int) -> WorkloadDocument:
    if isinstance(workload, FileWorkload) and not workload.is_here:
        raise InputError(f"the prompts of {workload.name!r} are not here")
    facts = facts_of(workload, NameOfDraw(), seed, LOOKED_AT)
    sessions = sessions_within(workload, workload.requests(NameOfDraw(), seed), LOOKED_AT)
    reuse = reuse_of(workload, seed, sessions)
    parts = facts_by_part(workload, NameOfDraw(), seed, LOOKED_AT)
    return WorkloadDocument(workload, facts, reuse, tuple(parts))

"""The signatures that engines share, in every format in which engines write lines."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.engines.registry import ENGINES
from orchestrator.node.failures import EnginePhase, classify
from orchestrator.node.signatures import COMMON, Signature
from tests.unit.node.test_log_lines import PASSING, TELLING

# A line that tells of a death does so at any level.
OF_DEATHS = (FailureKind.ILLEGAL_INSTRUCTION, FailureKind.ENGINE_DEAD)

OF_CAUSES = [row for row in COMMON if row.kind not in OF_DEATHS]

LAUNCHED = [name for name in ENGINES.names() if ENGINES[name].launches]


def name_of(row: Signature) -> str:
    return f"{row.kind}, {row.example[:40]}"


@pytest.mark.parametrize("row", COMMON, ids=name_of)
def test_each_signature_is_found_in_the_log_of_every_engine(row: Signature) -> None:
    for engine in LAUNCHED:
        for form in TELLING:
            log = f"INFO fine\n{form.format(row.example)}\nbye"
            failure = classify(ENGINES[engine].log, EnginePhase.START, log, 1)
            assert (failure.kind, failure.failure_class) == (row.kind, row.failure_class), form


@pytest.mark.parametrize("row", OF_CAUSES, ids=name_of)
def test_no_signature_counts_in_a_warning(row: Signature) -> None:
    example = row.example.replace('"', "")
    warnings = "\n".join(form.format(example) for form in PASSING)
    for engine in LAUNCHED:
        failure = classify(
            ENGINES[engine].log, EnginePhase.START, f"{warnings}\nfine\nKeyError: 'x'", 1
        )
        assert failure.kind is FailureKind.DIED_AT_START, failure.sentence
        assert failure.sentence.endswith("KeyError: 'x'")

"""What an engine's log says is understood: of itself at start, and why it failed, by recorded
lines.
"""

from __future__ import annotations

import re

import pytest

from orchestrator.engines.registry import ENGINES
from orchestrator.node.failures import EnginePhase, classify
from tests.contract import recorded

LOGGED = [name for name in ENGINES.names() if ENGINES[name].launches]
STARTS = [
    pytest.param(name, start, id=f"{name} {start}")
    for name in LOGGED
    for start in recorded.starts(name)
]
LINES = [
    pytest.param(name, line, id=f"{name}, {line.kind}, {line.source}")
    for name in LOGGED
    for line in (
        *recorded.failures(name),
        *(recorded.failures(recorded.COMMON) if name == "vllm" else ()),
    )
]
DEATHS = [
    pytest.param(name, death, id=f"{name} {death}")
    for name in LOGGED
    for death in recorded.deaths(name)
]


def test_what_is_recorded_is_of_an_engine() -> None:
    assert set(recorded.ENGINES) <= set(ENGINES.names())


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_what_an_engine_says_of_itself_is_read_from_its_log(name: str, start: str) -> None:
    expected, log = recorded.starts(name)[start]
    assert ENGINES[name].reported(log) == expected


@pytest.mark.parametrize(("name", "line"), LINES)
def test_what_an_engine_said_before_is_recognized(name: str, line: recorded.Line) -> None:
    failure = classify(
        ENGINES[name].log, EnginePhase.START, f"INFO something\n{line.text}\nINFO more", 1
    )
    assert failure.kind == line.kind
    assert failure.sentence.startswith(f"the engine did not start: {failure.kind.meaning}: ")
    assert "[type=" not in failure.sentence and "\n" not in failure.sentence
    assert "2026" not in failure.sentence and "0.00.0" not in failure.sentence, "time stamps"
    assert re.sub(r"\x1b\[\d*m", "", line.text) in failure.log_tail


@pytest.mark.parametrize(("name", "death"), DEATHS)
def test_a_whole_log_of_a_death_tells_its_cause_whatever_was_warned_of_before(
    name: str, death: str
) -> None:
    death_record, log = recorded.deaths(name)[death]
    failure = classify(
        ENGINES[name].log, EnginePhase(death_record["phase"]), log, death_record["status"]
    )
    assert failure.kind == death_record["kind"], failure.sentence
    assert death_record["said"] in failure.sentence
    assert "\x1b" not in failure.sentence + failure.log_tail
    assert failure.log_tail.strip().splitlines()[-1].strip() != ""


@pytest.mark.parametrize("name", LOGGED)
def test_every_kind_of_failure_with_words_of_its_own_is_recorded(name: str) -> None:
    if not ENGINES[name].emulated:  # it says another's
        assert set(ENGINES[name].log.failures) <= {line.kind for line in recorded.failures(name)}

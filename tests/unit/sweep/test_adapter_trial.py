"""Adapters whose answers are missing, or those of the model itself, are found before the load."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from orchestrator.base.clock import UnixSpan
from orchestrator.cluster.base import ClientReport
from orchestrator.load.point import LoadPoint, Reply, Target
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths, Level
from orchestrator.spec.request_options import Adapters
from orchestrator.sweep.adapter_trial import PROMPTS, AdapterFinding, failed_adapter_trials
from orchestrator.sweep.attempt import Loaded
from orchestrator.sweep.words import adapter_words
from orchestrator.workloads.drawn import RandomWorkload
from tests.unit.load.test_validity import CALM

LOGPROBS = (-0.5, -1.5)


def point(*names: str) -> LoadPoint:
    workload = RandomWorkload(
        name="w",
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=2),
        adapters=Adapters(names=names) if names else None,
    )
    return LoadPoint(
        targets=(Target("http://127.0.0.1:1", "m"),),
        dialect=Dialect("openai_completions", "/v1/completions", adapter_field="model"),
        workload=workload,
        level=Level(control="concurrency", value=1),
    )


class Server:
    """Answers each adapter with its own text and log-probabilities."""

    def __init__(self, **answers: tuple[str, tuple[float, ...] | None] | str) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def load(self, asked: LoadPoint) -> Loaded:
        (name,) = asked.workload.adapter_names() or ("base",)
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, str):  # an error
            row = {"measurement_id": "m", "attempt_id": "a", "request_index": 0, "error": answer}
            rows = pa.Table.from_pylist([row], schema=REQUESTS)
            return Loaded(span=UnixSpan(0, 1), requests=rows)
        text, logprobs = answer
        reply = Reply(0, 0, "prompt", text, None, logprobs if asked.dialect.logprobs else None)
        replies = tuple(replace(reply, request_index=index) for index in range(PROMPTS))
        table = REQUESTS.empty_table()
        rows = RowFile("requests", 0, table)
        report = ClientReport(CALM, (), rows, replies=replies)
        return Loaded(span=UnixSpan(0, 1), requests=table, reports={0: report})


def test_an_adapter_that_answers_like_the_model_itself_is_found() -> None:
    server = Server(
        base=("hi", LOGPROBS),
        sql=("ho", LOGPROBS),
        law=("hi", (-0.5005, -1.5)),  # another batch computes it a little differently
        math=("hi", (-0.5, -1.9)),
    )
    (found,) = failed_adapter_trials(server.load, point("sql", "law", "math"))
    assert server.asked == ["base", "sql", "law", "math"]
    assert (found.adapter, found.finding) == ("law", AdapterFinding.LIKE_BASE)
    assert "adapter law answers fixed prompts like the model itself" in adapter_words(found)


def test_without_log_probabilities_the_text_decides() -> None:
    server = Server(base=("hi", None), sql=("hi", None), law=("ho", None))
    (found,) = failed_adapter_trials(server.load, point("sql", "law"))
    assert found.adapter == "sql"


def test_an_adapter_that_does_not_answer_is_named_with_the_servers_words() -> None:
    server = Server(base=("hi", LOGPROBS), sql="404 The model `sql` does not exist.")
    (found,) = failed_adapter_trials(server.load, point("sql"))
    assert found.finding is AdapterFinding.NO_ANSWER
    assert adapter_words(found) == (
        "adapter sql did not answer fixed prompts: 404 The model `sql` does not exist."
    )


@pytest.mark.parametrize("base", ["no logprobs here"])
def test_a_server_that_answers_nobody_says_nothing_of_adapters(base: str) -> None:
    server = Server(base=base)
    assert failed_adapter_trials(server.load, point("sql")) == []
    assert server.asked == ["base", "base"]


def test_a_workload_without_adapters_asks_nobody() -> None:
    server = Server()
    assert failed_adapter_trials(server.load, point()) == []
    assert server.asked == []

"""``orchestrator init``: asks five questions and writes a commented experiment file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from orchestrator.cli.command import CliCommand

EXAMPLES = """
\b
Examples:
  orchestrator init
  orchestrator init sweep.yaml --engine sglang --model Qwen/Qwen3-32B \\
      --gpus "8 x H100-80GB" --workload rag
  orchestrator init server.yaml --engine http://10.0.0.7:8000 --model llama \\
      --gpus none --limits "ttft<=500ms"

Where there is no terminal, nothing is asked: what no option says has its default.
"""


@dataclass(frozen=True, slots=True)
class StarterQuestion:
    """One question. ``option``: the option that answers it. ``default``: an answer, as text."""

    option: str
    text: str
    default: str


ENGINE = StarterQuestion("engine", "Engine, or the URL of a server that runs", "vllm")
MODEL = StarterQuestion(
    "model", "Model (a name on the hub, or a folder)", "meta-llama/Llama-3.1-8B-Instruct"
)
GPUS = StarterQuestion("gpus", "GPUs of one node", "8 x H100-80GB")
GPUS_OF_AN_EMULATOR = StarterQuestion("gpus", "GPUs that the emulator imitates", GPUS.default)
GPUS_OF_A_SERVER = StarterQuestion("gpus", "GPUs that the server runs on, or none", "none")
WORKLOAD = StarterQuestion(
    "workload", "Workload (a preset such as chat or rag, or tokens in and out: 512/128)", "chat"
)
LIMITS = StarterQuestion(
    "limits", "Limits of latency, or none", "ttft<=500ms,tpot<=50ms,attainment>=0.95"
)
Answer = TypeVar("Answer")


@click.command(cls=CliCommand, examples=EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="experiment.yaml")
@click.option("--engine", help="An engine, emulator, or the URL of a server that runs.")
@click.option("--model", help="A name on the Hugging Face hub, or a folder.")
@click.option("--gpus", help='GPUs of one node, like "8 x H100-80GB"; or cpu.')
@click.option("--workload", help="A preset such as chat or rag, or tokens in and out: 512/128.")
@click.option("--limits", help="As --slo of other commands: ttft<=500ms,tpot<=50ms; or none.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(
    file: Path,
    engine: str | None,
    model: str | None,
    gpus: str | None,
    workload: str | None,
    limits: str | None,
    force: bool,
) -> int:
    """Write a commented experiment FILE that plans, after five questions.

    Beside it goes the JSON schema that editors complete and check it with. FILE is experiment.yaml
    by default.
    """
    from orchestrator.base.errors import InputError
    from orchestrator.base.text import listed
    from orchestrator.cli.output_file import write_whole
    from orchestrator.cli.schema import schema_text
    from orchestrator.cli.starter import (
        StarterAnswers,
        experiment_text,
        gpus_of,
        server_of,
        slo_of,
        why_not_simulated,
        workload_of,
    )
    from orchestrator.spec.experiment import parse_experiment
    from orchestrator.spec.schema import SCHEMA_FILE

    if file.exists() and not force:
        raise InputError(f"{file} exists: give another name, or --force to replace it")
    if not file.absolute().parent.is_dir():
        raise InputError(f"there is no folder {file.absolute().parent}")
    server = _answer(ENGINE, engine, server_of)
    gpus_question = GPUS
    if server.url is not None:
        gpus_question = GPUS_OF_A_SERVER
    elif server.engine == "emulator":
        gpus_question = GPUS_OF_AN_EMULATOR
    answers = StarterAnswers(
        server=server,
        model=_answer(MODEL, model, str.strip),
        gpus=_answer(gpus_question, gpus, lambda text: gpus_of(text, server.engine)),
        workload=_answer(WORKLOAD, workload, workload_of),
        slo=_answer(LIMITS, limits, slo_of),
    )
    if answers.gpus.may_be:
        others = listed(answers.gpus.may_be)
        text = f"GPUs taken as {answers.gpus.accelerator}; their name also fits {others} (--gpus)"
        click.echo(f"note: {text}", err=True)
    text = experiment_text(answers, file, SCHEMA_FILE)
    parse_experiment(text, str(file))  # an answer may be no name, or look like a secret
    schema = file.with_name(SCHEMA_FILE)
    if not schema.exists() or force:
        write_whole(schema, schema_text().encode())
        click.echo(f"wrote {schema}: an editor completes and checks the file with it", err=True)
    write_whole(file, text.encode())
    click.echo(f"wrote {file}; next: orchestrator plan {shlex.quote(str(file))}", err=True)
    reason = why_not_simulated(answers)
    if reason is not None:
        click.echo(f"note: {reason}", err=True)
    return 0


def _answer(question: StarterQuestion, given: str | None, read: Callable[[str], Answer]) -> Answer:
    """The value of an option, else what the user answers, else the default.

    An answer that cannot be read is asked for again, and an option that cannot be read is an error.
    """
    if given is not None:
        return read(given)
    if not can_ask():
        text = f"{question.option}: {question.default} (--{question.option} says otherwise)"
        click.echo(text, err=True)
        return read(question.default)
    answer: Answer = click.prompt(
        question.text, default=question.default, value_proc=_with_errors_for_click(read)
    )
    return answer


def can_ask() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty()


def _with_errors_for_click(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """``read`` with errors that click shows before it asks again."""
    from orchestrator.base.errors import OrchestratorError

    def read_answer(text: str) -> Any:
        try:
            return read(text)
        except OrchestratorError as error:
            raise click.UsageError(str(error)) from error

    return read_answer

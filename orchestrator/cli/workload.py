"""``orchestrator workload``: shows what the workloads of an experiment hold, and writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.base.errors import InputError
from orchestrator.base.text import counted

if TYPE_CHECKING:
    from orchestrator.spec.dialect import Dialect
    from orchestrator.spec.experiment import Experiment
    from orchestrator.spec.load import Workload
    from orchestrator.workloads.facts import PartFacts, SampledRequest, WorkloadFacts
    from orchestrator.workloads.kind import Prompter
    from orchestrator.workloads.reuse import WorkloadReuse


# How many requests are looked at where nobody says it: seconds of a core.
MOST_OF_A_TRACE = 100_000
OF_ANYTHING_ELSE = 10_000


@click.group()
def workload() -> None:
    """Look at what requests contain, before any engine starts."""


@workload.command()
@click.argument("place", metavar="FILE[:NAME]|PRESET")
@click.option(
    "--requests",
    type=click.IntRange(1, 5_000_000),
    help="How many requests to look at, or to write. Default: all of a trace, at most "
    f"{MOST_OF_A_TRACE:,}; of what is drawn, {OF_ANYTHING_ELSE:,}.",
)
@click.option(
    "--sample",
    type=click.IntRange(0, 1000),
    default=0,
    help="Show the beginning of so many requests.",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the requests as lines of an OpenAI batch, which other tools can send.",
)
@click.option("--tokenizer", metavar="PATH", help="Count with it; default: that of the model.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of what is drawn. Default: 0.")
@click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def show(
    place: str,
    requests: int | None,
    sample: int,
    write: Path | None,
    tokenizer: str | None,
    seed: int,
    output: str,
) -> int:
    """Show lengths, turns, pauses and reuse of the workloads of an experiment file, or of a preset.

    \b
    Examples:
      orchestrator workload show experiment.yaml
      orchestrator workload show experiment.yaml:chat --sample 5
      orchestrator workload show reasoning
      orchestrator workload show experiment.yaml:rag --requests 500 \\
          --write rag.jsonl
    """
    import orjson

    from orchestrator.cli.workload_file import experiment_at, workloads_at

    experiment = experiment_at(place)
    workloads = workloads_at(experiment, place)
    if write is not None:
        _check_write(write, workloads)
    sources = experiment.preset_sources()
    documents: list[dict[str, Any]] = []
    for number, shown in enumerate(workloads):
        prompter = _prompter(experiment, shown, tokenizer)
        looked_at = requests or _default_requests(shown)
        content = _content_of(shown, prompter, seed, looked_at, sample)
        _echo_if_fewer(shown, content.facts, requests)
        if output == "json":
            documents.append(_content_json(content, sources))
            continue
        if number:
            click.echo()
        for line in _content_lines(content, sources):
            click.echo(line)
    if output == "json":
        click.echo(orjson.dumps({"workloads": documents}, option=orjson.OPT_INDENT_2))
    if write is not None:
        [written] = workloads
        prompter = _prompter(experiment, written, tokenizer)
        wanted = requests or _default_requests(written)
        try:
            count = _write(experiment, written, prompter, seed, wanted, write)
        except OSError as error:
            raise InputError(f"--write {str(write)!r}: {error.strerror or error}") from None
        click.echo(f"wrote {write}: {counted(count, 'request')}", err=True)
        _echo_what_differs(written, written.requests(prompter, seed).needs_reply)
    return 0


@dataclass(frozen=True, slots=True)
class _Content:
    """What the first requests of a workload hold. ``parts``: of a mix, what its requests of each
    part hold. ``examples``: some requests.
    """

    workload: Workload
    facts: WorkloadFacts
    reuse: WorkloadReuse
    parts: Sequence[PartFacts]
    examples: list[SampledRequest]


def _content_of(
    shown: Workload, prompter: Prompter, seed: int, requests: int, sample: int
) -> _Content:
    """Looks at so many requests. ``sample``: how many of them are examples."""
    from orchestrator.workloads.facts import facts_by_part, facts_of, sampled, sessions_within
    from orchestrator.workloads.reuse import reuse_of

    facts = facts_of(shown, prompter, seed, requests)
    parts = list(facts_by_part(shown, prompter, seed, requests))
    sessions = sessions_within(shown, shown.requests(prompter, seed), requests)
    return _Content(
        workload=shown,
        facts=facts,
        reuse=reuse_of(shown, seed, sessions),
        parts=parts,
        examples=list(sampled(shown, prompter, seed, sample)) if sample else [],
    )


def _content_lines(content: _Content, sources: Mapping[str, str]) -> Iterator[str]:
    """The text about a workload. ``sources``: by workload, where a preset's numbers are from."""
    from orchestrator.report.workload_text import part_lines, sample_lines, workload_lines

    shown = content.workload
    yield from workload_lines(shown, content.facts, content.reuse, sources.get(shown.name))
    yield from part_lines(content.parts, content.reuse, sources)
    yield from sample_lines(content.examples)


def _content_json(content: _Content, sources: Mapping[str, str]) -> dict[str, Any]:
    shown = content.workload
    return {
        "name": shown.name,
        "kind": shown.kind,
        "api": shown.api,
        "source": sources.get(shown.name),
        **asdict(content.facts),
        **_reuse_json(content.reuse),
        "parts": [_part_json(part, content.reuse, sources) for part in content.parts],
        "sample": [_sampled_json(example) for example in content.examples],
    }


def _echo_if_fewer(shown: Workload, facts: WorkloadFacts, requests: int | None) -> None:
    """Says that a workload has fewer requests than ``--requests`` asks for, where it is given."""
    if requests is None:
        return
    recorded = shown.most_requests()
    if recorded is not None and recorded < requests:
        then = f"{recorded:,}, and begins again with other tokens"
    elif facts.requests < requests:
        then = f"{facts.requests:,}, and no more"
    else:
        return
    click.echo(f"--requests {requests:,}: {shown.name} has {then}", err=True)


def _default_requests(shown: Workload) -> int:
    recorded = shown.most_requests()
    return OF_ANYTHING_ELSE if recorded is None else min(recorded, MOST_OF_A_TRACE)


def _echo_what_differs(written: Workload, needs_reply: bool) -> None:
    """Says what a run does that the written requests do not have."""
    text = "lengths are limits here; a run forces answers to have them where its engine can"
    click.echo(text, err=True)
    if written.recorded_rate() is not None:
        click.echo("times are not written", err=True)
    if needs_reply:
        text = "answers between turns are made up here; a run sends the engine's own"
        click.echo(text, err=True)


def _check_write(path: Path, workloads: Sequence[Workload]) -> None:
    """Raises what is wrong with ``--write`` before anything is shown."""
    from orchestrator.cli.output_file import check_folder

    check_folder(path, "--write")
    if len(workloads) > 1:
        names = ", ".join(shown.name for shown in workloads)
        raise click.UsageError(f"--write needs one workload: give FILE:NAME, one of {names}")


def _prompter(experiment: Experiment, shown: Workload, tokenizer: str | None) -> Prompter:
    """Makes prompts as clients would for the first deployment of the file whose tokenizer is here.

    ``tokenizer``: the one to count with in place of that of a model.
    """
    from orchestrator.workloads.content import local_tokenizer, prompter

    for combination in experiment.combinations:
        if tokenizer is not None:
            break
        settings = combination.settings
        tokenizer = local_tokenizer(settings.tokenizer or settings.model)
    takes_ids = shown.api == "completions"
    return prompter(takes_ids=takes_ids, tokenizer=tokenizer, id_range=None)


def _reuse_json(reuse: WorkloadReuse) -> dict[str, Any]:
    of_all = reuse.of_all
    return {
        "cached_share": None if of_all is None else of_all.share,
        "uncounted": list(reuse.uncounted),
    }


def _part_json(part: PartFacts, reuse: WorkloadReuse, sources: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": part.workload.name,
        "kind": part.workload.kind,
        "source": sources.get(part.workload.name),
        "share_of_sessions": part.share_of_sessions,
        "share_of_requests": part.share_of_requests,
        **_reuse_json(reuse.of_part(part.workload)),
        "facts": None if part.facts is None else asdict(part.facts),
    }


def _sampled_json(example: SampledRequest) -> dict[str, Any]:
    import orjson

    return {
        "session": example.session,
        "turn": example.turn,
        "part": example.part,
        "prompt_tokens": example.prompt_tokens,
        "answer_tokens": example.answer_tokens,
        "messages": [
            {
                "role": message.role,
                "images": len(message.images),
                "content": [
                    part if isinstance(part, str) else part.tolist() for part in message.content
                ],
                "recorded": None if message.recorded is None else orjson.loads(message.recorded),
            }
            for message in example.messages
        ],
    }


def _write(
    experiment: Experiment,
    written: Workload,
    prompter: Prompter,
    seed: int,
    requests: int,
    path: Path,
) -> int:
    """Writes requests as an OpenAI batch, in the fields of the file's first engine that has the
    API. Returns how many.
    """
    import orjson

    from orchestrator.load.wire.constraint_fields import with_options
    from orchestrator.load.wire.openai import chat_messages
    from orchestrator.workloads.facts import sampled

    model = next((part.settings.model for part in experiment.combinations), "model")
    is_chat = written.api == "chat"
    dialect = _dialect(experiment, "chat" if is_chat else "completions")
    _refuse_unwritable(written, dialect)
    count = 0
    with path.open("wb") as file:
        for request in sampled(written, prompter, seed, requests):
            body: dict[str, Any] = {"model": model}
            if is_chat:
                body["messages"] = chat_messages(request.messages)
            else:
                body["prompt"] = request.prompt.flat()
            body["max_tokens"] = request.answer_tokens
            body["temperature"] = 0.0  # as runs send it where nothing else is asked for
            body |= dialect.adapter_fields(request.prompt.adapter)
            line = {
                "custom_id": f"{request.session}-{request.turn}",
                "method": "POST",
                "url": "/v1/chat/completions" if is_chat else "/v1/completions",
                "body": with_options(body, request.prompt, dialect),
            }
            file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            count += 1
    return count


def _dialect(experiment: Experiment, api: str) -> Dialect:
    """The dialect of the file's first engine that has the API; OpenAI's where no engine has it.

    ``api``: chat or completions.
    """
    from orchestrator.engines.dialects import dialects_of
    from orchestrator.engines.endpoint import OPENAI_OPTIONS
    from orchestrator.engines.registry import ENGINES

    for combination in experiment.combinations:
        settings = combination.settings
        dialects = dialects_of(ENGINES[settings.engine], settings)
        if api in dialects:
            return dialects[api]
    return replace(OPENAI_OPTIONS[api], adapter_field="model")


def _refuse_unwritable(written: Workload, dialect: Dialect) -> None:
    """Raises InputError if requests ask for something that the dialect has no field for. Without it
    they would be other requests.
    """
    for part in written.with_parts():
        for kind in sorted(part.constraint_kinds() - dialect.constraints.keys()):
            known = ", ".join(dialect.constraints) or "none"
            raise InputError(
                f"workload {part.name!r} constrains answers by a {kind}, for which requests to "
                f"{dialect.path} have no field (known: {known}): give a file whose first engine has "
                "one"
            )
        if part.adapter_names() and dialect.adapter_field is None:
            raise InputError(
                f"workload {part.name!r} asks for LoRA adapters, for which requests to "
                f"{dialect.path} have no field"
            )

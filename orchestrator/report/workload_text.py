"""Says in words what a workload holds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.base.text import counted, hours, listed
from orchestrator.report.text import size_text
from orchestrator.spec.load import Workload
from orchestrator.spec.request_options import Adapters, Constrain
from orchestrator.workloads.drawn import Drawn
from orchestrator.workloads.facts import (
    ImageFacts,
    NumberSummary,
    PartFacts,
    Recording,
    SampledRequest,
    WorkloadFacts,
)
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.reuse import WorkloadReuse
from orchestrator.workloads.trace import TraceWorkload

WIDTH = 80
_TITLES = ("mean", "p50", "p90", "p99", "max")


def workload_lines(
    workload: Workload, facts: WorkloadFacts, reuse: WorkloadReuse, source: str | None = None
) -> Iterator[str]:
    """A workload on a screen of 80 columns. ``source``: of the numbers of a preset."""
    looked_at = counted(facts.requests, "request")
    if facts.turns is not None:
        looked_at += f" of {counted(facts.sessions, 'session')}"
    in_all = ""
    if facts.requests_in_all is not None and facts.requests_in_all > facts.requests:
        in_all = f" (of {facts.requests_in_all:,})"
    yield f"{workload.name}: {workload.kind}, api {workload.api}; {looked_at}{in_all}"
    yield ""
    yield from _lengths(facts)
    yield ""
    if facts.recording is not None:
        yield _recording(facts.recording)
    yield from _folded(reuse_text(reuse))
    for phrase in beside_texts(workload, facts):
        yield from _folded(phrase)
    if facts.prompt_tokens is None:
        yield from _folded("texts are not counted: give the model's --tokenizer")
    for note in facts.notes:
        yield from _folded(note)
    if source is not None:
        yield from _folded(f"source: {source}")


def _recording(recording: Recording) -> str:
    requests = counted(recording.requests, "request")
    sessions = counted(recording.sessions, "session")
    span = "without times" if recording.span_s is None else f"over {hours(recording.span_s)}"
    return f"trace: {requests} in {sessions} {span}"


def reuse_text(reuse: WorkloadReuse) -> str:
    """What a prefix cache of unlimited size would hold, or why that is not known."""
    text = "reuse: "
    known = reuse.of_known
    if not reuse.is_complete:
        text += "not known"
        if reuse.uncounted:
            text += f", because prompts hold {' and '.join(reuse.uncounted)}"
        if known is not None:
            text += "; of the other parts "
    if known is not None:
        text += f"an unlimited prefix cache would hold {known.share:.1%} of prompt tokens"
    return text


def part_lines(
    parts: Sequence[PartFacts], reuse: WorkloadReuse, sources: Mapping[str, str]
) -> Iterator[str]:
    """The parts of a mix, below it. ``sources``: workload -> source of its preset's numbers."""
    for part in parts:
        workload = part.workload
        shares = (
            f"{part.share_of_sessions:.1%} of sessions, {part.share_of_requests:.1%} of requests"
        )
        yield ""
        yield f"part {workload.name}: {workload.kind}; {shares}"
        if part.facts is None:
            yield "none of the requests that were looked at is of it"
            continue
        yield from _lengths(part.facts)
        yield from _folded(reuse_text(reuse.of_part(workload)))
        for phrase in beside_texts(workload, part.facts):
            yield from _folded(phrase)
        if workload.name in sources:
            yield from _folded(f"source: {sources[workload.name]}")


def beside_texts(workload: Workload, facts: WorkloadFacts) -> Iterator[str]:
    """What requests have or ask for beside their texts: pictures, constraints, adapters, tools."""
    if facts.images is not None:
        yield f"images: {_images(workload, facts.images)}"
    if workload.constrain is not None:
        yield f"constrained answers: {_constrained(workload.constrain)}"
    if isinstance(workload, FileWorkload) and workload.summary().constrained:
        file_summary = workload.summary()
        kinds = listed(sorted(file_summary.constraint_kinds))
        requests = counted(file_summary.constrained, "request")
        yield f"constrained answers: {requests} of the file, by a {kinds}"
    if workload.adapters is not None:
        yield f"adapters: {_adapters(workload.adapters)}"
    if isinstance(workload.tools, tuple):
        yield f"tools: {len(workload.tools)} in each request"
    if isinstance(workload, FileWorkload) and workload.summary().with_tools:
        requests = counted(workload.summary().with_tools, "request")
        yield f"tools: {requests} of the file, as recorded"


def _images(workload: Workload, images: ImageFacts) -> str:
    sizes = ""
    if isinstance(workload, Drawn | TraceWorkload) and workload.images is not None:
        sizes = f" ({listed(workload.images.sizes)} pixels)"
    return (
        f"{_figure(images.per_request.mean)} a request{sizes}; {images.distinct:,} differ; "
        f"{size_text(images.body_bytes.mean)} of a body that has any"
    )


def _constrained(constrain: Constrain) -> str:
    text = f"{constrain.share:.1%} of requests, by a {constrain.kind}"
    return text if constrain.variants == 1 else f"{text} in {constrain.variants:,} variants"


def _adapters(adapters: Adapters) -> str:
    share = 1 - adapters.base_share
    return f"{len(adapters.names):,}, asked for by {share:.1%} of sessions"


def _lengths(facts: WorkloadFacts) -> Iterator[str]:
    """The table of lengths, turns and pauses."""
    yield f"{'':18}" + "".join(f"{title:>11}" for title in _TITLES)
    if facts.prompt_tokens is not None:
        yield _summary_row("prompt tokens", facts.prompt_tokens)
    elif facts.prompt_characters is not None:
        yield _summary_row("prompt characters", facts.prompt_characters)
    if facts.answer_tokens is not None:
        yield _summary_row("answer tokens", facts.answer_tokens)
    if facts.turns is not None:
        yield _summary_row("turns", facts.turns)
    if facts.pauses_s is not None and facts.pauses_s.most > 0:
        yield _summary_row("pauses, s", facts.pauses_s)


def _summary_row(title: str, summary: NumberSummary) -> str:
    values = (summary.mean, summary.p50, summary.p90, summary.p99, summary.most)
    return f"{title:18}" + "".join(f"{_figure(value):>11}" for value in values)


def _figure(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def sample_lines(requests: list[SampledRequest]) -> Iterator[str]:
    """The first requests, one line each."""
    if not requests:
        return
    yield ""
    parts = [len(request.part) for request in requests if request.part is not None]
    width = max([len("part"), *parts]) if parts else 0
    title = f" {'part':{width}}" if width else ""
    yield f"{'session':>7} {'turn':>4}{title} {'in':>7} {'out':>7}  beginning"
    for request in requests:
        part = f" {request.part:{width}}" if request.part is not None else ""
        head = (
            f"{request.session:>7} {request.turn:>4}{part} {_or_dash(request.prompt_tokens):>7} "
            f"{_or_dash(request.answer_tokens):>7}  "
        )
        yield head + _beginning(request, max(WIDTH - len(head), 10))


def _or_dash(tokens: int) -> str:
    return str(tokens) if tokens else "-"


def _beginning(request: SampledRequest, width: int) -> str:
    """The beginning of the last message, cut to a width."""
    part = request.messages[-1].content[0]
    if isinstance(part, str):
        text = " ".join(part[: 4 * width].split())
    else:
        text = " ".join(map(str, part[:width].tolist()))
    printable = "".join(sign if sign.isprintable() else "?" for sign in text)
    if len(printable) <= width:
        return printable
    whole_words = printable[: width - 1].rpartition(" ")[0]
    return (whole_words or printable[: width - 1]) + "…"

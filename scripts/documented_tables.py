"""Tables of the documentation that repeat facts of the code: ``python -m
scripts.documented_tables`` writes them anew.

Each stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``; a test fails while one differs from
the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.analysis.formulas import (
    LATENCIES,
    OF_ONE_REQUEST,
    THROUGHPUTS,
    RequestFormula,
)
from orchestrator.base.errors import FIXED_ON_THE_HOST, FailureClass, FailureKind
from orchestrator.cli.option_words import OTHER_NAMES
from orchestrator.engines.registry import ENGINES
from orchestrator.report.column import ReportColumn
from orchestrator.report.columns import USUAL, point_columns
from orchestrator.report.documents.point import PointDocument
from orchestrator.results.events import KINDS
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind
from orchestrator.spec.settings import EngineSettings
from scripts import documented_reference
from scripts.documented_reference import table
from tests.contract import recorded

DOCS = Path(__file__).resolve().parent.parent / "docs"


def failure_classes() -> str:
    rows = ((f"`{one}`", one.meaning, one.retries or "never") for one in FailureClass)
    return table(("class", "what it means", "tried again"), rows)


def failure_kinds() -> str:
    rows = (
        (f"`{kind}`", f"`{kind.failure_class}`", kind.meaning, _next_run(kind))
        for kind in FailureKind
    )
    return table(("kind", "class", "what happened", "the next `run`"), rows)


def _next_run(kind: FailureKind) -> str:
    of_the_file = kind.failure_class is FailureClass.BAD_CONFIG and kind not in FIXED_ON_THE_HOST
    return "refuses it" if of_the_file else "tries it"


def load_options() -> str:
    """Keys of an experiment file that options of ``load`` name otherwise."""
    rows = ((f"`{key}`", option) for key, option in OTHER_NAMES.items())
    return table(("in the file", "option of `orchestrator load`"), rows)


METRICS = {
    "batch, queue": ("running", "waiting"),
    "KV use": ("kv_usage",),
    "preempted": ("preemptions_total",),
    "prefix hits": ("prefix_hit_tokens_total", "prefix_query_tokens_total"),
    "queue time": ("queue_time_s_sum", "queue_time_count"),
    "TTFT": ("ttft_s_sum", "ttft_count"),
    "drafts": ("spec_draft_tokens_total", "spec_accepted_tokens_total"),
    "tokens": ("prompt_tokens_total", "generation_tokens_total"),
}
AT_START = {
    "weight_bytes": "weights",
    "kv_cache_bytes": "KV bytes",
    "kv_cache_tokens": "KV tokens",
    "max_concurrency": "concurrency",
    "max_model_len": "length",
}


def engine_metrics() -> str:
    """By the names of its metrics, and by what is read out of the recorded logs of its starts."""
    rows = []
    for name in ENGINES.shipped():
        engine = ENGINES[name]
        if not engine.launches or engine.emulated:
            continue
        told = [_told(set(columns), set(engine.metrics)) for columns in METRICS.values()]
        found = {field for expected, _ in recorded.starts(name).values() for field in expected}
        rows.append(
            (
                f"`{name}`",
                *told,
                ", ".join(what for field, what in AT_START.items() if field in found) or "no",
            )
        )
    return table(("name", *METRICS, "at start"), rows)


def _told(wanted: set[str], told: set[str]) -> str:
    return "yes" if wanted <= told else "partly" if wanted & told else "no"


def constraints() -> str:
    """Which constraints each engine takes, at which API, and in which field."""
    rows = []
    for name in ENGINES.shipped():
        engine = ENGINES[name]
        if not engine.launches:
            continue
        settings = EngineSettings(engine=name, model="any", guided_decoding_backend="xgrammar")
        dialects = engine.dialects(settings)
        cells = []
        for kind in ConstraintKind:
            forms: dict[str, list[str]] = {}
            for api, dialect in dialects.items():
                if kind in dialect.constraints:
                    forms.setdefault(FIELDS[dialect.constraints[kind]], []).append(api)
            cells.append("; ".join(f"{field} ({', '.join(apis)})" for field, apis in forms.items()))
        rows.append((f"`{name}`", *(cell or "no" for cell in cells)))
    return table(("name", *(f"`{kind}`" for kind in ConstraintKind)), rows)


# the field of a body that holds a constraint of each form
FIELDS = {
    ConstraintForm.STRUCTURED_OUTPUTS: "`structured_outputs`",
    ConstraintForm.RESPONSE_FORMAT: "`response_format`",
    ConstraintForm.TYPED_RESPONSE_FORMAT: "`response_format`",
    ConstraintForm.REGEX_SCHEMA: "`response_format`",
    ConstraintForm.REGEX_FIELD: "`regex`",
    ConstraintForm.SCHEMA_FIELD: "`json_schema`",
    ConstraintForm.SCHEMA_TEXT: "`json_schema`",
    ConstraintForm.GBNF: "`grammar`",
    ConstraintForm.GRAMMAR: "`grammar`",
}


def event_kinds() -> str:
    return table(
        ("kind", "what it says"), ((f"`{kind}`", meaning) for kind, meaning in KINDS.items())
    )


def columns() -> str:
    """The columns that are looked at first; both ends of an interval, and percentiles of the same
    latency, share a row.
    """
    by_value: dict[str, list[ReportColumn[PointDocument]]] = {}
    for name in USUAL:
        column = point_columns()[name]
        by_value.setdefault(name.partition(".")[0], []).append(column)
    rows = []
    for value_name, value_columns in by_value.items():
        first, *others = value_columns
        names = [first.name, *(column.name.removeprefix(value_name) for column in others)]
        is_latency = value_name.endswith("_ms")
        description = first.description.rpartition(":")[0] if is_latency else first.description
        rows.append((", ".join(f"`{name}`" for name in names), first.unit, description))
    return table(("column", "unit", "what it is"), rows)


def latencies() -> str:
    return _of_requests(LATENCIES)


def rates_of_one_request() -> str:
    return _of_requests(OF_ONE_REQUEST)


def _of_requests(formulas: Iterable[RequestFormula]) -> str:
    rows = (
        (f"`{formula.name}`", formula.formula.replace(" - ", " − "), formula.note)  # noqa: RUF001
        for formula in formulas
    )
    return table(("name", "formula", "note"), rows)


def throughputs() -> str:
    rows = ((f"`{formula.name}`", formula.counts, formula.when) for formula in THROUGHPUTS)
    return table(("name", "counts", "when"), rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "all columns": ("reference/columns.md", documented_reference.all_columns),
    "columns": ("reference/columns.md", columns),
    "commands": ("reference/commands.md", documented_reference.commands),
    "engine settings": ("reference/engine-settings.md", documented_reference.engine_settings),
    "keys": ("reference/keys.md", documented_reference.experiment_keys),
    "stored columns": ("reference/stored-columns.md", documented_reference.stored_columns),
    "constraints": ("reference/engines.md", constraints),
    "engine metrics": ("reference/engines.md", engine_metrics),
    "event kinds": ("reference/events.md", event_kinds),
    "failure classes": ("reference/failures.md", failure_classes),
    "latencies": ("reference/metrics.md", latencies),
    "rates of one request": ("reference/metrics.md", rates_of_one_request),
    "throughputs": ("reference/metrics.md", throughputs),
    "load options": ("reference/load.md", load_options),
    "failure kinds": ("reference/failures.md", failure_kinds),
}


def replaced(name: str, text: str) -> str:
    """``text`` of a page with the table ``name`` as the code has it. Raises ValueError where the
    page has no place.
    """
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no place for the table {name!r}")
    return before + begin + TABLES[name][1]() + end + after


if __name__ == "__main__":
    for name, (page, _) in TABLES.items():
        path = DOCS / page
        path.write_text(replaced(name, path.read_text()))

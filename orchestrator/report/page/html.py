"""Writes the page: one HTML file that opens from disk, without a network, for years."""

import json
import re
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from orchestrator import __version__
from orchestrator.analysis.points import StoredPoint
from orchestrator.base.text import counted
from orchestrator.capacity.answers import level_of
from orchestrator.capacity.best import Comparison
from orchestrator.report.answer_table import ranked_text, winner_text
from orchestrator.report.capacity_table import estimate_cells
from orchestrator.report.documents.answer import AnswerDocument, ComparisonDocument, answer_document
from orchestrator.report.efficiency_words import mbu_text
from orchestrator.report.origin import (
    CLAIMS_OF_MODEL,
    assumption_lines,
    imported_text,
    model_error_sentence,
)
from orchestrator.report.page.experiment_tables import (
    MOST_ROWS,
    ExperimentSection,
    experiment_section,
    left_out_counts,
)
from orchestrator.report.page.inlined import inlined, page_templates
from orchestrator.report.page.payload import Payload, RequestBins, payload_of
from orchestrator.report.page.prices import RATIO, token_price
from orchestrator.report.page.texts import DEFINITIONS, VERDICTS, explained_columns, left_out_text
from orchestrator.report.page.timelines import Timelines, timelines_of
from orchestrator.report.selection import RankedExperiments
from orchestrator.report.spending_words import spending_text
from orchestrator.report.text import figure, size_text
from orchestrator.report.words import (
    agreement_note_text,
    among_text,
    claim_text,
    failure_text,
    level_text,
    point_doubt_texts,
    ranked_load_text,
    ranked_mark,
    short_model_text,
    slo_text,
)
from orchestrator.report.workload_text import beside_texts, reuse_text
from orchestrator.spec.load import Slo, load_text

SCRIPTS = (
    "vendor/echarts.min.js",
    "decode.js",
    "judge.js",
    "charts.js",
    "timeline.js",
    "ranking.js",
    "prices.js",
    "drawing.js",
    "app.js",
)
MOST_LEFT_OUT = 40  # levels and deployments that are named; all are counted
LIVE_SCRIPT = "live.js"
INTERVAL = re.compile(r"(\((?:95 %|9 in 10): [^)]*\))")


@dataclass(frozen=True, slots=True)
class LiveState:
    """Where a served page stands when it asks its server for changes.

    ``edition``: grows with each new choice of the limits' stops; an open page must then be loaded
    again. ``serial``: the number of its content. ``attempts``: how many attempts its bins hold.
    ``says``: what the runs do. ``texts``: the packed texts that it shows, to which changes refer.
    """

    edition: int
    serial: int
    attempts: int
    says: str
    texts: str


@dataclass(frozen=True, slots=True)
class PageDocument:
    """All that the page shows before a script runs. ``uri``: where the results are."""

    uri: str
    created: datetime
    answer: AnswerDocument
    experiments: tuple[ExperimentSection, ...]

    @property
    def simulated_text(self) -> str:
        """The sentences at the top on how far off the model is, and on what it was told; empty
        without simulated points.
        """
        points: list[StoredPoint] = []
        for experiment in self.experiments:
            points += [document.point for document in experiment.points]
        sentences = [model_error_sentence(points)]
        sentences += [f"{line[0].upper()}{line[1:]}." for line in assumption_lines(points)]
        return " ".join(sentences)

    @property
    def import_note(self) -> str:
        """The sentence at the top on figures of other tools; empty without any."""
        sources: dict[str, None] = {}  # in the order in which they first come
        for experiment in self.experiments:
            for document in experiment.points:
                if document.point.source is not None:
                    sources[document.point.source] = None
        return imported_text(list(sources)) if sources else ""


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page shows, and what it judges.

    ``has_answer``: there are comparisons, and each has a valid measurement.
    """

    document: PageDocument
    payload: Payload
    timelines: Timelines
    has_answer: bool


@dataclass(frozen=True, slots=True)
class Page:
    """A page. ``requests``: how many it can judge again. ``has_answer``: see ``PageContent``."""

    html: bytes
    requests: int
    has_answer: bool


def page_of(uri: str, ranked: RankedExperiments) -> Page:
    """The page of some experiments. ``uri``: where they are stored.

    Raises InputError if they have more requests than a browser can judge.
    """
    content = page_content(uri, ranked)
    html = page_html(content)
    return Page(html.encode(), content.payload.requests, content.has_answer)


def page_content(
    uri: str, ranked: RankedExperiments, earlier: RequestBins | None = None
) -> PageContent:
    """What the page of some experiments shows and judges.

    ``uri``: where they are stored. ``earlier``: bins that have some of their requests already (see
    ``payload_of``). Raises InputError if they have more requests than a browser can judge.
    """
    comparisons = ranked.answers.comparisons
    document = PageDocument(
        uri=uri,
        created=datetime.now(UTC),
        answer=answer_document(comparisons),
        experiments=tuple(map(experiment_section, ranked.judged, ranked.answers.experiments)),
    )
    return PageContent(
        document=document,
        payload=payload_of(ranked.judged, comparisons, earlier),
        timelines=timelines_of(ranked.judged, comparisons),
        has_answer=bool(comparisons) and all(comparison.measured for comparison in comparisons),
    )


def page_html(
    content: PageContent, live: LiveState | None = None, *, has_scripts: bool = True
) -> str:
    """The page as one text.

    ``live``: the page is served, and asks its server for changes. ``has_scripts``: False: the page
    has neither scripts nor the data that they read.
    """
    templates = page_templates()
    templates.filters["figure"] = lambda value: "" if value is None else figure(value)
    templates.filters["three"] = lambda value: float(f"{value:.3g}")
    templates.filters["level"] = level_of
    templates.filters["whole_intervals"] = _with_whole_intervals
    names = (*SCRIPTS, LIVE_SCRIPT) if live else SCRIPTS
    scripts = [inlined(name) for name in names] if has_scripts else []
    style = inlined("style.css")
    return templates.get_template("page.html.j2").render(
        page=content.document,
        payload=content.payload.encoded() if has_scripts else {},
        timelines=content.timelines.encoded() if has_scripts else {},
        live=None if live is None else asdict(live),
        scripts=scripts,
        style=style,
        version=__version__,
        headline=_headline,
        ranked_text=ranked_text,
        ranked_load_text=ranked_load_text,
        ranked_mark=ranked_mark,
        estimate_cells=estimate_cells,
        groups_text=_groups_text,
        slo_html=_slo_html,
        among_text=among_text,
        level_text=level_text,
        model_text=short_model_text,
        load_text=load_text,
        mbu_text=mbu_text,
        spending_text=spending_text,
        claim_text=claim_text,
        claims_of_model=CLAIMS_OF_MODEL,
        failure_text=failure_text,
        point_doubt_texts=point_doubt_texts,
        size_text=size_text,
        figure_text=figure,
        counted=counted,
        agreement_note_text=agreement_note_text,
        token_price=token_price,
        price_ratio=RATIO,
        left_out_counts=left_out_counts,
        left_out_text=left_out_text,
        beside_texts=beside_texts,
        reuse_text=reuse_text,
        verdicts=VERDICTS,
        definitions=DEFINITIONS,
        explained_columns=explained_columns(),
        most_rows=MOST_ROWS,
        most_left_out=MOST_LEFT_OUT,
    )


def _with_whole_intervals(text: str) -> Markup:
    """The text as HTML in which no line breaks within an interval. app.js does the same."""
    return Markup(INTERVAL.sub(r'<span class="kept">\1</span>', str(escape(text))))  # noqa: S704


def _slo_html(slo: Slo) -> Markup:
    """The limits as HTML, which break between two of them rather than within one. app.js does the
    same.
    """
    limits = [str(escape(text)) for text in slo_text(slo).split(",")]
    return Markup(",<wbr>".join(limits))  # noqa: S704


def _groups_text(comparison: Comparison) -> str:
    """The groups of a comparison as JSON; each is what ``identityOf`` in app.js returns."""
    return json.dumps([(*astuple(group), comparison.content) for group in comparison.groups])


def _headline(comparison: ComparisonDocument) -> str:
    """The winner, its load and its interval; the verdict if there is none."""
    if not comparison.ranking:
        return comparison.verdict
    return winner_text(comparison, comparison.unit)

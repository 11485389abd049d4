"""How pictures look: figures, colours, markers, titles, legends and names of axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError
from orchestrator.base.extras import how_to_install
from orchestrator.report.columns import column_named
from orchestrator.report.origin import badge_of
from orchestrator.report.plot.points import MOST_CURVES, PlottedPoint, Series, all_points
from orchestrator.report.words import short_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours (2008), which colour-blind people can tell apart; yellow is darkened for
# white paper. Markers and lines differ too, for print without colours.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#56b4e9", "#e69f00", "#000000", "#8a7f00"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
GREY = "#767676"
BAND_OPACITY = 0.18
LEGEND_DISTANCE = 0.65  # inches from the axes
LEGEND_LINE_HEIGHT = 0.22  # inches
TOP_OF_SHARES = 1.03  # above 1, so that markers at 1 are drawn whole
LABEL_WIDTH = 42  # characters in a line of an axis's name
LONGEST_LABEL = 60  # characters of a name in a legend
WIDEST_IN_TWO_COLUMNS = 36  # characters of a name in a legend of two columns
MOST_NAMED = 3  # names in a list; the others are counted
AT_ONCE = "all requests due at once"
CONTROL_TEXTS = {"concurrency": "requests in flight", "request_rate": "load (requests/s)"}
SVG_SETTINGS = {"svg.hashsalt": "orchestrator", "svg.fonttype": "none"}  # the same bytes each time


def new_axes(width: float = 7.2, height: float = 4.4) -> Axes:
    """The axes of a new figure, which a notebook shows. Width and height are in inches.

    Raises InputError where matplotlib is missing.
    """
    check_matplotlib()
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    return axes


def new_figure(width: float, height: float) -> Figure:
    """A figure that no window or notebook shows; in inches. Raises as ``new_axes`` does."""
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def check_matplotlib() -> None:
    """Raises InputError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        text = f"pictures need matplotlib: {how_to_install('plots')}"
        raise InputError(text) from error


def written(text: str) -> str:
    """The text, escaped so that matplotlib draws it as it is: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def short(label: str) -> str:
    """A name for a legend. Long names lose their middle, since their ends tell them apart."""
    if len(label) <= LONGEST_LABEL:
        return label
    half = (LONGEST_LABEL - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def colour(rank: int) -> str:
    return COLOURS[rank % MOST_CURVES]


def marker(rank: int) -> str:
    return MARKERS[rank % MOST_CURVES]


def line_style(rank: int) -> str:
    return LINES[rank % MOST_CURVES]


def axis_text(name: str) -> str:
    """The description of a column, with its unit."""
    column = column_named(name)
    if column is None:
        return name
    unit = f" ({column.unit})" if column.unit else ""
    return textwrap.fill(f"{column.description}{unit}", LABEL_WIDTH)


def title_of(points: Sequence[PlottedPoint]) -> str:
    """``chat of sweep: m on h100 (emulated)``."""
    if not points:
        return "no points"
    workloads = _listed(point.workload for point in points)
    experiments = _listed(point.experiment for point in points)
    models = _listed(short_model(point.model) for point in points)
    hardware = _listed(point.hardware for point in points if point.hardware)
    place = f" on {hardware}" if hardware else ""
    return f"{workloads} of {experiments}: {models}{place}{_common_badge(points)}"


def _common_badge(points: Iterable[PlottedPoint]) -> str:
    """The badge of all points, as `` (emulated)``; where they differ, as `` (some emulated)``."""
    badges = list(dict.fromkeys(badge_of(point) for point in points))
    if len(badges) == 1:
        return badges[0]
    words = [badge.strip(" ()") for badge in badges if badge]
    return f" (some {' and '.join(words)})"


def _listed(names: Iterable[str]) -> str:
    """The first of these names, each once, and how many more there are."""
    different = [short(name) for name in dict.fromkeys(names)]
    named = ", ".join(different[:MOST_NAMED])
    more = len(different) - MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def left_out_text(labels: Sequence[str], beginning: str = "not drawn") -> str:
    """Names those of all labels that are not drawn, after ``beginning``; empty if all are drawn."""
    not_drawn = labels[MOST_CURVES:]
    return f"{beginning}: {_listed(not_drawn)}" if not_drawn else ""


def curves_note(series: Sequence[Series], beginning: str = "not drawn") -> str:
    """The note below curves over load; empty if there is nothing to note.

    It names, after ``beginning``, the deployments for which there are too few colours, and those
    with all requests due at once. It also says what the bands of simulated points mean.
    """
    notes = [left_out_text([each.label for each in series], beginning)]
    at_once = at_once_text(series)
    if at_once:
        notes.append(f"{beginning}: {at_once}")
    if any(point.simulated and point.may_have_band for point in all_points(series)):
        notes.append("bands of simulations: 9 in 10 measurements, by the model's error")
    return "; ".join(note for note in notes if note)


def at_once_text(series: Sequence[Series]) -> str:
    """Names the deployments with a point whose requests are all due at once; empty without any.

    Such a load has no place on an axis.
    """
    labels = [each.label for each in series[:MOST_CURVES] if each.has_all_at_once]
    return f"{AT_ONCE} ({_listed(labels)})" if labels else ""


def add_title(axes: Axes, text: str) -> None:
    axes.set_title(textwrap.fill(written(text), 72), fontsize="medium")


def name_axes(axes: Axes, x_text: str, y_text: str) -> None:
    """Writes the names of both axes with their units, and draws a grid behind everything."""
    axes.set_xlabel(x_text, fontsize="small")
    axes.set_ylabel(y_text, fontsize="small")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(
    axes: Axes, handles: Sequence[Any], note: str = "", *, makes_room: bool = False
) -> None:
    """Adds a legend below the axes, in two columns where names are short.

    ``note``: a line at its end. ``makes_room``: the figure is made higher by as much.
    """
    from matplotlib.figure import Figure
    from matplotlib.transforms import ScaledTranslation

    entries = [*handles, *note_handles(note)]
    if not entries:
        return
    widest = max((len(handle.get_label()) for handle in handles), default=0)
    columns = 2 if len(entries) > 4 and widest <= WIDEST_IN_TWO_COLUMNS else 1
    figure = axes.figure
    below_labels = ScaledTranslation(0, -LEGEND_DISTANCE, figure.dpi_scale_trans)
    axes.legend(
        handles=entries,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + below_labels,
        ncols=columns,
        fontsize="small",
        frameon=False,
    )
    if makes_room and isinstance(figure, Figure):
        lines_of_note = len(note) // LONGEST_LABEL + 1
        lines = math.ceil(len(handles) / columns) + lines_of_note
        figure.set_figheight(figure.get_figheight() + lines * LEGEND_LINE_HEIGHT)


def note_handles(note: str) -> list[Any]:
    """A line of text in a legend; none for an empty note."""
    from matplotlib.lines import Line2D

    if not note:
        return []
    text = textwrap.fill(written(note), LONGEST_LABEL)
    return [Line2D([], [], linestyle="none", label=text)]


def handle(label: str, rank: int, *, with_marker: bool = False, with_line: bool = True) -> Any:
    """The entry of a curve in a legend. ``rank``: the curve's place in the order of drawing, which
    decides its colour, its marker and its line.
    """
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=colour(rank),
        marker=marker(rank) if with_marker else None,
        linestyle=line_style(rank) if with_line else "none",
        label=written(short(label)),
    )


def hollow_handle() -> Any:
    """The entry of points that are not valid in a legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], color=GREY, marker="o", markerfacecolor="none", linestyle="none", label="not valid"
    )

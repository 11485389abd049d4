"""The drawings of guides: which process runs where, and what goes from one to the other.

`make pictures` writes them (scripts/guide_pictures.py). They are light on their own white ground, so
they can be read on a dark page, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path

LINE_HEIGHT = 17  # pixels, as all lengths here
FIRST_LINE = 19  # from the top of a box to the baseline of its title
LABEL_GAP = 6  # from an arrow to its label


class Kind(Enum):
    """What a box stands for, which decides its colours: those of the ground and of the line."""

    PLACE = ("#f6f7f9", "#8a94a3")  # a machine, a pod, a cluster
    OURS = ("#e3eefb", "#0072b2")  # processes of this program
    ENGINE = ("#e2f3ec", "#009e73")  # engines, and routers in front of them
    STORED = ("#fdf1d8", "#b07800")  # files
    ENDED = ("#fbe3d6", "#d55e00")  # what was cut short


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a title and lines below it. ``x``, ``y``: its upper left corner."""

    x: int
    y: int
    width: int
    height: int
    kind: Kind
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from one place to another, with a label above its middle, or right of it where it is
    upright.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    label: str = ""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """A drawing. What comes first is drawn first, below what comes later."""

    name: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


KUBERNETES = Diagram(
    "kubernetes",
    *(900, 350),
    boxes=(
        Box(10, 60, 150, 100, Kind.PLACE, "your laptop", ("kubectl apply", "orchestrator watch")),
        Box(220, 10, 670, 230, Kind.PLACE, "RayJob: pods that KubeRay starts for the sweep"),
        Box(235, 50, 185, 170, Kind.PLACE, "head pod, no GPU"),
        Box(245, 80, 165, 55, Kind.OURS, "orchestrator run", ("decides what is next",)),
        Box(245, 150, 165, 55, Kind.PLACE, "Ray's head", ("asks for pods",)),
        Box(475, 50, 190, 170, Kind.PLACE, "GPU pods, spot"),
        Box(485, 80, 170, 55, Kind.ENGINE, "engines", ("with their guards",)),
        Box(485, 150, 170, 55, Kind.OURS, "clients", ("send the requests",)),
        Box(685, 50, 190, 170, Kind.PLACE, "GPU pods, on demand"),
        Box(695, 80, 170, 55, Kind.ENGINE, "engines", ("with their guards",)),
        Box(695, 150, 170, 55, Kind.OURS, "clients", ("send the requests",)),
        Box(235, 285, 185, 55, Kind.STORED, "bucket", ("results, of every pod",)),
        Box(475, 285, 400, 55, Kind.STORED, "shared volume", ("weights, downloaded once",)),
    ),
    arrows=(
        Arrow((160, 100), (220, 100), "apply"),
        Arrow((420, 107), (475, 107), "starts"),
        Arrow((327, 240), (327, 285), "rows"),
        Arrow((675, 285), (675, 240), "weights"),
        Arrow((235, 312), (85, 160), "", is_dashed=True),
    ),
)
SLURM = Diagram(
    "slurm",
    *(880, 330),
    boxes=(
        Box(
            10,
            60,
            160,
            120,
            Kind.PLACE,
            "login node",
            ("sbatch", "orchestrator status", "watch, stop"),
        ),
        Box(220, 10, 650, 220, Kind.PLACE, "one Slurm job: slurm.sbatch starts Ray on its nodes"),
        Box(240, 50, 290, 160, Kind.PLACE, "first GPU node: Ray's head"),
        Box(255, 80, 260, 35, Kind.OURS, "orchestrator run"),
        Box(255, 125, 125, 70, Kind.ENGINE, "engines", ("with their", "guards")),
        Box(390, 125, 125, 70, Kind.OURS, "clients", ("send the", "requests")),
        Box(565, 50, 290, 160, Kind.PLACE, "each other GPU node"),
        Box(580, 125, 125, 70, Kind.ENGINE, "engines", ("with their", "guards")),
        Box(715, 125, 125, 70, Kind.OURS, "clients", ("send the", "requests")),
        Box(
            *(220, 270, 650, 50, Kind.STORED, "shared file system"),
            ("environments of the program and of engines, weights (HF_HOME), results",),
        ),
    ),
    arrows=(
        Arrow((170, 100), (220, 100)),
        Arrow((515, 97), (580, 150), ""),
        Arrow((545, 270), (545, 230), ""),
        Arrow((220, 295), (85, 180), "", is_dashed=True),
    ),
)
ROLES = Diagram(
    "roles",
    *(880, 290),
    boxes=(
        Box(10, 115, 140, 55, Kind.OURS, "clients", ("send the requests",)),
        Box(200, 10, 670, 270, Kind.PLACE, "one deployment on a node of 8 GPUs"),
        Box(220, 115, 130, 55, Kind.ENGINE, "router", ("no GPU",)),
        Box(440, 50, 180, 75, Kind.ENGINE, "prefill replica", ("reads prompts", "TP 2: GPU 0, 1")),
        Box(440, 180, 180, 75, Kind.ENGINE, "prefill replica", ("reads prompts", "TP 2: GPU 2, 3")),
        Box(
            700, 115, 150, 75, Kind.ENGINE, "decode replica", ("writes answers", "TP 4: GPU 4 to 7")
        ),
    ),
    arrows=(
        Arrow((150, 142), (220, 142)),
        Arrow((350, 130), (440, 88), "1 prompt"),
        Arrow((350, 165), (440, 215)),
        Arrow((620, 80), (700, 128), "2 KV cache"),
        Arrow((620, 215), (700, 178)),
        Arrow((700, 152), (350, 152), "3 tokens", is_dashed=True),
    ),
)
SPOT = Diagram(
    "spot",
    *(880, 270),
    boxes=(
        Box(10, 60, 860, 85, Kind.PLACE, "spot node A"),
        Box(110, 85, 90, 45, Kind.ENGINE, "start"),
        Box(205, 85, 110, 45, Kind.OURS, "point 1 ✓"),
        Box(320, 85, 110, 45, Kind.OURS, "point 2 ✓"),
        Box(435, 85, 70, 45, Kind.ENDED, "point 3"),
        Box(510, 85, 95, 45, Kind.ENGINE, "clean stop"),
        Box(10, 170, 860, 85, Kind.PLACE, "node B"),
        Box(560, 195, 90, 45, Kind.ENGINE, "start"),
        Box(655, 195, 110, 45, Kind.OURS, "point 3 ✓"),
        Box(770, 195, 90, 45, Kind.OURS, "point 4 ✓"),
    ),
    arrows=(
        Arrow((505, 8), (505, 82), "notice: the node will be taken back"),
        Arrow((470, 130), (655, 212), "", is_dashed=True),
    ),
)
DYNAMO = Diagram(
    "dynamo",
    *(880, 240),
    boxes=(
        Box(10, 10, 200, 220, Kind.PLACE, "the sweep starts"),
        Box(25, 90, 170, 60, Kind.OURS, "clients", ("of orchestrator run",)),
        Box(300, 10, 570, 220, Kind.PLACE, "you start, with the system's own launcher"),
        Box(320, 90, 180, 60, Kind.ENGINE, "front end, port 8000", ("the endpoint's url",)),
        Box(610, 50, 240, 60, Kind.ENGINE, "prefill workers", ("their GPUs: in endpoint_gpus",)),
        Box(610, 150, 240, 60, Kind.ENGINE, "decode workers", ("their GPUs: in endpoint_gpus",)),
    ),
    arrows=(
        Arrow((195, 120), (320, 120), "requests"),
        Arrow((500, 110), (610, 80)),
        Arrow((500, 130), (610, 180)),
        Arrow((730, 110), (730, 150), "KV cache"),
    ),
)
YOUR_OWN_ENGINE = Diagram(
    "your-own-engine",
    *(880, 300),
    boxes=(
        Box(10, 10, 300, 280, Kind.PLACE, "as a server that runs: no code"),
        Box(25, 50, 270, 60, Kind.OURS, "clients", ("a trial request, then the load",)),
        Box(
            25,
            190,
            270,
            80,
            Kind.ENGINE,
            "your server",
            ("you start it, and write down", "its settings"),
        ),
        Box(330, 10, 540, 280, Kind.PLACE, "as an engine that is started: one file"),
        Box(345, 50, 150, 60, Kind.STORED, "toy.py", ("settings → flags",)),
        Box(540, 50, 150, 60, Kind.OURS, "agent, guard", ("start and end it",)),
        Box(720, 50, 135, 60, Kind.OURS, "clients", ("the load",)),
        Box(
            540,
            190,
            315,
            80,
            Kind.ENGINE,
            "your engine",
            ("its settings multiply; its log and", "metrics are read"),
        ),
        Box(345, 190, 150, 80, Kind.STORED, "store", ("log, metrics,", "requests")),
    ),
    arrows=(
        Arrow((160, 110), (160, 190), "requests"),
        Arrow((495, 80), (540, 80)),
        Arrow((615, 110), (615, 190), "command line"),
        Arrow((787, 110), (787, 190), "requests"),
        Arrow((540, 230), (495, 230)),
    ),
)
OTHER_TOOLS = Diagram(
    "other-tools",
    *(880, 230),
    boxes=(
        Box(10, 20, 190, 50, Kind.STORED, "vllm bench serve", ("--save-detailed",)),
        Box(10, 90, 190, 50, Kind.STORED, "GuideLLM", ("JSON report",)),
        Box(10, 160, 190, 50, Kind.STORED, "AIPerf", ("JSON and JSONL",)),
        Box(290, 75, 150, 80, Kind.STORED, "store", ("points, with the", "tool as source")),
        Box(350, 10, 190, 50, Kind.OURS, "results, best, page", ("ranked apart from ours",)),
        Box(560, 90, 300, 50, Kind.STORED, "llm-d benchmark report", ("a file per point",)),
        Box(560, 160, 300, 50, Kind.STORED, "InferenceX rows", ("valid points in closed loop",)),
    ),
    arrows=(
        Arrow((200, 45), (290, 95)),
        Arrow((200, 115), (290, 115), "import"),
        Arrow((200, 185), (290, 135)),
        Arrow((365, 75), (365, 60)),
        Arrow((440, 115), (560, 115), "export"),
        Arrow((440, 135), (560, 185)),
    ),
)
DIAGRAMS = (KUBERNETES, SLURM, ROLES, SPOT, DYNAMO, YOUR_OWN_ENGINE, OTHER_TOOLS)

HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="#1c2530">
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">\
<path d="M0 0 8 4 0 8z" fill="#4a5563"/></marker></defs>
<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>
"""


def svg_of(diagram: Diagram) -> str:
    """The drawing as SVG."""
    lines = [HEAD.format(width=diagram.width, height=diagram.height)]
    for box in diagram.boxes:
        lines += _of_box(box)
    for arrow in diagram.arrows:
        lines += _of_arrow(arrow)
    return "".join(lines) + "</svg>\n"


def _of_box(box: Box) -> Iterator[str]:
    ground, line = box.kind.value
    yield (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="5" '
        f'fill="{ground}" stroke="{line}"/>\n'
    )
    x = box.x + 9
    y = box.y + FIRST_LINE
    yield f'<text x="{x}" y="{y}" font-weight="600">{escape(box.title)}</text>\n'
    for text in box.lines:
        y += LINE_HEIGHT
        yield f'<text x="{x}" y="{y}">{escape(text)}</text>\n'


def _of_arrow(arrow: Arrow) -> Iterator[str]:
    (start_x, start_y), (end_x, end_y) = arrow.start, arrow.end
    dashes = ' stroke-dasharray="5 4"' if arrow.is_dashed else ""
    yield (
        f'<path d="M{start_x} {start_y} {end_x} {end_y}" stroke="#4a5563" stroke-width="1.5"'
        f'{dashes} marker-end="url(#tip)"/>\n'
    )
    if not arrow.label:
        return
    x = (start_x + end_x) // 2
    y = (start_y + end_y) // 2
    if start_x == end_x:
        yield f'<text x="{x + LABEL_GAP}" y="{y + 4}">{escape(arrow.label)}</text>\n'
    else:
        anchor = _anchor(arrow)
        label = escape(arrow.label)
        yield f'<text x="{x}" y="{y - LABEL_GAP}" text-anchor="{anchor}">{label}</text>\n'


def _anchor(arrow: Arrow) -> str:
    """Which part of a label stands above the middle of an arrow, so that the line does not cross it."""
    (start_x, start_y), (end_x, end_y) = arrow.start, arrow.end
    if start_y == end_y:
        return "middle"
    rises_to_the_right = (end_x > start_x) == (end_y < start_y)
    return "end" if rises_to_the_right else "start"


def write_diagrams(folder: Path) -> None:
    """Writes every drawing into ``folder``."""
    for diagram in DIAGRAMS:
        (folder / f"{diagram.name}.svg").write_text(svg_of(diagram), encoding="utf-8")

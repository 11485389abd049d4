"""make pictures: the pictures of the guides.

    python -m scripts.guide_pictures [NAME ...] [--into docs/pictures]

Plots are of simulated sweeps: of the experiments that the guides show, and of files of
``experiments/``. The same sweep gives the same bytes. Drawings are those of
scripts/guide_diagrams.py. Two pictures show a page and a comment as they look; these need Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import markdown
import pandas
from matplotlib import rc_context
from playwright.sync_api import ViewportSize, sync_playwright

import orchestrator
from orchestrator import plot
from orchestrator.report.plot import look
from scripts import guide_diagrams
from tests.documentation.blocks import blocks
from tests.unit.documentation.pages import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GUIDES = ROOT / "docs" / "guides"
FIRST_SWEEP = "llama70b-parallelism"
SIMULATED = "(simulated)"
WORSE = 4  # the status of ``compare``


def run(*argv: str, folder: Path = ROOT, statuses: Sequence[int] = (0,)) -> str:
    """What a command of this program prints. Raises CalledProcessError for any other status."""
    command = [sys.executable, "-m", "orchestrator", *argv]
    done = subprocess.run(command, check=False, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode not in statuses:
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Simulated sweeps in a folder, each of which is simulated once."""

    folder: Path

    def of_file(self, name: str) -> str:
        """The results of an experiment of ``experiments/``."""
        return self.simulated(ROOT / "experiments" / f"{name}.yaml", name)

    def of_guide(self, name: str) -> str:
        """The results of the experiment that a guide shows."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        named = [block for block in blocks(GUIDES / f"{name}.md") if block.file_name is not None]
        for block in named:
            (folder / str(block.file_name)).write_text(block.text, encoding="utf-8")
        (experiment,) = folder.glob("*.yaml")
        return self.simulated(experiment, f"guide-{name}")

    def simulated(self, file: Path, name: str) -> str:
        """The results of an experiment file, under a name of their own."""
        results = self.folder / "results" / name
        if not results.exists():
            run("simulate", str(file), "--results", str(results), "--no-report")
        return str(results)


# ----- what `results --plot` draws


def draw_results(results: str, into: Path, where: str | None = None) -> None:
    selected = [] if where is None else ["--where", where]
    run("results", results, *selected, "--plot", str(into))


def parallelism(sweeps: Sweeps, into: Path) -> None:
    where = "workload == 'chat' and max_num_seqs == 512"
    draw_results(sweeps.of_file(FIRST_SWEEP), into, where)


def quantization(sweeps: Sweeps, into: Path) -> None:
    draw_results(sweeps.of_guide("quantization"), into)


def capacity(sweeps: Sweeps, into: Path) -> None:
    draw_results(sweeps.of_guide("capacity"), into)


# ----- plots out of frames


def chat_or_rag(sweeps: Sweeps, into: Path) -> None:
    """Time to first token and throughput of both workloads, with a prefix cache and without."""
    points = orchestrator.points(sweeps.of_guide("chat-or-rag"), columns="all")
    columns = ("ttft_ms.p99", "output_token_throughput")
    figure = look.new_figure(7.2, 3)
    panels = figure.subplots(1, 2)
    texts = ("TTFT p99 (ms)", "output tokens/s")
    for axes, column, text in zip(panels, columns, texts, strict=True):
        table = points.pivot_table(
            index="workload", columns="settings.enable_prefix_caching", values=column
        )
        bars(axes, table.rename(columns={False: "no prefix cache", True: "prefix cache"}))
        look.add_title(axes, f"{text} {SIMULATED}")
    panels[0].legend(frameon=False, fontsize="small")
    save(figure, into)


def bars(axes: Axes, table: pandas.DataFrame) -> None:
    """A group of bars for each row, a colour for each column, the value above each bar."""
    width = 0.8 / len(table.columns)
    for rank, column in enumerate(table.columns):
        places = [row + rank * width for row in range(len(table))]
        drawn = axes.bar(places, table[column], width * 0.95, color=look.colour(rank), label=column)
        axes.bar_label(drawn, fmt="{:,.0f}", fontsize="small")
    middle = width * (len(table.columns) - 1) / 2
    axes.set_xticks([row + middle for row in range(len(table))], list(table.index))
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def trace(sweeps: Sweeps, into: Path) -> None:
    """Every request at the time at which it was due: as recorded, and four times as many."""
    results = sweeps.of_guide("trace")
    points = orchestrator.points(results, columns="all")
    of_one_deployment = points[points["settings.max_num_batched_tokens"] == 2048]
    figure = look.new_figure(7.2, 3.4)
    axes = figure.subplots()
    for rank, point in enumerate(of_one_deployment.sort_values("level").to_dict("records")):
        (requests,) = orchestrator.requests(results, point=point["point_id"])
        rows = requests.to_pandas()
        due_s = (rows["scheduled_ns"] - rows["scheduled_ns"].min()) / 1e9
        ttft_ms = (rows["first_token_ns"] - rows["scheduled_ns"]) / 1e6
        label = f"{point['level']:.2f} requests/s"
        axes.scatter(
            due_s, ttft_ms, 22, color=look.colour(rank), marker=look.marker(rank), label=label
        )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small", loc="lower right", ncols=2)
    look.name_axes(axes, "when a request was due (s)", "TTFT (ms)")
    look.add_title(axes, f"the log, replayed as recorded and four times as fast {SIMULATED}")
    save(figure, into)


def cost(sweeps: Sweeps, into: Path) -> None:
    """The price of output tokens over the speed that a user sees."""
    axes = plot.curve(chats_of_first_sweep(sweeps), "usd_per_m_output", x="per_user")
    axes.set_ylim(0, 8)
    save(figure_of(axes), into)


def notebooks(sweeps: Sweeps, into: Path) -> None:
    points = chats_of_first_sweep(sweeps)
    axes = plot.curve(points[points["level"] <= 16], "ttft_ms.p99")
    axes.set_ylim(0, 2000)
    save(figure_of(axes), into)


def chats_of_first_sweep(sweeps: Sweeps) -> pandas.DataFrame:
    """The points of the README's sweep whose workload is chat, of one size of batch."""
    points = orchestrator.points(sweeps.of_file(FIRST_SWEEP), columns="all")
    is_drawn = (points["workload"] == "chat") & (points["settings.max_num_seqs"] == 512)
    return points[is_drawn]


def simulate(sweeps: Sweeps, into: Path) -> None:
    """What each deployment may hold by the model's error, and which of them a shortlist keeps."""
    answer = orchestrator.best(sweeps.of_file(FIRST_SWEEP), slo="interactive")
    ranking = answer[answer["workload"] == "chat"].iloc[::-1]
    least_of_leader = ranking["value.lower"].iloc[-1]
    figure = look.new_figure(8.4, 3.6)
    axes = figure.subplots()
    for place, row in enumerate(ranking.to_dict("records")):
        may_lead = row["value.upper"] >= least_of_leader
        colour = look.colour(0) if may_lead else look.GREY
        axes.plot(
            (row["value.lower"], row["value.upper"]), (place, place), color=colour, linewidth=4
        )
        axes.plot(row["value"], place, color=colour, marker="o")
    axes.set_yticks(range(len(ranking)), list(ranking["deployment"]), fontsize="small")
    axes.axvline(least_of_leader, color=look.colour(1), linestyle="--")
    axes.text(
        least_of_leader,
        len(ranking) - 0.3,
        "the least of the leader ",
        ha="right",
        fontsize="small",
    )
    axes.set_ylim(-0.7, len(ranking) + 0.4)
    look.name_axes(axes, "output tokens/s per GPU: what 9 in 10 measurements lie between", "")
    look.add_title(axes, f"chat under interactive {SIMULATED}")
    save(figure, into)


def experiments(sweeps: Sweeps, into: Path) -> None:
    """The throughput of three experiments over their loads."""
    settings = {
        "batch-size-knee": "quantization",
        "replicas-or-tp": "tensor_parallel_size",
        "max-concurrency": "max_num_seqs",
    }
    figure = look.new_figure(11, 3.4)
    for axes, (name, setting) in zip(figure.subplots(1, 3), settings.items(), strict=True):
        points = orchestrator.points(sweeps.of_file(name), columns="all")
        for rank, (value, rows) in enumerate(points.groupby(f"settings.{setting}", dropna=False)):
            label = "bfloat16" if pandas.isna(value) else value
            draw_line(axes, rows["level"], rows["output_token_throughput"], rank, f"{label}")
        control = look.CONTROL_TEXTS[points["control"].iloc[0]]
        look.name_axes(axes, control, "output tokens/s")
        axes.legend(frameon=False, fontsize="small", title=setting, title_fontsize="small")
        look.add_title(axes, f"{name} {SIMULATED}")
    save(figure, into)


def draw_line(axes: Axes, x: Any, y: Any, rank: int, label: str, line: str = "-") -> None:
    axes.plot(x, y, color=look.colour(rank), marker=look.marker(rank), linestyle=line, label=label)


def sql(sweeps: Sweeps, into: Path) -> None:
    """The guide's query of TTFT against load, drawn."""
    (folder,) = (
        path for path in Path(sweeps.of_file("batch-size-knee")).iterdir() if path.is_dir()
    )
    texts = [block.text for block in blocks(GUIDES / "sql.md") if block.language == "sql"]
    statements = [statement for text in texts for statement in text.split(";")]
    (query,) = (statement for statement in statements if "ttft_ms.p50" in statement)
    with contextlib.chdir(folder), duckdb.connect() as database:
        for statement in statements[: statements.index(query)]:
            if "token_events" not in statement:  # a simulation has none
                database.execute(statement)
        table = database.execute(query).df()
    figure = look.new_figure(7.2, 3.6)
    axes = figure.subplots()
    for rank, (label, rows) in enumerate(table.groupby("label")):
        draw_line(axes, rows["level"], rows["p50"], rank, f"{label}, p50")
        draw_line(axes, rows["level"], rows["p99"], rank, f"{label}, p99", "--")
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False, fontsize="small")
    look.name_axes(axes, "level (requests in flight)", "TTFT (ms)")
    look.add_title(axes, f"SELECT label, level, ttft_ms.p50, ttft_ms.p99 FROM figures {SIMULATED}")
    save(figure, into)


def figure_of(axes: Axes) -> Figure:
    figure: Any = axes.figure
    return figure


def save(figure: Figure, into: Path) -> None:
    """Writes the figure as SVG, the same bytes each time."""
    with rc_context(look.SVG_SETTINGS):
        figure.savefig(into, metadata={"Date": None, "Creator": None})


# ----- what a browser shows


def compared(sweeps: Sweeps, *options: str) -> str:
    """What ``compare`` prints of a small sweep before and after a change of the batch's size."""
    for name, sequences in (("before", 256), ("after", 40)):
        file = sweeps.folder / f"{name}.yaml"
        file.write_text(GATE.replace("SEQUENCES", str(sequences)), encoding="utf-8")
        sweeps.simulated(file, name)
    argv = ("compare", "before", "after", "--across", "max_num_seqs", *options)
    return run(*argv, folder=sweeps.folder / "results", statuses=(0, WORSE))


GATE = """\
version: 1
name: gate
model: {id: meta-llama/Llama-3.1-8B-Instruct}
hardware:
  h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.99}
deployments:
  engine: vllm
  hardware: h100
  max_model_len: 8192
  max_num_seqs: SEQUENCES
  vary:
    - grid: {quantization: [null, fp8_per_tensor]}
workloads:
  - {name: chat, input_tokens: 512, output_tokens: 200}
load:
  levels: {concurrency: [16, 48]}
  duration: 2m
  warmup: 20s
slos:
  interactive: {ttft: 500ms, tpot: 50ms, attainment: 0.95}
repeats: 3
starts: 3
"""


def compare_versions(sweeps: Sweeps, into: Path) -> None:
    """The page of ``compare``."""
    page = sweeps.folder / "compare.html"
    compared(sweeps, "--output", str(page))
    of_this_machine = f"{sweeps.folder}/results/"
    page.write_text(page.read_text(encoding="utf-8").replace(of_this_machine, ""), encoding="utf-8")
    take_picture(page, into, ViewportSize(width=1100, height=625), "html")


def ci(sweeps: Sweeps, into: Path) -> None:
    """The comment of ``compare --format md``, as a pull request shows it."""
    comment = compared(sweeps, "--format", "md", "--top", "8")
    page = sweeps.folder / "comment.html"
    body = markdown.markdown(comment, extensions=["tables"])
    page.write_text(COMMENT.replace("BODY", body), encoding="utf-8")
    take_picture(page, into, ViewportSize(width=900, height=200), "article")


COMMENT = """\
<meta charset="utf-8"><style>
body {font: 14px/1.5 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; color: #1f2328; margin: 0}
article {border: 1px solid #d1d9e0; border-radius: 6px}
header {background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e}
main {padding: 4px 16px}
table {border-collapse: collapse}
td, th {border: 1px solid #d1d9e0; padding: 4px 10px}
</style><article><header>a workflow commented on this pull request</header><main>BODY</main></article>
"""


def take_picture(page: Path, into: Path, window: ViewportSize, element: str) -> None:
    """Takes a picture of an element of a page; of ``html``, of what stands there before scrolling."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        tab = browser.new_page(viewport=window, color_scheme="light")
        tab.goto(page.as_uri())
        if element == "html":
            tab.screenshot(path=into)
        else:
            tab.locator(element).screenshot(path=into)
        browser.close()


SVGS: dict[str, Callable[[Sweeps, Path], None]] = {
    "parallelism": parallelism,
    "quantization": quantization,
    "capacity": capacity,
    "chat-or-rag": chat_or_rag,
    "trace": trace,
    "cost": cost,
    "simulate": simulate,
    "experiments": experiments,
    "notebooks": notebooks,
    "sql": sql,
}
PNGS: dict[str, Callable[[Sweeps, Path], None]] = {
    "compare-versions": compare_versions,
    "ci": ci,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="pictures of these guides; without any, all")
    parser.add_argument("--into", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    into = arguments.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    guide_diagrams.write_diagrams(into)
    with tempfile.TemporaryDirectory() as folder:
        sweeps = Sweeps(Path(folder))
        for pictures, suffix in ((SVGS, ".svg"), (PNGS, ".png")):
            for name, draw in pictures.items():
                if not arguments.names or name in arguments.names:
                    draw(sweeps, into / f"{name}{suffix}")


if __name__ == "__main__":
    main()

"""Our client beside its peers, against a server of known timing, in one run.

    python benchmarks/client/run.py                                  # everything
    python benchmarks/client/run.py --scenarios streams512 --tools c ours vllm --repeats 3

Needs a C compiler and two cores: the server gets core 0, the tool core 1. Peers are those found in
.engines/peers (see install_peers.py) and .engines/vllm; what is not there is listed with the
reason. A shared machine is noisy, so the tools take turns within a repeat, figures are medians over
repeats, and costs are ratios to the C client beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shutil
import sys
from pathlib import Path

from compare import Figures, figures, medians, ratios
from measure import HERE, build, run
from scenarios import SCENARIOS, Scenario
from tables import markdown
from tools import TOOLS, Tool, Unsupported


@dataclasses.dataclass(slots=True)
class Cell:
    """One tool in one scenario: the figures of every repeat, and why there are none."""

    repeats: list[Figures] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, object] = dataclasses.field(default_factory=dict)


def measure_once(tool: Tool, scenario: Scenario, folder: Path, port: int, cell: Cell) -> None:
    """Run ``tool`` once and add what came of it to ``cell``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "scenario.json").write_text(json.dumps(dataclasses.asdict(scenario)))
    try:
        command = tool.command(scenario, f"http://127.0.0.1:{port}", folder)
        cores = scenario.cores_per_client and scenario.cores_per_client * scenario.clients
        done = run(
            command, tool.env, port, scenario.server_flags(), folder, scenario.timeout_s, cores
        )
        report = None
        if done.returncode is None:
            cell.notes.append(f"stopped after {scenario.timeout_s:g} s")
        else:
            report = tool.read(folder)
            cell.extra = report.extra
    except Unsupported as reason:
        cell.notes.append(str(reason))
        return
    except OSError as error:
        cell.notes.append(f"could not be run here: {error}")
        return
    except (KeyError, ValueError, TypeError) as error:
        cell.notes.append(f"its report could not be read: {error!r}; see {folder}/output.txt")
        return
    cell.repeats.append(figures(scenario, done, report))


def measure_all(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, Cell]]:
    """Every scenario, every repeat, every tool in turn."""
    results: dict[str, dict[str, Cell]] = {}
    for scenario in (s for s in SCENARIOS if s.name in args.scenarios):
        names = [name for name in args.tools if name in (scenario.tools or TOOLS)]
        cells = results[scenario.name] = {name: Cell() for name in names}
        for repeat in range(args.repeats):
            for name in names:
                if not TOOLS[name].executable.exists():
                    cells[name].notes = [
                        f"not installed: {TOOLS[name].executable.name} is not in .engines"
                    ]
                elif not cells[name].notes:
                    where = folder / scenario.name / f"{name}-{repeat}"
                    measure_once(TOOLS[name], scenario, where, args.port, cells[name])
                    print(
                        _progress(scenario, name, repeat, cells[name]), file=sys.stderr, flush=True
                    )
        write(results, folder, args)
    return results


def _progress(scenario: Scenario, name: str, repeat: int, cell: Cell) -> str:
    last = cell.repeats[-1] if cell.repeats else {}
    shown = (
        "cpu_us_per_token",
        "ttft_error_mean_ms",
        "itl_error_mean_ms",
        "achieved_over_offered",
        "start_s",
    )
    text = "  ".join(f"{key}={last[key]:.3f}" for key in shown if key in last)
    return f"{scenario.name:15} {name:15} #{repeat}  {text}  {'; '.join(cell.notes)}"


def write(results: dict[str, dict[str, Cell]], folder: Path, args: argparse.Namespace) -> None:
    """results.json with everything, results.md with the tables; after every scenario, so that
    nothing is lost.
    """
    document = {
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/client/run.py " + " ".join(sys.argv[1:]),
        "scenarios": {
            scenario: {
                name: dataclasses.asdict(cell)
                | {"median": medians(cell.repeats), "cpu_over_c": _over_c(cells, name)}
                for name, cell in cells.items()
            }
            for scenario, cells in results.items()
        },
    }
    (folder / "results.json").write_text(json.dumps(document, indent=1))
    (folder / "results.md").write_text(markdown(document))


def _over_c(cells: dict[str, Cell], name: str) -> float | None:
    return (
        ratios(cells[name].repeats, cells["c"].repeats, "cpu_us_per_token")
        if "c" in cells
        else None
    )


def parse(argv: list[str]) -> argparse.Namespace:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    return parser.parse_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    build()
    args.output.mkdir(parents=True, exist_ok=True)
    measure_all(args, args.output.resolve())
    print((args.output / "results.md").read_text())


if __name__ == "__main__":
    main()

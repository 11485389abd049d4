"""Makes what ``test_golden.py`` compares with.

``python -m tests.golden.make --expected`` rewrites the expected outputs, after a change on purpose.
``python -m tests.golden.make --outputs FOLDER`` writes today's outputs into FOLDER.
``python -m tests.golden.make --store`` measures a new store; it needs root and Linux's ``unshare``.
The stored one is kept, so that it is seen whether results of earlier versions stay readable; so are
the experiments in ``experiments/``, whatever becomes of those that users are shown.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXPECTED = HERE / "expected"
STORE = HERE / "store.tar.xz"
STATUSES = "statuses.txt"
SCHEMAS = "schemas.txt"
SIMULATED = "simulated.json"
# Stands for the working folder, which is another one each time.
FOLDER = b"/golden"


@dataclass(frozen=True)
class Command:
    """One command line and the file that takes what it prints."""

    output: str
    words: tuple[str, ...]
    columns: int | None = None  # of the terminal; None: there is none


def command(output: str, *words: str, columns: int | None = None) -> Command:
    return Command(output, words, columns)


RESULTS = [
    command("results.json", "results", "store", "--format", "json"),
    command("results.csv", "results", "store", "--format", "csv", "--slo",
            "ttft<=60ms,tpot<=8ms,attainment>=0.9"),
    command("results.txt", "results", "store"),
    command("results_profile.txt", "results", "store", "--profile"),
    command("results.md", "results", "store", "--format", "md"),
    command("results_columns.csv", "results", "store", "--format", "csv", "--sort", "-per_user",
            "--columns", "deployment,level,per_user,per_device,per_device.lower,attainment.upper"),
    command("results_launches.json", "results", "store", "--format", "json", "--launches"),
    command("best.json", "best", "store", "--format", "json"),
    command("best.txt", "best", "store"),
    command("best.md", "best", "store", "--top", "1", "--format", "md"),
    command("best_ttft.json", "best", "store", "--format", "json", "--slo", "ttft<=500ms"),
    command("best_attainment.json", "best", "store", "--format", "json", "--slo",
            "ttft<=60ms,tpot<=10ms,attainment>=0.9"),
    command("best_percentile.json", "best", "store", "--format", "json", "--slo",
            "ttft_p95<=100ms,itl_p99<=50ms,e2e<=2s"),
    command("best_nothing_holds.json", "best", "store", "--format", "json", "--slo", "ttft<=1ms"),
    command("best_deployment.json", "best", "store", "--format", "json", "--per", "deployment"),
    command("best_usd.json", "best", "store", "--format", "json", "--per", "usd",
            "--price", "cpu=0.05"),
    command("verify.txt", "verify", "store"),
    command("logs.txt", "logs", "store"),
]  # fmt: skip
WIDTHS = (80, 110, 160)
TEXTS = {
    "results": ("results", "store"),
    "results_profile": ("results", "store", "--profile"),
    "results_launches": ("results", "store", "--launches"),
    "results_selected": (
        *("results", "store", "--where", "tensor_parallel_size == 1 and ttft_ms.p99 < 200"),
        *("--sort", "-per_device", "--top", "5"),
    ),
    "best": ("best", "store"),
    "best_nothing_holds": ("best", "store", "--slo", "ttft<=1ms"),
}
# of a store that is simulated anew each time
SIMULATE = ("simulate", "simulation.yaml", "--results", "simulation", "--no-report")
OF_SIMULATION = [
    command("simulation_results.json", "results", "simulation", "--format", "json"),
    command("simulation_best.json", "best", "simulation", "--format", "json"),
    command("simulation_best.md", "best", "simulation", "--format", "md"),
    *(
        command(f"simulation_{name}_{columns}.txt", name, "simulation", columns=columns)
        for name in ("results", "best")
        for columns in WIDTHS
    ),
]
ENDS_OF_RUNS = {columns: f"run_end_{columns}.txt" for columns in WIDTHS}
OF_WIDTHS = [
    command(f"{output}_{columns}.txt", *words, columns=columns)
    for output, words in TEXTS.items()
    for columns in WIDTHS
]


def plan(name: str, *options: str, output: str = "") -> Command:
    path = str(Path("experiments", f"{name}.yaml"))
    return command(f"plan_{output or name}.json", "plan", path, "--format", "json", *options)


PLANS = [
    plan("capacity", "--output", "frozen_capacity.json"),
    plan("capacity", "--predict", output="capacity_predicted"),
    plan("engines-8b", "--output", "frozen_engines-8b.json"),
    plan("llama70b-parallelism", "--output", "frozen_llama70b-parallelism.json"),
    plan("llama70b-parallelism", "--nodes", "4", output="llama70b-parallelism_4_nodes"),
    plan("llama70b-quantization", "--output", "frozen_llama70b-quantization.json"),
    plan("multi-node-405b", "--output", "frozen_multi-node-405b.json"),
    plan("roles", "--output", "frozen_roles.json"),
    command("plan_llama70b-parallelism.txt", "plan", "experiments/llama70b-parallelism.yaml"),
]


@contextmanager
def _working_folder() -> Iterator[Path]:
    """A new folder, with nothing in its name that Markdown escapes."""
    work = Path(tempfile.gettempdir()).resolve() / f"golden-{uuid4().hex}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work)


def write_outputs(folder: Path) -> None:
    """Writes what the commands print, the frozen plans, the schemas of the tables and the rows of a
    simulated sweep to ``folder``. The process that makes them has no home and no terminal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _working_folder() as work:
        with tarfile.open(STORE) as archive:
            archive.extractall(work / "store", filter="data")
        shutil.copytree(HERE / "experiments", work / "experiments")
        shutil.copy(HERE / "simulation.yaml", work)
        environment = {
            "PATH": os.defpath,
            "HOME": str(work),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "TZ": "UTC",
        }
        program = [sys.executable, "-m", "tests.golden.make", "--here"]
        subprocess.run(program, cwd=work, env=environment, check=True, timeout=240)
        for path in sorted((work / "outputs").iterdir()):
            printed = path.read_bytes().replace(str(work).encode(), FOLDER)
            (folder / path.name).write_bytes(printed)
        for path in sorted(work.glob("frozen_*.json")):
            shutil.copy(path, folder)


def run_commands() -> None:
    """Runs all commands and the simulation in the current folder and writes ``outputs/`` there."""
    from click.testing import CliRunner

    from orchestrator.cli.main import cli
    from tests.golden.simulated import simulated_tables

    outputs = Path("outputs")
    outputs.mkdir()
    statuses: list[str] = []
    CliRunner().invoke(cli, SIMULATE, standalone_mode=False, catch_exceptions=False)
    for one in [*RESULTS, *OF_WIDTHS, *OF_SIMULATION, *PLANS]:
        width = None if one.columns is None else str(one.columns)
        done = CliRunner(env={"COLUMNS": width}).invoke(
            cli, one.words, standalone_mode=False, catch_exceptions=False
        )
        (outputs / one.output).write_bytes(done.stdout_bytes)
        statuses.append(f"{one.output}: exit status {done.return_value or 0}")
        statuses += [f"    {line}" for line in done.stderr.splitlines()]
    for columns, output in ENDS_OF_RUNS.items():
        (outputs / output).write_bytes(ends_of_runs(columns))
    (outputs / STATUSES).write_text("\n".join(statuses) + "\n")
    (outputs / SIMULATED).write_text(simulated_tables())
    (outputs / SCHEMAS).write_text("\n".join(schemas()) + "\n")


def ends_of_runs(columns: int) -> bytes:
    """What ``run`` prints when it ends, for each experiment of the store."""
    from click.testing import CliRunner

    from orchestrator.cli.run import print_end
    from orchestrator.results.store import Store

    with CliRunner(env={"COLUMNS": str(columns)}).isolation() as (_, stderr, _):
        for name in ("capacity", "levels"):
            print_end(Store.open("store", name), with_page=False)
        return stderr.getvalue()


def schemas() -> Iterator[str]:
    """Names and types of the columns of every table, as the program writes them."""
    from orchestrator.results.schemas import RECORDS, arrow_schema

    for table, record in RECORDS.items():
        yield table
        for column in arrow_schema(record):
            yield f"    {column.name}: {column.type}"


def rewrite_expected() -> None:
    shutil.rmtree(EXPECTED, ignore_errors=True)
    write_outputs(EXPECTED)


# A host of its own: named "host", with loopback alone and no foreign processes, where the repository
# is /mnt/repo.
NAMESPACES = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc")
ISOLATED = """
set -e
hostname host
ip link set lo up
mount -t tmpfs tmpfs /mnt
mkdir /mnt/repo /mnt/out
mount --bind "$1" /mnt/repo
mount --bind "$2" /mnt/out
cd /mnt/out
# exit status 3: something has no valid measurement, and the store is to hold that too
for name in levels capacity; do
  env -i HOME=/mnt USER=user LOGNAME=user PATH=/usr/bin:/bin TZ=UTC HF_HUB_OFFLINE=1 \
    ORCHESTRATOR_LEASES=/mnt/leases PYTHONPATH=/mnt/repo /mnt/repo/.venv/bin/python \
    -m orchestrator run /mnt/repo/tests/golden/$name.yaml --results store --address local \
    --again 0 || [ $? = 3 ]
done
"""
# Of the record of a run: which start of which machine it was.
BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def make_store() -> None:
    """Measures both experiments with the emulator, for three minutes; only root can."""
    with tempfile.TemporaryDirectory() as folder:
        shell = [*NAMESPACES, "bash", "-c", ISOLATED, "isolated"]
        subprocess.run([*shell, str(ROOT), folder], check=True)
        pack(Path(folder, "store"))


def pack(store: Path) -> None:
    """Packs a store without what is computed anew from its rows, and without the machine's id."""
    for record in store.glob("*/runs/*.json"):
        text = record.read_text()
        record.write_text(BOOT_ID.sub("00000000-0000-0000-0000-000000000000", text))
    with tarfile.open(STORE, "w:xz") as archive:
        for path in sorted(store.rglob("*")):
            name = path.relative_to(store)
            if path.is_file() and "computed" not in name.parts:
                entry = tarfile.TarInfo(str(name))
                entry.size = path.stat().st_size
                archive.addfile(entry, BytesIO(path.read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--expected", action="store_true", help="rewrite the expected outputs")
    what.add_argument("--outputs", type=Path, metavar="FOLDER", help="write the outputs to FOLDER")
    what.add_argument("--store", action="store_true", help="measure a new store")
    what.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.expected:
        rewrite_expected()
    elif chosen.outputs:
        write_outputs(chosen.outputs)
    elif chosen.store:
        make_store()
    else:
        run_commands()


if __name__ == "__main__":
    main()

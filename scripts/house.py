"""Counts the house: how large the code is, and how many files one thing passes on its way.

    python scripts/house.py            # all figures beside their limits; exit status 1 when one is missed
    python scripts/house.py --files    # and the files of each walk, in the order in which they are first called

A walk is counted by the files of which any function or class body runs, whenever it runs: who follows it in the code
opens these files. A file that is imported and does nothing is not counted. ``docs/architecture.md`` draws the rooms.
"""

from __future__ import annotations

import argparse
import ast
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "orchestrator"

MOST_LINES = 21_500
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_LOAD_FILES = 18
MOST_PLAN_FILES = 28
MOST_FAILURE_FILES = 10

EXPERIMENT = """\
version: 1
name: house
model: {id: meta-llama/Llama-3.3-70B-Instruct}
hardware:
  h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.99}
deployments:
  engine: vllm
  hardware: h100
  max_model_len: 2048
  vary:
    - grid: {tensor_parallel_size: [8], quantization: [fp8_per_tensor]}
  derive: {gpus: tensor_parallel_size * pipeline_parallel_size}
  exclude: ["gpus > 16"]
workloads:
  - {name: chat, input_tokens: 128, output_tokens: 32}
load: {levels: {request_rate: [1, 2]}, arrivals: poisson, duration: 60s, warmup: 10s}
slos:
  interactive: {ttft: 500ms, tpot: 50ms, attainment: 0.95}
"""

# Runs the program in a process of its own and writes down the files of this package whose code was called.
TRACER = """\
import json, sys, threading
package, output, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
files = {}
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
        files.setdefault(code.co_filename[len(package) + 1:])
from orchestrator.cli.main import main
sys.argv = ["orchestrator", *argv]
threading.setprofile(profile)
sys.setprofile(profile)
try:
    main()
except SystemExit as error:
    status = error.code
sys.setprofile(None)
with open(output, "w") as file:
    json.dump({"status": status, "files": list(files)}, file)
"""


# The same for one failure: from where an engine's log is read, files with a function that takes, returns or raises it.
FAILURE_TRACER = """\
import dataclasses, json, sys, threading
package, output, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
from orchestrator.cli.main import main
from orchestrator.errors import EngineFailure, Failure
files = {}
def holds(value, depth=2):
    if isinstance(value, (Failure, EngineFailure)):
        return True
    if not depth or isinstance(value, type) or not dataclasses.is_dataclass(value):
        return False
    return any(holds(getattr(value, one.name, None), depth - 1) for one in dataclasses.fields(value))
def note(code, *values):
    if any(map(holds, values)):
        files.setdefault(code.co_filename[len(package) + 1:])
def inside(frame, event, argument):
    if event == "return":
        note(frame.f_code, argument)
    elif event == "exception":
        note(frame.f_code, argument[1])
    return inside
def trace(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(package):
        return None
    frame.f_trace_lines = False
    note(code, *map(frame.f_locals.get, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]))
    return inside
sys.argv = ["orchestrator", *argv]
threading.settrace(trace)
sys.settrace(trace)
try:
    main()
except SystemExit as error:
    status = error.code
sys.settrace(None)
with open(output, "w") as file:
    json.dump({"status": status, "files": list(files)}, file)
"""

FAILING = """\
version: 1
name: house
model: some-org/some-model
deployments: {engine: emulator, extra_args: {"--fault": ["start=oom"]}}
workloads: [{name: chat, input_tokens: 8, output_tokens: 2}]
load: {levels: {concurrency: [1]}, requests: 2}
"""


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and name of every function of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}"


def walk(*argv: str, tracer: str = TRACER, status: int = 0) -> list[str]:
    """The files one command passes, by first call. Raises RuntimeError when it ends with another status."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "walk.json"
        done = subprocess.run(
            [sys.executable, "-c", tracer, str(PACKAGE), str(output), *argv],
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"status": done.returncode}
    if (found["status"] or 0) != status:
        raise RuntimeError(f"orchestrator {' '.join(argv)} ended with {found['status']}: {done.stderr[-2000:]}")
    return list(found["files"])


def load_walk() -> list[str]:
    """Files of load/ that one plain load of an emulator with one client passes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "emulator", "--port", str(port)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        url = f"http://127.0.0.1:{port}"
        lengths = ("--input-tokens", "32", "--output-tokens", "64", "--format", "json")
        files = walk("load", url, "--concurrency", "2", "--requests", "8", *lengths)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(10)
    return [name for name in files if name.startswith("load/")]


def plan_walk() -> list[str]:
    """Files that planning one vLLM deployment passes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(EXPERIMENT)
        return walk("plan", str(file))


def failure_walk() -> list[str]:
    """Files that a failure passes, from the log line of an engine that dies at start to its rows. No Ray."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(FAILING)
        here = ("--address", "local", "--results", folder)
        return walk("run", str(file), *here, tracer=FAILURE_TRACER, status=3)


def main() -> int:
    """Prints every figure; 1 when one is beyond its limit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", action="store_true", help="list the files of each walk")
    listed = options.parse_args().files
    sources = sorted(PACKAGE.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in sources}
    longest_file = max(lines, key=lambda path: lines[path])
    sizes = sorted(found for path in sources for found in functions(path))
    walks = {
        "load with one client: files of load/": (load_walk(), MOST_LOAD_FILES),
        "plan of one deployment: files": (plan_walk(), MOST_PLAN_FILES),
        "a failure, from log to row: files": (failure_walk(), MOST_FAILURE_FILES),
    }
    figures = [
        ("lines of orchestrator/", sum(lines.values()), MOST_LINES, f"{len(sources)} files"),
        ("longest file", lines[longest_file], MOST_FILE_LINES, str(longest_file.relative_to(ROOT))),
        ("longest function", sizes[-1][0], MOST_FUNCTION_LINES, sizes[-1][1]),
        *((name, len(files), most, "") for name, (files, most) in walks.items()),
    ]
    for name, value, limit, where in figures:
        print(f"{name:<40} {value:>7,}  limit {limit:>7,}  {'ok    ' if value <= limit else 'MISSED'}  {where}")
    lengths = [size for size, _ in sizes]
    tenth = statistics.quantiles(lengths, n=10)[-1]
    print(f"functions: {len(lengths):,}, median {statistics.median(lengths):g} lines, p90 {tenth:g}")
    for name, (files, _) in walks.items() if listed else ():
        print(f"\n{name}")
        print("\n".join(f"  {file}" for file in files))
    return int(any(value > limit for _, value, limit, _ in figures))


if __name__ == "__main__":
    sys.exit(main())

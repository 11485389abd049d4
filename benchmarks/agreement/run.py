"""Do `orchestrator load` and `vllm bench serve` agree on the same running vLLM?

    python benchmarks/agreement/run.py [--pairs 6] [--concurrency 8] [--requests 160]

Starts real vLLM on the CPU (scripts/install_engines.py) with the tiny model (made when it is not
there), then lets both tools load it in turn, A B, B A, A B, ..., closed loop, same prompt and
output lengths, greedy, end of sequence ignored, no prefix cache. The engine has the first core and
the tool the others: without this, a tool that computes more slows the engine that it reports on.
Limits: output throughput within 5 %, median TTFT and median TPOT within 10 % (median over pairs of
the ratio of the two tools in a pair). Exit status 1 beyond them. How far one tool disagrees with
itself stands beside it.

Clocks, aligned as far as the tools allow:
  TTFT   vllm: before the request is handed to its HTTP client, to the first event parsed; ours: `ttft_from_sent_ms`,
         first byte handed to the socket, to the read that held the first event (our headline is
         from the schedule).
  TPOT   both: (last - first content event) / (tokens - 1), median over requests.
  tokens/s  vllm: all output tokens / (first dispatch to last completion); ours the same, from the stored rows;
         the figure that `orchestrator load` prints, of its own window, stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pyarrow.compute as pc
import pyarrow.dataset as ds

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".engines/vllm/bin/vllm"
LIMITS = {"output_throughput": 0.05, "ttft_ms": 0.10, "tpot_ms": 0.10}
KEY = "OPENAI_API_KEY"  # vllm bench serve sends what it finds there
ENV = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(ROOT)}

Figures = dict[str, float]


@contextmanager
def engine(args: argparse.Namespace, log: Path) -> Iterator[str]:
    """A vLLM server on its cores; yields its URL.

    Raises RuntimeError when it is not ready within 5 minutes.
    """
    command = [
        "taskset", "--cpu-list", args.engine_cores, str(VLLM), "serve", str(args.model.resolve()),
        "--host", "127.0.0.1", "--port", str(args.port), "--served-model-name", args.served,
        "--dtype", "float32", "--max-model-len", "1024", "--no-enable-prefix-caching",
    ]  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=ENV, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{args.port}"
        _wait_until_ready(url, process, log)
        yield url
    finally:
        _stop(process)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url + "/health", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"vLLM did not become ready; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def vllm_bench(url: str, args: argparse.Namespace, seed: int, folder: Path) -> Figures:
    """One run of `vllm bench serve`."""
    command = [
        str(VLLM), "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
        "--model", args.served, "--tokenizer", str(args.model), "--dataset-name", "random", "--seed", str(seed),
        "--random-input-len", str(args.input_tokens), "--random-output-len", str(args.output_tokens),
        "--num-prompts", str(args.requests), "--max-concurrency", str(args.concurrency), "--request-rate", "inf",
        "--ignore-eos", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm",
        "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json",
    ]  # fmt: skip
    _run(command, folder / "vllm.txt", args.client_cores)
    said = json.loads((folder / "vllm.json").read_text())
    _all_ok("vllm bench serve", said["completed"], args.requests)
    return {
        "output_throughput": said["output_throughput"],
        "ttft_ms": said["median_ttft_ms"],
        "tpot_ms": said["median_tpot_ms"],
        "input_tokens": said["total_input_tokens"] / said["completed"],
        "output_tokens": said["total_output_tokens"] / said["completed"],
    }


def ours(url: str, args: argparse.Namespace, seed: int, folder: Path) -> Figures:
    """One run of `orchestrator load`."""
    results = folder / "results"
    command = [
        sys.executable, "-m", "orchestrator", "load", url, "--model", args.served, "--tokenizer", str(args.model),
        "--concurrency", str(args.concurrency), "--requests", str(args.requests), "--seed", str(seed),
        "--input-tokens", str(args.input_tokens), "--output-tokens", str(args.output_tokens),
        "--results", str(results), "--format", "json", *(("--api-key-env", KEY) if KEY in ENV else ()),
    ]  # fmt: skip
    said = json.loads(_run(command, folder / "ours.txt", args.client_cores))
    _all_ok("orchestrator load", said["requests"]["ok"], args.requests)
    rows = ds.dataset(sorted(map(str, results.glob("**/requests/**/*.parquet")))).to_table()
    span_s = (pc.max(rows["last_token_ns"]).as_py() - pc.min(rows["sent_ns"]).as_py()) / 1e9
    return {
        "output_throughput": pc.sum(rows["output_tokens"]).as_py() / span_s,
        "output_throughput_printed": said["output_token_throughput"],
        "ttft_ms": said["ttft_from_sent_ms"]["p50"],
        "tpot_ms": said["tpot_ms"]["p50"],
        "input_tokens": pc.mean(rows["input_tokens"]).as_py(),
        "output_tokens": pc.mean(rows["output_tokens"]).as_py(),
    }


def _run(command: list[str], output: Path, cores: str) -> str:
    command = ["taskset", "--cpu-list", cores, *command]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=300)
    output.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"{command[3]} ended with status {done.returncode}; see {output}")
    return done.stdout


def _all_ok(tool: str, ok: int, asked: int) -> None:
    if ok != asked:
        raise RuntimeError(f"{tool}: {ok} of {asked} requests succeeded; nothing to compare")


def compare(pairs: list[tuple[Figures, Figures]]) -> dict[str, dict[str, float]]:
    """Per metric: medians of both, ratio ours / theirs (median over pairs), and how far each
    disagrees with itself.
    """
    out = {}
    for name, limit in LIMITS.items():
        theirs, own = [a[name] for a, _ in pairs], [b[name] for _, b in pairs]
        out[name] = {
            "vllm": median(theirs),
            "ours": median(own),
            "ratio": median(b / a for a, b in zip(theirs, own, strict=True)),
            "limit": limit,
            "spread_vllm": max(theirs) / min(theirs) - 1,
            "spread_ours": max(own) / min(own) - 1,
        }
    return out


def markdown(result: dict[str, dict[str, float]]) -> str:
    """One row per metric."""
    lines = [
        (
            "| metric | vllm bench serve | orchestrator load | difference | limit | spread of vllm's "
            "own runs | of ours |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result.items():
        lines.append(
            f"| {name} | {row['vllm']:.2f} | {row['ours']:.2f} | {row['ratio'] - 1:+.1%} | "
            f"{row['limit']:.0%}"
            f" | {row['spread_vllm']:.1%} | {row['spread_ours']:.1%} |"
        )
    return "\n".join(lines)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / ".demo/model")
    parser.add_argument("--served", default="tiny", help="name the model is served by")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument(
        "--engine-cores", default=str(cores[0]), help="as taskset --cpu-list takes them"
    )
    parser.add_argument("--client-cores", default=",".join(map(str, cores[1:] or cores)))
    parser.add_argument("--port", type=int, default=18400)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args(argv)


def main() -> int:
    args = parse(sys.argv[1:])
    output = args.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    if not args.model.exists():
        subprocess.run(
            [sys.executable, str(ROOT / "scripts/make_tiny_model.py"), str(args.model)], check=True
        )
    pairs: list[tuple[Figures, Figures]] = []
    with engine(args, output / "engine.log") as url:
        # the first pair warms engine and files, and is not counted
        for number in range(-1, args.pairs):
            folder = output / f"pair{number}"
            folder.mkdir()
            seeds = 1000 + 2 * number, 1001 + 2 * number
            if number % 2:
                own = ours(url, args, seeds[1], folder)
                theirs = vllm_bench(url, args, seeds[0], folder)
            else:
                theirs = vllm_bench(url, args, seeds[0], folder)
                own = ours(url, args, seeds[1], folder)
            print(
                json.dumps({"pair": number, "vllm": theirs, "ours": own}),
                file=sys.stderr,
                flush=True,
            )
            if number >= 0:
                pairs.append((theirs, own))
    result = compare(pairs)
    (output / "results.json").write_text(json.dumps({"pairs": pairs, "result": result}, indent=1))
    print(markdown(result))
    return int(any(abs(row["ratio"] - 1) > row["limit"] for row in result.values()))


if __name__ == "__main__":
    sys.exit(main())

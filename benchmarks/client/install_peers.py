"""Install the peers, each into a virtual environment of its own below .engines/peers. vLLM:
scripts/install_engines.py.

    python benchmarks/client/install_peers.py [NAME ...] [--into FOLDER]

uv installs where it is there, which takes a fraction of pip's time; else, or where uv fails, pip. A
peer that cannot be installed here is named with the reason, and run.py then leaves it out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".engines/peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """``steps``: arguments of successive ``pip install`` calls."""

    steps: tuple[tuple[str, ...], ...]
    python: str = "python3.11"


# one that needs no CUDA packages; asked for first, so that later steps find it there
CPU_TORCH = ("torch==2.13.0",)
PEER_LIST = {
    "aiperf": Peer((("aiperf==0.13.0",),)),
    "genai-bench": Peer((("genai-bench==0.0.5",),)),
    "guidellm": Peer((CPU_TORCH, ("guidellm==0.8.1",))),
    "inference-perf": Peer((("inference-perf==0.7.0",),), python="python3.12"),
    # Its own requirements are CUDA kernels; its Rust load generator, which the wheel carries, needs
    # only these.
    "sglang": Peer(
        (
            ("--no-deps", "sglang==0.5.23"),
            CPU_TORCH,
            (
                "transformers", "aiohttp", "numpy", "pillow", "pybase64", "requests", "tqdm", "datasets", "psutil",
                "pydantic", "orjson", "packaging", "starlette", "fastapi", "uvloop", "pyzmq", "triton", "msgspec",
                "huggingface_hub", "einops", "IPython",
            ),
        )
    ),
}  # fmt: skip


def install(peer: Peer, folder: Path) -> str | None:
    """Returns the reason when it cannot be installed."""
    python = shutil.which(peer.python)
    # Debian's has no ensurepip, without which venv fails, unless a package adds it
    if python is None or problem_of([python, "-c", "import ensurepip, venv"]):
        return f"needs {peer.python} with ensurepip, which is not on the PATH or does not run"
    if (problem := problem_of([python, "-m", "venv", str(folder)])) is not None:
        return problem
    for step in peer.steps:
        problem = install_step(step, folder)
        if problem is not None:
            return problem
    return None


def install_step(step: tuple[str, ...], folder: Path) -> str | None:
    """Installs packages by uv, else by pip, whose configuration may name an index that uv does not
    know. Returns the reason when neither can.
    """
    python = str(folder / "bin/python")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is not None:
        links = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
        if problem_of([uv, "pip", "install", "--python", python, *links, *step]) is None:
            return None
    return problem_of([python, "-m", "pip", "install", "--quiet", *step])


def problem_of(command: list[str]) -> str | None:
    """Runs a command. Returns what it said when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
    line = said[-1 if "pip" in command else 0]
    return f"{Path(command[0]).name} ended with status {done.returncode}: {line}"


def main() -> int:
    """Status 1 when a peer is missing afterwards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"one or more of {', '.join(PEER_LIST)}; all of them",
    )
    parser.add_argument(
        "--into", type=Path, default=PEERS, help="folder of the environments (%(default)s)"
    )
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in PEER_LIST]:
        parser.error(f"no peer is called {', '.join(unknown)}; known are {', '.join(PEER_LIST)}")
    missing = 0
    for name in args.names or PEER_LIST:
        reason = install(PEER_LIST[name], args.into.resolve() / name)
        print(f"{name}: {reason or 'installed'}", flush=True)
        missing += reason is not None
    model = args.into / "tiny-llama"
    if not model.exists():
        subprocess.run(
            [sys.executable, str(ROOT / "scripts/make_tiny_model.py"), str(model)], check=True
        )
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())

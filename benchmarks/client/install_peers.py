"""Install the peers, each into a virtual environment of its own below .engines/peers. vLLM: scripts/install_engines.py.

    python benchmarks/client/install_peers.py [NAME ...]

A peer that cannot be installed here is named with the reason, and run.py then leaves it out.
"""

from __future__ import annotations

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


CPU_TORCH = ("torch==2.13.0",)  # one that needs no CUDA packages; asked for first, so that later steps find it there
PEER_LIST = {
    "aiperf": Peer((("aiperf==0.13.0",),)),
    "genai-bench": Peer((("genai-bench==0.0.5",),)),
    "guidellm": Peer((CPU_TORCH, ("guidellm==0.8.1",))),
    "inference-perf": Peer((("inference-perf==0.7.0",),), python="python3.12"),
    # Its own requirements are CUDA kernels; its Rust load generator, which the wheel carries, needs only these.
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


def install(name: str, peer: Peer) -> str | None:
    """Returns the reason when it cannot be installed."""
    python = shutil.which(peer.python)
    if python is None:
        return f"needs {peer.python}, which is not on the PATH"
    subprocess.run([python, "-m", "venv", str(PEERS / name)], check=True)
    for step in peer.steps:
        pip = [str(PEERS / name / "bin/python"), "-m", "pip", "install", "--quiet", *step]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return None


def main() -> None:
    for name in sys.argv[1:] or PEER_LIST:
        reason = install(name, PEER_LIST[name])
        print(f"{name}: {reason or 'installed'}", flush=True)
    model = PEERS / "tiny-llama"
    if not model.exists():
        subprocess.run([sys.executable, str(ROOT / "scripts/make_tiny_model.py"), str(model)], check=True)


if __name__ == "__main__":
    main()

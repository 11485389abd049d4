"""make demo-quantization: one model in six number formats on the real vLLM for the CPU, on one core
and on two.

Installs vLLM into .engines/ and makes the checkpoints in .demo/quantized; the rest is `make
demo`'s.
"""

from __future__ import annotations

import sys

from demo import CONSOLE, NO_BUILD, install, measure, run


def main() -> int:
    """Exit status of the sweep."""
    if status := install("vllm"):
        why = (
            "there is no vLLM for this platform" if status == NO_BUILD else "run it again to go on"
        )
        CONSOLE.print(f"[red]vLLM could not be installed: {why}.[/]")
        return status
    if run("scripts/make_quantized_models.py", ".demo/quantized") != 0:
        return 1
    return measure("experiments/quantization.yaml")


if __name__ == "__main__":
    sys.exit(main())

"""Runs in a vLLM environment: real vLLM's greedy answers from quantized checkpoints, beside what
transformers computes from the very numbers that they hold.

    python quantized_answers.py FOLDER SCHEME...

Prints a line of JSON for each scheme: how many ``tokens``, and of how many of them the token is
transformers' first choice from the bfloat16 model (``base``) and from the dequantized weights
(``dequantized``), both in float32.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import sys
from pathlib import Path
from typing import Any

PROMPTS, INPUT, OUTPUT = 8, 24, 16


def answers(model: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts and answers of one engine, which stays in a process of its own."""
    vllm = importlib.import_module("vllm")
    rng = random.Random(1)
    prompts = [[rng.randrange(10, 2000) for _ in range(INPUT)] for _ in range(PROMPTS)]
    limits = {"max_model_len": 256, "kv_cache_memory_bytes": 1 << 28, "max_num_seqs": PROMPTS}
    engine = vllm.LLM(model=str(model), dtype="bfloat16", enforce_eager=True, **limits)
    greedy = vllm.SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    found = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy)
    return [
        (prompt, list(one.outputs[0].token_ids)) for prompt, one in zip(prompts, found, strict=True)
    ]


def first_choices(model: Path, answered: list[tuple[list[int], list[int]]]) -> int:
    """How many of the answered tokens transformers would have chosen, too."""
    torch = importlib.import_module("torch")
    loader: Any = importlib.import_module("transformers").AutoModelForCausalLM
    reference = loader.from_pretrained(model, dtype=torch.float32).eval()
    same = 0
    for prompt, tokens in answered:
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        same += int((logits.argmax(-1) == torch.tensor(tokens)).sum())
    return same


def main(folder: Path, schemes: list[str]) -> None:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    importlib.import_module("vllm")  # once for all: it takes longer than the answers
    for scheme in schemes:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            answered = pool.apply(answers, (folder / scheme,))
        # its threads would be in the way of the next fork
        with multiprocessing.get_context("fork").Pool(1) as pool:
            same = [
                pool.apply(first_choices, (folder / name, answered))
                for name in ("base", f"{scheme}-dequantized")
            ]
        tokens = sum(len(one) for _, one in answered)
        print(
            json.dumps(
                {"scheme": scheme, "tokens": tokens, "base": same[0], "dequantized": same[1]}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

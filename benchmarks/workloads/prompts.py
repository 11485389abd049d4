"""How fast prompts of an exact length are made, on one core: 100,000 of token ids and of text.

    python benchmarks/workloads/prompts.py --tokenizer FOLDER --corpus FILE --prompts 100000 --tokens 512

With ``--corpus`` prompts are also cut out of a text, as ids and as text; how long it takes to read
and encode it and what memory the process then has had at most come first (``--prompts 0`` is that
alone, and ``--only ids`` or ``--only text`` one of both, because a peak is that of all before it).

Prompts are made one by one and thrown away, as a client does that writes ahead; with ``--tokenizer``
one text in 50 is encoded again to say how many have another length.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from orchestrator.spec.load import Lengths, Uniform
from orchestrator.workloads.content import load_tokenizer, prompter
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import Prompter

CHECK_EVERY = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=512, help="the mean of a uniform length")
    parser.add_argument("--tokenizer", help="a folder with tokenizer.json, for text")
    parser.add_argument("--corpus", help="a text file, to cut prompts out of it")
    parser.add_argument("--only", choices=("ids", "text"), help="default: both")
    options = parser.parse_args()
    for takes_ids in (True, False):
        if options.only == ("text" if takes_ids else "ids"):
            continue
        makes = prompter(takes_ids=takes_ids, tokenizer=options.tokenizer, id_range=None)
        measure(options, makes, "ids" if takes_ids else type(makes).__name__)
        if options.corpus:
            slices = loaded(options, makes)
            measure(options, slices, type(slices).__name__)


def loaded(options: argparse.Namespace, makes: Prompter) -> Prompter:
    """What makes prompts out of the text. Prints how long that took, and the peak of memory."""
    started = time.perf_counter()
    of_processor = time.process_time()
    text = Path(options.corpus).read_text()
    slices = makes.slices(text)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(
        f"{type(slices).__name__}: a text of {len(text):,} characters in "
        f"{time.perf_counter() - started:.1f} s, {time.process_time() - of_processor:.1f} s of "
        f"processors, {peak_mb:.0f} MB at most"
    )
    return slices


def measure(options: argparse.Namespace, makes: Prompter, name: str) -> None:
    """Prints how long it takes to make all prompts. ``name``: of what makes them."""
    lengths = Uniform(min=options.tokens // 2, max=options.tokens * 3 // 2)
    workload = RandomWorkload(
        name="w", input_tokens=Lengths(uniform=lengths), output_tokens=Lengths(fixed=1)
    )
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    kind = workload.requests(makes, seed=1)
    texts: list[tuple[int, str]] = []
    started = time.process_time()
    for session in range(options.prompts):
        flat = kind.prompt(session, 0, "measure", ()).flat()
        if isinstance(flat, np.ndarray):
            assert len(flat) == kind.input_tokens(session, 0)
        elif session % CHECK_EVERY == 0:
            texts.append((kind.input_tokens(session, 0), flat))
    took_s = time.process_time() - started
    line = f"{name}: {options.prompts:,} prompts of {options.tokens} tokens in {took_s:.1f} s of the processor"
    if tokenizer is not None and texts:
        off = sum(
            len(tokenizer.encode(text, add_special_tokens=False).ids) != tokens
            for tokens, text in texts
        )
        line += f"; of {len(texts):,} encoded again {off} have another length"
    print(line)


if __name__ == "__main__":
    main()

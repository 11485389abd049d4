"""Runs in an environment with transformers: of how many tokens of an answer each is the first choice
of a model, given what comes before it.

    python merged_answers.py ANSWERS.json

ANSWERS.json: model folder -> list of [prompt, answer], in token ids. Prints the same with the number
of tokens in place of each list.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(file: Path) -> None:
    first_choices = importlib.import_module("quantized_answers").first_choices
    answers = json.loads(file.read_text())
    counts = {model: first_choices(Path(model), answered) for model, answered in answers.items()}
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Prompts of text are as long as asked with tokenizers of published models, which come with the
engines.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.workloads.content import TextSlices, TokenizedText, load_tokenizer
from tests.integration.engine_real import ROOT, home_of

CONVERTER = ROOT / "benchmarks/workloads/fast_tokenizer.py"
LONGEST = 600
# English, code and scripts without spaces between words, with line breaks between all of them
TEXTS = (
    (ROOT / "docs/explained/architecture.md").read_text(),
    (ROOT / "orchestrator/workloads/content.py").read_text(),
    "敏捷的狐狸，据说跳过了懒狗。Все счастливые семьи похожи.\nمرحبا بالعالم — 😀 naïve\n\n\tx;\n"
    * 200,
)


@pytest.mark.parametrize(
    ("engine", "file", "least_vocabulary"),
    [
        ("vllm", "mistral_common/data/tekken_240911.json", 130_000),
        ("vllm", "mistral_common/data/tokenizer.model.v1", 32_000),
        ("sglang", "tml_renderers/data/o200k_base.tiktoken", 199_000),
    ],
)
def test_text_has_as_many_tokens_as_asked_with_a_published_tokenizer(
    tmp_path: Path, engine: str, file: str, least_vocabulary: int
) -> None:
    python = home_of("vllm") / "bin" / "python"
    published = _packages(home_of(engine)) / file
    subprocess.run([python, CONVERTER, published, tmp_path], check=True, timeout=300)
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.get_vocab_size() >= least_vocabulary
    words = TokenizedText(tokenizer)
    assert _wrong_lengths(tokenizer, words) == []
    for text in TEXTS:
        slices = words.slices(text)
        assert isinstance(slices, TextSlices)
        assert _wrong_lengths(tokenizer, slices) == []


def _packages(home: Path) -> Path:
    (packages,) = home.glob("lib/python3*/site-packages")
    return packages


def _wrong_lengths(tokenizer: Any, prompter: TokenizedText | TextSlices) -> list[tuple[int, int]]:
    """Tokens asked for, and how many there are instead."""
    wrong: list[tuple[int, int]] = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        asked = int(rng.integers(1, LONGEST))
        tokens = len(tokenizer.encode(str(prompter.make(rng, asked)), add_special_tokens=False).ids)
        if tokens != asked:
            wrong.append((asked, tokens))
    return wrong

"""Limits of readers become limits on the time per output token."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from orchestrator.plan.model import Plan
from orchestrator.plan.slos import ResolvedSlos, resolved_slos
from orchestrator.spec.load import Slo
from orchestrator.workloads.content import ENGLISH
from tests.unit.plan.files import planned

pytestmark = pytest.mark.usefixtures("judged")


SLOS = {"reading": {"reader": "silent", "ttft_p95": "1s"}}
WORDS_PER_S = 238 / 60
WORDS = len(ENGLISH.split())


def save_tokenizer(folder: Path, pattern: str) -> dict[str, str]:
    """A deployment with a tokenizer whose tokens a pattern describes."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{pattern}|[ ]+"), "removed", invert=True)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"engine": "vllm", "model": "m", "tokenizer": str(folder)}


def test_a_reader_limits_the_time_per_token_by_the_tokenizer(tmp_path: Path) -> None:
    plan = planned(deployments=[save_tokenizer(tmp_path / "words", "[^ ]+")], slos=SLOS)
    tokens_per_word = len(re.findall("[^ ]+|[ ]+", ENGLISH)) / WORDS
    assert plan.slos[0].tpot == pytest.approx(1 / WORDS_PER_S / tokens_per_word, rel=0.1)


def test_the_tokenizer_with_most_tokens_counts_for_all(tmp_path: Path) -> None:
    words = save_tokenizer(tmp_path / "words", "[^ ]+")
    letters = save_tokenizer(tmp_path / "letters", "[^ ]")
    plan = planned(deployments=[words, letters], slos=SLOS)
    tokens_per_word = len(ENGLISH) / WORDS
    assert plan.slos[0].tpot == pytest.approx(1 / WORDS_PER_S / tokens_per_word, rel=0.1)
    assert "238 words per minute" in plan.notes[-1]
    assert str(tmp_path / "letters") in plan.notes[-1]


def test_without_a_tokenizer_english_has_four_tokens_for_three_words() -> None:
    assert planned(slos=SLOS).slos[0].tpot == pytest.approx(1 / WORDS_PER_S * 3 / 4)


def test_the_limit_of_a_reader_goes_through_a_plan() -> None:
    plan = planned(slos=SLOS)
    assert Plan.from_json(plan.to_json()).slos == plan.slos


def test_a_time_per_token_in_the_wrong_unit_is_noticed() -> None:
    plan = planned(slos={"fast": {"tpot": "30s"}, "slow": {"tpot": "1s"}})
    (note,) = plan.notes
    assert note == "fast: a time per token (tpot) of 30 s limits nothing; did you mean 30 ms?"


def test_without_readers_limits_stay_without_a_note() -> None:
    slos = [Slo(name="fast", ttft=1.0)]
    assert resolved_slos(slos, []) == ResolvedSlos(slos, notes=[])

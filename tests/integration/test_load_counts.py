"""Replies of an endpoint that tells no token counts are counted with the model's tokenizer, after
the run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.integration.load_server import DONE, END, HEAD, Behaviour, chunk, serving, token, usage
from tests.integration.test_load_cli import load, url
from tests.integration.test_load_hostile import answering, point, run

PIECES = ("one two", " three", " four five six")  # six tokens in three events


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """One token per word."""
    words = ["one", "two", "three", "four", "five", "six", "[UNK]"]
    made = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def replying(*more: bytes) -> Behaviour:
    last = len(PIECES) - 1
    events = [token(text, "length" if at == last else None) for at, text in enumerate(PIECES)]
    return answering(HEAD, *[chunk(one) for one in (*events, *more, DONE)], END)


def test_without_counts_the_tokenizer_counts_and_the_row_says_so(tokenizer: str) -> None:
    with serving(replying()) as server:
        result = run(point(server.port, 4, tokens=6, tokenizer=tokenizer, count_text=True))
    rows = result.requests.to_pylist()
    assert {
        (row["output_tokens"], row["output_tokens_counted"], row["token_count_source"])
        for row in rows
    } == {(6, 6, "tokenizer")}
    assert {(row["chunks"], row["itl_kind"]) for row in rows} == {(3, "chunk")}
    assert result.token_events["tokens_per_chunk"].to_pylist() == [None] * 4


def test_the_engines_own_count_is_never_replaced(tokenizer: str) -> None:
    with serving(replying(usage(8, 6))) as server:
        result = run(point(server.port, 2, tokens=6, tokenizer=tokenizer, count_text=True))
    assert set(result.requests["token_count_source"].to_pylist()) == {"usage"}


def test_without_a_tokenizer_events_are_counted_as_before() -> None:
    with serving(replying()) as server:
        result = run(point(server.port, 2, tokens=6, count_text=True))
    rows = result.requests.to_pylist()
    assert {(row["output_tokens"], row["token_count_source"]) for row in rows} == {(3, "chunks")}


def test_load_finds_out_by_itself(tmp_path: Path) -> None:
    model = Path(__file__).resolve().parents[2] / ".demo" / "model" / "tokenizer.json"
    options = (
        "--model",
        "m",
        "--api",
        "chat",
        "--concurrency",
        "1",
        "--requests",
        "2",
        "--input-tokens",
        "4",
    )
    delta = {
        "choices": [
            {"index": 0, "delta": {"content": "one two three four"}, "finish_reason": "stop"}
        ]
    }
    body = answering(
        HEAD, chunk(b"data: " + json.dumps(delta).encode() + b"\n\n"), chunk(DONE), END
    )
    with serving(body) as server:
        done = load(
            url(server.port),
            *options,
            "--output-tokens",
            "9",
            "--tokenizer",
            str(model),
            "--results",
            str(tmp_path),
        )
    assert "the tokenizer counts its replies" in done.stderr, done.stderr
    from orchestrator.report.frames import read

    rows = read(str(tmp_path), "requests")
    assert set(rows["token_count_source"]) == {"tokenizer"}
    expected = len(
        Tokenizer.from_file(str(model)).encode("one two three four", add_special_tokens=False).ids
    )
    assert set(rows["output_tokens"]) == {expected}

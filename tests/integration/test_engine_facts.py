"""What is said beside speed, held against a real vLLM on the CPU: prefix hits are the expected ones,
prompts have the length that was asked for, and accepted drafts tell repeated text from prose.

The model's weights make it continue one cycle of words for ever, and any other token by another,
much longer cycle. So a text that repeats the first cycle is what the model would say itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from orchestrator.load.point import LoadPoint, Target
from orchestrator.results.ids import new_ulid
from orchestrator.results.lazy_rows import Rows
from orchestrator.spec.load import Level, Workload
from orchestrator.sweep.attempt import Attempt, judged
from orchestrator.sweep.endpoint import measure_here
from orchestrator.telemetry.engine_metrics import Sample, read
from orchestrator.workloads.content import TokenizedText, load_tokenizer
from tests.integration.engine_real import CPU, Running, home_of, running, script, settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]
CYCLE = 40  # words that a repeated text says over and over
DRAFTED = 4
# what the tiny model's chat template writes around a message
CHAT_OF_THE_TINY_MODEL = "<|begin|>user\n<|end|>\n<|begin|>assistant\n"


def say_cycles(folder: Path) -> str:
    """Changes the weights of the tiny model in ``folder``: layers add nothing, and the head reads
    off the embedding which token follows. Returns the words of the short cycle.
    """
    tokenizer = load_tokenizer(str(folder))
    words = TokenizedText(tokenizer)._words[:CYCLE]
    short = [tokenizer.encode(word, add_special_tokens=False).ids[0] for word in words]
    tiny = script("make_tiny_model")
    others = [
        token
        for token in range(tiny.VOCABULARY)
        if token not in {*short, *tiny.unprintable(tokenizer)}
    ]
    weights: dict[str, NDArray[np.float32]] = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(weights[name])
    embeddings, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for cycle in (short, others):
        for token, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            head[following, 1:] = 50 * embeddings[token, 1:]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return "".join(words)


def write_tools(folder: Path) -> None:
    """Lets the chat template of the tiny model begin with the definitions of tools, as JSON."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    tools = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    config["chat_template"] = tools + config["chat_template"]
    file.write_text(json.dumps(config))


class Facts:
    """A running engine, and points that are loaded on it."""

    def __init__(self, server: Running, model: Path, cycle: str) -> None:
        self.server = server
        self.model = str(model)
        self.cycle = cycle

    def point(self, requests: int, **changes: Any) -> LoadPoint:
        """A point of one request at a time, with token ids as prompts."""
        content = {"name": "w", "output_tokens": 24, **changes}
        dialect = self.server.engine.dialects(self.server.settings)[
            content.get("api", "completions")
        ]
        target = Target(self.server.base_url, self.server.name, api_key=self.server.key)
        return LoadPoint(
            targets=(target,),
            dialect=dialect.salted(new_ulid()),
            workload=Workload.model_validate(content),
            level=Level(control="concurrency", value=1),
            duration_s=None,
            requests=requests,
            warmup_s=0.0,
            tokenizer=self.model,
            cache_block_tokens=self.server.engine.cache_block_tokens(self.server.settings, CPU),
        )

    def load(self, point: LoadPoint) -> Attempt:
        """An attempt that has the engine's metrics from before and after."""
        before = self._metrics()
        attempt = measure_here(point)
        assert attempt.loaded is not None
        errors = attempt.loaded.requests["error"].drop_null().to_pylist()
        assert not errors, (errors[0], self.server.processes[0].log_tail())
        samples = {0: [before, self._metrics()]}
        return judged(point, replace(attempt.loaded, samples=samples))

    def _metrics(self) -> Sample:
        engine = self.server.engine
        url = f"{self.server.base_url}{engine.metrics_path}"
        sample = read([url], engine.metrics, self.server.key)
        assert sample is not None
        return sample


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    home_of("vllm")
    folder = tmp_path_factory.mktemp("cycles")
    script("make_tiny_model").make(folder)
    write_tools(folder)
    cycle = say_cycles(folder)
    given = settings(
        "vllm",
        enforce_eager=True,
        max_model_len=1024,
        kv_cache_tokens=16384,
        max_num_seqs=8,
        speculative={
            "method": "ngram",
            "num_speculative_tokens": DRAFTED,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        },
    )
    with running(given, tmp_path_factory.mktemp("vllm"), folder) as server:
        server.wait()
        yield Facts(server, folder, cycle)


def rows_of(attempt: Attempt) -> Rows:
    assert attempt.loaded is not None
    rows = attempt.loaded.requests
    assert set(rows["status"].to_pylist()) == {"ok"}
    return rows


def hits(rows: Rows) -> list[tuple[int, int]]:
    """Measured and expected prefix hits of each request; an engine does not report 0."""
    measured = rows["cached_tokens"].fill_null(0).to_pylist()
    return list(zip(measured, rows["expected_cached_tokens"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    "keys",
    [
        {"input_tokens": 60, "shared_prefix_tokens": 300, "shared_prefix_count": 2},
        {"kind": "conversations", "turns": 4, "input_tokens": 150, "shared_prefix_tokens": 200},
        {
            "input_tokens": 50,
            "documents": {
                "count": 2,
                "tokens": {"uniform": {"min": 120, "max": 160}},
                "pool": 4,
            },
        },
    ],
)
def test_prefix_hits_are_the_expected_ones(facts: Facts, keys: dict[str, Any]) -> None:
    attempt = facts.load(facts.point(16, **keys))
    of_requests = hits(rows_of(attempt))
    assert sum(expected for _, expected in of_requests) > 0
    block = facts.server.engine.cache_block_tokens(facts.server.settings, CPU)
    assert block is not None
    assert all(abs(measured - expected) <= block for measured, expected in of_requests)
    evidence = attempt.verdict.evidence
    assert evidence["cached_share"] == pytest.approx(evidence["expected_cached_share"], abs=0.02)
    assert not any("sent before" in reason for reason in attempt.verdict.reasons)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_prefix_hits_of_texts_are_the_expected_ones(facts: Facts, api: str, tmp_path: Path) -> None:
    instructions = ["Answer in one short line. " * 12, "Translate into plain English: " * 10]
    entries = []
    for number in range(8):
        text = f"{instructions[number % 2]} {number} apples and {7 * number} pears."
        entries.append({"messages": [{"role": "user", "content": text}]})
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, entries)))
    attempt = facts.load(facts.point(12, kind="file", api=api, prompts=str(file)))
    of_requests = hits(rows_of(attempt))
    assert None not in [expected for _, expected in of_requests]
    assert sum(expected for _, expected in of_requests) > 0
    block = facts.server.engine.cache_block_tokens(facts.server.settings, CPU)
    assert block is not None
    assert all(abs(measured - expected) <= block for measured, expected in of_requests)
    assert not any("expectation" in reason for reason in attempt.verdict.reasons)


def test_prefix_hits_of_slices_of_a_text_are_the_expected_ones(
    facts: Facts, tmp_path: Path
) -> None:
    """A text so short that many slices begin at the same place."""
    short = tmp_path / "short.txt"
    short.write_text(Path(prose_in(tmp_path)).read_text()[:100])
    keys = {"content": {"text": str(short)}, "input_tokens": {"uniform": {"min": 40, "max": 200}}}
    as_ids = facts.load(facts.point(40, **keys))
    check_hits(facts, as_ids)
    check_hits(facts, facts.load(as_text(facts.point(40, **keys))))
    check_hits(facts, facts.load(facts.point(40, api="chat", **keys)))
    talk = facts.point(12, kind="conversations", turns=3, shared_prefix_tokens=50, **keys)
    check_hits(facts, facts.load(talk))


def check_hits(facts: Facts, attempt: Attempt) -> None:
    """Some hits are expected, and of each request as many are measured, up to a block."""
    of_requests = hits(rows_of(attempt))
    assert None not in [expected for _, expected in of_requests], attempt.verdict.reasons
    assert sum(expected for _, expected in of_requests) > 0
    block = facts.server.engine.cache_block_tokens(facts.server.settings, CPU)
    assert block is not None
    far_off = [pair for pair in of_requests if abs(pair[0] - pair[1]) > block]
    assert not far_off, of_requests
    assert not any("expect" in reason for reason in attempt.verdict.reasons if "not" in reason)


def test_prefix_hits_of_a_workloads_tools_are_the_expected_ones(facts: Facts) -> None:
    town = {"type": "object", "properties": {"town": {"type": "string"}}}
    function = {"name": "weather", "description": "Of a town. " * 30, "parameters": town}
    keys = {"tools": [{"type": "function", "function": function}], "tool_choice": "none"}
    attempt = facts.load(facts.point(10, api="chat", input_tokens=60, **keys))
    check_hits(facts, attempt)
    assert attempt.verdict.evidence["expected_cached_share"] > 0.4


def test_prefix_hits_of_live_answers_to_a_file_are_the_expected_ones(
    facts: Facts, tmp_path: Path
) -> None:
    """Sessions come twice: a model that is not random says the same again."""
    entries = []
    for number in range(3):
        said = [f"Count {number} pears. {facts.cycle}", f"And {number} apples?", "All of it?"]
        messages = [{"role": "system", "content": "Answer in one short line. " * 12}]
        for text in said:
            messages += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": "Yes."},
            ]
        entries.append({"messages": messages})
    file = tmp_path / "sessions.jsonl"
    file.write_text("\n".join(map(json.dumps, entries)))
    keys = {"kind": "file", "use": "sessions", "prompts": str(file), "output_tokens": 70}
    check_hits(facts, facts.load(facts.point(18, api="chat", **keys)))


def test_an_endpoint_says_itself_what_it_accepted_and_what_it_had_cached(
    facts: Facts, tmp_path: Path
) -> None:
    """Nobody here watches its engine: the figures come from the /metrics that it serves."""
    repeated = tmp_path / "repeated.txt"
    repeated.write_text(facts.cycle * 40)
    point = facts.point(8, content={"text": str(repeated)}, input_tokens=200, output_tokens=64)
    alone = measure_here(point)
    assert alone.verdict.evidence["spec_accepted_share"] > 0.9
    assert alone.verdict.evidence["spec_accepted_length"] > 1 + 0.9 * DRAFTED
    assert alone.loaded is not None
    first, *_, last = alone.loaded.samples[0]
    counted = [sample.values["generation_tokens_total"] for sample in (first, last)]
    assert counted[1] - counted[0] == 8 * 64

    is_over = threading.Event()

    def send_from_elsewhere() -> None:
        body = {"prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True}
        while not is_over.is_set():
            facts.server.stream("/v1/completions", body)

    other = threading.Thread(target=send_from_elsewhere)
    other.start()
    try:
        shared = measure_here(point)
    finally:
        is_over.set()
        other.join()
    assert "spec_accepted_share" not in shared.verdict.evidence
    assert any("other clients used the endpoint" in reason for reason in shared.verdict.reasons)


def counted_minus_asked(attempt: Attempt) -> list[int]:
    """Of each prompt: tokens that the engine counted, minus those that were asked for."""
    rows = rows_of(attempt)
    counted = rows["input_tokens"].to_pylist()
    asked = rows["input_tokens_asked"].to_pylist()
    return [count - tokens for count, tokens in zip(counted, asked, strict=True)]


def as_text(point: LoadPoint) -> LoadPoint:
    """The point with prompts as text, though the engine takes token ids."""
    return replace(point, dialect=replace(point.dialect, prompt_token_ids=False), seed=7)


def prose_in(folder: Path) -> str:
    """A file of sentences in ``folder``."""
    file = folder / "prose.txt"
    sentences = script("make_tiny_model").text(np.random.default_rng(3), sentences=400)
    file.write_text(" ".join(sentences))
    return str(file)


def test_prompts_have_the_length_that_was_asked_for(facts: Facts, tmp_path: Path) -> None:
    keys = {"input_tokens": {"uniform": {"min": 1, "max": 400}}, "output_tokens": 1}
    slices = {"content": {"text": prose_in(tmp_path)}}
    ids = counted_minus_asked(facts.load(facts.point(250, **keys)))
    words = counted_minus_asked(facts.load(as_text(facts.point(250, **keys))))
    id_slices = counted_minus_asked(facts.load(facts.point(50, **keys, **slices)))
    text_slices = counted_minus_asked(facts.load(as_text(facts.point(50, **keys, **slices))))
    assert set(ids) == set(words) == set(id_slices) == set(text_slices) == {0}


def test_a_chat_template_adds_the_same_to_every_prompt(facts: Facts, tmp_path: Path) -> None:
    keys = {"api": "chat", "input_tokens": {"uniform": {"min": 1, "max": 400}}, "output_tokens": 1}
    slices = {"content": {"text": prose_in(tmp_path)}}
    words = counted_minus_asked(facts.load(facts.point(50, **keys)))
    text_slices = counted_minus_asked(facts.load(facts.point(50, **keys, **slices)))
    template = load_tokenizer(facts.model).encode(CHAT_OF_THE_TINY_MODEL)
    assert set(words) == set(text_slices) == {len(template.ids)}


def test_repeated_text_accepts_more_drafts_than_prose(facts: Facts, tmp_path: Path) -> None:
    repeated = tmp_path / "repeated.txt"
    repeated.write_text(facts.cycle * 40)
    keys = {"input_tokens": 200, "output_tokens": 64}
    of_prose = facts.load(facts.point(12, content={"text": prose_in(tmp_path)}, **keys)).verdict
    of_repeated = facts.load(facts.point(12, content={"text": str(repeated)}, **keys)).verdict
    assert of_repeated.evidence["spec_accepted_share"] > 0.9
    assert of_repeated.evidence["spec_accepted_length"] > 1 + 0.9 * DRAFTED
    assert of_prose.evidence.get("spec_accepted_share", 0.0) < 0.3
    assert not any("real text" in reason for reason in of_repeated.reasons)

"""Real servers that see: the pictures of our requests become the tokens that their model's formula
says, and change what they answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.spec.load import Level, Workload
from orchestrator.workloads.images import image_part, png
from tests.integration.engine_real import CORES, CPU, Running, running, settings, vision_model

pytestmark = pytest.mark.timeout(400)
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {},
    "vllm": {
        "enforce_eager": True,
        "max_model_len": 1024,
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    },
}
# of 24 tokens, in each server's own fields
ANSWER_LENGTH = {
    "transformers": {"generation_config": json.dumps({"max_new_tokens": 24, "min_new_tokens": 24})},
    "vllm": {"max_tokens": 24, "min_tokens": 24, "temperature": 0},
}
IMAGE_TOKENS = 16  # tests/integration/tiny_vision_model.py
REQUESTS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES],
)
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp(request.param)
    engine = settings(request.param, **ENGINES[request.param])
    with running(engine, folder, model, cores=(CORES,)) as found:
        found.ready = found.wait()
        yield found


def rows(
    server: Running, tokenizer: Path | None = None, block_tokens: int = 1, **options: Any
) -> list[dict[str, Any]]:
    """The rows of a load of chats with these options."""
    fields = {"name": "w", "api": "chat", "input_tokens": 20, "output_tokens": 4}
    point = LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=server.engine.dialects(server.settings)["chat"],
        workload=Workload.model_validate({**fields, **options}),
        level=Level(control="concurrency", value=2),
        duration_s=None,
        requests=REQUESTS,
        seed=5,
        tokenizer=None if tokenizer is None else str(tokenizer),
        cache_block_tokens=block_tokens,
    )
    client = LoadClient()
    client.prepare(point)
    answered: list[dict[str, Any]] = client.run(time.monotonic_ns()).requests.to_pylist()
    assert {row["status"] for row in answered} == {"ok"}, answered
    return answered


def test_each_picture_has_as_many_tokens_as_the_models_formula_says(server: Running) -> None:
    images = {"sizes": ["64x40", "32x32"], "count": {"uniform": {"min": 1, "max": 3}}}
    plain, with_images = rows(server), rows(server, images=images)
    assert len({row["images"] for row in with_images}) > 1
    for row, other in zip(with_images, plain, strict=True):  # the same texts: the seed is the same
        assert row["input_tokens"] - other["input_tokens"] == IMAGE_TOKENS * row["images"]
        assert row["input_tokens_asked"] == 0
        assert other["images"] is None


def test_prefix_hits_of_pictures_are_the_expected_ones(server: Running, model: Path) -> None:
    """Of three different pictures, some come first in several prompts."""
    block = server.engine.cache_block_tokens(server.settings, CPU)
    if block is None:
        pytest.skip(f"{server.engine.title} keeps no prefixes")
    images = {"sizes": ["64x40", "640x640"], "count": 4, "distinct": 3}
    options = {"images": images, "shared_prefix_tokens": 70}
    answered = rows(server, model, block, **options)
    of_requests = [(row["cached_tokens"] or 0, row["expected_cached_tokens"]) for row in answered]
    assert all(abs(measured - expected) <= block for measured, expected in of_requests)
    # those of transformers are longer than these prompts: it finds nothing, as expected
    whole_blocks = (64 + 2 * IMAGE_TOKENS) // block * block
    assert max(expected for _, expected in of_requests) >= whole_blocks


def test_another_picture_has_another_answer(server: Running) -> None:
    def answer(*shades: int) -> str:
        pictures = [
            json.loads(image_part(png(np.full((32, 32, 3), shade, np.uint8)))) for shade in shades
        ]
        content = [*pictures, {"type": "text", "text": "Kalomi ne ru?"}]
        body = {
            "model": server.name,
            "messages": [{"role": "user", "content": content}],
            **ANSWER_LENGTH[server.engine.name],
        }
        status, text = server.ask("POST", "/v1/chat/completions", body)
        assert status == 200, text
        return str(json.loads(text)["choices"][0]["message"]["content"])

    assert answer(0) == answer(0)
    assert len({answer(), answer(0), answer(255), answer(0, 255)}) == 4

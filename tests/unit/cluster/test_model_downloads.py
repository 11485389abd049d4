"""What a node's hub cache holds, also while the hub's own library fills it, from a hub of our own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import hf_hub_download

from orchestrator.cluster.model_downloads import (
    Absence,
    Wanted,
    absent,
    downloaded_bytes,
    wanted_by,
)
from orchestrator.engines.command import Node
from orchestrator.spec.settings import EngineSettings
from tests.harness import wait_for

HALF = b"w" * 12_000_000  # the library writes 10 MiB at a time


class Hub(http.server.BaseHTTPRequestHandler):
    """Has one file, of which it sends the second half once it may."""

    may_go_on = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in (
            ("X-Repo-Commit", "c" * 40),
            ("ETag", '"e"'),
            ("Content-Length", str(2 * len(HALF))),
        ):
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(HALF)
        self.wfile.flush()
        self.may_go_on.wait(60)
        self.wfile.write(HALF)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        Hub.may_go_on.set()
        server.shutdown()


def test_what_a_download_has_written_so_far_counts(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    settings = EngineSettings(
        engine="vllm", model="acme/tiny", env={"HF_HUB_CACHE": f"{tmp_path}/{{host}}"}
    )
    node = Node(host="h1")
    assert downloaded_bytes(settings, node) == 0
    given = {"cache_dir": tmp_path / "h1", "endpoint": hub}
    thread = threading.Thread(
        target=hf_hub_download, args=("acme/tiny", "model.safetensors"), kwargs=given
    )
    thread.start()
    half = wait_for(lambda: downloaded_bytes(settings, node), 20, "some of it is there")
    assert thread.is_alive()
    assert half <= len(HALF)
    Hub.may_go_on.set()
    thread.join(20)
    assert downloaded_bytes(settings, node) >= 2 * len(HALF)
    assert downloaded_bytes(
        settings.model_copy(update={"model": "acme/tiny:Q4_K_M"}), node
    ) >= 2 * len(HALF)
    assert downloaded_bytes(settings.model_copy(update={"model": str(tmp_path)}), node) == 0


INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
ONE = {INDEX: json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))})}
MODEL = Wanted("acme/tiny", "weights")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache of a node that may not ask the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def stored(
    cache: Path, files: dict[str, str], revision: str = "main", commit: str = "c" * 40
) -> None:
    """Files of a revision, as the hub's library keeps them: links to blobs."""
    repository = cache / "models--acme--tiny"
    for name, content in files.items():
        blob, link = repository / "blobs" / f"sha-{name}", repository / "snapshots" / commit / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(content)
        link.symlink_to(blob)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ({"config.json": "{}"}, False),  # what a plan takes
        ({"config.json": "{}"} | ONE, False),
        ({"config.json": "{}"} | ONE | {SHARDS[0]: "w"}, False),
        ({"config.json": "{}"} | ONE | dict.fromkeys(SHARDS, "w"), True),
        ({"config.json": "{}", SHARDS[0]: "w"}, False),  # its engine takes the index last
        ({"config.json": "{}"} | dict.fromkeys(SHARDS, "w"), True),
        ({"config.json": "{}", "model.safetensors": "w"}, True),
        ({"model.safetensors": "w"}, False),
        ({"config.json": "{}", "pytorch_model.bin": "w"}, True),
        ({"config.json": "{}", "training_args.bin": "w"}, False),
        ({"tiny-Q4_K_M.gguf": "w"}, True),
        # Mistral's, all that its engine takes
        ({"config.json": "{}", "consolidated.safetensors": "w"} | ONE, True),
        (
            {
                "config.json": "{}",
                "model.safetensors": "w",
                "pytorch_model-00001-of-00002.bin": "w",
            },
            True,
        ),
        ({"config.json": "{}", INDEX: "[1]"} | dict.fromkeys(SHARDS, "w"), False),
    ],
)
def test_a_model_is_in_the_cache_if_all_of_its_weights_are(
    cache: Path, files: dict[str, str], there: bool
) -> None:
    assert "HF_HUB_OFFLINE" in absent(MODEL, cache).problem
    stored(cache, files)
    absence = absent(MODEL, cache)
    assert ("HF_HUB_OFFLINE" not in absence.problem) is there
    assert absence.download_bytes == 0


def test_weights_without_blob_or_of_another_revision_do_not_count(cache: Path) -> None:
    stored(cache, {"config.json": "{}", "model.safetensors": "w"})
    assert absent(MODEL, cache) == Absence()
    assert absent(Wanted("acme/tiny", "weights", "c" * 40), cache) == Absence()
    assert "HF_HUB_OFFLINE" in absent(Wanted("acme/tiny", "weights", "v2"), cache).problem
    (cache / "models--acme--tiny" / "blobs" / "sha-model.safetensors").unlink()
    assert "HF_HUB_OFFLINE" in absent(MODEL, cache).problem


def test_a_tokenizer_and_made_up_weights_need_only_descriptions(cache: Path) -> None:
    tokenizer, config = Wanted("acme/tiny", "tokenizer"), Wanted("acme/tiny", "config")
    stored(cache, {"config.json": "{}"})
    assert absent(config, cache) == Absence()
    assert "HF_HUB_OFFLINE" in absent(tokenizer, cache).problem
    stored(cache, {"tokenizer.json": "{}"})
    assert absent(tokenizer, cache) == Absence()


def test_what_the_cache_holds_of_the_weights_needs_no_room(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    stored(cache, {"config.json": "{}"} | ONE | {SHARDS[0]: "w"})
    asked = list[str]()

    def model_info(_: object, name: str, **__: object) -> Any:
        asked.append(name)
        files = {"config.json": None, "old.bin": 900, SHARDS[0]: 70, SHARDS[1]: 60}
        lfs = {
            name: SimpleNamespace(sha256=f"sha-{name}") if size else None
            for name, size in files.items()
        }
        siblings = [
            SimpleNamespace(rfilename=name, size=size, lfs=lfs[name])
            for name, size in files.items()
        ]
        return SimpleNamespace(siblings=siblings, gated=False)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    assert absent(MODEL, cache) == Absence(download_bytes=60)
    assert absent(Wanted("acme/tiny", "tokenizer"), cache) == Absence()
    assert absent(Wanted("acme/other:Q4_K_M", "weights"), cache) == Absence(download_bytes=130)
    assert asked == ["acme/tiny", "acme/tiny", "acme/other"], (
        "llama.cpp's quantization is no part of the name"
    )


def test_an_engine_wants_its_model_a_draft_and_a_tokenizer() -> None:
    def of(**given: Any) -> list[Wanted]:
        return wanted_by(EngineSettings(**{"engine": "vllm", "model": "acme/tiny"} | given))

    draft = {"method": "eagle3", "num_speculative_tokens": 3, "model": "acme/draft"}
    assert of(revision="v2", tokenizer="acme/words", speculative=draft) == [
        Wanted("acme/tiny", "weights", "v2"),
        Wanted("acme/draft", "weights"),
        Wanted("acme/words", "tokenizer"),
    ]
    assert of(tokenizer="acme/tiny") == [MODEL]
    assert of(load_format="dummy") == [Wanted("acme/tiny", "config")]
    assert of(engine="llama_cpp", tokenizer="acme/words") == [MODEL], (
        "clients take it if it is there"
    )
    assert of(engine="emulator", tokenizer="acme/words") == []
    assert of(engine="emulator", model="/models/tiny") == [Wanted("/models/tiny", "weights")]
    assert of(engine="vllm_router") == []

"""What a node's hub cache holds while the hub's own library fills it, from a hub of our own."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from orchestrator.cluster.node_checks import downloaded_bytes
from orchestrator.spec.settings import EngineSettings
from tests.harness import wait_for

HALF = b"w" * 12_000_000  # the library writes 10 MiB at a time


class Hub(http.server.BaseHTTPRequestHandler):
    """Has one file, of which it sends the second half once it may."""

    may_go_on = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in (("X-Repo-Commit", "c" * 40), ("ETag", '"e"'), ("Content-Length", str(2 * len(HALF)))):
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


def test_what_a_download_has_written_so_far_counts(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    settings = EngineSettings(engine="vllm", model="acme/tiny", env={"HF_HUB_CACHE": str(tmp_path)})
    assert downloaded_bytes(settings) == 0
    given = {"cache_dir": tmp_path, "endpoint": hub}
    thread = threading.Thread(target=hf_hub_download, args=("acme/tiny", "model.safetensors"), kwargs=given)
    thread.start()
    half = wait_for(lambda: downloaded_bytes(settings), 20, "some of it is there")
    assert thread.is_alive()
    assert half <= len(HALF)
    Hub.may_go_on.set()
    thread.join(20)
    assert downloaded_bytes(settings) >= 2 * len(HALF)
    assert downloaded_bytes(settings.model_copy(update={"model": str(tmp_path)})) == 0

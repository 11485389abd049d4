"""Datasets of the hub, from a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.load import Workload
from orchestrator.workloads.content import Words
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.hub import HubDataset, local_file

COMMIT, OLD_COMMIT, CONVERTED_COMMIT = "a" * 40, "b" * 40, "c" * 40


def parquet_of(question: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"question": [question], "limit": [7]}), sink)
    return sink.getvalue()


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that downloads use. ``FILES``: by repository and commit."""

    FILES = {
        "me/one": {
            COMMIT: {"README.md": b"", "data/train-0.parquet": parquet_of("new")},
            OLD_COMMIT: {"data/train-0.parquet": parquet_of("old")},
        },
        "me/many": {
            COMMIT: {f"data/train-{n}.parquet": parquet_of(str(n)) for n in range(3)}
            | {"data/test-0.parquet": parquet_of("test")}
        },
        "me/script": {
            COMMIT: {"script.py": b"raise SystemExit"},
            CONVERTED_COMMIT: {"default/train/0000.parquet": parquet_of("converted")},
        },
    }
    REVISIONS = {"main": COMMIT, "refs/convert/parquet": CONVERTED_COMMIT}

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.replace("%2F", "/").partition("?")[0].strip("/")
        for name, commits in self.FILES.items():
            info, files = f"api/datasets/{name}/revision/", f"datasets/{name}/resolve/"
            if path.startswith(info):
                revision = path.removeprefix(info)
                commit = self.REVISIONS.get(revision, revision)
                if commit in commits:
                    siblings = [{"rfilename": file} for file in commits[commit]]
                    content = {"id": name, "sha": commit, "siblings": siblings}
                    return self._answer(json.dumps(content).encode(), commit)
            if path.startswith(files):
                commit, _, file = path.removeprefix(files).partition("/")
                if file in commits.get(commit, {}):
                    return self._answer(commits[commit][file], commit)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def _answer(self, content: bytes, commit: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub on this machine, and an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    api = partial(huggingface_hub.HfApi, endpoint=url)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield url
    server.shutdown()
    server.server_close()


def question(path: str) -> str:
    text: str = pq.read_table(path).column("question").to_pylist()[0]
    return text


def test_the_only_file_of_a_split_is_taken_at_its_commit(hub: str) -> None:
    found = local_file(HubDataset(id="me/one"))
    assert found.dataset == HubDataset(id="me/one", revision=COMMIT, file="data/train-0.parquet")
    assert question(found.path) == "new"
    old = local_file(HubDataset(id="me/one", revision=OLD_COMMIT))
    assert question(old.path) == "old"


def test_one_of_several_files_is_named(hub: str) -> None:
    with pytest.raises(ProblemsError, match=r"has 3 files of the split 'train'.*train-0\.parquet"):
        local_file(HubDataset(id="me/many"))
    named = local_file(HubDataset(id="me/many", file="data/train-1.parquet"))
    assert question(named.path) == "1"
    assert question(local_file(HubDataset(id="me/many", split="test")).path) == "test"
    with pytest.raises(ProblemsError, match="has no file 'data/x'; it has data/train-0"):
        local_file(HubDataset(id="me/many", file="data/x"))


def test_a_dataset_of_code_is_taken_as_the_hub_converted_it(hub: str) -> None:
    found = local_file(HubDataset(id="me/script"))
    assert (found.dataset.revision, question(found.path)) == (CONVERTED_COMMIT, "converted")


@pytest.mark.parametrize("name", ["me/none", "not a name", "../me"])
def test_what_the_hub_does_not_have_is_a_problem(hub: str, name: str) -> None:
    with pytest.raises(ProblemsError, match=f"dataset '{name}' .main. cannot be had"):
        local_file(HubDataset(id=name))


def test_a_plan_keeps_commit_and_content(hub: str, tmp_path: Path) -> None:
    keys = {
        "name": "w",
        "kind": "file",
        "dataset": {"id": "me/one"},
        "columns": {"prompt": "question", "output_tokens": "limit"},
    }
    planned = Workload.model_validate(keys).resolved(str)
    assert isinstance(planned, FileWorkload)
    assert planned.dataset is not None and planned.dataset.revision == COMMIT
    requests = planned.requests(Words(), 0)
    assert requests.prompt(0, 0, "measure", ()).messages[0].text == "new"
    assert requests.output_tokens(0, 0) == 7
    again = FileWorkload.model_validate_json(planned.model_dump_json())
    assert again == planned
    (tmp_path / "copy.parquet").write_bytes(parquet_of("new"))
    local = {**keys, "prompts": str(tmp_path / "copy.parquet")}
    del local["dataset"]
    assert Workload.model_validate(local).resolved(str).identity() == planned.identity()
    # another node, whose cache lies elsewhere
    elsewhere = again.model_copy(update={"prompts": "/nowhere/train.parquet"})
    assert elsewhere.requests(Words(), 0).turns(0) == 1

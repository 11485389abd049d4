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
from orchestrator.workloads.hub import HubDataset, local_files

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
            COMMIT: {f"data/train-{n}.parquet": parquet_of(str(n)) for n in (2, 0, 1)}
            | {"data/test-0.parquet": parquet_of("test")}
        },
        "me/configs": {
            COMMIT: {
                "plain/train.parquet": parquet_of("plain"),
                "files/b.parquet": parquet_of("b"),
                "files/a.parquet": parquet_of("a"),
                "files/deep/er/c.parquet": parquet_of("nested"),
            }
        },
        "me/script": {
            COMMIT: {"script.py": b"raise SystemExit"},
            CONVERTED_COMMIT: {"default/train/0000.parquet": parquet_of("converted")},
        },
    }
    CARDS = {
        "me/configs": {
            "configs": [
                {"config_name": "plain"},
                {
                    "config_name": "listed",
                    "default": True,
                    "data_files": [
                        {"split": "train", "path": ["files/*.parquet"]},
                        {"split": "test", "path": "files/**/c.parquet"},
                    ],
                },
            ]
        }
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
                    siblings = [
                        {"rfilename": file, "size": len(data)}
                        for file, data in commits[commit].items()
                    ]
                    card = self.CARDS.get(name)
                    content = {"id": name, "sha": commit, "siblings": siblings, "cardData": card}
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
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    api = partial(huggingface_hub.HfApi, endpoint=url)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield url
    server.shutdown()
    server.server_close()


def questions(dataset: HubDataset) -> list[str]:
    """The questions of all files of a dataset, in their order."""
    tables = [pq.read_table(path) for path in local_files(dataset).paths]
    return [text for table in tables for text in table.column("question").to_pylist()]


def test_the_only_file_of_a_split_is_taken_at_its_commit(hub: str) -> None:
    newest = HubDataset(id="me/one")
    pinned = HubDataset(id="me/one", revision=COMMIT, file="data/train-0.parquet")
    assert local_files(newest).dataset == pinned
    assert questions(newest) == ["new"]
    assert questions(HubDataset(id="me/one", revision=OLD_COMMIT)) == ["old"]


def test_all_shards_of_a_split_are_taken_in_the_order_of_their_names(hub: str) -> None:
    many = HubDataset(id="me/many")
    files = ("data/train-0.parquet", "data/train-1.parquet", "data/train-2.parquet")
    assert local_files(many).dataset == HubDataset(id="me/many", revision=COMMIT, files=files)
    assert questions(many) == ["0", "1", "2"]
    assert questions(HubDataset(id="me/many", split="test")) == ["test"]


def test_files_can_be_named(hub: str) -> None:
    assert questions(HubDataset(id="me/many", file="data/train-1.parquet")) == ["1"]
    two = ["data/train-2.parquet", "data/train-0.parquet"]
    assert questions(HubDataset(id="me/many", files=two)) == ["2", "0"]
    with pytest.raises(ProblemsError, match="has no file 'data/x'; it has data/train-2"):
        local_files(HubDataset(id="me/many", file="data/x"))
    with pytest.raises(ValueError, match="'file' and 'files' exclude each other"):
        HubDataset(id="me/many", file="data/train-1.parquet", files=two)


@pytest.mark.parametrize("names", [("en/train.parquet", "de/train.parquet"), ("train-a.csv",) * 2])
def test_files_that_are_no_shards_are_not_read_as_one_table(
    hub: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    files = {names[0]: parquet_of("one"), f"{names[1]}.gz": parquet_of("other")}
    monkeypatch.setitem(Hub.FILES, "me/other", {COMMIT: files})
    with pytest.raises(ProblemsError, match=r"2 files of the split 'train' that are not shards"):
        local_files(HubDataset(id="me/other"))


def test_a_split_that_is_larger_than_what_is_read_is_not_downloaded(
    hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workloads.hub.MOST_FILE_BYTES", 3 * len(parquet_of("0")) - 1)
    with pytest.raises(ProblemsError, match="GiB in 3 files of the split 'train'"):
        local_files(HubDataset(id="me/many"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"config": "plain"}, ["plain"]),  # by its folder
        ({"config": "listed"}, ["a", "b"]),  # by the card
        ({"config": "listed", "split": "test"}, ["nested"]),
        ({}, ["a", "b"]),  # the card's default
    ],
)
def test_a_configuration_has_files_of_its_own(
    hub: str, keys: dict[str, str], expected: list[str]
) -> None:
    assert questions(HubDataset(id="me/configs", **keys)) == expected


def test_the_only_configuration_of_a_card_need_not_be_named(
    hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"data/{name}.parquet": parquet_of(name) for name in ("second", "first", "unused")}
    data_files = [{"split": "train", "path": ["data/second.parquet", "data/f*.parquet"]}]
    card = {"configs": [{"config_name": "only", "data_files": data_files}]}
    monkeypatch.setitem(Hub.FILES, "me/only", {COMMIT: files})
    monkeypatch.setitem(Hub.CARDS, "me/only", card)
    assert questions(HubDataset(id="me/only")) == ["first", "second"]


def test_a_plan_from_before_there_were_several_files_is_read(hub: str) -> None:
    old = {"id": "me/one", "revision": OLD_COMMIT, "split": "train", "file": "data/train-0.parquet"}
    dataset = HubDataset.model_validate(old)
    assert local_files(dataset).dataset == dataset
    assert questions(dataset) == ["old"]


def test_a_configuration_without_the_split_is_a_problem(hub: str) -> None:
    with pytest.raises(ProblemsError, match="'train' of the configuration 'none' that can be read"):
        local_files(HubDataset(id="me/configs", config="none", revision=COMMIT))


def test_a_dataset_of_code_is_taken_as_the_hub_converted_it(hub: str) -> None:
    script = HubDataset(id="me/script")
    assert local_files(script).dataset.revision == CONVERTED_COMMIT
    assert questions(script) == ["converted"]
    assert questions(HubDataset(id="me/script", config="default")) == ["converted"]


@pytest.mark.parametrize("name", ["me/none", "not a name", "../me"])
def test_what_the_hub_does_not_have_is_a_problem(hub: str, name: str) -> None:
    with pytest.raises(ProblemsError, match=f"dataset '{name}' .main. cannot be had"):
        local_files(HubDataset(id=name))


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


def test_a_plan_of_shards_is_read_here_and_elsewhere(
    hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"prompt": "question", "output_tokens": "limit"}
    keys = {"name": "w", "kind": "file", "dataset": {"id": "me/many"}, "columns": columns}
    planned = Workload.model_validate(keys).resolved(str)
    assert isinstance(planned, FileWorkload)
    read = FileWorkload.model_validate_json(planned.model_dump_json())
    elsewhere = read.model_copy(update={"prompts": "/nowhere/data/train-0.parquet"})
    for workload in (read, elsewhere):
        requests = workload.requests(Words(), 0)
        texts = [requests.prompt(n, 0, "measure", ()).messages[0].text for n in range(4)]
        assert texts == ["0", "1", "2", "0"]
    assert (read.is_here, elsewhere.is_here) == (True, False)

    def refuse(dataset: object) -> None:
        raise AssertionError(f"{dataset} was asked for")

    monkeypatch.setattr("orchestrator.workloads.file.local_files", refuse)
    assert read.summary().prompts == 3
    last = Path(read.files[2])
    last.unlink()  # a link into the cache
    last.write_bytes(parquet_of("another"))
    with pytest.raises(ProblemsError, match="is not the file that was planned"):
        read.requests(Words(), 0)

"""Endpoints that experiment files name: what ``plan``, ``doctor`` and ``run`` say of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.in_this_process import Completed, run_here
from tests.integration.gateway import Gateway
from tests.integration.load_server import serving

FILE = """
version: 1
name: x
model: MODEL
deployments: {engine: endpoint, url: "URL"MORE}
workloads: [{name: w, input_tokens: 8, output_tokens: 4, api: API}]
load: {levels: {concurrency: [1]}, requests: 4}
"""
ALL_ANSWERED = {"scheduled": 4, "ok": 4, "failed": 0}
NOBODY = "http://127.0.0.1:9"
ANSWER_LIMIT_S = 40.0


def command(name: str, *args: str, **env: str) -> Completed:
    """Runs a command of the program at the width of a usual terminal."""
    return run_here(name, *args, COLUMNS="80", **env)


def file_of(folder: Path, url: str, api: str = "completions", more: str = "") -> str:
    text = FILE.replace("URL", url).replace("API", api).replace("MORE", more)
    path = folder / "x.yaml"
    path.write_text(text.replace("MODEL", "m1"))
    return str(path)


def findings(path: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    done = command("doctor", "--experiment", path, "--format", "json", **env)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["findings"]
    return done.returncode, [one for one in found if one["check"] == "endpoint"]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_doctor_has_nothing_to_say_of_an_endpoint_that_answers(tmp_path: Path, api: str) -> None:
    with serving(Gateway()) as server:
        _, found = findings(file_of(tmp_path, f"http://127.0.0.1:{server.port}", api))
    assert found == []


def test_doctor_says_of_an_endpoint_that_nobody_answers_there(tmp_path: Path) -> None:
    began_s = time.monotonic()
    status, (found,) = findings(file_of(tmp_path, NOBODY))
    assert (status, found["level"]) == (2, "fail")
    assert "no server answers at http://127.0.0.1:9" in found["what"]
    assert time.monotonic() - began_s < ANSWER_LIMIT_S


def test_doctor_tells_a_refused_key_from_a_missing_one(tmp_path: Path) -> None:
    with serving(Gateway(key="sk-the-right-one", list_status=401)) as server:
        url = f"http://127.0.0.1:{server.port}"
        status, (none,) = findings(file_of(tmp_path, url))
        keyed = file_of(tmp_path, url, more=", api_key_env: MYK")
        _, (unset,) = findings(keyed, MYK="")
        _, (wrong,) = findings(keyed, MYK="sk-wrong-key")
        _, right = findings(keyed, MYK="sk-the-right-one")
    assert status == 2
    assert "name its variable with api_key_env" in none["what"]
    assert "MYK (api_key_env) is not set" in unset["what"]
    assert "the key in MYK was refused (HTTP 401)" in wrong["what"]
    assert right == []


def test_doctor_names_the_models_of_an_endpoint_that_has_another(tmp_path: Path) -> None:
    with serving(Gateway(models=("m2",), takes=("m2",))) as server:
        _, (found,) = findings(file_of(tmp_path, f"http://127.0.0.1:{server.port}"))
    assert "it lists m2, not 'm1'" in found["what"]
    assert "served_model_name" in found["do"]


LOAD = ["--concurrency", "1", "--requests", "1", "--input-tokens", "8", "--output-tokens", "4"]
UNKNOWN_HOST = "http://no-such-host.invalid:8000"
S3, GS = "s3://no-such-bucket-of-anybody/x", "gs://no-such-bucket-of-anybody/x"


def told_in_time(name: str, *args: str) -> str:
    """The one sentence of a command that cannot do what it is asked."""
    began_s = time.monotonic()
    # in a process of its own: the libraries of storage keep what they found out
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", name, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"COLUMNS": "80", "AWS_EC2_METADATA_DISABLED": "true"},
        check=False,
    )
    assert time.monotonic() - began_s < ANSWER_LIMIT_S
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    ("name", "storage"), [("run", S3), ("load", GS), ("doctor", S3), ("results", GS)]
)
def test_a_storage_that_does_not_answer_is_told_in_time(
    tmp_path: Path, name: str, storage: str
) -> None:
    options = {
        "run": [file_of(tmp_path, NOBODY), "--results", storage, "--address", "local"],
        "load": [NOBODY, *LOAD, "--results", storage],
        "doctor": ["--results", storage],
        "results": [storage],
    }
    assert storage.partition("/x")[0] in told_in_time(name, *options[name])


def test_a_host_that_has_no_address_is_told_in_time_by_load() -> None:
    began_s = time.monotonic()
    done = command("load", UNKNOWN_HOST, *LOAD)
    assert time.monotonic() - began_s < ANSWER_LIMIT_S
    assert done.returncode == 2
    assert f"no server answers at {UNKNOWN_HOST}" in done.stderr


def test_a_host_that_has_no_address_is_told_in_time_by_run(tmp_path: Path) -> None:
    path = file_of(tmp_path, UNKNOWN_HOST)
    began_s = time.monotonic()
    done = command("run", path, "--results", str(tmp_path / "r"), "--address", "local")
    assert f"no server answers at {UNKNOWN_HOST}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began_s < 2 * ANSWER_LIMIT_S


def measured(folder: Path, path: str) -> tuple[list[dict[str, Any]], str]:
    """The points of a run, and what it printed."""
    results = str(folder / "r")
    done = command("run", path, "--results", results, "--address", "local")
    said = done.stdout + done.stderr
    listed = command("results", results, "--format", "json")
    assert listed.returncode == 0, said + listed.stderr
    rows: list[dict[str, Any]] = json.loads(listed.stdout)
    return rows, said


@pytest.mark.parametrize("status", [400, 500])
def test_run_asks_a_gateway_that_refuses_unknown_fields_in_plainer_words(
    tmp_path: Path, status: int
) -> None:
    with serving(Gateway(unknown_fields=status)) as server:
        (point,), said = measured(tmp_path, file_of(tmp_path, f"http://127.0.0.1:{server.port}"))
    assert point["requests"] == ALL_ANSWERED, said
    assert said.count("no way to fix the output length") == 1


@pytest.mark.parametrize(
    ("root", "version", "pasted"),
    [
        ("/api/v3", None, "/api/v3"),
        ("/api/v3", None, "/api/v3/chat/completions"),
        ("/openai/v1", "2026-01-01", "/openai/v1?api-version=2026-01-01"),
    ],
)
def test_run_takes_addresses_as_they_are_pasted(
    tmp_path: Path, root: str, version: str | None, pasted: str
) -> None:
    with serving(Gateway(root=root, version=version)) as server:
        path = file_of(tmp_path, f"http://127.0.0.1:{server.port}{pasted}", "chat")
        (point,), said = measured(tmp_path, path)
    assert point["requests"] == ALL_ANSWERED, said


def test_run_tells_where_a_redirect_points(tmp_path: Path) -> None:
    with serving(Gateway(slash=307)) as server:
        url = f"http://127.0.0.1:{server.port}"
        _, said = measured(tmp_path, file_of(tmp_path, url))
    assert f"it is at {url}/v1/completions/ (give that URL)" in said


def test_plan_refuses_a_pasted_path_of_another_api(tmp_path: Path) -> None:
    done = command("plan", file_of(tmp_path, f"{NOBODY}/v1/chat/completions"))
    assert done.returncode in (2, 3)
    assert "chat" in done.stdout + done.stderr

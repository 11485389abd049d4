"""Every file of ``experiments/`` is simulated, and what its head says came out did come out; or it
says why it is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.commands import Done, invoke

FOLDER = Path(__file__).parents[2] / "experiments"
# seconds each; capacity takes twenty of a core
WHOLE = (
    *("adapters", "batch-size-knee", "capacity", "chat-beside-rag", "engines-8b", "guided"),
    *("llama70b-quantization", "load-formats", "max-concurrency", "multi-node-405b", "offline"),
    *("quickstart-emulated", "readers", "replicas-or-tp", "speculation", "vision"),
    "workloads",
)
WITHOUT_ANSWER = "load-formats"  # only starts of engines show what it asks
# simulated and compared with the README's commands (tests/documentation/test_commands.py)
WITH_THE_README = ("llama70b-parallelism",)
# what each says of its deployments, none of which the model covers
REFUSED = {
    "quantization": "no config.json at hand",  # the demo makes its checkpoints
    "quickstart": "no figures of this CPU are known",
    "roles": "the model has no term for a router",
}


def simulated(file: Path, folder: Path, assumptions: Sequence[str] = ()) -> Done:
    assumed = [f"--assume={assumption}" for assumption in assumptions]
    results = str(folder / "results")
    return invoke("simulate", str(file), "--results", results, "--no-report", *assumed)


def head_of(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text().partition("\nversion: 1\n")[0]


def answers_of_the_head(name: str) -> list[str]:
    """The lines of a file's head that repeat an answer of ``simulate``, as they are printed: a long
    one goes on in the next line, further to the right.
    """
    continued = re.sub(r"\n#     +", " ", head_of(name))
    lines = [line.removeprefix("#").strip() for line in continued.splitlines()]
    return [line for line in lines if line.startswith(("best", "runner-up", "assumed"))]


def points(folder: Path) -> list[Any]:
    """All points of the results, which say that they were simulated and how certain they are."""
    listed = json.loads(invoke("results", str(folder / "results"), "--format", "json").stdout)
    rows = [row for row in listed if row["row"] == "point"]
    assert {row["simulated"] for row in rows} == {True}
    measured = [row for row in rows if row["output_token_throughput"]]
    for row in measured:
        assert row["model_error"]["ttft"] > 1
        tokens = row["output_token_throughput"]
        factor = row["model_error"]["others"]
        lower, upper = (row[f"output_token_throughput.{end}"] for end in ("lower", "upper"))
        assert 0.999 / factor <= lower / tokens <= 1.001
        assert 0.999 <= upper / tokens <= 1.001 * factor
    return measured


def test_no_file_is_forgotten() -> None:
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    assert names == {*WHOLE, *WITH_THE_README, *REFUSED}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_begins_with_its_schema_and_its_question(path: Path) -> None:
    schema, question, *_ = path.read_text().splitlines()
    where = schema.removeprefix("# yaml-language-server: $schema=")
    assert (FOLDER / where).resolve().is_file()
    assert question.startswith("# ")
    assert "?" in head_of(path.stem)


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_head_of_a_file_says_came_out_did_come_out(name: str, tmp_path: Path) -> None:
    assumptions = re.findall(r"--assume ([\w=.]+)", head_of(name))
    done = simulated(FOLDER / f"{name}.yaml", tmp_path, assumptions)
    assert done.status == 0, done.stderr
    assert bool(assumptions) == ("assumed: " in head_of(name))
    assert points(tmp_path)
    printed = {line.strip() for line in done.stderr.splitlines()}
    missing = [line for line in answers_of_the_head(name) if line not in printed]
    assert missing == []
    assert bool(answers_of_the_head(name)) == (name != WITHOUT_ANSWER)


def test_starts_read_weights_at_the_rate_of_the_file(tmp_path: Path) -> None:
    done = simulated(FOLDER / f"{WITHOUT_ANSWER}.yaml", tmp_path)
    assert "assumed: nodes of h100 read weights at 3 GB/s (weights_gb_s)" in done.stderr
    shown = invoke("results", str(tmp_path / "results"), "--launches", "--format", "json").stdout
    ready_s = {row["label"].split("=")[-1]: row["ready_s"] for row in json.loads(shown)}
    formats = ("safetensors", "runai_streamer", "fastsafetensors")
    # the head says when engines are ready, and then when those with dummy weights are
    ready, ready_with_dummy = re.findall(r"([0-9]+\.[0-9]) s\b", head_of(WITHOUT_ANSWER))
    assert ready_s == {
        **dict.fromkeys(formats, pytest.approx(float(ready), abs=0.05)),
        "dummy": pytest.approx(float(ready_with_dummy), abs=0.05),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_which_nothing_is_simulated_is_refused(name: str, tmp_path: Path) -> None:
    done = simulated(FOLDER / f"{name}.yaml", tmp_path)
    assert done.status == 3
    assert re.search(f"cannot be simulated: .*{REFUSED[name]}", done.stderr)
    assert not list(tmp_path.iterdir())

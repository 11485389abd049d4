"""Every file of ``experiments/`` is simulated, at one short load, or says why it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli.main import cli

FOLDER = Path(__file__).parents[2] / "experiments"
SIMULATED = (
    *("capacity", "engines-8b", "llama70b-parallelism", "llama70b-quantization"),
    *("multi-node-405b", "quickstart-emulated", "workloads"),
)
NOT_SIMULATED = {
    "quantization": "no config.json at hand",  # the demo makes its checkpoints
    "quickstart": "It cannot be simulated: ",  # no figures of this CPU are known
    "roles": "the model has no term for a router",
}


def shortened(name: str) -> str:
    """The file with its first level alone, for a few seconds; a search with one deployment under
    its first limits.
    """
    content: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    load = content["load"]
    for each in load if isinstance(load, list) else [load]:
        if "levels" in each:
            each |= {"warmup": "2s", "duration": "15s"}
            each["levels"] = {
                control: values[:1] if isinstance(values, list) else values
                for control, values in each["levels"].items()
            }
        else:
            content["deployments"].pop("vary")
            content["slos"] = dict([next(iter(content["slos"].items()))])
    content["repeats"] = 1
    return yaml.safe_dump(content)


def simulated(name: str, folder: Path) -> Any:
    file = folder / f"{name}.yaml"
    file.write_text(shortened(name))
    argv = ["simulate", str(file), "--results", str(folder / "results"), "--no-report"]
    return CliRunner().invoke(cli, argv)


def test_no_file_is_forgotten() -> None:
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    assert names == {*SIMULATED, *NOT_SIMULATED}


@pytest.mark.parametrize("name", SIMULATED)
def test_a_file_is_simulated_and_every_point_says_so(name: str, tmp_path: Path) -> None:
    simulated(name, tmp_path)
    results = str(tmp_path / "results")
    listed = json.loads(CliRunner().invoke(cli, ["results", results, "--format", "json"]).stdout)
    points = [row for row in listed if row["row"] == "point"]
    assert {row["simulated"] for row in points} == {True}
    measured = [row for row in points if row["output_token_throughput"]]
    assert measured
    for row in measured:
        assert row["model_error"]["ttft"] > 1
        tokens = row["output_token_throughput"]
        factor = row["model_error"]["others"]
        lower, upper = (row[f"output_token_throughput.{end}"] for end in ("lower", "upper"))
        assert 0.999 / factor <= lower / tokens <= 1.001
        assert 0.999 <= upper / tokens <= 1.001 * factor


@pytest.mark.parametrize("name", NOT_SIMULATED)
def test_a_file_that_is_not_simulated_says_why(name: str, tmp_path: Path) -> None:
    done = simulated(name, tmp_path)
    assert NOT_SIMULATED[name] in done.output + str(done.exception)

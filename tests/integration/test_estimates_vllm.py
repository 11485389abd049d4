"""Two searches of the same real vLLM, ten minutes each: each estimate lies in the other's interval.

The machine should have nothing else to do: what others take from the engine changes its capacity.
The engine has few slots, so that they are its limit and not the cores, whose speed a virtual machine
does not keep for half an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_real import CORES, ROOT, Running, running, settings

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(3600)]

BUDGET = "10m"
SLO = "ttft<=300ms,tpot<=50ms,attainment>=0.9"


def search(server: Running, model: Path, seed: int) -> dict[str, Any]:
    """The document of a search by requests per second."""
    command = [sys.executable, "-m", "orchestrator", "load", server.base_url]
    command += ["--model", server.name, "--tokenizer", str(model), "--seed", str(seed)]
    command += [
        "--api-key-env",
        "ENGINE_KEY",
        "--find-capacity",
        "--slo",
        SLO,
        "--budget",
        BUDGET,
        "--format",
        "json",
    ]
    command += ["--input-tokens", "100", "--output-tokens", "32"]
    completed = subprocess.run(
        ["taskset", "-c", ",".join(map(str, CORES[1:] or CORES)), *command],
        capture_output=True,
        text=True,
        env=os.environ | {"ENGINE_KEY": server.key},
    )
    assert completed.returncode in (0, 3), completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    print(
        f"seed {seed}: {document['status']},",
        f"estimate {document['estimate']} ({document['estimate.lower']} to",
        f"{document['estimate.upper']}), safe {document['safe']}, claim {document['claim']}",
    )
    return document


def test_each_estimate_lies_in_the_interval_of_the_other(tmp_path: Path) -> None:
    model = ROOT / ".demo" / "model"
    usual = settings(
        "vllm",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=2,
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
    with running(usual, tmp_path, model) as server:
        server.wait()
        first = search(server, model, seed=1)
        second = search(server, model, seed=2)
    assert first["estimate.lower"] <= second["estimate"] <= first["estimate.upper"]
    assert second["estimate.lower"] <= first["estimate"] <= second["estimate.upper"]

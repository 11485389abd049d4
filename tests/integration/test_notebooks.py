"""The notebooks run from their first cell to their last, on results that they simulate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the notebooks beside the experiment that they simulate; they share its results."""
    top = tmp_path_factory.mktemp("checkout")
    (top / "experiments").mkdir()
    shutil.copy(ROOT / "experiments" / "replicas-or-tp.yaml", top / "experiments")
    ignored = shutil.ignore_patterns("simulated", "__pycache__", "__marimo__")
    shutil.copytree(NOTEBOOKS, top / "notebooks", ignore=ignored)
    return top / "notebooks"


def test_the_jupyter_notebook_shows_frames_and_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages of Jupyter, when they are imported
        import nbformat
        from nbclient import NotebookClient
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(folder / "compare.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # they are not kept in git
    client = NotebookClient(
        notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(folder)}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"] for output in outputs if "data" in output]
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert sum("image/png" in data for data in shown) == 3
    tables = [data["text/html"] for data in shown if "text/html" in data]
    assert len(tables) == 3
    assert "vllm tp=1 replicas=8" in tables[-1]
    assert "ms - time to first token" in printed  # the unit and the description of a column


def test_the_marimo_notebook_says_who_is_best(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(folder / "compare_marimo.py")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "of replicas-or-tp: " in done.stdout
    assert "vllm tp=1 replicas=8" in done.stdout

"""The tiny model as GGUF files, and experiments that measure them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.harness import ROOT
from tests.integration.engine_real import home_of

_EXPERIMENT = """
version: 1
name: {name}
isolation: shared            # a server of these tests runs on this host, too
deployments:
  engine: llama_cpp
  executable: {home}
  hardware: cpu
  model: model-f32.gguf
  max_model_len: 1024
"""


def gguf_of(model: Path, folder: Path, *adapters: Path, also: str | None = None) -> Path:
    """A folder with a model, and these adapters of it, as GGUF files. ``also``: a second number
    format of the model.
    """
    script = ROOT / "scripts" / "make_tiny_gguf.py"
    formats = [] if also is None else [also]
    options = [option for adapter in adapters for option in ("--adapter", adapter)]
    argv = [home_of("llama_cpp") / "bin" / "python", script, model, folder, *formats, *options]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    return folder


def experiment_of(name: str, rest: str) -> str:
    """An experiment file for the folder of GGUF files. ``rest``: further settings of its
    deployments, and what comes below these.
    """
    return _EXPERIMENT.format(name=name, home=home_of("llama_cpp")) + rest.lstrip("\n")

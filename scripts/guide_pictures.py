"""make pictures: what `results --plot` draws of the sweeps of the guides, simulated.

    python -m scripts.guide_pictures [--into docs/pictures]

The same sweep gives the same bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.documentation.blocks import blocks
from tests.unit.documentation.pages import ROOT


@dataclass(frozen=True, slots=True)
class GuidePicture:
    """A picture of a guide. ``experiment``: a file of the repository, or None where the guide itself
    has it as a block. ``where``: which points are drawn.
    """

    name: str
    experiment: str | None
    where: str | None = None


PICTURES = (
    GuidePicture(
        "parallelism",
        "experiments/llama70b-parallelism.yaml",
        "workload == 'chat' and max_num_seqs == 512",
    ),
    GuidePicture("quantization", None),
    GuidePicture("capacity", None),
)


def experiment_file(picture: GuidePicture, folder: Path) -> Path:
    """The experiment of a picture, as a file."""
    if picture.experiment is not None:
        return ROOT / picture.experiment
    page = ROOT / "docs" / "guides" / f"{picture.name}.md"
    (block,) = (each for each in blocks(page) if each.file_name is not None)
    path = folder / f"{picture.name}.yaml"
    path.write_text(block.text, encoding="utf-8")
    return path


def draw(picture: GuidePicture, into: Path) -> None:
    """Simulates a guide's sweep and draws it. Raises CalledProcessError where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        file = experiment_file(picture, Path(folder))
        orchestrator("simulate", str(file), "--results", str(results), "--no-report")
        where = [] if picture.where is None else ["--where", picture.where]
        orchestrator("results", str(results), *where, "--plot", str(into / f"{picture.name}.svg"))


def orchestrator(*argv: str) -> None:
    subprocess.run([sys.executable, "-m", "orchestrator", *argv], check=True, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("docs/pictures"))
    into = parser.parse_args().into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        draw(picture, into)


if __name__ == "__main__":
    main()

"""The pages about the experiment file are true: their examples load (and those of the README), they
have every key, their defaults hold.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from orchestrator.base.registry import Registry
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.combinations import FIELDS, Block
from orchestrator.spec.document import parse_document
from orchestrator.spec.experiment import Budget, ExperimentFile, Levels, Load, ModelRef
from orchestrator.spec.images import Images
from orchestrator.spec.load import (
    ARRIVALS,
    PRESETS,
    WORKLOADS,
    Arrivals,
    Bin,
    LogNormal,
    Normal,
    PartLimits,
    Slo,
    Uniform,
)
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.request_options import Adapters
from orchestrator.spec.sessions import Documents, LengthPair
from orchestrator.spec.settings import EngineSettings, Environment, Hardware, Speculative
from orchestrator.spec.traces import Keep, TraceColumns
from orchestrator.workloads.file import PromptColumns
from orchestrator.workloads.hub import HubDataset
from tests.unit.spec.files import parsed

ROOT = Path(__file__).parents[3]
PAGES = (
    "reference/experiment-file.md",
    "reference/hardware.md",
    "reference/deployments.md",
    "reference/workloads.md",
    "reference/prompts.md",
    "reference/traces.md",
    "reference/load.md",
    "reference/keys.md",
    "guides/roles.md",
    "explained/plan.md",
)
TEXT = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERY_PAGE = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
EXAMPLES = re.findall(r"```yaml\n(.*?)```", EVERY_PAGE + README, flags=re.DOTALL)
WORDS = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", TEXT)) + " ".join(EXAMPLES)))
MODELS = [
    ExperimentFile,
    ModelRef,
    Budget,
    Environment,
    Levels,
    Load,
    *(WORKLOADS[kind] for kind in WORKLOADS),
    Arrivals,
    *(Slo, PartLimits),
    *(LogNormal, Normal, Uniform, Bin),
    *(Documents, LengthPair, Popularity, Adapters, Images),
    *(Keep, TraceColumns, PromptColumns, HubDataset),
    Hardware,
    Speculative,
]


def file_models() -> list[type[BaseModel]]:
    """Every model that a file is read with, also those inside others."""
    found: dict[str, type[BaseModel]] = {}
    waiting: list[Any] = [ExperimentFile, EngineSettings, Block]
    waiting += [WORKLOADS[kind] for kind in WORKLOADS]
    while waiting:
        annotation = waiting.pop()
        waiting += get_args(annotation)
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and annotation.__name__ not in found:
            found[annotation.__name__] = annotation
            waiting += [field.annotation for field in annotation.model_fields.values()]
    return list(found.values())


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=[example.split("\n", 1)[0][:20] for example in EXAMPLES]
)
def test_every_example_is_an_experiment_or_a_part_of_one(example: str) -> None:
    assert parsed(**parse_document(example, "docs/reference/experiment-file.md").value).combinations


@pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])
def test_every_key_is_documented(model: type[BaseModel]) -> None:
    keys = [field.alias or name for name, field in model.model_fields.items()]
    assert [key for key in keys if key not in WORDS] == []


def test_every_setting_is_documented() -> None:
    assert [name for name in FIELDS if name not in WORDS] == []


@pytest.mark.parametrize("model", file_models(), ids=lambda model: model.__name__)
def test_every_key_of_a_file_has_a_description(model: type[BaseModel]) -> None:
    descriptions = {name: field.description for name, field in model.model_fields.items()}
    assert [name for name, text in descriptions.items() if not text] == []
    assert [name for name, text in descriptions.items() if text and text[-1] not in ".)"] == []


def test_every_engine_has_a_row_where_engines_are_listed() -> None:
    page = (ROOT / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
    table = page.partition("\n## Engines\n")[2].partition("\n\n")[0]
    assert [name for name in ENGINES.shipped() if f"\n| `{name}` |" not in table] == []


@pytest.mark.parametrize(
    "registry", [WORKLOADS, ARRIVALS, PRESETS], ids=["workloads", "arrivals", "presets"]
)
def test_every_registered_name_is_documented(registry: Registry[Any]) -> None:
    assert [name for name in registry.shipped() if name not in WORDS] == []

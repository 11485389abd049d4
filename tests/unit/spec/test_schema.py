"""The JSON schema of experiment files takes every file that we show and refuses mistakes that the
loader refuses.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import ProblemsError
from orchestrator.capacity.registry import STRATEGIES
from orchestrator.cli.schema import schema_text
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.spec import schema as schema_module
from orchestrator.spec.document import Place, parse_document
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import ARRIVALS, PRESETS, WORKLOADS, parse_duration
from orchestrator.spec.schema import SCHEMA_FILE
from tests.unit.spec.files import GOOD
from tests.unit.spec.test_documentation import EXAMPLES, ROOT

SHIPPED = Path(schema_module.__file__).with_name(SCHEMA_FILE)
SCHEMA = json.loads(SHIPPED.read_text("utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
FILES = sorted((ROOT / "experiments").glob("*.yaml"))
# mappings whose keys are names of the user's own, which other parts of the file may use
OWN_NAMES = ("hardware", "environments", "derive", "slos")


def errors(content: Any) -> list[str]:
    return [
        f"{list(error.absolute_path)}: {error.message}" for error in VALIDATOR.iter_errors(content)
    ]


def content_of(path: Path) -> Any:
    return parse_document(path.read_text("utf-8"), str(path)).value


OPEN_TO_PACKAGES = (ENGINES, ROUTERS, STRATEGIES, WORKLOADS)


@pytest.mark.skipif(
    any(registry.names() != registry.shipped() for registry in OPEN_TO_PACKAGES),
    reason="the schema here also has the parts of other packages that are installed",
)
def test_the_shipped_schema_is_the_one_that_the_code_generates() -> None:
    command = "orchestrator schema --output orchestrator/spec/experiment.schema.json"
    assert SHIPPED.read_text("utf-8") == schema_text(), f"run {command}"
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_takes_every_file_of_experiments(path: Path) -> None:
    assert errors(content_of(path)) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n", 1)[0][:20])
def test_it_takes_every_example_of_the_documentation(example: str) -> None:
    # the guide to an engine of one's own names one that is not shipped
    shipped = example.replace("engine: toy\n", "engine: vllm\n")
    assert errors(GOOD | parse_document(shipped, "example.yaml").value) == []


@dataclass(frozen=True)
class Mistake:
    """One change of a file: a key that is written otherwise, or a value of another type."""

    path: Path
    place: Place
    key: str | None = None  # the new name of the key
    value: Any = None

    def content(self) -> Any:
        content = copy.deepcopy(content_of(self.path))
        holder = content
        for part in self.place[:-1]:
            holder = holder[part]
        if self.key is not None:
            holder[self.key] = holder.pop(self.place[-1])
        else:
            holder[self.place[-1]] = self.value
        return content


def mistakes(path: Path, value: Any, place: Place = ()) -> Iterator[Mistake]:
    """Every mistake that can be made in a value and inside it."""
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    else:
        return
    for part, inner in inside:
        at: Place = (*place, part)
        if isinstance(part, str) and (not place or place[-1] not in OWN_NAMES):
            yield Mistake(path, at, key=f"{part}x")
        yield Mistake(path, at, value={"wrong": 1})
        yield Mistake(path, at, value=[["wrong"]])
        if isinstance(inner, int) and "levels" not in at:  # text is an expression there
            yield Mistake(path, at, value="wrong")
        yield from mistakes(path, inner, at)


MISTAKES = [mistake for path in FILES for mistake in mistakes(path, content_of(path))]


@given(st.sampled_from(MISTAKES))
def test_it_refuses_a_mistake_that_the_loader_refuses(mistake: Mistake) -> None:
    content = mistake.content()
    try:
        parse_experiment(json.dumps(content), "x.yaml")
    except ProblemsError:
        assert errors(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"load": {"levels": "auto"}},
        {"load": {"levels": {"request_rate": ["inf", "2 * recorded", 0.5]}, "requests": 9}},
        {"load": {"levels": {"concurrency": [1, "max_num_seqs // 2"]}, "warmup": 0}},
        {"load": {"levels": {"request_rate": [1]}, "arrivals": "constant", "duration": "2 h"}},
        {"model": "org/model"},
        {"slos": {"a": {"ttft_p99.9": "1s", "e2e": "9s", "attainment": "95%"}}},
        {"deployments": {"engine": "vllm", "engine_version": 0.32}},
        {"deployments": [{"engine": "vllm"}, {"engine": "sglang"}]},
        {
            "workloads": [
                {"name": "a", "preset": "rag"},
                {"name": "b", "preset": "chat", "turns": 3},
            ]
        },
        {"workloads": [{"name": "a", "kind": "trace", "trace": "x.csv", "window": ["1m", "2m"]}]},
    ],
)
def test_it_knows_the_short_forms_that_the_loader_knows(changes: dict[str, Any]) -> None:
    content = GOOD | changes
    parse_experiment(json.dumps(content), "x.yaml")
    assert errors(content) == []


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"load": {"levels": {"request_rate": [1]}, "duration": 60}}, "60"),
        ({"load": {"levels": {"request_rate": [1]}, "duration": "60"}}, "60"),
        ({"load": {"levels": {"request_rate": [1]}, "arrivals": "poison"}}, "poison"),
        ({"load": {"levels": {"request_rate": [1]}, "search": "levelz"}}, "levelz"),
        ({"slos": {"a": {"p99_ttft": "1s"}}}, "p99_ttft"),
        ({"hardware": {"h": {"name": "h"}}}, "name"),
        ({"deployments": {"engine": "vlm"}}, "vlm"),
        ({"deployments": {"router.engine": "vllm"}}, "vllm"),
        ({"deployments": {"engine": "vllm", "roles": {"prefill": {"engine": "x"}}}}, "engine"),
        ({"deployments": {"vary": [{"grid": {"tensor_parallel_size": 2}}]}}, "2"),
        ({"workloads": [{"name": "a", "kind": "radnom"}]}, "radnom"),
        ({"workloads": [{"name": "a", "kind": "random", "turns": 3}]}, "turns"),
        ({"workloads": [{"name": "a", "preset": "rag", "turns": 3}]}, "turns"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], refused: str) -> None:
    assert refused in str(errors(GOOD | changes))


@given(st.floats(1e-6, 1e6), st.sampled_from(["ns", "us", "µs", "ms", "s", "MS", "m", "min", "h"]))
def test_durations_are_those_that_the_loader_reads(number: float, unit: str) -> None:
    for text in (f"{number:f}{unit}", f"{number:e}{unit}"):
        check_duration(text)


def check_duration(text: str) -> None:
    content = GOOD | {"load": {"levels": {"request_rate": [1]}, "request_timeout": text}}
    try:
        parse_duration(text)
    except ValueError:
        return  # out of bounds
    assert errors(content) == []


def test_names_of_registries_are_offered() -> None:
    definitions = SCHEMA["$defs"]
    assert definitions["Arrivals"]["anyOf"][0]["enum"] == list(ARRIVALS)
    assert definitions["Workload"]["properties"]["preset"]["enum"] == list(PRESETS)
    assert "vllm" in definitions["EngineSettings"]["properties"]["engine"]["enum"]


def test_every_key_has_a_description_and_no_default_that_a_file_could_not_have() -> None:
    for name, definition in SCHEMA["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            target = value.get("items", value) if key.startswith("roles.") else value
            assert "description" in value or "$ref" in target or key == "kind", (name, key)
            if "default" in value:
                own = jsonschema.Draft7Validator({**value, "$defs": SCHEMA["$defs"]})
                assert own.is_valid(value["default"]), (name, key)

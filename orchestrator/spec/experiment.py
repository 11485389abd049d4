"""The experiment file: what each of its parts may hold, and reading it with all of its problems at once.

docs/experiment-file.md explains every key to users.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from orchestrator.errors import Problem, ProblemsError
from orchestrator.spec.combinations import Combination, expand
from orchestrator.spec.document import Document, parse_document, read_document
from orchestrator.spec.load import AnyWorkload, Arrivals, Control, Duration, Level, Slo, Workload
from orchestrator.spec.problems import problems_of, wrong
from orchestrator.spec.settings import Hardware, Strict, Versions, declared, same_place

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # a folder of the results has this name
CPU = Hardware(name="cpu", accelerator="cpu")
Isolation = Literal["exclusive_node", "shared"]


def _keyed(values: Any) -> Any:
    """A mapping by name, each entry knowing its own name."""
    if not isinstance(values, dict):
        return values
    for key, value in values.items():
        if isinstance(value, dict) and "name" in value:
            raise wrong((key, "name"), "unknown key 'name'", f"its name is {key!r} already")
    return {key: {**value, "name": key} if isinstance(value, dict) else value for key, value in values.items()}


def _distinct(workloads: list[Workload]) -> list[Workload]:
    names = [workload.name for workload in workloads]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise wrong((index, "name"), f"two workloads are named {name!r}")
    return workloads


def _limited(slos: dict[str, Slo]) -> dict[str, Slo]:
    for name, slo in slos.items():
        if slo.ttft is slo.tpot is slo.e2e is slo.itl_p99 is None:
            raise wrong(name, f"{name!r} has no limit", "give at least one of ttft, tpot, e2e, itl_p99")
    return slos


def _model_from_name(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value


class ModelRef(Strict):
    """The model of every deployment that names no other: a hub name or a local folder."""

    id: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    tokenizer: str | None = None


class Levels(Strict):
    """Load levels to measure: requests/s, requests kept in flight, or both one after the other."""

    request_rate: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = None
    concurrency: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _some_and_once(self) -> Levels:
        for name, values in (("request_rate", self.request_rate), ("concurrency", self.concurrency)):
            for index, value in enumerate(values or []):
                if value in (values or [])[:index]:
                    hint = "use repeats to measure a level more than once"
                    raise wrong((name, index), f"{name} {value:g} is given twice", hint)
        if self.request_rate is None and self.concurrency is None:
            raise wrong((), "'levels' is empty", "give request_rate: [1, 2, 4] or concurrency: [1, 8, 64]")
        return self


class Load(Strict):
    """How every deployment is loaded. ``duration`` and ``requests`` exclude each other; one minute is the default."""

    levels: Levels | None = None
    search: str = "levels"  # a name of the registry of search strategies
    control: Control | None = None
    arrivals: Arrivals = Arrivals()
    duration: Annotated[Duration, Field(gt=0)] | None = None
    requests: Annotated[int, Field(ge=1)] | None = None
    warmup: Annotated[Duration, Field(ge=0)] = 10.0
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    request_timeout: Annotated[Duration, Field(gt=0)] = 600.0
    drain_timeout: Annotated[Duration, Field(ge=0)] = 120.0

    @model_validator(mode="after")
    def _consistent(self) -> Load:
        example = "give levels: {request_rate: [1, 2, 4]} or levels: {concurrency: [1, 8, 64]}"
        if self.levels is None and self.search == "levels":
            raise wrong((), "'load' needs levels", example)
        if self.duration is not None and self.requests is not None:
            raise wrong("requests", "'duration' and 'requests' exclude each other")
        if self.levels is not None and self.control is not None and getattr(self.levels, self.control) is None:
            raise wrong("control", f"'control: {self.control}' does not agree with 'levels', which has none of that")
        return self

    def points(self) -> list[Level]:
        """The levels in the order of the file: rates, then concurrencies; none where a search finds them."""
        levels = self.levels or Levels.model_construct()
        rates = [Level(control="request_rate", value=value) for value in levels.request_rate or []]
        return rates + [Level(control="concurrency", value=value) for value in levels.concurrency or []]


class Budget(Strict):
    """What a sweep may use. No launch begins after one of them is spent."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    usd: Annotated[float, Field(gt=0)] | None = None
    wall: Annotated[Duration, Field(gt=0)] | None = None


class ExperimentFile(Strict):
    """The file as it stands, except ``deployments``, which combinations.py expands."""

    version: Literal[1]
    name: Annotated[str, Field(pattern=NAME)]
    model: Annotated[ModelRef, BeforeValidator(_model_from_name)] | None = None
    hardware: Annotated[dict[str, Hardware], BeforeValidator(_keyed)] = {}
    environments: dict[str, Versions] = {}
    deployments: Any = None
    workloads: Annotated[list[AnyWorkload], Field(min_length=1), AfterValidator(_distinct)]
    load: Load
    slos: Annotated[dict[str, Slo], BeforeValidator(_keyed), AfterValidator(_limited)] = {}
    budget: Budget | None = None
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    isolation: Isolation = "exclusive_node"
    seed: Annotated[int, Field(ge=0)] = 0
    clients: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked experiment: the file's parts and every combination of its deployments."""

    spec: ExperimentFile
    combinations: tuple[Combination, ...]
    document: Document = field(repr=False)

    @property
    def folder(self) -> Path:
        """Relative paths of the file start here."""
        return Path(self.document.file).resolve().parent

    @property
    def hardware(self) -> Mapping[str, Hardware]:
        """Hardware classes by name, the built-in ``cpu`` among them."""
        return {CPU.name: CPU, **self.spec.hardware}


def load_experiment(path: str | Path) -> Experiment:
    """Read and check an experiment file. Raises ProblemsError with every problem in it."""
    return check_experiment(read_document(path))


def parse_experiment(text: str, file: str = "experiment.yaml") -> Experiment:
    """As ``load_experiment``, from text; relative paths start at the folder of ``file``."""
    return check_experiment(parse_document(text, file))


def check_experiment(document: Document) -> Experiment:
    """Check a parsed file. Raises ProblemsError with every problem in it, in the order of its lines."""
    if not isinstance(document.value, dict):
        raise ProblemsError([document.problem((), "an experiment must be a mapping (name: value)")])
    spec, problems = _validate(document)
    model, hardware = _settings_of_model(document.value.get("model")), document.value.get("hardware")
    classes = [CPU.name, *(hardware if isinstance(hardware, dict) else ())]
    combinations, more = expand(document, model, classes, declared(document.value.get("environments")))
    problems += [*more, *_same_place(document, combinations)]
    if problems or spec is None:
        raise ProblemsError(sorted(problems, key=lambda problem: problem.line or 0))
    return Experiment(spec, tuple(combinations), document)


def _same_place(document: Document, combinations: list[Combination]) -> list[Problem]:
    measured = [one for one in combinations if one.excluded_by is None]
    hint = "write under 'environments' where each version lives"
    return [
        document.problem(measured[index].place("engine_version"), sentence, hint)
        for index, sentence in same_place(one.settings for one in measured)
    ]


def _validate(document: Document) -> tuple[ExperimentFile | None, list[Problem]]:
    text = json.dumps(document.value)  # JSON mode: lists may be tuples, and nothing else is converted
    try:
        return ExperimentFile.model_validate_json(text, strict=True, context={"users_file": True}), []
    except ValidationError as error:
        return None, problems_of(error, ExperimentFile, document)


def _settings_of_model(model: Any) -> dict[str, Any]:
    """The settings that ``model`` gives every deployment. What is wrong in it is reported where it stands."""
    if isinstance(model, dict) and isinstance(model.get("id"), str):
        more = {name: model[name] for name in ("revision", "tokenizer") if isinstance(model.get(name), str)}
        return {"model": model["id"], **more}
    return {"model": model if isinstance(model, str) else "?"} if model is not None else {}

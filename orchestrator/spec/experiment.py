"""The experiment file: what each part may contain, and a reader that reports all problems at once.

docs/reference/keys.md lists every key for users, as the descriptions of the fields say it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from orchestrator.base.redaction import is_secret, redact, strip_control
from orchestrator.base.text import counted
from orchestrator.spec.combinations import (
    Combination,
    DeploymentContext,
    NamedEngine,
    combination_of,
    expand,
)
from orchestrator.spec.document import (
    UNPRINTABLE,
    Document,
    Place,
    Problems,
    add_errors,
    is_unprintable,
    parse_document,
    wrong,
)
from orchestrator.spec.load import (
    INFINITE,
    LIMITS,
    MOST_CLIENTS,
    MOST_IN_FLIGHT,
    MOST_TURNS_OF_ALL,
    AnyWorkload,
    Control,
    Duration,
    Level,
    LoadRules,
    Rate,
    Slo,
    Workload,
    preset_source,
)
from orchestrator.spec.mixes import with_parts
from orchestrator.spec.settings import EngineSettings, Hardware, OneLine, Strict, Versions

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # also names a folder of the results
GPUS = "devices"  # in expressions of levels: devices of all replicas of a deployment
RECORDED_RATE = "recorded"  # in expressions of levels: requests/s of a workload's recorded times
CPU = Hardware(name="cpu", accelerator="cpu")
# mappings with keys of any name
HOLDERS = ("env", "extra_args", "headers", "hf_overrides", "kv_transfer_config")
BY_REFERENCE = (
    "export it where the engines run, they inherit it, and leave it out here; "
    "an endpoint's key is named by its variable: api_key_env: MY_KEY"
)


def _keyed(values: Any) -> Any:
    """A mapping whose entries get their key as ``name``."""
    if not isinstance(values, dict):
        return values
    for key, value in values.items():
        if isinstance(value, dict) and "name" in value:
            raise wrong((key, "name"), "unknown key 'name'", f"its name is {key!r} already")
    return {
        key: {**value, "name": key} if isinstance(value, dict) else value
        for key, value in values.items()
    }


def _distinct(workloads: list[Workload]) -> list[Workload]:
    seen: set[str] = set()
    for index, workload in enumerate(workloads):
        if workload.name in seen:
            raise wrong((index, "name"), f"two workloads are named {workload.name!r}")
        seen.add(workload.name)
    # the sessions of a mix are those of its parts, which are in the list themselves
    drawn = [workload for workload in workloads if not workload.part_names()]
    turns = sum(workload.most_turns() for workload in drawn)
    if turns > MOST_TURNS_OF_ALL:
        text = (
            f"sessions of all workloads have {turns:,} turns; at most {MOST_TURNS_OF_ALL:,} are "
            "allowed"
        )
        raise wrong((), text)
    return workloads


def _limited(slos: dict[str, Slo]) -> dict[str, Slo]:
    for name, slo in slos.items():
        if slo.parts is None and not slo.has_limits:
            raise wrong(
                name, f"{name!r} has no limit", f"give at least one of {', '.join(LIMITS)}, reader"
            )
    return slos


class ModelRef(Strict):
    """The model of every deployment that names no other: ``id`` is a hub name or a local folder."""

    WANTED: ClassVar[str] = "a name or a folder, or {id: NAME, revision: REVISION}"
    SHORTHAND: ClassVar[Any] = OneLine

    id: OneLine = Field(description="A name on the Hugging Face hub, or a folder.")
    revision: OneLine | None = Field(
        default=None, description="A branch, tag or commit of the model on the hub."
    )
    tokenizer: OneLine | None = Field(
        default=None, description="The tokenizer; by default the model's own."
    )


def _or_expression(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    """Text in a list of levels is an expression, evaluated later with the settings of each
    deployment.
    """
    is_expression = isinstance(value, str) and value != INFINITE
    return value if is_expression else number(value)


RequestsInFlight = Annotated[int, Field(ge=1, le=MOST_IN_FLIGHT)]
PerGpuRate = Annotated[float, Field(gt=0)]
RateLevel = Annotated[Rate, WrapValidator(_or_expression, json_schema_input_type=PerGpuRate | str)]
RateLevels = Annotated[list[RateLevel], Field(min_length=1)]
ConcurrencyLevel = Annotated[
    RequestsInFlight,
    WrapValidator(_or_expression, json_schema_input_type=RequestsInFlight | str),
]
ConcurrencyLevels = Annotated[list[ConcurrencyLevel], Field(min_length=1)]
LEVEL_KEYS: dict[str, Control] = {
    "request_rate": "request_rate",
    "request_rate_per_gpu": "request_rate",
    "concurrency": "concurrency",
    "concurrency_per_gpu": "concurrency",
}


@dataclass(frozen=True, slots=True)
class WrittenLevel:
    """One level as the file has it. ``value`` may be an expression.

    ``key`` and ``index``: its list in ``levels``, and where in that list it stands.
    """

    key: str
    index: int
    control: Control
    value: float | str


class Levels(Strict):
    """Load levels to measure: in requests/s or requests kept in flight, absolute or per GPU of the
    deployment.
    """

    WANTED: ClassVar[str] = "{request_rate: [1, 2, 4]}, {concurrency: [1, 8, 64]} or auto"
    SHORTHAND: ClassVar[Any] = Literal["auto"]

    request_rate: RateLevels | None = Field(
        default=None,
        description="Requests/s (open loop). `inf`: all `requests` are due at once. Text is an "
        'expression over the deployment\'s settings, for example `["recorded", "2 * recorded"]`.',
    )
    request_rate_per_gpu: Annotated[list[PerGpuRate], Field(min_length=1)] | None = Field(
        default=None,
        description="Requests/s for each device of the deployment, all replicas together: `[2]` is "
        "8 requests/s on four GPUs.",
    )
    concurrency: ConcurrencyLevels | None = Field(
        default=None,
        description="Requests that are kept in flight (closed loop). Text is an expression over "
        'the deployment\'s settings, for example `["max_num_seqs // 2"]`.',
    )
    concurrency_per_gpu: Annotated[list[RequestsInFlight], Field(min_length=1)] | None = Field(
        default=None, description="Requests kept in flight for each device of the deployment."
    )

    @property
    def written(self) -> list[WrittenLevel]:
        """All levels, requests/s first."""
        levels: list[WrittenLevel] = []
        for key, control in LEVEL_KEYS.items():
            for index, value in enumerate(getattr(self, key) or ()):
                if key.endswith("_per_gpu"):
                    value = f"{value!r} * {GPUS}"
                levels.append(WrittenLevel(key, index, control, value))
        return levels

    @property
    def follow(self) -> bool:
        """Whether any level depends on the deployment."""
        return any(isinstance(level.value, str) for level in self.written)

    @property
    def follow_a_trace(self) -> bool:
        """Whether any level depends on the recorded rate of a workload."""
        texts = [level.value for level in self.written if isinstance(level.value, str)]
        return any(re.search(rf"\b{RECORDED_RATE}\b", text) for text in texts)

    @model_validator(mode="after")
    def _some_and_once(self) -> Levels:
        seen: set[tuple[str, float | str]] = set()
        for level in self.written:
            if (level.key, level.value) in seen:
                written = getattr(self, level.key)[level.index]
                hint = "use repeats to measure a level more than once"
                text = f"{level.key} {written} is given twice"
                raise wrong((level.key, level.index), text, hint)
            seen.add((level.key, level.value))
        if not seen:
            raise wrong(
                (), "'levels' is empty", "give request_rate: [1, 2, 4] or concurrency: [1, 8, 64]"
            )
        return self


class Load(LoadRules):
    """How every deployment is loaded."""

    levels: Levels | None = Field(
        default=None,
        description="The levels to measure: `{request_rate: [1, 2, 4]}`, "
        "`{concurrency: [1, 8, 64]}` or both; `auto` means `search: curve`. Searches find theirs "
        "and take none; recorded arrivals need none.",
    )

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        """``levels: auto`` means ``search: curve``."""
        if not isinstance(value, dict) or value.get("levels") != "auto":
            return value
        search = value.get("search", "curve")
        if search != "curve":
            raise wrong(
                "levels",
                f"'levels: auto' is search: curve, and the search is {search!r}",
                "leave it out",
            )
        rules = {key: rule for key, rule in value.items() if key != "levels"}
        return rules | {"search": "curve"}

    @model_validator(mode="after")
    def _consistent(self) -> Load:
        example = (
            "give levels: {request_rate: [1, 2, 4]}, levels: {concurrency: [1, 8, 64]} or "
            "levels: auto"
        )
        recorded = self.arrivals.process == "trace"  # they have a rate of their own
        if self.levels is None and self.search == "levels" and not recorded:
            raise wrong((), "'load' needs levels", example)
        if self.duration_s is not None and self.requests is not None:
            raise wrong("requests", "'duration' and 'requests' exclude each other")
        levels = self.levels.written if self.levels is not None else []
        if self.requests is None and any(level.value == math.inf for level in levels):
            raise wrong(
                "levels",
                "at an infinite rate all requests are due at once",
                "say how many: requests: 1000",
            )
        self._check_first_level()
        controls = {level.control for level in levels}
        if levels and self.control is not None and self.control not in controls:
            raise wrong(
                "control",
                f"'control: {self.control}' does not agree with 'levels', which gives none of it",
            )
        for level in levels:
            if isinstance(level.value, str):
                continue  # checked for each deployment
            problem = self.too_much(level.control, level.value)
            if problem:
                raise wrong(("levels", level.key, level.index), problem)
        return self

    def _check_first_level(self) -> None:
        """Raises an error for a first level that nothing would use, or that is no level."""
        first = self.first_level
        if first is None:
            return
        if self.search == "levels":
            raise wrong("first_level", "'first_level' is for searches", "leave it out")
        if self.control == "concurrency" and (first % 1 or first > MOST_IN_FLIGHT):
            text = f"requests in flight are a whole number of at most {MOST_IN_FLIGHT:,}"
            raise wrong("first_level", f"'first_level': {text}, not {first:g}")

    @property
    def is_closed_loop(self) -> bool:
        """Whether requests are kept in flight at every level, so that arrivals are not used."""
        if self.levels is None:
            return self.control == "concurrency"
        return all(level.control == "concurrency" for level in self.levels.written)

    def too_much(self, control: Control, level: float) -> str | None:
        """Why a point at this level would be more than a client can hold."""
        if control == "concurrency" or level == math.inf:
            return None
        seconds = None
        if not self.requests:
            seconds = (self.warmup_s or 0.0) + (self.duration_s or self.default_s)
        return self.arrivals.too_much(level, seconds, self.requests)

    def points(self) -> list[Level]:
        """Levels that are the same for every deployment, rates before concurrencies. The list is
        empty when a search finds levels, or when they follow from a deployment's settings
        (``plan/levels.py``).
        """
        if self.levels is None or self.levels.follow:
            return []
        return [Level(control=level.control, value=level.value) for level in self.levels.written]


class Budget(Strict):
    """What one run may use. No launch or point starts that would exceed one of these."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Most GPU hours, starts of engines included."
    )
    usd: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Most dollars, by the `usd_per_gpu_hour` of the hardware."
    )
    wall: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="Longest time that a run may take, for example `12h`."
    )


class Predictions(Strict):
    """What predictions are made from and used for. ``order``: deployments that are predicted best
    run first.
    """

    order: bool = Field(default=True, description="Whether deployments predicted best run first.")
    profile: OneLine | None = Field(
        default=None,
        description="A file written by `predict fit`, used for deployments on its accelerator.",
    )
    tables: bool = Field(
        default=False,
        description="Whether predictions are made from tables of measured kernels, where these "
        "have a row (extra `tables`).",
    )


PARTS = ("deployments", "workloads", "load")  # a file with none of them is something else


def _model_by_name(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value


class SweepRules(Strict):
    """Keys of the file that govern the sweep as a whole."""

    name: Annotated[str, Field(pattern=NAME)] = Field(
        description="The folder of the results: letters, digits, `.`, `_` and `-`."
    )
    budget: Budget | None = Field(
        default=None,
        description="What one run may use. No launch or point starts that would exceed it.",
    )
    repeats: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="Measurements of each point, each with its own requests."
    )
    starts: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1,
        description="How often each deployment is launched; its `repeats` are divided among the "
        "starts.",
    )
    isolation: Literal["exclusive_node", "shared"] = Field(
        default="exclusive_node",
        description="`exclusive_node`: no other launch, of this sweep or another, runs on a "
        "deployment's hosts. `shared`: launches that all have `shared` may run side by side.",
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Seed of all schedules and prompts, so that all deployments get the same "
        "requests. Another seed measures everything anew.",
    )
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] | None = Field(
        default=None,
        description="How many load client processes to begin with; more are added where they turn "
        "out to be the bottleneck.",
    )
    max_clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] | None = Field(
        default=None,
        description="How many load client processes a launch may have; half the cores by default.",
    )
    placement_timeout: Annotated[Duration, Field(gt=0)] = Field(
        default=900.0,
        description="How long to wait for nodes; four times as long while some are being set up.",
    )
    storage_timeout: Annotated[Duration, Field(gt=0)] = Field(
        default=900.0,
        description="How long to retry a storage that fails. Engines stay up meanwhile, and "
        "nothing new starts.",
    )
    predictions: Predictions = Field(
        default=Predictions(), description="What predictions are made from and used for."
    )

    @field_validator("starts")
    @classmethod
    def _every_start_has_a_repeat(cls, starts: int, info: ValidationInfo) -> int:
        repeats = info.data.get("repeats", starts)
        if starts > repeats:
            text = (
                f"{starts} starts share {counted(repeats, 'repeat')} of each point: some "
                "starts would have none"
            )
            raise wrong((), text, f"give repeats: {starts} or more")
        return starts


class ExperimentFile(SweepRules):
    """The file as it is written; ``deployments`` are left to combinations.py."""

    version: Literal[1] = Field(description="The version of this format: 1.")
    model: Annotated[ModelRef, BeforeValidator(_model_by_name)] | None = Field(
        default=None,
        description="The model of every deployment that names none: a name, or "
        "`{id, revision, tokenizer}`.",
    )
    hardware: Annotated[dict[str, Hardware], BeforeValidator(_keyed)] = Field(
        default={},
        description="Classes of nodes by name, for example "
        "`h100: {accelerator: H100-80GB, gpus_per_node: 8}`. `cpu` is built in.",
    )
    environments: dict[str, Versions] = Field(
        default={},
        description="Where each version of an engine is installed: engine, then version, then a "
        "virtual environment or an image.",
    )
    deployments: Any = Field(
        default=None,
        description="What is compared: a mapping of settings with `vary`, `derive` and `exclude`, "
        "or a list of such mappings, whose combinations are added up.",
    )
    workloads: Annotated[list[AnyWorkload], Field(min_length=1), AfterValidator(_distinct)] = Field(
        description="What requests contain. Each workload is measured at every level."
    )
    load: Load = Field(description="How every deployment is loaded: levels, arrivals, durations.")
    slos: Annotated[dict[str, Slo], BeforeValidator(_keyed), AfterValidator(_limited)] = Field(
        default={},
        description="Limits by name, for example `interactive: {ttft: 500ms, tpot: 50ms}`. They "
        "can be changed later without measuring anything again.",
    )

    @field_validator("*")
    @classmethod
    def _kept(cls, value: Any, info: ValidationInfo) -> Any:
        """Collects valid parts: planning checks them even if other parts are invalid."""
        if info.context and info.field_name:
            info.context["parts"][info.field_name] = value
        return value


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file: its parts, all combinations of its deployments, and everything wrong with
    it.
    """

    parts: Mapping[str, Any]  # the valid fields of ExperimentFile
    combinations: list[Combination]  # planning takes them out, one by one
    engines: Sequence[NamedEngine]  # also those of combinations with problems
    problems: Problems = field(repr=False)

    @classmethod
    def of_records(
        cls, parts: Mapping[str, Any], settings: EngineSettings | None, problems: Problems
    ) -> Experiment:
        """An experiment of one deployment whose parts are records already, as options of a command
        line make them. ``problems``: what was refused when these records were made. ``settings``
        are None if they were refused.
        """
        block: Place = ("deployments",)
        for name, part in parts.items():
            _check_texts(_plain(part), (name,), problems)
        if settings is None:
            return cls(parts, [], (), problems)
        _check_texts(settings.without_defaults(), block, problems)
        engines = [NamedEngine("engine", (*block, "engine"), settings.engine)]
        return cls(parts, [combination_of(settings, block)], engines, problems)

    @property
    def spec(self) -> ExperimentFile:
        """The whole file. Raises ProblemsError with all its problems."""
        self.problems.raise_any()
        return ExperimentFile.model_construct(**self.parts)

    @property
    def folder(self) -> Path:
        """Relative paths of the file start here."""
        file = self.problems.document.file
        return Path.cwd() if file is None else Path(file).resolve().parent

    def preset_sources(self) -> dict[str, str]:
        """Workloads whose numbers are a preset's -> where these are from."""
        content = self.problems.document.value
        written = content.get("workloads") if isinstance(content, dict) else None
        sources: dict[str, str] = {}
        for workload in written if isinstance(written, list) else []:
            source = preset_source(workload)
            if source is not None:
                sources[str(workload.get("name"))] = source
        return sources

    @property
    def hardware(self) -> Mapping[str, Hardware]:
        """Hardware classes by name, the built-in ``cpu`` among them."""
        return {CPU.name: CPU, **self.parts.get("hardware", {})}


def parse_experiment(text: str, file: str = "experiment.yaml") -> Experiment:
    """An experiment from text. Relative paths start at the folder of ``file``.

    Raises ProblemsError with all problems in the order of their lines.
    """
    experiment = examined(parse_document(text, file))
    experiment.problems.raise_any()
    return experiment


def examined(document: Document) -> Experiment:
    """The experiment of a parsed file. Later checks add to its ``problems``, so that all are
    reported together.

    Raises ProblemsError when the file is not a mapping.
    """
    problems = Problems(document)
    content = document.value
    if not isinstance(content, dict):
        problems.add((), "an experiment must be a mapping (name: value)")
        problems.raise_any()
    if content.keys().isdisjoint(PARTS):
        listed = ", ".join(map(repr, PARTS))
        hint = "docs/reference/experiment-file.md shows one"
        problems.add((), f"this is no experiment file: it has none of {listed}", hint)
        problems.raise_any()
    _check_secrets(content, (), problems)
    parts: dict[str, Any] = {}
    context = {"users_file": True, "parts": parts}
    try:
        ExperimentFile.model_validate(content, strict=True, context=context)
    except ValidationError as error:
        add_errors(error, ExperimentFile, problems)
    if "workloads" in parts:
        workloads = with_parts(parts["workloads"], problems)
        if workloads is None:
            del parts["workloads"]
        else:
            parts["workloads"] = workloads
    hardware = content.get("hardware")
    classes = frozenset({CPU.name, *(hardware if isinstance(hardware, dict) else ())})
    # an invalid one is not missing
    model = {"model": "?"} if content.get("model") is not None else {}
    reference: ModelRef | None = parts.get("model")
    if reference is not None:
        others = reference.model_dump(exclude={"id"}, exclude_none=True)
        model = {"model": reference.id, **others}
    deployment_context = DeploymentContext(model, classes, parts.get("environments", {}))
    combinations = expand(deployment_context, problems)
    included = [combination for combination in combinations if combination.excluded_by is None]
    _check_places(included, problems)
    return Experiment(parts, combinations, deployment_context.engines, problems)


def _plain(part: Any) -> Any:
    """The values of a record, or of each record of a list or mapping."""
    if isinstance(part, Strict):
        return part.model_dump(exclude_defaults=True)
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if isinstance(part, dict):
        return {key: _plain(item) for key, item in part.items()}
    return part


def _check_texts(value: Any, place: Place, problems: Problems) -> None:
    """Reports what reading a file would refuse: secrets, and what no terminal should show."""
    _check_secrets(value, place, problems)
    for text_place, text in _texts(value, place):
        if is_unprintable(text):
            problems.add(text_place, f"{text_place[-1]!r}: {UNPRINTABLE}")


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Every text within a value, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def _check_secrets(value: Any, place: Place, problems: Problems) -> None:
    """Reports secrets. The file is shared, stored with results and shown in reports: it may name
    variables only.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_secrets(inner, (*place, key), problems)
            name, equals, text = key.partition("=")
            if equals:  # "--api-key=x": true
                _check_secrets(text, (*place, name), problems)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_secrets(inner, (*place, index), problems)
    elif isinstance(value, str):
        key = next((part for part in reversed(place) if isinstance(part, str)), "")
        has_secret_name = _is_named_as_secret(value, key, place)
        if has_secret_name or redact(value) != strip_control(value):
            problems.add(place, f"{key!r} looks like a secret", BY_REFERENCE)


def _is_named_as_secret(text: str, key: str, place: Place) -> bool:
    """Whether the name beside a text says that the text is a secret."""
    if "container_args" in place and "=" in text:  # --env=NAME=VALUE, or the word after -e
        variable = text.removeprefix("--env=").partition("=")[0]
        if is_secret(variable):
            return True
    is_in_holder = not {*place[:-1]}.isdisjoint(HOLDERS)
    return is_secret(key) and is_in_holder and not text.isdigit()


def _check_places(combinations: Sequence[Combination], problems: Problems) -> None:
    """Reports engine versions with different names and the same location: they are one version."""
    versions: dict[tuple[str | None, ...], str] = {}
    for combination in combinations:
        settings = combination.settings
        version = settings.engine_version
        if version is None:
            continue
        location = (settings.engine, settings.executable, settings.image, settings.url)
        first = versions.setdefault(location, version)
        if first == version:
            continue
        where = settings.image or settings.executable or settings.url or "on the nodes' PATH"
        problems.add(
            combination.place("engine_version"),
            f"{settings.engine} {first!r} and {version!r} are the same: both are {where}",
            "write under 'environments' where each version is",
        )

"""The load half of an experiment: workloads, arrivals, levels, SLOs. Durations are parsed into
seconds.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from orchestrator.base.registry import Registry, unknown_name
from orchestrator.base.text import hours
from orchestrator.spec.assumptions import (
    ADAPTER_COSTS,
    ANSWER_LENGTHS,
    NOTHING_ASSUMED,
    OTHER_IMAGE_TOKENS,
    TOOL_TOKENS,
    Assumptions,
    EngineFact,
)
from orchestrator.spec.constraint import ConstraintKind, ToolChoice
from orchestrator.spec.document import nearest, wrong
from orchestrator.spec.request_options import (
    Adapters,
    Constrain,
    NamedTool,
    RequestFields,
    ToolChoiceKey,
    ToolList,
    asks_for_more,
    read_tools,
    tool_name,
)
from orchestrator.spec.settings import Name, OneLine, Strict, as_tuple

INFINITE = "inf"  # a rate
MOST_TOKENS = 2**31 - 1  # of one prompt or answer: rows hold counts as int32
LEAST_SECONDS = 1e-6  # no clock can tell less from 0
MOST_SECONDS = 1e9  # more would not fit into int64 as nanoseconds
# of one point; clients and answers hold some numbers for each request in memory
MOST_REQUESTS = 5_000_000
MOST_STEPS = 1_000_000  # of one point: arrivals repeat their steps until it ends
DURATION_S = 60.0  # default length of a point
PROBE_S = 600.0  # default length of a probe of a capacity search; most end long before
# A capacity search ends when the lowest level that fails is above the claim by at most this share
# of it, unless the file gives another precision. Deployments as close as this cannot be told apart
# in a race.
PRECISION = 0.05
MOST_IN_FLIGHT = 100_000
MOST_CLIENTS = 1000
MOST_TURNS = 1_000  # of a session
# of one session of each workload, added up; a thousand sessions are drawn at once
MOST_TURNS_OF_ALL = 20_000
_NUMBER = re.compile(r"\s*+((?:[0-9]*\.)?[0-9]++(?:[eE][+-]?[0-9]+)?)\s*+([A-Za-zµ]*)\s*")
# the same for JSON schemas, whose dialect has no possessive quantifiers and no flags
DURATION_PATTERN = (
    r"^\s*([0-9]*\.)?[0-9]+([eE][+-]?[0-9]+)?\s*([nuµmNUM]?[sS]|[mM]([iI][nN])?|[hH]|[dD])\s*$"
)
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
Control = Literal["request_rate", "concurrency"]
# What prompts are made of: drawn tokens or words, slices of a text, or what a file has.
ContentKind = Literal["random", "text", "file", "mixed"]
UNITS = {"request_rate": "req/s", "concurrency": "in flight"}  # of levels, by control
# what throughput and capacities are divided by; what is planned has no joules
Objective = Literal["gpu", "usd", "deployment"]
Per = Literal["gpu", "usd", "deployment", "joule"]


def parse_duration(text: object) -> float:
    """Seconds from text such as ``500ms``. A number without a unit is refused, except 0. Raises
    ValueError with what to write instead.
    """
    if text == 0 and not isinstance(text, bool):
        return 0.0
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    unit = match.group(2).replace("µ", "u").lower() if match else ""
    if match is None or unit not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration with its unit, like 500ms, 60s or 2h")
    seconds = float(match.group(1)) * _SECONDS[unit]
    if seconds > MOST_SECONDS:
        raise ValueError(
            f"{text!r} is longer than {MOST_SECONDS:g} s, the longest duration allowed"
        )
    if 0 < seconds < LEAST_SECONDS:
        raise ValueError(
            f"{text!r} is shorter than {LEAST_SECONDS:g} s, the shortest duration that is not 0"
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Seconds as an experiment file has them: ``500ms`` for 0.5, ``90s`` for 90."""
    return f"{seconds * 1e3:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def load_text(control: str, level: float) -> str:
    """``8 req/s`` or ``8 in flight``."""
    return f"{level:g} {UNITS[control]}"


def _duration(value: object, info: ValidationInfo) -> object:
    """A frozen plan holds seconds as floats; in a user's file every duration has a unit."""
    is_users_file = bool(info.context and info.context.get("users_file"))
    if isinstance(value, float) and not is_users_file:
        return value
    return parse_duration(value)


# what a file has for a duration
WrittenDuration = Annotated[str, Field(pattern=DURATION_PATTERN)] | Literal[0]
Duration = Annotated[float, BeforeValidator(_duration, json_schema_input_type=WrittenDuration)]


class Growing(Strict):
    """A record whose stored form, and so every id that is made of it, stays the same when keys are
    added: ``LATER_KEYS``, its own and those of its base classes, are stored only where they differ
    from their defaults.
    """

    LATER_KEYS: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _stored(self, handler: SerializerFunctionWrapHandler) -> Any:
        content = handler(self)
        for key in _later_keys(type(self)):
            if getattr(self, key) == type(self).model_fields[key].default:
                content.pop(key, None)
        return content


@cache
def _later_keys(model: type[Growing]) -> frozenset[str]:
    """The ``LATER_KEYS`` of a record and of all its base classes."""
    keys = [base.LATER_KEYS for base in model.__mro__ if issubclass(base, Growing)]
    return frozenset().union(*keys)


class LengthBounds(NamedTuple):
    """The smallest and the largest length that can come, in tokens or in turns. ``most`` None:
    there is no upper limit, or none is known.
    """

    least: int
    most: int | None


def check_bounds(least: float, most: float | None, unit: str = "") -> None:
    """Raises ValueError where no number lies between the bounds of what is drawn."""
    if most is not None and most < least:
        raise ValueError(f"max ({most:g}{unit}) is below min ({least:g}{unit})")


class LogNormal(Strict):
    """Log-normal token counts by their mean (tokens, of the distribution itself, not of its
    logarithm).
    """

    mean: float = Field(gt=0, le=MOST_TOKENS, description="Mean, in tokens.")
    sigma: float = Field(
        ge=0, le=10, description="Standard deviation of the natural logarithm of the numbers."
    )
    min: int = Field(
        default=1,
        ge=1,
        le=MOST_TOKENS,
        description="The smallest number of tokens: smaller ones become this one.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="The largest number of tokens: larger ones become this one.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max)
        return self


class Normal(Strict):
    """Normal token counts. What is drawn beyond ``min`` and ``max`` becomes these."""

    mean: float = Field(gt=0, le=MOST_TOKENS, description="Mean, in tokens.")
    sigma: float = Field(ge=0, le=MOST_TOKENS, description="Standard deviation, in tokens.")
    min: int = Field(
        default=1,
        ge=1,
        le=MOST_TOKENS,
        description="The smallest number of tokens: smaller ones become this one.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="The largest number of tokens: larger ones become this one.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max)
        return self


class Uniform(Strict):
    """Uniform integers, both ends included."""

    min: int = Field(ge=1, le=MOST_TOKENS, description="The smallest number of tokens.")
    max: int = Field(ge=1, le=MOST_TOKENS, description="The largest number of tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max)
        return self


Weight = Annotated[float, Field(gt=0, le=1e12)]


class Bin(Uniform):
    """One bin of a histogram: uniform within it, both ends included."""

    weight: Weight = Field(
        default=1.0, description="How often this bin comes, relative to the other bins."
    )


Bins = Annotated[tuple[Bin, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=10_000)]


class Lengths(Growing):
    """``200`` | ``{lognormal: {mean: 150, sigma: 0.6}}`` | ``{uniform: {min: 10, max: 20}}`` |
    ``{normal: {mean: 150, sigma: 40}}`` | ``{histogram: [{min: 1, max: 99, weight: 3}]}``.
    """

    WANTED: ClassVar[str] = (
        "a whole number, {uniform: {min: 10, max: 20}} or {lognormal: {mean: 150, sigma: 0.6}}"
    )
    LATER_KEYS = frozenset({"normal", "histogram"})
    SHORTHAND: ClassVar[Any] = Annotated[int, Field(ge=1, le=MOST_TOKENS)]

    fixed: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="The same number always; a number alone means this.",
    )
    lognormal: LogNormal | None = Field(
        default=None, description="Log-normal numbers, by the mean of the numbers themselves."
    )
    uniform: Uniform | None = Field(
        default=None, description="All whole numbers from `min` to `max` are equally likely."
    )
    normal: Normal | None = Field(default=None, description="Normal numbers.")
    histogram: Bins | None = Field(
        default=None, description="Bins with weights; numbers are uniform within each bin."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"fixed": value} if is_number else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(choice is not None for choice in self._choices()) != 1:
            raise ValueError("give one of: a whole number, lognormal, uniform, normal, histogram")
        return self

    def _choices(self) -> list[object]:
        """The ways to give lengths, of which exactly one is taken."""
        return [self.fixed, self.lognormal, self.uniform, self.normal, self.histogram]

    @property
    def bounds(self) -> LengthBounds:
        """The smallest and the largest number that can be drawn."""
        if self.fixed is not None:
            return LengthBounds(self.fixed, self.fixed)
        if self.histogram is not None:
            least = min(part.min for part in self.histogram)
            most = max(part.max for part in self.histogram)
            return LengthBounds(least, most)
        drawn = self.uniform or self.lognormal or self.normal
        assert drawn is not None  # _one_way
        return LengthBounds(drawn.min, drawn.max)


class Workload(Growing, ABC):
    """What requests contain: the keys that all kinds of workload share, and what plan and load ask
    of each.

    Every kind is a subclass with further keys (orchestrator/workloads/). Validating a mapping
    as ``Workload`` gives an object of the subclass that ``kind`` names.
    """

    # why none of this kind can be a part of a mix; None: each can
    reason_against_mixing: ClassVar[str | None] = None
    # what only an engine knows of the pictures in its messages, where it has any
    image_tokens_fact: ClassVar[EngineFact] = OTHER_IMAGE_TOKENS
    # whether requests of this kind may have tools of their own, beside the key ``tools``
    may_record_tools: ClassVar[bool] = False
    LATER_KEYS = frozenset({"adapters", "constrain", "tools", "tool_choice", "request"})

    name: Name = Field(description="The workload's name in all tables.")
    # a name of WORKLOADS; without a default in other kinds, so that plans always name them
    kind: str = Field(
        default="random",
        description="`random`: independent prompts. `conversations`: sessions, where each request "
        "repeats the turns before it. `file`: prompts from a file. `trace`: lengths, sessions and "
        "times of a recorded trace. `mix`: sessions of several workloads, by weight. By default "
        "`random`, or that of the `preset`.",
    )
    api: str = Field(  # a name of ``Engine.dialects``
        default="completions",
        examples=["completions", "chat", "tgi", "native"],
        description="What requests are sent to: `completions`, `chat`, `tgi` or `native`, as far "
        "as the engine has it. An API that no deployment has is an error.",
    )
    adapters: Adapters | None = Field(
        default=None,
        examples=[{"names": ["sql", "law"], "pick": {"zipf": 1.5}, "base_share": 0.2}],
        description="The LoRA adapters that sessions ask for. Default: none, only the model itself.",
    )
    constrain: Constrain | None = Field(
        default=None,
        description='What answers must be, for example `{regex: "[0-9]{4}"}`: constrained '
        "requests run to their natural end, and their answers are checked.",
    )
    tools: OneLine | ToolList | None = Field(
        default=None,
        description="Definitions of tools as OpenAI's API has them, sent with every chat request: "
        "a JSON file with a list of them, or the list itself. A plan holds the list.",
    )
    tool_choice: ToolChoiceKey | None = Field(
        default=None,
        description="Whether answers call a tool: `auto`, `none`, `required` or `{name: …}`. By "
        "default the recorded one of a prompt file; else it is not sent, which servers take for "
        "`auto`.",
    )
    request: RequestFields | None = Field(
        default=None,
        description="Further fields of every request's body, for example "
        "`{temperature: 0.7, top_p: 0.9}`; null removes a field. Fields of a prompt file's lines "
        "come after them. `plan` refuses fields that the engine refuses, or takes and does not "
        "apply. Other engines ignore fields that they do not know, for example misspelled ones: "
        "`plan` refuses those of a known release that the deployment names (`engine_version`, "
        "`executable` or the tag of `image`), and names those of others in a note. Of OpenAI's "
        "fields that change no answer (`metadata`, `service_tier`, `store`, `user`) it only notes "
        "that they are ignored.",
    )

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        may_have_tools = self.tools is not None
        if not isinstance(self.tool_choice, NamedTool):  # a named tool is one of ``tools``
            may_have_tools = may_have_tools or self.may_record_tools
        if self.tool_choice is not None and not may_have_tools:
            raise wrong("tool_choice", "'tool_choice' needs 'tools'")
        if self.tools is not None and self.api != "chat":
            raise wrong("tools", "'tools' are sent to the API 'chat' only", "set 'api' to chat")
        if self.constrain is not None and self.must_call_tools:
            text = "an answer that must be a call of a tool cannot be constrained otherwise"
            raise wrong("constrain", text, "leave out 'constrain' or 'tool_choice'")
        return self

    def with_parts(self) -> tuple[Workload, ...]:
        """The workload, and those of its parts where it is a mix."""
        return (self,)

    @property
    def asked_tool_choice(self) -> ToolChoice | None:
        """Who decides whether answers call a tool; None where no tools are sent."""
        if self.tools is None:
            return None
        if self.tool_choice is None:
            return "auto"
        return "named" if isinstance(self.tool_choice, NamedTool) else self.tool_choice

    @property
    def must_call_tools(self) -> bool:
        """Whether answers must be calls of tools, which are as long as they are."""
        return self.asked_tool_choice in ("required", "named")

    def tools_at(self) -> str | None:
        """Where requests have tools first: a place in a file, or empty where the key ``tools`` gives
        them. None: they have none.
        """
        return None if self.tools is None else ""

    def asked_tool_choices(self) -> Mapping[ToolChoice, str]:
        """Who decides whether answers call a tool, and where this is said first, as ``tools_at``."""
        choice = self.asked_tool_choice
        return {} if choice is None else {choice: ""}

    def with_files(self, path: Callable[[str], str]) -> Self:
        """``resolved``, with the content of its schema and its tools in place of their files.
        Raises ProblemsError for a file that cannot be sent, and whatever ``path`` raises.
        """
        resolved = self.resolved(path)
        updates: dict[str, Any] = {}
        if self.constrain is not None:
            updates["constrain"] = self.constrain.with_schema(path)
        if self.tools is not None:
            updates["tools"] = read_tools(self.tools, path)
            names = [tool_name(tool) for tool in updates["tools"]]
            chosen = self.tool_choice
            if isinstance(chosen, NamedTool) and chosen.name not in names:
                text = f"tool_choice names {chosen.name!r}, which is none of the tools"
                raise ValueError(text)
        return resolved.model_copy(update=updates) if updates else resolved

    def resolved(self, path: Callable[[str], str]) -> Self:
        """The same with its files found (``path`` makes paths absolute) and identified by their
        content. Raises ProblemsError for a file that cannot be sent, and whatever ``path`` raises.
        """
        return self

    def part_names(self) -> tuple[str, ...]:
        """The names of the workloads that are a mix's parts; empty where it is no mix."""
        return ()

    def with_contents(self, workloads: Mapping[str, Workload]) -> Self:
        """The same workload, a mix with the workloads that its parts name."""
        return self

    @abstractmethod
    def token_bounds(self) -> LengthBounds:
        """Fewest and most tokens, of prompt and answer together, of a session's longest request."""

    def longer_prompts(self, tokens: int) -> float | None:
        """Share of prompts with more than ``tokens`` tokens. It is 0 or 1 only where that is
        certain, and None where it is unknown.
        """
        return None

    def most_turns(self) -> int:
        """Requests of the longest session."""
        return 1

    def mean_turns(self) -> float:
        """Mean number of requests of a session."""
        return 1.0

    def sends_images(self) -> bool:
        """Whether its messages have pictures, so that nobody knows beforehand how many tokens its
        prompts have.
        """
        return False

    def sends_token_ids(self) -> bool:
        """Whether prompts are given as token ids, so that no text could be sent in their place."""
        return False

    def constraint_kinds(self) -> frozenset[ConstraintKind]:
        """What its answers may be constrained by."""
        if self.constrain is None or self.constrain.share == 0:
            return frozenset()
        return frozenset({self.constrain.kind})

    def asked_fields(self) -> frozenset[str]:
        """The further fields of its requests' bodies, but for those that ask for nothing more."""
        asked = self.request or {}
        return frozenset(name for name, value in asked.items() if asks_for_more(name, value))

    def engine_facts(self) -> list[EngineFact]:
        """What of its requests only an engine knows."""
        facts: list[EngineFact] = []
        if self.constraint_kinds():
            facts.append(ANSWER_LENGTHS)
        if self.tools_at() is not None:
            facts.append(TOOL_TOKENS)
        if self.adapters is not None:
            facts.append(ADAPTER_COSTS)
        if self.sends_images():
            facts.append(self.image_tokens_fact)
        return facts

    def known_to_engines_only(
        self, assumptions: Assumptions = NOTHING_ASSUMED
    ) -> EngineFact | None:
        """The first of ``engine_facts`` that is not assumed, so that neither predictions nor
        simulations are made of it; None if there is none.
        """
        unknown = (fact for fact in self.engine_facts() if not assumptions.covers(fact))
        return next(unknown, None)

    def adapter_names(self) -> tuple[str, ...]:
        """The LoRA adapters that its requests may ask for."""
        return () if self.adapters is None else self.adapters.names

    def recorded_rate(self) -> float | None:
        """Mean requests/s of recorded times; None where the workload has none."""
        return None

    def most_requests(self) -> int | None:
        """Requests of a whole recording; None where there is none, and requests never end."""
        return None

    def distinct_requests(self) -> int | None:
        """Number of requests after which the first is sent again; None: no two are alike."""
        return None

    def distinct_times_share(self) -> float | None:
        """Distinct recorded times per request; None where the workload has no times."""
        return None

    def drawn(self) -> bool:
        """Whether the prompts depend on the seed."""
        return True

    def content_source(self) -> ContentKind | None:
        """What its prompts are made of; None where its file can no longer be read."""
        return "random"

    def sends_text(self, has_tokenizer: bool) -> bool:
        """Whether its prompts are text even where an API takes token ids. ``has_tokenizer``:
        clients have the model's tokenizer.
        """
        return False

    def others(self, requests: int) -> Self:
        """The workload that a warm-up of ``requests`` requests sends: other prompts than those that
        the measurement begins with. Where prompts are fixed, these are the ones that it sends last.
        """
        return self

    def left_out(self) -> int:
        """Number of entries of its file that are not requests."""
        return 0

    def notes(self, timed: bool = False) -> list[str]:
        """What a user should know of its file before it is sent. ``timed``: at recorded times."""
        return []

    def identity(self) -> dict[str, Any]:
        """What the workload asks for, without its name and the paths of its files. It is a part of
        point ids and of schedule seeds.
        """
        return self.model_dump(mode="json", exclude={"name"})

    def __hash__(self) -> int:
        """By its name, because a schema or tools have no hash. Equal workloads have equal names."""
        return hash(self.name)

    @abstractmethod
    def requests(self, prompter: Any, seed: int) -> Any:
        """Writer of a point's requests, an ``orchestrator.workloads.kind.WorkloadKind``."""

    @classmethod
    def model_for(cls, value: Any) -> type[Workload]:
        """The subclass that a mapping's ``kind``, or its preset's, names. Raises
        PydanticCustomError for an unknown kind or preset.
        """
        value = with_preset(value)
        kind = value.get("kind", "random") if isinstance(value, dict) else None
        if cls is not Workload or not isinstance(kind, str):
            return cls
        if kind not in WORKLOADS:
            raise wrong("kind", f"unknown workload kind {kind!r}", nearest(kind, WORKLOADS.names()))
        return WORKLOADS[kind]

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Workload:
        model = cls.model_for(value)
        if model is cls:
            return handler(value)
        is_users_file = bool(info.context)
        content = with_preset(value)
        return model.model_validate(content, strict=is_users_file, context=info.context)


# A workload of any kind as a field of another model: serialized with all keys of its kind.
AnyWorkload = SerializeAsAny[Workload]
WORKLOADS: Registry[type[Workload]] = Registry(
    "workloads",
    {
        "random": "orchestrator.workloads.drawn:RandomWorkload",
        "conversations": "orchestrator.workloads.drawn:ConversationsWorkload",
        "file": "orchestrator.workloads.file:FileWorkload",
        "trace": "orchestrator.workloads.trace:TraceWorkload",
        "mix": "orchestrator.workloads.mix:MixWorkload",
    },
)
# Preset -> its keys and their source, an ``orchestrator.workloads.presets.Preset``.
_PRESETS = ("chat", "rag", "reasoning", "code_agent", "deep_research")
PRESETS: Registry[Any] = Registry(
    "presets", {name: f"orchestrator.workloads.presets:{name}" for name in _PRESETS}
)


def with_preset(value: Any) -> Any:
    """A workload as it is written, with the keys of its ``preset`` that it does not give itself.
    Raises PydanticCustomError for an unknown preset, and for one of another kind.
    """
    if not isinstance(value, dict) or "preset" not in value:
        return value
    name = value["preset"]
    if name not in PRESETS.names():
        raise wrong("preset", f"unknown preset {name!r}", nearest(str(name), PRESETS.names()))
    own_keys = {key: written for key, written in value.items() if key != "preset"}
    keys = dict(PRESETS[name].keys)
    if own_keys.get("kind", keys["kind"]) != keys["kind"]:
        text = f"preset {name!r} is of kind {keys['kind']!r}, not {own_keys['kind']!r}"
        raise wrong("kind", text, "leave 'kind' out, or 'preset'")
    if "lengths" in own_keys:  # they stand for these two
        del keys["input_tokens"], keys["output_tokens"]
    return {**keys, **own_keys}


def preset_source(value: Any) -> str | None:
    """Where the numbers of a workload as it is written are from; None without a known preset.

    Names the keys that the file gives in place of the preset's.
    """
    if not isinstance(value, dict) or value.get("preset") not in PRESETS.names():
        return None
    preset = PRESETS[value["preset"]]
    numbers = {*preset.keys, "lengths"} - {"kind", "api", "start"}
    own_keys = sorted(numbers.intersection(value))
    if not own_keys:
        return str(preset.source)
    return f"{preset.source}; not from there, but the file's own: {', '.join(own_keys)}"


_PROCESSES = ("constant", "poisson", "gamma", "ramp", "steps", "trace")
# Process of arrivals -> the function that draws them, an ``orchestrator.load.arrivals.Process``.
ARRIVALS: Registry[Any] = Registry(
    "arrivals", {name: f"orchestrator.load.arrivals:{name}" for name in _PROCESSES}
)


def _scale(value: Any) -> Any:
    """A scale by its name, which strict validation would not take."""
    if isinstance(value, str) and value not in [*Scale]:
        raise ValueError(f"{value!r} is not one of {', '.join(Scale)}")
    return Scale(value) if isinstance(value, str) else value


def _begin(value: Any) -> Any:
    """A beginning by its name, which strict validation would not take."""
    if isinstance(value, str) and value not in [*Begin]:
        raise ValueError(f"{value!r} is not one of {', '.join(Begin)}")
    return Begin(value) if isinstance(value, str) else value


Factor = Annotated[float, Field(ge=0, le=1e6)]
StepLength = Annotated[Duration, Field(gt=0)]
Step = Annotated[tuple[Factor, StepLength], BeforeValidator(as_tuple)]


class _Cycle(NamedTuple):
    """All steps of an arrival process, which are repeated until a point ends.

    ``requests_at_1``: how many requests are due in them at a level of 1 request/s.
    """

    seconds: float
    requests_at_1: float
    largest_factor: float


class Scale(StrEnum):
    """How the recorded times of a workload become the rate of a level."""

    RECORDED = "recorded"  # not at all: the level is the recorded rate
    STRETCH = "stretch"  # all gaps are stretched alike
    THIN = "thin"  # whole sessions are left out


class Begin(StrEnum):
    """Where in a workload's recorded times a point begins."""

    FIRST = "first"  # with the first session
    ANYWHERE = "anywhere"  # with the first after a time drawn by the point's seed


class Arrivals(Growing):
    """When requests are due (open loop only). ``process`` is a name of ARRIVALS; some fields belong
    to one process.
    """

    LATER_KEYS = frozenset({"scale", "begin"})

    WANTED: ClassVar[str] = "a name like poisson, or {process: gamma, burstiness: 0.5}"
    SHORTHAND: ClassVar[Any] = str

    process: str = Field(
        default="poisson",
        description="How the times are drawn: `constant`, `poisson`, `gamma`, `ramp`, `steps` or "
        "`trace`.",
    )
    burstiness: float = Field(
        default=1.0,
        ge=0.001,
        le=1e6,
        description="`gamma`: the shape of its gaps. 1 is the same as `poisson`; smaller is "
        "burstier.",
    )
    to: float | None = Field(
        default=None,
        gt=0,
        description="`ramp`: the rate at the end of the point in requests/s; it begins at the "
        "level's rate.",
    )
    steps: list[Step] | None = Field(
        default=None,
        description="`steps`: pairs of a factor of the level's rate and how long it holds, as "
        "`[[0.5, 60s], [2, 30s]]`. They are repeated until the point ends.",
    )
    trace: str | None = Field(
        default=None,
        description="`trace`: a file with one time in seconds per line, or JSON lines with "
        "`timestamp`. Without a file, the recorded times of the workload are used.",
    )
    speed_up: float = Field(
        default=1.0,
        ge=1e-9,
        le=1e9,
        description="`trace` with a file: its times are divided by this, for example 1000 for "
        "milliseconds.",
    )
    scale: Annotated[Scale, BeforeValidator(_scale)] = Field(
        default=Scale.RECORDED,
        description="`trace` without a file: `recorded` sends at the recorded times, `stretch` "
        "stretches the gaps between sessions to the level's rate, `thin` leaves out whole "
        "sessions.",
    )
    begin: Annotated[Begin | None, BeforeValidator(_begin)] = Field(
        default=None,
        description="`trace` without a file: `first` begins every point with the first session, "
        "`anywhere` with the first after a time drawn anew for each repeat; after the last session "
        "comes the first. By default `anywhere` in searches that stretch or thin, else `first`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"process": value} if isinstance(value, str) else value

    def problem(self, has_recorded_times: bool = False) -> str | None:
        """Why nothing can be drawn from these arrivals; None if something can. The file of a trace
        is not read. ``has_recorded_times``: the workloads have times of their own.
        """
        if self.process not in ARRIVALS:
            return unknown_name("arrival process", self.process, ARRIVALS)
        if self.scale is not Scale.RECORDED and (self.process != "trace" or self.trace):
            return "'scale' is for the recorded times of a workload: process: trace, without a file"
        if self.begin is not None and (self.process != "trace" or self.trace):
            return "'begin' is for the recorded times of a workload: process: trace, without a file"
        needed = {"ramp": "to", "steps": "steps", "trace": "trace"}.get(self.process)
        if needed == "trace" and has_recorded_times:
            return None
        if needed is not None and getattr(self, needed) is None:
            return f"arrivals {self.process!r} need the field {needed!r}"
        return None

    @cached_property
    def _cycle(self) -> _Cycle:
        """All steps together. It is kept, because every level of a deployment needs it."""
        steps = self.steps or [(0.0, 0.0)]
        return _Cycle(
            seconds=sum(length_s for _, length_s in steps),
            requests_at_1=sum(factor * length_s for factor, length_s in steps),
            largest_factor=max(factor for factor, _ in steps),
        )

    def too_much(self, rate: float, seconds: float | None, requests: int | None) -> str | None:
        """Why a point at this mean rate, of this length or number of requests, is more than a
        client can hold; None if it is not.
        """
        ends_with_its_file = self.process == "trace" and self.trace is not None
        if seconds is not None and not ends_with_its_file:
            mean = self._mean_rate(rate, seconds)
            expected = mean * seconds
            if expected > MOST_REQUESTS:
                return (
                    f"{mean:g} requests/s for {hours(seconds)} are {expected:.3g} requests; a point "
                    f"may have {MOST_REQUESTS:,}"
                )
        if requests is not None and requests / rate > MOST_SECONDS:
            return (
                f"{requests:,} requests at {rate:g} requests/s take longer than {MOST_SECONDS:g} s"
            )
        return None if self.steps is None else self._too_many_steps(rate, seconds, requests)

    def _too_many_steps(
        self, rate: float, seconds: float | None, requests: int | None
    ) -> str | None:
        """Why the steps of a point, repeated until it ends, are too many; None if they are not."""
        cycle = self._cycle
        if not cycle.requests_at_1:
            return "nothing is due in any of these steps"
        if seconds is not None:
            cycles = seconds / cycle.seconds
        else:
            cycles = (requests or 0) / rate / cycle.requests_at_1
        if cycles * len(self.steps or ()) > MOST_STEPS:
            return (
                f"these steps would be repeated {cycles:.3g} times; a point may have "
                f"{MOST_STEPS:,} steps"
            )
        return None

    def _mean_rate(self, rate: float, seconds: float) -> float:
        """Requests/s over a point of this length. The last cycle of steps may end after its busiest
        step.
        """
        mean = rate if self.to is None else (rate + self.to) / 2
        cycle = self._cycle
        if not cycle.requests_at_1:
            return mean
        whole_cycles = -(-seconds // cycle.seconds)  # rounded up
        return mean * min(cycle.largest_factor, cycle.requests_at_1 * whole_cycles / seconds)

    def at(self, level: Level) -> str:
        """What rows call these arrivals: the process, unless all requests are due at once or each
        follows an answer.
        """
        if level.control == "concurrency":
            return "closed"
        return "at_once" if level.value == math.inf else self.process


def _from_word(value: Any) -> Any:
    return math.inf if value == INFINITE else value


def in_json(value: Any) -> Any:
    """An infinite rate as the word that stands for it: JSON has no infinity."""
    is_infinite = isinstance(value, float) and value == math.inf
    return INFINITE if is_infinite else value


# Requests/s; infinite: all requests are due at once.
Rate = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(
        _from_word, json_schema_input_type=Annotated[float, Field(gt=0)] | Literal["inf"]
    ),
    PlainSerializer(in_json, when_used="json"),
]


class Level(Strict):
    """One load level: a rate in requests/s or a number of requests kept in flight."""

    control: Control = Field(description="What the level sets: `request_rate` or `concurrency`.")
    value: Rate = Field(description="Requests/s, or requests in flight.")

    @property
    def slots(self) -> int:
        """Requests that a closed loop keeps in flight; 0 in an open loop."""
        return 0 if self.control == "request_rate" else max(1, int(self.value))


class LoadRules(Strict):
    """How a workload is loaded at every level. Of duration and requests at most one is given."""

    model_config = ConfigDict(populate_by_name=True)

    search: str = Field(  # a name of the registry of search strategies
        default="levels",
        description="Which level is measured next: `levels` measures those given, in order; "
        "`curve` goes from idle to saturation; `capacity` finds the highest load that holds each "
        "of the `slos`.",
    )
    full_grid: bool = Field(
        default=False,
        description="`search: capacity`: search every deployment to its end, also those shown to "
        "be worse than another.",
    )
    precision: Annotated[float, Field(ge=0.01, le=1)] | None = Field(
        default=None,
        description="`search: capacity`: the search ends when the lowest level that fails is at "
        f"most this share above the claim. {PRECISION} by default.",
    )
    first_level: Annotated[float, Field(gt=0, lt=math.inf)] | None = Field(
        default=None,
        description="Where a search begins: requests per second, or requests in flight with "
        "`control: concurrency`. By default where the limits are predicted to hold, if there is a "
        "prediction.",
    )
    max_deployments: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="`search: capacity`: start at most so many deployments, those predicted best. "
        "By default all are started.",
    )
    proposer: Literal["optuna"] | None = Field(
        default=None,
        description="`search: capacity`: `optuna` chooses the next deployment by what was "
        "measured of others (extra `optuna`). By default those predicted best come first.",
    )
    objective: Objective | None = Field(
        default=None,
        description="What the best deployment is the best of: throughput per `gpu`, per `usd` (all "
        "hardware needs a price) or per `deployment`. `gpu` by default, or `deployment` where one "
        "has no GPUs of ours, as an endpoint.",
    )
    control: Control | None = Field(
        default=None,
        description="What a search changes: `request_rate` (open loop) or `concurrency` (closed "
        "loop). `search: curve` changes `request_rate` by default, `search: capacity` needs one of "
        "them. Beside `levels` it must agree with them.",
    )
    arrivals: Arrivals = Field(
        default=Arrivals(),
        description="When requests are due in an open loop: a name such as "
        f"`{Arrivals().process}`, which is the default, or `{{process: gamma, burstiness: 0.25}}`. "
        "It is refused if all levels are requests in flight.",
    )
    duration_s: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None,
        alias="duration",
        description="How long each point is measured after its warm-up, "
        f"`{format_duration(DURATION_S)}` by default. Without a `warmup` the steady part of it "
        "counts. `search: capacity`: the longest that a probe may last, "
        f"`{format_duration(PROBE_S)}` by default.",
    )
    requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = Field(
        default=None, description="How many requests to send, instead of a `duration`."
    )
    warmup_s: Annotated[Duration, Field(ge=0)] | None = Field(
        default=None,
        alias="warmup",
        description="How long load runs before the measurement, for example `20s`; its requests "
        "are stored and marked, not counted. By default the measurement begins where the run is "
        "steady, and at once where `requests` are given or the rate of the arrivals changes.",
    )
    max_in_flight: Annotated[int, Field(ge=1, le=MOST_IN_FLIGHT)] | None = Field(
        default=None,
        description="Most requests in flight, over all clients. A request that is due then waits, "
        "and its latency includes the wait.",
    )
    request_timeout_s: Annotated[Duration, Field(gt=0)] = Field(
        default=600.0,
        alias="request_timeout",
        description="After this time a request has failed.",
    )
    drain_timeout_s: Annotated[Duration, Field(ge=0)] | None = Field(
        default=None,
        alias="drain_timeout",
        description="How long to wait for answers after the last arrival; what is still open then "
        "has failed. By default as long as the `request_timeout`.",
    )

    @property
    def default_s(self) -> float:
        """How long a point lasts by default. Probes are long, because near capacity it takes
        minutes to see whether a queue grows.
        """
        return PROBE_S if self.search == "capacity" else DURATION_S


# latencies of a request that may be limited
LIMITS = ("ttft", "tpot", "e2e", "itl_p99", "normalized_ttft")
_PERCENTILE = re.compile(rf"({'|'.join(LIMITS)})_p([0-9]{{1,2}}(?:\.[0-9]{{1,4}})?)")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")
# Words per minute: silent Brysbaert 2019, doi.org/10.1016/j.jml.2019.104047, 190 studies, English
# non-fiction; subvocal and visual (no inner voice) https://en.wikipedia.org/wiki/Subvocalization
# and .../Speed_reading, September 2024
READERS = {"silent": 238.0, "subvocal": 250.0, "visual": 700.0}
# without a tokenizer: "100 tokens ~= 75 words", https://help.openai.com/en/articles/4936856
TOKENS_PER_WORD = 4 / 3

NO_ATTAINMENT = (
    (
        "'attainment' belongs to limits that each request must meet, and all limits here are on "
        "percentiles"
    ),
    "leave it out: a percentile is a share itself, 95 % for ttft_p95",
)


class Limit(NamedTuple):
    """One limit of an SLO. ``of``: the latency of LIMITS that it bounds. ``share``: for a limit on
    a percentile, the share of all requests that must meet it; None: a request must meet it together
    with the SLO's other limits. ``part``: the part of a mix whose requests it is about; None: all
    requests. ``name`` begins with it, as in ``chat:ttft``.
    """

    name: str
    of: str
    seconds: float
    share: float | None
    part: str | None = None


class LimitGroup(NamedTuple):
    """Limits on the requests of one part of a mix, or on all requests (``part`` is None), and the
    share of these requests that must meet those that are not on percentiles.
    """

    part: str | None
    limits: tuple[Limit, ...]
    attainment: float

    @property
    def is_joint(self) -> bool:
        """Whether it has limits on single requests, not only on percentiles. A group without any
        limit has one on single requests too: that they are answered.
        """
        return not self.limits or any(limit.share is None for limit in self.limits)


class PercentileLimit(NamedTuple):
    """What the name of a limit on a percentile says: the latency, and the share of requests that
    must be within the limit.
    """

    latency: str
    share: float


def percentile_limit(name: str) -> PercentileLimit | None:
    """What a name like ``ttft_p95`` says: ``ttft``, 0.95. None for other names."""
    match = _PERCENTILE.fullmatch(name)
    if match is None or float(match[2]) == 0:
        return None
    return PercentileLimit(latency=match[1], share=float(match[2]) / 100)


def swapped_percentile(name: str) -> str | None:
    """The limit that is meant by a name like ``p99_ttft``; None for other names."""
    match = re.fullmatch(r"p([0-9.]+)_?(.+)", name)
    if match is None or percentile_limit(f"{match[2]}_p{match[1]}") is None:
        return None
    return f"{match[2]}_p{match[1]}"


def _percentile(name: str) -> str:
    """The name of a limit on a percentile; anything else is an unknown key."""
    if percentile_limit(name) is not None:
        return name
    swapped = swapped_percentile(name)
    if swapped is not None:
        raise wrong((), f"unknown key {name!r}", f"did you mean {swapped!r}?")
    percentiles = [f"{latency}_p95" for latency in LIMITS]
    keys = [*LIMITS, *percentiles, "reader", "attainment", "agreement"]
    raise wrong((), f"unknown key {name!r}", nearest(name, keys))


def _share(value: Any) -> Any:
    """``95%`` is 0.95, as in ``--slo``."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / 100


Share = Annotated[float, Field(gt=0, le=1)]
# what a file has for a share
WrittenShare = Share | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)? ?%$")]


OF_PERCENTILES = (
    "A limit on a percentile over requests, for example `ttft_p95: 500ms` or `e2e_p99.9: 30s`: this "
    "percentage of all requests must be within it, and failed ones are not. It is a test of its own."
)


def _with_percentiles(schema: dict[str, Any]) -> None:
    """Makes the JSON schema of further limits that of percentiles, by the pattern of their names."""
    limit = schema["additionalProperties"] | {"description": OF_PERCENTILES}
    schema["patternProperties"] = {f"^{_PERCENTILE.pattern}$": limit}
    schema["additionalProperties"] = False


class _Limits(Strict):
    """Latency limits in seconds, on requests or on percentiles."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_with_percentiles)
    __pydantic_extra__: dict[Annotated[str, AfterValidator(_percentile)], Duration]

    ttft: Duration | None = Field(
        default=None,
        description="Longest time to the first token, from when the request was due, for example "
        "`500ms`.",
    )
    tpot: Duration | None = Field(
        default=None,
        description="Longest mean time per output token after the first, for example `50ms`.",
    )
    e2e: Duration | None = Field(
        default=None, description="Longest time of a whole request, for example `30s`."
    )
    itl_p99: Duration | None = Field(
        default=None,
        description="Limit on the 99th percentile of the gaps between a request's own tokens, for "
        "example `200ms`. `itl_p99_p95` is for 95 % of requests.",
    )
    normalized_ttft: Duration | None = Field(
        default=None,
        description="Longest time to the first token per token of the prompt, for example `0.5ms`.",
    )
    # becomes a limit on tpot, see ``resolved``
    reader: Literal["silent", "subvocal", "visual"] | None = Field(
        default=None,
        description="A limit on `tpot`: the answer is written as fast as people read it, in words "
        f"per minute: {', '.join(f'`{name}` {speed:g}' for name, speed in READERS.items())}.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reader is not None and self.tpot is not None:
            text = f"'reader: {self.reader}' is a limit on tpot, and tpot is limited already"
            raise wrong("reader", text, "leave one of them out")
        limits = self.own_limits()
        are_all_percentiles = bool(limits) and all(limit.share for limit in limits)
        if are_all_percentiles and self.reader is None and "attainment" in self.model_fields_set:
            raise wrong("attainment", *NO_ATTAINMENT)
        return self

    @property
    def has_limits(self) -> bool:
        """Whether any limit stands here, a reader's included."""
        return bool(self.own_limits()) or self.reader is not None

    def own_limits(self, part: str | None = None) -> tuple[Limit, ...]:
        """The limits that stand here, as those of ``part``. That of a reader is one of them only
        after ``resolved``.
        """
        prefix = "" if part is None else f"{part}:"
        limits: list[Limit] = []
        for name in LIMITS:
            seconds = getattr(self, name)
            if seconds is not None:
                limits.append(Limit(prefix + name, name, seconds, share=None, part=part))
        for name, seconds in (self.model_extra or {}).items():
            percentile = percentile_limit(name)
            if percentile is not None:
                limit_name = prefix + name
                limits.append(
                    Limit(limit_name, percentile.latency, seconds, percentile.share, part)
                )
        return tuple(limits)

    def resolved(self, tokens_per_word: float = TOKENS_PER_WORD) -> Self:
        """The same, with a reader's words per minute as a limit on time per output token."""
        if self.reader is None:
            return self
        other_keys = self.model_dump(exclude={"reader"}, exclude_none=True, exclude_unset=True)
        return type(self).model_validate(
            other_keys | {"tpot": 60 / READERS[self.reader] / tokens_per_word}
        )

    def scaled(self, ttft_factor: float, other_factor: float) -> Self:
        """The same with its limits times these factors."""
        limits: dict[str, float] = {}
        for limit in self.own_limits():
            factor = ttft_factor if "ttft" in limit.name else other_factor
            limits[limit.name] = limit.seconds * factor
        return self.model_copy(update=limits)


class PartLimits(_Limits):
    """Limits on the requests of one part of a mix."""

    attainment: Annotated[
        float | None, BeforeValidator(_share, json_schema_input_type=WrittenShare | None)
    ] = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the part's requests that must meet all its limits that are no "
        "percentiles; by default that of the whole SLO.",
    )


class _Named(Strict):
    """What has the name of its key. It comes first in what plans store."""

    name: Name = Field(default="slo", description="The key of these limits under `slos`.")


class Slo(_Limits, _Named):
    """Latency limits in seconds.

    A request must meet all plain limits (``ttft``) together, and at least the share ``attainment``
    of all requests must do so. A limit on a percentile (``ttft_p95``) stands alone: 95 % of all
    requests must meet it. With ``parts`` that is so for the requests of each part of a mix, and the
    SLO holds where it holds for every part. ``agreement`` limits a deployment, whatever its load:
    at least this share of its answers to fixed prompts equals those of its model's reference.
    """

    model_config = _Limits.model_config  # that of the other base takes no percentiles

    parts: dict[Name, PartLimits] | None = Field(
        default=None,
        description="Limits by part of a mix, for example `{chat: {ttft: 500ms}}`; they must hold "
        "for every part.",
    )
    attainment: Annotated[float, BeforeValidator(_share, json_schema_input_type=WrittenShare)] = (
        Field(
            default=0.95,
            gt=0,
            le=1,
            description="Share of all requests that must meet all limits that are no percentiles, as "
            "0.95 or `95%`.",
        )
    )
    agreement: Annotated[
        Share | None, BeforeValidator(_share, json_schema_input_type=WrittenShare | None)
    ] = Field(
        default=None,
        description="Share of a deployment's answers to fixed prompts that must equal those of "
        "its model's reference, whatever the load. `best` ranks no deployment below it, nor one "
        "whose agreement is not known; searches do not look at it.",
    )

    @model_validator(mode="after")
    def _of_parts(self) -> Self:
        if self.parts is None:
            return self
        if not self.parts:
            raise wrong("parts", "'parts' has no part", "give limits like {chat: {ttft: 500ms}}")
        if self.has_limits:
            text = "limits of parts and limits on all requests are two SLOs"
            raise wrong("parts", text, "give the limits on all requests another name under 'slos'")
        for name, limits in self.parts.items():
            if not limits.has_limits:
                text = f"part {name!r} has no limit"
                hint = f"give at least one of {', '.join(LIMITS)}, reader"
                raise wrong(("parts", name), text, hint)
        has_joint = any(group.is_joint for group in self.groups)
        has_readers = any(limits.reader for limits in self.parts.values())
        if "attainment" in self.model_fields_set and not (has_joint or has_readers):
            raise wrong("attainment", *NO_ATTAINMENT)
        return self

    @property
    def groups(self) -> tuple[LimitGroup, ...]:
        """The limits that are set, by what they are about; see ``own_limits``."""
        if self.parts is None:
            return (LimitGroup(None, self.own_limits(), self.attainment),)
        groups: list[LimitGroup] = []
        for name, limits in self.parts.items():
            attainment = self.attainment if limits.attainment is None else limits.attainment
            groups.append(LimitGroup(name, limits.own_limits(name), attainment))
        return tuple(groups)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """All limits that are set; see ``own_limits``."""
        return tuple(limit for group in self.groups for limit in group.limits)

    def of_part(self, part: str) -> Self | None:
        """The limits on one part of a mix alone; None if there are none."""
        limits = (self.parts or {}).get(part)
        if limits is None:
            return None
        return self.model_copy(update={"parts": {part: limits}, "agreement": None})

    def to_meet(self, limit: Limit) -> float:
        """The share of the requests that a limit is about that must meet it."""
        if limit.share is not None:
            return limit.share
        attainments = {group.part: group.attainment for group in self.groups}
        return attainments[limit.part]

    @property
    def readers(self) -> dict[str, str]:
        """The readers among the limits, by the name of the SLO, with that of the part."""
        readers = {} if self.reader is None else {self.name: str(self.reader)}
        for name, limits in (self.parts or {}).items():
            if limits.reader is not None:
                readers[f"{self.name}, {name}"] = limits.reader
        return readers

    def resolved(self, tokens_per_word: float = TOKENS_PER_WORD) -> Self:
        if self.parts is None:
            return super().resolved(tokens_per_word)
        parts = {name: limits.resolved(tokens_per_word) for name, limits in self.parts.items()}
        return self.model_copy(update={"parts": parts})

    def scaled(self, ttft_factor: float, other_factor: float) -> Self:
        if self.parts is None:
            return super().scaled(ttft_factor, other_factor)
        parts = {
            name: limits.scaled(ttft_factor, other_factor) for name, limits in self.parts.items()
        }
        return self.model_copy(update={"parts": parts})

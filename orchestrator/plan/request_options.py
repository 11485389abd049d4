"""Whether the API of a deployment takes what a workload asks for beside its prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.registry import did_you_mean
from orchestrator.engines.command_lines import CommandLine, release_of
from orchestrator.engines.engine import Engine
from orchestrator.plan.feasibility import RuleFinding
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Workload
from orchestrator.spec.request_options import WITHOUT_ANY_ANSWER, reason_to_refuse
from orchestrator.spec.settings import EngineSettings

OTHER_ENGINE = "leave it out, or measure it with another engine"


def options_mismatch(
    workload: Workload,
    engine: Engine,
    settings: EngineSettings,
    dialects: Mapping[str, Dialect],
) -> RuleFinding | None:
    """Finds that a deployment cannot be measured, because the workload constrains answers, sends
    tools or asks for further fields in a way that its API does not take. None: it takes all of it.

    ``dialects``: what the engine takes in each of the deployment's APIs.
    """
    if workload.api not in dialects:
        return None  # another rule finds that the deployment has no such API
    sentences: list[str] = []
    for part in workload.with_parts():
        sentences += _token_id_problems(part, engine, dialects[workload.api])
        sentences += _constraint_problems(part, engine, dialects)
        sentences += _tool_problems(part, engine, dialects[workload.api])
        sentences += _problems_of_both(part, engine, dialects[workload.api])
        sentences += _field_problems(part, engine, dialects)
        sentences += _ignored_fields(part, engine, settings, is_certain=True)
    if not sentences:
        return None
    return RuleFinding("impossible", "request_options", "; ".join(sentences))


def notes_on_fields(workload: Workload, engine: Engine, settings: EngineSettings) -> list[str]:
    """Sentences about further fields that the recorded release of an engine ignores: where a
    deployment may run another release, and where no answer changes by them.
    """
    sentences: list[str] = []
    for part in workload.with_parts():
        if not part.asked_fields():
            continue  # of most workloads; the dialects of every deployment take long to make
        sentences += _ignored_fields(part, engine, settings, is_certain=False)
        sentences += _fields_without_any_answer(part, engine, settings)
    return sentences


def _token_id_problems(workload: Workload, engine: Engine, dialect: Dialect) -> list[str]:
    if dialect.prompt_token_ids or not workload.sends_token_ids():
        return []
    return [
        f"workload {workload.name!r} has prompts of token ids, and the API {workload.api!r} of "
        f"{engine.title} takes texts alone"
    ]


def _constraint_problems(
    workload: Workload, engine: Engine, dialects: Mapping[str, Dialect]
) -> list[str]:
    supported = dialects[workload.api].constraints
    unsupported = sorted(workload.constraint_kinds() - supported.keys())
    if not unsupported:
        return []
    kind = unsupported[0]  # one is enough to refuse the workload
    other_apis = [api for api, dialect in dialects.items() if kind in dialect.constraints]
    if other_apis:
        remedy = _remedy_of_apis(other_apis)
    elif supported:
        remedy = f"use {' or '.join(supported)}"
    elif "guided_decoding_backend" in engine.supported_fields():
        remedy = "set guided_decoding_backend"
    else:
        remedy = "measure it with another engine"
    return [
        f"workload {workload.name!r} constrains answers by a {kind}, and the API "
        f"{workload.api!r} of {engine.title} has no field for it here: {remedy}"
    ]


def _tool_problems(workload: Workload, engine: Engine, dialect: Dialect) -> list[str]:
    tools_at = workload.tools_at()
    if tools_at is None:
        return []
    name = f"workload {workload.name!r}"
    if not dialect.tool_choices:
        return [
            f"{name} sends tools{_of_file(tools_at)}, and the API {workload.api!r} of "
            f"{engine.title} takes none"
        ]
    taken = ", ".join(sorted(dialect.tool_choices))
    return [
        f"{name} has the tool_choice {choice}{_of_file(place)}, and {engine.title} as it is set "
        f"here takes only {taken}: see `tools` in docs/reference/workloads.md"
        for choice, place in workload.asked_tool_choices().items()
        if choice not in dialect.tool_choices
    ]


def _of_file(place: str) -> str:
    return f" ({place})" if place else ""


def _problems_of_both(workload: Workload, engine: Engine, dialect: Dialect) -> list[str]:
    """Constraints that the engine refuses for an answer that may call a tool."""
    if not workload.asked_tool_choices().keys() - {"none"}:
        return []
    refused = sorted(workload.constraint_kinds() & dialect.free_beside_tools)
    if not refused:
        return []
    return [
        f"workload {workload.name!r} sends tools and constrains answers by a {refused[0]}, and "
        f"{engine.title} refuses both in one request: leave one of them out, or set tool_choice to "
        "none"
    ]


def _field_problems(
    workload: Workload, engine: Engine, dialects: Mapping[str, Dialect]
) -> list[str]:
    """Further fields that the engine refuses, or takes without doing what they ask for."""
    dialect = dialects[workload.api]
    if dialect.allowed_fields is None:
        return []  # what the engine does not know, it ignores: see _ignored_fields
    asked = workload.asked_fields()
    refused = asked - dialect.allowed_fields
    without_effect = (asked & dialect.without_effect) - WITHOUT_ANY_ANSWER
    problems: list[str] = []
    for fields, does in (
        (refused, "refuses"),
        (without_effect, "takes and does not apply"),
    ):
        for remedy, names in _by_remedy(fields, dialects).items():
            problems.append(
                f"workload {workload.name!r} asks for {', '.join(names)}, which the API "
                f"{workload.api!r} of {engine.title} {does}: {remedy}"
            )
    return problems


def _by_remedy(field_names: Iterable[str], dialects: Mapping[str, Dialect]) -> dict[str, list[str]]:
    """What to do about fields that an API refuses or does not apply: remedy -> its fields."""
    names_by_remedy: dict[str, list[str]] = {}
    for field_name in sorted(field_names):
        other_apis = [api for api, dialect in dialects.items() if dialect.applies(field_name)]
        remedy = _remedy_of_apis(other_apis) or OTHER_ENGINE
        names_by_remedy.setdefault(remedy, []).append(field_name)
    return names_by_remedy


def _remedy_of_apis(apis: Sequence[str]) -> str:
    """The advice to use another API; "" where there is none."""
    return f"use the API {' or '.join(apis)}" if apis else ""


@dataclass(frozen=True, slots=True)
class IgnoredFields:
    """Further fields of a workload that the release of a deployment ignores, or refuses requests
    for, as far as its fields are recorded.

    ``refuses``: whether it refuses them. ``is_certain``: whether the deployment states that it runs exactly this release and names no
    plugins, which may read fields of their own. ``doubt``: what may be otherwise, as a part of a
    sentence.
    """

    names: frozenset[str]
    command_line: CommandLine
    refuses: bool
    is_certain: bool
    doubt: str

    @property
    def without_any_answer(self) -> frozenset[str]:
        """Those that are ignored, and change no answer of any engine."""
        return frozenset() if self.refuses else self.names & WITHOUT_ANY_ANSWER


def _ignored(workload: Workload, engine: Engine, settings: EngineSettings) -> IgnoredFields | None:
    """The fields that are asked for and not recorded; None where nothing can be said of them."""
    asked = workload.asked_fields()
    release = release_of(engine.name, settings) if asked else None
    if release is None:
        return None
    known = release.command_line.request_fields.get(workload.api)
    if known is None or asked <= known:
        return None
    may_have_plugins = engine.plugins_variable in settings.env
    doubt = ""
    if not release.is_exact:
        doubt = ", as may the release that runs"
    elif may_have_plugins:
        doubt = f", unless a plugin of {engine.plugins_variable} reads it"
    is_certain = release.is_exact and not may_have_plugins
    refuses = workload.api in release.command_line.refusing_apis
    return IgnoredFields(asked - known, release.command_line, refuses, is_certain, doubt)


def _ignored_fields(
    workload: Workload, engine: Engine, settings: EngineSettings, is_certain: bool
) -> list[str]:
    """Sentences about ignored or refused fields that would change answers. They are refused only if they are
    certain: a server that ignores a field measures as well as one that knows it, so a guess refuses
    nothing. [] unless ``is_certain`` fits the deployment.
    """
    ignored = _ignored(workload, engine, settings)
    if ignored is None or ignored.is_certain is not is_certain:
        return []
    name = f"{engine.title} {ignored.command_line.version}"
    does = "refuses" if ignored.refuses else "ignores"
    sentences: list[str] = []
    for field_name in sorted(ignored.names - ignored.without_any_answer):
        remedy = _remedy_of_ignored_field(field_name, ignored.command_line, workload.api)
        sentences.append(
            f"workload {workload.name!r} asks for {field_name}, which the API {workload.api!r} of "
            f"{name} {does}{ignored.doubt}: {remedy}"
        )
    return sentences


def _fields_without_any_answer(
    workload: Workload, engine: Engine, settings: EngineSettings
) -> list[str]:
    """Sentences about ignored fields that change no answer: they are sent, and nothing is lost."""
    names: frozenset[str] = frozenset()
    version = ""
    doubt = ""
    ignored = _ignored(workload, engine, settings)
    if ignored is not None:
        names = ignored.without_any_answer
        version = f" {ignored.command_line.version}"
        doubt = ignored.doubt
    dialect = engine.dialects(settings).get(workload.api)
    if dialect is not None:
        names |= workload.asked_fields() & dialect.without_effect
    names &= WITHOUT_ANY_ANSWER
    if not names:
        return []
    return [
        f"workload {workload.name!r} sends {', '.join(sorted(names))}, which the API "
        f"{workload.api!r} of {engine.title}{version} ignores{doubt}: no answer changes by it"
    ]


def _remedy_of_ignored_field(field_name: str, command_line: CommandLine, api: str) -> str:
    """What to do about a field that the API of a workload ignores."""
    fields_by_api = command_line.request_fields.items()
    other_apis = [api for api, fields in fields_by_api if field_name in fields]
    if other_apis:
        return _remedy_of_apis(other_apis)
    known = command_line.request_fields[api]
    may_be_given = [name for name in known if reason_to_refuse(name) is None]
    guess = did_you_mean(field_name, may_be_given)
    return guess or OTHER_ENGINE

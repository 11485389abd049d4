"""The JSON schema of experiment files: keys, types and descriptions for editors and other tools.

It is made of the models that read the file, so the two cannot differ in a key. What several keys
must say together (a deployment without a model, roles without a router) is not in it, nor is
anything that needs an engine or another file: ``orchestrator plan`` checks that.

It is of draft 7, which every editor knows. A description may stand beside a reference: draft 7
ignores it, and editors show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.spec.combinations import FIELDS, OF_ROUTER, PER_ROLE, Block
from orchestrator.spec.experiment import ExperimentFile
from orchestrator.spec.load import (
    ARRIVALS,
    DURATION_PATTERN,
    PRESETS,
    WORKLOADS,
    Workload,
    format_duration,
)
from orchestrator.spec.settings import PARTS, ROLES, ROUTER, EngineSettings

Schema = dict[str, Any]
SCHEMA_FILE = "experiment.schema.json"  # shipped beside this file
DIALECT = "http://json-schema.org/draft-07/schema#"
SETTINGS = "#/$defs/EngineSettings/properties"
REQUIRED = ["version", "name", "deployments", "workloads", "load"]
NAMED_BY_KEY = ("Hardware", "Slo")  # the key of these is their name
# what pydantic adds: titles that repeat the key, and bounds of text in words of its own
_NOISE = ("title", "gt", "ge", "lt", "le")
_HOLD_MANY = ("properties", "patternProperties", "$defs")  # schemas by name
_HOLD_LISTS = ("anyOf", "allOf")
_HOLD_ONE = ("items", "additionalProperties")
_OF_ARRAYS = {"minLength": "minItems", "maxLength": "maxItems"}
# spec/load.py: WrittenDuration
_DURATION = [{"type": "string", "pattern": DURATION_PATTERN}, {"type": "integer", "const": 0}]


@dataclass(frozen=True, slots=True)
class Names:
    """What a file may name of other parts of the program."""

    engines: Sequence[str]
    routers: Sequence[str]
    searches: Sequence[str]


def experiment_schema(names: Names) -> Schema:
    """The schema of a whole file."""
    kinds = {kind: WORKLOADS[kind] for kind in WORKLOADS}
    models: list[type[BaseModel]] = [ExperimentFile, EngineSettings, Block, *kinds.values()]
    _, generated = models_json_schema([(model, "validation") for model in models])
    definitions: dict[str, Schema] = _tidied(generated)["$defs"]
    for definition in definitions.values():
        _without_docstrings(definition)
    for name in NAMED_BY_KEY:
        del definitions[name]["properties"]["name"]
        definitions[name].pop("required", None)
    root = definitions.pop(ExperimentFile.__name__)
    root["required"] = REQUIRED
    root["properties"]["deployments"]["anyOf"] = [
        _reference("Deployments"),
        {"type": "array", "minItems": 1, "items": _reference("Deployments")},
    ]
    definitions["Duration"] = {"anyOf": _DURATION, "description": "A duration with its unit."}
    _name_choices(definitions, names)
    _add_deployments(definitions)
    model_names = {kind: model.__name__ for kind, model in kinds.items()}
    definitions["Workload"] = _workload(definitions, model_names)
    return {
        "$schema": DIALECT,
        "title": "Experiment",
        "type": "object",
        "properties": root["properties"],
        "required": root["required"],
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


def _reference(definition: str) -> Schema:
    return {"$ref": f"#/$defs/{definition}"}


def _mapping(properties: Schema, patterns: Schema | None = None) -> Schema:
    """The schema of a mapping that takes no other keys."""
    schema: Schema = {"type": "object", "properties": properties}
    if patterns:
        schema["patternProperties"] = patterns
    return schema | {"additionalProperties": False}


def _tidied(schema: Schema) -> Schema:
    """A schema of pydantic without noise, in draft 7, with durations as a file writes them."""
    kept: Schema = {}
    for key, value in schema.items():
        if key in _HOLD_MANY:
            kept[key] = {name: _tidied(inner) for name, inner in value.items()}
        elif key in _HOLD_LISTS:
            kept[key] = [_tidied(inner) for inner in value]
        elif key == "prefixItems":
            kept["items"] = [_tidied(inner) for inner in value]
        elif key in _HOLD_ONE and isinstance(value, dict):
            kept[key] = _tidied(value)
        elif key not in _NOISE:
            kept[key] = value
    if kept.get("type") == "array":  # pydantic bounds a tuple that was made of a list like a text
        kept = {_OF_ARRAYS.get(key, key): value for key, value in kept.items()}
    alternatives = kept.get("anyOf", [])
    if alternatives[: len(_DURATION)] == _DURATION:
        kept["anyOf"] = [_reference("Duration"), *alternatives[len(_DURATION) :]]
        if isinstance(kept.get("default"), float):
            kept["default"] = format_duration(kept["default"])
    if not isinstance(kept.get("default"), str | int | float):
        kept.pop("default", None)  # nothing, or a whole mapping
    return kept


def _without_docstrings(definition: Schema) -> None:
    """Removes the docstring of a class, which is written for programmers."""
    definition.pop("description", None)
    for alternative in definition.get("anyOf", ()):
        alternative.pop("description", None)


def _name_choices(definitions: Mapping[str, Schema], names: Names) -> None:
    """Lists the names that a file may choose from where pydantic only knows that they are text."""
    settings = definitions["EngineSettings"]["properties"]
    settings["engine"]["enum"] = list(names.engines)
    definitions["Load"]["properties"]["search"]["enum"] = list(names.searches)
    as_name, as_mapping = definitions["Arrivals"]["anyOf"]
    as_name["enum"] = list(ARRIVALS)
    as_mapping["properties"]["process"]["enum"] = list(ARRIVALS)
    router = _settings_of(OF_ROUTER)
    router["engine"] = settings["engine"] | {"enum": list(names.routers)}
    settings[ROUTER] = {
        "anyOf": [_mapping(router), {"type": "null"}],
        "description": settings[ROUTER]["description"],
    }


def _add_deployments(definitions: dict[str, Schema]) -> None:
    """Defines what combinations.py reads: settings with roles and dotted names, and the blocks that
    multiply them.
    """
    settings = definitions["EngineSettings"]["properties"]
    settings["engine_version"]["anyOf"].append({"type": "number"})  # taken as it is written
    settings["hardware"] = {
        "type": ["string", "null"],
        "description": "A class of `hardware`, or `cpu`. By default what the cluster has.",
    }
    definitions["Role"] = {"anyOf": [_mapping(_settings_of(PER_ROLE)), {"type": "null"}]}
    settings["roles"] = {
        "anyOf": [
            _mapping({role: _reference("Role") for role in ROLES}),
            {"type": "null"},
        ],
        "description": settings["roles"]["description"],
    }
    # this definition is only pointed into: none of its keys is required anywhere
    definitions["EngineSettings"] = {"properties": settings}
    properties = _settings_of(FIELDS) | {part: _reference("Role") for part in PARTS}
    patterns: Schema = {}
    for name in PER_ROLE:
        patterns[rf"^roles\.({'|'.join(ROLES)})\.{name}$"] = _setting(name)
    for name in OF_ROUTER:
        patterns[rf"^{ROUTER}\.{name}$"] = _router_setting(name)
    definitions["Case"] = _mapping(properties, patterns)
    lists = _lists_of(properties)
    for name in FIELDS:
        lists[name]["description"] = settings[name]["description"]
    axes = _mapping(lists, _lists_of(patterns))
    definitions["Axes"] = axes | {"minProperties": 1}
    block = definitions["Block"]["properties"]
    for notation in ("grid", "zip"):
        block[notation]["anyOf"][0] = _reference("Axes")
    block["cases"]["anyOf"][0]["items"] = _reference("Case")
    controls: Schema = {
        "vary": {
            "type": ["array", "null"],
            "items": _reference("Block"),
            "description": "Blocks of choices (`grid`, `zip` or `cases`). Blocks multiply; the "
            "last one varies fastest.",
        },
        "derive": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "string"},
            "description": "Expressions by name, for example "
            "`{gpus: tensor_parallel_size * pipeline_parallel_size}`. The name of a setting sets "
            "it.",
        },
        "exclude": {
            "type": ["array", "null"],
            "items": {"type": "string"},
            "description": 'Expressions, for example `["gpus > 8"]`. Combinations for which one '
            "of them is true are left out.",
        },
    }
    definitions["Deployments"] = _mapping(properties | controls, patterns) | {"minProperties": 1}


def _setting(name: str) -> Schema:
    return {"$ref": f"{SETTINGS}/{name}"}


def _router_setting(name: str) -> Schema:
    return {"$ref": f"{SETTINGS}/{ROUTER}/anyOf/0/properties/{name}"}


def _settings_of(names: Sequence[str]) -> Schema:
    return {name: _setting(name) for name in names}


def _lists_of(values: Mapping[str, Schema]) -> Schema:
    """A list with at least one value for each key."""
    return {key: {"type": "array", "minItems": 1, "items": value} for key, value in values.items()}


def _workload(definitions: dict[str, Schema], models: Mapping[str, str]) -> Schema:
    """A workload of each kind: what ``kind``, or else the preset, says decides the keys.
    ``models``: kind -> its definition.
    """
    preset = {
        "enum": list(PRESETS),
        "description": "Keys of a ready workload; keys beside it win. `plan` keeps all of them "
        "written out.",
    }
    cases: list[Schema] = []
    for kind, model in models.items():
        definitions[model]["properties"]["preset"] = preset
        definitions[f"{model}OfPreset"] = _of_preset(model, definitions[model])
        is_kind = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
        has_preset = {"required": ["preset"]}
        cases.append(_case({"allOf": [is_kind, {"not": has_preset}]}, model))
        cases.append(_case({"allOf": [is_kind, has_preset]}, f"{model}OfPreset"))
    has_neither = {"not": {"anyOf": [{"required": ["kind"]}, {"required": ["preset"]}]}}
    cases.append(_case(has_neither, models["random"]))
    for name in PRESETS:
        is_preset = {"properties": {"preset": {"const": name}}, "required": ["preset"]}
        condition = {"allOf": [is_preset, {"not": {"required": ["kind"]}}]}
        cases.append(_case(condition, f"{models[PRESETS[name].keys['kind']]}OfPreset"))
    kind_key: Schema = {
        "enum": list(models),
        "description": Workload.model_fields["kind"].description,
    }
    properties = {"kind": kind_key, "preset": preset}
    return {"type": "object", "required": ["name"], "properties": properties, "allOf": cases}


def _case(condition: Schema, definition: str) -> Schema:
    return {"if": condition, "then": _reference(definition)}


def _of_preset(model: str, definition: Schema) -> Schema:
    """A workload whose preset gives the keys that its kind needs."""
    properties = {
        key: {"$ref": f"#/$defs/{model}/properties/{key}"} for key in definition["properties"]
    }
    return _mapping(properties) | {"required": ["name"]}

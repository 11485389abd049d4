"""The reference pages that are made from the code: commands, keys of the experiment file, stored
columns, and which engine has which setting. documented_tables.py writes them.
"""

from __future__ import annotations

import argparse
import html
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.main import COMMANDS, cli
from orchestrator.cli.schema import schema_text
from orchestrator.emulator.flags import parser as emulator_parser
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ENGINES
from orchestrator.report.columns import point_columns
from orchestrator.results.schemas import RECORDS, arrow_schema
from orchestrator.spec.combinations import FIELDS
from tests.unit.documentation.pages import anchor

Schema = Mapping[str, Any]
CODE = re.compile(r"(`[^`]*`)")
CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")
NOT_LISTED = ("--help", "--help-all")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [tuple(heads), ("---",) * len(heads)]
    for row in rows:
        lines.append(tuple(_cell(str(cell)) for cell in row))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """The text of a cell, in which an upright bar does not begin the next one. GitHub and MkDocs
    agree about bars in code only where the code is HTML.
    """
    one_line = text.replace("\n", " ")
    with_code = CODE_WITH_BAR.sub(lambda match: f"<code>{html.escape(match[1])}</code>", one_line)
    return with_code.replace("|", "&#124;")


# --- commands


def commands() -> str:
    """Every command: what it does, its options, its examples and what else its help says."""
    context = click.Context(cli, info_name="orchestrator")
    sections: list[str] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        sections += _command_sections(command, name, context)
    return "\n\n".join(sections)


def _command_sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"## {context.command_path.removeprefix('orchestrator ')}"
    if isinstance(command, click.Group):
        yield _markdown(command.help or "")
        for subcommand in command.list_commands(context):
            inner = command.get_command(context, subcommand)
            assert inner is not None
            yield from _command_sections(inner, subcommand, context)
        return
    words = " ".join(command.collect_usage_pieces(context))
    yield f"`{context.command_path} {words}`".replace("[OPTIONS] [ARGV]...", "[OPTIONS]")
    yield _markdown(command.help or "")
    options = list(_options_of_emulator() if name == "emulator" else _options(command, context))
    if options:
        yield table(("option", "meaning"), options)
    if command.epilog:
        yield _markdown(command.epilog)


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option):
            continue
        record = parameter.get_help_record(context)
        if record is None or set(parameter.opts) & set(NOT_LISTED):
            continue
        spelling, meaning = record
        yield f"`{spelling}`", _escaped(meaning.replace("  [", " ["))


def _options_of_emulator() -> Iterator[tuple[str, str]]:
    for action in emulator_parser()._actions:
        if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        yield f"`{', '.join(action.option_strings)}{value}`", _escaped(action.help or "")


def _markdown(text: str) -> str:
    """A help text of click: paragraphs, and as code what click is told to leave as it is."""
    parts = []
    for paragraph in re.split(r"\n\n+", inspect.cleandoc(text)):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":
            parts.append("```text\n" + "\n".join(lines[1:]).rstrip() + "\n```")
        elif paragraph.strip():
            parts.append(_escaped(" ".join(line.strip() for line in lines).replace("``", "`")))
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """Prose of a help text, of which Markdown makes no markup. Code in it stays as it is."""
    parts = CODE.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("*", "\\*")
    return "".join(parts)


# --- keys of the experiment file

# The pages that say what keys mean together.
FILE = "[The experiment file](experiment-file.md#top-level)"
DEPLOYMENTS = "[Deployments](deployments.md#vary-derive-exclude)"
SETTINGS = "[Settings](deployments.md#settings)"
ROLES = "[Prefill and decode replicas](../guides/roles.md)"
LOAD = "[Load and limits](load.md#load)"


@dataclass(frozen=True, slots=True)
class KeysOfModel:
    """Where the keys of a model of the schema are written.

    ``heading``: of their table. ``explained``: a link to what they mean together.
    ``like``: the model whose keys it has too, so that only its own are listed.
    """

    heading: str
    explained: str = ""
    like: str | None = None

    @property
    def link(self) -> str:
        """What a value of this model is called in another table, as a link to its own."""
        name = re.split(", |: a ", self.heading)[0]
        return f"[{name}](#{anchor(self.heading)})"


TOP_LEVEL = KeysOfModel("Top level", FILE)
# The other models of the schema stand below their own names.
PLACES = {
    "Workload": KeysOfModel("`workloads`, each of them", "[Workloads](workloads.md)"),
    "ModelRef": KeysOfModel("`model`"),
    "Hardware": KeysOfModel("`hardware`, each class", "[Hardware](hardware.md#hardware)"),
    "Environment": KeysOfModel(
        "`environments`, each version of an engine", "[Environments](hardware.md#environments)"
    ),
    "Deployments": KeysOfModel("`deployments`", DEPLOYMENTS),
    "Block": KeysOfModel("`vary`, each block", DEPLOYMENTS),
    "EngineSettings": KeysOfModel("`deployments`, settings", f"{SETTINGS}, {ROLES}"),
    "Speculative": KeysOfModel("`speculative`", SETTINGS),
    "Load": KeysOfModel("`load`", LOAD),
    "Levels": KeysOfModel(
        "`levels`", "[Levels that fit every deployment](load.md#levels-that-fit-every-deployment)"
    ),
    "Arrivals": KeysOfModel(
        "`arrivals`",
        "[Steps](load.md#steps), [Recorded traces](traces.md)",
    ),
    "Slo": KeysOfModel("`slos`, each of them", "[Limits](load.md#slos)"),
    "PartLimits": KeysOfModel(
        "`parts` of limits, each of them",
        "[Limits on parts of a mix](load.md#limits-on-parts-of-a-mix)",
        like="Slo",
    ),
    "Budget": KeysOfModel("`budget`", FILE),
    "Predictions": KeysOfModel("`predictions`", "[Predictions](../explained/predictions.md)"),
    "Documents": KeysOfModel("`documents`", "[Documents](workloads.md#documents)"),
    "Popularity": KeysOfModel("`popularity`"),
    "HubDataset": KeysOfModel("`dataset`", "[Prompts from a file](prompts.md)"),
    "PromptColumns": KeysOfModel(
        "`columns` of `kind: file`",
        "[Prompts from a file](prompts.md)",
    ),
    "TraceColumns": KeysOfModel("`columns` of `kind: trace`", "[Recorded traces](traces.md)"),
    "Keep": KeysOfModel("`keep`"),
    "LengthPair": KeysOfModel("`lengths`, each pair", "[Lengths](workloads.md#lengths)"),
    "MixPart": KeysOfModel("`parts`, each of them", "[Mixes](workloads.md#mixes)"),
    "Adapters": KeysOfModel("`adapters`", "[Adapters](workloads.md#adapters)"),
    "Images": KeysOfModel("`images`", "[Images](workloads.md#images)"),
    "Constrain": KeysOfModel(
        "`constrain`", "[Constrained answers](workloads.md#constrained-answers)"
    ),
    "NamedTool": KeysOfModel("`tool_choice`: a word, or"),
    "ContentSource": KeysOfModel("`content`"),
    "Window": KeysOfModel("`window`"),
    "Lengths": KeysOfModel("lengths: a number, or", "[Lengths](workloads.md#lengths)"),
    "AnswerLengths": KeysOfModel("lengths of answers: a number, or", like="Lengths"),
    "Uniform": KeysOfModel("`uniform` of lengths"),
    "LogNormal": KeysOfModel("`lognormal` of lengths"),
    "Normal": KeysOfModel("`normal` of lengths"),
    "Bin": KeysOfModel("`histogram` of lengths, each bin"),
    "Turns": KeysOfModel("`turns`: a number, or", like="Lengths"),
    "Pauses": KeysOfModel("pauses: a duration, or"),
    "UniformPause": KeysOfModel("`uniform` of pauses"),
    "LogNormalPause": KeysOfModel("`lognormal` of pauses"),
    "NormalPause": KeysOfModel("`normal` of pauses"),
    "ExponentialPause": KeysOfModel("`exponential` of pauses"),
}
WORKLOAD = re.compile(r"(\w+)Workload$")
PERCENTILES = "`NAME_pNN`"  # the only keys that a table has by a pattern of their names
REPEATED = re.compile(r"Axes|Case|Role|Workload|\w+OfPreset")  # keys that stand elsewhere
OF_DEPLOYMENTS = ("vary", "derive", "exclude")


def experiment_keys() -> str:
    """Every key of the experiment file, by the mapping that it stands in."""
    schema = json.loads(schema_text())
    definitions: dict[str, Schema] = schema["$defs"]
    sections = [_section(TOP_LEVEL, _key_rows(schema))]
    sections.append(_section(PLACES["Workload"], _workload_rows(definitions)))
    known = [name for name in PLACES if name in definitions]
    others = [name for name in definitions if name not in PLACES]
    for name in (*known, *others):
        if REPEATED.fullmatch(name) or WORKLOAD.match(name):
            continue
        mapping = _mapping(definitions[name])
        if mapping is None:
            continue
        if name == "Deployments":
            properties = {key: mapping["properties"][key] for key in OF_DEPLOYMENTS}
            mapping = {"properties": properties}
        place = PLACES.get(name)
        if place is None:
            place = KeysOfModel(re.sub(r"(?<!^)(?=[A-Z])", " ", name).capitalize())
        rows = list(_key_rows(mapping))
        if place.like is not None:
            others_mapping = _mapping(definitions[place.like])
            assert others_mapping is not None
            rows_there = set(_key_rows(others_mapping))
            rows = [row for row in rows if row not in rows_there]
        sections.append(_section(place, rows))
    return "\n\n".join(sections)


def _section(place: KeysOfModel, rows: Iterable[tuple[str, str, str, str]]) -> str:
    """The keys of one mapping, below their heading."""
    parts = [f"## {place.heading}"]
    listed = list(rows)
    if place.like is not None:
        keys = f"The keys of {PLACES[place.like].link}"
        parts.append(f"{keys}, and:" if listed else f"{keys}.")
    if listed:
        parts.append(table(("key", "value", "default", "meaning"), listed))
    if place.explained:
        parts.append(f"More: {place.explained}.")
    return "\n\n".join(parts)


def _mapping(definition: Schema) -> Schema | None:
    """The alternative of a definition that has keys."""
    for alternative in (definition, *definition.get("anyOf", ())):
        if alternative.get("properties"):
            return dict(alternative)
    return None


def _key_rows(mapping: Schema) -> Iterator[tuple[str, str, str, str]]:
    for key, value in mapping["properties"].items():
        is_required = key in mapping.get("required", ())
        yield _key_row(f"`{key}`", value, is_required, value.get("description", ""))
    for value in mapping.get("patternProperties", {}).values():
        yield _key_row(PERCENTILES, value, False, value["description"])


def _key_row(key: str, value: Schema, is_required: bool, meaning: str) -> tuple[str, str, str, str]:
    default = "required" if is_required else _default(value)
    return key, _value(value), default, _escaped(meaning)


def _workload_rows(definitions: Mapping[str, Schema]) -> Iterator[tuple[str, str, str, str]]:
    """The keys of all kinds of workloads, with a row for each meaning; a row that is not about all
    kinds says which ones.
    """
    models = [name for name in definitions if WORKLOAD.match(name)]
    of_all_kinds = definitions["Workload"]["properties"]
    holders: dict[tuple[str, str], list[str]] = {}  # key and its meaning -> models
    for model in models:
        for key, value in definitions[model]["properties"].items():
            meaning = of_all_kinds.get(key, value)["description"]
            holders.setdefault((key, meaning), []).append(model)
    for (key, meaning), models_with_key in holders.items():
        first_model = definitions[models_with_key[0]]
        value = of_all_kinds.get(key, first_model["properties"][key])
        is_required = all(key in definitions[model]["required"] for model in models_with_key)
        if len(models_with_key) < len(models):
            kinds = [f"`{model.removesuffix('Workload').lower()}`" for model in models_with_key]
            meaning += f" Kinds: {', '.join(kinds)}."
        yield _key_row(f"`{key}`", value, is_required, meaning)


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None:
        return ""
    if isinstance(default, str):
        return f"`{default}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{json.dumps(default)}`"


def _model(value: Schema) -> str:
    """The name of the definition that a schema refers to; empty where it refers to none."""
    return str(value.get("$ref", "")).rpartition("/")[2]


def _values_of_mapping(value: Schema) -> str:
    """What a mapping whose keys are names has as its values, in words; empty for other mappings and
    for values of several kinds.
    """
    schemas = [value.get("additionalProperties"), *value.get("patternProperties", {}).values()]
    of_values = [schema for schema in schemas if isinstance(schema, Mapping)]
    if len(of_values) != 1 or "anyOf" in of_values[0]:
        return ""
    return re.sub("^mapping", "mappings", _value(of_values[0]))


PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "mapping",
}


def _value(value: Schema) -> str:
    """What a key may have as its value, in words."""
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"] if choice is not None)
    if "const" in value:
        return f"`{value['const']}`"
    if "$ref" in value:
        name = _model(value)
        if name in PLACES:
            return PLACES[name].link
        return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    items = value.get("items")
    if isinstance(items, Mapping) and _model(items) in PLACES:
        return f"list of {PLACES[_model(items)].link}"
    values = _values_of_mapping(value)
    if values:
        return f"mapping of {values}"
    kinds = value.get("type", [])
    words = [
        PLAIN[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in PLAIN
    ]
    for alternative in value.get("anyOf", ()):
        word = _value(alternative)
        if word and word not in words:
            words.append(word)
    return " or ".join(words)


# --- columns and engines


def stored_columns() -> str:
    """Every column of every table, as the files have them."""
    texts = []
    for name, record in RECORDS.items():
        rows = []
        for column in arrow_schema(record):
            description = (column.metadata or {}).get(b"description", b"").decode()
            kind = f"{column.type}".replace("element: ", "").replace("item: ", "")
            shown = "struct" if kind.startswith("struct") else kind
            is_null = "may be null" if column.nullable else ""
            rows.append((f"`{column.name}`", f"`{shown}`", is_null, _escaped(description)))
        texts.append(f"## `{name}`\n\n" + table(("column", "type", "", "what it is"), rows))
    return "\n\n".join(texts)


def all_columns() -> str:
    """Every column of points, with its unit."""
    rows = []
    for column in point_columns().values():
        rows.append((f"`{column.name}`", column.unit, _escaped(column.description)))
    return table(("column", "unit", "what it is"), rows)


def engine_settings() -> str:
    """Which engine has which setting, and by which of its flags."""
    engines = [ENGINES[name] for name in ENGINES.shipped() if ENGINES[name].launches]
    rows = []
    for name in FIELDS:
        cells = [_flag(engine, name) for engine in engines]
        if any(cells):
            rows.append((f"`{name}`", *cells))
    return table(("setting", *(f"`{engine.name}`" for engine in engines)), rows)


def _flag(engine: Engine, name: str) -> str:
    if name not in engine.supported_fields():
        return ""
    flags = engine.flags.get(name)
    if flags is None:
        return "yes"
    spellings = [flags] if not isinstance(flags, tuple) else list(flags)
    return ", ".join(f"`{flag.name}`" for flag in spellings)

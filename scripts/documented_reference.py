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

Schema = Mapping[str, Any]
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
    """Prose of a help text, of which Markdown makes no markup."""
    return text.replace("<", "&lt;").replace("*", "\\*")


# --- keys of the experiment file

# Where the keys of a model of the schema are written; its other models stand below their own names.
PLACES = {
    "ModelRef": "`model`",
    "Hardware": "`hardware`, each class",
    "Environment": "`environments`, each version of an engine",
    "Deployments": "`deployments`",
    "Block": "`vary`, each block",
    "EngineSettings": "`deployments`, settings",
    "Speculative": "`speculative`",
    "Load": "`load`",
    "Levels": "`levels`",
    "Arrivals": "`arrivals`",
    "Slo": "`slos`, each of them",
    "Budget": "`budget`",
    "Predictions": "`predictions`",
    "Documents": "`documents`",
    "Popularity": "`popularity`",
    "HubDataset": "`dataset`",
    "PromptColumns": "`columns` of `kind: file`",
    "TraceColumns": "`columns` of `kind: trace`",
    "Keep": "`keep`",
    "LengthPair": "`lengths`, each pair",
    "MixPart": "`parts`, each of them",
    "Adapters": "`adapters`",
    "Images": "`images`",
    "ContentSource": "`content`",
    "Window": "`window`",
    "Lengths": "lengths: a number, or",
    "AnswerLengths": "lengths of answers: a number, or",
    "Uniform": "`uniform` of lengths",
    "LogNormal": "`lognormal` of lengths",
    "Normal": "`normal` of lengths",
    "Bin": "`histogram` of lengths, each bin",
    "Turns": "`turns`: a number, or",
    "Pauses": "pauses: a duration, or",
    "UniformPause": "`uniform` of pauses",
    "LogNormalPause": "`lognormal` of pauses",
    "NormalPause": "`normal` of pauses",
    "ExponentialPause": "`exponential` of pauses",
}
WORKLOAD = re.compile(r"(\w+)Workload$")
REPEATED = re.compile(r"Axes|Case|Role|Workload|\w+OfPreset")  # keys that stand elsewhere
OF_DEPLOYMENTS = ("vary", "derive", "exclude")


def experiment_keys() -> str:
    """Every key of the experiment file, by the mapping that it stands in."""
    schema = json.loads(schema_text())
    definitions: dict[str, Schema] = schema["$defs"]
    sections = [("Top level", _key_rows(schema, set(schema["required"])))]
    sections.append(("`workloads`, each of them", _workload_rows(definitions)))
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
        title = PLACES.get(name, re.sub(r"(?<!^)(?=[A-Z])", " ", name).capitalize())
        sections.append((title, _key_rows(mapping, set(mapping.get("required", ())))))
    texts = []
    for title, rows in sections:
        texts.append(f"## {title}\n\n" + table(("key", "value", "default", "meaning"), rows))
    return "\n\n".join(texts)


def _mapping(definition: Schema) -> Schema | None:
    """The alternative of a definition that has keys."""
    for alternative in (definition, *definition.get("anyOf", ())):
        if alternative.get("properties"):
            return dict(alternative)
    return None


def _key_rows(mapping: Schema, required: set[str]) -> Iterator[tuple[str, str, str, str]]:
    for key, value in mapping["properties"].items():
        default = "required" if key in required else _default(value)
        yield f"`{key}`", _value(value), default, _escaped(value.get("description", ""))


def _workload_rows(definitions: Mapping[str, Schema]) -> Iterator[tuple[str, str, str, str]]:
    """The keys of all kinds of workloads; a key that not all kinds have says which ones do."""
    kinds: dict[str, list[str]] = {}
    values: dict[str, Schema] = {}
    required: set[str] = set()
    names = [name for name in definitions if WORKLOAD.match(name)]
    for name in names:
        for key, value in definitions[name]["properties"].items():
            kinds.setdefault(key, []).append(name.removesuffix("Workload").lower())
            values.setdefault(key, value)
        required |= set(definitions[name].get("required", ()))
    for key, value in values.items():
        meaning = _escaped(value.get("description", ""))
        if key == "kind":
            meaning = "What requests are: see each kind on the page about workloads."
            value = {"enum": [name.removesuffix("Workload").lower() for name in names]}
        elif len(kinds[key]) < len(names):
            meaning += f" Kinds: {', '.join(f'`{kind}`' for kind in kinds[key])}."
        yield f"`{key}`", _value(value), _default(value), meaning


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None:
        return ""
    return f"`{json.dumps(default) if not isinstance(default, str) else default}`"


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
        name = str(value["$ref"]).rpartition("/")[2]
        place = PLACES.get(name)
        if place is not None:
            return re.split("[,:]", place)[0]
        return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
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

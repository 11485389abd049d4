"""Why an engine cannot run a deployment's settings, judged by its record and its recorded flags."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping

from orchestrator.engines.command import PLACE, PLACES, iter_flags
from orchestrator.engines.command_lines import (
    CommandLine,
    RecordedFlag,
    Release,
    ReleaseStanding,
    command_lines,
    nearest_word,
    release_of,
)
from orchestrator.engines.engine import Engine
from orchestrator.engines.extra_args import conflicts, present_flags
from orchestrator.spec.container_options import option_problem
from orchestrator.spec.settings import EngineSettings, Hardware

# Environment variables that choose the GPUs.
DEVICE_VARIABLES = {
    "GPU_DEVICE_ORDINAL",
    *(f"{vendor}_VISIBLE_DEVICES" for vendor in ("CUDA", "HIP", "ROCR", "NVIDIA")),
}
MOST_LISTED = 12  # words in a sentence; of more, only the nearest is named
OWNED_BY_DRAFTS = "the field speculative"


def problems_of(engine: Engine, settings: EngineSettings, hardware: Hardware) -> list[str]:
    """Why the engine cannot run these settings, one sentence each."""
    release = release_of(engine.name, settings)
    unknown_words: list[str] = []
    if release is None or release.is_certain:  # otherwise ``notes_of`` has them
        unknown_words = _unknown_words(engine, settings, release)
    return [
        *_hardware_problems(engine, hardware),
        *_unsupported_fields(engine, settings),
        *_extra_args_conflicts(engine, settings),
        *unknown_words,
        *_environment_problems(settings),
        *_container_problems(settings, hardware),
        *_draft_problems(engine, settings),
        *_adapter_problems(settings),
        *engine.more_problems(settings, hardware),
    ]


def notes_of(engine: Engine, settings: EngineSettings) -> list[str]:
    """What cannot be known of these settings, because their release is not a recorded one."""
    release = release_of(engine.name, settings)
    if release is None or release.is_certain:
        return []
    recorded = ", ".join(line.version for line in command_lines(engine.name))
    name = f"{engine.title} {release.stated}"
    if release.standing is ReleaseStanding.NEWER:
        about = f"{name} is newer than {recorded}, whose flags are known"
    else:
        about = f"the flags of {name} are not known, only those of {recorded}"
    sentences = _unknown_words(engine, settings, release)
    return [f"{about}: {sentence}" for sentence in sentences] or [about]


def _hardware_problems(engine: Engine, hardware: Hardware) -> Iterator[str]:
    if hardware.is_cpu and not engine.on_cpus:
        yield f"hardware: {engine.title} is run on GPUs only"
    if hardware.is_amd and not engine.on_amd:
        yield f"hardware: {engine.title} is run on NVIDIA's GPUs only"


def _unsupported_fields(engine: Engine, settings: EngineSettings) -> Iterator[str]:
    supported = engine.supported_fields()
    for name in settings.without_defaults():
        if name not in supported:
            yield f"{name}: {engine.reason_to_refuse(name)}"


def _adapter_problems(settings: EngineSettings) -> Iterator[str]:
    adapters = settings.lora_modules
    if adapters is None:
        return
    if not adapters:
        yield "lora_modules: names no adapter: leave it out"
    elif settings.enable_lora is False:
        yield "enable_lora: is false, and lora_modules names adapters: leave one of them out"
    for name in (settings.model, settings.served_model_name):
        if name in adapters:  # requests for it would go to the model itself
            yield f"lora_modules: {name!r} is the model's own name: give the adapter another"


def _environment_problems(settings: EngineSettings) -> Iterator[str]:
    for name in DEVICE_VARIABLES & settings.env.keys():
        yield f"env: {name} is set by this program: the cluster gives the devices"
    known_places = ", ".join(f"{{{place}}}" for place in PLACES)
    for name, value in settings.env.items():
        for place in PLACE.findall(value):
            if place not in PLACES:
                yield f"env: {name} holds {{{place}}}, which is none of {known_places}"


def _container_problems(settings: EngineSettings, hardware: Hardware) -> Iterator[str]:
    if settings.image is None:
        if settings.container_args:
            yield "container_args: these are for an image; name one, or leave them out"
        return
    runtime = settings.container_runtime or "docker"
    options = (hardware.container_args, settings.container_args)
    for words in options:
        problem = option_problem(words, runtime)
        if problem:
            yield f"container_args: {problem}"
    if hardware.is_cpu:
        return
    all_words = list(itertools.chain.from_iterable(options))
    for name in sorted(DEVICE_VARIABLES):
        # as a word, after "=" or other signs, or right after a short option: "-eCUDA_VISIBLE_DEVICES=0"
        setting = re.compile(rf"(^|\W|-e){name}\b")
        if any(setting.search(word) for word in all_words):
            yield f"container_args: {name} is set by this program: the cluster gives the devices"


# -- what extra_args and fields would both set


def _extra_args_conflicts(engine: Engine, settings: EngineSettings) -> list[str]:
    if not settings.extra_args:
        return []
    owners = _flag_owners(engine)
    release = release_of(engine.name, settings)
    if release is not None:
        owners |= _owners_by_other_spelling(release, settings, owners)
    left_to_extra_args = _owners_left_to_extra_args(engine, settings, owners)
    owners = _without(left_to_extra_args, owners) | dict.fromkeys(engine.reserved, "this program")
    key_owners = engine.keys
    if key_owners is not None and OWNED_BY_DRAFTS in left_to_extra_args:
        key_owners = _without({OWNED_BY_DRAFTS}, key_owners)
    return conflicts(engine.title, settings, owners, key_owners)


def _owners_left_to_extra_args(
    engine: Engine, settings: EngineSettings, owners: Mapping[str, str]
) -> set[str]:
    """The owners of flags whose fields are left open, so that ``extra_args`` may set these flags:
    ``speculative`` with any values, the engine's ``open_flags`` with the values listed there.
    """
    left: set[str] = set()
    if settings.speculative is None:
        left.add(OWNED_BY_DRAFTS)
    field_of_flag = {flag.name: field_name for field_name, flag in iter_flags(engine.flags)}
    for flag_name, open_values in engine.open_flags.items():
        is_open = getattr(settings, field_of_flag[flag_name]) is None
        if is_open and _says_only(settings, flag_name, open_values):
            left.add(owners[flag_name])
    return left


def _flag_owners(engine: Engine) -> dict[str, str]:
    """Flag -> who sets it, for the flags of the engine's record and for all that are named like a
    field.
    """
    # roles and router are never flags, and LMDeploy has a --role of its own
    fields = engine.supported_fields() - {"roles", "router"}
    owners = {f"--{name}": f"the field {name}" for name in fields}
    for name, flag in iter_flags(engine.flags):
        owners[flag.name] = f"the field {name}"
    return owners | dict(engine.aliases)


def _owners_by_other_spelling(
    release: Release, settings: EngineSettings, owners: Mapping[str, str]
) -> dict[str, str]:
    """Who sets the flags of ``extra_args`` that are recorded spellings of owned flags."""
    recorded_flags = release.command_line.flags
    owner_by_main_spelling = {}
    for spelling, owner in owners.items():
        if spelling in recorded_flags:
            owner_by_main_spelling[recorded_flags[spelling].name] = owner
    owner_by_spelling = {}
    for name in settings.extra_args:
        spelling = name.partition("=")[0].partition(".")[0]
        flag = recorded_flags.get(spelling)
        if flag is not None and flag.name in owner_by_main_spelling:
            owner_by_spelling[spelling] = owner_by_main_spelling[flag.name]
    return owner_by_spelling


def _says_only(settings: EngineSettings, flag: str, values: Collection[str]) -> bool:
    """Whether ``extra_args`` have the flag, and with none but these values."""
    names = present_flags(settings, (flag,))
    return bool(names) and all(str(settings.extra_args[name]) in values for name in names)


def _without(left_out: Collection[str], owners: Mapping[str, str]) -> dict[str, str]:
    """``owners`` without the names that one of the owners ``left_out`` has."""
    return {name: owner for name, owner in owners.items() if owner not in left_out}


# -- words that the engine does not have


def _unknown_words(engine: Engine, settings: EngineSettings, release: Release | None) -> list[str]:
    """Sentences about flags, values and methods that the engine does not have. ``release``: the
    deployment's, or the recorded one that stands for it.
    """
    command_line = release.command_line if release else None
    sentences = [
        *_unknown_values(engine, settings, command_line),
        *_unknown_method(engine, settings, command_line),
    ]
    if command_line:
        sentences += _unknown_flags(engine, settings, command_line)
    return sentences


def _unknown_values(
    engine: Engine, settings: EngineSettings, command_line: CommandLine | None
) -> Iterator[str]:
    for name, flag in _flags_with_choices(engine, settings, command_line).items():
        value = getattr(settings, name)
        common_words = engine.value_names.get(name, {})
        word = common_words.get(value, value)  # None: the engine's default, which is left out
        if word is None or flag.has_choice(word) or _is_of_plugin(engine, flag, settings):
            continue
        choices = tuple(dict.fromkeys((*common_words, *flag.choices)))
        reason = engine.missing_values.get(name, {}).get(value)
        guess = nearest_word(value, choices) if len(choices) > MOST_LISTED else ""
        if reason:
            yield f"{name}: {reason}"
        elif guess:
            yield f"{name}: {engine.title} has no {value!r}; {guess}"
        else:
            yield f"{name}: {value!r} is none of {', '.join(choices)}; {engine.title} has no other"


def _flags_with_choices(
    engine: Engine, settings: EngineSettings, command_line: CommandLine | None
) -> dict[str, RecordedFlag]:
    """Fields that are set, with the choices of their values: those of the engine's record, else
    the recorded ones.
    """
    flags = {}
    for name, flag in iter_flags(engine.flags):
        if getattr(settings, name) is None:
            continue
        recorded = command_line.find(flag.name) if command_line else None
        if flag.choices:
            is_open = recorded is not None and recorded.is_open
            flags[name] = RecordedFlag(flag.name, "value", flag.choices, is_open=is_open)
        elif recorded and recorded.choices and flag.kind == "value" and flag.value_from is None:
            flags[name] = recorded
    for name, values in engine.allowed_values.items():
        if getattr(settings, name) is not None:
            flags[name] = RecordedFlag(name, "value", values)
    return flags


def _unknown_method(
    engine: Engine, settings: EngineSettings, command_line: CommandLine | None
) -> Iterator[str]:
    if engine.drafts is None or settings.speculative is None:
        return
    method = settings.speculative.method
    methods = engine.drafts.methods(command_line)
    if method is None or methods.has_choice(method):
        return
    others = [
        line.version
        for line in command_lines(engine.name)
        if line is not command_line and engine.drafts.methods(line).has_choice(method)
    ]
    if others and command_line:
        yield (
            f"speculative: {engine.title} {command_line.version} has no method {method}; "
            f"{others[0]} has it: if that one runs, say engine_version: {others[0]!r}"
        )
        return
    hint = ""
    if len(methods.choices) > MOST_LISTED:
        hint = nearest_word(method, methods.choices)
    if not hint:
        hint = f"it has {', '.join(methods.choices)}"
    yield f"speculative: {engine.title} has no method {method}; {hint}"


def _unknown_flags(
    engine: Engine, settings: EngineSettings, command_line: CommandLine
) -> Iterator[str]:
    for name, value in settings.extra_args.items():
        if not name.startswith("-"):
            continue  # a key of a file, or no flag at all
        flag = command_line.find(name)
        if flag is None:
            guess = command_line.nearest(name)
            sentence = f"extra_args: {engine.title} {command_line.version} has no flag {name}"
            yield f"{sentence}; {guess}" if guess else sentence
            continue
        reason = command_line.reason_to_refuse(name, value)
        if reason and not _is_of_plugin(engine, flag, settings):
            yield f"extra_args: {name} {reason}"


def _is_of_plugin(engine: Engine, flag: RecordedFlag, settings: EngineSettings) -> bool:
    """Whether a word may be one that a plugin of the engine brings."""
    return flag.is_open and engine.plugins_variable in settings.env


def _draft_problems(engine: Engine, settings: EngineSettings) -> Iterator[str]:
    if engine.drafts is None or settings.speculative is None:
        return
    release = release_of(engine.name, settings)
    keys: Collection[str] = ()
    if release is not None and release.is_certain:
        flags = release.command_line.flags.values()
        keys = set(itertools.chain.from_iterable(flag.keys for flag in flags))
    yield from engine.drafts.problems(engine.title, settings.speculative, keys)

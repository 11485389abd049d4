"""Speculative decoding: the methods of an engine as data, and what is wrong with a deployment's."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.registry import did_you_mean
from orchestrator.engines.command_lines import CommandLine, RecordedFlag
from orchestrator.engines.extra_args import present_flags
from orchestrator.spec.settings import EngineSettings, Speculative

# Fields of ``Speculative`` that not every engine has.
OPTIONAL_FIELDS = (
    "draft_tensor_parallel_size",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "eagle_topk",
    "num_draft_tokens",
    "extra_args",
)


@dataclass(frozen=True, slots=True)
class DraftMethods:
    """An engine's methods of speculative decoding, and what they need."""

    # method in the common vocabulary -> the engine's own name, which is accepted too
    names: Mapping[str, str] = field(default_factory=dict)
    flag: str | None = None  # its recorded choices are further methods
    no_methods: Collection[str] = ()  # choices of ``flag`` that are no methods
    with_model: Collection[str] = ()  # methods that need a draft model
    without_model: Collection[str] = ("ngram", "suffix")
    optional_fields: Collection[str] = ()  # those of OPTIONAL_FIELDS that the engine has
    finds_method: bool = False  # it finds out the method by the draft model
    # flags of ``extra_args`` with the number of drafted tokens, for deployments that leave
    # ``speculative`` open
    tokens_flags: tuple[str, ...] = ()

    def tokens(self, settings: EngineSettings) -> int:
        """Tokens that are drafted at a time; 0 without speculation."""
        if settings.speculative is not None:
            return settings.speculative.num_speculative_tokens
        names = present_flags(settings, self.tokens_flags)
        return max((_tokens_in(name, settings.extra_args[name]) for name in names), default=0)

    def own_name(self, method: str) -> str:
        """A method as the engine calls it."""
        return self.names.get(method, method)

    def methods(self, command_line: CommandLine | None) -> RecordedFlag:
        """All methods, as a flag that has them as choices."""
        flag = command_line.find(self.flag) if command_line and self.flag else None
        recorded = flag.choices if flag else ()
        methods = [choice for choice in recorded if choice not in self.no_methods]
        names = dict.fromkeys((*self.names, *self.names.values(), *methods))
        any_case = flag is not None and flag.any_case
        return RecordedFlag("method", "value", tuple(names), any_case=any_case)

    def problems(
        self, engine: str, spec: Speculative, extra_keys: Collection[str] = ()
    ) -> Iterator[str]:
        """Draft models that are missing or superfluous, and details that the engine lacks.

        ``engine``: its title. ``extra_keys``: what ``extra_args`` may hold, () if that is not
        known.
        """
        yield from self._method_problems(engine, spec)
        missing = [
            name
            for name in OPTIONAL_FIELDS
            if getattr(spec, name) and name not in self.optional_fields
        ]
        if missing:
            yield f"speculative: {engine} has no {' and no '.join(missing)}"
        if "extra_args" in self.optional_fields:
            yield from _extra_key_problems(engine, spec, extra_keys)

    def _method_problems(self, engine: str, spec: Speculative) -> Iterator[str]:
        method = spec.method
        if method is None and not self.finds_method:
            yield f"speculative: {engine} needs the method"
        if method is None and spec.model is None:
            yield "speculative: without a method it needs the draft model, which tells the method"
        if method in self.with_model and spec.model is None:
            yield f"speculative: method {method} needs a model"
        if method in self.without_model and spec.model is not None:
            yield f"speculative: method {method} has no model"
        looks_up = method is not None and method.startswith("ngram")
        if not looks_up and (spec.prompt_lookup_min or spec.prompt_lookup_max):
            yield (
                "speculative: prompt_lookup_min and prompt_lookup_max are for ngram, "
                f"not for {method or 'a draft model'}"
            )


def _extra_key_problems(
    engine: str, spec: Speculative, extra_keys: Collection[str]
) -> Iterator[str]:
    for key in spec.extra_args:
        if key in Speculative.model_fields:
            yield f"speculative: extra_args: {key} is a key of speculative itself"
        elif extra_keys and key not in extra_keys:
            guess = did_you_mean(key, extra_keys)
            sentence = f"speculative: extra_args: {engine} has no key {key!r} there"
            yield f"{sentence}; {guess}" if guess else sentence


def _tokens_in(name: str, value: Any) -> int:
    """Drafted tokens in the value of one of ``extra_args``: a number, or a JSON object. ``name``
    may carry a key of that object after a dot.
    """
    _, _, key = name.partition(".")
    if key not in ("", "num_speculative_tokens"):
        return 0
    try:
        tokens = json.loads(str(value))
    except ValueError:
        return 0
    if isinstance(tokens, dict):
        tokens = tokens.get("num_speculative_tokens", 0)
    return tokens if isinstance(tokens, int) else 0

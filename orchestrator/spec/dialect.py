"""What one HTTP API of one engine accepts in requests, and how its streams report tokens.

Engines declare their dialects (``Engine.dialects``) and wires write requests by them. The type is
defined here because engines and load may not import each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.spec.constraint import (
    ConstraintForm,
    ConstraintForms,
    ConstraintKind,
    ToolChoice,
    all_kinds,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API of one engine. Pure data, picklable."""

    wire: str  # a name of load/wire/wires.py: WIRES
    path: str  # "/v1/completions"
    prompt_token_ids: bool = False  # the API takes a list of token ids as the prompt
    # How the output length is fixed: by ignore_eos and min_tokens in the body, by a
    # generation_config JSON string, or not at all (rows have both the requested and the actual
    # length). natural: the user wants answers as they end.
    length_control: Literal["ignore_eos", "generation_config", "none", "natural"] = "ignore_eos"
    max_tokens_field: str = "max_tokens"  # or max_completion_tokens, for OpenAI's newer models
    min_tokens_field: str | None = "min_tokens"
    include_usage: bool = True  # send stream_options.include_usage
    continuous_usage: bool = False  # send stream_options.continuous_usage_stats
    return_token_ids: bool = False  # send return_token_ids and count choices[].token_ids
    logprobs: bool = False  # ask for the log-probability of every output token
    # the API has cache_salt: requests with different salts share no prefix cache
    cache_salt: bool = False
    # whether the answer to a trial request had a token count; an answer without one is then
    # incomplete
    reports_counts: bool = False
    done_marker: bool = True  # a complete stream ends with "data: [DONE]"
    model_field: bool = True  # send the model's name
    # the most tokens that a decoding step yields: several with speculation, perhaps an event each
    tokens_per_step: int = 1
    # The field of a request that names its LoRA adapter; None: the API takes none.
    adapter_field: Literal["model", "lora_path", "adapter_id", "lora", "lora_request"] | None = None
    # adapter -> value of that field, where it is not the adapter's name
    adapter_values: dict[str, Any] = field(default_factory=dict)
    images: bool = False  # messages may hold pictures, as OpenAI's ``image_url`` parts
    # how it takes each kind of constraint on answers that it has
    constraints: ConstraintForms = field(default_factory=dict)
    # who may decide whether an answer calls a tool; empty: the API takes no tools
    tool_choices: frozenset[ToolChoice] = frozenset()
    # kinds of constraints that it refuses for an answer that may call a tool
    free_beside_tools: frozenset[ConstraintKind] = frozenset()
    # all fields, if the engine refuses others; None: it ignores others
    allowed_fields: frozenset[str] | None = None
    # of these, the ones that a request may have and that change no answer
    without_effect: frozenset[str] = frozenset()
    # fields to add to every request; None removes a field
    extra_body: dict[str, Any] = field(default_factory=dict)

    def with_fields(self, names: Iterable[str]) -> Dialect:
        """A copy whose engine takes these fields too."""
        assert self.allowed_fields is not None, "an engine that ignores fields takes all"
        return replace(self, allowed_fields=self.allowed_fields.union(names))

    def with_ignored_fields(self, names: Iterable[str]) -> Dialect:
        """A copy whose engine takes these fields, and ignores them."""
        dialect = self.with_fields(names)
        return replace(dialect, without_effect=self.without_effect.union(names))

    def applies(self, field_name: str) -> bool:
        """Whether the engine takes a field and does what it asks for, as far as that is known."""
        if self.allowed_fields is None:
            return False
        return field_name in self.allowed_fields and field_name not in self.without_effect

    def salted(self, salt: str) -> Dialect:
        """A copy that sends ``salt`` with every request, if the API has ``cache_salt``."""
        if not self.cache_salt:
            return self
        return replace(self, extra_body=self.extra_body | {"cache_salt": salt})

    def unsalted(self) -> Dialect:
        """A copy without ``cache_salt``."""
        body = {name: value for name, value in self.extra_body.items() if name != "cache_salt"}
        return replace(self, cache_salt=False, extra_body=body)

    def adapter_fields(self, adapter: str | None) -> dict[str, Any]:
        """The field of a request that asks for this adapter; {} for the model itself."""
        if adapter is None:
            return {}
        assert self.adapter_field is not None, "plans and loads check that the API takes adapters"
        return {self.adapter_field: self.adapter_values.get(adapter, adapter)}

    def through(self, router: Dialect) -> Dialect:
        """A copy for requests through a router: of optional features only those that the router
        passes on.
        """
        return replace(
            self,
            prompt_token_ids=self.prompt_token_ids and router.prompt_token_ids,
            continuous_usage=self.continuous_usage and router.continuous_usage,
            return_token_ids=self.return_token_ids and router.return_token_ids,
            cache_salt=self.cache_salt and router.cache_salt,
            adapter_field=self.adapter_field if router.adapter_field else None,
            images=self.images and router.images,
            constraints={
                kind: form
                for kind, form in self.constraints.items()
                if router.constraints.get(kind) is form
            },
            tool_choices=self.tool_choices & router.tool_choices,
        )


ANY_TOOL_CHOICE: frozenset[ToolChoice] = frozenset({"auto", "none", "required", "named"})


def openai(
    prompt_token_ids: bool = False,
    allowed_fields: Iterable[str] | None = None,
    images: bool = True,
    tool_choices: frozenset[ToolChoice] = frozenset(),
    **common: Any,
) -> dict[str, Dialect]:
    """The dialects ``completions`` and ``chat``. Only completions can take token ids, only chat
    ``images`` and tools.

    ``allowed_fields``: without the field that holds the prompt, which is added here. ``common``:
    other fields of both dialects.
    """
    completions_fields = None
    chat_fields = None
    if allowed_fields is not None:
        completions_fields = frozenset({*allowed_fields, "prompt"})
        chat_fields = frozenset({*allowed_fields, "messages"})
    return {
        "completions": Dialect(
            "openai_completions",
            "/v1/completions",
            prompt_token_ids=prompt_token_ids,
            allowed_fields=completions_fields,
            **common,
        ),
        "chat": Dialect(
            "openai_chat",
            "/v1/chat/completions",
            images=images,
            allowed_fields=chat_fields,
            tool_choices=tool_choices,
            **common,
        ),
    }


# TGI's own stream, which several servers have: one token per event, details in the last one, no
# fixed length.
TGI_STREAM = Dialect(
    "tgi",
    "/generate_stream",
    length_control="none",
    min_tokens_field=None,
    include_usage=False,
    done_marker=False,
    model_field=False,
    # router/src/lib.rs: GrammarType
    constraints=all_kinds(ConstraintForm.GRAMMAR),
)
SGLANG_GENERATE = Dialect(
    "sglang_generate",
    "/generate",
    prompt_token_ids=True,
    min_tokens_field="min_new_tokens",
    include_usage=False,  # every event carries the count so far
    model_field=False,
    # srt/sampling/sampling_params.py
    constraints={
        ConstraintKind.JSON_SCHEMA: ConstraintForm.SCHEMA_TEXT,
        ConstraintKind.REGEX: ConstraintForm.REGEX_FIELD,
        ConstraintKind.CHOICE: ConstraintForm.REGEX_FIELD,
    },
)
